"""The promises of share groups (KIP-932), and whether they were kept. Members and leaders are recorded here.

A leader's acquisitions are seen at the moment in which it locks records: a response may arrive much later. A former leader that
does not know of its successor yet may give out records that are decided already, as with Kafka: it is not held to the promises
about them.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.broker.share.partition import SharePartition
from barnabas.broker.share.records import Acquired, RecordState
from barnabas.client.share_session import AcknowledgeType
from tests.simulation.oracle import Fate, Read

if TYPE_CHECKING:
    from tests.simulation.share_world import ShareWorld

#: A lock that is held for so long after its time has not been taken back.
LATE_MS: Final = 1_500
_FINAL: Final = (AcknowledgeType.ACCEPT, AcknowledgeType.REJECT)

STAYS_DONE: Final = "a record is not delivered again after an acknowledged decision"
NOTHING_LOST: Final = "a share group loses no record"
COUNTS: Final = "delivery counts are right"
LOCKS: Final = "no lock outlives its time"
GIVEN_UP: Final = "a record is given up by the limit, and not before"
LETTERS: Final = "a record that is given up has a dead letter"
TABLE: Final = "the records in flight are consistent"


class Place(NamedTuple):
    group: str
    topic_id: bytes
    tp: TopicPartition
    offset: int


@dataclass(slots=True)
class Entry:
    """A record as a group has seen it."""

    #: The share partition object of the last acquisition, and the count that it gave.
    share: SharePartition | None = None
    count: int = 0
    #: The highest delivery count of any leader.
    highest: int = 0
    #: The delivery count of the last delivery whose release is acknowledged.
    released_at: int = 0
    #: The acknowledged final decision.
    decided: AcknowledgeType | None = None
    #: Final decisions that were sent and not refused, by member.
    open: dict[str, AcknowledgeType] = field(default_factory=dict)
    was_rejected: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """A member's decision about a record, and the delivery that it is about."""

    kind: AcknowledgeType
    place: Place | None
    delivery_count: int


class ShareLedger:
    def __init__(self, world: "ShareWorld", *, limit: int) -> None:
        self._cluster = world
        self._world = world.world
        self._limit = limit
        self.entries: dict[Place, Entry] = {}
        #: The record of the last delivery to a member: (member id, partition, offset) -> its place.
        self._held: dict[tuple[str, TopicPartition, int], Place] = {}
        #: Names of records that members of a group have got.
        self.seen: dict[str, set[str]] = {}
        #: Locks that were over their time at the last look.
        self._late: set[tuple[str, int, int]] = set()
        #: (group, topic id, partition) -> the first offset that was given to a member.
        self.begins: dict[tuple[str, bytes, TopicPartition], int] = {}
        #: Groups of which a broker has logged that it could not write dead letters.
        self.letters_failed: set[str] = set()
        self.deliveries = self.acknowledged = 0

    def _broken(self, name: str, detail: str) -> None:
        self._world.violate(name, detail)

    # -- leaders ----------------------------------------------------------------------------------------------------------

    def acquired(self, broker: str, share: SharePartition, member_id: str, acquired: Iterable[Acquired]) -> None:
        is_current = self._is_current(broker, share)
        for first, last, count in acquired:
            what = (
                f"gives {share.tp} {first} to {last} of {share.key.group_id} to {member_id[:4]} for the {count}. time"
            )
            self._world.note(broker, what if is_current else f"{what}, and is not the leader any more")
            for offset in range(first, last + 1):
                self._acquired_one(broker, share, member_id, offset, count, is_current=is_current)
        self.check_table(broker, share)

    def _acquired_one(
        self, broker: str, share: SharePartition, member_id: str, offset: int, count: int, *, is_current: bool
    ) -> None:
        self.deliveries += 1
        place = Place(share.key.group_id, share.key.topic_id, share.tp, offset)
        entry = self.entries.setdefault(place, Entry())
        what = f"{_shown(place)} to {member_id} by {broker} for the {count}. time"
        if count > self._limit:
            self._broken(GIVEN_UP, f"{what}, the limit is {self._limit}")
        if count > entry.highest + 1:
            self._broken(COUNTS, f"{what}, after {entry.highest} deliveries")
        if entry.share is share and count != entry.count + 1:
            self._broken(COUNTS, f"{what}, after the {entry.count}. of the same leader")
        if is_current:
            if entry.decided is not None:
                self._broken(STAYS_DONE, f"{what}, though {entry.decided.name} was acknowledged")
            if count <= entry.released_at:
                self._broken(COUNTS, f"{what}, though the release of the {entry.released_at}. was acknowledged")
        entry.share, entry.count, entry.highest = share, count, max(entry.highest, count)
        self._held[member_id, share.tp, offset] = place
        begin = (place.group, place.topic_id, place.tp)
        self.begins[begin] = min(offset, self.begins.get(begin, offset))

    def _is_current(self, broker: str, share: SharePartition) -> bool:
        """Whether ZooKeeper has this leader in this epoch."""
        state = self._cluster.partition_states().get(share.tp)
        process = None if state is None else self._cluster.brokers.get(state.leader)
        epoch = share.partition.machine.leader_epoch
        return process is not None and process.name == broker and state is not None and state.leader_epoch == epoch

    def look(self) -> None:
        """Look at the leaders' tables and locks. A lock that two looks find late was forgotten."""
        late: set[tuple[str, int, int]] = set()
        for process in self._cluster.brokers.values():
            parts = getattr(process.broker, "share", None)
            if parts is None or not process.is_serving or process.is_paused:
                continue
            now_ms = int(process.clock.monotonic_s() * 1000)
            for share in parts.partitions:
                self.check_table(process.name, share)
                for run in share.machine.runs() if share.machine is not None else ():
                    if run.state is RecordState.ACQUIRED and run.lock_until_ms + LATE_MS < now_ms:
                        lock = (f"{process.name}/{process.lives} {share}", run.first, run.lock_until_ms)
                        late.add(lock)
                        if lock in self._late:
                            self._broken(LOCKS, f"{process.name}, {share}: {run} since {now_ms - run.lock_until_ms} ms")
        self._late = late

    def check_table(self, broker: str, share: SharePartition) -> None:
        """Check what every method of the machine must leave behind."""
        machine = share.machine
        if machine is None:
            return
        runs = list(machine.runs())
        ends = [machine.start, *(run.last + 1 for run in runs)]
        wrong = ""
        if [run.first for run in runs] != ends[:-1] or ends[-1] != machine.end:
            wrong = "the runs have gaps"
        elif runs and runs[0].is_complete:
            wrong = "the start offset stays behind"
        elif machine.next_offset() != next((run.first for run in runs if run.is_available), machine.end):
            wrong = f"the next offset is {machine.next_offset()}"
        elif machine.complete_count != sum(run.size for run in runs if run.state in _COMPLETE):
            wrong = f"{machine.complete_count} records are complete"
        elif any(run.state is RecordState.ACQUIRED and not run.member for run in runs):
            wrong = "a lock has no member"
        if wrong:
            self._broken(TABLE, f"{broker}, {share}: {wrong}: {machine.start} {runs} {machine.end}")

    # -- members ----------------------------------------------------------------------------------------------------------

    def sees(self, group: str, name: str, *, reads_committed: bool) -> None:
        sent = self._cluster.oracle.sent.get(name)
        if sent is None:
            self._broken("a reader gets only records that were sent", f"{group} got {name!r}")
        elif reads_committed and sent.transaction is not None and sent.transaction.fate is Fate.ABORTED:
            self._broken("no aborted record is seen", f"{group} got {name}")
        self.seen.setdefault(group, set()).add(name)

    def decides(
        self, member_id: str, tp: TopicPartition, offset: int, kind: AcknowledgeType, delivery_count: int
    ) -> Decision:
        """Note that a member is about to send a decision."""
        place = self._held.get((member_id, tp, offset))
        if place is not None and kind in _FINAL:
            entry = self.entries[place]
            entry.open[member_id] = kind
            entry.was_rejected = entry.was_rejected or kind is AcknowledgeType.REJECT
        return Decision(kind, place, delivery_count)

    def answered(self, member_id: str, tp: TopicPartition, decisions: Mapping[int, Decision], code: ErrorCode) -> None:
        what = ", ".join(f"{offset} {each.kind.name}" for offset, each in decisions.items())
        self._world.note(member_id[:4], f"hears {code.name} about {tp}: {what}")
        for each in decisions.values():
            if each.place is None:
                continue
            entry = self.entries[each.place]
            if code is ErrorCode.INVALID_RECORD_STATE:
                entry.open.pop(member_id, None)
            elif code is ErrorCode.NONE:
                self.acknowledged += 1
                if each.kind in _FINAL:
                    # After DeleteRecords a later decision is acknowledged, too, and does nothing.
                    entry.decided = entry.decided or each.kind
                elif each.kind is AcknowledgeType.RELEASE:
                    entry.released_at = max(entry.released_at, each.delivery_count)

    # -- the audit --------------------------------------------------------------------------------------------------------

    def audit_partition(
        self, group: str, topic_id: bytes, tp: TopicPartition, reads: Collection[Read], *, may_skip_first: bool
    ) -> None:
        """Check the records that are in the log for the group."""
        if tp in self._cluster.oracle.excused:
            return
        begin = self.begins.get((group, topic_id, tp))
        deleted_below = self._cluster.oracle.deleted_below(tp)
        for read in reads:
            place = Place(group, topic_id, tp, read.offset)
            if read.offset < deleted_below:
                continue
            if may_skip_first and (begin is None or read.offset < begin):
                continue
            entry = self.entries.get(place)
            if entry is None:
                self._broken(NOTHING_LOST, f"{_shown(place)}, {read.name}, was given to no member")
            elif not entry.open and entry.decided is None and entry.highest < self._limit:
                self._broken(
                    NOTHING_LOST, f"{_shown(place)}, {read.name}, was given {entry.highest} times, and is gone"
                )

    def audit_seen(self, group: str) -> None:
        """Check that none of the records that a read_committed group has got was aborted later."""
        for name in self.seen.get(group, ()):
            self.sees(group, name, reads_committed=True)

    def audit_letters(
        self, group: str, topic_id: bytes, tp: TopicPartition, log_start: int, letters: Mapping[int, int]
    ) -> None:
        """Check the dead letters of a partition. `letters`: offset -> the lowest delivery count that a letter has."""
        for offset, count in letters.items():
            place = Place(group, topic_id, tp, offset)
            entry = self.entries.get(place)
            if entry is None or not (entry.was_rejected or entry.highest >= self._limit):
                self._broken(GIVEN_UP, f"{_shown(place)} has a dead letter, and {entry}")
            elif count < self._limit and not entry.was_rejected:
                self._broken(GIVEN_UP, f"{_shown(place)} has a dead letter of {count} deliveries, and {entry}")
        if group in self.letters_failed:
            return
        for place, entry in self.entries.items():
            if place[:3] != (group, topic_id, tp) or place.offset < log_start or place.offset in letters:
                continue
            decisions = {*entry.open.values(), *({entry.decided} if entry.decided else ())}
            is_over = entry.highest >= self._limit and not decisions
            if is_over or (entry.decided is AcknowledgeType.REJECT and AcknowledgeType.ACCEPT not in decisions):
                self._broken(LETTERS, f"{_shown(place)} has none, and {entry}")


_COMPLETE: Final = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


def watch_acquisitions(ledger: ShareLedger, name_of_loop: Any) -> None:
    """Let the ledger see every acquisition of this process."""
    acquire = SharePartition.acquire

    def watched(share: SharePartition, member_id: str, *args: Any, **kwargs: Any) -> list[Acquired]:
        acquired = acquire(share, member_id, *args, **kwargs)
        ledger.acquired(name_of_loop(), share, member_id, acquired)
        return acquired

    SharePartition.acquire = watched  # type: ignore[method-assign, assignment]


def _shown(place: Place) -> str:
    return f"{place.tp} offset {place.offset} for {place.group}"
