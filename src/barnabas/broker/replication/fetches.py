"""Reads from the partitions on this broker, for consumers and followers, and the wait for more records.

Owner: the event loop. A Fetch runs here without a coroutine or a queue, in one pass over its partitions.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

from barnabas.base.clock import Clock
from barnabas.base.errors import ErrorCode, LogDirFault, Refused
from barnabas.base.ids import TopicPartition
from barnabas.broker.replication.delayed import DelayedFetch
from barnabas.broker.replication.fetch_session_cache import CachedPartition, FetchSession
from barnabas.broker.replication.hosted import HostedPartitions
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.reads import NOTHING_NEW, FetchParams, PartitionRead
from barnabas.broker.replication.remote_reads import RemoteReads
from barnabas.broker.replication.state import ProposeIsr, Role
from barnabas.broker.runtime.purgatory import DelayedOperation, Purgatory


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
        self.hosted = hosted
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
        before = self.hosted.movements
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
        operation = _LongPoll(self, params, wanted, reads, session, on_done)
        purgatory = self.hosted.fetch_purgatory
        # The session gives up the partitions that have woken when the wait begins, so they are included.
        keys: Iterable[Hashable] = operation.places if session is None else (session, *operation.places)
        if self.hosted.movements == before:
            purgatory.watch(operation, keys, timeout_ms=params.max_wait_ms)
        else:
            # Recording this follower's position has moved others' high watermarks, and their producers may have written again.
            purgatory.try_complete_else_watch(operation, keys, timeout_ms=params.max_wait_ms)
        return None if operation.completed else WaitingFetch(purgatory, operation)

    def _read_all(
        self, params: FetchParams, wanted: Sequence[tuple[CachedPartition, TopicPartition | ErrorCode]]
    ) -> tuple[list[PartitionRead], int, bool]:
        """Read all; return the reads, the bytes that count for `min.bytes`, and whether a read must be answered at once."""
        partitions = self.hosted.partitions
        is_follower = params.replica_id >= 0
        now_ms = self._clock.now_ms() if is_follower else None
        may_have_nothing = not is_follower and not params.client_rack
        left_bytes = min(params.max_bytes, self._bytes_max)
        total_bytes = readable_bytes = 0
        has_news = False
        reads: list[PartitionRead] = []
        for want, tp in wanted:
            if tp.__class__ is not TopicPartition:
                reads.append(PartitionRead(tp))  # type: ignore[arg-type]  # an error
                has_news = True
                continue
            partition = partitions.get(tp)
            if may_have_nothing and partition is not None and partition.has_nothing_new(want):
                reads.append(NOTHING_NEW)
                continue
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

    def read_again(self, poll: "_LongPoll") -> list[PartitionRead]:
        """After the wait, read the changed partitions again; refresh only the offsets of the others."""
        params, reads = poll.params, poll.reads
        left_bytes = min(params.max_bytes, self._bytes_max)
        total_bytes = 0
        for place, (partition, leader_epoch) in enumerate(poll.positions):
            want, tp = poll.wanted[place]
            if (
                place not in poll.ready
                and partition is not None
                and partition.log is not None
                and partition.machine.leader_epoch == leader_epoch
            ):
                log = partition.log
                if reads[place] is not NOTHING_NEW:
                    partition.refresh(reads[place])
                elif log.high_watermark != want.sent_high_watermark or log.log_start_offset != want.sent_log_start:
                    reads[place] = partition.offsets()
                continue
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
            partition = self.hosted.partitions.get(tp) or self.hosted.require(tp)
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
        return params.replica_id not in partition.machine.isr and self._is_throttled(partition.tp)

    def _note_follower(
        self, partition: Partition, params: FetchParams, want: CachedPartition, log_end: int, now_ms: int
    ) -> None:
        recorded = partition.machine.record_follower_fetch(
            params.replica_id,  # type: ignore[arg-type]  # a broker's id
            want.fetch_offset,
            want.follower_log_start,
            params.replica_epoch,
            log_end,
            now_ms,
        )
        if recorded.propose is not None:
            self._submit_isr_change(partition, recorded.propose)
        if recorded.hw_moved:
            self.hosted.high_watermark_moved(partition)
        if recorded.log_start_moved:
            self.hosted.delete_records_purgatory.check(partition)

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

    def bytes_ready(self, partition: Partition, params: FetchParams, want: CachedPartition) -> int | None:
        """Return how many bytes can be read now, as far as `min.bytes` needs to know; None: answer at once."""
        offset, log = want.fetch_offset, partition.log
        if log is None or partition.machine.role not in (Role.LEADER, Role.FOLLOWER):
            return None  # failed, deleted or stopped
        bound = partition.read_bound(params)
        if bound <= offset:
            return None if offset > log.log_end_offset else 0
        if params.replica_id >= 0 and self._holds_back(partition, params):
            return 0
        if params.min_bytes <= 1:
            return 1
        try:
            found = log.read(offset, max_bytes=want.max_bytes, max_offset=bound, min_one_batch=True)
        except (Refused, LogDirFault):
            return None
        found.release()
        if found.is_cut:
            return max(found.size_bytes, want.max_bytes)
        return None if found.size_bytes and found.upper_offset < bound else found.size_bytes


class _LongPoll(DelayedFetch):
    """A fetch that waits, with what its answer needs."""

    __slots__ = ("_fetches", "_on_done", "params", "positions", "reads", "wanted")

    def __init__(
        self,
        fetches: Fetches,
        params: FetchParams,
        wanted: list[tuple[CachedPartition, TopicPartition | ErrorCode]],
        reads: list[PartitionRead],
        session: FetchSession | None,
        on_done: Callable[[list[PartitionRead]], None],
    ) -> None:
        self._fetches = fetches
        self._on_done = on_done
        self.params = params
        self.wanted = wanted
        self.reads = reads
        #: The partition of each entry, and its epoch when the wait began.
        self.positions: list[tuple[Partition | None, int]] = []
        places: dict[Hashable, int] = {}
        ready: dict[int, int] = {}
        partitions = fetches.hosted.partitions
        is_follower = params.replica_id >= 0
        for place, (_, tp) in enumerate(wanted):
            # An error instead of a partition would have counted as news.
            partition = partitions[tp]  # type: ignore[index]
            self.positions.append((partition, partition.machine.leader_epoch))
            key: Hashable = partition.log_end_key if is_follower else partition
            read = reads[place]
            if read.readable_bytes or key in places:
                # If a partition is in the request twice, only one entry has the key: read both at the end.
                ready[place] = read.readable_bytes
                read.release()
            places.setdefault(key, place)
        super().__init__(places, ready=ready, min_bytes=params.min_bytes, session=session)

    def bytes_ready(self, place: int) -> int | None:
        partition, leader_epoch = self.positions[place]
        if partition is None or partition.machine.leader_epoch != leader_epoch:
            return None
        return self._fetches.bytes_ready(partition, self.params, self.wanted[place][0])

    def join_woken(self) -> Sequence[int]:
        session = self.session
        if session is None or not session.woken:
            return ()
        first = len(self.wanted)
        hosted = self._fetches.hosted
        for want in session.woken:
            assert want.tp is not None  # the entry has rested, so its partition was found
            partition = hosted.get(want.tp)
            if partition is not None:
                self.places.setdefault(partition.log_end_key, len(self.wanted))
                hosted.fetch_purgatory.watch_also(self, partition.log_end_key)
            self.positions.append((partition, want.current_leader_epoch))
            self.wanted.append((want, want.tp))
            self.reads.append(PartitionRead())
        session.woken.clear()
        return range(first, len(self.wanted))

    def on_complete(self, *, expired: bool) -> None:
        self._on_done(self._fetches.read_again(self))
