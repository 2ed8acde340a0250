"""The protocol's primitives: strings, bytes and tagged fields, over any flat buffer of bytes.

Shared by the codec compiler and by code that reads or writes parts of the protocol by hand. A reader takes
`(buf, pos, end)`, never looks at or past `end`, and returns `(value, next position)`; what is not well formed raises
`Malformed`. A writer appends to a bytearray. "Compact" lengths are varints and stored plus one, so that zero means null.
"""

from struct import Struct

from barnabas.core.errors import Malformed
from barnabas.protocol.varint import Buffer, append_uvarint, read_uvarint

_INT16 = Struct(">h")
_INT32 = Struct(">i")


# Strings and bytes --------------------------------------------------------------------------------------------------


def read_string(buf: Buffer, pos: int, end: int, what: str = "string") -> tuple[str | None, int]:
    """The old form: a signed 16-bit length, -1 for null."""
    if end - pos < 2:
        raise Malformed(f"{what}: {end - pos} bytes left at {pos}, 2 needed")
    size = _INT16.unpack_from(buf, pos)[0]
    pos += 2
    if size < 0:
        return None, pos
    return _text(buf, pos, pos + size, end, what), pos + size


def read_compact_string(buf: Buffer, pos: int, end: int, what: str = "string") -> tuple[str | None, int]:
    size, pos = read_uvarint(buf, pos, end, what)
    if size == 0:
        return None, pos
    stop = pos + size - 1
    return _text(buf, pos, stop, end, what), stop


def read_compact_bytes(buf: Buffer, pos: int, end: int, what: str = "bytes") -> tuple[bytes | None, int]:
    size, pos = read_uvarint(buf, pos, end, what)
    if size == 0:
        return None, pos
    stop = pos + size - 1
    if stop > end:
        raise Malformed(f"{what}: claims {size - 1} bytes, {end - pos} left at {pos}")
    return bytes(buf[pos:stop]), stop


def _text(buf: Buffer, pos: int, stop: int, end: int, what: str) -> str:
    if stop > end:
        raise Malformed(f"{what}: claims {stop - pos} bytes, {end - pos} left at {pos}")
    try:
        return str(buf[pos:stop], "utf-8")
    except UnicodeDecodeError as error:
        raise Malformed(f"{what}: not UTF-8 ({error.reason} at byte {pos + error.start})") from None


def append_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out += b"\xff\xff"
        return
    raw = value.encode()
    out += _INT16.pack(len(raw))
    out += raw


def append_compact_string(out: bytearray, value: str | None) -> None:
    append_compact_bytes(out, None if value is None else value.encode())


def append_compact_bytes(out: bytearray, value: Buffer | None) -> None:
    if value is None:
        out.append(0)
        return
    append_uvarint(out, len(value) + 1)
    out += value


def append_bytes(out: bytearray, value: Buffer | None) -> None:
    """The old form: a signed 32-bit length, -1 for null."""
    if value is None:
        out += b"\xff\xff\xff\xff"
        return
    out += _INT32.pack(len(value))
    out += value


# Tagged fields ------------------------------------------------------------------------------------------------------


def read_tag(buf: Buffer, pos: int, end: int, previous: int, what: str) -> tuple[int, int, int]:
    """One tagged field's head: its tag, where its value begins and where that ends. Tags must ascend (KIP-482)."""
    tag, pos = read_uvarint(buf, pos, end, what)
    if tag <= previous:
        raise Malformed(f"{what}: tag {tag} after tag {previous}")
    size, pos = read_uvarint(buf, pos, end, what)
    if size > end - pos:
        raise Malformed(f"{what}: tag {tag} claims {size} bytes, {end - pos} left at {pos}")
    return tag, pos, pos + size


def skip_tagged_fields(buf: Buffer, pos: int, end: int, what: str = "tagged fields") -> int:
    """Skips a section of unknown tagged fields."""
    if pos < end and buf[pos] == 0:
        return pos + 1
    count, pos = read_uvarint(buf, pos, end, what)
    tag = -1
    for _ in range(count):
        tag, _, pos = read_tag(buf, pos, end, tag, what)
    return pos
