"""Snapshots in ZooKeeper's own format: `version-2/snapshot.<zxid>`, see docs/formats/zookeeper-txnlog.md.

As in ZooKeeper, a snapshot is fuzzy: it is written in slices while the tree changes, and replaying the log from its zxid on
makes it exact. Nodes created after its begin are left out, since the log creates them. So a node's parent always precedes it
in the file.
"""

import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from barnabas.base.errors import Malformed
from barnabas.base.host.disk import REAL_DISK, TMP_SUFFIX, Disk, DiskReader, write_fully
from barnabas.zookeeper import wire
from barnabas.zookeeper.acl import OPEN_ACL
from barnabas.zookeeper.machine import Machine
from barnabas.zookeeper.tree import Node, parent_of
from barnabas.zookeeper.wire import Acl

FILE_HEADER = struct.Struct(">4siq")
MAGIC = b"ZKSN"
VERSION = 2
_ACL_AND_STAT = struct.Struct(">qqqqqiiiqq")
_SESSION = struct.Struct(">qi")

#: The ACL `world:anyone` has no entry in the table.
_OPEN_ACL_ID = -1
_END = wire.text("/")

#: A slice blocks the loop for about half a millisecond.
NODES_PER_SLICE = 200


def file_name(zxid: int) -> str:
    return f"snapshot.{zxid:x}"


def slices(machine: Machine) -> Iterator[bytes]:
    """Yield the snapshot without its checksum; the machine may change between slices. Its zxid is that of the first slice."""
    start_zxid = machine.last_zxid
    tree = machine.tree
    ids: dict[Acl, int] = {acl: number for number, acl in enumerate(tree.acl_table(), start=1)}
    parts = [FILE_HEADER.pack(MAGIC, VERSION, -1), wire.INT.pack(len(machine.sessions.by_id))]
    parts.extend(_SESSION.pack(sid, session.timeout_ms) for sid, session in machine.sessions.by_id.items())
    parts.append(wire.INT.pack(len(ids)))
    for acl, number in ids.items():
        parts.append(wire.LONG.pack(number))
        parts.append(wire.acl_bytes(acl))
    yield b"".join(parts)
    # An ACL set after the start is not in the table; the log sets it again.
    ids[OPEN_ACL] = _OPEN_ACL_ID
    paths = list(tree.nodes)
    for at in range(0, len(paths), NODES_PER_SLICE):
        parts = []
        for path in paths[at : at + NODES_PER_SLICE]:
            node = tree.nodes.get(path)
            if node is None or node.czxid > start_zxid:
                continue
            parts.append(wire.text("" if path == "/" else path))
            parts.append(wire.buffer(node.data))
            parts.append(
                _ACL_AND_STAT.pack(
                    ids.get(node.acl, _OPEN_ACL_ID),
                    node.czxid,
                    node.mzxid,
                    node.ctime,
                    node.mtime,
                    node.version,
                    node.cversion,
                    node.aversion,
                    node.owner,
                    node.pzxid,
                )
            )
        yield b"".join(parts)
    yield _END


class SnapshotWriter:
    """Writes `snapshot.<zxid>.tmp`, and renames it when it is complete and durable. Owner: one thread at a time."""

    def __init__(self, folder: Path, zxid: int, *, disk: Disk = REAL_DISK) -> None:
        self._disk = disk
        self._folder = folder
        self._path = folder / file_name(zxid)
        self._tmp = f"{self._path}{TMP_SUFFIX}"
        self._fd: int | None = disk.open(self._tmp, create=True, truncate=True)
        self._at = 0
        self._checksum = 1

    def write(self, data: bytes) -> None:
        self._checksum = zlib.adler32(data, self._checksum)
        self._append(data)

    def _append(self, data: bytes) -> None:
        assert self._fd is not None, "bug: the writer was finished or abandoned"
        write_fully(self._disk, self._fd, data, self._at)
        self._at += len(data)

    def _close(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            self._disk.close(fd)

    def finish(self, *, sync: bool = True) -> Path:
        """Write the checksum and the end mark, as ZooKeeper's readers expect."""
        self._append(wire.LONG.pack(self._checksum) + _END)
        assert self._fd is not None
        if sync:
            self._disk.fsync(self._fd)
        self._close()
        self._disk.rename(self._tmp, str(self._path))
        if sync:
            self._disk.fsync_dir(str(self._folder))
        return self._path

    def abandon(self) -> None:
        self._close()
        self._disk.unlink(self._tmp)


class _Source:
    """Reads a snapshot file in order, within bounds, and computes its checksum."""

    def __init__(self, file: BinaryIO, size_bytes: int) -> None:
        self._file = file
        self._left = size_bytes
        self.checksum = 1

    def take(self, count: int) -> bytes:
        if not 0 <= count <= self._left:
            raise Malformed(f"snapshot: {count} bytes wanted, {self._left} left")
        data = self._file.read(count)
        if len(data) != count:
            raise Malformed("snapshot: ends early")
        self._left -= count
        self.checksum = zlib.adler32(data, self.checksum)
        return data

    def i32(self) -> int:
        value: int = wire.INT.unpack(self.take(4))[0]
        return value

    def i64(self) -> int:
        value: int = wire.LONG.unpack(self.take(8))[0]
        return value

    def buffer(self) -> bytes | None:
        length = self.i32()
        return None if length == -1 else self.take(length)

    def text(self) -> str:
        raw = self.buffer()
        if raw is None:
            raise Malformed("snapshot: null where a string must be")
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Malformed(f"snapshot: {error}") from error


def load(path: Path, zxid: int, machine: Machine, *, disk: Disk = REAL_DISK) -> None:
    """Fill a new machine from a snapshot. Raises `Malformed` if the file is incomplete; the machine is then unusable."""
    with io.BufferedReader(DiskReader(disk, str(path))) as file:
        source = _Source(file, disk.size(str(path)))
        magic, version, _dbid = FILE_HEADER.unpack(source.take(FILE_HEADER.size))
        if (magic, version) != (MAGIC, VERSION):
            raise Malformed(f"snapshot: magic {magic!r}, version {version}")
        for _ in range(source.i32()):
            session_id, timeout_ms = _SESSION.unpack(source.take(_SESSION.size))
            machine.sessions.add(session_id, timeout_ms)
        table: dict[int, Acl] = {_OPEN_ACL_ID: OPEN_ACL}
        for _ in range(source.i32()):
            number = source.i64()
            table[number] = tuple((source.i32(), source.text(), source.text()) for _ in range(source.i32()))
        _load_nodes(source, table, machine)
        expected = source.checksum
        if source.i64() != expected:
            raise Malformed("snapshot: wrong checksum")
    machine.last_zxid = zxid


def _load_nodes(source: _Source, table: dict[int, Acl], machine: Machine) -> None:
    tree = machine.tree
    while (path := source.text()) != "/":
        data = source.buffer()
        acl_id, czxid, mzxid, ctime, mtime, version, cversion, aversion, owner, pzxid = _ACL_AND_STAT.unpack(
            source.take(_ACL_AND_STAT.size)
        )
        if acl_id not in table:
            raise Malformed(f"snapshot: {path} has unknown ACL {acl_id}")
        path = path or "/"
        if path != "/" and parent_of(path) not in tree.nodes:
            raise Malformed(f"snapshot: {path} has no parent")
        node = Node(data, table[acl_id], owner, czxid, ctime)
        node.mzxid, node.mtime, node.pzxid = mzxid, mtime, pzxid
        node.version, node.cversion, node.aversion = version, cversion, aversion
        tree.restore(path, node)
