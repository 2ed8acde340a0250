"""What a log knows of one producer."""

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from barnabas.base.ids import NO_PRODUCER_EPOCH, Offset, ProducerId
from barnabas.wire.record_batch import MAX_SEQUENCE, NO_SEQUENCE, NO_TIMESTAMP, BatchHeader, decrement_sequence

#: What an idempotent producer may have in flight, and so what can come again.
BATCHES_RETAINED: Final = 5


NO_COORDINATOR_EPOCH: Final = -1


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


def in_sequence(last_sequence: int, next_sequence: int) -> bool:
    return next_sequence == last_sequence + 1 or (next_sequence == 0 and last_sequence == MAX_SEQUENCE)


def is_ahead(sequence: int, *, of: int) -> bool:
    """Sequences go round: what is less than half the way ahead is ahead."""
    return 0 < (sequence - of) & MAX_SEQUENCE <= MAX_SEQUENCE // 2
