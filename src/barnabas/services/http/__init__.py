"""HTTP for the services: bounded headers, bodies and connections, checks of origins, and one way to serve an application.

The registry and the console are ASGI applications on top of it. This package does not know their content.
"""
