"""Finds the segments in the tier that belong to a log's history. Pure.

The tier may contain segments of leaders that an unclean election has overruled. Both a log and a segment know the leader epoch
of each of their records: where both agree, the segment's records are the log's.
"""

from collections.abc import Iterator
from typing import NamedTuple

from barnabas.base.ids import Offset
from barnabas.broker.features.tiered.metadata_cache import RemoteLogMetadataCache
from barnabas.broker.features.tiered.segment_metadata import RemoteSegment
from barnabas.broker.storage.epoch_cache import EpochEntry, LeaderEpochCache


class Piece(NamedTuple):
    """Records of the log, from `offset` to `end` (exclusive), in one segment."""

    segment: RemoteSegment
    offset: int
    end: int


def piece_at(view: RemoteLogMetadataCache, epochs: LeaderEpochCache, offset: int) -> Piece | None:
    """None: no finished segment in the tier has the log's record at `offset`."""
    epoch = epochs.epoch_at(offset)
    if epoch is None:
        return _hole_at(view, epochs, offset)
    segment = view.segment_for(epoch, offset)
    if segment is None:
        return None
    end = segment.end_offset + 1
    if len(segment.epochs) == 1 and epochs.end_offset_for(epoch, end).end_offset >= end:
        return Piece(segment, offset, end)  # the common case
    return Piece(segment, offset, _agreed_end(segment, epochs.entries, offset))


def _hole_at(view: RemoteLogMetadataCache, epochs: LeaderEpochCache, offset: int) -> Piece | None:
    """For a log whose first record is above its first offset, as in a formerly compacted topic: return the segment with that
    record if it begins at `offset` or before and has no record below the first one."""
    earliest = epochs.earliest
    first = None if earliest is None else piece_at(view, epochs, earliest.start_offset)
    if earliest is None or first is None or not first.segment.start_offset <= offset < earliest.start_offset:
        return None
    return first._replace(offset=offset) if min(first.segment.epochs.values()) == earliest.start_offset else None


def pieces(view: RemoteLogMetadataCache, epochs: LeaderEpochCache, start: int, end: int) -> Iterator[Piece]:
    """Yield the parts of [start, end) that are in the tier, in order."""
    offset = start
    while offset < end:
        piece = piece_at(view, epochs, offset)
        if piece is not None:
            yield piece
            offset = piece.end
            continue
        following = _next_start(view, epochs, offset)
        if following is None:
            return
        offset = following


def covered_end(view: RemoteLogMetadataCache, epochs: LeaderEpochCache, offset: int, log_end: int) -> Offset:
    """Return the first offset, from `offset` on, that is in the log but not in the tier."""
    for piece in pieces(view, epochs, offset, log_end):
        if piece.offset > offset:
            break
        offset = piece.end
    return Offset(min(offset, log_end))


def first_available(view: RemoteLogMetadataCache, epochs: LeaderEpochCache, offset: int, local_start: int) -> Offset:
    """Return the first readable offset, from `offset` on: in the tier, or locally from `local_start` on."""
    first = next(pieces(view, epochs, offset, local_start), None)
    return Offset(local_start if first is None else min(first.offset, local_start))


def knows_all(view: RemoteLogMetadataCache, epochs: LeaderEpochCache, log_start: int) -> bool:
    """Whether the log knows the epochs of all its records. If not, it is unknown which segments are not the log's."""
    earliest = epochs.earliest
    return earliest is not None and (
        earliest.start_offset <= log_start or piece_at(view, epochs, log_start) is not None
    )


def is_within(segment: RemoteSegment, epochs: LeaderEpochCache, log_start: int, log_end: int) -> bool:
    """Whether every record of the segment, from the log start on, belongs to this log."""
    return all(
        end < log_start
        or _shared(epochs, epoch, max(start, log_start), end, log_end) == end - max(start, log_start) + 1
        for epoch, start, end in _ranges(segment)
    )


def touches(segment: RemoteSegment, epochs: LeaderEpochCache, log_end: int) -> bool:
    """Whether any record of the segment belongs to this log."""
    return any(_shared(epochs, epoch, start, end, log_end) > 0 for epoch, start, end in _ranges(segment))


def _agreed_end(segment: RemoteSegment, ours: list[EpochEntry], offset: int) -> int:
    """Return the offset up to which segment and log have the same epochs, from `offset` on."""
    theirs = sorted(segment.epochs.items())
    end = segment.end_offset + 1
    for place, (epoch, start) in enumerate(ours):
        if place + 1 < len(ours) and ours[place + 1].start_offset <= offset:
            continue
        if start >= end:
            break
        after = ours[place + 1] if place + 1 < len(ours) else None
        their_next = next(((other, at) for other, at in theirs if other > epoch), None)
        our_end = end if after is None else min(after.start_offset, end)
        their_end = end if their_next is None else min(their_next[1], end)
        if our_end != their_end:
            return min(our_end, their_end)
        if our_end == end:
            return end
        if after is not None and their_next is not None and after.epoch != their_next[0]:
            return our_end
    return end


def _next_start(view: RemoteLogMetadataCache, epochs: LeaderEpochCache, offset: int) -> int | None:
    """Return the offset at which the tier continues after a gap."""
    entries = epochs.entries
    for place, (epoch, start) in enumerate(entries):
        end = entries[place + 1].start_offset if place + 1 < len(entries) else None
        if end is not None and end <= offset:
            continue
        for segment in view.finished_of_epoch(epoch):
            begins = max(segment.epochs[epoch], start)
            if begins > offset and (end is None or begins < end):
                return begins
    return None


def _ranges(segment: RemoteSegment) -> list[tuple[int, int, int]]:
    return [(epoch, start, segment.epoch_end(epoch)) for epoch, start in segment.epochs.items()]


def _shared(epochs: LeaderEpochCache, epoch: int, start: int, end: int, log_end: int) -> int:
    """Return how many offsets of [start, end] the log has in this epoch."""
    own_start = epochs.start_of(epoch)
    if own_start is None:
        return 0
    own_end = min(epochs.end_offset_for(epoch, log_end).end_offset, log_end) - 1
    return max(0, min(end, own_end) - max(start, own_start) + 1)
