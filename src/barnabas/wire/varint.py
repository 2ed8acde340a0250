"""Kafka's variable-length integers: groups of seven bits, the lowest first; signed ones are zigzag-encoded.

A reader takes `(buf, pos, end)`, never reads at or after `end` or the end of the buffer, and returns `(value, next position)`.
A varint that does not end in time raises `Malformed`. Bits that do not fit into the type are dropped, as Kafka's readers do,
because both sides of a connection must read the same number. Hot loops inline varints of one and two bytes.
"""

import sys
from typing import Final

from barnabas.base.errors import Malformed

Buffer = bytes | bytearray | memoryview

VARINT_BYTES_MAX: Final = 5
_VARLONG_BYTES_MAX: Final = 10
_UINT32: Final = 0xFFFF_FFFF
_UINT64: Final = 0xFFFF_FFFF_FFFF_FFFF
#: No limit except the end of the buffer.
_OPEN: Final = sys.maxsize


def _read(buf: Buffer, pos: int, end: int, bytes_max: int, bits: int, what: str) -> tuple[int, int]:
    value = shift = 0
    stop = pos + bytes_max
    try:
        for at in range(pos, stop if stop < end else end):
            byte = buf[at]
            if byte < 0x80:
                return (value | byte << shift) & bits, at + 1
            value |= (byte & 0x7F) << shift
            shift += 7
    except IndexError:
        end = len(buf)
    if end >= stop:
        raise Malformed(f"{what}: varint is longer than {bytes_max} bytes")
    raise Malformed(f"{what}: varint cut short at byte {end}")


def read_uvarint(buf: Buffer, pos: int, end: int = _OPEN, what: str = "varint") -> tuple[int, int]:
    """Read an unsigned 32-bit varint: at most five bytes."""
    return _read(buf, pos, end, VARINT_BYTES_MAX, _UINT32, what)


def read_varint(buf: Buffer, pos: int, end: int = _OPEN, what: str = "varint") -> tuple[int, int]:
    """Read a zigzag varint of 32 bits."""
    raw, after = _read(buf, pos, end, VARINT_BYTES_MAX, _UINT32, what)
    return (raw >> 1) ^ -(raw & 1), after


def read_varlong(buf: Buffer, pos: int, end: int = _OPEN, what: str = "varlong") -> tuple[int, int]:
    """Read a zigzag varint of 64 bits: at most ten bytes."""
    raw, after = _read(buf, pos, end, _VARLONG_BYTES_MAX, _UINT64, what)
    return (raw >> 1) ^ -(raw & 1), after


def append_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned varint of any size."""
    if value < 0:
        raise ValueError(f"{value} is negative: an unsigned varint cannot encode it")
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _encode(zigzag: int) -> bytes:
    out = bytearray()
    append_uvarint(out, zigzag)
    return bytes(out)


#: Nearly all lengths and deltas are below 8192.
_SMALL: Final = tuple(_encode(value << 1) for value in range(8192))


def encode_varint(value: int) -> bytes:
    """Encode a zigzag varint; also used for varlongs, which differ only in range."""
    if 0 <= value < 8192:
        return _SMALL[value]
    return _encode(~(value << 1) if value < 0 else value << 1)
