"""Regular expressions from clients. RE2 evaluates them in linear time, so no client can keep a broker busy with one."""

import re2


class BadExpression(ValueError):
    """An invalid expression; the message says why."""


def compile_expression(expression: str) -> "re2._Regexp":
    options = re2.Options()
    options.log_errors = False  # by default RE2 writes errors to stderr
    try:
        return re2.compile(expression, options)
    except re2.error as error:
        (reason,) = error.args
        raise BadExpression(reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)) from None
