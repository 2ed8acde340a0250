"""Protobuf-style variable-length integers, zig-zag for signed, as records and flexible messages use them.

Hot loops inline the one-byte case and come here for the rest.
"""

from barnabas.core.errors import Malformed

_MAX_VARINT_BYTES = 5
_MAX_VARLONG_BYTES = 10


def _read(buf: bytes | bytearray | memoryview, pos: int, max_bytes: int, bits: int) -> tuple[int, int]:
    value = shift = 0
    try:
        for at in range(pos, pos + max_bytes):
            byte = buf[at]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                # Java's reader drops what does not fit in the type; so a sixth bit of the last byte is not an error.
                return value & ((1 << bits) - 1), at + 1
            shift += 7
    except IndexError:
        raise Malformed(f"varint at {pos} runs past the end of the data") from None
    raise Malformed(f"varint at {pos} is longer than {max_bytes} bytes")


def read_unsigned(buf: bytes | bytearray | memoryview, pos: int) -> tuple[int, int]:
    """(value, next position) of an unsigned varint of up to 32 bits."""
    return _read(buf, pos, _MAX_VARINT_BYTES, 32)


def read_varint(buf: bytes | bytearray | memoryview, pos: int) -> tuple[int, int]:
    """(value, next position) of a zig-zag varint of up to 32 bits."""
    raw, after = _read(buf, pos, _MAX_VARINT_BYTES, 32)
    return (raw >> 1) ^ -(raw & 1), after


def read_varlong(buf: bytes | bytearray | memoryview, pos: int) -> tuple[int, int]:
    """(value, next position) of a zig-zag varint of up to 64 bits."""
    raw, after = _read(buf, pos, _MAX_VARLONG_BYTES, 64)
    return (raw >> 1) ^ -(raw & 1), after


def encode_unsigned(value: int) -> bytes:
    if value < 0:
        raise ValueError(f"an unsigned varint cannot hold {value}")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


#: Lengths and deltas are nearly all of these.
_SMALL = tuple(encode_unsigned(value << 1) for value in range(8192))


def encode_varint(value: int) -> bytes:
    """A zig-zag varint; also serves for varlongs, which differ only in range."""
    if 0 <= value < 8192:
        return _SMALL[value]
    return encode_unsigned(value << 1 if value >= 0 else ((-value) << 1) - 1)


def size_of_varint(value: int) -> int:
    zigzag = value << 1 if value >= 0 else ((-value) << 1) - 1
    return max(1, (zigzag.bit_length() + 6) // 7)
