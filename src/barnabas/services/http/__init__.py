"""HTTP for the services: bounded heads, bodies and connections, checks of who asks, one way to serve an application.

The registry and the console are ASGI applications on top of it. Nothing here knows what they answer.
"""
