"""What of the tier belongs to a log: by leader epochs, as after an unclean election offsets alone would lie. Pure."""

from barnabas.core.ids import Offset
from barnabas.storage.epoch_cache import LeaderEpochCache
from barnabas.tiered.metadata_cache import MetadataCache
from barnabas.tiered.segment_metadata import RemoteSegment


def covered_end(tier: MetadataCache, epochs: LeaderEpochCache, offset: int, log_end: int) -> Offset:
    """The first offset, from `offset` on, that the log has and the tier has not."""
    while offset < log_end:
        epoch = epochs.epoch_at(offset)
        segment = None if epoch is None else tier.segment_for(epoch, offset)
        if epoch is None or segment is None:
            break
        offset = min(segment.epoch_end(epoch) + 1, _own_end(epochs, epoch, log_end))
    return Offset(min(offset, log_end))


def first_available(tier: MetadataCache, epochs: LeaderEpochCache, offset: int, local_start: int) -> Offset:
    """The first offset, from `offset` on, that somebody can read: in the tier, or here from `local_start` on."""
    best = local_start
    for entry in epochs.entries:
        end = _own_end(epochs, entry.epoch, local_start)
        for segment in tier.finished_of_epoch(entry.epoch):
            start = max(segment.epochs[entry.epoch], entry.start_offset, offset)
            if start <= min(segment.epoch_end(entry.epoch), end - 1):
                best = min(best, start)
                break
    return Offset(best)


def is_within(segment: RemoteSegment, epochs: LeaderEpochCache, log_start: int, log_end: int) -> bool:
    """Whether every record of the segment, from the log start on, is one of this log."""
    return all(
        end < log_start
        or _shared(epochs, epoch, max(start, log_start), end, log_end) == end - max(start, log_start) + 1
        for epoch, start, end in _ranges(segment)
    )


def touches(segment: RemoteSegment, epochs: LeaderEpochCache, log_end: int) -> bool:
    """Whether any record of the segment is one of this log."""
    return any(_shared(epochs, epoch, start, end, log_end) > 0 for epoch, start, end in _ranges(segment))


def _ranges(segment: RemoteSegment) -> list[tuple[int, int, int]]:
    return [(epoch, start, segment.epoch_end(epoch)) for epoch, start in segment.epochs.items()]


def _own_end(epochs: LeaderEpochCache, epoch: int, log_end: int) -> int:
    return epochs.end_offset_for(epoch, log_end).end_offset


def _shared(epochs: LeaderEpochCache, epoch: int, start: int, end: int, log_end: int) -> int:
    """How many offsets of [start, end] the log has in this epoch."""
    for entry in epochs.entries:
        if entry.epoch == epoch:
            own_end = min(_own_end(epochs, epoch, log_end), log_end) - 1
            return max(0, min(end, own_end) - max(start, entry.start_offset) + 1)
    return 0
