"""Handlers of single APIs, without a broker."""

from barnabas.broker.server.handler import ApiHandler, handlers_of


def handler_of(family: object, name: str) -> ApiHandler:
    """Return the handler of one API of a family."""
    [handler] = [each for each in handlers_of(family) if each.name == name]
    return handler
