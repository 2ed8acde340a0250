"""Appends to the partitions that this broker leads, and the wait until their replicas have the records.

Owner: the event loop. A Produce runs here without a coroutine or a queue, in one pass over its partitions.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from barnabas.base.clock import Clock
from barnabas.base.errors import ErrorCode, LogDirFault, Malformed, Refused
from barnabas.base.host import descriptors
from barnabas.base.ids import Offset, TopicPartition
from barnabas.broker.replication.delayed import DelayedProduce
from barnabas.broker.replication.early_batches import EarlyBatches, nameless
from barnabas.broker.replication.hosted import HostedPartitions
from barnabas.broker.replication.partition import Partition
from barnabas.broker.storage.log_types import InvalidRecords, Origin, RecordError

log = logging.getLogger(__name__)

#: Timeout of writes that wait for as long as it takes.
NEVER_MS: Final = 2**31 - 1
#: Partition, end and leadership of records that wait for their replicas, by their index in the request.
_Waiting = dict[int, tuple[Partition, int, int]]


class AppendEntry:
    """Records to append to one partition, and the outcome, which is complete when all entries of a request are done."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[RecordError] = ()

    def __init__(
        self,
        tp: TopicPartition,
        records: memoryview | bytearray,
        guard: object | None = None,
        topic_id: bytes | None = None,
    ) -> None:
        """`guard` comes from the verification of the transaction that the records begin (KIP-890). `topic_id` is in requests
        from Produce v13 on: if a topic was created again under the same name, the ids differ."""
        self.tp = tp
        self.records = records
        self.guard = guard
        self.topic_id = topic_id


class Appends:
    def __init__(self, hosted: HostedPartitions, clock: Clock) -> None:
        self._hosted = hosted
        self._clock = clock
        self.early = EarlyBatches(clock)

    def elected(self, partition: Partition) -> None:
        """This broker is the new leader. Producers may have batches in flight that follow one which the former leader
        refused."""
        if partition.machine.leader_epoch > 0:
            self.early.elected(partition.tp)

    def append(
        self,
        entries: Sequence[AppendEntry],
        *,
        required_acks: int,
        timeout_ms: int,
        origin: Origin,
        on_done: Callable[[Sequence[AppendEntry]], None],
    ) -> DelayedProduce | None:
        """Append, and call `on_done` when the condition of `required_acks` holds. The buffers are not needed after the call.

        Returns the operation that waits for the replicas, if one waits by then.
        """
        hosted = self._hosted
        now_ms = self._clock.now_ms()
        grown: list[tuple[Partition, bool]] = []
        waiting: _Waiting = {}
        to_flush: list[tuple[AppendEntry, Partition]] = []
        for index, entry in enumerate(entries):
            tp = entry.tp
            try:
                partition = hosted.partitions.get(tp) or hosted.require(tp)
                topic_id = entry.topic_id
                if topic_id is not None and partition.topic_id not in (None, topic_id):
                    raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"{tp} belongs to another topic with the same name")
                if not self.early.is_quiet and origin is Origin.CLIENT and self._is_early(entry, partition):
                    continue
                info, hw_moved = partition.append_as_leader(entry.records, required_acks, origin, now_ms, entry.guard)
            except (Refused, Malformed, LogDirFault) as error:
                self._note_refusal(entry, error)
                if origin is Origin.CLIENT:
                    self.refused(tp, entry.records, entry.error)
                continue
            first, last, entry.log_append_time_ms, entry.log_start_offset, count, size, duplicate, flush_due, _ = info
            entry.base_offset = first
            if duplicate:
                if first < 0:
                    # The batch is a duplicate from before a restart, and its offset is not known. Clients take this error for
                    # success.
                    entry.error = ErrorCode.DUPLICATE_SEQUENCE_NUMBER
            else:
                counters = partition.counters or hosted.count(partition)
                counters.bytes_in.value += size
                counters.messages_in.value += count
                grown.append((partition, hw_moved))
            if flush_due:
                to_flush.append((entry, partition))
            if required_acks == -1:
                leadership = partition.machine.leaderships
                verdict = None if to_flush else partition.machine.check_replicated(last + 1, leadership)
                if verdict is None:
                    waiting[index] = (partition, last + 1, leadership)
                elif verdict:
                    entry.error, entry.base_offset = verdict, -1
        wait = None
        if to_flush:
            self._flush_then(to_flush, lambda: self._wait(entries, waiting, timeout_ms, on_done))
        elif waiting:
            wait = self._wait(entries, waiting, timeout_ms, on_done)
        else:
            on_done(entries)
        for partition, hw_moved in grown:
            hosted.grew(partition, hw_moved)
        return wait

    def _wait(
        self,
        entries: Sequence[AppendEntry],
        waiting: _Waiting,
        timeout_ms: int,
        on_done: Callable[[Sequence[AppendEntry]], None],
    ) -> DelayedProduce | None:
        """Call `on_done` when the replicas have all records that wait; return the operation, unless they have them now."""

        def replicated(errors: "dict[int, ErrorCode]") -> None:
            for index, error in errors.items():
                entries[index].error = error
                entries[index].base_offset = -1
            on_done(entries)

        keys = [partition for partition, _, _ in waiting.values()]
        operation = DelayedProduce(waiting, replicated)
        done = self._hosted.produce_purgatory.try_complete_else_watch(operation, keys, timeout_ms=timeout_ms)
        return None if done else operation

    def _is_early(self, entry: AppendEntry, partition: Partition) -> bool:
        """Whether a client's batch has to wait for an earlier one of its producer; then the entry has its error."""
        code = self.early.code_for(entry.tp, entry.records, partition.log)
        if code is ErrorCode.NONE and entry.topic_id is not None:
            code = self.early.code_for(nameless(entry.topic_id, entry.tp.partition), entry.records, partition.log)
        if code is ErrorCode.NONE:
            return False
        entry.error, entry.message = code, "an earlier batch of this producer has to come first"
        return True

    def append_own(
        self,
        tp: TopicPartition,
        batch: bytearray,
        *,
        origin: Origin,
        now_ms: int,
        guard: object | None = None,
        on_committed: Callable[[ErrorCode], None],
    ) -> Offset:
        """Append a batch of this broker's own with acks=all, without a timeout; return its first offset.

        Raises `Refused` if nothing was written. Otherwise `on_committed` is called once; if no other broker is in the ISR,
        before this method returns. Coordinators do this for each request that changes something: one batch, no lists.
        """
        hosted = self._hosted
        try:
            partition = hosted.require(tp)
            info, hw_moved = partition.append_as_leader(batch, -1, origin, now_ms, guard)
        except (Refused, Malformed, LogDirFault) as error:
            entry = AppendEntry(tp, batch)
            self._note_refusal(entry, error)
            raise Refused(entry.error, entry.message) from error
        counters = partition.counters or hosted.count(partition)
        counters.bytes_in.value += info.size_bytes
        counters.messages_in.value += info.record_count
        if info.flush_due:
            self._flush_own(partition, info.last_offset + 1, on_committed)
        else:
            self.when_replicated(partition, info.last_offset + 1, partition.machine.leaderships, on_committed)
        hosted.grew(partition, hw_moved)
        return info.first_offset

    def _flush_own(self, partition: Partition, end: int, on_committed: Callable[[ErrorCode], None]) -> None:
        leadership = partition.machine.leaderships

        def flush() -> None:
            if partition.log is None:
                on_committed(ErrorCode.KAFKA_STORAGE_ERROR)
            else:
                self._flush(partition, flushed)

        def flushed(error: Exception | None) -> None:
            if error is None:
                self.when_replicated(partition, end, leadership, on_committed)
            elif isinstance(error, LogDirFault) and descriptors.are_exhausted(error.cause):
                # The disk is healthy, and other replicas may have the record already: it will be committed. Try again.
                self._hosted.timers.call_later(descriptors.WAIT_S, flush)
            else:
                on_committed(ErrorCode.KAFKA_STORAGE_ERROR)

        flush()

    def when_replicated(
        self, partition: Partition, end: int, leadership: int, on_done: Callable[[ErrorCode], None]
    ) -> None:
        """Call `on_done` once all records below `end` are committed, or cannot be any more; at once if that is known."""
        verdict = partition.machine.check_replicated(end, leadership)
        if verdict is not None:
            on_done(verdict)
            return
        operation = DelayedProduce(
            {0: (partition, end, leadership)}, lambda errors: on_done(errors.get(0, ErrorCode.NONE))
        )
        self._hosted.produce_purgatory.watch(operation, (partition,), timeout_ms=NEVER_MS)

    def refused(self, tp: TopicPartition, records: memoryview | bytearray, code: ErrorCode) -> None:
        """Note that a client's batch was refused, here or before it came here: the batches behind it may be early."""
        partition = self._hosted.partitions.get(tp)
        self.early.refused(tp, records, code, partition.log if partition is not None else None)

    def refuse(self, entry: AppendEntry, error: Refused) -> None:
        """Set the outcome of a client's batch that another part of the broker refused before the append."""
        self._note_refusal(entry, error)
        self.refused(entry.tp, entry.records, entry.error)

    def _note_refusal(self, entry: AppendEntry, error: Exception) -> None:
        tp = entry.tp
        if isinstance(error, Malformed):
            entry.error, entry.message = ErrorCode.CORRUPT_MESSAGE, str(error)
        elif isinstance(error, LogDirFault):
            entry.error, entry.message = ErrorCode.KAFKA_STORAGE_ERROR, str(error)
        else:
            assert isinstance(error, Refused)
            entry.error, entry.message = error.code, error.message
            if isinstance(error, InvalidRecords):
                entry.record_errors = error.record_errors
        if entry.error not in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            self._hosted.counters(tp.topic).failed_produce.add()
            log.debug("[partition %s] an append was refused: %s", tp, error)
            partition = self._hosted.partitions.get(tp)
            if partition is not None and partition.log is not None:
                # Clients compare the log start with the end of their last write: if it is later, the broker may have forgotten
                # them.
                entry.log_start_offset = partition.log.log_start_offset

    def _flush_then(self, to_flush: list[tuple[AppendEntry, Partition]], then: Callable[[], object]) -> None:
        """Wait for the disk because `flush.messages` is reached, then call `then`. The event loop is not blocked."""
        remaining = len(to_flush)

        def flushed(entry: AppendEntry, error: Exception | None) -> None:
            nonlocal remaining
            if error is not None:
                entry.error, entry.message, entry.base_offset = ErrorCode.KAFKA_STORAGE_ERROR, str(error), -1
            remaining -= 1
            if remaining == 0:
                then()

        for entry, partition in to_flush:
            self._flush(partition, partial(flushed, entry))

    def _flush(self, partition: Partition, then: Callable[[Exception | None], None]) -> None:
        flushed_log = partition.local_log

        def flushed(error: Exception | None) -> None:
            if error is not None and partition.log not in (None, flushed_log):
                # The log has moved to another directory, which has the records.
                self._flush(partition, then)
            else:
                then(error)

        partition.flush_then(flushed)
