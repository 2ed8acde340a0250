"""Keeping a log in shape: rolling, flushing, truncating, retention, and compacted segments that take their place.

Owner: the event loop. `FlushJob.run` and the deletion of files run on threads and touch only what cannot change.
"""

import logging
from collections.abc import Callable

from barnabas.core.errors import BrokenInvariant, ErrorCode, LogDirFault, Malformed, Refused
from barnabas.storage import names
from barnabas.storage.log_read import Bound
from barnabas.storage.log_state import LogState
from barnabas.storage.producer_replay import UnreadableSnapshot, plan_replay
from barnabas.storage.replacement import replace_segments
from barnabas.storage.retention import Deletable, deletable_segments
from barnabas.storage.segment import Segment
from barnabas.storage.truncation import Truncation

logger = logging.getLogger(__name__)


class LogUpkeep(LogState):
    """The part of `Log` that changes which segments there are."""

    __slots__ = ()

    # -- roll

    def roll(self, now_ms: int) -> Segment:
        """Start a new segment at the log end; the old one is flushed in the background."""
        if self._closed:
            raise self.storage_error()
        try:
            return self._roll(self._end, now_ms)
        except OSError as error:
            self.fault(error)

    def _roll(self, next_offset: int, now_ms: int) -> Segment:
        new_base = max(next_offset, self._end)
        active = self.segments.active
        if new_base < active.base_offset or (new_base == active.base_offset and active.size_bytes):
            raise BrokenInvariant(f"{self.partition}: cannot roll to {new_base}, {active} is there")
        if new_base == active.base_offset:
            # An empty active segment whose index is too small for one entry: nothing to roll, only to make room.
            return active
        # Recovery reads the epochs of whole segments, but need not begin with this one.
        self.epochs.flush()
        # Files first: where none can be opened, the log goes on with the segment that it has.
        segment = self._new_segment(new_base, now_ms)
        active.become_inactive()
        self.segments.add(segment)
        # At the start of a segment, so that recovery of it can begin there.
        self.producers.update_map_end_offset(new_base)
        if (snapshot := self._snapshots.take(self.producers, sync=False)) is not None:
            self.flusher.unsynced.add(snapshot)
        logger.info("rolled %s to a new segment at offset %d", self.partition, new_base)
        self.flusher.flush_in_background(new_base)
        return segment

    def _new_segment(self, base_offset: int, now_ms: int) -> Segment:
        config, env = self.config, self._env
        segment = Segment(
            self.directory,
            base_offset,
            disk=env.disk,
            created_ms=now_ms,
            index_interval_bytes=config.index_interval_bytes,
            max_index_bytes=config.segment_index_bytes,
            pool=env.pool,
        )
        if config.segment_jitter_ms:
            segment.roll_jitter_ms = env.random.randrange(min(config.segment_jitter_ms, max(config.segment_ms, 1)))
        for path in segment.paths():
            # Left by a truncation whose deletion has not come yet, or by a crash: not ours to append to.
            env.disk.unlink(path)
        segment.create_files(preallocate_bytes=config.segment_bytes if config.preallocate else 0)
        self.flusher.unsynced.add(segment.log_path)
        segment.become_active()
        return segment

    # -- truncation

    def truncate_to(self, offset: int) -> bool:
        """Drop every record at or above `offset`, where one stands: for tools, tests and threads that own the log."""
        before = self._end
        while (truncation := self._begin_or_finish(offset)) is not None:
            try:
                truncation.run()
            except UnreadableSnapshot as error:
                self._snapshots.drop(error.snapshot, str(error))
            except OSError as error:
                self.fault(error)
            else:
                self._finish_truncation(truncation)
                break
            finally:
                truncation.release()
        return self._end < before

    def truncate_then(
        self, offset: int, *, is_wanted: Callable[[], bool], then: Callable[[Exception | None], None]
    ) -> None:
        """Drop every record at or above `offset`, then call `then`, with what went wrong if something did.

        Segments may have to be read first, on a thread. Then `is_wanted` is asked, and where it says no the log stays as it
        is: the replica may have become leader meanwhile. Both are called on the event loop, or before this returns.
        """
        try:
            truncation = self._begin_or_finish(offset)
        except (LogDirFault, Refused) as error:
            then(error)
            return
        if truncation is None:
            then(None)
            return

        def done(error: BaseException | None) -> None:
            truncation.release()
            if self._closed:
                then(self.storage_error())
            elif isinstance(error, UnreadableSnapshot):
                self._snapshots.drop(error.snapshot, str(error))
                self.truncate_then(offset, is_wanted=is_wanted, then=then)
            elif isinstance(error, OSError):
                then(self._told(error))
            elif isinstance(error, Malformed):
                then(self._corrupt(error))
            elif error is not None:
                raise error
            else:
                self._cut_when_safe(truncation, is_wanted, then)

        self._env.threads.run(truncation.run, done)

    def _cut_when_safe(
        self, truncation: Truncation, is_wanted: Callable[[], bool], then: Callable[[Exception | None], None]
    ) -> None:
        """Recovery must doubt the whole segment that is cut, before it is: what is written over must not be trusted, nor
        what a lost cut leaves."""
        base = truncation.segment.base_offset
        if self.flusher.recovery_point <= base or not is_wanted():
            then(self._cut_if(is_wanted, truncation))
            return
        self.flusher.cut_to(base)

        def saved(error: BaseException | None) -> None:
            if self._closed or error is not None:
                then(self.storage_error())  # the directory's fault has been told
            else:
                # A flush may have moved it up again meanwhile.
                self._cut_when_safe(truncation, is_wanted, then)

        self._env.save_recovery_points(self.log_dir, saved)

    def _cut_if(self, is_wanted: Callable[[], bool], truncation: Truncation) -> Exception | None:
        try:
            if is_wanted():
                self._finish_truncation(truncation)
        except (LogDirFault, Refused) as error:
            return error
        return None

    def _begin_or_finish(self, offset: int) -> Truncation | None:
        """None where nothing had to be read, and so all is done."""
        if offset < 0:
            raise BrokenInvariant(f"{self.partition}: cannot truncate to {offset}")
        if self._closed:
            raise self.storage_error()
        try:
            if offset >= self._end:
                # An epoch that this replica began as leader without a record may contradict the new leader's.
                self.epochs.truncate_from_end(self._end)
                self.epochs.flush()
                return None
            if offset < self.segments.first.base_offset:
                self._restart_at(offset, log_start_offset=offset)
                self._env.on_recovery_point(self.log_dir)
                return None
            return self._begin_truncation(offset)
        except OSError as error:
            self.fault(error)

    def _begin_truncation(self, offset: int) -> Truncation:
        start = min(self._log_start, offset)
        replay = plan_replay(self._snapshots, self.segments, log_start_offset=start, end_offset=offset)
        if self.producers.is_empty:
            # A log that knows no producer does not get one by being cut: no need to read it.
            replay = replay._replace(segments=[])
        return Truncation(
            offset,
            log_end=self._end,
            segment=self.segments.at(self.segments.floor(offset)),
            producers=self.producers.new(),
            replay=replay,
            now_ms=self._env.clock.now_ms(),
        )

    def _finish_truncation(self, truncation: Truncation) -> None:
        offset = truncation.offset
        if self._closed:
            raise self.storage_error()
        if self._end != truncation.log_end or truncation.segment not in self.segments:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.partition} has changed while its cut was prepared")
        logger.info("truncating %s from %d to %d", self.partition, self._end, offset)
        try:
            leaving = [segment for segment in self.segments if segment.base_offset > offset]
            # From the end, so that a crash in between leaves no hole.
            self._remove(leaving[::-1], f"truncation to {offset}")
            active = self.segments.active
            active.become_active()
            active.truncate_to(offset, truncation.largest)
            self._moved_end(offset)
            self.epochs.truncate_from_end(offset)
            self.epochs.flush()
            self._log_start = min(self._log_start, offset)
            self._snapshots.remove_outside(self._log_start, offset)
            self.producers.become(truncation.producers)
            self._snapshots.take(self.producers, sync=False)
            # Also where it stays as it is: transactions that the reading found complete are replicated below it.
            self._set_high_watermark(min(self._high_watermark, offset))
            self._env.on_recovery_point(self.log_dir)
        except OSError as error:
            self.fault(error)

    def truncate_fully_and_start_at(self, offset: int, *, log_start_offset: int | None = None) -> None:
        """Drop everything; the next record gets `offset`."""
        if self._closed:
            raise self.storage_error()
        try:
            self._restart_at(offset, log_start_offset=offset if log_start_offset is None else log_start_offset)
            self._env.on_recovery_point(self.log_dir)
        except OSError as error:
            self.fault(error)

    def _restart_at(self, offset: int, *, log_start_offset: int) -> None:
        logger.info("dropping all of %s, starting at %d", self.partition, offset)
        leaving = list(self.segments)
        self._remove(leaving[::-1], f"restart at {offset}")
        self.segments.add(self._new_segment(offset, self._env.clock.now_ms()))
        self._moved_end(offset)
        self.flusher.restart_at(offset)
        self._log_start = log_start_offset
        self.epochs.clear()
        self.epochs.flush()
        for snapshot in list(self._snapshots.offsets):
            self._snapshots.remove(snapshot)
        self.producers.truncate_fully(offset)
        self._set_high_watermark(offset)

    def _moved_end(self, offset: int) -> None:
        self._end = offset
        self.flusher.cut_to(offset)
        self._bound = Bound(-1, 0, 0)
        self._env.on_cut(self.partition, self.directory, offset)

    # -- log start, retention, replacement

    def maybe_increment_log_start_offset(self, offset: int, reason: str = "records deleted") -> bool:
        """DeleteRecords, or retention: nothing below `offset` is read any more. Never past the high watermark."""
        if offset > self._high_watermark:
            raise Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Cannot increment the log start offset to {offset} of partition {self.partition} since it is larger than "
                f"the high watermark {self._high_watermark}",
            )
        if offset <= self._log_start:
            return False
        logger.info("log start offset of %s goes to %d: %s", self.partition, offset, reason)
        self._log_start = offset
        self.flusher.skip_to(offset)
        try:
            self.epochs.truncate_from_start(offset)
            self.epochs.flush()
        except OSError as error:
            self.fault(error)
        self.producers.on_log_start_offset(offset, self._snapshots.latest)
        return True

    def delete_old_segments(self, now_ms: int) -> int:
        """A retention pass; the number of segments that went."""
        if self._closed:
            return 0
        try:
            passes = deletable_segments(
                self.segments,
                self.config,
                log_start_offset=self._log_start,
                log_end_offset=self._end,
                high_watermark=self._high_watermark,
                now_ms=now_ms,
            )
            for deletable in passes:
                self._delete(deletable, now_ms)
            return sum(len(deletable.segments) for deletable in passes)
        except OSError as error:
            self.fault(error)

    def _delete(self, deletable: Deletable, now_ms: int) -> None:
        last = deletable.segments[-1]
        if last is self.segments.active:
            self._roll(self._end, now_ms)
        after = self.segments.base_after(self.segments.floor(last.base_offset))
        assert after is not None
        # First the offset, then the files: whoever reads meanwhile gets OFFSET_OUT_OF_RANGE, not half a log.
        self.maybe_increment_log_start_offset(after, deletable.reason)
        self._remove(deletable.segments, deletable.reason)

    def replace_segments(self, cleaned: list[Segment], old: list[Segment]) -> None:
        """Swap compacted segments in, safe against a crash at every step (see `replacement`)."""
        if self._closed:
            raise self.storage_error()
        try:
            kept = {segment.base_offset for segment in cleaned}
            leaving = replace_segments(self.segments, cleaned, old)
            self._bound = Bound(-1, 0, 0)
            snapshots = [segment.base_offset for segment in leaving if segment.base_offset not in kept]
            self._delete_later(leaving, snapshots, "replaced by cleaned segments")
            self._env.on_recovery_point(self.log_dir)
        except OSError as error:
            self.fault(error)

    def _remove(self, leaving: list[Segment], reason: str) -> None:
        """Out of the log now, renamed to `.deleted`, removed after `file.delete.delay.ms`."""
        for segment in leaving:
            self.segments.remove(segment)
            segment.change_transient(names.DELETED_SUFFIX)
            segment.abandon()
        self._bound = Bound(-1, 0, 0)
        self._delete_later(leaving, [segment.base_offset for segment in leaving], reason)

    def _delete_later(self, leaving: list[Segment], snapshots: list[int], reason: str) -> None:
        if not leaving:
            return
        logger.info("deleting segments %s of %s: %s", [s.base_offset for s in leaving], self.partition, reason)
        paths = [path for segment in leaving for path in segment.paths()]
        paths += [path for offset in snapshots if (path := self._snapshots.mark_deleted(offset))]
        env, partition, log_dir = self._env, self.partition, self.log_dir

        def work() -> None:
            for path in paths:
                env.disk.unlink(path)

        def done(error: BaseException | None) -> None:
            if isinstance(error, OSError):
                logger.error("deletion of segments of %s failed: %s", partition, error)
                env.on_fault(LogDirFault(log_dir, error))
            elif error is not None:
                raise error

        env.timers.call_later(self.config.file_delete_delay_ms / 1000, lambda: env.threads.run(work, done))
