"""Fetch sessions (KIP-227): the broker remembers a client's partitions, so that each request names only those that changed.

A follower's session may hold thousands of partitions, of which few change between two requests. A partition whose follower is
in sync and has got all news *rests*: requests skip it until something happens to it, here (`Partition.stir`) or in the
follower's requests. A follower is caught up in a skipped partition; `state.LastFetch` has the time.

Owner: the event loop. Serves Fetch v7 and later; an earlier request names all partitions and has no session. Bounded by
`max.incremental.fetch.session.cache.slots`, with Kafka's rules of eviction.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import TopicPartition
from barnabas.broker.replication.state import FollowerPosition, LastFetch

INVALID_SESSION_ID: Final = 0
#: A full request that asks for a new session.
INITIAL_EPOCH: Final = 0
#: Ends a session.
FINAL_EPOCH: Final = -1
EPOCH_MAX: Final = 2**31 - 1
#: Partitions in the sessions of all clients together: some 200 MB. Followers' sessions do not count.
CLIENTS_PARTITIONS_MAX: Final = 500_000


class FetchKey(NamedTuple):
    """A partition as the client names it: by topic id from Fetch v13 on, by name before."""

    topic: str | bytes
    partition: int


class CachedPartition:
    """A client's position and limits in one partition, and the offsets in the last response about it.

    Most requests keep most fields as they are in the class, which costs less than slots.
    """

    #: Offsets in the last response; -1 forces the next response to mention this partition.
    sent_high_watermark: int = -1
    sent_log_start: int = -1
    #: The partition to which the key resolved last time.
    tp: TopicPartition | None = None
    session: "FetchSession | None" = None
    #: While this rests: all entries that rest in the same partition, and the follower's position there.
    resting_with: "list[CachedPartition] | None" = None
    position: FollowerPosition | None = None

    def __init__(
        self,
        key: FetchKey,
        fetch_offset: int,
        max_bytes: int,
        current_leader_epoch: int,
        last_fetched_epoch: int,
        follower_log_start: int,
    ) -> None:
        self.key = key
        self.fetch_offset = fetch_offset
        self.max_bytes = max_bytes
        self.current_leader_epoch = current_leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.follower_log_start = follower_log_start

    def update(self, other: "CachedPartition") -> None:
        self.fetch_offset = other.fetch_offset
        self.max_bytes = other.max_bytes
        self.current_leader_epoch = other.current_leader_epoch
        self.last_fetched_epoch = other.last_fetched_epoch
        self.follower_log_start = other.follower_log_start

    def must_tell(
        self, *, error: int, high_watermark: int, log_start: int, has_more: bool, is_diverging: bool = False
    ) -> bool:
        """Whether an incremental response must mention this partition. `has_more`: records, or advice for the client."""
        must = has_more
        if high_watermark != self.sent_high_watermark:
            must = True
            self.sent_high_watermark = high_watermark
        if log_start != self.sent_log_start:
            must = True
            self.sent_log_start = log_start
        if is_diverging:
            # The follower truncates, and takes no high watermark from this answer: send it again.
            self.sent_high_watermark = -1
            must = True
        if error:
            # When the error is over, the next response must mention the partition, even if nothing else changed.
            self.sent_high_watermark = -1
            must = True
        return must


class FetchSession:
    """One client's partitions, in the order in which they are served."""

    __slots__ = (
        "awake",
        "created_s",
        "epoch",
        "id",
        "last_fetch",
        "last_used_s",
        "partitions",
        "privileged",
        "replica",
        "uses_topic_ids",
        "woken",
    )

    def __init__(self, session_id: int, *, privileged: bool, uses_topic_ids: bool, now_s: float) -> None:
        self.id = session_id
        #: The epoch that the next request must carry.
        self.epoch = 1
        #: True for followers' sessions: consumers' sessions never evict them.
        self.privileged = privileged
        self.uses_topic_ids = uses_topic_ids
        self.created_s = now_s
        self.last_used_s = now_s
        self.partitions: dict[FetchKey, CachedPartition] = {}
        #: Partitions that do not rest: each request examines them.
        self.awake: dict[FetchKey, CachedPartition] = {}
        #: Partitions that have woken since the last request.
        self.woken: list[CachedPartition] = []
        self.last_fetch = LastFetch()
        #: Sender of the last request: (broker, its epoch).
        self.replica: tuple[int, int] | None = None

    def apply(self, wanted: Iterable[CachedPartition], forgotten: Iterable[FetchKey]) -> None:
        for partition in wanted:
            known = self.partitions.get(partition.key)
            if known is None:
                partition.session = self
                self.partitions[partition.key] = self.awake[partition.key] = partition
            else:
                if known.resting_with is not None:
                    self.wake(known)
                known.update(partition)
        for key in forgotten:
            gone = self.partitions.pop(key, None)
            if gone is not None:
                self.wake(gone)
                del self.awake[key]

    def to_the_back(self, keys: Iterable[FetchKey]) -> None:
        """Move partitions that got data to the end: a response limit must not starve the others."""
        for key in keys:
            partition = self.partitions.pop(key, None)
            if partition is not None:
                self.partitions[key] = partition
                if self.awake.pop(key, None) is not None:
                    self.awake[key] = partition

    def look(self, replica: tuple[int, int] | None, now_ms: int) -> list[CachedPartition]:
        """Return the partitions that a request must examine. `replica`: the follower and its broker epoch; None for a
        client."""
        if replica is None or replica != self.replica:
            # This is another sender, or another life of the same one: the resting partitions say nothing about it.
            if len(self.awake) < len(self.partitions):
                self.wake_all()
            self.replica = replica
        self.last_fetch.ms = now_ms
        self.woken.clear()
        return list(self.awake.values())

    def rest(self, partition: CachedPartition, position: FollowerPosition, resting: "list[CachedPartition]") -> None:
        """Let requests skip the partition. `resting`: all entries that rest in the same partition of this broker."""
        if self.awake.get(partition.key) is partition:
            del self.awake[partition.key]
            partition.position, partition.resting_with = position, resting
            position.resting = self.last_fetch
            resting.append(partition)

    def wake(self, partition: CachedPartition) -> None:
        if partition.resting_with is None or partition.position is None:
            return
        partition.resting_with.remove(partition)
        if partition.position.resting is self.last_fetch:
            partition.position.rested()
        partition.resting_with = partition.position = None
        self.awake[partition.key] = partition
        self.woken.append(partition)

    def wake_all(self) -> None:
        if len(self.awake) < len(self.partitions):
            for partition in self.partitions.values():
                self.wake(partition)


class FetchContext(NamedTuple):
    """The partitions that one request fetches, and the form of its response."""

    #: The session that the response names; None: the request has no session.
    session: FetchSession | None
    #: Partitions to examine, without the resting ones.
    partitions: Iterable[CachedPartition]
    #: The response contains only partitions with news.
    incremental: bool


class FetchSessionCache:
    def __init__(self, *, slots_max: int, eviction_ms: int, random_id: Callable[[], int]) -> None:
        self._slots_max = slots_max
        self._eviction_s = eviction_ms / 1000
        #: Returns a random positive int32, so that sessions of a former life of the broker are not hit by accident.
        self._random_id = random_id
        self._sessions: dict[int, FetchSession] = {}
        #: Partitions in sessions of clients that are not followers.
        self._clients_partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        session_id: int,
        epoch: int,
        *,
        wanted: list[CachedPartition],
        forgotten: list[FetchKey],
        replica: tuple[int, int] | None,
        uses_topic_ids: bool,
        now_s: float,
        now_ms: int,
    ) -> FetchContext:
        """`replica`: the following broker and its epoch; None: the sender is not a follower, or may not be one."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._drop(session_id)
            session = None
            if epoch == INITIAL_EPOCH and wanted:
                session = self._create(
                    wanted, privileged=replica is not None, uses_topic_ids=uses_topic_ids, now_s=now_s
                )
            if session is not None:
                session.replica = replica
                session.look(replica, now_ms)
            return FetchContext(session, wanted, incremental=False)
        session = self._sessions.get(session_id)
        if session is None:
            raise Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"there is no fetch session {session_id}")
        if session.epoch != epoch:
            raise Refused(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH, f"session {session_id} has epoch {session.epoch}, not {epoch}"
            )
        if session.uses_topic_ids != uses_topic_ids:
            raise Refused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, "a session uses either topic names or topic ids")
        self._apply(session, wanted, forgotten)
        if self._clients_partitions > CLIENTS_PARTITIONS_MAX and not session.privileged:
            self._drop(session_id)
            raise Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"fetch session {session_id} has grown too large")
        session.last_used_s = now_s
        if not session.partitions:
            self._drop(session_id)
            return FetchContext(None, (), incremental=True)
        session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        return FetchContext(session, session.look(replica, now_ms), True)

    def _create(
        self, wanted: list[CachedPartition], *, privileged: bool, uses_topic_ids: bool, now_s: float
    ) -> FetchSession | None:
        if not privileged and self._clients_partitions + len(wanted) > CLIENTS_PARTITIONS_MAX:
            return None  # as if the cache were full: the client names all its partitions in each request
        if len(self._sessions) >= self._slots_max and not self._evict_for(len(wanted), privileged, now_s):
            return None
        session_id = self._random_id()
        while session_id == INVALID_SESSION_ID or session_id in self._sessions:
            session_id = self._random_id()
        session = FetchSession(session_id, privileged=privileged, uses_topic_ids=uses_topic_ids, now_s=now_s)
        self._apply(session, wanted, ())
        self._sessions[session_id] = session
        return session

    def _evict_for(self, size: int, privileged: bool, now_s: float) -> bool:
        """Make room: evict the longest unused session if it is stale, else a less important one that was kept long enough."""
        if not self._sessions:
            return False
        stalest = min(self._sessions.values(), key=lambda s: s.last_used_s)
        if now_s - stalest.last_used_s > self._eviction_s:
            return self._evict(stalest)
        lesser = [
            s
            for s in self._sessions.values()
            if (not s.privileged and privileged)
            or (s.privileged == privileged and len(s.partitions) < size and now_s - s.created_s > self._eviction_s)
        ]
        if not lesser:
            return False
        return self._evict(min(lesser, key=lambda s: (s.privileged, len(s.partitions), s.id)))

    def _evict(self, session: FetchSession) -> bool:
        self._drop(session.id)
        return True

    def _drop(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.wake_all()
            if not session.privileged:
                self._clients_partitions -= len(session.partitions)

    def _apply(self, session: FetchSession, wanted: Iterable[CachedPartition], forgotten: Iterable[FetchKey]) -> None:
        before = len(session.partitions)
        session.apply(wanted, forgotten)
        if not session.privileged:
            self._clients_partitions += len(session.partitions) - before
