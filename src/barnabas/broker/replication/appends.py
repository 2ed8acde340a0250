"""Appends to the partitions that this broker leads, and the wait until their replicas have the records.

Owner: the event loop. A Produce runs here without a coroutine or a queue, in one pass over its partitions.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

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
# These are names because Python evaluates the annotations of an inner function at each call.
_Errors = dict[int, ErrorCode]
_MaybeWait = DelayedProduce | None


class AppendOutcome:
    """The answer for one partition of a Produce request."""

    __slots__ = ("base_offset", "error", "log_append_time_ms", "log_start_offset", "message", "record_errors")

    def __init__(self, error: ErrorCode = ErrorCode.NONE, message: str | None = None) -> None:
        self.error = error
        self.message = message
        self.base_offset = -1
        self.log_append_time_ms = -1
        self.log_start_offset = -1
        self.record_errors: list[RecordError] = []


class AppendEntry(NamedTuple):
    """Records to append to one partition."""

    tp: TopicPartition
    records: memoryview | bytearray
    #: Comes from the verification of the transaction that the records begin (KIP-890).
    guard: object | None = None
    #: The topic id in the request, from Produce v13 on. If a topic was created again under the same name, the ids differ.
    topic_id: bytes | None = None


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
        on_done: Callable[[list[AppendOutcome]], None],
    ) -> DelayedProduce | None:
        """Append, and call `on_done` when the condition of `required_acks` holds. The buffers are not needed after the call.

        Returns the operation that waits for the replicas, if one waits by then.
        """
        hosted = self._hosted
        now_ms = self._clock.now_ms()
        outcomes: list[AppendOutcome] = []
        grown: list[tuple[Partition, bool]] = []
        waiting: dict[int, tuple[Partition, int, int]] = {}
        to_flush: list[tuple[AppendOutcome, Partition]] = []
        for index, (tp, records, guard, topic_id) in enumerate(entries):
            outcome = AppendOutcome()
            outcomes.append(outcome)
            try:
                partition = hosted.require(tp)
                if topic_id is not None and partition.topic_id not in (None, topic_id):
                    raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"{tp} belongs to another topic with the same name")
                if not self.early.is_quiet and origin is Origin.CLIENT:
                    code = self.early.code_for(tp, records, partition.log)
                    if code is ErrorCode.NONE and topic_id is not None:
                        code = self.early.code_for(nameless(topic_id, tp.partition), records, partition.log)
                    if code is not ErrorCode.NONE:
                        outcome.error, outcome.message = code, "an earlier batch of this producer has to come first"
                        continue
                info, hw_moved = partition.append_as_leader(
                    records,
                    required_acks=required_acks,
                    origin=origin,
                    now_ms=now_ms,
                    verification_guard=guard,
                )
            except (Refused, Malformed, LogDirFault) as error:
                self._note_refusal(tp, outcome, error)
                if origin is Origin.CLIENT:
                    self.refused(tp, records, outcome.error)
                continue
            outcome.base_offset = info.first_offset
            outcome.log_append_time_ms = info.log_append_time_ms
            outcome.log_start_offset = info.log_start_offset
            if required_acks == -1:
                waiting[index] = (partition, info.last_offset + 1, partition.machine.leaderships)
            if info.flush_due:
                to_flush.append((outcome, partition))
            if info.duplicate:
                if info.first_offset < 0:
                    # The batch is a duplicate from before a restart, and its offset is not known. Clients take this error for
                    # success.
                    outcome.error = ErrorCode.DUPLICATE_SEQUENCE_NUMBER
                continue
            counters = hosted.counters(tp.topic)
            counters.bytes_in.value += info.size_bytes
            counters.messages_in.value += info.record_count
            grown.append((partition, hw_moved))

        def replicated(errors: _Errors) -> None:
            for index, error in errors.items():
                outcomes[index].error = error
                outcomes[index].base_offset = -1
            on_done(outcomes)

        def written() -> _MaybeWait:
            if not waiting:
                on_done(outcomes)
                return None
            keys = [partition for partition, _, _ in waiting.values()]
            operation = DelayedProduce(waiting, replicated)
            done = hosted.produce_purgatory.try_complete_else_watch(operation, keys, timeout_ms=timeout_ms)
            return None if done else operation

        wait = None
        if to_flush:
            self._flush_then(to_flush, written)
        else:
            wait = written()
        for partition, hw_moved in grown:
            hosted.log_end_moved(partition)
            if hw_moved:
                hosted.high_watermark_moved(partition)
        return wait

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
            info, hw_moved = partition.append_as_leader(
                batch, required_acks=-1, origin=origin, now_ms=now_ms, verification_guard=guard
            )
        except (Refused, Malformed, LogDirFault) as error:
            outcome = AppendOutcome()
            self._note_refusal(tp, outcome, error)
            raise Refused(outcome.error, outcome.message) from error
        counters = hosted.counters(tp.topic)
        counters.bytes_in.value += info.size_bytes
        counters.messages_in.value += info.record_count
        if info.flush_due:
            self._flush_own(partition, info.last_offset + 1, on_committed)
        else:
            self.when_replicated(partition, info.last_offset + 1, partition.machine.leaderships, on_committed)
        hosted.log_end_moved(partition)
        if hw_moved:
            hosted.high_watermark_moved(partition)
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

    def refuse(self, entry: AppendEntry, error: Refused) -> AppendOutcome:
        """Return the answer for a client's batch that another part of the broker refused before the append."""
        outcome = AppendOutcome()
        self._note_refusal(entry.tp, outcome, error)
        self.refused(entry.tp, entry.records, outcome.error)
        return outcome

    def _note_refusal(self, tp: TopicPartition, outcome: AppendOutcome, error: Exception) -> None:
        if isinstance(error, Malformed):
            outcome.error, outcome.message = ErrorCode.CORRUPT_MESSAGE, str(error)
        elif isinstance(error, LogDirFault):
            outcome.error, outcome.message = ErrorCode.KAFKA_STORAGE_ERROR, str(error)
        else:
            assert isinstance(error, Refused)
            outcome.error, outcome.message = error.code, error.message
            if isinstance(error, InvalidRecords):
                outcome.record_errors = error.record_errors
        if outcome.error not in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            self._hosted.counters(tp.topic).failed_produce.add()
            log.debug("[partition %s] an append was refused: %s", tp, error)
            partition = self._hosted.partitions.get(tp)
            if partition is not None and partition.log is not None:
                # Clients compare the log start with the end of their last write: if it is later, the broker may have forgotten
                # them.
                outcome.log_start_offset = partition.log.log_start_offset

    def _flush_then(self, to_flush: list[tuple[AppendOutcome, Partition]], then: Callable[[], object]) -> None:
        """Wait for the disk because `flush.messages` is reached, then call `then`. The event loop is not blocked."""
        remaining = len(to_flush)

        def flushed(outcome: AppendOutcome, error: Exception | None) -> None:
            nonlocal remaining
            if error is not None:
                outcome.error, outcome.message, outcome.base_offset = ErrorCode.KAFKA_STORAGE_ERROR, str(error), -1
            remaining -= 1
            if remaining == 0:
                then()

        for outcome, partition in to_flush:
            self._flush(partition, partial(flushed, outcome))

    def _flush(self, partition: Partition, then: Callable[[Exception | None], None]) -> None:
        flushed_log = partition.local_log

        def flushed(error: Exception | None) -> None:
            if error is not None and partition.log not in (None, flushed_log):
                # The log has moved to another directory, which has the records.
                self._flush(partition, then)
            else:
                then(error)

        partition.flush_then(flushed)
