"""Checks whether a producer's batches may be appended, and collects the changes to its state."""

from enum import Enum
from typing import NamedTuple

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import NO_PRODUCER_EPOCH, Offset, ProducerId, TopicPartition
from barnabas.broker.storage.producer_entry import (
    BatchMetadata,
    CompletedTxn,
    ProducerEntry,
    VerificationEntry,
    in_sequence,
    is_ahead,
)
from barnabas.wire.record_batch import NO_SEQUENCE, BatchHeader
from barnabas.wire.records import EndTxnMarker


class AppendOrigin(Enum):
    """The source of an append. A client's batches are checked in full; a leader has already checked the batches it sends."""

    REPLICATION = "replication"
    #: The group or transaction coordinator of this broker, and transaction markers.
    COORDINATOR = "coordinator"
    CLIENT = "client"


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
        #: The entry after the append; holds only the batches of this append.
        self.updated = ProducerEntry(
            current.producer_id,
            producer_epoch=current.producer_epoch,
            coordinator_epoch=current.coordinator_epoch,
            last_timestamp=current.last_timestamp,
            txn_first_offset=current.txn_first_offset,
        )
        #: First offsets of the transactions that this append begins.
        self.started: list[int] = []
        #: Whether the append contains a transactional batch or a marker.
        self.transactional = False
        #: Irregularities that a follower accepts but logs.
        self.warnings: list[str] = []

    def append(self, header: BatchHeader, marker: EndTxnMarker | None = None) -> CompletedTxn | None:
        """Check a batch whose offsets are assigned, and record its changes.

        A control batch comes with its `marker`, or with None if compaction has emptied it.
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
            message = (
                f"Expected transactional write from producer {self.producer_id} at offset {first_offset} "
                f"in partition {self._partition}"
            )
            if self.origin is not AppendOrigin.REPLICATION:
                raise Refused(ErrorCode.INVALID_TXN_STATE, message)
            # The leader no longer knew of the transaction, and has the batch in its log.
            self.warnings.append(message)
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
        # A fenced producer of another epoch may have asked for verification too: its sequences do not count.
        if (
            verification is not None
            and producer_epoch == verification.epoch
            and first_sequence > verification.lowest_sequence
        ):
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
        # An unknown producer (its records were deleted, or it expired) may continue with any sequence.
        if self._current.producer_epoch != NO_PRODUCER_EPOCH and not in_sequence(last_sequence, first_sequence):
            batches = self._current.batches
            is_behind = not is_ahead(first_sequence, of=last_sequence)
            if header.is_transactional and is_behind and batches and self._current.has_ended(batches[-1]):
                raise repeats_ended_transaction(self._partition, header)
            raise self._out_of_order(
                offset, f"{first_sequence} (incoming seq. number), {last_sequence} (current end sequence number)"
            )

    def _out_of_order(self, offset: int, details: str) -> Refused:
        return Refused(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"Out of order sequence number for producer {self.producer_id} at offset {offset} "
            f"in partition {self._partition}: {details}",
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


def repeats_ended_transaction(partition: TopicPartition, header: BatchHeader) -> Refused:
    """Return the error for a transactional batch whose sequence belongs to a transaction before the producer's last marker.

    No correct client sends such a retry: clients end a transaction when they have all responses. But librdkafka gives the
    sequences of purged messages to the next transaction, although a message that waited for a retry may have been written.
    Kafka mistakes the new record for the old one and confirms it; the record is in no transaction, and the commit omits it.

    UNKNOWN_PRODUCER_ID makes each client abort and continue with a new epoch (KIP-360): librdkafka (abortable, requires a
    bump), franz-go (recoverable) and Java, which needs the log start offset with it. OUT_OF_ORDER_SEQUENCE_NUMBER and
    INVALID_PRODUCER_EPOCH are fatal to librdkafka; after INVALID_TXN_STATE or TRANSACTION_ABORTABLE it aborts but keeps its
    epoch, and with it the sequences on which the broker and the client disagree.
    """
    return Refused(
        ErrorCode.UNKNOWN_PRODUCER_ID,
        f"Producer {header.producer_id} repeats sequence {header.base_sequence} of a transaction that has ended "
        f"in {partition}: abort, and raise the producer epoch",
    )


class AppendPlan(NamedTuple):
    """The result of `analyze`; `apply` it once the batches are in the log."""

    appends: list[ProducerAppend]
    #: In order of their markers.
    completed: list[CompletedTxn]
    #: The earlier batch that the only batch of this append repeats: nothing is written, the response has its offsets.
    duplicate: BatchMetadata | None
