"""The promises that clients got, and whether they were kept. The load records here; the audit at the end compares.

Every promise has a name; the first broken one ends the run.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from barnabas.base.ids import TopicPartition
from barnabas.base.topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.base.words import READ_COMMITTED
from barnabas.testing.simulation.world import World

#: Separator in the name of a record, which is its value.
SEPARATOR = "/"


class Fate(Enum):
    """The fate of a record, a transaction or a commit, as its client knows it."""

    OPEN = "under way"
    DONE = "acknowledged"
    UNKNOWN = "given up"
    ABORTED = "aborted"


@dataclass(slots=True)
class Sent:
    """A record with a unique value."""

    name: str
    producer: str
    number: int
    tp: TopicPartition
    #: Whether it must survive: acks=all, with enough replicas.
    is_durable: bool
    #: Whether it may be in the log only once.
    is_idempotent: bool
    transaction: "Sum | None" = None
    fate: Fate = Fate.OPEN
    offset: int = -1
    #: The input record from which it was made.
    source: tuple[TopicPartition, int] | None = None
    #: In a topic that is deleted and created again: id of the topic that acknowledged the record, if certain.
    topic_id: bytes | None = None


@dataclass(slots=True, eq=False)
class Sum:
    """A transaction: readers see all of its records or none."""

    name: str
    fate: Fate = Fate.OPEN
    records: list[Sent] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Read:
    offset: int
    name: str


class Oracle:
    def __init__(self, world: World) -> None:
        self._world = world
        #: Called when a client got an offset as committed.
        self.on_offset_shown: Callable[[str, TopicPartition, int], None] = lambda whom, tp, offset: None
        self.sent: dict[str, Sent] = {}
        self._numbers: dict[tuple[str, TopicPartition], int] = {}
        self.acknowledged = 0
        self.transactions: list[Sum] = []
        #: Partition -> offset -> record that consumers have seen: it is committed and never changes.
        self._seen: dict[TopicPartition, dict[int, str]] = {}
        #: The same for read_committed consumers, with the consumer's name: no transaction of these records may be aborted
        #: later.
        self._seen_committed: dict[TopicPartition, dict[int, tuple[str, str]]] = {}
        self._positions: dict[tuple[str, TopicPartition], int] = {}
        #: (partition, isolation level) -> (leader epoch, offset) of the highest end that any client got.
        self._ends: dict[tuple[TopicPartition, int], tuple[int, int]] = {}
        #: Partition -> offset below which clients have deleted records.
        self._deleted: dict[TopicPartition, int] = {}
        #: (group, partition) -> the last acknowledged offset.
        self._committed: dict[tuple[str, TopicPartition], int] = {}
        #: (group, partition) -> offsets of commits that have no answer yet.
        self._committing: dict[tuple[str, TopicPartition], set[int]] = {}
        #: (partition, key) -> its values, in order.
        self._rows: dict[tuple[TopicPartition, str], list[Sent]] = {}
        #: Partition -> why nothing is promised of its earlier records, for partitions whose last in-sync replica lost its
        #: power.
        self.excused: dict[TopicPartition, str] = {}

    # -- books ------------------------------------------------------------------------------------------------------------

    def sends(
        self,
        producer: str,
        tp: TopicPartition,
        *,
        is_durable: bool,
        is_idempotent: bool,
        transaction: Sum | None = None,
    ) -> Sent:
        number = self._numbers[producer, tp] = self._numbers.get((producer, tp), 0) + 1
        name = SEPARATOR.join((producer, f"{tp.topic}-{tp.partition}", str(number)))
        record = Sent(name, producer, number, tp, is_durable, is_idempotent, transaction)
        self.sent[name] = record
        if transaction is not None:
            transaction.records.append(record)
        return record

    def acknowledges(self, record: Sent, offset: int) -> None:
        record.fate, record.offset = Fate.DONE, offset
        self.acknowledged += 1
        if record.is_durable:
            self.on_offset_shown(record.producer, record.tp, offset)

    def begins(self, name: str) -> Sum:
        transaction = Sum(name)
        self.transactions.append(transaction)
        return transaction

    def consumes(self, reader: str, tp: TopicPartition, offset: int, name: str, *, isolation: int) -> None:
        before = self._positions.get((reader, tp), -1)
        if offset <= before and tp not in self.excused:
            self._broken("a reader reads in order", f"{reader} read {tp} at {offset} after {before}")
        self._positions[reader, tp] = offset
        self.on_offset_shown(reader, tp, offset)
        self._sees(reader, tp, offset, name)
        if isolation == READ_COMMITTED:
            self._seen_committed.setdefault(tp, {})[offset] = (reader, name)

    def seeks(self, reader: str, tp: TopicPartition, offset: int) -> None:
        self._positions[reader, tp] = offset - 1

    def _sees(self, reader: str, tp: TopicPartition, offset: int, name: str) -> None:
        if name not in self.sent:
            self._broken("a reader gets only records that were sent", f"{reader} read {name!r} at {tp} offset {offset}")
        known = self._seen.setdefault(tp, {}).setdefault(offset, name)
        if known != name and tp not in self.excused:
            self._broken(
                "committed records do not change", f"{tp} offset {offset} was {known}, and is {name} to {reader}"
            )

    def asks_for_end(self, tp: TopicPartition, isolation: int) -> tuple[int, int]:
        """Return the highest end known by now, as (leader epoch, offset). The answer to a request made now must not be
        older.
        """
        return self._ends.get((tp, isolation), (-1, -1))

    def gets_end(
        self, reader: str, tp: TopicPartition, isolation: int, leader_epoch: int, offset: int, known: tuple[int, int]
    ) -> None:
        """Check that the end never goes back while a reader's leader epoch does not. `known`: the result of `asks_for_end`."""
        epoch, end = known
        if leader_epoch >= epoch:
            if offset < end and tp not in self.excused:
                what = "last stable offset" if isolation else "high watermark"
                self._broken(
                    f"the {what} never goes back",
                    f"{tp}: {end} in epoch {epoch}, then {offset} in epoch {leader_epoch} to {reader}",
                )
            last_epoch, last = self._ends.get((tp, isolation), known)
            self._ends[tp, isolation] = (max(leader_epoch, last_epoch), max(offset, last))

    def commits(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        for tp, offset in offsets.items():
            self._committing.setdefault((group, tp), set()).add(offset)

    def committed(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        for tp, offset in offsets.items():
            # The answer to an earlier commit by another member may arrive later.
            self._committed[group, tp] = max(offset, self._committed.get((group, tp), -1))
            # A lower offset that was committed earlier must not win; a commit in progress may.
            self._committing[group, tp] = {each for each in self._committing[group, tp] if each > offset}

    def deletes(self, tp: TopicPartition, below: int) -> None:
        """Note that a client deletes records below this offset. Brokers that are all killed may forget it, as Kafka's do."""
        self._deleted[tp] = max(below, self._deleted.get(tp, 0))

    def deleted_below(self, tp: TopicPartition) -> int:
        """Return the offset below which clients have deleted records, also if the brokers have forgotten that."""
        return self._deleted.get(tp, 0)

    def withdraws(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Take back these commits: their transaction was aborted."""
        for tp, offset in offsets.items():
            self._committing[group, tp].discard(offset)

    def finds(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Note offsets that a client got: they count as acknowledged. A coordinator of the past may answer lower ones."""
        for tp, offset in offsets.items():
            if offset in self._committing.get((group, tp), ()):
                self.committed(group, {tp: offset})

    def excuse(self, tp: TopicPartition, why: str) -> None:
        if tp not in self.excused:
            self._world.note("oracle", f"excuses {tp}: {why}")
            self.excused[tp] = why

    def is_log_excused(self, topic: str) -> bool:
        """Whether a coordinator may have forgotten its promises, because its own log has lost records."""
        return any(tp.topic == topic for tp in self.excused)

    def _broken(self, name: str, detail: str) -> None:
        self._world.violate(name, detail)

    # -- a compacted table ------------------------------------------------------------------------------------------------

    def sets(self, tp: TopicPartition, key: str) -> Sent:
        """Return the record for a new value of a row. One client writes a key, so its values have an order."""
        record = self.sends("table", tp, is_durable=True, is_idempotent=True)
        self._rows.setdefault((tp, key), []).append(record)
        return record

    def audit_table(self, tp: TopicPartition, rows: Mapping[str, str]) -> None:
        """Check a table. `rows`: the last value of each key, as a consumer reads it from the start."""
        if tp in self.excused:
            return
        for (where, key), values in self._rows.items():
            if where != tp:
                continue
            done = [place for place, value in enumerate(values) if value.fate is Fate.DONE]
            if not done:
                continue
            # The last acknowledged value, or a later one whose fate is unknown.
            allowed = [value.name for value in values[done[-1] :]]
            if rows.get(key) not in allowed:
                self._broken(
                    "a table keeps the last value of each key", f"{tp} {key}: {rows.get(key)}, not {allowed[0]}"
                )

    # -- the audit --------------------------------------------------------------------------------------------------------

    def audit_partition(
        self,
        tp: TopicPartition,
        *,
        log_start: int,
        everything: list[Read],
        committed: list[Read],
    ) -> None:
        """Check a partition. `everything`: a read_uncommitted consumer's records from the log's start to its end."""
        start = log_start
        for read in (*everything, *committed):
            self._sees("audit", tp, read.offset, read.name)
        at = {read.offset: read.name for read in everything}
        for offset, name in self._seen.get(tp, {}).items():
            if offset >= start and offset not in at and tp not in self.excused:
                self._broken(
                    "a record that was read can be read again", f"{name} was at {tp} offset {offset}, and is gone"
                )
        self._audit_records(tp, start, everything)
        if not self.is_log_excused(TRANSACTION_STATE_TOPIC):
            self._audit_transactions(tp, start, everything, committed)

    def _audit_records(self, tp: TopicPartition, start: int, everything: list[Read]) -> None:
        places: dict[str, list[int]] = {}
        for read in everything:
            places.setdefault(read.name, []).append(read.offset)
        last: dict[str, tuple[int, str]] = {}
        for name, offsets in places.items():
            record = self.sent.get(name)
            if record is None:
                continue
            if len(offsets) > 1 and record.is_idempotent:
                self._broken("an idempotent producer's record is there once", f"{name} is at {tp} offsets {offsets}")
            if record.is_idempotent:
                before = last.get(record.producer)
                if before is not None and before[0] > record.number:
                    self._broken("records keep their order", f"{tp}: {name} comes after {before[1]}")
                last[record.producer] = (record.number, name)
        if tp in self.excused:
            return
        for record in self.sent.values():
            if record.tp != tp or record.fate is not Fate.DONE or not record.is_durable or record.offset < start:
                continue
            if record.offset not in places.get(record.name, ()):
                found = places.get(record.name)
                self._broken(
                    "acknowledged records survive",
                    f"{record.name} was acknowledged at {tp} offset {record.offset} and is "
                    f"{f'at {found}' if found else 'nowhere'} (log {start}..{everything[-1].offset if everything else start})",
                )

    def _audit_transactions(
        self, tp: TopicPartition, start: int, everything: list[Read], committed: list[Read]
    ) -> None:
        if tp in self.excused:
            return  # the lost records may include the end of a transaction
        visible = {read.name for read in committed}
        there = {read.name for read in everything}
        for offset, (reader, name) in self._seen_committed.get(tp, {}).items():
            if offset >= start and name in there and name not in visible:
                self._broken("no aborted record is seen", f"{reader} read {name} at {tp} offset {offset}")
        for read in everything:
            record = self.sent.get(read.name)
            if record is not None and record.transaction is None and read.name not in visible:
                self._broken(
                    "read_committed shows records without a transaction", f"{read.name} at {tp} offset {read.offset}"
                )
        for name in visible:
            record = self.sent.get(name)
            if record is not None and record.transaction is not None and record.transaction.fate is Fate.ABORTED:
                self._broken("no aborted record is seen", f"{name} of {record.transaction.name}")

    def audit_sums(
        self, committed: Mapping[TopicPartition, Iterable[Read]], starts: Mapping[TopicPartition, int]
    ) -> None:
        """Check that transactions are whole, after all partitions have been read."""
        if self.is_log_excused(TRANSACTION_STATE_TOPIC):
            return
        visible = {read.name for reads in committed.values() for read in reads}
        for transaction in self.transactions:
            records = [
                each
                for each in transaction.records
                if each.tp not in self.excused and not (each.fate is Fate.DONE and each.offset < starts.get(each.tp, 0))
            ]
            seen = [each for each in records if each.name in visible]
            missing = [each for each in records if each.name not in visible]
            if transaction.fate is Fate.DONE and missing:
                self._broken("committed transactions are whole", f"{transaction.name} lacks {missing[0].name}")
            # A client that gave up before the end does not know the fate; records that brokers acknowledged belong together.
            known = [each for each in missing if each.fate is Fate.DONE]
            if transaction.fate is Fate.UNKNOWN and seen and known:
                self._broken(
                    "transactions are seen whole or not at all",
                    f"{transaction.name} shows {seen[0].name} and not {known[0].name}",
                )

    def audit_chain(
        self,
        positions: Mapping[TopicPartition, int],
        committed: Mapping[TopicPartition, Iterable[Read]],
        starts: Mapping[TopicPartition, int],
    ) -> None:
        """Check that each input that the group has committed has exactly one visible output, and that no input has two."""
        if any(map(self.is_log_excused, (TRANSACTION_STATE_TOPIC, GROUP_METADATA_TOPIC))):
            return
        outputs: dict[tuple[TopicPartition, int], list[str]] = {}
        for tp, reads in committed.items():
            for read in reads:
                record = self.sent.get(read.name)
                if record is not None and record.source is not None:
                    if tp in self.excused:
                        return
                    outputs.setdefault(record.source, []).append(f"{read.name} at {tp} offset {read.offset}")
        for source, names in outputs.items():
            if len(names) > 1 and source[0] not in self.excused:
                self._broken("each input has one output", f"{source[0]} offset {source[1]} has {', '.join(names)}")
        for tp, position in positions.items():
            if tp in self.excused:
                continue
            start = max(starts[tp], self._deleted.get(tp, 0))
            for read in committed[tp]:
                if start <= read.offset < position and (tp, read.offset) not in outputs:
                    self._broken(
                        "each input has one output",
                        f"{read.name} at {tp} offset {read.offset} has none, and the group is at {position}",
                    )

    def audit_again(self, tp: TopicPartition, topic_id: bytes, log_start: int, found: list[Read]) -> None:
        """Check a topic that was created again: it has all its acknowledged records and none of its predecessors'."""
        if tp in self.excused:
            return
        at = {read.name: read.offset for read in found}
        if len(at) < len(found):
            self._broken("an idempotent producer's record is there once", f"{tp}: {found}")
        for record in self.sent.values():
            if record.tp != tp or record.fate is not Fate.DONE or record.topic_id is None:
                continue
            is_here = record.name in at
            if record.topic_id != topic_id and is_here:
                self._broken(
                    "a topic that is created again is empty",
                    f"{record.name} of the former {tp} is at {at[record.name]}",
                )
            if record.topic_id == topic_id and record.offset >= log_start and at.get(record.name) != record.offset:
                self._broken(
                    "acknowledged records survive",
                    f"{record.name} was acknowledged at {tp} offset {record.offset} and is at {at.get(record.name)}",
                )

    def audit_group(self, group: str, found: Mapping[TopicPartition, int]) -> None:
        if self.is_log_excused(GROUP_METADATA_TOPIC):
            return
        for (name, tp), offset in self._committed.items():
            if name != group or tp in self.excused:
                continue
            allowed = {offset, *self._committing.get((group, tp), ())}
            if found.get(tp, -1) not in allowed:
                self._broken(
                    "committed group offsets stay",
                    f"{group} committed {offset} for {tp} and finds {found.get(tp, -1)}",
                )
