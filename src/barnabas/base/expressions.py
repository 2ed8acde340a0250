"""Regular expressions that clients send: RE2's. Their cost is linear, so that nobody can keep a broker busy with one."""

import re2


class BadExpression(ValueError):
    """Its text says what is wrong."""


def compile_expression(expression: str) -> "re2._Regexp":
    options = re2.Options()
    options.log_errors = False  # RE2 writes to stderr unless it is told not to
    try:
        return re2.compile(expression, options)
    except re2.error as error:
        (reason,) = error.args
        raise BadExpression(reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)) from None
