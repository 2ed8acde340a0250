"""A partition's log: segments, indexes, producer state, leader epochs, and the offsets that say what may be read.

Owner: the event loop. `FlushJob.run` and the deletion of files run on threads and touch only what cannot change.
An `OSError` becomes a `LogDirFault`: the environment hears of it first, then the caller.

Three layers of one object: `log_state` (what it is), `log_upkeep` (segments come and go), and here: append and read.
"""

import errno
import logging
import struct
from typing import NoReturn

from barnabas.core.errors import BarnabasError, BrokenInvariant, ErrorCode, Malformed, Refused
from barnabas.core.ids import Offset
from barnabas.protocol.record_batch import HEADER_SIZE, LEADER_EPOCH_AT, BatchHeader, read_header
from barnabas.runtime import descriptors
from barnabas.storage import log_read
from barnabas.storage.epoch_cache import EpochEnd
from barnabas.storage.log_append import check_leader_batch, follower_batches
from barnabas.storage.log_flush import FlushJob
from barnabas.storage.log_types import (
    NO_LOG_APPEND_TIME,
    AppendInfo,
    OffsetMetadata,
    Origin,
    ReadResult,
    TimestampedOffset,
)
from barnabas.storage.log_upkeep import LogUpkeep
from barnabas.storage.producer_state import AppendPlan, EndTxnMarker
from barnabas.storage.record_check import check_framing, read_marker
from barnabas.storage.txn_index import AbortedTxn

logger = logging.getLogger(__name__)

_new_header = tuple.__new__
_patch_offset = struct.Struct(">q").pack_into
_patch_epoch = struct.Struct(">i").pack_into


class Log(LogUpkeep):
    """A partition's log. `recovery.open_log` makes one."""

    __slots__ = ()

    # -- append

    def append_as_leader(
        self,
        records: bytearray | memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        verification_guard: object | None = None,
    ) -> AppendInfo:
        """Check one batch, give it the next offsets and the epoch, and write it. `records` is written to.

        Raises `Refused` (`InvalidRecords` with one entry a bad record) before anything has changed.
        """
        if self._closed:
            raise self.storage_error()
        config = self.config
        checked = check_leader_batch(records, config=config, origin=origin, now_ms=now_ms, partition=self.partition)
        if self._env.check_framing and origin is Origin.CLIENT:
            check_framing(checked.data, checked.header, partition=self.partition)
        data = checked.data
        header = checked.header
        size = len(data)
        if checked.recompressed and size > config.max_message_bytes:
            raise Refused(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"Message batch size is {size} bytes in append to partition {self.partition} which exceeds the maximum "
                f"configured size of {config.max_message_bytes}.",
            )
        self._check_fits_segment(size)
        first = self._end
        last = first + header.last_offset_delta
        plan: AppendPlan | None = None
        if header.producer_id >= 0:
            placed = _new_header(BatchHeader, (first, *header[1:]))
            marker = read_marker(data, placed) if placed.is_control else None
            plan = self.producers.analyze(((placed, marker),), origin, verification_guard)
            if plan.duplicate is not None:
                return self._duplicate(plan, header, size)
        try:
            self._start_epoch(leader_epoch, first)
            _patch_offset(data, 0, first)
            _patch_epoch(data, LEADER_EPOCH_AT, leader_epoch)
            self._write(
                data, first=first, last=last, max_timestamp=header.max_timestamp, offset_of_max=last, now_ms=now_ms
            )
            if plan is not None:
                self._apply(plan)
        except OSError as error:
            self._append_failed(error, first)
        except Exception as error:
            self._half_written(error)
        self.producers.map_end_offset = Offset(last + 1)
        return AppendInfo(
            Offset(first),
            Offset(last),
            now_ms if config.stamps_append_time else NO_LOG_APPEND_TIME,
            Offset(self._log_start),
            header.record_count,
            size,
            False,
            self._end - self.flusher.recovery_point >= config.flush_messages,
            checked.recompressed,
        )

    def _duplicate(self, plan: AppendPlan, header: BatchHeader, size: int) -> AppendInfo:
        before = plan.duplicate
        assert before is not None
        return AppendInfo(
            before.first_offset,
            before.last_offset,
            before.timestamp if self.config.stamps_append_time else NO_LOG_APPEND_TIME,
            self.log_start_offset,
            header.record_count,
            size,
            duplicate=True,
        )

    def append_as_follower(self, records: bytes | bytearray | memoryview, *, now_ms: int) -> AppendInfo | None:
        """Write what the leader sent, offsets and epochs as they are; None where there was no whole batch.

        Raises `Refused` (`UnexpectedAppendOffset` where it does not follow on the log end) before anything is written. The
        leader may have taken more than `segment.bytes` at once, when that was larger: it goes into one segment.
        """
        if self._closed:
            raise self.storage_error()
        if self._end == self._log_start:
            self._begin_with(records)
        batches: list[tuple[BatchHeader, EndTxnMarker | None]] = []
        size, count = 0, 0
        max_timestamp, offset_of_max = -1, -1
        for after, header in follower_batches(records, log_end_offset=self._end, partition=self.partition):
            marker = read_marker(memoryview(records)[size:after], header) if header.is_control else None
            batches.append((header, marker))
            if header.max_timestamp > max_timestamp:
                max_timestamp, offset_of_max = header.max_timestamp, header.base_offset + header.last_offset_delta
            count += header.record_count
            size = after
        if not batches:
            return None
        first, last = batches[0][0].base_offset, batches[-1][0].last_offset
        plan = self.producers.analyze(batches, Origin.REPLICATION)
        for append in plan.appends:
            for warning in append.warnings:
                logger.warning("%s", warning)
        data = records if size == len(records) else memoryview(records)[:size]
        try:
            for header, _ in batches:
                self._start_epoch(header.leader_epoch, header.base_offset)
            self._write(
                data, first=first, last=last, max_timestamp=max_timestamp, offset_of_max=offset_of_max, now_ms=now_ms
            )
            self._apply(plan)
        except OSError as error:
            self._append_failed(error, first)
        except Exception as error:
            self._half_written(error)
        self.producers.map_end_offset = Offset(last + 1)
        return AppendInfo(
            Offset(first),
            Offset(last),
            NO_LOG_APPEND_TIME,
            Offset(self._log_start),
            count,
            size,
            False,
            self._end - self.flusher.recovery_point >= self.config.flush_messages,
        )

    def _append_failed(self, error: OSError, first: int) -> NoReturn:
        """For want of a descriptor the next append may succeed, unless this one was half done: then the log must be closed."""
        if descriptors.are_exhausted(error) and self._end > first:
            error = OSError(errno.EIO, f"an append was written, but what follows from it was not: {error.strerror}")
        self.fault(error)

    def _half_written(self, error: Exception) -> NoReturn:
        """An append is done whole or not at all: after a bug in the middle of one nobody knows what the log holds."""
        if isinstance(error, BarnabasError):
            raise error
        raise BrokenInvariant(f"{self.partition}: an append failed half-way: {error!r}") from error

    def _begin_with(self, records: bytes | bytearray | memoryview) -> None:
        """DeleteRecords may leave a log start inside a batch. A copy that begins there gets the whole batch: it is empty, so
        it begins with the batch, too, and hides what is deleted."""
        if len(records) < HEADER_SIZE:
            return
        header, start = read_header(records), self._log_start
        if 0 <= header.base_offset < start <= header.base_offset + header.last_offset_delta:
            self.truncate_fully_and_start_at(header.base_offset, log_start_offset=start)

    def _check_fits_segment(self, size: int) -> None:
        if size > self.config.segment_bytes:
            raise Refused(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"Message batch size is {size} bytes in append to partition {self.partition}, which exceeds the maximum "
                f"configured segment size of {self.config.segment_bytes}.",
            )

    def _start_epoch(self, epoch: int, offset: int) -> None:
        if epoch >= 0 and epoch != self.epochs.latest_epoch:
            self.epochs.assign(epoch, offset)

    def assign_epoch_start(self, epoch: int, offset: int | None = None) -> None:
        """This replica leads from `epoch` on: the epoch starts at the log end, whether or not a record ever comes."""
        try:
            self._start_epoch(epoch, self._end if offset is None else offset)
        except OSError as error:
            self.fault(error)

    def _write(
        self,
        data: bytes | bytearray | memoryview,
        *,
        first: int,
        last: int,
        max_timestamp: int,
        offset_of_max: int,
        now_ms: int,
    ) -> None:
        config = self.config
        segment = self.segments.active
        if segment.should_roll(
            size_bytes=len(data),
            max_timestamp=max_timestamp,
            last_offset=last,
            now_ms=now_ms,
            segment_bytes=config.segment_bytes,
            segment_ms=config.segment_ms,
        ):
            segment = self._roll(first, now_ms)
        segment.append(data, last_offset=last, max_timestamp=max_timestamp, offset_of_max=offset_of_max)
        self._end = last + 1

    def _apply(self, plan: AppendPlan) -> None:
        """The batches are in the log: now producers may change, and transactions end."""
        producers = self.producers
        for append in plan.appends:
            producers.update(append)
        for completed in plan.completed:
            if completed.is_aborted:
                stable = producers.last_stable_offset(completed)
                self.segments.active.txn_index.append(
                    AbortedTxn(completed.producer_id, completed.first_offset, completed.last_offset, stable)
                )
            producers.complete_txn(completed)

    # -- read

    def read(self, offset: int, *, max_bytes: int, max_offset: int, min_one_batch: bool = True) -> ReadResult:
        """Whole batches from the one that holds or follows `offset`, all below `max_offset` (exclusive).

        From one segment, at most `max_bytes`, but for a larger first batch where `min_one_batch`. Empty only where there
        is nothing below `max_offset`. `OFFSET_OUT_OF_RANGE` outside [log start, log end].
        """
        if not self._log_start <= offset <= self._end:
            raise self._out_of_range(offset)
        if self._closed:
            raise self.storage_error()
        try:
            if offset < max_offset:
                bound = self._locate(max_offset)
                found = log_read.read(
                    self.segments, offset, max_bytes=max_bytes, bound=bound, min_one_batch=min_one_batch
                )
                if found is not None:
                    return found
                offset_bound = bound
            else:
                offset_bound = self._locate(offset)
        except OSError as error:
            self.fault(error)
        except Malformed as error:
            raise self._corrupt(error) from None
        start = OffsetMetadata(Offset(offset), Offset(offset_bound.segment_base_offset), offset_bound.position)
        return ReadResult([], 0, start, Offset(offset))

    def aborted_transactions(self, from_offset: int, upper_offset: int) -> list[AbortedTxn]:
        """Those that overlap [from_offset, upper_offset): for a consumer that reads committed data."""
        try:
            return log_read.aborted_transactions(self.segments, from_offset, upper_offset)
        except OSError as error:
            self.fault(error)
        except Malformed as error:
            raise self._corrupt(error) from None

    def offset_for_timestamp(self, timestamp: int) -> TimestampedOffset | None:
        """The first record whose timestamp is `timestamp` or later; None where there is none."""
        try:
            return log_read.offset_for_timestamp(self.segments, timestamp, from_offset=self._log_start)
        except OSError as error:
            self.fault(error)
        except Malformed as error:
            raise self._corrupt(error) from None

    def earliest_offset(self) -> TimestampedOffset:
        earliest = self.epochs.earliest
        known = earliest is not None and earliest.start_offset <= self._log_start
        return TimestampedOffset(-1, self.log_start_offset, earliest.epoch if earliest is not None and known else None)

    def latest_offset(self) -> TimestampedOffset:
        return TimestampedOffset(-1, self.log_end_offset, self.epochs.latest_epoch)

    def offset_of_max_timestamp(self) -> TimestampedOffset | None:
        """The record with the largest timestamp; None where no record has one."""
        try:
            return log_read.max_timestamp(self.segments)
        except OSError as error:
            self.fault(error)
        except Malformed as error:
            raise self._corrupt(error) from None

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        """The largest epoch <= `epoch` that is known here, and where it ended (KIP-279)."""
        return self.epochs.end_offset_for(epoch, self._end)

    # -- the end

    def expire_producers(self, now_ms: int) -> int:
        """Forget producers that have been silent for `producer.id.expiration.ms`."""
        return self.producers.remove_expired(now_ms)

    def write_epochs(self) -> None:
        """Leader epochs that began since, to their file: for those who read it; recovery does without."""
        if self._closed or not self.epochs.dirty:
            return
        try:
            self.epochs.flush()
        except OSError as error:
            self.fault(error)

    def begin_close(self) -> FlushJob | None:
        """A clean end: a snapshot at the log end, indexes complete. Run the job on a thread, then `finish_close`."""
        if self._closed:
            return None
        try:
            self.producers.update_map_end_offset(self._end)
            if (snapshot := self._snapshots.take(self.producers, sync=False)) is not None:
                self.flusher.unsynced.add(snapshot)
            self.epochs.flush()
            self.segments.active.complete()
        except OSError as error:
            self.fault(error)
        return self.flusher.begin(force=True)

    def finish_close(self, job: FlushJob | None, error: BaseException | None = None) -> None:
        """What `begin_close` began is on disk, or `error` says why not."""
        if job is not None:
            self.flusher.finish(job, error)
        self.abandon()

    def close(self) -> None:
        """Both, and the disk in between, where one stands: for tools, tests and threads that own the log."""
        job = self.begin_close()
        try:
            if job is not None:
                job.run()
        except OSError as error:
            self.finish_close(job, error)
        else:
            self.finish_close(job)

    def abandon(self) -> None:
        """Let go of every file without a write: the directory has failed, or is about to be deleted."""
        self._closed = True
        for segment in self.segments:
            segment.abandon()

    def moved_to(self, directory: str) -> None:
        """The partition's directory has been renamed (a deletion, or a future log that takes its place)."""
        self.directory = directory
        self._epoch_file.directory = directory
        self.flusher.unsynced.moved_to(directory)
        self._snapshots.directory = directory
        for segment in self.segments:
            segment.moved_to(directory)
