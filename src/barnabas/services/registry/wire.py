"""Confluent's wire format: a zero byte, the schema's id in four bytes, and for Protobuf the index of the message in its file.

Pure.
"""

import struct
from collections.abc import Sequence
from typing import Final

from barnabas.base.errors import Malformed
from barnabas.wire.varint import encode_varint, read_varint

MAGIC: Final = 0
_HEAD: Final = struct.Struct(">bI")
HEAD_BYTES: Final = _HEAD.size


class NotFramed(ValueError):
    """Bytes without the five-byte header of Confluent's serializers."""


def frame(schema_id: int, payload: bytes) -> bytes:
    return _HEAD.pack(MAGIC, schema_id) + payload


def unframe(data: bytes) -> tuple[int, bytes]:
    """Return the schema's id and the bytes after the header."""
    if len(data) < HEAD_BYTES:
        raise NotFramed(f"{len(data)} bytes are too few for the schema registry's wire format")
    magic, schema_id = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise NotFramed(f"starts with byte {data[0]:#04x}, where the schema registry's wire format has 0x00")
    return schema_id, data[HEAD_BYTES:]


def write_indexes(indexes: Sequence[int]) -> bytes:
    """Encode the position of a message in its file. `[0]`, the first message, is so common that it is a single zero."""
    if list(indexes) == [0]:
        return b"\0"
    return b"".join(encode_varint(number) for number in (len(indexes), *indexes))


def skip_indexes(payload: bytes) -> bytes:
    """Return the payload after its indexes, for a reader that knows the message type."""
    return read_indexes(payload)[1]


def read_indexes(payload: bytes) -> tuple[list[int], bytes]:
    """Return the position of the message in its file, and the message's bytes."""
    try:
        count, at = read_varint(payload, 0)
        if not 0 <= count <= len(payload):
            raise NotFramed(f"{count} message indexes in {len(payload)} bytes")
        indexes: list[int] = []
        for _ in range(count):
            index, at = read_varint(payload, at)
            indexes.append(index)
    except Malformed as error:
        raise NotFramed(f"the message indexes are incomplete: {error}") from error
    return indexes or [0], payload[at:]
