"""`.index`: sparse map from offset to file position. 8 bytes an entry: relative offset int32, position int32.

An entry (offset, position) means: the batch at `position` ends with `offset` (Kafka stores the last offset of
a batch). A look-up gives the largest entry <= the target; the reader scans on from there.
"""

import ctypes
import struct
from array import array
from bisect import bisect_right
from typing import Final, NamedTuple

from barnabas.base.errors import BrokenInvariant
from barnabas.base.ids import Offset
from barnabas.broker.storage.index_file import CorruptIndex, IndexFile

_ENTRY: Final = struct.Struct(">ii")
_POSITION_MASK: Final = 0xFFFFFFFF
#: An entry read as one big-endian number sorts by relative offset, then position: bisect needs no Python per step.
_Packed = ctypes.c_uint64.__ctype_be__
#: Entries between two landmarks: 512 bytes of the file, so that they never lie across pages.
_STRIDE: Final = 64
_new = tuple.__new__


class OffsetPosition(NamedTuple):
    offset: Offset
    position: int


class OffsetIndex(IndexFile):
    """Offsets strictly ascending, positions ascending.

    A look-up bisects the landmarks (every 64th entry, in memory), then the entries between two of them in the map: it
    faults in one page at most, and costs half of what bisecting the map alone would.
    """

    ENTRY_SIZE = 8

    #: The last offset with an entry, or the base offset if there is none.
    _last_offset: int
    _packed: "ctypes.Array[ctypes.c_uint64] | None" = None
    #: Entries 0, 64, 128, … as `_packed` stores them.
    _landmarks: "array[int]"

    @property
    def last_offset(self) -> Offset:
        if not self._opened:
            self.open()
        return Offset(self._last_offset)

    def append(self, offset: int, position: int) -> None:
        """Add an entry. The caller has checked `is_full` (and rolled)."""
        if not self._opened:
            self.open()
        entries = self._entries
        if entries and offset <= self._last_offset:
            raise BrokenInvariant(f"{self.path}: offset {offset} is not above the last one, {self._last_offset}")
        at = entries * 8
        if at + 8 > self._reserved:
            self._reserve(at + 8)
        assert self._map is not None  # otherwise _reserve has raised
        relative = self._relative(offset)
        _ENTRY.pack_into(self._map, at, relative, position)
        if entries % _STRIDE == 0:
            self._landmarks.append(relative << 32 | position)
        self._entries = entries + 1
        self._last_offset = offset

    def lookup(self, offset: int) -> OffsetPosition:
        """Return the largest entry <= `offset`; (base offset, 0) if there is none."""
        slot = self._slot_after(offset)
        if slot == 0 or self._packed is None:
            return OffsetPosition(Offset(self.base_offset), 0)
        entry: int = self._packed[slot - 1]
        return _new(OffsetPosition, (self.base_offset + (entry >> 32), entry & _POSITION_MASK))

    def lookup_position(self, offset: int) -> int:
        """Return `lookup(offset).position`, for the hot path of a fetch."""
        slot = self._slot_after(offset)
        return self._packed[slot - 1] & _POSITION_MASK if slot and self._packed is not None else 0

    def _slot_after(self, offset: int) -> int:
        """Return the number of entries <= `offset`."""
        if not self._opened:
            self.open()
        relative = offset - self.base_offset
        if self._packed is None or relative < 0:
            return 0
        target = relative << 32 | _POSITION_MASK
        end = bisect_right(self._landmarks, target) * _STRIDE
        if end == 0:
            return 0
        return bisect_right(self._packed, target, end - _STRIDE, end if end < self._entries else self._entries)

    def next_position(self, offset: int) -> int | None:
        """Return the start of a batch whose records are all above `offset`; None if no entry shows one."""
        slot = self._slot_after(offset)
        # The next entry's batch may begin at or below `offset`: an entry names the end of its batch. The one after is above.
        return self.entry(slot + 1).position if slot + 1 < self.entries else None

    def floor_position(self, position: int) -> int:
        """Return the largest indexed position <= `position`; 0, the first batch, if there is none."""
        if not self._opened:
            self.open()
        packed = self._packed
        if packed is None:
            return 0
        low, high = 0, self._entries
        while low < high:
            middle = (low + high) >> 1
            if packed[middle] & _POSITION_MASK <= position:
                low = middle + 1
            else:
                high = middle
        return packed[low - 1] & _POSITION_MASK if low else 0

    def entry(self, n: int) -> OffsetPosition:
        if not 0 <= n < self.entries:
            raise IndexError(f"{self.path}: entry {n} of {self._entries}")
        assert self._map is not None
        relative, position = _ENTRY.unpack_from(self._map, n * 8)
        return OffsetPosition(Offset(self.base_offset + relative), position)

    def truncate_to(self, offset: int) -> None:
        self.open()
        keep = self._slot_after(offset - 1)
        if keep < self._entries:
            self._cut(keep, self._length)

    def _check_ends(self) -> None:
        first, last = self.entry(0), self.entry(self._entries - 1)
        self._check_offsets(first.offset, last.offset, last)
        if last.position < 0 or first.position < 0:
            raise CorruptIndex(f"{self.path}: entry {last} has a negative position")
        if self._entries > 1 and (last.offset <= first.offset or last.position < first.position):
            # A crash also leaves this in a preallocated index: a tail of zeros.
            raise CorruptIndex(f"{self.path}: the last entry {last} is not above the first {first}")

    def _on_entries_changed(self) -> None:
        if self._map is None:
            self._packed = None
            self._landmarks = array("Q")
        else:
            kind = _Packed * (self._length // 8)
            self._packed = kind.from_buffer_copy(self._map) if self._read_only else kind.from_buffer(self._map)
            self._landmarks = array("Q", self._packed[0 : self._entries : _STRIDE])
        self._last_offset = self.entry(self._entries - 1).offset if self._entries else self.base_offset

    def _on_unmap(self) -> None:
        self._packed = None
