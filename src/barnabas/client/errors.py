"""What can go wrong for a client, told apart by what the caller may do next."""

from collections.abc import Iterable
from typing import Protocol

from barnabas.base.errors import RETRIABLE, BarnabasError, ErrorCode


class ClientError(BarnabasError):
    """Base of the failures that a client meets."""

    #: May the same thing be tried again, perhaps after new metadata?
    retriable: bool = False


class ConnectionLost(ClientError):
    """The connection could not be made, or ended before the answer. The request may or may not have been carried out."""

    retriable = True


class ConnectionRefused(ConnectionLost):
    """Nobody listens at the port. The host answered, so the process is not there."""


class OtherProtocol(ConnectionLost):
    """The port seems to speak TLS where we do not, or plain text where we speak TLS: the settings are wrong."""


class RequestTimedOut(ClientError):
    """No answer in time. The connection is closed with it, since answers come in order."""

    retriable = True


class DeadlineExceeded(ClientError):
    """The whole operation, with its retries, ran out of time; the message says what stood in the way last."""


class UnsupportedVersion(ClientError):
    """The broker and this client share no version of an API (or the broker does not have it at all)."""


class AuthenticationFailed(ClientError):
    """One side does not trust the other: wrong credentials, or a certificate that cannot be checked."""


class UnexpectedAnswer(ClientError):
    """A broker answered, in the right form, with what cannot be an answer to this request."""


#: What a code means for who reads it, where its name alone does not say what to do.
_ADVICE = {
    ErrorCode.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than min.insync.replicas asks for: start the other brokers",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "written, but fewer replicas are in sync than min.insync.replicas asks for",
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "the brokers have no delegation.token.secret.key",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "log in first, and not with a token: give --command-config",
}


class BrokerRefused(ClientError):
    """The broker answered with one of Kafka's error codes."""

    def __init__(self, code: int, message: str | None = None) -> None:
        self.code = ErrorCode(code)
        #: The broker's own words, where the API has room for them.
        self.message = message
        self.retriable = self.code in RETRIABLE
        words = f"{self.code.name}: {message}" if message else self.code.name
        advice = _ADVICE.get(self.code)
        super().__init__(f"{words} ({advice})" if advice else words)


class Outcome(Protocol):
    """A part of a response that has a code of its own."""

    error_code: int


def first_error(outcomes: Iterable[Outcome]) -> int:
    """The first code that is not success; 0 where all went well."""
    return next((each.error_code for each in outcomes if each.error_code), 0)


def check(code: int, message: str | None = None) -> None:
    """Raise `BrokerRefused` unless the code says that all went well."""
    if code:
        raise BrokerRefused(code, message)
