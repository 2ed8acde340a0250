"""The interface of SASL mechanisms, on both sides."""

from typing import Protocol

from barnabas.base.errors import BarnabasError


class SaslFailed(BarnabasError):
    """The exchange failed. The message goes to the peer, so it must not reveal anything."""


class ServerExchange(Protocol):
    """One authentication as the server sees it."""

    @property
    def user(self) -> str | None:
        """Who it is, once that is proved."""
        ...

    @property
    def expires_at_ms(self) -> int | None:
        """When the credential itself ends, if it does: a token's end."""
        ...

    @property
    def by_delegation_token(self) -> bool:
        """Whether a delegation token was used. Such a session cannot create other tokens."""
        ...

    def evaluate(self, token: bytes) -> bytes:
        """The answer to a client's token. Raises `SaslFailed`."""
        ...


class ClientExchange(Protocol):
    """One authentication as the client sees it."""

    @property
    def is_complete(self) -> bool:
        """Nothing more is to be sent, and the server has proved what the mechanism lets it prove."""
        ...

    def first(self) -> bytes: ...

    def respond(self, challenge: bytes) -> bytes | None:
        """The next token; None where the challenge was the last. It may compute for a while: a caller on an event loop calls
        it on a thread. Raises `SaslFailed`."""
        ...
