"""The interface of SASL mechanisms, on both sides."""

from typing import Protocol

from barnabas.base.errors import BarnabasError


class SaslFailed(BarnabasError):
    """The exchange failed. The message is sent to the peer, so it must not reveal anything."""


class ServerExchange(Protocol):
    """One authentication on the server's side."""

    @property
    def user(self) -> str | None:
        """The authenticated user; None until the exchange has proved it."""
        ...

    @property
    def expires_at_ms(self) -> int | None:
        """When the credential expires, if it does, as a token does."""
        ...

    @property
    def by_delegation_token(self) -> bool:
        """Whether a delegation token was used. Such a session cannot create other tokens."""
        ...

    def evaluate(self, token: bytes) -> bytes:
        """Return the response to a client's token, or raise `SaslFailed`."""
        ...


class ClientExchange(Protocol):
    """One authentication on the client's side."""

    @property
    def is_complete(self) -> bool:
        """Whether the client has sent everything, and the server has proved what the mechanism lets it prove."""
        ...

    def first(self) -> bytes: ...

    def respond(self, challenge: bytes) -> bytes | None:
        """Return the next token; None after the last challenge. This may take long, so a caller on an event loop calls it on a
        thread. Raises `SaslFailed`."""
        ...
