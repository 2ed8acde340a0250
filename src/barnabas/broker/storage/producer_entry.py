"""The state of one producer in a log."""

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from barnabas.base.ids import NO_PRODUCER_EPOCH, Offset, ProducerId
from barnabas.wire.record_batch import MAX_SEQUENCE, NO_SEQUENCE, NO_TIMESTAMP, BatchHeader, decrement_sequence

#: The number of batches that an idempotent producer may have in flight, and so may send again.
BATCHES_RETAINED: Final = 5


NO_COORDINATOR_EPOCH: Final = -1


class BatchMetadata(NamedTuple):
    """A batch that a producer wrote: the fields that identify a duplicate."""

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
    #: Offset of the marker.
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
        #: First offset of the open transaction; None if no transaction is open.
        self.txn_first_offset = txn_first_offset
        #: Batches of the current epoch, oldest first.
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
        """Return the retained batch with the same epoch and sequences, if any: the producer gets its offset again."""
        if header.producer_epoch != self.producer_epoch:
            return None
        first, last = header.base_sequence, header.last_sequence
        for batch in self.batches:
            if batch.last_sequence == last and batch.first_sequence == first:
                return batch
        return None

    def find_forgotten(self, header: BatchHeader) -> BatchMetadata | None:
        """Return a duplicate from before a restart: a snapshot keeps one batch of each producer, but a retry may be of the last
        five.

        Sequences have no holes, so a batch that ends below the oldest known batch was written, somewhere below it. Kafka
        answers OUT_OF_ORDER_SEQUENCE_NUMBER, which ends the producer or its guarantee. If five batches are known, the batch is
        not a retry.
        """
        if header.producer_epoch != self.producer_epoch or not 0 < len(self.batches) < BATCHES_RETAINED:
            return None
        oldest, last = self.batches[0], header.last_sequence
        is_below = header.base_sequence <= last < oldest.first_sequence
        if not is_below or oldest.first_sequence - last > MAX_SEQUENCE // 2:  # then the sequence wrapped, and is ahead
            return None
        # The offset is unknown (-1), but the caller can wait for everything below the known batch.
        end = oldest.first_offset
        return BatchMetadata(last, Offset(end - 1), offset_delta=end, timestamp=-1)

    def has_ended(self, batch: BatchMetadata) -> bool:
        """Whether the transaction that wrote this batch has its marker."""
        return self.txn_first_offset is None or batch.last_offset < self.txn_first_offset

    def set_epoch(self, producer_epoch: int) -> None:
        """Set the epoch; a new epoch starts with new sequences."""
        if self.producer_epoch != producer_epoch:
            self.batches.clear()
            self.producer_epoch = producer_epoch

    def add_batch(self, producer_epoch: int, batch: BatchMetadata) -> None:
        self.set_epoch(producer_epoch)
        self.batches.append(batch)
        self.last_timestamp = batch.timestamp

    def absorb(self, update: "ProducerEntry") -> None:
        """Take over the changes of a successful append."""
        self.set_epoch(update.producer_epoch)
        self.batches.extend(update.batches)
        self.coordinator_epoch = update.coordinator_epoch
        self.txn_first_offset = update.txn_first_offset
        self.last_timestamp = update.last_timestamp


class VerificationEntry:
    """A transactional producer whose first batch here waits until its coordinator has confirmed the partition (KIP-890).

    The guard is compared by identity: only the append that follows the confirmation has it, and an append that comes late,
    after the transaction ended, does not. The lowest sequence seen keeps a later batch from being written first.
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
    """Whether `sequence` is ahead of `of`. Sequences wrap: less than half the range ahead counts as ahead."""
    return 0 < (sequence - of) & MAX_SEQUENCE <= MAX_SEQUENCE // 2
