"""Decides which log to clean, and which offsets of it. Pure decisions.

Follows Kafka's LogCleanerManager (cleanableOffsets, grabFilthiestCompactedLog).
"""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from barnabas.base.config.log_config import LONG_MAX
from barnabas.base.ids import TopicPartition
from barnabas.broker.storage.cleaner.job import CleanJob, LastRecord, SourceSegment
from barnabas.broker.storage.cleaner.settings import CleanerSettings

if TYPE_CHECKING:
    from barnabas.broker.storage.log import Log
    from barnabas.broker.storage.segment import Segment

logger = logging.getLogger(__name__)


class DirtyRange(NamedTuple):
    #: Everything below is clean.
    first_dirty_offset: int
    #: Base offset of the first segment that may not be cleaned.
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    #: How long the oldest dirty record has waited past `max.compaction.lag.ms`; 0: it need not be compacted yet.
    overdue_ms: int
    #: Whether the checkpoint was outside the log: write `first_dirty_offset` instead.
    checkpoint_reset: bool

    @property
    def ratio(self) -> float:
        """The dirty share of the cleanable bytes, from 0 to 1."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


class Candidate(NamedTuple):
    partition: TopicPartition
    dirty: DirtyRange
    min_cleanable_dirty_ratio: float

    @property
    def may_be_cleaned(self) -> bool:
        dirty = self.dirty
        return (dirty.overdue_ms > 0 and dirty.dirty_bytes > 0) or dirty.ratio > self.min_cleanable_dirty_ratio


def dirty_range(log: "Log", checkpoint: int | None, now_ms: int) -> DirtyRange:
    """Return the dirty and cleanable part of `log`. Reads segments, not records."""
    first_dirty, reset = _first_dirty(log, checkpoint)
    config = log.config
    segments = log.segments
    inactive = list(segments)[:-1]
    dirty = inactive[max(min(segments.floor(first_dirty), len(inactive)), 0) :]
    # Also stay below the recovery point: after a crash, a hole above it would look like a lost tail.
    uncleanable = min(log.last_stable_offset, segments.active.base_offset, log.recovery_point)
    if config.min_compaction_lag_ms > 0:
        newest = now_ms - config.min_compaction_lag_ms
        young = next((segment for segment in dirty if segment.largest_timestamp > newest), None)
        if young is not None:
            uncleanable = min(uncleanable, young.base_offset)
    uncleanable = max(uncleanable, first_dirty)
    # A segment is cleaned whole or not at all.
    end_offset = segments.at(max(segments.floor(uncleanable), 0)).base_offset
    clean_bytes = sum(segment.size_bytes for segment in inactive if segment.base_offset < first_dirty)
    dirty_bytes = 0
    if first_dirty < end_offset:
        # The segment that holds the first dirty offset counts on both sides, as in Kafka.
        dirty_bytes = sum(segment.size_bytes for segment in dirty if segment.base_offset < end_offset)
    return DirtyRange(first_dirty, end_offset, clean_bytes, dirty_bytes, _overdue_ms(log, dirty, now_ms), reset)


def _first_dirty(log: "Log", checkpoint: int | None) -> tuple[int, bool]:
    """Return (first dirty offset, whether the checkpoint was outside this log)."""
    start, end = log.log_start_offset, log.log_end_offset
    if checkpoint is None:
        return start, False
    if checkpoint < start:
        # With retention beside compaction the log start moves up: that is normal.
        if not log.config.is_deleted_by_retention:
            logger.warning(
                "[log cleaner] %s begins at %d, after its cleaner checkpoint %d: cleaning from its start",
                log.partition,
                start,
                checkpoint,
            )
        return start, True
    if checkpoint > end:
        logger.warning(
            "[log cleaner] %s ends at %d, before its cleaner checkpoint %d: cleaning all of it",
            log.partition,
            end,
            checkpoint,
        )
        return start, True
    return checkpoint, False


def _overdue_ms(log: "Log", dirty: "Iterable[Segment]", now_ms: int) -> int:
    lag_ms = max(log.config.max_compaction_lag_ms, 0)
    if lag_ms == LONG_MAX:
        return 0
    oldest = min((segment.first_timestamp for segment in dirty if segment.first_timestamp > 0), default=None)
    return 0 if oldest is None else max(now_ms - lag_ms - oldest, 0)


def filthiest(candidates: Iterable[Candidate]) -> Candidate | None:
    """Return the candidate with the largest share of dirty bytes among those that may be cleaned."""
    allowed = [candidate for candidate in candidates if candidate.may_be_cleaned]
    return max(allowed, key=lambda candidate: candidate.dirty.ratio, default=None)


def clean_job(log: "Log", dirty: DirtyRange, settings: CleanerSettings, now_ms: int) -> CleanJob:
    """Build the worker's job for `log`. `dirty` has bytes."""
    config = log.config
    bases = log.segments.base_offsets
    inside = [segment for segment in log.segments if segment.base_offset < dirty.end_offset]
    rate = settings.io_max_bytes_per_second
    return CleanJob(
        partition=str(log.partition),
        directory=log.directory,
        segments=tuple(
            SourceSegment(segment.base_offset, segment.size_bytes, end)
            for segment, end in zip(inside, bases[1:], strict=False)
        ),
        later_segments=tuple(bases[len(inside) :]),
        first_dirty_offset=dirty.first_dirty_offset,
        end_offset=dirty.end_offset,
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        max_message_bytes=config.max_message_bytes,
        dedupe_buffer_bytes=int(settings.dedupe_buffer_size * settings.io_buffer_load_factor) // settings.threads,
        io_buffer_bytes=settings.io_buffer_size // settings.threads,
        io_bytes_per_second=None if rate is None else rate / settings.threads,
        # The present producers: a later batch of one is not in these segments, so this keeps too much at most.
        producers={
            producer_id: LastRecord(entry.last_data_offset, entry.producer_epoch)
            for producer_id, entry in log.producers.producers.items()
            if entry.last_data_offset < dirty.end_offset
        },
    )
