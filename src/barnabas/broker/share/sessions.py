"""Share sessions: the broker remembers which partitions each member of a share group fetches (KIP-932). Pure.

A session belongs to the connection of its latest request and ends with it, as in Kafka: a member that is gone must not hold
records until their locks time out. Bounded by `group.share.max.share.sessions`, and by the partitions of all sessions together.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from barnabas.base.errors import ErrorCode, Refused

#: Begins a session.
INITIAL_EPOCH: Final = 0
#: Ends a session.
FINAL_EPOCH: Final = -1
EPOCH_MAX: Final = 2**31 - 1
#: Kafka's clients use ids of 36 characters, and its brokers refuse longer ones.
MEMBER_ID_CHARACTERS_MAX: Final = 36
#: Partitions of a session that one fetch looks at, in one turn of the loop. The next fetch goes on behind them.
FETCHED_AT_ONCE_MAX: Final = 1_000
#: Partitions in all sessions together: some 100 MB.
PARTITIONS_MAX: Final = 500_000


class TopicIdPartition(NamedTuple):
    topic_id: bytes
    partition: int


class MemberKey(NamedTuple):
    group_id: str
    member_id: str


class ShareSession:
    __slots__ = ("epoch", "key", "owner", "partitions")

    def __init__(self, key: MemberKey, owner: object) -> None:
        self.key = key
        #: The epoch that the next request must carry.
        self.epoch = INITIAL_EPOCH
        #: The connection of the latest request.
        self.owner = owner
        #: The partitions that the member fetches, in the order of its requests.
        self.partitions: dict[TopicIdPartition, None] = {}

    def in_turn(self) -> list[TopicIdPartition]:
        """Return the partitions for the next fetch, each time beginning with another one: those behind the limits of a request
        must not starve."""
        partitions = list(self.partitions)
        count = len(partitions)
        if count > FETCHED_AT_ONCE_MAX:
            first = self.epoch * FETCHED_AT_ONCE_MAX % count
            return (partitions[first:] + partitions[:first])[:FETCHED_AT_ONCE_MAX]
        first = self.epoch % count if count else 0
        return partitions[first:] + partitions[:first]

    def next_epoch(self) -> None:
        self.epoch = self.epoch + 1 if self.epoch < EPOCH_MAX else 1


class ShareSessions:
    """`on_end` is called with each session that ends, `on_empty` with a group that has lost its last session here."""

    def __init__(
        self,
        *,
        sessions_max: Callable[[], int],
        on_end: Callable[[ShareSession], None],
        on_empty: Callable[[str], None],
    ) -> None:
        self._sessions_max = sessions_max
        self._on_end = on_end
        self._on_empty = on_empty
        self._sessions: dict[MemberKey, ShareSession] = {}
        self._by_owner: dict[object, dict[ShareSession, None]] = {}
        #: Sessions of each group that has one.
        self._counts: dict[str, int] = {}
        self.partition_count = 0
        #: Sessions that ended with their connection.
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def has_group(self, group_id: str) -> bool:
        return group_id in self._counts

    # -- requests -----------------------------------------------------------------------------------------------------

    def for_fetch(
        self,
        key: MemberKey,
        epoch: int,
        *,
        added: Iterable[TopicIdPartition],
        forgotten: Iterable[TopicIdPartition],
        has_acknowledgements: bool,
        owner: object,
    ) -> ShareSession:
        """Return the session of a ShareFetch, which the request may begin. The caller ends it after a FINAL_EPOCH."""
        check_member_id(key.member_id)
        if epoch == INITIAL_EPOCH:
            if has_acknowledgements:
                raise Refused(ErrorCode.INVALID_REQUEST, "The first request of a share session has acknowledgements.")
            session = self._begin(key, owner)
        else:
            session = self._known(key)
            if epoch == FINAL_EPOCH:
                return session
            self._check_epoch(session, epoch)
            self._claim(session, owner)
        self._update(session, added, forgotten)
        session.next_epoch()
        return session

    def for_acknowledge(self, key: MemberKey, epoch: int, *, owner: object) -> ShareSession:
        """Return the session of a ShareAcknowledge. The caller ends it after a FINAL_EPOCH."""
        check_member_id(key.member_id)
        if epoch == INITIAL_EPOCH:
            raise Refused(ErrorCode.INVALID_SHARE_SESSION_EPOCH, "ShareAcknowledge cannot begin a share session.")
        session = self._known(key)
        if epoch != FINAL_EPOCH:
            self._check_epoch(session, epoch)
            self._claim(session, owner)
            session.next_epoch()
        return session

    # -- ends -----------------------------------------------------------------------------------------------------------

    def end(self, session: ShareSession) -> None:
        if self._sessions.get(session.key) is not session:
            return
        self._remove(session)
        self._on_end(session)
        if not self.has_group(session.key.group_id):
            self._on_empty(session.key.group_id)

    def owner_lost(self, owner: object) -> None:
        """End the sessions of a connection that was closed."""
        for session in list(self._by_owner.get(owner, ())):
            self.evictions += 1
            self.end(session)

    # -- the table --------------------------------------------------------------------------------------------------------

    def _begin(self, key: MemberKey, owner: object) -> ShareSession:
        before = self._sessions.get(key)
        if before is not None:
            # As in Kafka the member keeps its records: it may still acknowledge them in the new session.
            self._remove(before)
        elif len(self._sessions) >= (most := self._sessions_max()):
            raise Refused(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED,
                f"This broker has {most} share sessions (group.share.max.share.sessions).",
            )
        session = self._sessions[key] = ShareSession(key, owner)
        self._by_owner.setdefault(owner, {})[session] = None
        self._counts[key.group_id] = self._counts.get(key.group_id, 0) + 1
        return session

    def _known(self, key: MemberKey) -> ShareSession:
        session = self._sessions.get(key)
        if session is None:
            raise Refused(ErrorCode.SHARE_SESSION_NOT_FOUND, "The share session was not found.")
        return session

    def _check_epoch(self, session: ShareSession, epoch: int) -> None:
        if session.epoch != epoch:
            raise Refused(
                ErrorCode.INVALID_SHARE_SESSION_EPOCH, f"The share session is at epoch {session.epoch}, not at {epoch}."
            )

    def _claim(self, session: ShareSession, owner: object) -> None:
        """Bind the session to a new connection: the member may have reconnected before the old connection was closed."""
        if session.owner != owner:
            self._let_go(session)
            session.owner = owner
            self._by_owner.setdefault(owner, {})[session] = None

    def _let_go(self, session: ShareSession) -> None:
        owned = self._by_owner[session.owner]
        del owned[session]
        if not owned:
            del self._by_owner[session.owner]

    def _update(
        self, session: ShareSession, added: Iterable[TopicIdPartition], forgotten: Iterable[TopicIdPartition]
    ) -> None:
        before = len(session.partitions)
        session.partitions.update(dict.fromkeys(added))
        for partition in forgotten:
            session.partitions.pop(partition, None)
        self.partition_count += len(session.partitions) - before
        if self.partition_count > PARTITIONS_MAX:
            self.end(session)
            raise Refused(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED, f"The share sessions here have {PARTITIONS_MAX} partitions."
            )

    def _remove(self, session: ShareSession) -> None:
        del self._sessions[session.key]
        self._let_go(session)
        self.partition_count -= len(session.partitions)
        group_id = session.key.group_id
        self._counts[group_id] -= 1
        if not self._counts[group_id]:
            del self._counts[group_id]


def check_member_id(member_id: str) -> None:
    if not member_id or len(member_id) > MEMBER_ID_CHARACTERS_MAX:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"A member id has 1 to {MEMBER_ID_CHARACTERS_MAX} characters, not {len(member_id)}.",
        )
