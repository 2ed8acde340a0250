"""One replica on this broker: connects the machine, which decides, with the log, which stores.

Owner: the event loop. Every method that moves the high watermark or the log end reports that in its result; the manager wakes
the waiting requests.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from barnabas.base.clock import Clock
from barnabas.base.errors import BrokenInvariant, ErrorCode, LogDirFault, Refused
from barnabas.base.host import descriptors
from barnabas.base.ids import NO_EPOCH, BrokerId, LeaderEpoch, Offset, TopicId, TopicPartition
from barnabas.base.words import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    READ_COMMITTED,
)
from barnabas.broker.replication.fetch_session_cache import CachedPartition, FetchSession
from barnabas.broker.replication.log_waits import cut
from barnabas.broker.replication.machine import PartitionMachine
from barnabas.broker.replication.reads import DivergingEpoch, FetchParams, PartitionRead, TieredRead
from barnabas.broker.replication.state import PartitionLeadership, ProposeIsr, Role
from barnabas.broker.replication.topic_counters import TopicCounters
from barnabas.broker.storage.epoch_cache import EpochEnd, EpochEntry
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.log_tier import TierStart
from barnabas.broker.storage.log_types import AppendInfo, Origin, TimestampedOffset


class LogEndKey:
    """The key under which followers' long polls wait for a partition's log end. Hashed by identity, which costs least."""

    __slots__ = ("tp",)

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp


class Partition:
    __slots__ = (
        "_clock",
        "_on_high_watermark",
        "counters",
        "future_log",
        "log",
        "log_end_key",
        "machine",
        "resting",
        "topic_id",
        "tp",
    )

    def __init__(
        self,
        tp: TopicPartition,
        machine: PartitionMachine,
        clock: Clock,
        *,
        on_high_watermark: Callable[["Partition"], None],
    ) -> None:
        """`on_high_watermark` is called when a follower's append or a flush moves the high watermark. A leader's other methods
        return whether it moved."""
        self.tp = tp
        self.topic_id: TopicId | None = None
        self.machine = machine
        self._clock = clock
        self._on_high_watermark = on_high_watermark
        #: None until the controller makes this broker a replica, and after its directory has failed.
        self.log: Log | None = None
        #: The copy in another log directory while the replica is moved there (AlterReplicaLogDirs).
        self.future_log: Log | None = None
        #: Long polls of followers watch this key; those of consumers watch the partition itself.
        self.log_end_key = LogEndKey(tp)
        #: The counters of the topic; None until something is counted.
        self.counters: TopicCounters | None = None
        #: Entries of followers' sessions that skip this partition until it is stirred.
        self.resting: list[CachedPartition] = []

    def __repr__(self) -> str:
        return f"Partition({self.tp}, {self.machine.role.value}, epoch {self.machine.leader_epoch})"

    def attach(self, log: Log) -> None:
        """Set the log, which keeps this replica's records and its high watermark."""
        self.log = self.machine.log = log

    @property
    def is_leader(self) -> bool:
        return self.machine.role is Role.LEADER

    @property
    def local_log(self) -> Log:
        if self.log is None:
            code = (
                ErrorCode.KAFKA_STORAGE_ERROR if self.machine.role is Role.OFFLINE else ErrorCode.NOT_LEADER_OR_FOLLOWER
            )
            raise Refused(code, f"no log of {self.tp} here")
        return self.log

    def leader_log(self, current_leader_epoch: int = NO_EPOCH) -> Log:
        """Return the log, if this broker leads, and in the caller's epoch if it has one."""
        error = self.machine.check_leader_epoch(current_leader_epoch, require_leader=True)
        if error is not ErrorCode.NONE:
            raise Refused(error, f"{self.tp}: {error.name.lower()}, this broker has epoch {self.machine.leader_epoch}")
        return self.local_log

    # -- roles --------------------------------------------------------------------------------------------------------

    def become_leader(self, state: PartitionLeadership, *, now_ms: int) -> bool:
        """Lead; return whether this broker did not lead in this epoch before."""
        log = self.local_log
        started = self.machine.become_leader(state, log_end=log.log_end_offset, now_ms=now_ms)
        if started.is_new_epoch:
            log.assign_epoch_start(self.machine.leader_epoch, started.epoch_start)
        return started.applied and started.is_new_epoch

    def become_follower(self, state: PartitionLeadership) -> bool:
        """Follow; return whether the fetcher must start over."""
        return self.machine.become_follower(state).is_new_epoch

    # -- for fetchers ---------------------------------------------------------------------------

    @property
    def log_start(self) -> Offset:
        return (self.log or self.local_log).log_start_offset

    @property
    def tier_end(self) -> Offset:
        log = self.local_log
        return log.local_log_start_offset if log.is_tiered else log.log_start_offset

    @property
    def log_end(self) -> Offset:
        return (self.log or self.local_log).log_end_offset

    @property
    def high_watermark(self) -> Offset:
        return self.machine.high_watermark

    @property
    def latest_epoch(self) -> LeaderEpoch | None:
        return (self.log or self.local_log).latest_epoch

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        return self.local_log.end_offset_for_epoch(epoch)

    # -- writing ------------------------------------------------------------------------------------------------------

    def append_as_leader(
        self,
        records: memoryview | bytearray,
        required_acks: int,
        origin: Origin,
        now_ms: int,
        verification_guard: object | None = None,
    ) -> tuple[AppendInfo, bool]:
        """Append a batch; return the result, and whether the high watermark moved."""
        machine = self.machine
        if machine.role is not Role.LEADER or required_acks == -1:
            error = machine.check_append(required_acks)
            if error is not ErrorCode.NONE:
                raise Refused(error, self._why_not_appended(error))
        log = self.log or self.local_log
        try:
            info = log.append_as_leader(records, machine.leader_epoch, now_ms, origin, verification_guard)
        except Refused as refused:
            raise self._error_for_gap(refused, now_ms) from refused
        try:
            return info, machine.record_append(log.log_end_offset, now_ms)
        except Exception as bug:
            raise BrokenInvariant(f"{self.tp}: the appended records cannot be counted: {bug!r}") from bug

    def _error_for_gap(self, refused: Refused, now_ms: int) -> Refused:
        """Return the error for a sequence with a gap.

        A deposed leader that does not know of its successor lacks the successor's records. If librdkafka lost the connection to
        the successor, it may come to the deposed leader again, and takes OUT_OF_ORDER_SEQUENCE_NUMBER as final.
        """
        if refused.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER or not (silent := self.machine.silent(now_ms)):
            return refused
        return Refused(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"another broker may lead {self.tp}: {sorted(silent)} are in sync and do not fetch from here. {refused.message}",
        )

    def _why_not_appended(self, error: ErrorCode) -> str:
        if error is ErrorCode.NOT_ENOUGH_REPLICAS:
            return (
                f"{self.tp} has {len(self.machine.isr)} in-sync replicas, "
                f"min.insync.replicas={self.machine.effective_min_isr} are needed for acks=all"
            )
        return f"broker {self.machine.local_broker} does not lead {self.tp}"

    def append_follower(self, records: memoryview, leader_high_watermark: int, leader_log_start: int) -> bool:
        """Append the leader's records, then take over its high watermark and log start. True: `flush.messages` is reached."""
        log = self.log or self.local_log
        flush_due = False
        if records:
            info = log.append_as_follower(records, now_ms=self._clock.now_ms(), leader_epoch=self.machine.leader_epoch)
            flush_due = info is not None and info.flush_due
        moved = self.machine.record_follower_append(
            log_start=log.log_start_offset,
            log_end=log.log_end_offset,
            leader_high_watermark=leader_high_watermark,
        )
        if log.log_start_offset < leader_log_start <= log.high_watermark:
            log.maybe_increment_log_start_offset(leader_log_start, "the leader's log starts there")
        if moved:
            self._on_high_watermark(self)
        return flush_due

    def flush_then(self, then: Callable[[Exception | None], None]) -> None:
        """Flush the log's current records. If this broker leads, commit the records that waited for that; then call `then`,
        with the error if the flush failed."""
        flushed_log = self.local_log

        def flushed(error: Exception | None) -> None:
            log = self.log
            if log is not None and self.machine.record_append(log.log_end_offset, self._clock.now_ms()):
                self._on_high_watermark(self)
            then(error)

        flushed_log.flusher.flush_then(flushed_log.log_end_offset, flushed)

    def flush_what_is_due(self) -> None:
        """Flush if `flush.messages` was reached and no request waits for it. A failed disk has been reported by then."""
        flusher = self.local_log.flusher
        if flusher.recovery_point < flusher.due_up_to:
            self.flush_then(lambda error: None)

    async def flush(self) -> None:
        """Wait until the log's current records are on disk, or never will be: its directory has failed, or it was deleted.

        If no file descriptor is free, try again: the caller will report that this replica has the records.
        """
        while self.log is not None:
            outcome: asyncio.Queue[Exception | None] = asyncio.Queue()
            self.flush_then(outcome.put_nowait)
            error = await outcome.get()
            if not isinstance(error, LogDirFault) or not descriptors.are_exhausted(error.cause):
                return
            await asyncio.sleep(descriptors.WAIT_S)

    async def truncate_to(self, offset: int, *, is_wanted: Callable[[], bool]) -> None:
        """Drop the records that the leader does not have; nothing if `is_wanted` is False by then, or the log was moved."""
        log = self.local_log
        await cut(log.truncate_then, offset, is_wanted=lambda: self.log is log and is_wanted())

    async def start_from_tier(self, start: TierStart, *, is_wanted: Callable[[], bool]) -> None:
        """Drop all records and begin where the tier ends: the leader has the records before that in the tier only."""
        log = self.local_log
        await cut(log.start_from_tier_then, start, is_wanted=lambda: self.log is log and is_wanted())

    async def truncate_fully_and_start_at(
        self, offset: int, *, epochs: Sequence[EpochEntry] = (), is_wanted: Callable[[], bool]
    ) -> None:
        """Drop all records: the leader's log ends before this log's start, or begins after its end. `epochs` to keep."""
        log = self.local_log
        restart = partial(log.restart_then, epochs=epochs)
        await cut(restart, offset, is_wanted=lambda: self.log is log and is_wanted())

    def delete_records(self, offset: int) -> int:
        """Move the log start, as DeleteRecords asks; -1 means the high watermark. Return the offset to wait for."""
        log = self.leader_log()
        target = log.high_watermark if offset == -1 else offset
        if target < 0 or target > log.high_watermark:
            raise Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"{self.tp}: {target} is beyond the high watermark {log.high_watermark}"
            )
        log.maybe_increment_log_start_offset(target, "DeleteRecords")
        return target

    def low_watermark(self) -> int:
        """The smallest log start offset of the live replicas."""
        return self.machine.low_watermark(self.local_log.log_start_offset)

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, params: FetchParams, want: CachedPartition, max_bytes: int, min_one_batch: bool) -> PartitionRead:
        from_follower = params.replica_id >= 0
        machine = self.machine
        if machine.role is not Role.LEADER or want.current_leader_epoch not in (-1, machine.leader_epoch):
            error = machine.check_leader_epoch(
                want.current_leader_epoch, require_leader=from_follower or not params.may_read_from_follower
            )
            if error is not ErrorCode.NONE:
                return PartitionRead(error)
        if from_follower:
            error = machine.check_follower(BrokerId(params.replica_id), want.current_leader_epoch)
            if error is not ErrorCode.NONE:
                return PartitionRead(error)
        log = self.log or self.local_log
        fetch_offset = want.fetch_offset
        result = PartitionRead()
        bound = result.high_watermark = log.high_watermark
        result.last_stable_offset = log.last_stable_offset
        result.log_start_offset = log.log_start_offset
        if want.last_fetched_epoch >= 0 and not (
            # The reader's records end in the newest epoch, within the log: this is the usual case.
            want.last_fetched_epoch == log.epochs.latest_epoch
            and log.log_start_offset <= fetch_offset <= log.log_end_offset
        ):
            diverging = self._diverging(log, fetch_offset=fetch_offset, last_fetched_epoch=want.last_fetched_epoch)
            if diverging is not None:
                result.diverging_epoch = diverging
                return result
        if from_follower:
            bound = log.log_end_offset
        else:
            if params.isolation_level == READ_COMMITTED:
                bound = result.last_stable_offset
                result.aborted_transactions = []
            if fetch_offset == bound and not log.is_closed:
                return result  # the usual case for most partitions of a consumer: it has everything
        try:
            found = log.read(Offset(fetch_offset), max_bytes=max_bytes, max_offset=bound, min_one_batch=min_one_batch)
        except Refused as refusal:
            # A follower begins where the tier ends; only consumers read the tier.
            if refusal.code is not ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE or from_follower:
                raise
            result = TieredRead(max_bytes, min_one_batch)
            self.refresh(result)
            return result
        result.ranges = found.ranges
        result.size_bytes = result.readable_bytes = found.size_bytes
        if found.is_cut:
            result.readable_bytes = max(found.size_bytes, max_bytes)
        else:
            result.has_more_segments = found.size_bytes > 0 and found.upper_offset < bound
        if found.size_bytes and params.isolation_level == READ_COMMITTED and not from_follower:
            try:
                result.aborted_transactions = log.aborted_transactions(Offset(fetch_offset), found.upper_offset)
            except BaseException:
                found.release()
                raise
        return result

    def read_nothing(self, want: CachedPartition) -> PartitionRead | None:
        """Return the answer for a follower that has all records; None if there may be more to send.

        This is the usual case for a follower's partitions, and the general way to the same answer is much longer.
        """
        log, machine = self.log, self.machine
        if (
            log is None
            or machine.role is not Role.LEADER
            or want.current_leader_epoch != machine.leader_epoch
            or want.fetch_offset != log.log_end_offset
            or log.is_closed
        ):
            return None
        last = want.last_fetched_epoch
        # The follower's records end where ours end, and in the same epoch.
        if last >= 0 and last != log.epochs.latest_epoch:
            return None
        return self.offsets()

    def has_nothing_new(self, want: CachedPartition) -> bool:
        """Whether a consumer in a session has all committed records, and knows the offsets from an earlier response.

        This is the usual case for most partitions of a session. If it is False, `read` finds out what there is, or what is
        wrong.
        """
        log, machine = self.log, self.machine
        return (
            log is not None
            and log.high_watermark == want.sent_high_watermark == want.fetch_offset
            and log.log_start_offset == want.sent_log_start
            and not log.is_closed
            and machine.role is Role.LEADER
            and want.current_leader_epoch in (-1, machine.leader_epoch)
            and want.last_fetched_epoch in (-1, log.epochs.latest_epoch)
            and (self.topic_id in (None, want.key.topic) or want.key.topic.__class__ is str)
        )

    def offsets(self) -> PartitionRead:
        """Return a read without records."""
        result = PartitionRead()
        self.refresh(result)
        return result

    def rest(self, want: CachedPartition, replica_id: int) -> None:
        """Let a follower's session skip this partition, if there is no news for the follower until something happens here.

        A follower outside the ISR is examined at each fetch, because each fetch may bring it back.
        """
        log, machine = self.log, self.machine
        position = machine.follower(BrokerId(replica_id))
        if (
            want.session is not None
            and log is not None
            and not log.is_closed
            and position is not None
            and machine.role is Role.LEADER
            and replica_id in machine.isr
            and want.current_leader_epoch == machine.leader_epoch
            and want.fetch_offset == position.log_end == log.log_end_offset
            and want.follower_log_start == position.log_start
            and want.sent_high_watermark == log.high_watermark
            and want.sent_log_start == log.log_start_offset
        ):
            want.session.rest(want, position, self.resting)

    def stir(self) -> list[FetchSession]:
        """Wake the sessions that skip this partition, because something happened; return them."""
        stirred: list[FetchSession] = []
        for want in list(self.resting):
            if want.session is not None:
                want.session.wake(want)
                stirred.append(want.session)
        return stirred

    def refresh(self, read: PartitionRead) -> None:
        """Update the offsets in a read that found no records."""
        log = self.log or self.local_log
        read.high_watermark = log.high_watermark
        read.last_stable_offset = log.last_stable_offset
        read.log_start_offset = log.log_start_offset

    def read_bound(self, params: FetchParams) -> Offset:
        """Return the end of a read: the log end for followers, the high watermark or the last stable offset for consumers."""
        log = self.log or self.local_log
        if params.replica_id >= 0:
            return log.log_end_offset
        return log.last_stable_offset if params.isolation_level == READ_COMMITTED else log.high_watermark

    def _diverging(self, log: Log, *, fetch_offset: int, last_fetched_epoch: int) -> DivergingEpoch | None:
        """Return where the reader's log and ours diverge, if they do (KIP-595). The caller has excluded that they end in the
        same epoch."""
        end = log.end_offset_for_epoch(last_fetched_epoch)
        if end.epoch < 0 or end.end_offset < 0:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE, f"{self.tp}: no epoch at or below {last_fetched_epoch} here")
        if fetch_offset < log.log_start_offset:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE, f"{self.tp}: {fetch_offset} is before the log start")
        if end.epoch < last_fetched_epoch or end.end_offset < fetch_offset:
            return DivergingEpoch(end.epoch, end.end_offset)
        return None

    def end_for_consumer(self, current_leader_epoch: int) -> Offset | None:
        """Return the high watermark, if this broker leads and is sure of it; else None: `leader_log` and `offset_for` give the
        reason.

        This is a short way, because consoles ask for the ends of thousands of partitions again and again.
        """
        machine, log = self.machine, self.log
        if log is None or machine.role is not Role.LEADER:
            return None
        if current_leader_epoch >= 0 and current_leader_epoch != machine.leader_epoch:
            return None
        end = log.high_watermark
        return end if machine.leader_epoch_start <= end else None

    def offset_for(self, timestamp: int, *, isolation_level: int, is_from_client: bool) -> TimestampedOffset | None:
        """Answer ListOffsets after leadership was checked; None if there is no such offset."""
        log = self.local_log
        limit = log.log_end_offset
        if is_from_client:
            limit = log.last_stable_offset if isolation_level == READ_COMMITTED else log.high_watermark
        if timestamp == LATEST:
            found: TimestampedOffset | None = TimestampedOffset(-1, limit, self.machine.leader_epoch)
            is_below = not self.machine.high_watermark_lags
        elif timestamp == EARLIEST:
            return log.earliest_offset()
        elif timestamp == EARLIEST_LOCAL:
            return log.earliest_local_offset()
        elif timestamp == LATEST_TIERED:
            return log.latest_tiered_offset()
        elif timestamp == EARLIEST_PENDING_UPLOAD:
            return log.earliest_pending_upload_offset()
        else:
            is_max = timestamp == MAX_TIMESTAMP
            found = log.offset_of_max_timestamp() if is_max else log.offset_for_timestamp(timestamp)
            is_below = found is not None and found.offset < limit
        if is_from_client and not is_below:
            if self.machine.high_watermark_lags:
                raise Refused(
                    ErrorCode.OFFSET_NOT_AVAILABLE, f"{self.tp}: the new leader does not know the end offset yet"
                )
            return None
        return found

    # -- the ISR ------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> tuple[bool, ProposeIsr | None]:
        if self.log is None:
            return False, None
        ticked = self.machine.tick(now_ms, self.log.log_end_offset)
        return ticked.hw_moved, ticked.propose
