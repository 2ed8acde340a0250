"""Requests as bytes and responses as values, for tests of the machine."""

import struct
from typing import NamedTuple

from barnabas.zookeeper import wire
from barnabas.zookeeper.acl import OPEN_ACL
from barnabas.zookeeper.machine import Machine, Written
from barnabas.zookeeper.watches import Client
from barnabas.zookeeper.wire import STAT, Acl, Op, Reader


class Stat(NamedTuple):
    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    owner: int
    data_length: int
    children: int
    pzxid: int


def stat(raw: bytes) -> Stat:
    return Stat(*STAT.unpack(raw))


def create(path: str, data: bytes | None = b"", *, flags: int = 0, acl: Acl = OPEN_ACL) -> bytes:
    return wire.text(path) + wire.buffer(data) + wire.acl_bytes(acl) + struct.pack(">i", flags)


def create_ttl(path: str, ttl_ms: int, *, flags: int = 5) -> bytes:
    return create(path, flags=flags) + struct.pack(">q", ttl_ms)


def delete(path: str, version: int = -1) -> bytes:
    return wire.text(path) + struct.pack(">i", version)


check = delete


def set_data(path: str, data: bytes, version: int = -1) -> bytes:
    return wire.text(path) + wire.buffer(data) + struct.pack(">i", version)


def set_acl(path: str, acl: Acl, version: int = -1) -> bytes:
    return wire.text(path) + wire.acl_bytes(acl) + struct.pack(">i", version)


def watched(path: str, watch: bool = False) -> bytes:
    """getData, exists, getChildren, getChildren2."""
    return wire.text(path) + struct.pack(">?", watch)


def multi(*operations: tuple[int, bytes]) -> bytes:
    parts = [struct.pack(">i?i", op, False, -1) + body for op, body in operations]
    return b"".join(parts) + wire.MULTI_END


def multi_results(body: bytes) -> list[tuple[int, int, str | None, Stat | None]]:
    """Return (type, error, path, stat) of each result."""
    reader = Reader(body)
    results: list[tuple[int, int, str | None, Stat | None]] = []
    while True:
        op, done, err = reader.i32(), reader.boolean(), reader.i32()
        if done:
            assert reader.remaining == 0
            return results
        path: str | None = None
        value: Stat | None = None
        if op == Op.ERROR:
            assert reader.i32() == err
        if op in (Op.CREATE, Op.CREATE2):
            path = reader.text()
        if op in (Op.CREATE2, Op.SET_DATA):
            value = Stat(*(reader.i64() if size == "q" else reader.i32() for size in "qqqqiiiqiiq"))
        results.append((op, err, path, value))


class Driver:
    """A machine with the zxid and time that a server would pass to it."""

    def __init__(self) -> None:
        self.machine = Machine(tick_ms=1000)
        self.now_ms = 1_000_000
        self.written: list[Written] = []

    def client(self, session_id: int) -> Client:
        client = Client()
        client.session_id = session_id
        client.identities.append(("ip", "127.0.0.1"))
        self.keep(self.machine.open_session(session_id, 10_000, zxid=self.machine.last_zxid + 1, now_ms=self.now_ms))
        return client

    def keep(self, written: Written) -> Written:
        self.written.append(written)
        return written

    def write(self, client: Client, op: int, body: bytes) -> Written:
        self.now_ms += 7
        return self.keep(
            self.machine.write(client, op, 1, Reader(body), zxid=self.machine.last_zxid + 1, now_ms=self.now_ms)
        )

    def close(self, client: Client) -> Written:
        return self.keep(
            self.machine.close_session(client.session_id, 1, zxid=self.machine.last_zxid + 1, now_ms=self.now_ms)
        )


def image(machine: Machine) -> dict[str, tuple[object, ...]]:
    """Return the durable state, to compare."""
    nodes: dict[str, tuple[object, ...]] = {
        path: (node.data, node.acl, stat(node.stat()), node.owner, node.cversion, sorted(node.children or ()))
        for path, node in machine.tree.nodes.items()
    }
    nodes["sessions"] = tuple(sorted((sid, s.timeout_ms) for sid, s in machine.sessions.by_id.items()))
    nodes["ephemerals"] = tuple(sorted((sid, *sorted(paths)) for sid, paths in machine.tree.ephemerals.items()))
    nodes["special"] = (tuple(sorted(machine.tree.containers)), tuple(sorted(machine.tree.ttls)))
    nodes["size"] = (machine.tree.data_bytes, machine.last_zxid)
    return nodes
