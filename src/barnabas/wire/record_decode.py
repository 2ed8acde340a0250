"""Decode the records of a batch, or only their keys. Strict: raises `Malformed` if the records do not match the header.

A record is `length varint`, then attributes int8, timestampDelta varlong, offsetDelta varint, key, value (a varint
length, -1 for null, and the bytes), a varint count of headers and each header's key and value. Integers are zigzag-encoded.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from barnabas.base.errors import Malformed
from barnabas.base.ids import Offset
from barnabas.wire.compression import DEFAULT_MAX_DECOMPRESSED_BYTES, Bytes, TooLarge, decompress
from barnabas.wire.record_batch import (
    CODEC_MASK,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    check_length,
    read_header,
)
from barnabas.wire.varint import VARINT_BYTES_MAX, read_varint, read_varlong

#: Header keys are text; `surrogateescape` preserves bytes that are not UTF-8.
Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

_new = tuple.__new__
_SEQUENCE_MASK: Final = 0x7FFFFFFF
#: Attributes, timestamp delta, offset delta, key length, value length, header count: at least one byte each.
RECORD_BODY_MIN: Final = 6


class Record(NamedTuple):
    offset: Offset
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    sequence: int = NO_SEQUENCE


#: Decompressed sizes after which the records so far are checked.
INFLATION_STEPS_BYTES: Final = (1 << 20, 16 << 20)


class KeySpan(NamedTuple):
    """The key of a record, and the record's place."""

    offset_delta: int
    key: bytes | None
    has_value: bool
    #: `body[start:stop]` is the record, including its length prefix.
    start: int
    stop: int


def records_body(
    buf: Buffer,
    pos: int,
    header: BatchHeader,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> bytes:
    """Return the decompressed bytes of a batch's records."""
    end = check_length(header, pos, len(buf))
    with memoryview(buf) as whole, whole[pos + HEADER_SIZE : end] as body:
        codec = header.attributes & CODEC_MASK
        if codec == 0:
            return bytes(body)
        if header.record_count == 0 and not body:
            return b""  # a batch that compaction emptied keeps its codec bits
        return _inflate(codec, body, header, max_decompressed_bytes)


def _inflate(codec: int, body: Bytes, header: BatchHeader, max_bytes: int) -> bytes:
    """Decompress in steps, so that a small batch with invalid records is refused before it becomes large."""
    for limit in INFLATION_STEPS_BYTES:
        if limit >= max_bytes:
            break
        try:
            return decompress(codec, body, limit)
        except TooLarge as more:
            _check_beginning(more.prefix, header, max_bytes)
    return decompress(codec, body, max_bytes)


def _check_beginning(prefix: Bytes, header: BatchHeader, max_bytes: int) -> None:
    """Raise `Malformed` if the lengths of the first records already show that the batch is invalid or too large."""
    pos, end = 0, len(prefix)
    for _ in range(header.record_count):
        if pos + VARINT_BYTES_MAX > end:
            return
        size, pos = read_varint(prefix, pos)
        if size < RECORD_BODY_MIN:
            raise Malformed(f"record of {size} bytes")
        pos += size
        if pos > max_bytes:
            raise TooLarge(max_bytes)
    if pos < end:
        raise Malformed(f"bytes follow the {header.record_count} records of a batch")


def iter_records(
    buf: Buffer,
    pos: int = 0,
    header: BatchHeader | None = None,
    *,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> Iterator[Record]:
    """Yield every record of the batch at `pos`. Raises `Malformed` if the records do not match the header."""
    if header is None:
        header = read_header(buf, pos)
    return decode_body(records_body(buf, pos, header, max_decompressed_bytes), header)


def decode_body(body: bytes, header: BatchHeader) -> Iterator[Record]:
    """Decode decompressed records. Varints of one and two bytes, which are by far the most frequent, are read inline."""
    base_offset, base_sequence = header.base_offset, header.base_sequence
    append_time = header.max_timestamp if header.timestamp_type == LOG_APPEND_TIME else None
    base_timestamp = header.base_timestamp
    new, kind = _new, Record
    last_delta = -1
    end, pos = len(body), 0
    try:
        for _ in range(header.record_count):
            size = body[pos]
            pos += 1
            if size >= 0x80:
                if body[pos] < 0x80:
                    size = size & 0x7F | body[pos] << 7
                    pos += 1
                    size = size >> 1 ^ -(size & 1)
                else:
                    size, pos = read_varint(body, pos - 1)
            else:
                size = size >> 1 ^ -(size & 1)
            stop = pos + size
            if size < RECORD_BODY_MIN or stop > end:
                raise Malformed(f"record of {size} bytes in a body of {end}")
            timestamp = body[pos + 1]
            pos += 2
            if timestamp >= 0x80:
                if body[pos] < 0x80:
                    timestamp = timestamp & 0x7F | body[pos] << 7
                    pos += 1
                    timestamp = timestamp >> 1 ^ -(timestamp & 1)
                else:
                    timestamp, pos = read_varlong(body, pos - 1)
            else:
                timestamp = timestamp >> 1 ^ -(timestamp & 1)
            delta = body[pos]
            pos += 1
            if delta >= 0x80:
                if body[pos] < 0x80:
                    delta = delta & 0x7F | body[pos] << 7
                    pos += 1
                    delta = delta >> 1 ^ -(delta & 1)
                else:
                    delta, pos = read_varint(body, pos - 1)
            else:
                delta = delta >> 1 ^ -(delta & 1)
            if delta <= last_delta:
                raise Malformed(f"record with offset delta {delta} after {last_delta}")
            last_delta = delta
            size = body[pos]
            pos += 1
            if size >= 0x80:
                size, pos = read_varint(body, pos - 1)
            else:
                size = size >> 1 ^ -(size & 1)
            if size >= 0:
                key: bytes | None = body[pos : pos + size]
                pos += size
            elif size == -1:
                key = None
            else:
                raise Malformed(f"key of {size} bytes")
            size = body[pos]
            pos += 1
            if size >= 0x80:
                if body[pos] < 0x80:
                    size = size & 0x7F | body[pos] << 7
                    pos += 1
                    size = size >> 1 ^ -(size & 1)
                else:
                    size, pos = read_varint(body, pos - 1)
            else:
                size = size >> 1 ^ -(size & 1)
            if size >= 0:
                value: bytes | None = body[pos : pos + size]
                pos += size
            elif size == -1:
                value = None
            else:
                raise Malformed(f"value of {size} bytes")
            headers: Headers = ()
            if body[pos]:
                headers, pos = _read_headers(body, pos, stop)
            else:
                pos += 1
            if pos != stop:
                raise Malformed(f"record ends at {pos}, its length says {stop}")
            yield new(
                kind,
                (
                    base_offset + delta,
                    base_timestamp + timestamp if append_time is None else append_time,
                    key,
                    value,
                    headers,
                    base_sequence + delta & _SEQUENCE_MASK if base_sequence >= 0 else NO_SEQUENCE,
                ),
            )
    except IndexError:
        raise Malformed("record runs past the end of its batch") from None
    _check_end(header, last_delta, pos, end)


def _check_end(header: BatchHeader, last_delta: int, pos: int, end: int) -> None:
    if last_delta > header.last_offset_delta:
        raise Malformed(f"record with offset delta {last_delta} in a batch whose last is {header.last_offset_delta}")
    if pos != end:
        raise Malformed(f"{end - pos} bytes follow the {header.record_count} records of a batch")


def _read_headers(body: bytes, pos: int, stop: int) -> tuple[Headers, int]:
    count, pos = read_varint(body, pos)
    # A header has at least two bytes, so a count that cannot fit is refused before an allocation.
    if count < 0 or count * 2 > stop - pos:
        raise Malformed(f"record with {count} headers in {stop - pos} bytes")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        size, pos = read_varint(body, pos)
        if size < 0 or pos + size > stop:
            raise Malformed(f"record header with a key of {size} bytes")
        key = body[pos : pos + size].decode("utf-8", "surrogateescape")
        pos += size
        size, pos = read_varint(body, pos)
        value: bytes | None = None
        if size >= 0:
            if pos + size > stop:
                raise Malformed(f"record header with a value of {size} bytes")
            value = body[pos : pos + size]
            pos += size
        elif size != -1:
            raise Malformed(f"record header with a value of {size} bytes")
        headers.append((key, value))
    return tuple(headers), pos


def iter_keys(body: bytes, header: BatchHeader) -> Iterator[KeySpan]:
    """Yield keys and places of decompressed records, skipping values and headers, for compaction and null-key checks."""
    new, kind = _new, KeySpan
    last_delta = -1
    end, pos = len(body), 0
    try:
        for _ in range(header.record_count):
            start = pos
            size = body[pos]
            pos += 1
            if size >= 0x80:
                if body[pos] < 0x80:
                    size = size & 0x7F | body[pos] << 7
                    pos += 1
                    size = size >> 1 ^ -(size & 1)
                else:
                    size, pos = read_varint(body, start)
            else:
                size = size >> 1 ^ -(size & 1)
            stop = pos + size
            if size < RECORD_BODY_MIN or stop > end:
                raise Malformed(f"record of {size} bytes in a body of {end}")
            pos += 1
            while body[pos] >= 0x80:  # skip the timestamp
                pos += 1
            pos += 1
            delta = body[pos]
            pos += 1
            if delta >= 0x80:
                if body[pos] < 0x80:
                    delta = delta & 0x7F | body[pos] << 7
                    pos += 1
                    delta = delta >> 1 ^ -(delta & 1)
                else:
                    delta, pos = read_varint(body, pos - 1)
            else:
                delta = delta >> 1 ^ -(delta & 1)
            if delta <= last_delta:
                raise Malformed(f"record with offset delta {delta} after {last_delta}")
            last_delta = delta
            size = body[pos]
            pos += 1
            if size >= 0x80:
                size, pos = read_varint(body, pos - 1)
            else:
                size = size >> 1 ^ -(size & 1)
            if size >= 0:
                key: bytes | None = body[pos : pos + size]
                pos += size
            elif size == -1:
                key = None
            else:
                raise Malformed(f"key of {size} bytes")
            # Zigzag: an odd number is negative, and the only negative length is -1 in one byte.
            has_value = body[pos] != 1
            if pos >= stop:
                raise Malformed(f"record's key ends at {pos}, its length says {stop}")
            yield new(kind, (delta, key, has_value, start, stop))
            pos = stop
    except IndexError:
        raise Malformed("record runs past the end of its batch") from None
    _check_end(header, last_delta, pos, end)


class ScanResult(NamedTuple):
    """The result of `validate_records`."""

    max_timestamp: int
    #: The offset of the first record that has `max_timestamp`.
    offset_of_max_timestamp: Offset
    #: Index of the first record without a key; None if all have one.
    first_null_key: int | None


def validate_records(
    buf: Buffer,
    pos: int,
    header: BatchHeader,
    *,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> ScanResult:
    """Decode every record of a client's batch: check counts, lengths, and that offset deltas are 0, 1, 2, … without gaps."""
    expected = header.base_offset
    max_timestamp, offset_of_max = NO_TIMESTAMP, header.base_offset
    first_null_key = None
    for record in iter_records(buf, pos, header, max_decompressed_bytes=max_decompressed_bytes):
        if record.offset != expected:
            raise Malformed(
                f"record with offset delta {record.offset - header.base_offset} , but no offset may be skipped"
            )
        if record.key is None and first_null_key is None:
            first_null_key = record.offset - header.base_offset
        if record.timestamp > max_timestamp:
            max_timestamp, offset_of_max = record.timestamp, record.offset
        expected = Offset(expected + 1)
    if header.record_count != header.last_offset_delta + 1:
        raise Malformed(
            f"{header.record_count} records in a batch whose last offset delta is {header.last_offset_delta}"
        )
    return ScanResult(max_timestamp, offset_of_max, first_null_key)
