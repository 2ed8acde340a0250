"""ZooKeeper's protocol: operation codes, error codes, and jute (big-endian, length-prefixed), read within bounds.

Every length from a peer is checked against the available bytes before anything is allocated, so the cost of a frame is
bounded by its size.
"""

import struct
from enum import IntEnum

from barnabas.base.errors import Malformed

Acl = tuple[tuple[int, str, str], ...]
"""Access control list: (permissions, scheme, id), in the order that the client gave."""


class Op(IntEnum):
    """Operation codes, with ZooKeeper's names."""

    NOTIFICATION = 0
    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    RECONFIG = 16
    CHECK_WATCHES = 17
    REMOVE_WATCHES = 18
    CREATE_CONTAINER = 19
    DELETE_CONTAINER = 20
    CREATE_TTL = 21
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    SASL = 102
    GET_EPHEMERALS = 103
    GET_ALL_CHILDREN_NUMBER = 104
    SET_WATCHES2 = 105
    ADD_WATCH = 106
    WHO_AM_I = 107
    CREATE_SESSION = -10
    CLOSE_SESSION = -11
    ERROR = -1


class Err(IntEnum):
    """Error codes, with ZooKeeper's names."""

    OK = 0
    SYSTEM_ERROR = -1
    RUNTIME_INCONSISTENCY = -2
    MARSHALLING_ERROR = -5
    UNIMPLEMENTED = -6
    BAD_ARGUMENTS = -8
    UNKNOWN_SESSION = -12
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    INVALID_ACL = -114
    AUTH_FAILED = -115
    NO_WATCHER = -121
    RECONFIG_DISABLED = -123
    QUOTA_EXCEEDED = -125


class Event(IntEnum):
    """Watch events, numbered as on the wire."""

    CREATED = 1
    DELETED = 2
    DATA_CHANGED = 3
    CHILDREN_CHANGED = 4


class Perm(IntEnum):
    READ = 1
    WRITE = 2
    CREATE = 4
    DELETE = 8
    ADMIN = 16


NOTIFICATION_XID = -1

#: ZooKeeper's default of `jute.maxbuffer`, the size of the longest request.
JUTE_MAX_BUFFER = 0xFFFFF

INT = struct.Struct(">i")
LONG = struct.Struct(">q")
#: xid, zxid, err
REPLY_HEADER = struct.Struct(">iqi")
#: frame length, xid, zxid, err
FRAMED_REPLY = struct.Struct(">iiqi")
#: czxid, mzxid, ctime, mtime, version, cversion, aversion, ephemeralOwner, dataLength, numChildren, pzxid
STAT = struct.Struct(">qqqqiiiqiiq")
#: type, done, err
MULTI_HEADER = struct.Struct(">i?i")
MULTI_END = MULTI_HEADER.pack(-1, True, -1)
#: Bound of operations in one multi, which is executed in one turn of the loop and then takes some 50 ms.
MULTI_OPS_MAX = 5_000

NULL_BUFFER = INT.pack(-1)

_unpack_int = INT.unpack_from
_unpack_long = LONG.unpack_from
_pack_int = INT.pack


class Reader:
    """A cursor over one frame. Raises `Malformed` instead of reading past the end."""

    __slots__ = ("_at", "_buffer", "_end")

    def __init__(self, buffer: bytes, at: int = 0) -> None:
        self._buffer = buffer
        self._at = at
        self._end = len(buffer)

    @property
    def remaining(self) -> int:
        return self._end - self._at

    def i32(self) -> int:
        at = self._at
        if at + 4 > self._end:
            raise Malformed("jute: an int past the end")
        self._at = at + 4
        value: int = _unpack_int(self._buffer, at)[0]
        return value

    def i64(self) -> int:
        at = self._at
        if at + 8 > self._end:
            raise Malformed("jute: a long past the end")
        self._at = at + 8
        value: int = _unpack_long(self._buffer, at)[0]
        return value

    def boolean(self) -> bool:
        at = self._at
        if at >= self._end:
            raise Malformed("jute: a boolean past the end")
        self._at = at + 1
        return self._buffer[at] != 0

    def buffer(self) -> bytes | None:
        """Read a length and that many bytes; None for length -1."""
        at = self._at + 4
        if at > self._end:
            raise Malformed("jute: a length past the end")
        length = _unpack_int(self._buffer, self._at)[0]
        if length < 0:
            if length != -1:
                raise Malformed(f"jute: length {length}")
            self._at = at
            return None
        end = at + length
        if end > self._end:
            raise Malformed(f"jute: {length} bytes announced, {self._end - at} available")
        self._at = end
        return self._buffer[at:end]

    def text(self) -> str:
        """Read a string that is not null. As in Java, invalid UTF-8 becomes U+FFFD, which no path can contain."""
        raw = self.buffer()
        if raw is None:
            raise Malformed("jute: null where a string must be")
        return raw.decode("utf-8", "replace")

    def optional_text(self) -> str | None:
        raw = self.buffer()
        return None if raw is None else raw.decode("utf-8", "replace")

    def count(self, item_bytes_min: int) -> int:
        """Read the length of a vector whose items take at least `item_bytes_min` each; 0 for null."""
        length = self.i32()
        if length == -1:
            return 0
        if length < 0 or length * item_bytes_min > self._end - self._at:
            raise Malformed(f"jute: a vector of {length} items in {self._end - self._at} bytes")
        return length

    def texts(self) -> list[str]:
        return [self.text() for _ in range(self.count(4))]

    def acl(self) -> Acl:
        """Read an ACL. kazoo sends null for an empty id (`auth::`); null and an empty scheme have the same meaning."""
        return tuple(
            (self.i32(), self.optional_text() or "", self.optional_text() or "") for _ in range(self.count(12))
        )


def buffer(data: bytes | None) -> bytes:
    if data is None:
        return NULL_BUFFER
    return _pack_int(len(data)) + data


def text(value: str) -> bytes:
    raw = value.encode("utf-8")
    return _pack_int(len(raw)) + raw


def texts(values: "list[str] | dict[str, None]") -> bytes:
    parts = [_pack_int(len(values))]
    for value in values:
        raw = value.encode("utf-8")
        parts.append(_pack_int(len(raw)))
        parts.append(raw)
    return b"".join(parts)


def acl_bytes(acl: Acl) -> bytes:
    parts = [_pack_int(len(acl))]
    for perms, scheme, identity in acl:
        parts.append(_pack_int(perms))
        parts.append(text(scheme))
        parts.append(text(identity))
    return b"".join(parts)


def reply(xid: int, zxid: int, err: int, body: bytes = b"") -> bytes:
    """Frame one response."""
    return FRAMED_REPLY.pack(16 + len(body), xid, zxid, err) + body


def notification(event: int, path: str) -> bytes:
    """Frame one watch event; its state is always 3, SyncConnected."""
    raw = path.encode("utf-8")
    return struct.pack(f">iiqiiii{len(raw)}s", 28 + len(raw), NOTIFICATION_XID, -1, 0, event, 3, len(raw), raw)
