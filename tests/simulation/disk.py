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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from tests.simulation.disk_files import CHANGES, EVERYTHING, NAME, NEVER, READ, WRITE, Dir, File, NameOp, Node, os_error
from tests.simulation.disk_life import Life


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
        """The disk for one process, until it dies."""
        life = Life(self)
        self._lives.append(life)
        return life

    def process_died(self, life: Life) -> None:
        """The page cache stays; descriptors, maps and locks are gone."""
        life.end()
        if life in self._lives:
            self._lives.remove(life)

    def power_cut(self, rng: Random) -> None:
        """Every process dies, and with them whatever part of the page cache `rng` says."""
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
            if isinstance(node, File):
                node.sync()

    def write_back_but_one(self, path: str, rng: Random) -> None:
        """The kernel has written a file, but for one page: with luck neither the first nor the last of what is not synced."""
        node = self.find(path)
        assert isinstance(node, File)
        left = sorted(node.dirty)
        if left:
            page = rng.choice(left[1:-2] or left)
            node.write_back_but(page)

    def evict(self, prefix: str = "/") -> None:
        """The page cache forgets what is durable anyway: reads under `prefix` wait for the disk."""
        for path, node in self._walk(self._root, ""):
            if isinstance(node, File) and path.startswith(prefix):
                node.cold = True

    def damage(self, path: str, position: int, value: int) -> None:
        """A byte of a file has gone bad, on the medium too."""
        node = self.find(path)
        assert isinstance(node, File)
        for content in (node.data, node.durable):
            if position < len(content):
                content[position] = value

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
                raise os_error(fault.errno, path)

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
        """What is in the page cache, by path: for tests."""
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
        """Those in the directory."""
        for op in folder.pending:
            if op.node is not folder:
                self._settle(op)
        self._forget_settled(folder)
        self.sync_name_of(folder)

    def sync_name_of(self, node: Node) -> None:
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

    def _forget_settled(self, node: Node) -> None:
        node.pending = [op for op in node.pending if op.number in self._pending]

    def next_fd(self) -> int:
        self._next_fd += 1
        return self._next_fd
