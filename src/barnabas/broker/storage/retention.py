"""Which segments may be deleted: by time, by size, or because the log starts after them."""

import logging
from collections.abc import Callable
from typing import NamedTuple

from barnabas.base.config.log_config import LogConfig
from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.host import descriptors
from barnabas.base.ids import Offset
from barnabas.broker.storage.epoch_cache import KeptEpochs
from barnabas.broker.storage.index_under_repair import IndexUnderRepair
from barnabas.broker.storage.log_segments import LogSegments
from barnabas.broker.storage.log_state import LogState
from barnabas.broker.storage.log_tier import keep_epochs
from barnabas.broker.storage.segment import Segment
from barnabas.broker.storage.segments import SegmentList

logger = logging.getLogger(__name__)


class Deletable(NamedTuple):
    segments: list[Segment]
    #: The reason, for log lines.
    reason: str
    #: The tier has the segments: the log start stays.
    is_local: bool = False


def deletable_segments(
    segments: SegmentList,
    config: LogConfig,
    *,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
    now_ms: int,
    copied_end: int | None = None,
) -> list[Deletable]:
    """Return the segments that each rule deletes, oldest first; each rule sees the segments that the previous one left.

    Never a segment that reaches the high watermark: the log start offset must not pass it. Never an empty active segment: it
    would only be created again. `copied_end`: the log is tiered, and the tier has everything below it. Local retention
    deletes nothing else, however old: the store may be unavailable. Nor does it delete the active segment, even if the tier
    has all of it: another replica, which is or was leader, began its next segment where this one ends.
    """
    remaining = list(segments)
    found: list[Deletable] = []

    def apply(reason: str, wants: Callable[[Segment, int | None], bool], *, is_local: bool = False) -> None:
        limit = high_watermark if copied_end is None or not is_local else min(high_watermark, copied_end)
        taken = []
        for place, segment in enumerate(remaining):
            next_base = remaining[place + 1].base_offset if place + 1 < len(remaining) else None
            end = log_end_offset if next_base is None else next_base
            is_kept = next_base is None and (is_local or segment.size_bytes == 0)
            if limit < end or is_kept or not wants(segment, next_base):
                break
            taken.append(segment)
        if taken:
            del remaining[: len(taken)]
            found.append(Deletable(taken, reason, is_local))

    apply(
        f"log start offset {log_start_offset}",
        lambda segment, next_base: next_base is not None and next_base <= log_start_offset,
    )
    if config.is_deleted_by_retention:
        is_local = copied_end is not None
        prefix = "local." if is_local else ""
        retention_bytes = config.kept_locally_bytes if is_local else config.retention_bytes
        retention_ms = config.kept_locally_ms if is_local else config.retention_ms
        if retention_bytes >= 0:
            excess = [sum(segment.size_bytes for segment in remaining) - retention_bytes]

            def oversized(segment: Segment, next_base: int | None) -> bool:
                if excess[0] < 0 or excess[0] - segment.size_bytes < 0:
                    return False
                excess[0] -= segment.size_bytes
                return True

            apply(f"{prefix}retention.bytes={retention_bytes}", oversized, is_local=is_local)
        if retention_ms >= 0:
            apply(
                f"{prefix}retention.ms={retention_ms}",
                lambda segment, next_base: now_ms - segment.largest_timestamp > retention_ms,
                is_local=is_local,
            )
    return found


class LogRetention:
    """Moves the log start up, and drops the segments that retention deletes. Owner: the log."""

    __slots__ = ("_segments", "_state")

    def __init__(self, state: LogState, *, segments: LogSegments) -> None:
        self._state = state
        self._segments = segments

    def maybe_increment_log_start_offset(self, offset: int, reason: str = "records deleted") -> bool:
        """Move the log start for DeleteRecords or retention: no reader gets records below `offset`. Stops at the high
        watermark."""
        state = self._state
        if offset > state.high_watermark:
            raise Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Cannot increment the log start offset to {offset} of partition {state.partition} since it is larger than "
                f"the high watermark {state.high_watermark}",
            )
        if offset <= state.log_start_offset:
            return False
        logger.info("[partition %s] the log start offset moves to %d: %s", state.partition, offset, reason)
        state.log_start_offset = Offset(offset)
        state.settle_local_start()
        # The recovery point stays: a power cut may undo the new log start, and the records below it must then be intact.
        state.epochs.truncate_from_start(offset)
        try:
            state.epochs.flush()
        except OSError as error:
            # The log start has moved all the same. Without a free descriptor the epochs are written later: readers of the file
            # ignore epochs below the log start.
            if not descriptors.are_exhausted(error):
                state.fault(error)
        state.producers.on_log_start_offset(offset, state.snapshots.latest)
        state.env.on_log_start(state.partition)
        return True

    def delete_old_segments(self, now_ms: int) -> int:
        """Run a retention pass; return the number of deleted segments."""
        state = self._state
        if state.is_closed:
            return 0
        try:
            passes = self._deletable(now_ms)
            for deletable in passes:
                if not deletable.is_local:
                    self._delete(deletable, now_ms)
            if any(deletable.is_local for deletable in passes):
                self._save_start(now_ms)
            return sum(len(deletable.segments) for deletable in passes)
        except IndexUnderRepair:
            return 0  # the next pass checks that segment's age
        except OSError as error:
            state.fault(error)

    def _deletable(self, now_ms: int) -> list[Deletable]:
        state = self._state
        is_copied = state.is_tiered and not state.config.remote_log_copy_disable
        return deletable_segments(
            state.segments,
            state.config,
            log_start_offset=state.log_start_offset,
            log_end_offset=state.log_end_offset,
            high_watermark=state.high_watermark,
            now_ms=now_ms,
            copied_end=state.highest_copied_offset + 1 if is_copied else None,
        )

    def _save_start(self, now_ms: int) -> None:
        """Write the log start to disk before local segments go: no local segment shows it after that."""
        state, start = self._state, self._state.log_start_offset
        state.env.save_bounds(state.log_dir, lambda error: self._keep_epochs(now_ms, start, error))

    def _keep_epochs(self, now_ms: int, start: Offset, error: BaseException | None) -> None:
        """Write the leader epochs of the segments to delete, after the log start: no local record shows them after that."""
        state = self._state
        if error is not None or state.is_closed:
            return  # a failed directory has been reported already
        if state.log_start_offset != start:
            # Records were deleted meanwhile. Epochs that begin above the start on disk omit those in between: after a crash the
            # first record below them would have no leader epoch, and could not be read.
            self._save_start(now_ms)
            return
        try:
            last = next((found.segments[-1] for found in self._deletable(now_ms)[::-1] if found.is_local), None)
        except IndexUnderRepair:
            return
        except OSError as failed:
            state.report(failed)
            return
        if last is not None:
            end = state.segments.base_after(state.segments.floor(last.base_offset))
            assert end is not None
            kept = KeptEpochs(state.epochs.below(end), end)
            keep_epochs(state, kept, lambda error: self._delete_local(now_ms, end, error))

    def _delete_local(self, now_ms: int, end: int, error: BaseException | None) -> None:
        """Delete local segments below `end`: everything that they need is on disk. Check again, much may have changed."""
        state = self._state
        if state.is_closed:
            return
        try:
            if error is not None:
                raise error
            if state.kept_epochs != KeptEpochs(state.epochs.below(end), end):
                return  # the log was truncated meanwhile
            for deletable in self._deletable(now_ms):
                segments = [segment for segment in deletable.segments if segment.base_offset < end]
                if deletable.is_local and segments:
                    self._segments.remove(segments, deletable.reason)
        except IndexUnderRepair:
            return
        except OSError as failed:
            state.report(failed)

    def _delete(self, deletable: Deletable, now_ms: int) -> None:
        state = self._state
        last = deletable.segments[-1]
        if last is state.segments.active:
            self._segments.roll(state.log_end_offset, now_ms)
        after = state.segments.base_after(state.segments.floor(last.base_offset))
        assert after is not None
        # First the offset, then the files: a reader in between gets OFFSET_OUT_OF_RANGE, not half a log.
        self.maybe_increment_log_start_offset(after, deletable.reason)
        self._segments.remove(deletable.segments, deletable.reason)
