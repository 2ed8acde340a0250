"""The SASL state machine of a connection: the requests that it accepts in each state, and its handling of tokens. Pure.

    HANDSHAKE --handshake--> AUTHENTICATE --last token--> COMPLETE --handshake (re-authentication)--> AUTHENTICATE
                                  any failure --> FAILED, for good

Owner: the connection. Time is given in milliseconds of a monotonic clock for sessions, of the wall clock for credentials.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from barnabas.wire.auth.exchange import SaslFailed, ServerExchange

#: As in Kafka, a second authentication within this time does not count as a re-authentication.
REAUTHENTICATION_MIN_MS: Final = 1_000


#: A client sends ApiVersions once, and again if the version of its request was too new for the broker. Kafka limits only
#: requests that it can answer, to one.
VERSIONS_ASKED_MAX: Final = 3


class State(Enum):
    HANDSHAKE = "handshake"
    AUTHENTICATE = "authenticate"
    COMPLETE = "complete"
    FAILED = "failed"


class RequestKind(Enum):
    """The kinds of requests that a session distinguishes."""

    VERSIONS = "ApiVersions"
    HANDSHAKE = "SaslHandshake"
    AUTHENTICATE = "SaslAuthenticate"
    OTHER = "other"


class NotAdmitted(SaslFailed):
    """The state does not allow the request: the connection is closed."""


class IllegalState(SaslFailed):
    """The session does not expect the client to authenticate now. It gets an error, and the connection stays open."""


@dataclass(frozen=True, slots=True)
class Mechanism:
    begin: Callable[[], ServerExchange]
    #: `connections.max.reauth.ms`; 0: sessions do not expire.
    reauth_ms_max: int = 0


@dataclass(frozen=True, slots=True)
class Accepted:
    """The response to a token. Only the last one sets `user`."""

    token: bytes
    user: str | None = None
    session_lifetime_ms: int = 0


class SaslSession:
    def __init__(self, mechanisms: Mapping[str, Mechanism]) -> None:
        self._mechanisms = mechanisms
        self.state = State.HANDSHAKE
        self.mechanism: str | None = None
        self.user: str | None = None
        #: Whether the last authentication used a delegation token.
        self.by_delegation_token = False
        #: After a handshake of version 0, tokens have no request header.
        self.takes_raw_tokens = False
        self._exchange: ServerExchange | None = None
        self._versions_asked = 0
        self._completed_at_ms = 0
        self._expires_at_ms: int | None = None

    @property
    def mechanisms(self) -> list[str]:
        return list(self._mechanisms)

    @property
    def is_complete(self) -> bool:
        return self.state is State.COMPLETE

    def admit(self, kind: RequestKind, *, now_ms: int) -> None:
        """Raise `NotAdmitted` if the request is not allowed now."""
        state = self.state
        if state is State.COMPLETE:
            expired = self._expires_at_ms is not None and now_ms >= self._expires_at_ms
            if expired and kind is not RequestKind.HANDSHAKE:
                raise NotAdmitted("the session has expired and was not authenticated again")
        elif state is State.HANDSHAKE:
            if kind not in (RequestKind.VERSIONS, RequestKind.HANDSHAKE):
                raise NotAdmitted("Unexpected Kafka request during SASL handshake.")
            if kind is RequestKind.VERSIONS:
                self._versions_asked += 1
                if self._versions_asked > VERSIONS_ASKED_MAX:
                    raise NotAdmitted("Too many ApiVersions requests before SASL handshake.")
        elif state is State.AUTHENTICATE:
            if kind is not RequestKind.AUTHENTICATE:
                raise NotAdmitted("Unexpected Kafka request during SASL authentication.")
        else:
            raise NotAdmitted("authentication has failed")

    def handshake(self, mechanism: str, *, with_headers: bool, now_ms: int) -> None:
        if self.state is State.COMPLETE:
            may_again = self._expires_at_ms is not None
            if not may_again or now_ms - self._completed_at_ms < REAUTHENTICATION_MIN_MS:
                raise IllegalState("SaslHandshake request received after successful authentication")
            if mechanism != self.mechanism and mechanism in self._mechanisms:
                self.state = State.FAILED
                raise SaslFailed(
                    f"SASL mechanism '{mechanism}' requested by client is not supported for re-authentication of "
                    f"mechanism '{self.mechanism}'"
                )
        known = self._mechanisms.get(mechanism)
        if known is None:
            self.state = State.FAILED
            raise SaslFailed(f"Unsupported SASL mechanism {mechanism}")
        self.mechanism = mechanism
        self._exchange = known.begin()
        self.takes_raw_tokens = not with_headers
        self.state = State.AUTHENTICATE

    def authenticate(self, token: bytes, *, now_ms: int, wall_ms: int) -> Accepted:
        if self.state is not State.AUTHENTICATE:
            raise IllegalState("SaslAuthenticate request received after successful authentication")
        assert self._exchange is not None and self.mechanism is not None
        try:
            answer = self._exchange.evaluate(token)
            user = self._exchange.user
            if user is not None and self.user is not None and user != self.user:
                raise SaslFailed(
                    f"Cannot change principals during re-authentication from User.{self.user}: User.{user}"
                )
        except SaslFailed:
            self.state, self._exchange = State.FAILED, None
            raise
        if user is None:
            return Accepted(answer)
        lifetime_ms = self._lifetime_ms(self._exchange, wall_ms)
        self.user = user
        self.by_delegation_token = self._exchange.by_delegation_token
        self.state, self._exchange, self.takes_raw_tokens = State.COMPLETE, None, False
        self._completed_at_ms = now_ms
        self._expires_at_ms = now_ms + lifetime_ms if lifetime_ms is not None else None
        return Accepted(answer, user, lifetime_ms or 0)

    def _lifetime_ms(self, exchange: ServerExchange, wall_ms: int) -> int | None:
        """Return the shorter limit of the broker's and the credential's; None if neither has one."""
        assert self.mechanism is not None
        limits = []
        if (reauth_ms := self._mechanisms[self.mechanism].reauth_ms_max) > 0:
            limits.append(reauth_ms)
        if exchange.expires_at_ms is not None:
            limits.append(max(0, exchange.expires_at_ms - wall_ms))
        return min(limits) if limits else None
