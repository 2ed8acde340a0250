"""End a session of the embedded ZooKeeper from outside, as if it expired; for tests.

A client that connects with a session's id and password takes it over, and may close it. The password is derived from a secret
in the data directory, so this needs the directory and not the session's client. Blocking.
"""

import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from barnabas.base.errors import BarnabasError
from barnabas.zookeeper.sessions import PASSWORD_BYTES, session_password
from barnabas.zookeeper.store import SECRET_FILE
from barnabas.zookeeper.wire import INT, REPLY_HEADER, STAT, Op, buffer

_TIMEOUT_S = 60.0
#: protocolVersion, lastZxidSeen, timeOut, sessionId
_CONNECT = struct.Struct(">iqiq")
#: protocolVersion, timeOut, sessionId
_CONNECTED = struct.Struct(">iiq")


#: xid, operation
_REQUEST = struct.Struct(">ii")
_NO_PASSWORD = bytes(PASSWORD_BYTES)
#: Index of ephemeralOwner in a stat.
_EPHEMERAL_OWNER = 7


class NoSuchSession(BarnabasError):
    """The session has ended, or never existed."""


def end_session_of(path: str, address: str, *, data: Path, tls: ssl.SSLContext | None) -> None:
    """End the session that owns this ephemeral znode. `data`: the server's directory. :raises NoSuchSession: if none does."""
    with _session(address, 0, _NO_PASSWORD, tls) as sock:
        name = path.encode()
        _send(sock, _REQUEST.pack(1, Op.EXISTS) + buffer(name) + b"\0")
        reply = _receive(sock)
    if REPLY_HEADER.unpack_from(reply)[2] != 0:
        raise NoSuchSession(f"there is no {path}")
    session_id = STAT.unpack_from(reply, REPLY_HEADER.size)[_EPHEMERAL_OWNER]
    password = session_password((data / SECRET_FILE).read_bytes(), session_id)
    with _session(address, session_id, password, tls):
        pass


@contextmanager
def _session(address: str, session_id: int, password: bytes, tls: ssl.SSLContext | None) -> Iterator[socket.socket]:
    """Open a session, or take over an old one; close it at the end."""
    host, _, port = address.rpartition(":")
    with ExitStack() as stack:
        sock: socket.socket = stack.enter_context(socket.create_connection((host, int(port)), timeout=_TIMEOUT_S))
        if tls is not None:
            sock = stack.enter_context(tls.wrap_socket(sock, server_hostname=host))
        _send(sock, _CONNECT.pack(0, 0, int(_TIMEOUT_S * 1000), session_id) + buffer(password) + b"\0")
        _, _, given = _CONNECTED.unpack_from(_receive(sock))
        if given == 0:
            raise NoSuchSession(f"session 0x{session_id:x} is over")
        yield sock
        _send(sock, _REQUEST.pack(2, Op.CLOSE_SESSION))
        _receive(sock)


def _send(sock: socket.socket, frame: bytes) -> None:
    sock.sendall(INT.pack(len(frame)) + frame)


def _receive(sock: socket.socket) -> bytes:
    size = INT.unpack(_exactly(sock, INT.size))[0]
    return _exactly(sock, size)


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise ConnectionResetError("ZooKeeper closed the connection")
        data += piece
    return data
