"""Parts of the protocol that are read or written by hand: strings and tagged fields.

A reader takes `(buf, pos, end)`, never looks at or past `end`, and returns `(value, next position)`. It raises `Malformed` for
what is not well formed. A writer appends to a bytearray.
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
