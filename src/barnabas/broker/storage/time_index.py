"""`.timeindex`: sparse map from timestamp to offset. 12 bytes an entry: timestamp int64, relative offset int32.

An entry (timestamp, offset) means: no record up to `offset` in the segment has a larger timestamp, and the record at
`offset` has this timestamp. Timestamps and offsets both ascend.
"""

import struct
from array import array
from bisect import bisect_right
from typing import Final, NamedTuple

from barnabas.base.errors import BrokenInvariant
from barnabas.base.ids import Offset
from barnabas.broker.storage.index_file import CorruptIndex, IndexFile

NO_TIMESTAMP: Final = -1
_ENTRY: Final = struct.Struct(">qi")
_TIMESTAMP: Final = struct.Struct(">q")
_RELATIVE: Final = struct.Struct(">i")
#: Entries between two landmarks.
_STRIDE: Final = 64
_new = tuple.__new__
_timestamp_at = _TIMESTAMP.unpack_from
_relative_at = _RELATIVE.unpack_from


class TimestampOffset(NamedTuple):
    timestamp: int
    offset: Offset


class TimeIndex(IndexFile):
    """Timestamps strictly ascending, offsets ascending.

    A look-up bisects the landmarks (every 64th timestamp, in memory), then the entries between two of them.
    """

    ENTRY_SIZE = 12

    _last: TimestampOffset
    #: Timestamps of entries 0, 64, 128, …
    _landmarks: "array[int]"

    @property
    def is_full(self) -> bool:
        """Whether only the last slot is free, which is kept for the entry that is written when the segment rolls."""
        if not self._opened:
            self.open()
        return self._entries >= self._length // 12 - 1

    @property
    def last_entry(self) -> TimestampOffset:
        """The last entry; (NO_TIMESTAMP, base offset) if there is none."""
        if not self._opened:
            self.open()
        return self._last

    def maybe_append(self, timestamp: int, offset: int, *, skip_full_check: bool = False) -> bool:
        """Add an entry if `timestamp` is larger than the last one; return whether it was.

        A smaller timestamp or offset is a bug of the caller, which passes the largest timestamp so far. At roll
        and close, `skip_full_check` uses the slot that `is_full` holds back.
        """
        if not self._opened:
            self.open()
        entries, last = self._entries, self._last
        if entries:
            if offset < last.offset:
                raise BrokenInvariant(f"{self.path}: offset {offset} is below the last one, {last.offset}")
            if timestamp < last.timestamp:
                raise BrokenInvariant(f"{self.path}: timestamp {timestamp} is below the last one, {last.timestamp}")
        if timestamp <= last.timestamp:
            return False
        if not skip_full_check and self.is_full:
            raise BrokenInvariant(f"{self.path}: append to a full time index of {entries} entries")
        at = entries * 12
        if at + 12 > self._reserved:
            self._reserve(at + 12)
        assert self._map is not None  # otherwise _reserve has raised
        _ENTRY.pack_into(self._map, at, timestamp, self._relative(offset))
        if entries % _STRIDE == 0:
            self._landmarks.append(timestamp)
        self._entries = entries + 1
        self._last = TimestampOffset(timestamp, Offset(offset))
        return True

    def lookup(self, timestamp: int) -> TimestampOffset:
        """Return the entry with the largest timestamp <= `timestamp`; (NO_TIMESTAMP, base offset) if there is none."""
        if not self._opened:
            self.open()
        high = bisect_right(self._landmarks, timestamp) * _STRIDE
        view = self._map
        if high == 0 or view is None:
            return TimestampOffset(NO_TIMESTAMP, Offset(self.base_offset))
        low = high - _STRIDE
        if high > self._entries:
            high = self._entries
        while low < high:
            middle = (low + high) >> 1
            if _timestamp_at(view, middle * 12)[0] <= timestamp:
                low = middle + 1
            else:
                high = middle
        found, relative = _ENTRY.unpack_from(view, low * 12 - 12)
        return _new(TimestampOffset, (found, self.base_offset + relative))

    def after(self, timestamp: int) -> TimestampOffset | None:
        """Return the first entry with a timestamp >= `timestamp`: the first such record is at its offset or before. None if
        there is no such entry."""
        low, high = 0, self.entries
        while low < high:
            middle = (low + high) >> 1
            if self.entry(middle).timestamp < timestamp:
                low = middle + 1
            else:
                high = middle
        return self.entry(low) if low < self._entries else None

    def entry(self, n: int) -> TimestampOffset:
        if not 0 <= n < self.entries:
            raise IndexError(f"{self.path}: entry {n} of {self._entries}")
        assert self._map is not None
        timestamp, relative = _ENTRY.unpack_from(self._map, n * 12)
        return TimestampOffset(timestamp, Offset(self.base_offset + relative))

    def last_below(self, offset: int) -> TimestampOffset:
        """Return the last entry that `truncate_to` would keep; (NO_TIMESTAMP, base offset) if it would keep none."""
        kept = self._entries_below(offset)
        return self.entry(kept - 1) if kept else TimestampOffset(NO_TIMESTAMP, Offset(self.base_offset))

    def truncate_to(self, offset: int) -> None:
        left = self._entries_below(offset)
        if left < self._entries:
            self._cut(left, self._length)

    def _entries_below(self, offset: int) -> int:
        self.open()
        view = self._map
        if view is None:
            return 0
        relative = offset - self.base_offset
        low, high = 0, self._entries
        while low < high:
            middle = (low + high) >> 1
            if _relative_at(view, middle * 12 + 8)[0] < relative:
                low = middle + 1
            else:
                high = middle
        return low

    def _check_ends(self) -> None:
        first, last = self.entry(0), self.entry(self._entries - 1)
        self._check_offsets(first.offset, last.offset, last)
        if self._entries > 1 and (last.timestamp <= first.timestamp or last.offset < first.offset):
            # A crash also leaves this in a preallocated index: a tail of zeros.
            raise CorruptIndex(f"{self.path}: the last entry {last} is not above the first {first}")

    def _on_entries_changed(self) -> None:
        starts = range(0, self._entries, _STRIDE)
        self._landmarks = array("q", [self.entry(number).timestamp for number in starts])
        if self._entries:
            self._last = self.entry(self._entries - 1)
        else:
            self._last = TimestampOffset(NO_TIMESTAMP, Offset(self.base_offset))

    def _on_unmap(self) -> None:
        """No view is kept."""
