"""Refused requests, for all services. Pure."""

from barnabas.base.errors import BarnabasError


class Refusal(BarnabasError):
    """An error answer. `code` is a name in capitals that scripts can compare."""

    def __init__(self, status: int, code: str, message: str, *, retry_s: float | None = None) -> None:
        """`retry_s`: when it makes sense to retry."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_s = retry_s


def bad_request(message: str) -> Refusal:
    return Refusal(400, "BAD_REQUEST", message)
