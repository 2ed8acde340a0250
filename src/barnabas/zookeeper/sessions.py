"""Sessions and their expiry. Pure: the caller passes a monotonic time, because setting a wall clock must not expire any
session.

Expiry uses buckets, as in ZooKeeper, but smaller ones than ticks: clients of a killed broker wait for its session to end. A
session lives at least its timeout and at most one bucket longer. Touching it only moves it between dicts if its bucket changes.
"""

import hashlib
from typing import Final

#: The width of a bucket, unless a tick is shorter.
BUCKET_MS: Final = 50
PASSWORD_BYTES: Final = 16


class Session:
    __slots__ = ("bucket_ms", "closing", "timeout_ms")

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        #: When it expires, a multiple of the bucket width; 0 until its timer is started.
        self.bucket_ms = 0
        #: Set once its end is decided: from then on it cannot be touched or resumed.
        self.closing = False


class SessionTable:
    """Invariant: every session that is not closing is in exactly the bucket that it names, if it names one."""

    def __init__(self, *, tick_ms: int) -> None:
        self._width_ms = min(tick_ms, BUCKET_MS)
        self.by_id: dict[int, Session] = {}
        self._buckets: dict[int, dict[int, None]] = {}

    def add(self, session_id: int, timeout_ms: int) -> None:
        """Add a session, whose timer starts when it is touched. Idempotent, for replay over a snapshot that includes it."""
        session = self.by_id.get(session_id)
        if session is None:
            self.by_id[session_id] = Session(timeout_ms)
        else:
            session.timeout_ms = timeout_ms

    def touch(self, session_id: int, *, now_ms: int, timeout_ms: int | None = None) -> bool:
        """Restart the timer of a session. Returns False if there is no such session, or it is closing."""
        session = self.by_id.get(session_id)
        if session is None or session.closing:
            return False
        changed = timeout_ms is not None and timeout_ms != session.timeout_ms
        if timeout_ms is not None:
            session.timeout_ms = timeout_ms
        expires_ms = now_ms + session.timeout_ms
        if changed or expires_ms >= session.bucket_ms:
            self._move(session_id, session, expires_ms)
        return True

    def _move(self, session_id: int, session: Session, expires_ms: int) -> None:
        bucket_ms = (expires_ms // self._width_ms + 1) * self._width_ms
        if bucket_ms == session.bucket_ms:
            return
        self._leave(session_id, session)
        session.bucket_ms = bucket_ms
        self._buckets.setdefault(bucket_ms, {})[session_id] = None

    def _leave(self, session_id: int, session: Session) -> None:
        bucket = self._buckets.get(session.bucket_ms)
        if bucket is not None:
            bucket.pop(session_id, None)
            if not bucket:
                del self._buckets[session.bucket_ms]

    def restart_timers(self, *, now_ms: int) -> None:
        """Give every session its whole timeout again after a restart, because clients could not reach the server meanwhile."""
        for session_id in self.by_id:
            self.touch(session_id, now_ms=now_ms)

    def next_expiry_ms(self) -> int | None:
        """Return when the next session expires unless it is touched; None if there is none."""
        return min(self._buckets, default=None)

    def expired(self, *, now_ms: int) -> list[int]:
        """Return sessions that have expired and mark them as closing. Each is returned once."""
        due = [bucket_ms for bucket_ms in self._buckets if bucket_ms <= now_ms]
        gone: list[int] = []
        for bucket_ms in sorted(due):
            for session_id in self._buckets.pop(bucket_ms):
                self.by_id[session_id].closing = True
                gone.append(session_id)
        return gone

    def begin_close(self, session_id: int) -> None:
        session = self.by_id.get(session_id)
        if session is not None:
            session.closing = True
            self._leave(session_id, session)

    def remove(self, session_id: int) -> None:
        session = self.by_id.pop(session_id, None)
        if session is not None:
            self._leave(session_id, session)

    def buckets(self) -> dict[int, list[int]]:
        return {bucket_ms: list(ids) for bucket_ms, ids in sorted(self._buckets.items())}


def first_session_id(*, server_id: int, now_ms: int) -> int:
    """Use ZooKeeper's scheme: the server id in the top byte, then the time, then a counter of 16 bits.

    The wall clock is used so that a restart never reuses an id that was assigned before it.
    """
    return server_id << 56 | ((now_ms << 24) & 0xFFFFFFFFFFFFFFFF) >> 8


def session_password(secret: bytes, session_id: int) -> bytes:
    """Return the password with which a client resumes its session. The secret lives as long as the sessions do."""
    raw = session_id.to_bytes(8, "big", signed=True)
    return hashlib.blake2b(raw, key=secret, digest_size=PASSWORD_BYTES).digest()
