"""A request that is refused, whatever the service. Pure."""

from barnabas.base.errors import BarnabasError


class Refusal(BarnabasError):
    """An answer that is an error. `code` is a name in capitals that a script can compare."""

    def __init__(self, status: int, code: str, message: str, *, retry_s: float | None = None) -> None:
        """`retry_s`: when it is worth trying again."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_s = retry_s


def bad_request(message: str) -> Refusal:
    return Refusal(400, "BAD_REQUEST", message)
