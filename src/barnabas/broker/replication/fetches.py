"""Reads from the partitions on this broker, for consumers and followers, and the wait for more records.

Owner: the event loop. A Fetch runs here without a coroutine or a queue, in one pass over its partitions.
"""

from collections.abc import Callable, Container, Hashable, Sequence
from itertools import chain
from typing import NamedTuple

from barnabas.base.clock import Clock
from barnabas.base.errors import ErrorCode, LogDirFault, Refused
from barnabas.base.ids import NO_EPOCH, TopicPartition
from barnabas.broker.replication.delayed import DelayedFetch
from barnabas.broker.replication.fetch_session_cache import CachedPartition, FetchSession
from barnabas.broker.replication.hosted import HostedPartitions
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.reads import FetchParams, PartitionRead
from barnabas.broker.replication.remote_reads import RemoteReads
from barnabas.broker.replication.state import ProposeIsr
from barnabas.broker.runtime.purgatory import DelayedOperation, Purgatory

# This is a name because Python evaluates the annotations of an inner function at each call.
_MaybeBytes = int | None


class WaitingFetch(NamedTuple):
    purgatory: Purgatory
    operation: DelayedOperation
    #: The reads for the answer so far.
    reads: Sequence[PartitionRead] = ()

    def cancel(self) -> None:
        """Release what was read because the client has disconnected, so that its files are closed."""
        if not self.operation.completed:
            self.purgatory.cancel(self.operation)
            for read in self.reads:
                read.release()


class Fetches:
    def __init__(
        self,
        hosted: HostedPartitions,
        clock: Clock,
        *,
        bytes_max: int,
        submit_isr_change: Callable[[Partition, ProposeIsr], None],
        prefers_replica: Callable[[Partition, FetchParams, int], int | None],
        is_throttled: Callable[[TopicPartition], bool],
    ) -> None:
        """`prefers_replica` chooses the replica for a consumer that names its rack. `is_throttled` says whether a partition's
        records are withheld from followers that are not in sync."""
        self._hosted = hosted
        self._clock = clock
        self._bytes_max = bytes_max
        self._submit_isr_change = submit_isr_change
        self._prefers_replica = prefers_replica
        self._is_throttled = is_throttled
        #: Reads records from the tier; None: this broker has no tier.
        self.tier: RemoteReads | None = None

    def fetch(
        self,
        params: FetchParams,
        wanted: list[tuple[CachedPartition, TopicPartition | ErrorCode]],
        on_done: Callable[[list[PartitionRead]], None],
        *,
        session: FetchSession | None = None,
    ) -> WaitingFetch | None:
        """Read, or wait until there is enough to read. Returns the wait, so that it can be cancelled when the client
        disconnects.

        `session`: a follower's session, in which partitions may rest; partitions that wake meanwhile are added to `wanted`. If
        `max_wait_ms` is negative, the answer has only what is on this broker now; otherwise it waits for the tier.
        """
        before = self._hosted.movements
        reads, readable_bytes, has_news = self._read_all(params, wanted)
        has_nothing = not wanted and session is None
        if has_news and self.tier is not None and params.max_wait_ms >= 0:
            bytes_max = min(params.max_bytes, self._bytes_max)
            in_tier = self.tier.fetch(params, wanted, reads, bytes_max, on_done)
            if in_tier is not None:
                return WaitingFetch(self.tier.purgatory, in_tier, reads)
        if has_news or params.max_wait_ms <= 0 or has_nothing or readable_bytes >= params.min_bytes:
            on_done(reads)
            return None
        positions: list[tuple[Partition | None, int]] = []
        places: dict[Hashable, int] = {}
        ready: dict[int, int] = {}
        is_follower = params.is_from_follower
        for place, ((_, tp), read) in enumerate(zip(wanted, reads, strict=True)):
            assert not isinstance(tp, ErrorCode)  # an error would have counted as news
            partition = self._hosted.partitions[tp]
            positions.append((partition, partition.machine.leader_epoch))
            key = partition.log_end_key if is_follower else partition
            if read.readable_bytes or key in places:
                # If a partition is in the request twice, only one entry has the key: read both at the end.
                ready[place] = read.readable_bytes
                read.release()
            places.setdefault(key, place)

        def bytes_ready(place: int) -> _MaybeBytes:
            partition, leader_epoch = positions[place]
            if partition is None or partition.machine.leader_epoch != leader_epoch:
                return None
            return self._bytes_ready(partition, params, wanted[place][0])

        def join_woken(operation: DelayedFetch) -> Sequence[int]:
            if session is None:
                return ()
            first = len(wanted)
            for want in session.woken:
                assert want.tp is not None  # the entry has rested, so its partition was found
                partition = self._hosted.get(want.tp)
                if partition is not None:
                    places.setdefault(partition.log_end_key, len(wanted))
                    purgatory.watch_also(operation, partition.log_end_key)
                positions.append((partition, want.current_leader_epoch))
                wanted.append((want, want.tp))
                reads.append(PartitionRead())
            session.woken.clear()
            return range(first, len(wanted))

        operation = DelayedFetch(
            places,
            ready=ready,
            min_bytes=params.min_bytes,
            bytes_ready=bytes_ready,
            session=session,
            join_woken=join_woken,
            on_done=lambda touched: on_done(self._read_again(params, wanted, positions, reads, touched)),
        )
        purgatory = self._hosted.fetch_purgatory
        # `join_woken` runs when the wait begins, so partitions that have woken by then are included.
        keys = places if session is None else chain((session,), places)
        if self._hosted.movements == before:
            purgatory.watch(operation, keys, timeout_ms=params.max_wait_ms)
        else:
            # Recording this follower's position has moved others' high watermarks, and their producers may have written again.
            purgatory.try_complete_else_watch(operation, keys, timeout_ms=params.max_wait_ms)
        return None if operation.completed else WaitingFetch(purgatory, operation)

    def _read_all(
        self, params: FetchParams, wanted: Sequence[tuple[CachedPartition, TopicPartition | ErrorCode]]
    ) -> tuple[list[PartitionRead], int, bool]:
        """Read all; return the reads, the bytes that count for `min.bytes`, and whether a read must be answered at once."""
        now_ms = self._clock.now_ms()
        left_bytes = min(params.max_bytes, self._bytes_max)
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
        positions: Sequence[tuple[Partition | None, int]],
        reads: list[PartitionRead],
        touched: Container[int],
    ) -> list[PartitionRead]:
        """After the wait, read the changed partitions again; refresh only the offsets of the others."""
        left_bytes = min(params.max_bytes, self._bytes_max)
        total_bytes = 0
        for place, (partition, leader_epoch) in enumerate(positions):
            if (
                place not in touched
                and partition is not None
                and partition.log is not None
                and partition.machine.leader_epoch == leader_epoch
            ):
                partition.refresh(reads[place])
                continue
            want, tp = wanted[place]
            assert not isinstance(tp, ErrorCode)
            # The follower's position was recorded when its request came: None means that this is not a new request.
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
        """`record_ms`: when a follower's request came, to record its position; None if that was done."""
        read: PartitionRead | None = None
        try:
            partition = self._hosted.partitions.get(tp) or self._hosted.require(tp)
            if isinstance(want.key.topic, bytes) and partition.topic_id not in (None, want.key.topic):
                # A topic of the same name was created again, and its LeaderAndIsr or StopReplica is on the way.
                return PartitionRead(ErrorCode.INCONSISTENT_TOPIC_ID)
            if params.replica_id >= 0 and record_ms is not None:
                read = partition.read_nothing(want)
                if read is not None:
                    self._note_follower(partition, params, want, want.fetch_offset, record_ms)
                    return read
            if params.client_rack:
                preferred = self._prefers_replica(partition, params, want.fetch_offset)
                if preferred is not None:
                    return self._redirect(partition, preferred, want.current_leader_epoch)
            log_end = partition.log.log_end_offset if partition.log is not None else 0
            read = partition.read(params, want, min(want.max_bytes, left_bytes), min_one_batch)
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
        """Whether the replication throttle is used up and the request does not come from a replica in sync."""
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
            self._hosted.high_watermark_moved(partition)
        if recorded.log_start_moved:
            self._hosted.delete_records_purgatory.check(partition)

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
