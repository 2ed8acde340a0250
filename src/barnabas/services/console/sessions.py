"""Sessions in this process's memory, identified by signed cookies.

A cookie contains only an identifier and its signature. The key is created at the start, so a restart ends all sessions.
Credentials never leave the process: only the session's client has them.
Owner: the event loop.
"""

import base64
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

T = TypeVar("T")

#: A session ends after the first time without use, and in any case after the second.
IDLE_S: Final = 3600.0
LIFETIME_S: Final = 12 * 3600.0
SESSIONS_MAX: Final = 1_000
SESSIONS_PER_USER_MAX: Final = 20
_ID_BYTES: Final = 24


class TooManySessions(Exception):
    """All places are taken by sessions in use."""


@dataclass(slots=True, eq=False)
class Session(Generic[T]):
    id: str
    #: The user's name in the cluster.
    user: str
    #: The account that the session uses.
    held: T = field(repr=False)
    csrf_token: str = field(repr=False)
    ends_s: float
    used_s: float


class Sessions(Generic[T]):
    """Calls `ended` for every session that ends, so that its account can be closed."""

    def __init__(self, *, now_s: Callable[[], float], ended: Callable[[Session[T]], None]) -> None:
        self._now_s = now_s
        self._ended = ended
        self._key = secrets.token_bytes(32)
        #: The least recently used session comes first.
        self._sessions: dict[str, Session[T]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, user: str, held: T, *, lifetime_s: float = LIFETIME_S) -> Session[T]:
        """:raises TooManySessions: if the sessions of other users fill all places."""
        self.sweep()
        mine = [each for each in self._sessions.values() if each.user == user]
        if len(mine) >= SESSIONS_PER_USER_MAX:
            self.end(mine[0])
        if len(self._sessions) >= SESSIONS_MAX:
            raise TooManySessions
        now_s = self._now_s()
        identifier = secrets.token_urlsafe(_ID_BYTES)
        session = Session(
            id=identifier,
            user=user,
            held=held,
            csrf_token=self._sign("csrf", identifier),
            ends_s=now_s + min(lifetime_s, LIFETIME_S),
            used_s=now_s,
        )
        self._sessions[identifier] = session
        return session

    def end(self, session: Session[T]) -> None:
        if self._sessions.pop(session.id, None) is not None:
            self._ended(session)

    def end_all(self) -> None:
        for session in list(self._sessions.values()):
            self.end(session)

    def sweep(self) -> float | None:
        """End expired sessions. Return the seconds until the next expiry; None without sessions."""
        now_s = self._now_s()
        for session in [each for each in self._sessions.values() if self._is_over(each, now_s)]:
            self.end(session)
        ends = [min(each.ends_s, each.used_s + IDLE_S) for each in self._sessions.values()]
        return max(0.0, min(ends) - now_s) if ends else None

    def _is_over(self, session: Session[T], now_s: float) -> bool:
        return now_s >= min(session.ends_s, session.used_s + IDLE_S)

    def is_used(self, session: Session[T]) -> bool:
        """Record a use of the session. Return False if it has ended."""
        now_s = self._now_s()
        if self._sessions.get(session.id) is not session:
            return False
        if self._is_over(session, now_s):
            self.end(session)
            return False
        session.used_s = now_s
        # Move it to the end: the first one of a user's sessions is the least recently used.
        self._sessions[session.id] = self._sessions.pop(session.id)
        return True

    # -- cookies ------------------------------------------------------------------------------------------------------

    def cookie_of(self, session: Session[T]) -> str:
        return f"{session.id}.{self._sign('cookie', session.id)}"

    def of_cookie(self, value: str) -> Session[T] | None:
        """Return the session of a cookie that this process has signed, unless it has ended."""
        identifier, _, signature = value.partition(".")
        if not _same(signature, self._sign("cookie", identifier)):
            return None
        session = self._sessions.get(identifier)
        return session if session is not None and self.is_used(session) else None

    def digest(self, secret: str) -> str:
        """Return an identifier that is equal for equal secrets, and useless outside this process."""
        return self._sign("secret", secret)

    def _sign(self, purpose: str, text: str) -> str:
        digest = hmac.digest(self._key, f"{purpose}\0{text}".encode("utf-8", "surrogatepass"), "sha256")
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def is_csrf_token(session: Session[T], given: str | None) -> bool:
    return given is not None and _same(given, session.csrf_token)


def _same(given: str, expected: str) -> bool:
    """`compare_digest` does not accept text outside ASCII."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())
