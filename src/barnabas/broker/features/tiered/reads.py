"""Reads of partitions whose records are in the tier: fetches that wait for it, timestamps, and the start of new replicas.

Owner: the event loop. A fetch waits for its partitions in the tier for `remote.fetch.max.wait.ms`, then it is answered with
the records read so far. The reads go on: their chunks are cached for the client's next fetch. Other fetches do not wait.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from barnabas.base.errors import BarnabasError, ErrorCode, LogDirFault, Refused
from barnabas.base.ids import TopicPartition
from barnabas.base.metrics.registry import Registry
from barnabas.base.words import MAX_TIMESTAMP, READ_COMMITTED
from barnabas.broker.features.tiered.metadata_cache import RemoteLogMetadataCache
from barnabas.broker.features.tiered.metrics import TierMetrics
from barnabas.broker.features.tiered.reader import NotInTier, TierReader, TierView
from barnabas.broker.features.tiered.store import StoreFault
from barnabas.broker.replication.fetch_session_cache import CachedPartition
from barnabas.broker.replication.hosted import HostedPartitions
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.reads import FetchParams, PartitionRead, TieredRead, Wanted
from barnabas.broker.runtime.purgatory import DelayedOperation, Purgatory
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.runtime.timers import Timers
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.log_types import ReadResult, TimestampedOffset
from barnabas.broker.storage.txn_index import AbortedTxn

log = logging.getLogger(__name__)

#: Partitions of one operation that `/inside` shows.
NAMED_MAX: Final = 20


class DelayedTierFetch(DelayedOperation):
    """Completes when every partition in the tier was read, or after the time limit. Later results are dropped."""

    __slots__ = ("_on_done", "waiting")

    def __init__(self, waiting: dict[TieredRead, TopicPartition], on_done: Callable[[bool], None]) -> None:
        """`on_done(expired)`"""
        super().__init__()
        self.waiting = waiting
        self._on_done = on_done

    def waits_for(self) -> dict[str, Any]:
        named = list(self.waiting.values())[:NAMED_MAX]
        return {
            "condition": "remote storage",
            "count": len(self.waiting),
            "partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in named],
        }

    def is_satisfied(self) -> bool:
        return not self.waiting

    def on_complete(self, *, expired: bool) -> None:
        self._on_done(expired)


class TierReads:
    def __init__(
        self,
        hosted: HostedPartitions,
        reader: TierReader,
        *,
        segments_of: Callable[[Log], RemoteLogMetadataCache | None],
        timers: Timers,
        registry: Registry,
        metrics: TierMetrics,
        spawn: Spawn,
        max_wait_ms: Callable[[], int],
        reads_max: int,
    ) -> None:
        """`segments_of` returns a log's segments in the tier; None if they are not known yet."""
        self._hosted = hosted
        self.reader = reader
        self._segments_of = segments_of
        self._spawn = spawn
        self._max_wait_ms = max_wait_ms
        self._reads_max = reads_max
        self._metrics = metrics
        self._reading = 0
        #: Partitions whose last read failed: a long outage of the store is logged once.
        self._failing: set[TopicPartition] = set()
        self.purgatory = Purgatory("RemoteFetch", timers)
        registry.gauge(
            "kafka_server_purgatory_size",
            "Waiting requests.",
            self.purgatory.__len__,
            delayed_operation=self.purgatory.name,
        )
        self._expired = registry.counter(
            "kafka_server_delayed_remote_fetch_expires",
            "Fetches whose reads of the tier did not finish in time.",
        )
        registry.gauge(
            "kafka_log_remote_reader_task_queue_size", "Reads of the tier in progress.", lambda: self._reading
        )

    def _view(self, of: Log) -> TierView | None:
        segments = self._segments_of(of)
        return None if segments is None else TierView(of, segments)

    # -- fetches ------------------------------------------------------------------------------------------------------

    def fetch(
        self,
        params: FetchParams,
        wanted: Wanted,
        reads: list[PartitionRead],
        bytes_max: int,
        on_done: Callable[[list[PartitionRead]], None],
    ) -> DelayedTierFetch | None:
        """Start reads of the partitions that are in the tier, and answer afterwards. None: no partition is in the tier."""
        tiered = [(place, read) for place, read in enumerate(reads) if isinstance(read, TieredRead)]
        if not tiered:
            return None
        has_some = any(read.size_bytes for read in reads)
        left_bytes = bytes_max - sum(read.size_bytes for read in reads)
        waiting: dict[TieredRead, TopicPartition] = {}
        begun: list[tuple[CachedPartition, TopicPartition, TieredRead]] = []
        for place, read in tiered:
            want, tp = wanted[place]
            assert not isinstance(tp, ErrorCode)
            read.max_bytes, read.min_one_batch = min(read.max_bytes, left_bytes), not has_some
            if left_bytes <= 0 and has_some:
                continue  # the answer is full: the client will ask again
            has_some = True
            left_bytes -= read.max_bytes
            waiting[read] = tp
            begun.append((want, tp, read))
        if not begun:
            return None

        def done(expired: bool) -> None:
            self._expired.value += expired
            on_done(reads)

        operation = DelayedTierFetch(waiting, done)
        self.purgatory.watch(operation, list(waiting), timeout_ms=self._max_wait_ms())
        for want, tp, read in begun:
            if self._reading < self._reads_max:
                self._reading += 1
                self._spawn(self._fetch_one(operation, params, want, tp, read), f"read {tp} in the tier")
        return operation

    async def _fetch_one(
        self,
        operation: DelayedTierFetch,
        params: FetchParams,
        want: CachedPartition,
        tp: TopicPartition,
        read: TieredRead,
    ) -> None:
        self._metrics.of(tp.topic).fetch_requests.value += 1
        found: ReadResult | None = None
        try:
            partition = self._hosted.require(tp)
            of, leader_epoch = partition.local_log, partition.machine.leader_epoch
            view = self._view(of)
            if view is None:
                return  # the tier's content is unknown: the client asks again after the wait
            bound = partition.read_bound(params)
            found = await self.reader.read(
                view, want.fetch_offset, max_bytes=read.max_bytes, max_offset=bound, min_one_batch=read.min_one_batch
            )
            aborted: list[AbortedTxn] | None = None
            if params.isolation_level == READ_COMMITTED:
                aborted = await self.reader.aborted_transactions(view, want.fetch_offset, found.upper_offset)
            self._failing.discard(tp)
            if not operation.completed:
                self._check_again(tp, partition, of, leader_epoch, want.fetch_offset)
                self._fill(partition, read, found, aborted)
                found = None
                self._settle(operation, read)
        except NotInTier as missing:
            log.warning("%s", missing)
            self._settle(operation, read, ErrorCode.OFFSET_OUT_OF_RANGE)
        except StoreFault as fault:
            # Wait for the rest of the time: a client that gets an error at once would retry at once.
            read.error = ErrorCode.KAFKA_STORAGE_ERROR
            self._failed(tp, fault)
        except Refused as refusal:
            self._settle(operation, read, refusal.code)
        except LogDirFault:
            self._settle(operation, read, ErrorCode.KAFKA_STORAGE_ERROR)
        finally:
            self._reading -= 1
            if found is not None:
                found.release()

    def _check_again(
        self, tp: TopicPartition, partition: Partition, of: Log, leader_epoch: int, fetch_offset: int
    ) -> None:
        """Check leadership and log start again after a read: they may have changed."""
        if (
            self._hosted.get(tp) is not partition
            or partition.log is not of
            or partition.machine.leader_epoch != leader_epoch
        ):
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{tp} changed while it was read")
        if fetch_offset < of.log_start_offset:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE, f"{tp}: {fetch_offset} is before the log start")

    def _fill(
        self, partition: Partition, read: TieredRead, found: ReadResult, aborted: list[AbortedTxn] | None
    ) -> None:
        partition.refresh(read)
        read.ranges = found.ranges
        read.size_bytes = read.readable_bytes = found.size_bytes
        read.aborted_transactions = aborted
        self._metrics.of(partition.tp.topic).fetched_bytes.value += found.size_bytes

    def _settle(self, operation: DelayedTierFetch, read: TieredRead, error: ErrorCode = ErrorCode.NONE) -> None:
        if not operation.completed:
            read.error = error
            operation.waiting.pop(read, None)
            self.purgatory.check(read)

    def _failed(self, tp: TopicPartition, fault: BarnabasError) -> None:
        self._metrics.of(tp.topic).fetch_errors.value += 1
        level = logging.DEBUG if tp in self._failing else logging.ERROR
        self._failing.add(tp)
        log.log(level, "[tier %s] cannot read records: %s", tp, fault)

    # -- ListOffsets --------------------------------------------------------------------------------------------------

    def may_have(self, partition: Partition) -> bool:
        """Whether some records are in the tier only."""
        of = partition.log
        return of is not None and of.log_start_offset < of.local_log_start_offset

    async def offset_for(self, partition: Partition, timestamp: int) -> TimestampedOffset | None:
        """Return the first record below the local start that is late enough, or (`MAX_TIMESTAMP`) the latest one, if no local
        record is later. None: look in the local log. Raises `Refused`."""
        of = partition.local_log
        view = self._view(of)
        if view is None:
            raise Refused(ErrorCode.OFFSET_NOT_AVAILABLE, f"{partition.tp}: its content in the tier is not known yet")
        if timestamp == MAX_TIMESTAMP:
            local = of.offset_of_max_timestamp()
            timestamp = self.reader.max_timestamp(view)
            if timestamp < 0 or (local is not None and local.timestamp > timestamp):
                return None
        try:
            return await self.reader.offset_for_timestamp(view, timestamp)
        except StoreFault as fault:
            self._failed(partition.tp, fault)
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(fault)) from fault

    # -- followers ----------------------------------------------------------------------------------------------------

    async def begin(
        self,
        tp: TopicPartition,
        *,
        local_start: int,
        epoch: int,
        log_start: int,
        is_wanted: Callable[[], bool],
    ) -> None:
        """Let a follower begin where the tier ends, if `is_wanted` still says so. Raises `Refused` to have it retried."""
        counters = self._metrics.of(tp.topic)
        counters.begin_requests.add()
        try:
            await self._begin(tp, local_start, epoch, log_start, is_wanted)
        except BarnabasError:
            counters.begin_errors.add()
            raise

    async def _begin(
        self, tp: TopicPartition, local_start: int, epoch: int, log_start: int, is_wanted: Callable[[], bool]
    ) -> None:
        partition = self._hosted.require(tp)
        segments = self._segments_of(partition.local_log)
        segment = None if segments is None else segments.segment_for(epoch, local_start - 1)
        if segment is None:
            raise Refused(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"offset {local_start - 1} of leader epoch {epoch} is not in the tier yet",
            )
        try:
            start = await self.reader.start_after(segment, log_start_offset=log_start)
        except StoreFault as fault:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(fault)) from fault
        await partition.start_from_tier(start, is_wanted=is_wanted)
