"""Confluent's wire format: a zero byte, the schema's id in four bytes, and for Protobuf which message of the file it is.

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
    """Bytes without the five that Confluent's serializers put in front."""


def frame(schema_id: int, payload: bytes) -> bytes:
    return _HEAD.pack(MAGIC, schema_id) + payload


def unframe(data: bytes) -> tuple[int, bytes]:
    """The schema's id, and what follows."""
    if len(data) < HEAD_BYTES:
        raise NotFramed(f"{len(data)} bytes are too few for the schema registry's wire format")
    magic, schema_id = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise NotFramed(f"starts with byte {data[0]:#04x}, where the schema registry's wire format has 0x00")
    return schema_id, data[HEAD_BYTES:]


def write_indexes(indexes: Sequence[int]) -> bytes:
    """Where a message stands in its file: `[0]`, the first, is so common that it is written as a single zero."""
    if list(indexes) == [0]:
        return b"\0"
    return b"".join(encode_varint(number) for number in (len(indexes), *indexes))


def skip_indexes(payload: bytes) -> bytes:
    """The message without its indexes: a reader that knows which message it wants has no use for them."""
    return read_indexes(payload)[1]


def read_indexes(payload: bytes) -> tuple[list[int], bytes]:
    """Where the message stands in its file, and the message."""
    try:
        count, at = read_varint(payload, 0)
        if not 0 <= count <= len(payload):
            raise NotFramed(f"{count} message indexes in {len(payload)} bytes")
        indexes: list[int] = []
        for _ in range(count):
            index, at = read_varint(payload, at)
            indexes.append(index)
    except Malformed as error:
        raise NotFramed(f"message indexes that do not end: {error}") from error
    return indexes or [0], payload[at:]
