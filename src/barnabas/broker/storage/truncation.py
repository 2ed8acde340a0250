"""Truncates a log, in three steps so that the event loop never waits for the disk.

On the loop, the truncator finds the files to read and pins them. `Truncation.run` reads them on any thread: the producers as
of the new end, and the largest timestamp below it. Then the truncator cuts the log on the loop, in one step. Until then the
log is unchanged, so the caller can check whether the truncation is still wanted.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial

from barnabas.base.errors import BrokenInvariant, ErrorCode, LogDirFault, Malformed, Refused
from barnabas.base.host import descriptors
from barnabas.base.ids import Offset
from barnabas.broker.storage.epoch_cache import EpochEntry, KeptEpochs
from barnabas.broker.storage.log_flush import LogFlusher
from barnabas.broker.storage.log_read import LogReader
from barnabas.broker.storage.log_segments import LogSegments
from barnabas.broker.storage.log_state import LogState
from barnabas.broker.storage.log_tier import TierStart, keep_epochs
from barnabas.broker.storage.producer_replay import Replay, UnreadableSnapshot, plan_replay
from barnabas.broker.storage.producer_state import ProducerStateManager
from barnabas.broker.storage.segment import Segment
from barnabas.broker.storage.segment_batches import SegmentBatches, largest_timestamp_of

logger = logging.getLogger(__name__)


class Truncation:
    """Owner: the caller that began it. `run` may be called once, on any thread."""

    __slots__ = (
        "_now_ms",
        "_pinned",
        "_timestamps",
        "cuts",
        "largest",
        "log_end",
        "offset",
        "producers",
        "replay",
        "segment",
    )

    def __init__(
        self,
        offset: int,
        *,
        log_end: int,
        cuts: int,
        segment: Segment,
        producers: ProducerStateManager,
        replay: Replay,
        now_ms: int,
    ) -> None:
        self.offset = offset
        #: The log end when this began.
        self.log_end = log_end
        #: How often the log had been truncated: it may end at `log_end` again, with other records.
        self.cuts = cuts
        #: The active segment after the truncation.
        self.segment = segment
        #: The producers after the truncation, once `run` has returned.
        self.producers = producers
        self.replay = replay
        self.largest, self._timestamps = segment.unindexed_below(offset)
        self._now_ms = now_ms
        self._timestamps.file.pin()
        #: Pinned files; `plan_replay` has pinned those of the replay.
        self._pinned: list[SegmentBatches] = [*replay.segments, self._timestamps]

    def run(self) -> None:
        self.replay.into(self.producers, now_ms=self._now_ms)
        self.largest = largest_timestamp_of(self.largest, self._timestamps, self.offset)

    def release(self) -> None:
        """Unpin the files. Event loop only. A second call does no harm."""
        pinned, self._pinned = self._pinned, []
        for batches in pinned:
            batches.file.unpin()


class LogTruncator:
    """Drops records from the end of a log, or all of them. Owner: the log.

    Promise: recovery never trusts a record that was written over after a truncation.
    """

    __slots__ = ("_flusher", "_reader", "_segments", "_state")

    def __init__(self, state: LogState, *, segments: LogSegments, flusher: LogFlusher, reader: LogReader) -> None:
        self._state = state
        self._segments = segments
        self._flusher = flusher
        self._reader = reader

    def truncate_to(self, offset: int) -> bool:
        """Drop every record at or above `offset`, and block until done: for tools, tests and threads that own the log."""
        state = self._state
        before = state.log_end_offset
        while (truncation := self._begin_or_finish(offset)) is not None:
            try:
                truncation.run()
            except UnreadableSnapshot as error:
                state.snapshots.drop(error.snapshot, str(error))
            except OSError as error:
                state.fault(error)
            else:
                self._finish_truncation(truncation)
                break
            finally:
                truncation.release()
        return state.log_end_offset < before

    def truncate_then(
        self, offset: int, *, is_wanted: Callable[[], bool], then: Callable[[Exception | None], None]
    ) -> None:
        """Drop every record at or above `offset`, then call `then` with the error, if any.

        A thread may have to read segments first. Then the log is truncated only if `is_wanted` still returns true: the replica
        may have become leader meanwhile. Both are called on the event loop, or before this returns.
        """
        state = self._state
        if not state.is_closed and 0 <= offset < state.segments.first.base_offset:
            self._restart_then(lambda: self._restart_below(offset), is_wanted=is_wanted, then=then)
            return
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
            if state.is_closed:
                then(state.storage_error())
            elif isinstance(error, UnreadableSnapshot):
                state.snapshots.drop(error.snapshot, str(error))
                self.truncate_then(offset, is_wanted=is_wanted, then=then)
            elif isinstance(error, OSError):
                then(state.report(error))
            elif isinstance(error, Malformed):
                then(state.corrupt(error))
            elif error is not None:
                raise error
            else:
                self._cut_when_safe(truncation, is_wanted, then)

        state.env.threads.run(truncation.run, done)

    def _cut_when_safe(
        self, truncation: Truncation, is_wanted: Callable[[], bool], then: Callable[[Exception | None], None]
    ) -> None:
        """Truncate once the recovery point on disk is below the whole segment: recovery must trust neither records that are
        written over, nor records that a lost truncation leaves."""
        state = self._state
        base, log_start = truncation.segment.base_offset, state.log_start_offset
        if self._flusher.recovery_point > base and is_wanted():
            self._flusher.cut_to(base)
            # Check again afterwards: a flush may move the recovery point up meanwhile.
            self._save_then(lambda error: then(error) if error else self._cut_when_safe(truncation, is_wanted, then))
            return
        try:
            if is_wanted():
                self._finish_truncation(truncation)
        except (LogDirFault, Refused) as error:
            then(error)
            return
        if state.log_start_offset < log_start:
            self._save_then(then)
        else:
            then(None)

    def _save_then(self, then: Callable[[Exception | None], None]) -> None:
        """Write the present recovery point and log start to disk, then call `then`; nothing else happens to the log before."""
        state = self._state

        def saved(error: BaseException | None) -> None:
            if isinstance(error, OSError) and descriptors.are_exhausted(error) and not state.is_closed:
                # The disk works: try again. The log may have been truncated already; with an error, the caller would wrongly
                # treat it as unchanged.
                state.env.timers.call_later(descriptors.WAIT_S, lambda: self._save_then(then))
                return
            # A failed directory has been reported already.
            then(state.storage_error() if state.is_closed or error is not None else None)

        state.env.save_bounds(state.log_dir, saved)

    def _begin_or_finish(self, offset: int) -> Truncation | None:
        """Return the truncation to run; None if no file had to be read: then the log is truncated already."""
        state = self._state
        if offset < 0:
            raise BrokenInvariant(f"{state.partition}: cannot truncate to {offset}")
        state.check_open()
        try:
            if offset >= state.log_end_offset:
                # An epoch that this replica began as leader without a record may contradict the new leader's.
                state.epochs.truncate_from_end(state.log_end_offset)
                state.epochs.flush()
                return None
            if offset < state.segments.first.base_offset:
                self._restart_below(offset)
                return None
            return self._begin_truncation(offset)
        except OSError as error:
            state.fault(error)

    def _begin_truncation(self, offset: int) -> Truncation:
        state = self._state
        start = min(state.log_start_offset, offset)
        replay = plan_replay(state.snapshots, state.segments, log_start_offset=start, end_offset=offset)
        if state.producers.is_empty:
            # A truncation adds no producer to a log that has none: no need to read it.
            replay.release()
            replay = replay._replace(segments=[])
        try:
            return Truncation(
                offset,
                log_end=state.log_end_offset,
                cuts=state.cuts,
                segment=state.segments.at(state.segments.floor(offset)),
                producers=state.producers.new(),
                replay=replay,
                now_ms=state.env.clock.now_ms(),
            )
        except BaseException:
            replay.release()
            raise

    def _finish_truncation(self, truncation: Truncation) -> None:
        state = self._state
        offset = truncation.offset
        state.check_open()
        if (
            state.log_end_offset != truncation.log_end
            or state.cuts != truncation.cuts
            or truncation.segment not in state.segments
            or truncation.segment.is_under_repair
        ):
            raise Refused(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the log of {state.partition} has changed while its truncation was prepared",
            )
        state.check_descriptors()
        logger.info("[partition %s] truncating the log from %d to %d", state.partition, state.log_end_offset, offset)
        try:
            leaving = [segment for segment in state.segments if segment.base_offset > offset]
            # From the end, so that a crash in between leaves no hole.
            self._segments.remove(leaving[::-1], f"truncation to {offset}")
            active = state.segments.active
            # Make the next flush sync the directory. Otherwise a power cut could bring the removed segments back into the
            # middle of records that were written, and counted as durable, since.
            self._flusher.unsynced.add(active.log_path)
            active.become_active()
            active.truncate_to(offset, truncation.largest)
            self._moved_end(offset)
            state.epochs.truncate_from_end(offset)
            state.epochs.flush()
            state.log_start_offset = min(state.log_start_offset, Offset(offset))
            state.settle_local_start()
            state.snapshots.remove_outside(state.log_start_offset, offset)
            state.producers.become(truncation.producers)
            state.snapshots.take(state.producers, sync=False)
            # Also if it does not move: transactions that the replay found complete are replicated below it.
            state.set_high_watermark(min(state.high_watermark, offset))
            state.env.on_recovery_point(state.log_dir)
        except OSError as error:
            state.fault_half_way(error)

    def restart_then(
        self,
        offset: int,
        *,
        epochs: Sequence[EpochEntry] = (),
        is_wanted: Callable[[], bool],
        then: Callable[[Exception | None], None],
    ) -> None:
        """Drop everything but `epochs`, if `is_wanted`, then call `then` with the error, if any. The next record gets `offset`.

        A crash before `then` leaves an empty log. Without the new bounds on disk, a crash after it could lose records:
        recovery would drop a log that ends below its former start, and trust unflushed records below the former recovery
        point.
        """
        restart = partial(self.restart_at, offset, log_start_offset=offset, epochs=epochs)
        self._restart_then(restart, is_wanted=is_wanted, then=then)

    def start_from_tier_then(
        self, start: TierStart, *, is_wanted: Callable[[], bool], then: Callable[[Exception | None], None]
    ) -> None:
        """Drop everything, if `is_wanted`, and begin where the tier ends.

        In two steps. A crash after the first leaves an empty log at the log start, which the replica can continue from. A crash
        in the second never leaves a log that begins above its log start without the epochs in between.
        """

        def emptied(error: Exception | None) -> None:
            if error is None and start.offset > start.log_start_offset:
                keep_epochs(self._state, KeptEpochs(list(start.epochs), start.offset), kept)
            else:
                then(error)

        def kept(error: BaseException | None) -> None:
            if self._state.is_closed:
                then(self._state.storage_error())
            elif isinstance(error, OSError):
                then(self._state.report(error))
            elif error is not None:
                raise error
            else:
                self._restart_then(lambda: self._go_on_from(start), is_wanted=is_wanted, then=then)

        self.restart_then(start.log_start_offset, is_wanted=is_wanted, then=emptied)

    def _restart_then(
        self, restart: Callable[[], None], *, is_wanted: Callable[[], bool], then: Callable[[Exception | None], None]
    ) -> None:
        try:
            if not is_wanted():
                then(None)
                return
            restart()
        except (LogDirFault, Refused) as error:
            then(error)
            return
        self._save_then(then)

    def _restart_below(self, offset: int) -> None:
        """Truncate below the first segment. The records that the tier has below `offset` stay part of a tiered log."""
        state = self._state
        if state.is_tiered and state.log_start_offset < offset:
            self.restart_at(offset, log_start_offset=state.log_start_offset, epochs=state.epochs.below(offset))
        else:
            self.restart_at(offset, log_start_offset=offset)

    def _go_on_from(self, start: TierStart) -> None:
        """Continue an empty log at the end of the tier: write the tier's epochs and producers first, then the segment."""
        state = self._state
        state.check_open()
        state.check_descriptors()
        logger.info("[partition %s] its log begins at %d, where the tier ends", state.partition, start.offset)
        try:
            for epoch, first in start.epochs:
                state.epochs.assign(epoch, first)
            state.epochs.flush()
            state.producers.load(start.producers, start.offset, state.env.clock.now_ms())
            self._flusher.unsynced.add(state.snapshots.put(start.offset, start.producers))
            self._segments.restart_at(start.offset)
            self._moved_end(start.offset)
            self._flusher.restart_at(start.offset)
            state.highest_copied_offset = start.offset - 1
            state.set_high_watermark(start.offset)
        except OSError as error:
            state.fault_half_way(error)

    def restart_at(self, offset: int, *, log_start_offset: int, epochs: Sequence[EpochEntry] = ()) -> None:
        """Drop everything; the next record gets `offset`. `epochs`: the ones to keep."""
        state = self._state
        state.check_open()
        state.check_descriptors()
        logger.info("[partition %s] dropping the whole log, the next offset is %d", state.partition, offset)
        try:
            # Before the new segment: after a crash, the state of the old records must not count for the new ones.
            self._segments.restart_at(offset, lambda: self._keep_epochs(epochs))
            self._moved_end(offset)
            self._flusher.restart_at(offset)
            state.log_start_offset = Offset(log_start_offset)
            state.settle_local_start()
            for snapshot in list(state.snapshots.offsets):
                state.snapshots.remove(snapshot)
            state.producers.truncate_fully(offset)
            state.set_high_watermark(offset)
            state.env.on_recovery_point(state.log_dir)
        except OSError as error:
            state.fault_half_way(error)

    def _keep_epochs(self, kept: Sequence[EpochEntry]) -> None:
        epochs = self._state.epochs
        epochs.clear()
        for epoch, first in kept:
            epochs.assign(epoch, first)
        epochs.flush()

    def _moved_end(self, offset: int) -> None:
        state = self._state
        state.log_end_offset = Offset(offset)
        state.cuts += 1
        state.lowest_cut = offset if state.lowest_cut is None else min(state.lowest_cut, offset)
        # The records that replace the truncated ones are not in the tier, whatever was copied.
        state.highest_copied_offset = min(state.highest_copied_offset, offset - 1)
        self._flusher.cut_to(offset)
        self._reader.forget_positions()
        self._segments.undecide()
        state.env.on_cut(state.partition, state.directory, offset)
