"""The same operations on Apache ZooKeeper and ours: the same answers, stats, zxids and events, byte for byte.

Only values that must differ are made equal first: times, session ids, and the order of children, which ZooKeeper does not
define.
"""

import random
import struct
from typing import NamedTuple

import pytest

from barnabas.zookeeper import acl as acls
from barnabas.zookeeper import wire
from barnabas.zookeeper.wire import STAT, Op, Reader
from tests.scenarios.zookeeper.zk_process import ZooKeeperProcess
from tests.scenarios.zookeeper.zk_raw import RawClient, Reply, event

NAMES = ["a", "b", "c", "a/x", "a/y", "b/x", "a/x/1", "s-", "zookeeper", "한", "a/..", "a//b", "bad\0", "x" * 40]
ACLS = [
    acls.OPEN_ACL,
    acls.OPEN_ACL,
    acls.OPEN_ACL,
    ((31, "auth", ""),),
    ((1, "world", "anyone"), (31, "digest", acls.digest_of("joe:secret"))),
    ((31, "ip", "127.0.0.1"),),
    ((31, "ip", "10.0.0.0/8"),),
    ((31, "digest", "broken"),),
    ((31, "nobody", "knows"),),
    (),
]


class Step(NamedTuple):
    client_number: int
    op: int
    body: bytes


def random_steps(seed: int, count: int) -> list[Step]:
    rng = random.Random(seed)
    return [
        Step(client_number, *random_request(rng, client_number))
        for client_number in (rng.randrange(3) for _ in range(count))
    ]


def random_path(rng: random.Random) -> str:
    return "/" + rng.choice(NAMES) if rng.random() < 0.97 else rng.choice(["/", "a", "/a/"])


def create(rng: random.Random) -> tuple[int, bytes]:
    op = rng.choice([Op.CREATE, Op.CREATE, Op.CREATE2, Op.CREATE_CONTAINER, Op.CREATE_TTL])
    flags = {Op.CREATE_CONTAINER: [4], Op.CREATE_TTL: [5, 6]}.get(op, [0, 0, 0, 1, 2, 3, 4, 7])
    body = (
        wire.text(random_path(rng)) + wire.buffer(rng.choice([b"", b"data", None])) + wire.acl_bytes(rng.choice(ACLS))
    )
    body += struct.pack(">i", rng.choice(flags))
    return op, body + (struct.pack(">q", rng.choice([0, 10**9, -1])) if op == Op.CREATE_TTL else b"")


def versioned(rng: random.Random, op: int) -> tuple[int, bytes]:
    body = wire.text(random_path(rng))
    if op == Op.SET_DATA:
        body += wire.buffer(rng.choice([b"", b"new", None]))
    if op == Op.SET_ACL:
        body += wire.acl_bytes(rng.choice(ACLS))
    return op, body + struct.pack(">i", rng.choice([-1, -1, 0, 1, 2]))


def one_write(rng: random.Random) -> tuple[int, bytes]:
    if rng.random() < 0.5:
        return create(rng)
    return versioned(rng, rng.choice([Op.SET_DATA, Op.DELETE]))


def random_request(rng: random.Random, client_number: int) -> tuple[int, bytes]:
    """Return a random request. Client 0 has persistent watches and the others standard ones, and each path is watched in one
    mode: 3.8 forgets a mode when the same client watches the same path in another one (ZOOKEEPER-4466, fixed in 3.9 and here).
    """
    kind = rng.random()
    if kind < 0.4:
        return one_write(rng)
    if kind < 0.45:
        return versioned(rng, Op.SET_ACL)
    if kind < 0.55:
        parts = []
        for _ in range(rng.randrange(5)):
            op, body = versioned(rng, Op.CHECK) if rng.random() < 0.2 else one_write(rng)
            parts.append(struct.pack(">i?i", op, False, -1) + body)
        return Op.MULTI, b"".join(parts) + wire.MULTI_END
    if kind < 0.85:
        op = rng.choice([Op.EXISTS, Op.GET_DATA, Op.GET_CHILDREN, Op.GET_CHILDREN2])
        return op, wire.text(random_path(rng)) + struct.pack(">?", client_number > 0 and rng.random() < 0.6)
    if kind < 0.88 and client_number == 0:
        path = rng.choice(["/a", "/b", "/a/x", "/p"])
        return Op.ADD_WATCH, wire.text(path) + struct.pack(">i", path in ("/a", "/p"))
    if kind < 0.90:
        return Op.REMOVE_WATCHES, wire.text(random_path(rng)) + struct.pack(">i", rng.randrange(1, 4))
    if kind < 0.94:
        return rng.choice([Op.GET_ACL, Op.GET_ALL_CHILDREN_NUMBER, Op.SYNC, Op.GET_EPHEMERALS]), wire.text(
            random_path(rng)
        )
    if kind < 0.97:
        parts = [
            struct.pack(">i?i", rng.choice([Op.GET_DATA, Op.GET_CHILDREN]), False, -1)
            + wire.text(random_path(rng))
            + b"\0"
            for _ in range(3)
        ]
        return Op.MULTI_READ, b"".join(parts) + wire.MULTI_END
    if kind < 0.98:
        return Op.RECONFIG, wire.buffer(None) * 3 + struct.pack(">q", -1)
    return rng.choice([Op.WHO_AM_I, Op.GET_DATA, Op.CREATE]), b""


class Side:
    """One server with three sessions; the last one is authenticated."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.clients = [RawClient(port) for _ in range(3)]
        for client in self.clients:
            assert client.connect(timeout_ms=30_000)
        self.owners = {client.session_id: number + 1 for number, client in enumerate(self.clients)}
        self.clients[2].request(
            Op.AUTH, struct.pack(">i", 0) + wire.text("digest") + wire.buffer(b"joe:secret"), xid=-4
        )
        assert self.clients[2].reply().err == 0

    def close(self) -> None:
        for client in self.clients:
            client.sock.close()

    def reopen(self, client_number: int) -> object:
        """End a session and start another one: its ephemeral znodes and watches are deleted."""
        client = self.clients[client_number]
        settled = self._settle(client, client.request(Op.CLOSE_SESSION))
        client.sock.close()
        fresh = self.clients[client_number] = RawClient(self.port)
        assert fresh.connect(timeout_ms=30_000)
        self.owners[fresh.session_id] = client_number + 1
        return self._normal(Op.CLOSE_SESSION, *settled)

    def do(self, step: Step) -> list[object]:
        """Return the answer and the events of the client that sends the request, and the events of the others."""
        heard: list[object] = []
        client = self.clients[step.client_number]
        heard.append(self._normal(step.op, *self._settle(client, client.request(step.op, step.body))))
        for other in self.clients:
            if other is not client:
                events, reply = self._settle(other, other.request(Op.PING, xid=-2))
                heard.append(self._normal(Op.PING, events, reply))
        return heard

    @staticmethod
    def _settle(client: RawClient, xid: int) -> tuple[list[tuple[int, str]], Reply]:
        events = []
        while (reply := client.reply()).xid == -1:
            events.append(event(reply))
        assert reply.xid == xid
        return events, reply

    def _normal(self, op: int, events: list[tuple[int, str]], reply: Reply) -> object:
        # Ephemeral znodes of a closed session, and events of one transaction, come in the order of Java's hash sets.
        body: object = reply.body
        if reply.err == 0 and reply.body:
            body = self._normal_body(op, Reader(reply.body))
        elif reply.err != 0:
            body = None
        return sorted(events), reply.zxid, reply.err, body

    def _stat(self, reader: Reader) -> object:
        raw = b"".join(
            struct.pack(">q", reader.i64()) if c == "q" else struct.pack(">i", reader.i32()) for c in "qqqqiiiqiiq"
        )
        fields = list(STAT.unpack(raw))
        fields[2] = fields[3] = 0
        fields[7] = self.owners.get(fields[7], fields[7])
        return fields

    def _normal_body(self, op: int, reader: Reader) -> object:
        match op:
            case Op.GET_DATA:
                return reader.buffer(), self._stat(reader)
            case Op.EXISTS | Op.SET_DATA | Op.SET_ACL:
                return self._stat(reader)
            case Op.GET_CHILDREN | Op.GET_EPHEMERALS:
                return sorted(reader.texts())
            case Op.GET_CHILDREN2:
                return sorted(reader.texts()), self._stat(reader)
            case Op.CREATE2 | Op.CREATE_TTL | Op.CREATE_CONTAINER:
                return reader.text(), self._stat(reader)
            case Op.GET_ACL:
                return reader.acl(), self._stat(reader)
            case Op.MULTI | Op.MULTI_READ:
                results: list[object] = []
                while True:
                    kind, done, err = reader.i32(), reader.boolean(), reader.i32()
                    if done:
                        return results
                    body = reader.i32() if kind == Op.ERROR else None
                    if kind in (Op.CREATE, Op.CREATE2, Op.SET_DATA, Op.GET_DATA, Op.GET_CHILDREN):
                        body = reader.text() if kind == Op.CREATE else self._normal_body(kind, reader)
                    results.append((kind, err, body))
            case Op.WHO_AM_I:
                return sorted((reader.text(), reader.text()) for _ in range(reader.i32()))
            case _:
                return reader.remaining


@pytest.mark.parametrize("seed", range(6))
def test_random_operations_have_the_same_outcome(apache: int, ours: ZooKeeperProcess, seed: int) -> None:
    there, here = Side(apache), Side(ours.port)
    rng = random.Random(seed)
    try:
        for number, step in enumerate(random_steps(seed, 1500)):
            expected, got = there.do(step), here.do(step)
            assert got == expected, f"seed {seed}, step {number}: {step}"
            if rng.random() < 0.01:
                client_number = rng.randrange(2)
                assert here.reopen(client_number) == there.reopen(client_number), (
                    f"seed {seed}, close after step {number}"
                )
    finally:
        there.close()
        here.close()
