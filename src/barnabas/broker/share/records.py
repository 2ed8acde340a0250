"""Records as a share group sees them: their states, and the only ways from one to another. Pure.

Neighbouring records in the same state are kept as one `Run`.
"""

from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import Final, NamedTuple

from barnabas.broker.runtime.share_state import StateBatch


class RecordState(IntEnum):
    """With Kafka's numbers, which are also those of the persisted state."""

    AVAILABLE = 0
    #: Locked by a member.
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    #: Given up, and not yet in the dead-letter topic (KIP-1191).
    ARCHIVING = 3
    #: Given up.
    ARCHIVED = 4


class Event(Enum):
    ACQUIRE = "acquire"
    ACCEPT = "accept"
    RELEASE = "release"
    REJECT = "reject"
    #: The member found no record at the offset.
    GAP = "gap"
    #: The lock has timed out.
    EXPIRE = "expire"
    #: The record was released or its lock has timed out, and it may not be delivered again.
    GIVE_UP = "give up"
    #: As REJECT or GIVE_UP, in a group with a dead-letter topic.
    BURY = "bury"
    #: The record is in the dead-letter topic, or can never be.
    BURIED = "buried"
    #: The log has no record at the offset, or none that members may read: a marker, an aborted transaction.
    REMOVE = "remove"
    #: The decision about an acquired record could not be persisted.
    UNDO = "undo"


_S, _E = RecordState, Event

#: Every legal transition. An event that is not here for a state is a bug; clients' mistakes are refused before.
TRANSITIONS: Final = {
    (_S.AVAILABLE, _E.ACQUIRE): _S.ACQUIRED,
    (_S.AVAILABLE, _E.REMOVE): _S.ARCHIVED,
    (_S.ACQUIRED, _E.ACCEPT): _S.ACKNOWLEDGED,
    (_S.ACQUIRED, _E.RELEASE): _S.AVAILABLE,
    (_S.ACQUIRED, _E.EXPIRE): _S.AVAILABLE,
    (_S.ACQUIRED, _E.REJECT): _S.ARCHIVED,
    (_S.ACQUIRED, _E.GIVE_UP): _S.ARCHIVED,
    (_S.ACQUIRED, _E.GAP): _S.ARCHIVED,
    (_S.ACQUIRED, _E.BURY): _S.ARCHIVING,
    (_S.ARCHIVING, _E.BURIED): _S.ARCHIVED,
    (_S.ACKNOWLEDGED, _E.UNDO): _S.ACQUIRED,
    (_S.AVAILABLE, _E.UNDO): _S.ACQUIRED,
    (_S.ARCHIVED, _E.UNDO): _S.ACQUIRED,
    (_S.ARCHIVING, _E.UNDO): _S.ACQUIRED,
}

#: The delivery of these records is complete: the start offset may pass them.
COMPLETE: Final = frozenset({_S.ACKNOWLEDGED, _S.ARCHIVED})

#: Acknowledge types of ShareFetch and ShareAcknowledge.
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
#: The effect of an acknowledgement on the record; RENEW leaves its state as it is.
ACKNOWLEDGEMENTS: Final = {GAP: _E.GAP, ACCEPT: _E.ACCEPT, RELEASE: _E.RELEASE, REJECT: _E.REJECT}


class AcquireMode(IntEnum):
    """`share.acquire.mode` of a consumer (KIP-1206)."""

    #: Whole batches of the log, also if that exceeds the number of records that was asked for.
    BATCH_OPTIMIZED = 0
    RECORD_LIMIT = 1


class IllegalTransition(Exception):
    def __init__(self, run: "Run", event: Event) -> None:
        super().__init__(f"{event.value} is not possible for {run}")


class LogBatch(NamedTuple):
    """A batch of the log. Compaction may have removed some of its records."""

    first: int
    #: Inclusive.
    last: int
    #: Whether members may get its records: neither a marker nor, with read_committed, of an aborted transaction.
    is_deliverable: bool = True


class Acquired(NamedTuple):
    """Records that a member has just locked. `last` is inclusive."""

    first: int
    last: int
    delivery_count: int


class Acknowledgement(NamedTuple):
    """A member's decisions about the records from `first` to `last` (inclusive): one for all, or one for each."""

    first: int
    last: int
    types: Sequence[int]


class ShareLimits(NamedTuple):
    """The settings of a group that decide about its records. They may change at any time."""

    #: `share.delivery.count.limit`
    delivery_count_limit: int = 5
    #: `share.partition.max.record.locks`: offsets between the start and the end of what is in flight.
    in_flight_max: int = 2_000
    #: `share.record.lock.duration.ms`
    lock_ms: int = 30_000
    #: `share.renew.acknowledge.enable`
    allows_renewal: bool = True
    #: Whether records that are given up go to a dead-letter topic.
    has_dead_letters: bool = False


class Write:
    """Decisions that are being persisted. The records are not available to members until that is done."""

    __slots__ = ("batches", "is_final", "runs")

    def __init__(self, *, is_final: bool = False) -> None:
        self.batches: list[StateBatch] = []
        #: Offset ranges, `last` inclusive, of the records that the write concerns.
        self.runs: list[tuple[int, int]] = []
        #: The decisions stand, even if they cannot be persisted: a lock that has timed out.
        self.is_final = is_final


class Run:
    """Neighbouring records in the same state."""

    __slots__ = ("delivery_count", "first", "is_rejected", "last", "lock_until_ms", "member", "state", "write")

    def __init__(
        self,
        first: int,
        last: int,
        state: RecordState,
        delivery_count: int = 0,
        member: str = "",
        lock_until_ms: int = 0,
        write: Write | None = None,
        is_rejected: bool = False,
    ) -> None:
        self.first = first
        #: Inclusive. first <= last.
        self.last = last
        self.state = state
        self.delivery_count = delivery_count
        #: The member that has acquired the records, or had them until the decision that `write` persists.
        self.member = member
        self.lock_until_ms = lock_until_ms
        #: The decision that led to `state`, until it is persisted; an UNDO leads back to ACQUIRED.
        self.write = write
        #: Whether a member rejected the record that waits for its copy to the dead-letter topic.
        self.is_rejected = is_rejected

    def __repr__(self) -> str:
        pending = ", being persisted" if self.write is not None else ""
        by = f" by {self.member}" if self.member else ""
        return f"Run({self.first}-{self.last} {self.state.name}{by}, delivered {self.delivery_count} times{pending})"

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    @property
    def is_available(self) -> bool:
        return self.state is RecordState.AVAILABLE and self.write is None

    @property
    def is_complete(self) -> bool:
        """Whether the start offset may pass the records."""
        return self.write is None and self.state in COMPLETE

    def follow(self, event: Event) -> None:
        after = TRANSITIONS.get((self.state, event))
        if after is None or (event is Event.UNDO) != (self.write is not None):
            raise IllegalTransition(self, event)
        self.state = after

    def split(self, offset: int) -> "Run":
        """Cut before `offset`; return the second part. first < offset <= last."""
        rest = Run(
            offset,
            self.last,
            self.state,
            self.delivery_count,
            self.member,
            self.lock_until_ms,
            write=self.write,
            is_rejected=self.is_rejected,
        )
        self.last = offset - 1
        return rest

    def continues(self, before: "Run") -> bool:
        """Whether both runs can be one. How often a complete record was delivered no longer matters."""
        return (
            self.state is before.state
            and self.write is before.write
            and (self.delivery_count == before.delivery_count or self.is_complete)
            and self.member == before.member
            and self.lock_until_ms == before.lock_until_ms
            and self.is_rejected == before.is_rejected
        )
