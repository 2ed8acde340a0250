"""All replicas of this broker: where requests find their partition, and where those who wait are woken.

Owner: the event loop. Produce and Fetch come straight through here: no coroutine, no queue, one pass over the partitions.
"""

import logging
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from barnabas.core.clock import Clock
from barnabas.core.errors import ErrorCode, LogDirFault, Malformed, Refused
from barnabas.core.ids import NO_EPOCH, BrokerId, Offset, TopicPartition
from barnabas.metrics.registry import Registry
from barnabas.replication.delayed import DelayedDeleteRecords, DelayedFetch, DelayedProduce
from barnabas.replication.early_batches import EarlyBatches, nameless
from barnabas.replication.fetch_session_cache import CachedPartition
from barnabas.replication.fetcher_machine import never_throttled
from barnabas.replication.partition import FetchParams, Partition, PartitionRead
from barnabas.replication.state import IsrSettled, ProposeIsr
from barnabas.replication.topic_counters import TopicCounters
from barnabas.runtime.purgatory import DelayedOperation, Purgatory
from barnabas.runtime.timers import Timers
from barnabas.storage.log import Log
from barnabas.storage.log_types import InvalidRecords, Origin, RecordError

log = logging.getLogger(__name__)

#: What was written is waited for as long as it takes.
NEVER_MS: Final = 2**31 - 1
# Annotations of functions inside of functions are made anew with each of them, names are only looked up.
_Errors = dict[int, ErrorCode]
_MaybeBytes = int | None


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
    """What is to be appended to one partition."""

    tp: TopicPartition
    records: memoryview | bytearray
    #: From the verification of the transaction that the records begin (KIP-890).
    guard: object | None = None
    #: The topic as the client named it, from Produce v13 on: a topic of the same name that was made anew is another one.
    topic_id: bytes | None = None


class WaitingFetch(NamedTuple):
    purgatory: Purgatory
    operation: DelayedOperation

    def cancel(self) -> None:
        self.purgatory.cancel(self.operation)


class ReplicaManager:
    def __init__(
        self,
        broker_id: BrokerId,
        *,
        clock: Clock,
        timers: Timers,
        registry: Registry,
        is_known: Callable[[TopicPartition], bool],
        submit_isr_change: Callable[[Partition, ProposeIsr], None],
        prefers_replica: Callable[[Partition, FetchParams, int], int | None],
        fetch_bytes_max: int,
        is_throttled: Callable[[TopicPartition], bool] = never_throttled,
    ) -> None:
        """`is_known` tells whether the cluster has such a partition; `prefers_replica` whom a consumer should ask;
        `is_throttled` whether a partition's records are held back from followers that are not in sync."""
        self.broker_id = broker_id
        self.fetch_bytes_max = fetch_bytes_max
        self._clock = clock
        self._registry = registry
        self._is_known = is_known
        self._submit_isr_change = submit_isr_change
        self._prefers_replica = prefers_replica
        self._is_throttled = is_throttled
        self._partitions: dict[TopicPartition, Partition] = {}
        self._counters: dict[str, TopicCounters] = {}
        self._early = EarlyBatches(clock)
        #: Counts moves of log ends and high watermarks, of any partition.
        self._movements = 0
        self.produce_purgatory = Purgatory("Produce", timers)
        self.fetch_purgatory = Purgatory("Fetch", timers)
        self.delete_records_purgatory = Purgatory("DeleteRecords", timers)
        for purgatory in (self.produce_purgatory, self.fetch_purgatory, self.delete_records_purgatory):
            registry.gauge(
                "kafka_server_purgatory_size", "Waiting requests.", purgatory.__len__, delayed_operation=purgatory.name
            )
        self._add_gauges(registry)

    def _add_gauges(self, registry: Registry) -> None:
        def count(name: str, what: str, condition: Callable[[Partition], bool]) -> None:
            registry.gauge(
                f"kafka_server_replica_manager_{name}", what, lambda: sum(map(condition, self._partitions.values()))
            )

        count("partition_count", "Replicas on this broker.", lambda p: True)
        count("leader_count", "Partitions that this broker leads.", lambda p: p.is_leader)
        count(
            "under_replicated_partitions",
            "Led here, with replicas out of sync.",
            lambda p: p.machine.is_under_replicated,
        )
        count(
            "under_min_isr_partition_count",
            "Led here, below min.insync.replicas.",
            lambda p: p.machine.is_under_min_isr,
        )
        count("at_min_isr_partition_count", "Led here, at min.insync.replicas.", lambda p: p.machine.is_at_min_isr)
        count(
            "reassigning_partitions", "Led here, being reassigned.", lambda p: p.is_leader and p.machine.is_reassigning
        )

    # -- partitions ---------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions.values())

    def get(self, tp: TopicPartition) -> Partition | None:
        return self._partitions.get(tp)

    def add(self, partition: Partition) -> None:
        self._partitions[partition.tp] = partition

    def remove(self, tp: TopicPartition) -> Partition | None:
        partition = self._partitions.pop(tp, None)
        if partition is not None:
            self.wake_all(partition)
        return partition

    def require(self, tp: TopicPartition) -> Partition:
        """The partition, or the error that sends a client to look for it elsewhere."""
        partition = self._partitions.get(tp)
        if partition is not None:
            return partition
        if self._is_known(tp):
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{tp} is not on broker {self.broker_id}")
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {tp}")

    def elected(self, partition: Partition) -> None:
        """This broker leads from now on. Producers may have batches under way that the leader before has refused."""
        if partition.machine.leader_epoch > 0:
            self._early.elected(partition.tp)

    def counters(self, topic: str) -> TopicCounters:
        counters = self._counters.get(topic)
        if counters is None:
            counters = self._counters[topic] = TopicCounters.of(self._registry, topic)
        return counters

    def forget_topic(self, topic: str) -> None:
        """It was deleted: its counters go, or a broker that sees many topics grows for ever."""
        if self._counters.pop(topic, None) is not None:
            TopicCounters.remove(self._registry, topic)

    # -- produce ------------------------------------------------------------------------------------------------------

    def append(
        self,
        entries: Sequence[AppendEntry],
        *,
        required_acks: int,
        timeout_ms: int,
        origin: Origin,
        on_done: Callable[[list[AppendOutcome]], None],
    ) -> None:
        """Append, and answer when what `required_acks` promises holds. The buffers are not needed after the call."""
        now_ms = self._clock.now_ms()
        outcomes: list[AppendOutcome] = []
        grown: list[tuple[Partition, bool]] = []
        waiting: dict[int, tuple[Partition, int, int]] = {}
        to_flush: list[tuple[AppendOutcome, Log]] = []
        for index, (tp, records, guard, topic_id) in enumerate(entries):
            outcome = AppendOutcome()
            outcomes.append(outcome)
            try:
                partition = self.require(tp)
                if topic_id is not None and partition.topic_id not in (None, topic_id):
                    raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"{tp} is of another topic of that name")
                if not self._early.is_quiet and origin is Origin.CLIENT:
                    code = self._early.code_for(tp, records, partition.log)
                    if code is ErrorCode.NONE and topic_id is not None:
                        code = self._early.code_for(nameless(topic_id, tp.partition), records, partition.log)
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
            if info.duplicate:
                if info.first_offset < 0:
                    # From before a restart: it is here, but nobody knows where. Clients take this for success.
                    outcome.error = ErrorCode.DUPLICATE_SEQUENCE_NUMBER
                continue
            if info.flush_due:
                to_flush.append((outcome, partition.local_log))
            counters = self.counters(tp.topic)
            counters.bytes_in.value += info.size_bytes
            counters.messages_in.value += info.record_count
            grown.append((partition, hw_moved))

        def replicated(errors: _Errors) -> None:
            for index, error in errors.items():
                outcomes[index].error = error
                outcomes[index].base_offset = -1
            on_done(outcomes)

        def written() -> None:
            if not waiting:
                on_done(outcomes)
                return
            keys = [partition for partition, _, _ in waiting.values()]
            operation = DelayedProduce(waiting, replicated)
            self.produce_purgatory.try_complete_else_watch(operation, keys, timeout_ms=timeout_ms)

        if to_flush:
            self._flush_then(to_flush, written)
        else:
            written()
        for partition, hw_moved in grown:
            self.log_end_moved(partition)
            if hw_moved:
                self.high_watermark_moved(partition)

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
        """Append a batch of this broker's own with acks=all, which waits as long as it takes; the first offset.

        Raises `Refused` where nothing was written. Else `on_committed` is called once, before this returns where nobody
        else is in the ISR. A coordinator does this for each request that changes something: one batch, no lists.
        """
        try:
            partition = self.require(tp)
            info, hw_moved = partition.append_as_leader(
                batch, required_acks=-1, origin=origin, now_ms=now_ms, verification_guard=guard
            )
        except (Refused, Malformed, LogDirFault) as error:
            outcome = AppendOutcome()
            self._note_refusal(tp, outcome, error)
            raise Refused(outcome.error, outcome.message) from error
        counters = self.counters(tp.topic)
        counters.bytes_in.value += info.size_bytes
        counters.messages_in.value += info.record_count
        if info.flush_due:
            self._flush_own(partition, info.last_offset + 1, on_committed)
        else:
            self.when_replicated(partition, info.last_offset + 1, partition.machine.leaderships, on_committed)
        self.log_end_moved(partition)
        if hw_moved:
            self.high_watermark_moved(partition)
        return info.first_offset

    def _flush_own(self, partition: Partition, end: int, on_committed: Callable[[ErrorCode], None]) -> None:
        outcome = AppendOutcome()
        leadership = partition.machine.leaderships

        def flushed() -> None:
            if outcome.error is ErrorCode.NONE:
                self.when_replicated(partition, end, leadership, on_committed)
            else:
                on_committed(outcome.error)

        self._flush(outcome, partition.local_log, flushed)

    def when_replicated(
        self, partition: Partition, end: int, leadership: int, on_done: Callable[[ErrorCode], None]
    ) -> None:
        """Call `on_done` when what is below `end` is committed, or with the error that prevents it; at once if known."""
        verdict = partition.machine.check_replicated(end, leadership)
        if verdict is not None:
            on_done(verdict)
            return
        operation = DelayedProduce(
            {0: (partition, end, leadership)}, lambda errors: on_done(errors.get(0, ErrorCode.NONE))
        )
        self.produce_purgatory.watch(operation, (partition,), timeout_ms=NEVER_MS)

    def refused(self, tp: TopicPartition, records: memoryview | bytearray, code: ErrorCode) -> None:
        """A client's batch was refused, here or before it came here: those that follow it may be early."""
        partition = self._partitions.get(tp)
        self._early.refused(tp, records, code, partition.log if partition is not None else None)

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
            self.counters(tp.topic).failed_produce.add()
            log.debug("append to %s refused: %s", tp, error)
            partition = self._partitions.get(tp)
            if partition is not None and partition.log is not None:
                # Clients look whether the log begins after what they wrote last: then they may have been forgotten.
                outcome.log_start_offset = partition.log.log_start_offset

    def _flush_then(self, to_flush: list[tuple[AppendOutcome, Log]], then: Callable[[], None]) -> None:
        """`flush.messages` is reached: the answer waits for the disk; the loop does not."""
        left = len(to_flush)

        def flushed() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                then()

        for outcome, flushed_log in to_flush:
            self._flush(outcome, flushed_log, flushed)

    @staticmethod
    def _flush(outcome: AppendOutcome, flushed_log: Log, then: Callable[[], None]) -> None:
        def flushed(error: Exception | None) -> None:
            if error is not None:
                outcome.error, outcome.message, outcome.base_offset = ErrorCode.KAFKA_STORAGE_ERROR, str(error), -1
            then()

        flushed_log.flusher.flush_then(flushed_log.log_end_offset, flushed)

    # -- fetch --------------------------------------------------------------------------------------------------------

    def fetch(
        self,
        params: FetchParams,
        wanted: Sequence[tuple[CachedPartition, TopicPartition | ErrorCode]],
        on_done: Callable[[list[PartitionRead]], None],
    ) -> WaitingFetch | None:
        """Read, or wait until there is enough to read. Returns the wait, so that a client that goes away ends it."""
        before = self._movements
        reads, readable_bytes, has_news = self._read_all(params, wanted)
        if has_news or params.max_wait_ms <= 0 or not wanted or readable_bytes >= params.min_bytes:
            on_done(reads)
            return None
        positions: list[tuple[Partition, int]] = []
        places: dict[Hashable, int] = {}
        ready: dict[int, int] = {}
        is_follower = params.is_from_follower
        for place, ((_, tp), read) in enumerate(zip(wanted, reads, strict=True)):
            assert not isinstance(tp, ErrorCode)  # an error would have been news
            partition = self._partitions[tp]
            positions.append((partition, partition.machine.leader_epoch))
            key = partition.log_end_key if is_follower else partition
            if read.readable_bytes or key in places:
                # Of a partition that is asked for twice only one has the key: look at both in the end.
                ready[place] = read.readable_bytes
                read.release()
            places.setdefault(key, place)

        def bytes_ready(place: int) -> _MaybeBytes:
            partition, leader_epoch = positions[place]
            if partition.machine.leader_epoch != leader_epoch:
                return None
            return self._bytes_ready(partition, params, wanted[place][0])

        operation = DelayedFetch(
            places,
            ready=ready,
            min_bytes=params.min_bytes,
            bytes_ready=bytes_ready,
            on_done=lambda touched: on_done(self._read_again(params, wanted, positions, reads, touched)),
        )
        if self._movements == before:
            self.fetch_purgatory.watch(operation, places, timeout_ms=params.max_wait_ms)
        else:
            # What this request said about its sender has moved others, who may have written in turn.
            self.fetch_purgatory.try_complete_else_watch(operation, places, timeout_ms=params.max_wait_ms)
        return None if operation.completed else WaitingFetch(self.fetch_purgatory, operation)

    def _read_all(
        self, params: FetchParams, wanted: Sequence[tuple[CachedPartition, TopicPartition | ErrorCode]]
    ) -> tuple[list[PartitionRead], int, bool]:
        """All reads, the bytes that count for `min.bytes`, and whether one of them must be told at once."""
        now_ms = self._clock.now_ms()
        left_bytes = min(params.max_bytes, self.fetch_bytes_max)
        total_bytes = readable_bytes = 0
        has_news = False
        reads: list[PartitionRead] = []
        for want, tp in wanted:
            if isinstance(tp, ErrorCode):
                read = PartitionRead(tp)
            else:
                read = self._read_one(params, want, tp, left_bytes, total_bytes == 0, now_ms)
            reads.append(read)
            if read.size_bytes:
                total_bytes += read.size_bytes
                left_bytes = max(0, left_bytes - read.size_bytes)
            readable_bytes += read.readable_bytes
            if (
                read.error
                or read.diverging_epoch is not None
                or read.preferred_read_replica >= 0
                or read.has_more_segments
            ):
                has_news = True
        return reads, readable_bytes, has_news

    def _read_again(
        self,
        params: FetchParams,
        wanted: Sequence[tuple[CachedPartition, TopicPartition | ErrorCode]],
        positions: Sequence[tuple[Partition, int]],
        reads: list[PartitionRead],
        touched: Container[int],
    ) -> list[PartitionRead]:
        """The wait is over: what was touched meanwhile is read, of the rest only how far it goes now."""
        left_bytes = min(params.max_bytes, self.fetch_bytes_max)
        total_bytes = 0
        for place, (partition, leader_epoch) in enumerate(positions):
            if place not in touched and partition.log is not None and partition.machine.leader_epoch == leader_epoch:
                partition.refresh(reads[place])
                continue
            want, tp = wanted[place]
            assert not isinstance(tp, ErrorCode)
            # Where the sender is was recorded when its request came: this is no news of it.
            read = reads[place] = self._read_one(params, want, tp, left_bytes, total_bytes == 0, None)
            total_bytes += read.size_bytes
            left_bytes = max(0, left_bytes - read.size_bytes)
        return reads

    def _read_one(
        self,
        params: FetchParams,
        want: CachedPartition,
        tp: TopicPartition,
        left_bytes: int,
        min_one_batch: bool,
        record_ms: int | None,
    ) -> PartitionRead:
        """`record_ms`: when a follower's request came, which tells where it is; None where that is known."""
        read: PartitionRead | None = None
        try:
            partition = self.require(tp)
            if isinstance(want.key.topic, bytes) and partition.topic_id not in (None, want.key.topic):
                # A topic of the same name was made anew; its LeaderAndIsr or StopReplica is under way.
                return PartitionRead(ErrorCode.INCONSISTENT_TOPIC_ID)
            if params.replica_id >= 0 and record_ms is not None:
                read = partition.read_nothing(want)
                if read is not None:
                    self._note_follower(partition, params, want, want.fetch_offset, record_ms)
                    return read
            preferred = self._prefers_replica(partition, params, want.fetch_offset)
            if preferred is not None:
                return self._redirect(partition, preferred, want.current_leader_epoch)
            log_end = partition.log.log_end_offset if partition.log is not None else 0
            read = partition.read(
                params,
                fetch_offset=want.fetch_offset,
                current_leader_epoch=want.current_leader_epoch,
                last_fetched_epoch=want.last_fetched_epoch,
                max_bytes=min(want.max_bytes, left_bytes),
                min_one_batch=min_one_batch,
            )
            if params.replica_id >= 0 and record_ms is not None and not read.error and read.diverging_epoch is None:
                self._note_follower(partition, params, want, log_end, record_ms)
            if params.replica_id >= 0 and read.size_bytes and self._holds_back(partition, params):
                read.withhold()
        except (Refused, LogDirFault) as error:
            if read is not None:
                read.release()
            return PartitionRead(error.code if isinstance(error, Refused) else ErrorCode.KAFKA_STORAGE_ERROR)
        return read

    def _holds_back(self, partition: Partition, params: FetchParams) -> bool:
        """A replication throttle is used up, and it is not a replica in sync that asks."""
        return self._is_throttled(partition.tp) and params.replica_id not in partition.machine.isr

    def _note_follower(
        self, partition: Partition, params: FetchParams, want: CachedPartition, log_end: int, now_ms: int
    ) -> None:
        recorded = partition.record_follower_fetch(
            params,
            fetch_offset=want.fetch_offset,
            follower_log_start=want.follower_log_start,
            log_end=log_end,
            now_ms=now_ms,
        )
        if recorded.propose is not None:
            self._submit_isr_change(partition, recorded.propose)
        if recorded.hw_moved:
            self.high_watermark_moved(partition)
        if recorded.log_start_moved:
            self.delete_records_purgatory.check(partition)

    @staticmethod
    def _redirect(partition: Partition, preferred: int, current_leader_epoch: int) -> PartitionRead:
        error = partition.machine.check_leader_epoch(current_leader_epoch, require_leader=False)
        if error is not ErrorCode.NONE:
            return PartitionRead(error)
        read = PartitionRead()
        log = partition.local_log
        read.high_watermark, read.last_stable_offset = log.high_watermark, log.last_stable_offset
        read.log_start_offset = log.log_start_offset
        read.preferred_read_replica = preferred
        return read

    def _bytes_ready(self, partition: Partition, params: FetchParams, want: CachedPartition) -> int | None:
        offset = want.fetch_offset
        if partition.log is None or partition.machine.check_leader_epoch(NO_EPOCH, require_leader=False):
            return None  # failed, deleted or stopped
        bound = partition.read_bound(params)
        if bound <= offset:
            return None if offset > partition.log.log_end_offset else 0
        if params.replica_id >= 0 and self._holds_back(partition, params):
            return 0
        if params.min_bytes <= 1:
            return 1
        try:
            found = partition.log.read(offset, max_bytes=want.max_bytes, max_offset=bound, min_one_batch=True)
        except (Refused, LogDirFault):
            return None
        found.release()
        if found.is_cut:
            return max(found.size_bytes, want.max_bytes)
        return None if found.size_bytes and found.upper_offset < bound else found.size_bytes

    # -- delete records -----------------------------------------------------------------------------------------------

    def delete_records(
        self,
        entries: Sequence[tuple[TopicPartition, int]],
        *,
        timeout_ms: int,
        on_done: Callable[[list[tuple[ErrorCode, int]]], None],
    ) -> None:
        """Move log starts on all replicas; answers (error, low watermark) for each entry."""
        answers: list[tuple[ErrorCode, int]] = []
        waiting: dict[int, tuple[Partition, int]] = {}
        for index, (tp, offset) in enumerate(entries):
            try:
                partition = self.require(tp)
                waiting[index] = (partition, partition.delete_records(offset))
                answers.append((ErrorCode.NONE, -1))
            except Refused as refusal:
                answers.append((refusal.code, -1))
            except LogDirFault:
                answers.append((ErrorCode.KAFKA_STORAGE_ERROR, -1))

        def done(errors: dict[int, ErrorCode]) -> None:
            for index, (partition, _) in waiting.items():
                error = errors.get(index, ErrorCode.NONE)
                answers[index] = (error, -1 if error else partition.low_watermark())
            on_done(answers)

        self.delete_records_purgatory.try_complete_else_watch(
            DelayedDeleteRecords(waiting, done), [p for p, _ in waiting.values()], timeout_ms=timeout_ms
        )

    # -- settings -----------------------------------------------------------------------------------------------------

    def topic_settings_changed(self, topic: str) -> None:
        """The logs have the new settings. `topic` is empty if every topic's may have changed."""
        now_ms = self._clock.now_ms()
        for partition in self._partitions.values():
            if partition.log is not None and topic in ("", partition.tp.topic):
                moved = partition.machine.set_min_insync_replicas(
                    partition.log.config.min_insync_replicas, log_end=partition.log.log_end_offset, now_ms=now_ms
                )
                if moved:
                    self.high_watermark_moved(partition)

    # -- waking -------------------------------------------------------------------------------------------------------

    def log_end_moved(self, partition: Partition) -> None:
        self._movements += 1
        self.fetch_purgatory.check(partition.log_end_key)

    def high_watermark_moved(self, partition: Partition) -> None:
        self._movements += 1
        self.produce_purgatory.check(partition)
        self.fetch_purgatory.check(partition)

    def wake_all(self, partition: Partition) -> None:
        """The partition changed its role or is gone: whoever waits for it must look again."""
        self.high_watermark_moved(partition)
        self.log_end_moved(partition)
        self.delete_records_purgatory.check(partition)

    def isr_settled(self, partition: Partition, settled: IsrSettled) -> None:
        if settled.hw_moved:
            self.high_watermark_moved(partition)

    def tick(self, partitions: Iterable[Partition] | None = None) -> None:
        """Now and then: followers that lag leave the ISR."""
        self._early.forget_old()
        now_ms = self._clock.now_ms()
        for partition in list(self._partitions.values() if partitions is None else partitions):
            hw_moved, proposal = partition.tick(now_ms)
            if proposal is not None:
                log.info("proposing to shrink the ISR of %s to %s", partition.tp, sorted(proposal.broker_ids))
                self._submit_isr_change(partition, proposal)
            if hw_moved:
                self.high_watermark_moved(partition)
