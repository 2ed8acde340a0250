"""A client that sends raw protocol bytes, valid or not."""

import socket
import struct
from typing import NamedTuple

from barnabas.zookeeper import wire
from barnabas.zookeeper.acl import OPEN_ACL
from barnabas.zookeeper.wire import Reader


class Reply(NamedTuple):
    xid: int
    zxid: int
    err: int
    body: bytes


class RawClient:
    def __init__(self, port: int, *, timeout_s: float = 60.0) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self.xid = 0
        self.session_id = 0
        self.password = bytes(16)
        self.timeout_ms = 0

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.sock.close()

    def connect(
        self,
        *,
        timeout_ms: int = 10_000,
        session_id: int = 0,
        password: bytes = bytes(16),
        seen: int = 0,
        flag: bytes = b"\0",
    ) -> bool:
        """Open a session; return False if the server answers that the session is gone."""
        body = struct.pack(">iqiq", 0, seen, timeout_ms, session_id) + wire.buffer(password) + flag
        self.send_frame(body)
        answer = self.receive_frame()
        _version, self.timeout_ms, self.session_id = struct.unpack_from(">iiq", answer)
        self.password = Reader(answer, 16).buffer() or b""
        assert len(answer) == 36 + len(flag)
        return self.session_id != 0

    def send_frame(self, body: bytes) -> None:
        self.sock.sendall(struct.pack(">i", len(body)) + body)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = self.sock.recv(count - len(data))
            if not chunk:
                raise ConnectionError("closed by the server")
            data += chunk
        return data

    def receive_frame(self) -> bytes:
        return self._exactly(struct.unpack(">i", self._exactly(4))[0])

    def request(self, op: int, body: bytes = b"", *, xid: int | None = None) -> int:
        if xid is None:
            self.xid += 1
            xid = self.xid
        self.send_frame(struct.pack(">ii", xid, op) + body)
        return xid

    def reply(self) -> Reply:
        frame = self.receive_frame()
        return Reply(*struct.unpack_from(">iqi", frame), frame[16:])

    def call(self, op: int, body: bytes = b"") -> Reply:
        xid = self.request(op, body)
        reply = self.reply()
        assert reply.xid == xid
        return reply

    def is_closed(self) -> bool:
        """Whether the server has closed the connection instead of answering."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True


def create(path: str, data: bytes = b"", flags: int = 0) -> bytes:
    return wire.text(path) + wire.buffer(data) + wire.acl_bytes(OPEN_ACL) + struct.pack(">i", flags)


def set_data(path: str, data: bytes, version: int = -1) -> bytes:
    return wire.text(path) + wire.buffer(data) + struct.pack(">i", version)


def watched(path: str, watch: bool = False) -> bytes:
    return wire.text(path) + struct.pack(">?", watch)


def event(reply: Reply) -> tuple[int, str]:
    assert (reply.xid, reply.zxid, reply.err) == (-1, -1, 0)
    reader = Reader(reply.body)
    kind, state = reader.i32(), reader.i32()
    assert state == 3
    return kind, reader.text()
