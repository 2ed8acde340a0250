"""The segments of a log in the order of their base offsets. Owner: the log."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from barnabas.base.errors import BrokenInvariant
from barnabas.broker.storage.segment import Segment


class SegmentList:
    """Base offsets strictly ascending; the last segment is the active one."""

    __slots__ = ("_bases", "_segments", "active")

    active: Segment

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self._segments = sorted(segments, key=lambda segment: segment.base_offset)
        self._bases = [segment.base_offset for segment in self._segments]
        self._note_active()

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __contains__(self, segment: Segment) -> bool:
        return self.get(segment.base_offset) is segment

    def _note_active(self) -> None:
        """Keep the last segment at hand for appends; a list without segments has none."""
        if self._segments:
            self.active = self._segments[-1]
        elif hasattr(self, "active"):
            del self.active

    @property
    def first(self) -> Segment:
        return self._segments[0]

    @property
    def base_offsets(self) -> list[int]:
        return list(self._bases)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    def get(self, base_offset: int) -> Segment | None:
        at = bisect_left(self._bases, base_offset)
        return self._segments[at] if at < len(self._bases) and self._bases[at] == base_offset else None

    def add(self, segment: Segment) -> None:
        """Insert a segment; it replaces one with the same base offset."""
        at = bisect_left(self._bases, segment.base_offset)
        if at < len(self._bases) and self._bases[at] == segment.base_offset:
            self._segments[at] = segment
        else:
            self._bases.insert(at, segment.base_offset)
            self._segments.insert(at, segment)
        self._note_active()

    def remove(self, segment: Segment) -> None:
        at = bisect_left(self._bases, segment.base_offset)
        if at == len(self._bases) or self._segments[at] is not segment:
            raise BrokenInvariant(f"{segment} is not in the log")
        del self._bases[at], self._segments[at]
        self._note_active()

    def floor(self, offset: int) -> int:
        """Return the place of the last segment whose base is at or below `offset`; -1 if there is none."""
        return bisect_right(self._bases, offset) - 1

    def at(self, place: int) -> Segment:
        return self._segments[place]

    def base_after(self, place: int) -> int | None:
        """Return the base offset of the segment after that place, if any."""
        return self._bases[place + 1] if place + 1 < len(self._bases) else None

    def overlapping(self, start_offset: int, end_offset: int) -> list[Segment]:
        """Return the segments from the one that holds `start_offset` to the one that holds `end_offset - 1`."""
        first = max(self.floor(start_offset), 0)
        return self._segments[first : bisect_left(self._bases, end_offset)]
