"""Records inside a batch: decode, scan keys, validate, build. Only where the semantics need it: see `record_batch`.

A record is `length varint`, then attributes int8, timestampDelta varlong, offsetDelta varint, key, value (a varint
length, -1 for null, and the bytes), a varint count of headers and each header's key and value. Integers zig-zag.
"""

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from barnabas.core.errors import Malformed
from barnabas.core.ids import Offset
from barnabas.protocol.compression import DEFAULT_MAX_DECOMPRESSED_BYTES, Codec, compress, decompress
from barnabas.protocol.record_batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL_FLAG,
    CREATE_TIME,
    DELETE_HORIZON_FLAG,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_V2,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Buffer,
    check_length,
    read_header,
)
from barnabas.protocol.varint import encode_varint, read_varint, read_varlong

#: Header keys are text; bytes that are not UTF-8 survive a round trip by `surrogateescape`.
Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

_new = tuple.__new__
_SEQUENCE_MASK: Final = 0x7FFFFFFF
#: attributes, timestamp delta, offset delta, key length, value length, header count: a byte each.
_RECORD_BODY_MIN: Final = 6


class Record(NamedTuple):
    offset: Offset
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    sequence: int = NO_SEQUENCE


class KeySpan(NamedTuple):
    """A record seen by its key alone."""

    offset_delta: int
    key: bytes | None
    has_value: bool
    #: The record's bytes, its length prefix included, are `body[start:stop]`.
    start: int
    stop: int


class ControlType(IntEnum):
    """Types of control records; the KRaft ones are named so that a dump can say what it met."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6
    UNKNOWN = -1


class EndTxnMarker(NamedTuple):
    """What the one record of a transaction's control batch says."""

    is_commit: bool
    coordinator_epoch: int
    timestamp: int


# -- reading


def records_body(
    buf: Buffer,
    pos: int,
    header: BatchHeader,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> bytes:
    """The bytes of a batch's records, decompressed."""
    end = check_length(header, pos, len(buf))
    with memoryview(buf) as whole, whole[pos + HEADER_SIZE : end] as body:
        codec = header[5] & CODEC_MASK
        if codec == 0:
            return bytes(body)
        if header.record_count == 0 and not body:
            return b""  # a batch that compaction has emptied keeps its codec bits
        return decompress(codec, body, max_decompressed_bytes)


def iter_records(
    buf: Buffer,
    pos: int = 0,
    header: BatchHeader | None = None,
    *,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> Iterator[Record]:
    """Every record of the batch at `pos`. `Malformed` where the records are not what the header says."""
    if header is None:
        header = read_header(buf, pos)
    return decode_body(records_body(buf, pos, header, max_decompressed_bytes), header)


def decode_body(body: bytes, header: BatchHeader) -> Iterator[Record]:
    """Decode decompressed records. One- and two-byte varints are read in line: they are nearly all there are."""
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
            if size < _RECORD_BODY_MIN or stop > end:
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
    # A header has two bytes at least: a count that cannot fit is refused before anything is allocated for it.
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
    """Keys and places of decompressed records, values and headers skipped: for compaction and null-key checks."""
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
            if size < _RECORD_BODY_MIN or stop > end:
                raise Malformed(f"record of {size} bytes in a body of {end}")
            pos += 1
            while body[pos] >= 0x80:  # the timestamp is not needed
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
            # Zig-zag: an odd number is negative, and the only negative length is -1, one byte.
            has_value = body[pos] != 1
            if pos >= stop:
                raise Malformed(f"record's key ends at {pos}, its length says {stop}")
            yield new(kind, (delta, key, has_value, start, stop))
            pos = stop
    except IndexError:
        raise Malformed("record runs past the end of its batch") from None
    _check_end(header, last_delta, pos, end)


class ScanResult(NamedTuple):
    """What `validate_records` saw."""

    max_timestamp: int
    #: Of the first record that has `max_timestamp`.
    offset_of_max_timestamp: Offset
    #: Index of the first record without a key; None where all have one.
    first_null_key: int | None


def validate_records(
    buf: Buffer,
    pos: int,
    header: BatchHeader,
    *,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> ScanResult:
    """Decode every record of a client's batch: counts, lengths, and offset deltas 0, 1, 2, … without a gap."""
    expected = header.base_offset
    max_timestamp, offset_of_max = NO_TIMESTAMP, header.base_offset
    first_null_key = None
    for record in iter_records(buf, pos, header, max_decompressed_bytes=max_decompressed_bytes):
        if record.offset != expected:
            raise Malformed(f"record with offset delta {record.offset - header.base_offset} where none may be skipped")
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


# -- writing


def encode_record(
    key: bytes | None, value: bytes | None, headers: Headers, *, timestamp_delta: int, offset_delta: int
) -> bytes:
    out = bytearray(1)  # attributes: none is defined
    out += encode_varint(timestamp_delta)
    out += encode_varint(offset_delta)
    if key is None:
        out.append(1)
    else:
        out += encode_varint(len(key))
        out += key
    if value is None:
        out.append(1)
    else:
        out += encode_varint(len(value))
        out += value
    out += encode_varint(len(headers))
    for name, content in headers:
        encoded = name.encode("utf-8", "surrogateescape")
        out += encode_varint(len(encoded))
        out += encoded
        if content is None:
            out.append(1)
        else:
            out += encode_varint(len(content))
            out += content
    return encode_varint(len(out)) + out


def assemble(
    body: bytes,
    *,
    base_offset: int,
    last_offset_delta: int,
    record_count: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
) -> bytes:
    """A batch of a body that is already compressed as `attributes` says."""
    out = bytearray(HEADER_SIZE + len(body))
    fields = (
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    length = len(out) - LOG_OVERHEAD
    out[HEADER_SIZE:] = body
    HEADER.pack_into(out, 0, base_offset, length, leader_epoch, MAGIC_V2, 0, attributes, *fields)
    crc = crc32c(memoryview(out)[ATTRIBUTES_AT:])
    HEADER.pack_into(out, 0, base_offset, length, leader_epoch, MAGIC_V2, crc, attributes, *fields)
    return bytes(out)


class BatchBuilder:
    """Collects records and makes a batch of them.

    Offsets default to the next one; compaction passes its own and sets `last_offset`, so that the batch keeps the range
    it had. With `delete_horizon_ms` the base timestamp is the horizon. With `log_append_time_ms` every record
    reads as appended then.
    """

    def __init__(
        self,
        *,
        base_offset: int = 0,
        codec: int = Codec.NONE,
        level: int | None = None,
        leader_epoch: int = -1,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = NO_SEQUENCE,
        transactional: bool = False,
        control: bool = False,
        log_append_time_ms: int | None = None,
        delete_horizon_ms: int | None = None,
        last_offset: int | None = None,
    ) -> None:
        self._base_offset = base_offset
        self._codec = codec
        self._level = level
        self._leader_epoch = leader_epoch
        self._producer = (producer_id, producer_epoch, base_sequence)
        self._log_append_time_ms = log_append_time_ms
        self._last_offset = last_offset
        self._next_offset = base_offset
        self._base_timestamp = delete_horizon_ms
        self._max_timestamp = NO_TIMESTAMP
        self._body = bytearray()
        self._count = 0
        self._attributes = (
            codec
            | (TIMESTAMP_TYPE_FLAG if log_append_time_ms is not None else CREATE_TIME)
            | (TRANSACTIONAL_FLAG if transactional else 0)
            | (CONTROL_FLAG if control else 0)
            | (DELETE_HORIZON_FLAG if delete_horizon_ms is not None else 0)
        )

    def __len__(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        """Of the batch, were it not compressed."""
        return HEADER_SIZE + len(self._body)

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        *,
        timestamp: int,
        headers: Headers | Iterable[tuple[str, bytes | None]] = (),
        offset: int | None = None,
    ) -> Offset:
        """Add a record; its offset."""
        at = self._next_offset if offset is None else offset
        if at < self._next_offset:
            raise ValueError(f"offset {at} is below the next one, {self._next_offset}")
        if self._base_timestamp is None:
            self._base_timestamp = timestamp
        self._body += encode_record(
            key,
            value,
            tuple(headers),
            timestamp_delta=timestamp - self._base_timestamp,
            offset_delta=at - self._base_offset,
        )
        self._max_timestamp = max(self._max_timestamp, timestamp)
        self._next_offset = at + 1
        self._count += 1
        return Offset(at)

    def append_record(self, record: Record) -> None:
        """Add a decoded record with its own offset, timestamp and headers."""
        self.append(record.key, record.value, timestamp=record.timestamp, headers=record.headers, offset=record.offset)

    def build(self) -> bytes:
        """The batch; without records, an empty one as the cleaner leaves them."""
        producer_id, producer_epoch, base_sequence = self._producer
        body = bytes(self._body)
        last_offset = self._next_offset - 1 if self._last_offset is None else self._last_offset
        append_time = self._log_append_time_ms
        return assemble(
            compress(self._codec, body, self._level) if body else body,
            base_offset=self._base_offset,
            last_offset_delta=last_offset - self._base_offset,
            record_count=self._count,
            attributes=self._attributes,
            base_timestamp=NO_TIMESTAMP if self._base_timestamp is None else self._base_timestamp,
            max_timestamp=self._max_timestamp if append_time is None else append_time,
            leader_epoch=self._leader_epoch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )


def empty_batch(header: BatchHeader) -> bytes:
    """What compaction leaves of a batch whose records are all gone but whose producer's last sequence must be kept."""
    return assemble(
        b"",
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        record_count=0,
        attributes=header.attributes & ~(CODEC_MASK | DELETE_HORIZON_FLAG),
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=header.max_timestamp,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )


# -- control records

_CONTROL_KEY: Final = struct.Struct(">hh")
_END_TXN_VALUE: Final = struct.Struct(">hi")


def end_txn_marker(
    *,
    commit: bool,
    coordinator_epoch: int,
    producer_id: int,
    producer_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """The control batch that ends a transaction."""
    builder = BatchBuilder(
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )
    kind = ControlType.COMMIT if commit else ControlType.ABORT
    builder.append(_CONTROL_KEY.pack(0, kind), _END_TXN_VALUE.pack(0, coordinator_epoch), timestamp=timestamp)
    return builder.build()


def control_type_id(key: bytes | None) -> int:
    """The number of a control record's type; later versions of the key may be longer."""
    if key is None or len(key) < _CONTROL_KEY.size:
        raise Malformed("control record whose key is too short to name a type")
    version, type_id = _CONTROL_KEY.unpack_from(key)
    if version < 0:
        raise Malformed(f"control record with the unknown key version {version}")
    return int(type_id)


def control_type(key: bytes | None) -> ControlType:
    type_id = control_type_id(key)
    return ControlType(type_id) if type_id in _CONTROL_TYPES else ControlType.UNKNOWN


_CONTROL_TYPES: Final = frozenset(ControlType)


def parse_end_txn_marker(record: Record) -> EndTxnMarker:
    kind = control_type(record.key)
    if kind not in (ControlType.COMMIT, ControlType.ABORT):
        raise Malformed(f"control record of type {kind.name} does not end a transaction")
    if record.value is None or len(record.value) < _END_TXN_VALUE.size:
        raise Malformed("transaction marker whose value is too short")
    version, coordinator_epoch = _END_TXN_VALUE.unpack_from(record.value)
    if version < 0:
        raise Malformed(f"transaction marker with the unknown version {version}")
    return EndTxnMarker(kind is ControlType.COMMIT, coordinator_epoch, record.timestamp)


def read_end_txn_marker(buf: Buffer, pos: int, header: BatchHeader) -> EndTxnMarker | None:
    """The marker in the control batch at `pos`; None where compaction has emptied the batch."""
    record = next(iter_records(buf, pos, header), None)
    return None if record is None else parse_end_txn_marker(record)
