"""Message sets: how records travelled before Kafka 0.11 (magic 0 and 1). Made into a batch, and made of batches. Pure.

A set has no header of its own; it is messages, one after the other (big-endian)::

    0  offset int64     12 crc uint32       17 attributes int8           key int32 length, bytes
    8  size int32       16 magic int8       18 timestamp int64 (magic 1) value int32 length, bytes

The size counts from the CRC on, the CRC-32 covers from the magic on, a length of -1 is null. Compression puts a set of its own
into the value of one message, the wrapper. Its offset is that of the last message inside; offsets inside are absolute in
magic 0 and count from the first in magic 1. There are no headers, producers, transactions or control records.
"""

import zlib
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from barnabas.core.errors import ErrorCode, Malformed, Refused
from barnabas.protocol.compression import DEFAULT_MAX_DECOMPRESSED_BYTES, Codec, compress, decompress
from barnabas.protocol.record_batch import (
    CODEC_MASK,
    LOG_APPEND_TIME,
    MAGIC_V2,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_FLAG,
    BatchHeader,
    Buffer,
    read_header,
)
from barnabas.protocol.record_build import BatchBuilder
from barnabas.protocol.record_decode import Record, iter_records

MAGIC_V0: Final = 0
MAGIC_V1: Final = 1
#: zstd came with Kafka 2.1: no message set has it.
_CODECS: Final = frozenset({Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4})

_HEAD: Final = Struct(">qiIbb")
_OFFSET_AND_SIZE: Final = Struct(">qi")
_CRC: Final = Struct(">I")
_MAGIC_AND_ATTRIBUTES: Final = Struct(">bb")
_INT64: Final = Struct(">q")
_INT32: Final = Struct(">i")
_CRC_AT: Final = 12
_MAGIC_AT: Final = 16
#: CRC, magic, attributes and two lengths.
_SIZE_MIN: Final = 14


class _Message(NamedTuple):
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def batch_of(message_set: Buffer) -> bytearray:
    """The messages of a producer as one batch, with the codec that they came in. `Malformed` where they make no sense.

    Offsets are the log's to give. A message of magic 0 has no timestamp, and stays without.
    """
    with memoryview(message_set) as whole:
        outer = list(_parse(whole))
    if not outer:
        raise Malformed("message set without a message")
    codec = max(message.attributes & CODEC_MASK for message in outer)
    builder = BatchBuilder(codec=codec)
    for message in outer:
        for inner in _unwrap(message):
            builder.append(inner.key, inner.value, timestamp=inner.timestamp)
    return bytearray(builder.build())


def _unwrap(message: _Message) -> Iterable[_Message]:
    codec = message.attributes & CODEC_MASK
    if codec == Codec.NONE:
        return (message,)
    if codec not in _CODECS:
        raise Malformed(f"message set with codec {codec}")
    if message.value is None:
        raise Malformed("compressed message without a value")
    inner = list(_parse(memoryview(decompress(codec, message.value, DEFAULT_MAX_DECOMPRESSED_BYTES))))
    if not inner:
        raise Malformed("compressed message without messages inside")
    if any(each.attributes & CODEC_MASK or each.magic != message.magic for each in inner):
        raise Malformed("compressed message inside of a compressed message, or one of another magic")
    return inner


def _parse(view: memoryview) -> Iterator[_Message]:
    pos, end = 0, len(view)
    while pos < end:
        if end - pos < _OFFSET_AND_SIZE.size + _SIZE_MIN:
            raise Malformed(f"message set ends with {end - pos} bytes that are no message")
        _, size, crc, magic, attributes = _HEAD.unpack_from(view, pos)
        stop = pos + _CRC_AT + size
        if size < _SIZE_MIN or stop > end:
            raise Malformed(f"message of {size} bytes in a set of {end}")
        if magic not in (MAGIC_V0, MAGIC_V1):
            raise Malformed(f"message of magic {magic}")
        if zlib.crc32(view[pos + _MAGIC_AT : stop]) != crc:
            raise Malformed("message is corrupt: its CRC does not match")
        at = pos + _HEAD.size
        timestamp = NO_TIMESTAMP
        if magic == MAGIC_V1:
            if at + 8 > stop:
                raise Malformed("message ends before its timestamp")
            timestamp = _INT64.unpack_from(view, at)[0]
            at += 8
        key, at = _read_bytes(view, at, stop)
        value, at = _read_bytes(view, at, stop)
        if at != stop:
            raise Malformed(f"message ends at {at}, its size says {stop}")
        yield _Message(magic, attributes, timestamp, key, value)
        pos = stop


def _read_bytes(view: memoryview, pos: int, stop: int) -> tuple[bytes | None, int]:
    if pos + 4 > stop:
        raise Malformed("message ends before a length")
    size = _INT32.unpack_from(view, pos)[0]
    pos += 4
    if size == -1:
        return None, pos
    if size < 0 or pos + size > stop:
        raise Malformed(f"message with a key or value of {size} bytes, {stop - pos} are left")
    return bytes(view[pos : pos + size]), pos + size


def message_set_of(batches: Buffer, *, magic: int, from_offset: int) -> bytes:
    """Whole batches as a client of before Kafka 0.11 reads them: without headers and without control records.

    zstd is refused where it comes first (KIP-110), and ends the set where it does not. Magic 0 never carries lz4: clients
    of its time checked a wrong checksum in the frame (KAFKA-3160), so they get those records as they are.
    """
    out = bytearray()
    pos, end = 0, len(batches)
    while pos < end:
        header = read_header(batches, pos)
        if header.codec == Codec.ZSTD:
            if not out:
                raise Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Fetch v10")
            break
        if not header.is_control:
            _write_batch(out, header, list(iter_records(batches, pos, header)), magic, from_offset)
        pos += header.size_bytes
    return bytes(out)


def _write_batch(out: bytearray, header: BatchHeader, records: list[Record], magic: int, from_offset: int) -> None:
    is_wrapped = header.codec != Codec.NONE and not (header.codec == Codec.LZ4 and magic == MAGIC_V0)
    kind = TIMESTAMP_TYPE_FLAG if header.timestamp_type == LOG_APPEND_TIME and magic == MAGIC_V1 else 0
    if not is_wrapped:
        for record in records:
            if record.offset >= from_offset:
                _write(out, record.offset, magic, kind, record.timestamp, record.key, record.value)
        return
    if not records:
        return
    first = header.base_offset if magic == MAGIC_V1 else 0
    inner = bytearray()
    for record in records:
        _write(inner, record.offset - first, magic, kind, record.timestamp, record.key, record.value)
    newest = max(record.timestamp for record in records)
    _write(out, records[-1].offset, magic, kind | header.codec, newest, None, compress(header.codec, inner))


def _write(
    out: bytearray, offset: int, magic: int, attributes: int, timestamp: int, key: bytes | None, value: bytes | None
) -> None:
    body = bytearray(_MAGIC_AND_ATTRIBUTES.pack(magic, attributes))
    if magic == MAGIC_V1:
        body += _INT64.pack(timestamp)
    for content in (key, value):
        body += _INT32.pack(-1 if content is None else len(content))
        body += content or b""
    out += _OFFSET_AND_SIZE.pack(offset, _CRC.size + len(body))
    out += _CRC.pack(zlib.crc32(body))
    out += body


def is_message_set(records: Buffer) -> bool:
    """Whether a producer's bytes are of before record batches: the magic is in the same place in both."""
    return len(records) > _MAGIC_AT and records[_MAGIC_AT] < MAGIC_V2
