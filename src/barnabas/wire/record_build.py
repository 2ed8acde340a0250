"""Build batches from records: `BatchBuilder`, and the empty batches that compaction leaves."""

from collections.abc import Iterable
from struct import Struct
from typing import Final

from crc32c import crc32c

from barnabas.base.ids import Offset
from barnabas.wire.compression import Codec, compress
from barnabas.wire.record_batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL_FLAG,
    CRC_AT,
    CREATE_TIME,
    DELETE_HORIZON_FLAG,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_V2,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)
from barnabas.wire.record_decode import Headers
from barnabas.wire.varint import encode_varint

_CRC: Final = Struct(">I")
_ROOM_FOR_HEADER: Final = bytes(HEADER_SIZE)
#: Record attributes (unused, always 0), and a timestamp delta of zero.
_NO_ATTRIBUTES_NO_DELAY: Final = b"\0\0"
_NO_RECORD_HEADERS: Final = b"\0"
#: The length of a null field: -1, zigzag-encoded.
_NULL: Final = b"\1"


def encode_record(
    key: bytes | None, value: bytes | None, headers: Headers, *, timestamp_delta: int, offset_delta: int
) -> bytes:
    out = bytearray(1)  # attributes are unused
    out += encode_varint(timestamp_delta)
    out += encode_varint(offset_delta)
    _add_nullable(out, key)
    _add_nullable(out, value)
    out += encode_varint(len(headers))
    for name, content in headers:
        encoded = name.encode("utf-8", "surrogateescape")
        out += encode_varint(len(encoded))
        out += encoded
        _add_nullable(out, content)
    return encode_varint(len(out)) + out


def _add_nullable(out: bytearray, content: bytes | None) -> None:
    if content is None:
        out += _NULL
    else:
        out += encode_varint(len(content))
        out += content


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
    """Build a batch from a body that is already compressed as `attributes` says."""
    fields = (
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    head = (base_offset, HEADER_SIZE + len(body) - LOG_OVERHEAD, leader_epoch, MAGIC_V2, 0, attributes, *fields)
    return bytes(join_batch(head, (body,)))


def join_batch(header: tuple[int, ...], pieces: Iterable[bytes]) -> bytearray:
    """Build a batch from header fields and pieces of the body, with a new length and CRC."""
    out = bytearray().join((_ROOM_FOR_HEADER, *pieces))
    HEADER.pack_into(out, 0, header[0], len(out) - LOG_OVERHEAD, *header[2:])
    _CRC.pack_into(out, CRC_AT, crc32c(memoryview(out)[ATTRIBUTES_AT:]))
    return out


def plain_batch(
    records: Iterable[tuple[bytes, bytes | None]],
    *,
    timestamp: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    transactional: bool = False,
) -> bytearray:
    """Build the same batch as `BatchBuilder` in a third of the time, for keyed records with one timestamp and no headers.

    Coordinators write a batch of one or two such records for each request that changes their state.
    """
    pieces: list[bytes] = [_ROOM_FOR_HEADER]
    count = 0
    for key, value in records:
        content = b"".join(
            (
                _NO_ATTRIBUTES_NO_DELAY,
                encode_varint(count),
                encode_varint(len(key)),
                key,
                _NULL if value is None else encode_varint(len(value)),
                value or b"",
                _NO_RECORD_HEADERS,
            )
        )
        pieces.append(encode_varint(len(content)))
        pieces.append(content)
        count += 1
    out = bytearray().join(pieces)
    attributes = TRANSACTIONAL_FLAG if transactional else 0
    fields = (count - 1, timestamp, timestamp, producer_id, producer_epoch, NO_SEQUENCE, count)
    HEADER.pack_into(out, 0, 0, len(out) - LOG_OVERHEAD, -1, MAGIC_V2, 0, attributes, *fields)
    _CRC.pack_into(out, CRC_AT, crc32c(memoryview(out)[ATTRIBUTES_AT:]))
    return out


class BatchBuilder:
    """Collects records and builds a batch.

    Offsets default to the next one. With explicit offsets and a `last_offset`, the records are those that compaction left of a
    longer batch. With `delete_horizon_ms` the base timestamp is the horizon. With `log_append_time_ms` every record reads as
    appended at that time.
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
        """The size of the batch without compression."""
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
        """Add a record; return its offset."""
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

    def build(self) -> bytes:
        """Build the batch; without records, an empty one as the cleaner leaves it."""
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
    """Return the batch that compaction leaves if all records are deleted but the producer's last sequence must be kept."""
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
