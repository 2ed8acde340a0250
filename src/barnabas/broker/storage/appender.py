"""Appends to a log: by a leader for a client, and by a follower as its leader wrote it."""

import logging
import struct
from typing import Final, NoReturn

from barnabas.base.errors import BarnabasError, BrokenInvariant, ErrorCode, Refused
from barnabas.base.ids import NO_PRODUCER_ID, Offset
from barnabas.broker.storage.log_append import check_leader_batch, follower_batches
from barnabas.broker.storage.log_flush import LogFlusher
from barnabas.broker.storage.log_segments import LogSegments
from barnabas.broker.storage.log_state import LogState
from barnabas.broker.storage.log_types import NO_LOG_APPEND_TIME, RELATIVE_OFFSET_MAX, AppendInfo, Origin
from barnabas.broker.storage.producer_append import AppendPlan
from barnabas.broker.storage.producer_state import EndTxnMarker
from barnabas.broker.storage.record_check import check_framing, read_marker
from barnabas.broker.storage.segment import Segment
from barnabas.broker.storage.truncation import LogTruncator
from barnabas.broker.storage.txn_index import AbortedTxn
from barnabas.wire.record_batch import HEADER_SIZE, LEADER_EPOCH_AT, BatchHeader, read_header

logger = logging.getLogger(__name__)

#: Twice as fast as a call of the class.
_new_header = _new_info = tuple.__new__
_patch_offset = struct.Struct(">q").pack_into
_patch_epoch = struct.Struct(">i").pack_into
EPOCH_MAX: Final = (1 << 31) - 1


class LogAppender:
    """Gives batches their offsets and writes them. Owner: the log.

    Promise: an append is done whole or not at all. The producers and the leader epochs change together with the segment.
    """

    __slots__ = ("_flusher", "_segments", "_state", "_truncator")

    def __init__(self, state: LogState, *, segments: LogSegments, flusher: LogFlusher, truncator: LogTruncator) -> None:
        self._state = state
        self._segments = segments
        self._flusher = flusher
        self._truncator = truncator

    def append_as_leader(
        self,
        records: bytearray | memoryview,
        leader_epoch: int,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        verification_guard: object | None = None,
    ) -> AppendInfo:
        """Check one batch, give it the next offsets and the epoch, and write it. Both are written into `records`.

        Raises `Refused` (`InvalidRecords` with one entry for each bad record) before anything changes. Called by position on
        the hot path.
        """
        state = self._state
        if state.is_closed:
            raise state.storage_error()
        config = state.config
        header, data, recompressed = check_leader_batch(records, config, origin, now_ms, state.partition)
        if state.env.check_framing and origin is Origin.CLIENT:
            check_framing(data, header, partition=state.partition)
        size = len(data)
        if recompressed and size > config.max_message_bytes:
            raise Refused(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"Message batch size is {size} bytes in append to partition {state.partition} which exceeds the maximum "
                f"configured size of {config.max_message_bytes}.",
            )
        if size > config.segment_bytes:
            raise Refused(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"Message batch size is {size} bytes in append to partition {state.partition}, which exceeds the maximum "
                f"configured segment size of {config.segment_bytes}.",
            )
        first: int = state.log_end_offset
        last = first + header.last_offset_delta
        plan: AppendPlan | None = None
        if header.producer_id >= 0:
            placed = _new_header(BatchHeader, (first, *header[1:]))
            marker = read_marker(data, placed) if placed.is_control else None
            plan = state.producers.analyze(((placed, marker),), origin, verification_guard)
            if plan.duplicate is not None:
                return self._duplicate(plan, header, size)
        _patch_offset(data, 0, first)
        _patch_epoch(data, LEADER_EPOCH_AT, leader_epoch)
        if leader_epoch != state.epochs.latest_epoch:
            self._start_epoch(leader_epoch, first)
        self._write(data, plan, first, last, header.max_timestamp, last, now_ms)
        flusher = self._flusher
        append_time_ms = now_ms if config.stamps_append_time else NO_LOG_APPEND_TIME
        is_due = last + 1 - flusher.recovery_point >= config.flush_messages and flusher.is_due()
        log_start = state.log_start_offset
        count = header.record_count
        return _new_info(AppendInfo, (first, last, append_time_ms, log_start, count, size, False, is_due, recompressed))

    def _duplicate(self, plan: AppendPlan, header: BatchHeader, size: int) -> AppendInfo:
        state, before = self._state, plan.duplicate
        assert before is not None
        return AppendInfo(
            before.first_offset,
            before.last_offset,
            before.timestamp if state.config.stamps_append_time else NO_LOG_APPEND_TIME,
            state.log_start_offset,
            header.record_count,
            size,
            duplicate=True,
            # The flush of the first append may not have ended yet.
            flush_due=before.last_offset >= self._flusher.recovery_point and self._flusher.is_due(),
        )

    def append_as_follower(
        self, records: bytes | bytearray | memoryview, *, now_ms: int, leader_epoch: int = EPOCH_MAX
    ) -> AppendInfo | None:
        """Write what the leader sent, with its offsets and epochs; None if there was no whole batch.

        Leave out a batch whose epoch is later than `leader_epoch` (the leader's), and every batch after it. The leader read
        such a batch from a file that it had truncated and written over by then. Its offsets may fit, but the records before
        it differ from the records here.

        Raises `Refused` before anything is written (`UnexpectedAppendOffset` if the records do not follow on the log end). The
        records go into one segment, even past `segment.bytes`: the leader may have accepted them when it was larger.
        """
        state = self._state
        if state.is_closed:
            raise state.storage_error()
        end: int = state.log_end_offset
        if end == state.log_start_offset:
            end = self._begins_at(records)
        batches: list[tuple[BatchHeader, EndTxnMarker | None]] = []
        size, count = 0, 0
        has_producer = False
        max_timestamp, offset_of_max = -1, -1
        for after, header in follower_batches(records, log_end_offset=end, partition=state.partition):
            if header.leader_epoch > leader_epoch:
                logger.info(
                    "[partition %s] leaving out the leader's batches from offset %d on: their epoch is %d, the leader's is %d",
                    state.partition,
                    header.base_offset,
                    header.leader_epoch,
                    leader_epoch,
                )
                break
            marker = read_marker(memoryview(records)[size:after], header) if header.is_control else None
            batches.append((header, marker))
            if header.max_timestamp > max_timestamp:
                max_timestamp, offset_of_max = header.max_timestamp, header.base_offset + header.last_offset_delta
            has_producer = has_producer or header.producer_id != NO_PRODUCER_ID
            count += header.record_count
            size = after
        if not batches:
            return None
        if end < state.log_end_offset:
            self._truncator.restart_at(end, log_start_offset=state.log_start_offset)
        first, last = batches[0][0].base_offset, batches[-1][0].last_offset
        plan: AppendPlan | None = None
        if has_producer:
            plan = state.producers.analyze(batches, Origin.REPLICATION)
            for append in plan.appends:
                for warning in append.warnings:
                    logger.warning("%s", warning)
        data = records if size == len(records) else memoryview(records)[:size]
        self._write(data, plan, first, last, max_timestamp, offset_of_max, now_ms)
        # Only after the write: an append refused for want of a descriptor comes again, and must find the old epochs.
        for header, _ in batches:
            self._start_epoch(header.leader_epoch, header.base_offset)
        is_due = self._flusher.is_due()
        log_start = state.log_start_offset
        return _new_info(AppendInfo, (first, last, NO_LOG_APPEND_TIME, log_start, count, size, False, is_due, False))

    def _append_failed(self, error: OSError, first: int) -> NoReturn:
        """Raise a fault. Without a descriptor the next append may succeed; after a partly written one the log must close."""
        state = self._state
        if state.log_end_offset > first:
            state.fault_half_way(error)
        state.fault(error)

    def _half_written(self, error: Exception) -> NoReturn:
        """Report a bug in the middle of an append: the contents of the log are unknown now."""
        if isinstance(error, BarnabasError):
            raise error
        raise BrokenInvariant(f"{self._state.partition}: an append failed half-way: {error!r}") from error

    def _begins_at(self, records: bytes | bytearray | memoryview) -> int:
        """Return the offset at which records may begin in an empty log: the log end. But DeleteRecords may leave the log start
        inside a batch. The leader sends that batch whole, so an empty replica starts with the batch too, and hides the
        deleted part."""
        end = self._state.log_end_offset
        if len(records) >= HEADER_SIZE:
            header = read_header(records)
            if 0 <= header.base_offset < end <= header.base_offset + header.last_offset_delta:
                return header.base_offset
        return end

    def _start_epoch(self, epoch: int, offset: int) -> None:
        epochs = self._state.epochs
        if epoch >= 0 and epoch != epochs.latest_epoch:
            epochs.assign(epoch, offset)

    def assign_epoch_start(self, epoch: int, offset: int | None = None) -> None:
        """Record that this replica leads from `epoch` on. The epoch starts at the log end, even if no record follows."""
        state = self._state
        self._start_epoch(epoch, state.log_end_offset if offset is None else offset)

    def _write(
        self,
        data: bytes | bytearray | memoryview,
        plan: AppendPlan | None,
        first: int,
        last: int,
        max_timestamp: int,
        offset_of_max: int,
        now_ms: int,
    ) -> None:
        """Write batches that passed every check, and update what depends on them. By position: keywords cost time here."""
        state = self._state
        config = state.config
        try:
            segment = state.segments.active
            if segment.should_roll(len(data), max_timestamp, last, now_ms, config.segment_bytes, config.roll_ms):
                # A segment begins at the log end, even if compaction has removed the next offsets at the leader: recovery takes
                # a hole between two segments for a lost tail.
                end = state.log_end_offset
                segment = self._segments.roll(end if last - end <= RELATIVE_OFFSET_MAX else first, now_ms)
            if plan is not None and plan.completed:
                self._write_ends(segment, data, plan, first, last, max_timestamp, offset_of_max)
            else:
                segment.append(data, first, last, max_timestamp, offset_of_max)
                state.log_end_offset = Offset(last + 1)
                if plan is not None:
                    self._apply(plan)
        except OSError as error:
            self._append_failed(error, first)
        except Exception as error:
            self._half_written(error)
        state.producers.map_end_offset = state.log_end_offset

    def _write_ends(
        self,
        segment: Segment,
        data: bytes | bytearray | memoryview,
        plan: AppendPlan,
        first: int,
        last: int,
        max_timestamp: int,
        offset_of_max: int,
    ) -> None:
        """Write batches that end transactions. The index of aborted ones is opened first: without a descriptor nothing is
        written."""
        index = segment.txn_index
        if any(completed.is_aborted for completed in plan.completed):
            index.hold()
        try:
            segment.append(data, first, last, max_timestamp, offset_of_max)
            self._state.log_end_offset = Offset(last + 1)
            self._apply(plan)
        finally:
            index.let_go()

    def _apply(self, plan: AppendPlan) -> None:
        """Update the producers and end the transactions of batches that are in the log now."""
        producers = self._state.producers
        for append in plan.appends:
            producers.update(append)
        for completed in plan.completed:
            if completed.is_aborted:
                stable = producers.last_stable_offset(completed)
                self._state.segments.active.txn_index.append(
                    AbortedTxn(completed.producer_id, completed.first_offset, completed.last_offset, stable)
                )
            producers.complete_txn(completed)
