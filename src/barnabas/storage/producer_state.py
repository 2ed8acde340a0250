"""What a partition knows of its producers: idempotence, fencing, open transactions. A pure machine.

Offsets, sequences and epochs come from batch headers; time and files from the owner. An append is checked first
(`analyze`, which raises `Refused` and changes nothing), then written to the log, then applied (`update`,
`complete_txn`), so that a refused or failed append leaves no trace.

Follows Kafka's ProducerStateManager and ProducerAppendInfo. Owner: the log.
"""

from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

from barnabas.core.errors import BrokenInvariant, ErrorCode, Refused
from barnabas.core.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Offset, ProducerId, TopicPartition
from barnabas.protocol.record_batch import MAX_SEQUENCE, NO_SEQUENCE, NO_TIMESTAMP, BatchHeader, decrement_sequence
from barnabas.protocol.records import EndTxnMarker as EndTxnMarker

#: What an idempotent producer may have in flight, and so what can come again.
BATCHES_RETAINED: Final = 5
#: A transaction is late when it has outlived the largest allowed time-out by this much.
LATE_TRANSACTION_BUFFER_MS: Final = 5 * 60 * 1000
NO_COORDINATOR_EPOCH: Final = -1


class AppendOrigin(Enum):
    """Who appends; a client's batches are checked in full, a leader's were checked by the leader."""

    REPLICATION = "replication"
    #: The group or transaction coordinator of this broker, and transaction markers.
    COORDINATOR = "coordinator"
    CLIENT = "client"


class BatchMetadata(NamedTuple):
    """A batch that a producer wrote, as far as a duplicate needs it."""

    last_sequence: int
    last_offset: Offset
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return decrement_sequence(self.last_sequence, self.offset_delta)

    @property
    def first_offset(self) -> Offset:
        return Offset(self.last_offset - self.offset_delta)


class CompletedTxn(NamedTuple):
    producer_id: ProducerId
    first_offset: Offset
    #: Of the marker.
    last_offset: Offset
    is_aborted: bool


class ProducerEntry:
    """The state of one producer id."""

    __slots__ = ("batches", "coordinator_epoch", "last_timestamp", "producer_epoch", "producer_id", "txn_first_offset")

    def __init__(
        self,
        producer_id: int,
        *,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        coordinator_epoch: int = NO_COORDINATOR_EPOCH,
        last_timestamp: int = NO_TIMESTAMP,
        txn_first_offset: int | None = None,
        batches: Iterable[BatchMetadata] = (),
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp = last_timestamp
        #: Where the open transaction began; None where none is open.
        self.txn_first_offset = txn_first_offset
        #: Of the current epoch, oldest first.
        self.batches: deque[BatchMetadata] = deque(batches, maxlen=BATCHES_RETAINED)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)}" for name in self.__slots__)
        return f"ProducerEntry({fields})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProducerEntry):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # mutable

    @property
    def first_sequence(self) -> int:
        return self.batches[0].first_sequence if self.batches else NO_SEQUENCE

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_data_offset(self) -> Offset:
        return self.batches[-1].last_offset if self.batches else Offset(-1)

    @property
    def last_offset_delta(self) -> int:
        return self.batches[-1].offset_delta if self.batches else 0

    def find_duplicate(self, header: BatchHeader) -> BatchMetadata | None:
        """The retained batch with the same epoch and sequences, whose offset the producer gets again."""
        if header.producer_epoch != self.producer_epoch:
            return None
        first, last = header.base_sequence, header.last_sequence
        for batch in self.batches:
            if batch.last_sequence == last and batch.first_sequence == first:
                return batch
        return None

    def find_forgotten(self, header: BatchHeader) -> BatchMetadata | None:
        """A duplicate from before a restart: a snapshot has one batch of each producer, a retry may be of the last five.

        Sequences have no holes, so what ends below the oldest batch that is known was written, somewhere below it. Kafka
        calls it out of order, which ends the producer, or its promise. With five batches known it is not a retry.
        """
        if header.producer_epoch != self.producer_epoch or not 0 < len(self.batches) < BATCHES_RETAINED:
            return None
        oldest, last = self.batches[0], header.last_sequence
        is_below = header.base_sequence <= last < oldest.first_sequence
        if not is_below or oldest.first_sequence - last > MAX_SEQUENCE // 2:  # else it wrapped, and is ahead
            return None
        # No offset (-1), but what is below the known batch can be waited for.
        end = oldest.first_offset
        return BatchMetadata(last, Offset(end - 1), offset_delta=end, timestamp=-1)

    def has_ended(self, batch: BatchMetadata) -> bool:
        """Whether the transaction that wrote this batch has its marker."""
        return self.txn_first_offset is None or batch.last_offset < self.txn_first_offset

    def set_epoch(self, producer_epoch: int) -> None:
        """A new epoch starts its sequences again."""
        if self.producer_epoch != producer_epoch:
            self.batches.clear()
            self.producer_epoch = producer_epoch

    def add_batch(self, producer_epoch: int, batch: BatchMetadata) -> None:
        self.set_epoch(producer_epoch)
        self.batches.append(batch)
        self.last_timestamp = batch.timestamp

    def absorb(self, update: "ProducerEntry") -> None:
        """Take over what a successful append has changed."""
        self.set_epoch(update.producer_epoch)
        self.batches.extend(update.batches)
        self.coordinator_epoch = update.coordinator_epoch
        self.txn_first_offset = update.txn_first_offset
        self.last_timestamp = update.last_timestamp


class VerificationEntry:
    """A transactional producer whose first batch here waits until its coordinator has confirmed the partition (KIP-890).

    The guard is an identity: the append that comes after the confirmation shows it, and one that slipped in
    after the transaction ended cannot. The lowest sequence seen keeps a later batch from being written first.
    """

    __slots__ = ("epoch", "guard", "lowest_sequence", "timestamp_ms")

    def __init__(self, timestamp_ms: int, sequence: int, epoch: int) -> None:
        self.timestamp_ms = timestamp_ms
        self.guard = object()
        self.lowest_sequence = sequence
        self.epoch = epoch

    def observe(self, sequence: int, epoch: int) -> None:
        if epoch == self.epoch and sequence < self.lowest_sequence:
            self.lowest_sequence = sequence
        elif epoch > self.epoch:
            self.epoch = epoch
            self.lowest_sequence = sequence


class ProducerAppend:
    """The checks and the pending change of one producer's batches in one append."""

    __slots__ = (
        "_current",
        "_partition",
        "_verification",
        "origin",
        "producer_id",
        "started",
        "transactional",
        "updated",
        "warnings",
    )

    def __init__(
        self,
        partition: TopicPartition,
        current: ProducerEntry,
        origin: AppendOrigin,
        verification: VerificationEntry | None = None,
    ) -> None:
        self._partition = partition
        self._current = current
        self._verification = verification
        self.origin = origin
        self.producer_id = current.producer_id
        #: The entry as it will be; holds only the batches of this append.
        self.updated = ProducerEntry(
            current.producer_id,
            producer_epoch=current.producer_epoch,
            coordinator_epoch=current.coordinator_epoch,
            last_timestamp=current.last_timestamp,
            txn_first_offset=current.txn_first_offset,
        )
        #: First offsets of the transactions that this append begins.
        self.started: list[int] = []
        #: Whether a batch of a transaction, or its marker, was among them.
        self.transactional = False
        #: What a follower does not refuse, but ought to be logged.
        self.warnings: list[str] = []

    def append(self, header: BatchHeader, marker: EndTxnMarker | None = None) -> CompletedTxn | None:
        """Check a batch whose offsets are assigned, and take note of it.

        A control batch comes with its `marker`, or with None where compaction has emptied it.
        """
        self.transactional |= header.is_transactional
        if header.is_control:
            if marker is None:
                return None
            return self._append_marker(header, marker)
        self._append_data(header)
        return None

    def _append_data(self, header: BatchHeader) -> None:
        first_offset, last_offset = header.base_offset, header.last_offset
        self._check_epoch(header.producer_epoch, first_offset)
        if self.origin is AppendOrigin.CLIENT:
            self._check_sequence(header, first_offset)
        entry = self.updated
        if entry.txn_first_offset is not None and not header.is_transactional:
            raise Refused(
                ErrorCode.INVALID_TXN_STATE,
                f"Expected transactional write from producer {self.producer_id} at offset {first_offset} "
                f"in partition {self._partition}",
            )
        entry.add_batch(
            header.producer_epoch,
            BatchMetadata(header.last_sequence, last_offset, last_offset - first_offset, header.max_timestamp),
        )
        if entry.txn_first_offset is None and header.is_transactional:
            entry.txn_first_offset = first_offset
            self.started.append(first_offset)

    def _append_marker(self, header: BatchHeader, marker: EndTxnMarker) -> CompletedTxn | None:
        offset = header.base_offset
        self._check_epoch(header.producer_epoch, offset)
        self._check_coordinator_epoch(marker.coordinator_epoch, offset)
        entry = self.updated
        completed = None
        if entry.txn_first_offset is not None:
            # A marker without data moves no last stable offset and needs no entry in the transaction index.
            completed = CompletedTxn(
                ProducerId(self.producer_id), Offset(entry.txn_first_offset), offset, not marker.is_commit
            )
        entry.set_epoch(header.producer_epoch)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = marker.timestamp
        entry.txn_first_offset = None
        return completed

    def _check_epoch(self, producer_epoch: int, offset: int) -> None:
        if producer_epoch >= self.updated.producer_epoch:
            return
        message = (
            f"Epoch of producer {self.producer_id} at offset {offset} in {self._partition} is {producer_epoch}, "
            f"which is smaller than the last seen epoch {self.updated.producer_epoch}"
        )
        if self.origin is not AppendOrigin.REPLICATION:
            raise Refused(ErrorCode.INVALID_PRODUCER_EPOCH, message)
        self.warnings.append(message)

    def _check_sequence(self, header: BatchHeader, offset: int) -> None:
        producer_epoch, first_sequence = header.producer_epoch, header.base_sequence
        verification = self._verification
        if verification is not None and first_sequence > verification.lowest_sequence:
            raise self._out_of_order(
                offset,
                f"{first_sequence} (incoming seq. number), {verification.lowest_sequence} (earliest seen sequence)",
            )
        entry = self.updated
        if producer_epoch != entry.producer_epoch:
            if first_sequence != 0 and entry.producer_epoch != NO_PRODUCER_EPOCH:
                raise Refused(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"Invalid sequence number for new epoch of producer {self.producer_id} at offset {offset} in "
                    f"partition {self._partition}: {producer_epoch} (request epoch), {first_sequence} (seq. number), "
                    f"{entry.producer_epoch} (current producer epoch)",
                )
            return
        if entry.batches:
            last_sequence = entry.last_sequence
        elif producer_epoch == self._current.producer_epoch:
            last_sequence = self._current.last_sequence
        else:
            last_sequence = NO_SEQUENCE
        # A producer that is not known (its records were deleted, or it expired) may go on with any sequence.
        if self._current.producer_epoch != NO_PRODUCER_EPOCH and not in_sequence(last_sequence, first_sequence):
            batches = self._current.batches
            is_behind = not is_ahead(first_sequence, of=last_sequence)
            if header.is_transactional and is_behind and batches and self._current.has_ended(batches[-1]):
                raise repeats_ended_transaction(self._partition, header)
            raise self._out_of_order(
                offset, f"{first_sequence} (incoming seq. number), {last_sequence} (current end sequence number)"
            )

    def _out_of_order(self, offset: int, what: str) -> Refused:
        return Refused(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"Out of order sequence number for producer {self.producer_id} at offset {offset} "
            f"in partition {self._partition}: {what}",
        )

    def _check_coordinator_epoch(self, coordinator_epoch: int, offset: int) -> None:
        if self.updated.coordinator_epoch <= coordinator_epoch:
            return
        message = (
            f"Invalid coordinator epoch for producerId {self.producer_id} at offset {offset} in partition "
            f"{self._partition}: {coordinator_epoch} (zombie), {self.updated.coordinator_epoch} (current)"
        )
        if self.origin is not AppendOrigin.REPLICATION:
            raise Refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED, message)
        self.warnings.append(message)


def in_sequence(last_sequence: int, next_sequence: int) -> bool:
    return next_sequence == last_sequence + 1 or (next_sequence == 0 and last_sequence == MAX_SEQUENCE)


def is_ahead(sequence: int, *, of: int) -> bool:
    """Sequences go round: what is less than half the way ahead is ahead."""
    return 0 < (sequence - of) & MAX_SEQUENCE <= MAX_SEQUENCE // 2


def repeats_ended_transaction(partition: TopicPartition, header: BatchHeader) -> Refused:
    """For a transactional batch with a sequence that a transaction before the producer's last marker has used.

    Nobody waits for such a retry: clients end a transaction when they have all answers. But librdkafka gives the sequences
    of purged messages to the next transaction, though one that waited for a retry may have been written. Kafka takes the
    new record for the old one and confirms it; it is in no transaction, and the commit leaves it out.

    UNKNOWN_PRODUCER_ID makes each client abort and go on with a new epoch (KIP-360): librdkafka (abortable, requires a
    bump), franz-go (recoverable) and Java, which must be told the log start with it. OUT_OF_ORDER_SEQUENCE_NUMBER and
    INVALID_PRODUCER_EPOCH are fatal to librdkafka; after INVALID_TXN_STATE or TRANSACTION_ABORTABLE it aborts, but keeps its
    epoch, and with it the sequences that the broker and it see differently.
    """
    return Refused(
        ErrorCode.UNKNOWN_PRODUCER_ID,
        f"Producer {header.producer_id} repeats sequence {header.base_sequence} of a transaction that has ended "
        f"in {partition}: abort, and raise the producer epoch",
    )


class AppendPlan(NamedTuple):
    """What `analyze` found; `apply` it once the batches are in the log."""

    appends: list[ProducerAppend]
    #: In order of their markers.
    completed: list[CompletedTxn]
    #: The batch that the (only) batch of this append repeats: nothing is to be written, its offsets are the answer.
    duplicate: BatchMetadata | None


class ProducerStateManager:
    """All producers of a partition, its open transactions, and those whose end is not replicated yet.

    `map_end_offset`: the state reflects every batch below it. `snap_offset`: of the latest snapshot taken or loaded.
    """

    def __init__(
        self,
        partition: TopicPartition,
        *,
        producer_id_expiration_ms: int = 86_400_000,
        max_transaction_timeout_ms: int = 900_000,
        transaction_verification: bool = False,
    ) -> None:
        self.partition = partition
        self.producer_id_expiration_ms = producer_id_expiration_ms
        self.max_transaction_timeout_ms = max_transaction_timeout_ms
        #: `transaction.partition.verification.enable`
        self.transaction_verification = transaction_verification
        self._producers: dict[int, ProducerEntry] = {}
        #: Those that came from a snapshot, with one batch each.
        self._restored: set[int] = set()
        self._verifications: dict[int, VerificationEntry] = {}
        #: first offset -> producer id, ascending: transactions begin in the order of the log.
        self._ongoing: dict[int, int] = {}
        #: first offset -> offset of the marker, where that is not known to be below the high watermark.
        self._unreplicated: dict[int, int] = {}
        self.map_end_offset = Offset(0)
        self.snap_offset = Offset(0)

    # -- what is known

    @property
    def producers(self) -> dict[int, ProducerEntry]:
        """Read only."""
        return self._producers

    def entry(self, producer_id: int) -> ProducerEntry | None:
        return self._producers.get(producer_id)

    @property
    def is_empty(self) -> bool:
        return not self._producers and not self._unreplicated

    @property
    def first_unstable_offset(self) -> Offset | None:
        """The first offset of a transaction that is open, or whose marker is not below the high watermark."""
        ongoing = next(iter(self._ongoing), None)
        if not self._unreplicated:
            return None if ongoing is None else Offset(ongoing)
        unreplicated = min(self._unreplicated)
        return Offset(unreplicated if ongoing is None or unreplicated < ongoing else ongoing)

    def has_ongoing_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a transaction of this very epoch is open. One of an earlier epoch has been decided, and waits for its
        marker: the next transaction must not slip into it (KIP-890 part 2).
        """
        entry = self._producers.get(producer_id)
        return entry is not None and entry.txn_first_offset is not None and entry.producer_epoch == producer_epoch

    def has_late_transaction(self, now_ms: int) -> bool:
        """Whether the oldest open transaction should have been ended by its coordinator long ago."""
        first = next(iter(self._ongoing), None)
        if first is None:
            return False
        entry = self._producers.get(self._ongoing[first])
        if entry is None or entry.last_timestamp <= 0:
            return False
        return now_ms - entry.last_timestamp > self.max_transaction_timeout_ms + LATE_TRANSACTION_BUFFER_MS

    # -- append: check, then change

    def analyze(
        self,
        batches: Iterable[tuple[BatchHeader, EndTxnMarker | None]],
        origin: AppendOrigin,
        verification_guard: object | None = None,
    ) -> AppendPlan:
        """Check the batches of one append, whose offsets are assigned; raise `Refused` or say what will change.

        Changes nothing. A client's duplicate ends the analysis: nothing of the append is to be written.
        """
        appends: dict[int, ProducerAppend] = {}
        completed: list[CompletedTxn] = []
        for header, marker in batches:
            producer_id = header.producer_id
            if producer_id == NO_PRODUCER_ID:
                continue
            if origin is AppendOrigin.CLIENT:
                entry = self._producers.get(producer_id)
                if entry is not None:
                    duplicate = entry.find_duplicate(header)
                    if duplicate is None and producer_id in self._restored:
                        duplicate = entry.find_forgotten(header)
                    if duplicate is not None:
                        if header.is_transactional and entry.has_ended(duplicate):
                            raise repeats_ended_transaction(self.partition, header)
                        return AppendPlan([], [], duplicate)
            if origin is not AppendOrigin.REPLICATION and self.transaction_verification:
                self._check_verified(header, verification_guard)
            append = appends.get(producer_id)
            if append is None:
                append = appends[producer_id] = self.prepare(producer_id, origin)
            ended = append.append(header, marker)
            if ended is not None:
                completed.append(ended)
        return AppendPlan(list(appends.values()), completed, None)

    def _check_verified(self, header: BatchHeader, guard: object | None) -> None:
        """KIP-890: a transaction may begin here only with the guard of a confirmed verification."""
        if not header.is_transactional or header.is_control:
            return
        if self.has_ongoing_transaction(header.producer_id, header.producer_epoch):
            return
        entry = self._verifications.get(header.producer_id)
        if guard is None or entry is None or entry.guard is not guard:
            raise Refused(ErrorCode.INVALID_TXN_STATE, "Record was not part of an ongoing transaction")

    def prepare(self, producer_id: int, origin: AppendOrigin) -> ProducerAppend:
        """Checks for one producer's batches; `analyze` does this for a whole append."""
        current = self._producers.get(producer_id) or ProducerEntry(producer_id)
        return ProducerAppend(self.partition, current, origin, self._verifications.get(producer_id))

    def update(self, append: ProducerAppend) -> None:
        """Take over a checked append that is now in the log."""
        if append.producer_id == NO_PRODUCER_ID:
            raise BrokenInvariant(f"{self.partition}: state of a producer without an id")
        current = self._producers.get(append.producer_id)
        if current is None:
            self._producers[append.producer_id] = append.updated
        else:
            current.absorb(append.updated)
        for first_offset in append.started:
            self._begin(first_offset, append.producer_id)
        if append.transactional:
            # The open transaction itself tells from now on that its producer may write; after a marker none may.
            self._verifications.pop(append.producer_id, None)

    def _begin(self, first_offset: int, producer_id: int) -> None:
        in_order = first_offset > next(reversed(self._ongoing), -1)
        self._ongoing[first_offset] = producer_id
        if not in_order:
            # Producers that a fetch brought together are updated one by one, so their transactions can come unsorted.
            self._ongoing = dict(sorted(self._ongoing.items()))

    def update_map_end_offset(self, end_offset: int) -> None:
        """Every batch below `end_offset` has been applied."""
        self.map_end_offset = Offset(end_offset)

    def last_stable_offset(self, completed: CompletedTxn) -> Offset:
        """The last stable offset that holds once `completed` is: for the transaction index, before `complete_txn`."""
        for first_offset, producer_id in self._ongoing.items():
            if producer_id != completed.producer_id:
                return Offset(first_offset)
        return Offset(completed.last_offset + 1)

    def complete_txn(self, completed: CompletedTxn) -> None:
        """The transaction has ended; it stays unstable until its marker is below the high watermark."""
        if self._ongoing.pop(completed.first_offset, None) is None:
            raise BrokenInvariant(f"{self.partition}: {completed} ends a transaction that was not begun")
        self._unreplicated[completed.first_offset] = completed.last_offset

    # -- what time and the high watermark change

    def on_high_watermark(self, high_watermark: int) -> bool:
        """Forget ended transactions whose marker is replicated; True where the first unstable offset may have moved."""
        if not self._unreplicated:
            return False
        replicated = [first for first, last in self._unreplicated.items() if last < high_watermark]
        for first in replicated:
            del self._unreplicated[first]
        return bool(replicated)

    def on_log_start_offset(self, log_start_offset: int, latest_snapshot_offset: int | None) -> None:
        """The log begins later: transactions that ended below are of no interest, the state reaches to its start."""
        self.on_high_watermark(log_start_offset)
        if self.map_end_offset < log_start_offset:
            self.map_end_offset = Offset(log_start_offset)
        self.snap_offset = Offset(log_start_offset if latest_snapshot_offset is None else latest_snapshot_offset)

    def is_expired(self, entry: ProducerEntry, now_ms: int) -> bool:
        """Silent for `producer.id.expiration.ms`, and with no open transaction."""
        return entry.txn_first_offset is None and now_ms - entry.last_timestamp >= self.producer_id_expiration_ms

    def remove_expired(self, now_ms: int) -> int:
        """Forget silent producers, and verifications that were never used; the number of producers that went."""
        expired = [pid for pid, entry in self._producers.items() if self.is_expired(entry, now_ms)]
        for producer_id in expired:
            del self._producers[producer_id]
            self._restored.discard(producer_id)
        for producer_id, verification in list(self._verifications.items()):
            if now_ms - verification.timestamp_ms >= self.producer_id_expiration_ms:
                del self._verifications[producer_id]
        return len(expired)

    # -- transaction verification (KIP-890)

    def start_verification(self, producer_id: int, sequence: int, epoch: int, now_ms: int) -> VerificationEntry:
        """The verification of a producer that is about to begin a transaction here; its `guard` goes with the append."""
        entry = self._verifications.get(producer_id)
        if entry is None:
            entry = self._verifications[producer_id] = VerificationEntry(now_ms, sequence, epoch)
        entry.observe(sequence, epoch)
        return entry

    def verification(self, producer_id: int) -> VerificationEntry | None:
        return self._verifications.get(producer_id)

    # -- snapshots, truncation

    def snapshot_entries(self) -> list[ProducerEntry]:
        """The entries to write to a snapshot at `map_end_offset`; live objects: encode before anything is appended."""
        return list(self._producers.values())

    @property
    def needs_snapshot(self) -> bool:
        """Whether the state has moved on since the last snapshot."""
        return self.map_end_offset > self.snap_offset

    def on_snapshot_taken(self) -> None:
        self.snap_offset = self.map_end_offset

    def load(self, entries: Iterable[ProducerEntry], offset: int, now_ms: int) -> None:
        """Start from a snapshot at `offset`; producers that have expired meanwhile are left out."""
        self.truncate_fully(offset)
        open_txns = []
        for entry in entries:
            if self.is_expired(entry, now_ms):
                continue
            self._producers[entry.producer_id] = entry
            self._restored.add(entry.producer_id)
            if entry.txn_first_offset is not None:
                open_txns.append((entry.txn_first_offset, entry.producer_id))
        self._ongoing.update(sorted(open_txns))
        self.snap_offset = self.map_end_offset

    def truncate_fully(self, offset: int) -> None:
        """Forget everything but verifications; the state reflects a log that is empty up to `offset`."""
        self._producers.clear()
        self._restored.clear()
        self._ongoing.clear()
        self._unreplicated.clear()
        self.map_end_offset = Offset(offset)
        self.snap_offset = Offset(0)

    def new(self) -> "ProducerStateManager":
        """One that knows nothing, for the same partition with the same settings: a state to be read on a thread."""
        return ProducerStateManager(
            self.partition,
            producer_id_expiration_ms=self.producer_id_expiration_ms,
            max_transaction_timeout_ms=self.max_transaction_timeout_ms,
            transaction_verification=self.transaction_verification,
        )

    def become(self, other: "ProducerStateManager") -> None:
        """Take over another's state, as of its end, but for verifications, which are of what is to come."""
        self._producers = other._producers
        self._restored = other._restored
        self._ongoing = other._ongoing
        self._unreplicated = other._unreplicated
        self.map_end_offset = other.map_end_offset
        self.snap_offset = other.snap_offset
