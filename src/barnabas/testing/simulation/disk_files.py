"""Files with their pages and directories with their names: the current state and the durable state."""

import mmap
import os
from dataclasses import dataclass
from random import Random
from typing import Final

from barnabas.base.host.disk import ReadableBuffer

PAGE_BYTES: Final = 4096
SECTOR_BYTES: Final = 512
#: Buffers of zeros above this size come from the kernel, which allocates memory on first use: indexes are mostly empty.
_LAZY_BYTES: Final = 1 << 18
NEVER: Final = 1 << 62

#: Kinds of operations, by which faults and costs are chosen.
READ, WRITE, SYNC, NAME, LOOK = "read", "write", "sync", "name", "look"
EVERYTHING: Final = frozenset((READ, WRITE, SYNC, NAME, LOOK))
CHANGES: Final = frozenset((WRITE, SYNC, NAME))


def os_error(number: int, path: str) -> OSError:
    """Return the subclass of `OSError` that `os` would raise."""
    return OSError(number, os.strerror(number), path)


def _zeros(size_bytes: int) -> "bytearray | mmap.mmap":
    return bytearray(size_bytes) if size_bytes <= _LAZY_BYTES else mmap.mmap(-1, size_bytes)


class Node:
    """A file or a directory."""

    __slots__ = ("modified_ns", "pending")

    def __init__(self, modified_ns: int) -> None:
        self.modified_ns = modified_ns
        #: Operations on its name, or on names in it, that are not durable.
        self.pending: list[NameOp] = []


class Dir(Node):
    __slots__ = ("durable", "entries", "settled")

    def __init__(self, modified_ns: int) -> None:
        super().__init__(modified_ns)
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        #: Name -> number of the last durable operation on it: an earlier operation must not undo it.
        self.settled: dict[str, int] = {}


@dataclass(slots=True, eq=False)
class NameOp:
    """A create (no source), an unlink (no target) or a rename. It is durable as a whole or not at all."""

    node: Node
    source: "tuple[Dir, str] | None"
    target: "tuple[Dir, str] | None"
    #: Position among all name operations.
    number: int

    def make_durable(self) -> None:
        if self.source is not None:
            folder, name = self.source
            if folder.durable.get(name) is self.node:
                del folder.durable[name]
            folder.settled[name] = max(folder.settled.get(name, 0), self.number)
        if self.target is not None:
            folder, name = self.target
            if folder.settled.get(name, 0) < self.number:
                folder.durable[name] = self.node
                folder.settled[name] = self.number


class File(Node):
    """A file. Bytes of `data` past `length` are zero, and so are bytes of the file past the end of `data`. `durable`
    likewise.
    """

    __slots__ = (
        "allocated",
        "cold",
        "data",
        "dirty",
        "durable",
        "durable_length",
        "ghosts",
        "high",
        "length",
        "lengths",
        "lock",
        "low",
        "mapped",
        "maps",
        "shrunk_at",
        "unwritten",
    )

    def __init__(self, modified_ns: int) -> None:
        super().__init__(modified_ns)
        self.data: bytearray | mmap.mmap = bytearray()
        self.length = 0
        self.durable = bytearray()
        self.durable_length = 0
        #: Pages written since the last sync, except stores through a map.
        self.dirty: set[int] = set()
        #: Pages that a failed sync did not write: the kernel marks them clean, and the next sync skips them.
        self.unwritten: set[int] = set()
        #: The shortest length since the last sync: bytes from here on may be gone.
        self.low = NEVER
        #: Lengths since the last sync, each of which a power cut may restore.
        self.lengths: list[int] = []
        #: The longest length before such a truncation that was not synced. The kernel may have written pages beyond the
        #: truncation, and may not have written the truncation.
        self.high = 0
        #: The position of that truncation among the name operations.
        self.shrunk_at = 0
        self.ghosts: dict[int, bytes] = {}
        #: Bytes from the start that are allocated on the medium; the rest are holes.
        self.allocated = 0
        #: Whether a map may have changed the file since the last sync.
        self.mapped = False
        self.maps = 0
        #: Whether the file is not in the page cache: readers wait for the disk.
        self.cold = False
        self.lock: Open | None = None

    # -- content

    def read(self, position: int, size_bytes: int) -> bytes:
        end = min(position + size_bytes, self.length)
        if end <= position:
            return b""
        piece = bytes(self.data[position:end])
        return piece if len(piece) == end - position else piece + bytes(end - position - len(piece))

    def write(self, data: ReadableBuffer, position: int) -> None:
        end = position + len(data)
        if end == position:
            return
        held = self.data
        if end <= len(held):
            held[position:end] = data
        else:
            self._grow(position, data)
        if end > self.length:
            self.lengths.append(self.length)
            self.length = end
        if end > self.allocated:
            self.allocated = end
        first, last = position // PAGE_BYTES, (end - 1) // PAGE_BYTES
        if first == last:
            self.dirty.add(first)
        else:
            self.dirty.update(range(first, last + 1))

    def _grow(self, position: int, data: ReadableBuffer) -> None:
        assert not self.maps, "a file grows while it is mapped: not modelled"
        if not isinstance(self.data, bytearray):
            self.data = bytearray(self.data)
        held = self.data
        if position > len(held):
            held.extend(bytes(position - len(held)))
        held[position:] = data

    def truncate(self, size_bytes: int) -> None:
        if size_bytes < self.length:
            self.low = min(self.low, size_bytes)
            self.allocated = min(self.allocated, size_bytes)
            self.high = max(self.high, self.length)
            first = size_bytes // PAGE_BYTES
            cut_off = {page for page in self.dirty if page >= first}
            self.ghosts.update((page, self._page(self.data, page * PAGE_BYTES)) for page in cut_off)
            self.dirty -= cut_off
            self.dirty.add(first)
            held = len(self.data)
            if self.maps:
                # The owner of a map sees zeros where the kernel would kill a real process.
                self.data[size_bytes:held] = bytes(max(held - size_bytes, 0))
            elif size_bytes < held:
                if isinstance(self.data, bytearray):
                    del self.data[size_bytes:]
                else:
                    self.data = bytearray(self.data[:size_bytes])
        self.length = size_bytes

    def map(self, length: int, *, read_only: bool) -> memoryview:
        if len(self.data) < length:
            assert not self.maps, "a file grows while it is mapped: not modelled"
            grown = _zeros(length)
            grown[: len(self.data)] = self.data[:]
            self.data = grown
        self.maps += 1
        view = memoryview(self.data)[:length]
        if read_only:
            return view.toreadonly()
        self.mapped = True
        return view

    def detach(self) -> None:
        """Give remaining maps a copy: they belong to a dead process."""
        self.data = bytearray(self.data)
        self.maps = 0

    # -- durability

    def _settle_map(self) -> None:
        """Find the pages that stores through a map have changed."""
        step = 16 * PAGE_BYTES
        for start in range(0, self.allocated, step):
            if self._differs(start, start + step):
                first = start // PAGE_BYTES
                self.dirty.update(
                    page
                    for page in range(first, first + 16)
                    if page not in self.unwritten and self._differs(page * PAGE_BYTES, (page + 1) * PAGE_BYTES)
                )

    def _differs(self, start: int, end: int) -> bool:
        end = min(end, self.allocated)
        now, then = self.data[start:end], self.durable[start : min(end, self.low)]
        size = max(len(now), len(then))
        return bytes(now).ljust(size, b"\0") != bytes(then).ljust(size, b"\0")

    def dirty_bytes(self) -> int:
        return len(self.dirty) * PAGE_BYTES

    def sync(self) -> None:
        if self.mapped:
            self._settle_map()
        durable = self.durable
        if self.low < len(durable):
            del durable[self.low :]
        self._forget_shrinking()
        dirty = self.dirty
        if dirty:
            first, last = min(dirty), max(dirty)
            if last - first + 1 == len(dirty):
                self._copy(first * PAGE_BYTES, (last + 1) * PAGE_BYTES)
            else:
                for page in dirty:
                    self._copy(page * PAGE_BYTES, (page + 1) * PAGE_BYTES)
            self.unwritten -= dirty
            dirty.clear()
        self.durable_length = self.length
        if not self.maps:
            self.mapped = False

    def write_back_but(self, page: int) -> None:
        """Sync all pages except one."""
        start = page * PAGE_BYTES
        before = self._page(self.durable, start)
        self.sync()
        self.durable[start : start + PAGE_BYTES] = before[: max(len(self.durable) - start, 0)]
        self.dirty.add(page)

    def _forget_shrinking(self) -> None:
        self.low, self.high = NEVER, 0
        self.lengths.clear()
        self.ghosts.clear()

    def commit_shrinking(self) -> None:
        """Make the truncation durable, but not later writes."""
        if self.low != NEVER:
            self.durable_length = min(self.durable_length, self.low)
            del self.durable[self.low :]
            self._forget_shrinking()

    def _copy(self, start: int, end: int) -> None:
        durable = self.durable
        if len(durable) < start:
            durable.extend(bytes(start - len(durable)))
        durable[start:end] = self.data[start : min(end, self.length)]

    def fail_sync(self) -> None:
        if self.mapped:
            self._settle_map()
        self.unwritten |= self.dirty
        self.dirty.clear()

    def cut(self, rng: Random, *, is_shrinking_lost: bool) -> None:
        """Replace the contents with what the medium has. `is_shrinking_lost`: the truncation was lost, and bytes beyond it
        remain.
        """
        if self.mapped:
            self._settle_map()
        doubtful = self.dirty | self.unwritten | set(self.ghosts)
        if self.low < len(self.durable):
            doubtful |= set(range(self.low // PAGE_BYTES, (len(self.durable) - 1) // PAGE_BYTES + 1))
        # Often all or nothing: mixtures alone would hide the simple cases.
        kept = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0)) if doubtful or self.length != self.durable_length else 0.0
        content = self.durable
        for page in sorted(doubtful):
            start = page * PAGE_BYTES
            piece = self._after_cut(page, kept, rng, is_shrinking_lost)
            if len(content) < start + PAGE_BYTES:
                content.extend(bytes(start + PAGE_BYTES - len(content)))
            content[start : start + PAGE_BYTES] = piece
        length = self._length_after_cut(kept, rng, is_shrinking_lost)
        if len(content) > length:
            del content[length:]
        self.data = bytearray(content)
        self.length = self.durable_length = length
        self.dirty.clear()
        self.unwritten.clear()
        self._forget_shrinking()
        self.mapped, self.maps = False, 0
        self.allocated = length
        self.cold = True
        self.lock = None

    def _after_cut(self, page: int, kept: float, rng: Random, is_shrinking_lost: bool) -> bytes:
        start = page * PAGE_BYTES
        now, then = self._page(self.data, start), self._page(self.durable, start)
        if is_shrinking_lost and start >= self.low:
            return self.ghosts.get(page, then) if rng.random() < kept else then
        if kept in (0.0, 1.0):
            return now if kept else then
        if rng.random() < kept:
            return self._torn(now, then, rng) if rng.random() < 0.3 else now
        candidates = [then]
        if start >= self.low:
            candidates.append(bytes(PAGE_BYTES))  # the page was cut off, and later writes are lost
        if page in self.ghosts:
            candidates.append(self.ghosts[page])
        return rng.choice(candidates)

    def _length_after_cut(self, kept: float, rng: Random, is_shrinking_lost: bool) -> int:
        if is_shrinking_lost and self.low != NEVER:
            return rng.choice((self.durable_length, max(self.durable_length, self.high)))
        if kept in (0.0, 1.0):
            return self.length if kept else self.durable_length
        lengths = sorted({self.durable_length, self.length, min(self.low, self.length), max(self.high, self.length)})
        if self.lengths:
            lengths.append(rng.choice(self.lengths))
        # A length grows with the pages that are written back.
        pages = rng.randint(lengths[0] // PAGE_BYTES, lengths[-1] // PAGE_BYTES)
        lengths.append(max(pages * PAGE_BYTES, lengths[0]))
        return rng.choice(lengths)

    def _page(self, data: "bytearray | mmap.mmap", start: int) -> bytes:
        return bytes(data[start : start + PAGE_BYTES]).ljust(PAGE_BYTES, b"\0")

    def _torn(self, new: bytes, old: bytes, rng: Random) -> bytes:
        """Return a mix of old and new sectors, usually with one run of new ones."""
        at = rng.randrange(0, PAGE_BYTES + 1, SECTOR_BYTES)
        return new[:at] + old[at:] if rng.random() < 0.7 else old[:at] + new[at:]


@dataclass(slots=True, eq=False)
class Open:
    file: File
    path: str
    read_only: bool
