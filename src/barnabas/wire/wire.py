"""The parts of the protocol without generated code: strings and tagged fields.

A reader takes `(buf, pos, end)`, never reads at or after `end`, and returns `(value, next position)`. It raises `Malformed` for
invalid input. A writer appends to a bytearray.
"""

from struct import Struct

from barnabas.base.errors import Malformed
from barnabas.wire.varint import Buffer, read_uvarint

_INT16 = Struct(">h")


# Strings ------------------------------------------------------------------------------------------------------------


def append_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out += b"\xff\xff"
        return
    raw = value.encode()
    out += _INT16.pack(len(raw))
    out += raw


# Tagged fields ------------------------------------------------------------------------------------------------------


def read_tag(buf: Buffer, pos: int, end: int, previous: int, what: str) -> tuple[int, int, int]:
    """Read the head of a tagged field: its tag, and the start and end of its value. Tags must ascend (KIP-482)."""
    tag, pos = read_uvarint(buf, pos, end, what)
    if tag <= previous:
        raise Malformed(f"{what}: tag {tag} after tag {previous}")
    size, pos = read_uvarint(buf, pos, end, what)
    if size > end - pos:
        raise Malformed(f"{what}: tag {tag} claims {size} bytes, {end - pos} left at {pos}")
    return tag, pos, pos + size


def skip_tagged_fields(buf: Buffer, pos: int, end: int, what: str = "tagged fields") -> int:
    """Skip a section of unknown tagged fields."""
    if pos < end and buf[pos] == 0:
        return pos + 1
    count, pos = read_uvarint(buf, pos, end, what)
    tag = -1
    for _ in range(count):
        tag, _, pos = read_tag(buf, pos, end, tag, what)
    return pos
