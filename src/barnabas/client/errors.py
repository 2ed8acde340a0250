"""The failures that a client meets, one class per way that the caller can react."""

from collections.abc import Iterable
from typing import Protocol

from barnabas.base.errors import RETRIABLE, BarnabasError, ErrorCode


class ClientError(BarnabasError):
    """Base of the failures that a client meets."""

    #: Whether the caller may try again, perhaps after refreshing metadata.
    retriable: bool = False


class ConnectionLost(ClientError):
    """The connection could not be opened, or ended before the response. The broker may or may not have acted on the request."""

    retriable = True


class ConnectionRefused(ConnectionLost):
    """No process listens at the port. The host answered, so it is up."""


class OtherProtocol(ConnectionLost):
    """The port seems to speak TLS although the client does not, or the reverse: the settings are wrong."""


class RequestTimedOut(ClientError):
    """No response in time. The connection is closed too, because responses come in order."""

    retriable = True


class DeadlineExceeded(ClientError):
    """The operation ran out of time, including its retries. The message has the last error."""


class UnsupportedVersion(ClientError):
    """The broker and this client share no version of an API, or the broker does not have the API."""


class AuthenticationFailed(ClientError):
    """One side does not trust the other: wrong credentials, or a certificate that cannot be verified."""


class UnexpectedAnswer(ClientError):
    """A broker sent a well-formed response that cannot be right for this request."""


#: What to do about a code whose name does not say it.
_ADVICE = {
    ErrorCode.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than min.insync.replicas asks for: start the other brokers",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "written, but fewer replicas are in sync than min.insync.replicas asks for",
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "the brokers have no delegation.token.secret.key",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "log in first, and not with a token: give --command-config",
}


class BrokerRefused(ClientError):
    """The broker answered with a Kafka error code."""

    def __init__(self, code: int, message: str | None = None) -> None:
        self.code = ErrorCode(code)
        #: The broker's message, if the API has a field for it.
        self.message = message
        self.retriable = self.code in RETRIABLE
        words = f"{self.code.name}: {message}" if message else self.code.name
        advice = _ADVICE.get(self.code)
        super().__init__(f"{words} ({advice})" if advice else words)


class Outcome(Protocol):
    """A part of a response that has its own error code."""

    error_code: int


def first_error(outcomes: Iterable[Outcome]) -> int:
    """Return the first error code; 0 if all succeeded."""
    return next((outcome.error_code for outcome in outcomes if outcome.error_code), 0)


def check(code: int, message: str | None = None) -> None:
    """Raise `BrokerRefused` unless the code means success."""
    if code:
        raise BrokerRefused(code, message)
