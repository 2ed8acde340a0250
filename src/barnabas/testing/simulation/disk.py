"""A disk in memory. A power cut loses its page cache and keeps its medium.

`SimDisk` is the disk of a machine and survives crashes and restarts. A process gets a `Life` of it (`SimDisk.life`): the `Disk`
that production code sees. It ends with the process: its descriptors, maps and locks are gone, and a coroutine of the dead
process that still runs changes nothing.

Durable are a file's pages and length after `fsync`, and a directory's names after `fsync_dir`. A power cut keeps a random part
of everything else: each page, also torn between sectors; each length; each create, rename and unlink by itself. All choices
come from the `Random` of the cut, in an order that depends on nothing else.

Not modelled: links, permissions, a map that grows with its file. Stores through a map count where bytes were written or
reserved before: elsewhere the disk could be full, and the real process would be killed. `SimDisk` is not thread-safe.
"""

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from barnabas.testing.simulation.disk_files import (
    CHANGES,
    EVERYTHING,
    NAME,
    NEVER,
    READ,
    WRITE,
    Dir,
    File,
    NameOp,
    Node,
    os_error,
)
from barnabas.testing.simulation.disk_life import Life


@dataclass(slots=True)
class Fault:
    """A fault of all operations under a path until it is healed. A restart does not heal it."""

    prefix: str
    kinds: frozenset[str]
    errno: int = errno.EIO
    #: Bytes by which files may still grow before the fault begins; None: it begins at once.
    room_bytes: int | None = None
    #: The most that one write takes; such a fault does nothing else.
    write_bytes_max: int | None = None

    def covers(self, path: str) -> bool:
        return path == self.prefix or path.startswith(self.prefix.rstrip("/") + "/")


class SimDisk:
    """The disk of one machine. Paths are absolute; `/` exists from the beginning.

    `fsync_makes_name_durable`: as on ext4, an fsync of a file that was just created or renamed makes its name durable too.
    `journaled`: name changes and truncations become durable in their order, all of them with the next fsync of any file, as on
    ext4 and XFS. A power cut keeps a prefix of the rest, and not any subset.
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
        #: Called after each read of an open file with the bytes that it got.
        self.on_read: Callable[[int], None] | None = None
        self.faults: list[Fault] = []
        self._root = Dir(now_ns())
        self._pending: dict[int, NameOp] = {}
        self._shrunk: list[File] = []
        self._op_number = 0
        self._next_fd = 1000
        self._lives: list[Life] = []

    # -- processes and power

    def life(self) -> Life:
        """Return the disk as one process sees it until it dies."""
        life = Life(self)
        self._lives.append(life)
        return life

    def process_died(self, life: Life) -> None:
        """Close the process's descriptors, maps and locks. The page cache stays."""
        life.end()
        if life in self._lives:
            self._lives.remove(life)

    def power_cut(self, rng: Random) -> None:
        """Cut the power: every process dies, and `rng` decides which part of the page cache is lost."""
        for life in list(self._lives):
            self.process_died(life)
        ops = list(self._pending.values())
        until = NEVER
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

    def _cut(self, folder: Dir, rng: Random, until: int) -> None:
        folder.entries = dict(folder.durable)
        folder.pending.clear()
        folder.settled.clear()
        for _, node in sorted(folder.entries.items()):
            if isinstance(node, Dir):
                self._cut(node, rng, until)
            else:
                assert isinstance(node, File)
                node.pending.clear()
                if self.journaled and node.shrunk_at <= until:
                    node.commit_shrinking()
                node.cut(rng, is_shrinking_lost=node.shrunk_at > until)

    def note_shrinking(self, file: File) -> None:
        if self.journaled:
            self._op_number += 1
            file.shrunk_at = self._op_number
            self._shrunk.append(file)

    def commit(self) -> None:
        """Write the journal, because a process has synced a file."""
        if self.journaled:
            for op in list(self._pending.values()):
                self._settle(op)
            for file in self._shrunk:
                file.commit_shrinking()
            self._shrunk.clear()

    def write_back(self) -> None:
        """Make everything durable, as the kernel does by itself sooner or later."""
        for op in list(self._pending.values()):
            self._settle(op)
        for _, node in self._walk(self._root, ""):
            if isinstance(node, File):
                node.sync()

    def write_back_but_one(self, path: str, rng: Random) -> None:
        """Write a file back except for one page, if possible neither the first nor the last of the dirty ones."""
        node = self.find(path)
        assert isinstance(node, File)
        left = sorted(node.dirty)
        if left:
            page = rng.choice(left[1:-2] or left)
            node.write_back_but(page)

    def evict(self, prefix: str = "/") -> None:
        """Drop durable pages from the page cache: reads under `prefix` wait for the disk."""
        for path, node in self._walk(self._root, ""):
            if isinstance(node, File) and path.startswith(prefix):
                node.cold = True

    def damage(self, path: str, position: int, value: int) -> None:
        """Change a byte of a file, on the medium too."""
        node = self.find(path)
        assert isinstance(node, File)
        for content in (node.data, node.durable):
            if position < len(content):
                content[position] = value

    # -- faults

    def fail(self, prefix: str, kinds: frozenset[str] = EVERYTHING, *, error: int = errno.EIO) -> Fault:
        """Let all operations under `prefix` fail, as on a dead disk, or only the given `kinds`."""
        return self._add(Fault(prefix, kinds, error))

    def fail_reads(self, prefix: str) -> Fault:
        return self._add(Fault(prefix, frozenset((READ,))))

    def fail_writes(self, prefix: str) -> Fault:
        return self._add(Fault(prefix, CHANGES))

    def make_read_only(self, prefix: str) -> Fault:
        return self._add(Fault(prefix, frozenset((WRITE, NAME)), errno.EROFS))

    def fill(self, prefix: str, *, after_bytes: int = 0) -> Fault:
        """Leave no space once files have grown by `after_bytes` more."""
        return self._add(Fault(prefix, frozenset((WRITE,)), errno.ENOSPC, room_bytes=after_bytes))

    def shorten_writes(self, prefix: str, *, to_bytes: int) -> Fault:
        return self._add(Fault(prefix, frozenset((WRITE,)), write_bytes_max=to_bytes))

    def heal(self, prefix: str | None = None) -> None:
        """Heal all faults, or those of `prefix`."""
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
                raise os_error(fault.errno, path)

    def writable_bytes(self, path: str, size_bytes: int, growth_bytes: int, *, is_whole: bool = False) -> int:
        """Return how much of a write the disk takes; raise `OSError` if nothing. `is_whole`: it is all or nothing."""
        for fault in self.faults:
            if WRITE not in fault.kinds or not fault.covers(path):
                continue
            if fault.write_bytes_max is not None:
                size_bytes = size_bytes if is_whole else min(size_bytes, max(fault.write_bytes_max, 1))
            elif fault.room_bytes is not None:
                lacking = growth_bytes - fault.room_bytes
                if lacking >= size_bytes and growth_bytes:
                    raise os_error(fault.errno, path)
                fault.room_bytes -= min(growth_bytes, fault.room_bytes)
                size_bytes -= max(lacking, 0)
            else:
                raise os_error(fault.errno, path)
        return size_bytes

    def room_bytes(self, path: str) -> int:
        used = sum(node.length for _, node in self._walk(self._root, "") if isinstance(node, File))
        rooms = [fault.room_bytes for fault in self.faults if fault.room_bytes is not None and fault.covers(path)]
        return min([self.capacity_bytes - used, *rooms])

    # -- names

    def files(self, prefix: str = "/") -> dict[str, bytes]:
        """Return the contents in the page cache by path, for tests."""
        return {
            path: node.read(0, node.length)
            for path, node in self._walk(self._root, "")
            if isinstance(node, File) and path.startswith(prefix)
        }

    def _walk(self, folder: Dir, path: str) -> Iterator[tuple[str, Node]]:
        for name, node in sorted(folder.entries.items()):
            yield f"{path}/{name}", node
            if isinstance(node, Dir):
                yield from self._walk(node, f"{path}/{name}")

    def find(self, path: str) -> Node:
        node: Node = self._root
        for name in path.split("/"):
            if name:
                if not isinstance(node, Dir):
                    raise os_error(errno.ENOTDIR, path)
                found = node.entries.get(name)
                if found is None:
                    raise os_error(errno.ENOENT, path)
                node = found
        return node

    def find_parent(self, path: str) -> tuple[Dir, str]:
        parent, _, name = path.rstrip("/").rpartition("/")
        folder = self.find(parent)
        if not isinstance(folder, Dir):
            raise os_error(errno.ENOTDIR, path)
        return folder, name

    def change_name(self, node: Node, source: tuple[Dir, str] | None, target: tuple[Dir, str] | None) -> None:
        now_ns = self.now_ns()
        self._op_number += 1
        op = NameOp(node, source, target, self._op_number)
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

    def _settle(self, op: NameOp) -> None:
        if self._pending.pop(op.number, None) is not None:
            op.make_durable()

    def sync_names(self, folder: Dir) -> None:
        """Make the names in the directory durable."""
        for op in folder.pending:
            if op.node is not folder:
                self._settle(op)
        self._forget_settled(folder)
        self.sync_name_of(folder)

    def sync_name_of(self, node: Node) -> None:
        """Make the file's name durable if the disk does so on fsync. The name is durable only in a durable directory."""
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

    def _forget_settled(self, node: Node) -> None:
        node.pending = [op for op in node.pending if op.number in self._pending]

    def next_fd(self) -> int:
        self._next_fd += 1
        return self._next_fd
