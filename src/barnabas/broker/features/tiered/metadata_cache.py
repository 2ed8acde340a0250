"""A partition's segments in the tier, by leader epoch and offset. Pure.

Kafka's RemoteLogMetadataCache, with one difference: of finished copies that overlap, those that reach furthest are read,
whatever their order in the topic. In Kafka a copy that an old leader finishes late hides a longer one of the new leader.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from barnabas.broker.features.tiered.segment_metadata import (
    TRANSITIONS,
    Event,
    Mark,
    PartitionDelete,
    RemoteSegment,
    RemoteSegmentId,
    SegmentState,
    SegmentUpdate,
)


class _Epoch:
    """The finished segments of one leader epoch.

    Invariant: `starts` and `ends` are strictly ascending, so that of the segments that start at or before an offset the last
    one reaches furthest. A segment within another one is in `covered`, and is used again if the other one is removed.
    """

    __slots__ = ("covered", "ends", "ids", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.ids: list[RemoteSegmentId] = []
        self.covered: dict[RemoteSegmentId, tuple[int, int]] = {}

    def add(self, segment_id: RemoteSegmentId, start: int, end: int) -> None:
        """Add a range. A new segment with the same range replaces the older one."""
        self.covered.pop(segment_id, None)
        at = bisect_right(self.starts, start)
        if at and self.ends[at - 1] >= end and (self.starts[at - 1], self.ends[at - 1]) != (start, end):
            if self.ids[at - 1] != segment_id:
                self.covered[segment_id] = (start, end)
            return
        first = bisect_left(self.starts, start)
        last = bisect_right(self.ends, end)
        for i in range(first, last):
            if self.ids[i] != segment_id:
                self.covered[self.ids[i]] = (self.starts[i], self.ends[i])
        self.starts[first:last] = [start]
        self.ends[first:last] = [end]
        self.ids[first:last] = [segment_id]

    def has(self, segment_id: RemoteSegmentId, start: int) -> bool:
        """Whether readers find the segment, whose range begins at `start`."""
        at = bisect_left(self.starts, start)
        return at < len(self.ids) and self.ids[at] == segment_id

    def remove(self, segment_id: RemoteSegmentId, start: int) -> None:
        if self.covered.pop(segment_id, None) is not None or not self.has(segment_id, start):
            return
        at = bisect_left(self.starts, start)
        del self.starts[at], self.ends[at], self.ids[at]
        for other, (start, end) in list(self.covered.items()):
            self.add(other, start, end)

    def floor(self, offset: int) -> RemoteSegmentId | None:
        at = bisect_right(self.starts, offset)
        return self.ids[at - 1] if at and offset <= self.ends[at - 1] else None


class RemoteLogMetadataCache:
    """Invariant: a segment is in the lists of its epochs if and only if its copy is finished."""

    def __init__(self) -> None:
        self._segments: dict[RemoteSegmentId, RemoteSegment] = {}
        self._epochs: dict[int, _Epoch] = {}
        #: Size of all segments whose copy is finished.
        self.size_bytes = 0
        #: Increases with every event that changes something.
        self.version = 0

    def __len__(self) -> int:
        return len(self._segments)

    def get(self, segment_id: RemoteSegmentId) -> RemoteSegment | None:
        return self._segments.get(segment_id)

    # -- events -------------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> bool:
        """Apply an event; return False if it does not fit the current state. Every broker drops such an event."""
        if isinstance(event, PartitionDelete):
            return False
        known = self._segments.get(event.id)
        if event.state not in TRANSITIONS[None if known is None else known.state]:
            return False
        if isinstance(event, SegmentUpdate):
            if known is None:
                return False
            mark = Mark.of(event.custom)
            if (
                event.state is SegmentState.DELETE_STARTED
                and known.is_finished
                and mark is not None
                and mark.if_unfinished
            ):
                return False
            segment = known.updated(event)
        else:
            segment = event
        if known is not None and known.is_finished:
            self._leave(known)
        if segment.state is SegmentState.DELETE_FINISHED:
            del self._segments[segment.id]
        else:
            self._segments[segment.id] = segment
            if segment.is_finished:
                self._enter(segment)
        self.version += 1
        return True

    def _enter(self, segment: RemoteSegment) -> None:
        self.size_bytes += segment.size_bytes
        for epoch, start in segment.epochs.items():
            end = segment.epoch_end(epoch)
            if end >= start:
                self._epochs.setdefault(epoch, _Epoch()).add(segment.id, start, end)

    def _leave(self, segment: RemoteSegment) -> None:
        self.size_bytes -= segment.size_bytes
        for epoch, start in segment.epochs.items():
            if epoch in self._epochs:
                self._epochs[epoch].remove(segment.id, start)

    # -- questions ----------------------------------------------------------------------------------------------------

    def segment_for(self, epoch: int, offset: int) -> RemoteSegment | None:
        """Return the finished segment that has this offset as a record of this epoch."""
        of_epoch = self._epochs.get(epoch)
        found = None if of_epoch is None else of_epoch.floor(offset)
        return None if found is None else self._segments[found]

    def all(self) -> list[RemoteSegment]:
        """Return all segments in any state, sorted by offset."""
        return sorted(self._segments.values(), key=lambda each: (each.start_offset, each.end_offset))

    def of_epoch(self, epoch: int) -> list[RemoteSegment]:
        """Return the segments with records of the epoch, in any state, sorted by offset."""
        return [each for each in self.all() if epoch in each.epochs]

    def finished_of_epoch(self, epoch: int) -> Iterator[RemoteSegment]:
        """Return the segments that readers use, sorted by offset. None of them lies within another."""
        of_epoch = self._epochs.get(epoch)
        return iter([self._segments[each] for each in of_epoch.ids] if of_epoch is not None else [])

    def is_read(self, segment: RemoteSegment) -> bool:
        """Whether readers use the segment. They do not if another copy contains all its records."""
        return any(
            self._epochs[epoch].has(segment.id, start)
            for epoch, start in segment.epochs.items()
            if epoch in self._epochs
        )
