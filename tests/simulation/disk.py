"""A disk in memory, with a page cache that a power cut loses and a medium that it does not.

`SimDisk` is the machine's: it lives through crashes and restarts. A process gets a `Life` of it (`SimDisk.life`), which is
the `Disk` that production code sees, and which ends with the process: descriptors, maps and locks are gone then, and what
a coroutine of the dead process still tries changes nothing.

What is durable: a file's pages and length after `fsync`, a directory's names after `fsync_dir`. Of all else a power cut keeps
any part: each page, torn at sectors too; each length; each create, rename and unlink by itself. All choices come from the
`Random` that the cut is given, in an order that depends on nothing else.

Not modelled: links, permissions, a map that grows with its file. Stores through a map count where bytes were written or
reserved before: elsewhere they could find the disk full, and the real process would be killed. `SimDisk` is not thread-safe.
"""

import errno
import mmap
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from barnabas.runtime.disk import Disk, FileMap, ReadableBuffer, WritableBuffer

PAGE_BYTES: Final = 4096
SECTOR_BYTES: Final = 512
#: Zeros of more than this come from the kernel, which gives them memory when they are used: indexes are mostly empty.
_LAZY_BYTES: Final = 1 << 18
_NEVER: Final = 1 << 62

#: What an operation does: faults and costs go by it.
READ, WRITE, SYNC, NAME, LOOK = "read", "write", "sync", "name", "look"
EVERYTHING: Final = frozenset((READ, WRITE, SYNC, NAME, LOOK))
CHANGES: Final = frozenset((WRITE, SYNC, NAME))


def _error(number: int, path: str) -> OSError:
    """The subclass that `os` would raise."""
    return OSError(number, os.strerror(number), path)


def _zeros(size_bytes: int) -> "bytearray | mmap.mmap":
    return bytearray(size_bytes) if size_bytes <= _LAZY_BYTES else mmap.mmap(-1, size_bytes)


@dataclass(slots=True)
class Fault:
    """What goes wrong under a path, until it is healed. A restart does not heal."""

    prefix: str
    kinds: frozenset[str]
    errno: int = errno.EIO
    #: Bytes that files may still grow by; None: the fault is there at once.
    room_bytes: int | None = None
    #: One write takes no more than this; the rest of the fault does not happen.
    write_bytes_max: int | None = None

    def covers(self, path: str) -> bool:
        return path == self.prefix or path.startswith(self.prefix.rstrip("/") + "/")


class _Node:
    """What a name stands for."""

    __slots__ = ("modified_ns", "pending")

    def __init__(self, modified_ns: int) -> None:
        self.modified_ns = modified_ns
        #: Operations on its name, and on names in it, that are not durable.
        self.pending: list[_NameOp] = []


class _Dir(_Node):
    __slots__ = ("durable", "entries", "settled")

    def __init__(self, modified_ns: int) -> None:
        super().__init__(modified_ns)
        self.entries: dict[str, _Node] = {}
        self.durable: dict[str, _Node] = {}
        #: By name, the last operation on it that is durable: one before it must not undo that.
        self.settled: dict[str, int] = {}


@dataclass(slots=True, eq=False)
class _NameOp:
    """A create (no source), an unlink (no target) or a rename: it happens whole or not at all."""

    node: _Node
    source: "tuple[_Dir, str] | None"
    target: "tuple[_Dir, str] | None"
    #: Its place in the order of all.
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


class _File(_Node):
    """Bytes of `data` past `length` are zero, and so are those of the file past `data`. `durable` likewise."""

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
        #: Pages written since the last sync, but for stores through a map.
        self.dirty: set[int] = set()
        #: Pages that a sync failed to write: the kernel forgets that they are dirty, and the next sync passes them over.
        self.unwritten: set[int] = set()
        #: The shortest that it was since the last sync: what it held from here on may be gone.
        self.low = _NEVER
        #: How long it was since, and may be after a power cut.
        self.lengths: list[int] = []
        #: The longest that it was before such a cut, and the pages that were cut off before any sync: they may have reached
        #: the medium by themselves, and the cut may not.
        self.high = 0
        #: When that was, among the operations on names.
        self.shrunk_at = 0
        self.ghosts: dict[int, bytes] = {}
        #: Bytes from the start that have room on the medium; the rest are holes.
        self.allocated = 0
        #: A map may have changed it since the last sync, and how many there are now.
        self.mapped = False
        self.maps = 0
        #: Not in memory: whoever reads it waits for the disk.
        self.cold = False
        self.lock: _Open | None = None

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
                # Its owner sees zeros where the real one would be killed.
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
        """Whoever still has a map of it has the map of a dead process: a copy."""
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

    def _forget_shrinking(self) -> None:
        self.low, self.high = _NEVER, 0
        self.lengths.clear()
        self.ghosts.clear()

    def commit_shrinking(self) -> None:
        """That it was shorter is durable; what was written since is not."""
        if self.low != _NEVER:
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
        """What the medium has of it becomes what it is. `is_shrinking_lost`: it was never cut off, and not overwritten."""
        if self.mapped:
            self._settle_map()
        doubtful = self.dirty | self.unwritten | set(self.ghosts)
        if self.low < len(self.durable):
            doubtful |= set(range(self.low // PAGE_BYTES, (len(self.durable) - 1) // PAGE_BYTES + 1))
        # Often all or nothing: what comes of mixtures alone would hide the plain cases.
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
            candidates.append(bytes(PAGE_BYTES))  # it was cut off, and what was written after that is lost
        if page in self.ghosts:
            candidates.append(self.ghosts[page])
        return rng.choice(candidates)

    def _length_after_cut(self, kept: float, rng: Random, is_shrinking_lost: bool) -> int:
        if is_shrinking_lost and self.low != _NEVER:
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
        """Sectors of both, usually a run of new ones."""
        at = rng.randrange(0, PAGE_BYTES + 1, SECTOR_BYTES)
        return new[:at] + old[at:] if rng.random() < 0.7 else old[:at] + new[at:]


@dataclass(slots=True, eq=False)
class _Open:
    file: _File
    path: str
    read_only: bool


class SimDisk:
    """The disk of one machine. Paths are absolute; `/` is there from the beginning.

    `fsync_makes_name_durable`: as on ext4, an fsync of a file that was just created or renamed makes that durable too.
    `journaled`: changes of names and truncations are durable in their order, all of them with the next fsync of anything, as
    on ext4 and XFS. A power cut keeps the first of the others, and not any subset.
    """

    def __init__(
        self,
        *,
        capacity_bytes: int = 1 << 40,
        fsync_makes_name_durable: bool = True,
        journaled: bool = False,
        now_ns: Callable[[], int] = lambda: 0,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.fsync_makes_name_durable = fsync_makes_name_durable
        self.journaled = journaled
        self.now_ns = now_ns
        #: Called before each operation with its kind and the bytes that it moves.
        self.on_cost: Callable[[str, int], None] | None = None
        self.faults: list[Fault] = []
        self._root = _Dir(now_ns())
        self._pending: dict[int, _NameOp] = {}
        self._shrunk: list[_File] = []
        self._op_number = 0
        self._next_fd = 1000
        self._lives: list[Life] = []

    # -- processes and power

    def life(self) -> "Life":
        """The disk for one process, until it dies."""
        life = Life(self)
        self._lives.append(life)
        return life

    def process_died(self, life: "Life") -> None:
        """The page cache stays; descriptors, maps and locks are gone."""
        life.end()
        if life in self._lives:
            self._lives.remove(life)

    def power_cut(self, rng: Random) -> None:
        """Every process dies, and with them whatever part of the page cache `rng` says."""
        for life in list(self._lives):
            self.process_died(life)
        ops = list(self._pending.values())
        until = _NEVER
        if self.journaled:
            until = rng.randint(ops[0].number - 1, self._op_number) if ops else rng.choice((0, self._op_number))
            kept = [op for op in ops if op.number <= until]
        else:
            chance = rng.choice((0.0, 0.2, 0.5, 0.8, 1.0)) if ops else 0.0
            kept = [op for op in ops if rng.random() < chance]
        for op in kept:
            op.make_durable()
        self._pending.clear()
        self._shrunk.clear()
        self._cut(self._root, rng, until)

    def _cut(self, folder: _Dir, rng: Random, until: int) -> None:
        folder.entries = dict(folder.durable)
        folder.pending.clear()
        folder.settled.clear()
        for _, node in sorted(folder.entries.items()):
            if isinstance(node, _Dir):
                self._cut(node, rng, until)
            else:
                assert isinstance(node, _File)
                node.pending.clear()
                if self.journaled and node.shrunk_at <= until:
                    node.commit_shrinking()
                node.cut(rng, is_shrinking_lost=node.shrunk_at > until)

    def note_shrinking(self, file: _File) -> None:
        if self.journaled:
            self._op_number += 1
            file.shrunk_at = self._op_number
            self._shrunk.append(file)

    def commit(self) -> None:
        """Somebody syncs, and so the journal is written."""
        if self.journaled:
            for op in list(self._pending.values()):
                self._settle(op)
            for file in self._shrunk:
                file.commit_shrinking()
            self._shrunk.clear()

    def write_back(self) -> None:
        """What the kernel does sooner or later by itself: everything is durable."""
        for op in list(self._pending.values()):
            self._settle(op)
        for _, node in self._walk(self._root, ""):
            if isinstance(node, _File):
                node.sync()

    def evict(self, prefix: str = "/") -> None:
        """The page cache forgets what is durable anyway: reads under `prefix` wait for the disk."""
        for path, node in self._walk(self._root, ""):
            if isinstance(node, _File) and path.startswith(prefix):
                node.cold = True

    # -- faults

    def fail(self, prefix: str, kinds: frozenset[str] = EVERYTHING, *, error: int = errno.EIO) -> Fault:
        """Everything under `prefix` fails: a dead directory. Or only what `kinds` says."""
        return self._add(Fault(prefix, kinds, error))

    def fail_reads(self, prefix: str) -> Fault:
        return self._add(Fault(prefix, frozenset((READ,))))

    def fail_writes(self, prefix: str) -> Fault:
        return self._add(Fault(prefix, CHANGES))

    def make_read_only(self, prefix: str) -> Fault:
        return self._add(Fault(prefix, frozenset((WRITE, NAME)), errno.EROFS))

    def fill(self, prefix: str, *, after_bytes: int = 0) -> Fault:
        """No space left, once files have grown by so much more."""
        return self._add(Fault(prefix, frozenset((WRITE,)), errno.ENOSPC, room_bytes=after_bytes))

    def shorten_writes(self, prefix: str, *, to_bytes: int) -> Fault:
        return self._add(Fault(prefix, frozenset((WRITE,)), write_bytes_max=to_bytes))

    def heal(self, prefix: str | None = None) -> None:
        """All faults, or those that were set for `prefix`."""
        self.faults = [] if prefix is None else [fault for fault in self.faults if fault.prefix != prefix]

    def _add(self, fault: Fault) -> Fault:
        self.faults.append(fault)
        return fault

    def check(self, kind: str, path: str) -> None:
        for fault in self.faults:
            if (
                kind in fault.kinds
                and fault.room_bytes is None
                and fault.write_bytes_max is None
                and fault.covers(path)
            ):
                raise _error(fault.errno, path)

    def writable_bytes(self, path: str, size_bytes: int, growth_bytes: int, *, is_whole: bool = False) -> int:
        """How much of a write is done; `OSError` where nothing is. `is_whole`: it is not taken in pieces."""
        for fault in self.faults:
            if WRITE not in fault.kinds or not fault.covers(path):
                continue
            if fault.write_bytes_max is not None:
                size_bytes = size_bytes if is_whole else min(size_bytes, max(fault.write_bytes_max, 1))
            elif fault.room_bytes is not None:
                lacking = growth_bytes - fault.room_bytes
                if lacking >= size_bytes and growth_bytes:
                    raise _error(fault.errno, path)
                fault.room_bytes -= min(growth_bytes, fault.room_bytes)
                size_bytes -= max(lacking, 0)
            else:
                raise _error(fault.errno, path)
        return size_bytes

    def room_bytes(self, path: str) -> int:
        used = sum(node.length for _, node in self._walk(self._root, "") if isinstance(node, _File))
        rooms = [fault.room_bytes for fault in self.faults if fault.room_bytes is not None and fault.covers(path)]
        return min([self.capacity_bytes - used, *rooms])

    # -- names

    def files(self, prefix: str = "/") -> dict[str, bytes]:
        """What is in the page cache, by path: for tests."""
        return {
            path: node.read(0, node.length)
            for path, node in self._walk(self._root, "")
            if isinstance(node, _File) and path.startswith(prefix)
        }

    def _walk(self, folder: _Dir, path: str) -> Iterator[tuple[str, _Node]]:
        for name, node in sorted(folder.entries.items()):
            yield f"{path}/{name}", node
            if isinstance(node, _Dir):
                yield from self._walk(node, f"{path}/{name}")

    def find(self, path: str) -> _Node:
        node: _Node = self._root
        for name in path.split("/"):
            if name:
                if not isinstance(node, _Dir):
                    raise _error(errno.ENOTDIR, path)
                found = node.entries.get(name)
                if found is None:
                    raise _error(errno.ENOENT, path)
                node = found
        return node

    def find_parent(self, path: str) -> tuple[_Dir, str]:
        parent, _, name = path.rstrip("/").rpartition("/")
        folder = self.find(parent)
        if not isinstance(folder, _Dir):
            raise _error(errno.ENOTDIR, path)
        return folder, name

    def change_name(self, node: _Node, source: tuple[_Dir, str] | None, target: tuple[_Dir, str] | None) -> None:
        now_ns = self.now_ns()
        self._op_number += 1
        op = _NameOp(node, source, target, self._op_number)
        self._pending[op.number] = op
        node.pending.append(op)
        for place in (source, target):
            if place is not None:
                folder, name = place
                folder.modified_ns = now_ns
                if len(folder.pending) > 100:
                    self._forget_settled(folder)
                folder.pending.append(op)
                if place is target:
                    folder.entries[name] = node
                else:
                    del folder.entries[name]

    def _settle(self, op: _NameOp) -> None:
        if self._pending.pop(op.number, None) is not None:
            op.make_durable()

    def sync_names(self, folder: _Dir) -> None:
        """Those in the directory."""
        for op in folder.pending:
            if op.node is not folder:
                self._settle(op)
        self._forget_settled(folder)
        self.sync_name_of(folder)

    def sync_name_of(self, node: _Node) -> None:
        """Where the disk is of that kind. A name is durable only in a directory that is."""
        if not self.fsync_makes_name_durable or not node.pending:
            return
        own = [op for op in node.pending if op.node is node]
        for op in own:
            self._settle(op)
        self._forget_settled(node)
        for op in own:
            for place in (op.source, op.target):
                if place is not None:
                    self.sync_name_of(place[0])

    def _forget_settled(self, node: _Node) -> None:
        node.pending = [op for op in node.pending if op.number in self._pending]

    def next_fd(self) -> int:
        self._next_fd += 1
        return self._next_fd


class Life(Disk):
    """The disk as one process sees it. After its end nothing works any more, and `close` does nothing."""

    __slots__ = ("_disk", "_ended", "_fds", "_maps")

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self._ended = False
        self._fds: dict[int, _Open] = {}
        self._maps: list[tuple[memoryview, _File]] = []

    def end(self) -> None:
        self._ended = True
        for opened in self._fds.values():
            if opened.file.lock is opened:
                opened.file.lock = None
        self._fds.clear()
        for _, file in self._maps:
            file.detach()
        self._maps.clear()

    @property
    def open_count(self) -> int:
        """Descriptors and maps: for tests that look for leaks."""
        return len(self._fds) + len(self._maps)

    def _enter(self, kind: str, path: str, size_bytes: int = 0) -> SimDisk:
        disk = self._disk
        if self._ended:
            raise OSError(errno.ESHUTDOWN, "the process has ended", path)
        if disk.on_cost is not None:
            disk.on_cost(kind, size_bytes)
        if disk.faults:
            disk.check(kind, path)
        return disk

    def _opened(self, fd: int) -> _Open:
        opened = self._fds.get(fd)
        if opened is None:
            raise _error(errno.ESHUTDOWN if self._ended else errno.EBADF, f"descriptor {fd}")
        return opened

    def _readable(self, fd: int, kind: str, size_bytes: int) -> _File:
        opened = self._opened(fd)
        disk = self._disk
        if disk.on_cost is not None:
            disk.on_cost(kind, size_bytes)
        if disk.faults:
            disk.check(kind, opened.path)
        return opened.file

    def _changeable(self, fd: int, size_bytes: int) -> _Open:
        opened = self._opened(fd)
        if opened.read_only:
            raise _error(errno.EBADF, opened.path)
        self._enter(WRITE, opened.path, size_bytes)
        return opened

    # -- open files

    def open(
        self,
        path: str,
        *,
        create: bool = False,
        exclusive: bool = False,
        truncate: bool = False,
        read_only: bool = False,
        mode: int = 0o644,
    ) -> int:
        disk = self._enter(LOOK, path)
        folder, name = disk.find_parent(path)
        node: _Node | None = folder.entries.get(name) if name else folder
        if node is None:
            if not (create or exclusive):
                raise _error(errno.ENOENT, path)
            self._enter(NAME, path)
            node = _File(disk.now_ns())
            disk.change_name(node, None, (folder, name))
        elif exclusive:
            raise _error(errno.EEXIST, path)
        if not isinstance(node, _File):
            raise _error(errno.EISDIR, path)
        if not read_only and disk.faults:
            # A file system that is mounted read-only refuses here already.
            for fault in disk.faults:
                if fault.errno == errno.EROFS and fault.covers(path):
                    raise _error(errno.EROFS, path)
        if truncate and node.length:
            self._enter(WRITE, path)
            disk.note_shrinking(node)
            node.truncate(0)
        fd = disk.next_fd()
        self._fds[fd] = _Open(node, path, read_only)
        return fd

    def close(self, fd: int) -> None:
        opened = self._fds.pop(fd, None)
        if opened is None:
            if self._ended:
                return
            raise _error(errno.EBADF, f"descriptor {fd}")
        if opened.file.lock is opened:
            opened.file.lock = None

    def pwrite(self, fd: int, data: ReadableBuffer, position: int) -> int:
        opened = self._fds.get(fd)
        if opened is None or opened.read_only:
            raise _error(errno.ESHUTDOWN if self._ended else errno.EBADF, f"descriptor {fd}")
        file, disk, size = opened.file, self._disk, len(data)
        if disk.on_cost is not None:
            disk.on_cost(WRITE, size)
        if disk.faults:
            allowed = disk.writable_bytes(opened.path, size, max(position + size - file.length, 0))
            if allowed < size:
                data, size = memoryview(data)[:allowed], allowed
        file.write(data, position)
        file.modified_ns = disk.now_ns()
        return size

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        file = self._readable(fd, READ, size_bytes)
        file.cold = False
        return file.read(position, size_bytes)

    def preadinto(self, fd: int, buffer: WritableBuffer, position: int) -> int:
        data = self.pread(fd, len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def truncate(self, fd: int, size_bytes: int) -> None:
        opened = self._changeable(fd, 0)
        if size_bytes < opened.file.length:
            self._disk.note_shrinking(opened.file)
        opened.file.truncate(size_bytes)
        opened.file.modified_ns = self._disk.now_ns()

    def reserve(self, fd: int, position: int, size_bytes: int) -> None:
        opened = self._changeable(fd, 0)
        file, end = opened.file, position + size_bytes
        if self._disk.faults and (
            self._disk.writable_bytes(opened.path, size_bytes, size_bytes, is_whole=True) < size_bytes
        ):
            raise _error(errno.ENOSPC, opened.path)
        if end > file.length:
            file.truncate(end)
        file.allocated = max(file.allocated, end)

    def length(self, fd: int) -> int:
        return self._opened(fd).file.length

    def map(self, fd: int, length: int, *, read_only: bool) -> FileMap:
        opened = self._opened(fd)
        self._enter(READ, opened.path)
        if not 0 < length <= opened.file.length or (opened.read_only and not read_only):
            raise _error(errno.EINVAL if length <= 0 else errno.EACCES, opened.path)
        view = opened.file.map(length, read_only=read_only)
        self._maps.append((view, opened.file))
        return view

    def unmap(self, mapped: FileMap) -> None:
        assert isinstance(mapped, memoryview)
        mapped.release()
        for place, (view, file) in enumerate(self._maps):
            if view is mapped:
                file.maps -= 1
                del self._maps[place]
                return

    # -- sending

    def read_now(self, fd: int, buffer: WritableBuffer, position: int) -> int:
        file = self._readable(fd, READ, len(buffer))
        if file.cold:
            raise _error(errno.EAGAIN, f"descriptor {fd}")
        data = file.read(position, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def is_resident(self, fd: int, position: int, size_bytes: int) -> bool:
        return not self._opened(fd).file.cold

    def load(self, fd: int, position: int, size_bytes: int) -> None:
        self._readable(fd, READ, size_bytes).cold = False

    def sendfile(self, sock: socket.socket, fd: int, position: int, size_bytes: int) -> int:
        data = self._readable(fd, READ, size_bytes).read(position, size_bytes)
        return sock.send(data) if data else 0

    # -- durability

    def fsync(self, fd: int) -> None:
        opened = self._opened(fd)
        file = opened.file
        try:
            disk = self._enter(SYNC, opened.path, file.dirty_bytes())
        except OSError:
            file.fail_sync()
            raise
        file.sync()
        disk.commit()
        disk.sync_name_of(file)

    def fdatasync(self, fd: int) -> None:
        self.fsync(fd)

    def fsync_dir(self, path: str) -> None:
        disk = self._enter(SYNC, path)
        try:
            folder = disk.find(path)
        except FileNotFoundError:
            return
        if not isinstance(folder, _Dir):
            raise _error(errno.ENOTDIR, path)
        disk.sync_names(folder)
        disk.commit()

    # -- names

    def rename(self, source: str, target: str) -> None:
        disk = self._enter(NAME, source)
        self._enter(NAME, target)
        folder, name = disk.find_parent(source)
        target_folder, target_name = disk.find_parent(target)
        node = folder.entries.get(name)
        if node is None:
            raise _error(errno.ENOENT, source)
        if f"{target}/".startswith(f"{source}/") and target != source:
            raise _error(errno.EINVAL, target)
        replaced = target_folder.entries.get(target_name)
        if replaced is node:
            return
        if replaced is not None and isinstance(replaced, _Dir) != isinstance(node, _Dir):
            raise _error(errno.EISDIR if isinstance(replaced, _Dir) else errno.ENOTDIR, target)
        if isinstance(replaced, _Dir) and replaced.entries:
            raise _error(errno.ENOTEMPTY, target)
        disk.change_name(node, (folder, name), (target_folder, target_name))

    def unlink(self, path: str) -> bool:
        disk = self._enter(NAME, path)
        try:
            folder, name = disk.find_parent(path)
        except FileNotFoundError:
            return False
        node = folder.entries.get(name)
        if node is None:
            return False
        if isinstance(node, _Dir):
            raise _error(errno.EISDIR, path)
        disk.change_name(node, (folder, name), None)
        return True

    def mkdir(self, path: str) -> None:
        disk = self._enter(NAME, path)
        folder, name = disk.find_parent(path)
        if not name or name in folder.entries:
            raise _error(errno.EEXIST, path)
        disk.change_name(_Dir(disk.now_ns()), None, (folder, name))

    def makedirs(self, path: str) -> None:
        self._enter(NAME, path)
        parts = path.rstrip("/").split("/")
        for count in range(2, len(parts)):
            if not self.exists("/".join(parts[:count])):
                self.mkdir("/".join(parts[:count]))
        if not self.is_dir(path):
            self.mkdir(path)

    def rmdir(self, path: str) -> None:
        disk = self._enter(NAME, path)
        folder, name = disk.find_parent(path)
        node = folder.entries.get(name)
        if node is None:
            raise _error(errno.ENOENT, path)
        if not isinstance(node, _Dir):
            raise _error(errno.ENOTDIR, path)
        if node.entries:
            raise _error(errno.ENOTEMPTY, path)
        disk.change_name(node, (folder, name), None)

    def rmtree(self, path: str) -> None:
        for name in self.listdir(path):
            child = f"{path}/{name}"
            if self.is_dir(child):
                self.rmtree(child)
            else:
                self.unlink(child)
        self.rmdir(path)

    def listdir(self, path: str) -> list[str]:
        node = self._enter(LOOK, path).find(path)
        if not isinstance(node, _Dir):
            raise _error(errno.ENOTDIR, path)
        return sorted(node.entries)

    def subdirs(self, path: str) -> list[str]:
        node = self._enter(LOOK, path).find(path)
        if not isinstance(node, _Dir):
            raise _error(errno.ENOTDIR, path)
        return sorted(name for name, child in node.entries.items() if isinstance(child, _Dir))

    def _look(self, path: str) -> _Node | None:
        """As `os.path.exists`: whatever goes wrong, there is nothing."""
        if self._ended:
            raise OSError(errno.ESHUTDOWN, "the process has ended", path)
        try:
            return self._enter(LOOK, path).find(path)
        except OSError:
            return None

    def exists(self, path: str) -> bool:
        return self._look(path) is not None

    def is_dir(self, path: str) -> bool:
        return isinstance(self._look(path), _Dir)

    def size(self, path: str) -> int:
        node = self._enter(LOOK, path).find(path)
        return node.length if isinstance(node, _File) else 0

    def modified_ns(self, path: str) -> int:
        return self._enter(LOOK, path).find(path).modified_ns

    def set_modified_ns(self, path: str, modified_ns: int) -> None:
        self._enter(NAME, path).find(path).modified_ns = modified_ns

    def space_bytes(self, path: str) -> tuple[int, int]:
        disk = self._enter(LOOK, path)
        disk.find(path)
        return disk.capacity_bytes, disk.room_bytes(path)

    def lock(self, path: str) -> int:
        fd = self.open(path, create=True)
        opened = self._fds[fd]
        if opened.file.lock is not None:
            self.close(fd)
            raise _error(errno.EAGAIN, path)
        opened.file.lock = opened
        return fd
