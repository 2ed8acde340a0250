"""Who uses the console: sessions in this process's memory, named by signed cookies.

A cookie holds an identifier and its signature, nothing else. The key is made when the console starts, so a restart ends all
sessions. What a user signed in with never leaves the process: it is inside of the client that the session holds.
Owner: the event loop.
"""

import base64
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

T = TypeVar("T")

#: A session ends when nobody used it for the first, and in any case after the second.
IDLE_S: Final = 3600.0
LIFETIME_S: Final = 12 * 3600.0
SESSIONS_MAX: Final = 1_000
SESSIONS_PER_USER_MAX: Final = 20
_ID_BYTES: Final = 24


class TooManySessions(Exception):
    """All places are taken by sessions that are in use."""


@dataclass(slots=True, eq=False)
class Session(Generic[T]):
    id: str
    #: As the cluster knows him.
    user: str
    #: What the session acts with.
    held: T = field(repr=False)
    csrf_token: str = field(repr=False)
    ends_s: float
    used_s: float


class Sessions(Generic[T]):
    """`ended` is told of every session that is over, so that what it holds can be closed."""

    def __init__(self, *, now_s: Callable[[], float], ended: Callable[[Session[T]], None]) -> None:
        self._now_s = now_s
        self._ended = ended
        self._key = secrets.token_bytes(32)
        #: The one that was used longest ago first.
        self._sessions: dict[str, Session[T]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, user: str, held: T, *, lifetime_s: float = LIFETIME_S) -> Session[T]:
        """:raises TooManySessions: where others use all there may be."""
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
        """Ends what is over. When to come again, in seconds; None while there are no sessions."""
        now_s = self._now_s()
        for session in [each for each in self._sessions.values() if self._is_over(each, now_s)]:
            self.end(session)
        ends = [min(each.ends_s, each.used_s + IDLE_S) for each in self._sessions.values()]
        return max(0.0, min(ends) - now_s) if ends else None

    def _is_over(self, session: Session[T], now_s: float) -> bool:
        return now_s >= min(session.ends_s, session.used_s + IDLE_S)

    def is_used(self, session: Session[T]) -> bool:
        """Notes that somebody uses it. False: it is over."""
        now_s = self._now_s()
        if self._sessions.get(session.id) is not session:
            return False
        if self._is_over(session, now_s):
            self.end(session)
            return False
        session.used_s = now_s
        # To the end: the first of a user's sessions is the one that was not used for longest.
        self._sessions[session.id] = self._sessions.pop(session.id)
        return True

    # -- cookies ------------------------------------------------------------------------------------------------------

    def cookie_of(self, session: Session[T]) -> str:
        return f"{session.id}.{self._sign('cookie', session.id)}"

    def of_cookie(self, value: str) -> Session[T] | None:
        """The session of a cookie that this process has signed, unless it is over."""
        identifier, _, signature = value.partition(".")
        if not _same(signature, self._sign("cookie", identifier)):
            return None
        session = self._sessions.get(identifier)
        return session if session is not None and self.is_used(session) else None

    def digest(self, secret: str) -> str:
        """The same for the same secret, and of no use to anybody else."""
        return self._sign("secret", secret)

    def _sign(self, purpose: str, text: str) -> str:
        digest = hmac.digest(self._key, f"{purpose}\0{text}".encode("utf-8", "surrogatepass"), "sha256")
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def is_csrf_token(session: Session[T], given: str | None) -> bool:
    return given is not None and _same(given, session.csrf_token)


def _same(given: str, expected: str) -> bool:
    """`compare_digest` takes no text outside of ASCII."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())
