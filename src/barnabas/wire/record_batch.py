"""Record batch v2, read in place: one `struct` read for the header, no record decoded, nothing copied.

Produce, fetch, replication and recovery use this hot path. `records.py` decodes records.

Layout (big-endian), 61 bytes, then the records (compressed as one block where a codec is set)::

    0  baseOffset int64        23 lastOffsetDelta int32      51 producerEpoch int16
    8  batchLength int32       27 baseTimestamp int64        53 baseSequence int32
    12 leaderEpoch int32       35 maxTimestamp int64         57 recordCount int32
    16 magic int8              43 producerId int64           61 records
    17 crc uint32
    21 attributes int16        <- the CRC-32C covers from here to the end

Base offset and leader epoch lie before the CRC's range: a broker patches them without touching the CRC.
"""

import struct
from collections.abc import Iterator
from mmap import mmap
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from barnabas.base.errors import Malformed
from barnabas.base.ids import Offset

#: Anything that holds batches and supports the buffer protocol.
Buffer: TypeAlias = bytes | bytearray | memoryview | mmap

MAGIC_V2: Final = 2

#: Base offset and batch length, which precede the bytes that `batch_length` counts.
LOG_OVERHEAD: Final = 12
HEADER_SIZE: Final = 61
#: The smallest valid `batch_length`: a header without records.
MIN_BATCH_LENGTH: Final = HEADER_SIZE - LOG_OVERHEAD

LENGTH_AT: Final = 8
LEADER_EPOCH_AT: Final = 12
MAGIC_AT: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
LAST_OFFSET_DELTA_AT: Final = 23
BASE_TIMESTAMP_AT: Final = 27
MAX_TIMESTAMP_AT: Final = 35
PRODUCER_ID_AT: Final = 43
BASE_SEQUENCE_AT: Final = 53
RECORD_COUNT_AT: Final = 57

CODEC_MASK: Final = 0x07
TIMESTAMP_TYPE_FLAG: Final = 0x08
TRANSACTIONAL_FLAG: Final = 0x10
CONTROL_FLAG: Final = 0x20
DELETE_HORIZON_FLAG: Final = 0x40

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1

NO_TIMESTAMP: Final = -1
NO_SEQUENCE: Final = -1
MAX_SEQUENCE: Final = 0x7FFFFFFF

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_INT64: Final = struct.Struct(">q")
_INT32: Final = struct.Struct(">i")
_INT16: Final = struct.Struct(">h")
_UINT32: Final = struct.Struct(">I")

_unpack_header = HEADER.unpack_from
_new = tuple.__new__


class BatchHeader(NamedTuple):
    """The 61 bytes of a batch header; properties compute derived values."""

    base_offset: Offset
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    #: The delete horizon if `has_delete_horizon`, else the first record's timestamp.
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch, on disk and on the wire."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> Offset:
        return Offset(self.base_offset + self.last_offset_delta)

    @property
    def next_offset(self) -> Offset:
        """The first offset after this batch."""
        return Offset(self.base_offset + self.last_offset_delta + 1)

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        """`CREATE_TIME` or `LOG_APPEND_TIME`."""
        return (self.attributes & TIMESTAMP_TYPE_FLAG) >> 3

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_FLAG != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_FLAG != 0

    @property
    def has_delete_horizon(self) -> bool:
        return self.attributes & DELETE_HORIZON_FLAG != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """When tombstones and markers of this batch may be deleted (KIP-534); None until the cleaner has set it."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_FLAG else None

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; sequences wrap from 2^31-1 to 0."""
        base = self.base_sequence
        return increment_sequence(base, self.last_offset_delta) if base != NO_SEQUENCE else NO_SEQUENCE


def increment_sequence(sequence: int, increment: int) -> int:
    if sequence > MAX_SEQUENCE - increment:
        return increment - (MAX_SEQUENCE - sequence) - 1
    return sequence + increment


def decrement_sequence(sequence: int, decrement: int) -> int:
    if sequence < decrement:
        return MAX_SEQUENCE - (decrement - sequence) + 1
    return sequence - decrement


def read_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """Read the header at `pos`. Checks that 61 bytes exist and that the magic is 2; `iter_batches` checks lengths."""
    try:
        header = _new(BatchHeader, _unpack_header(buf, pos))
    except struct.error:
        raise _short_header(buf, pos) from None
    if header.magic != MAGIC_V2:
        raise _wrong_magic(header.magic, pos)
    return header


def _short_header(buf: Buffer, pos: int) -> Malformed:
    remaining = len(buf) - pos
    if pos >= 0 and remaining > MAGIC_AT:
        # Messages of v0 and v1 can be shorter than a v2 header, with the magic at the same place.
        magic = buf[pos + MAGIC_AT]
        if magic < MAGIC_V2:
            return _wrong_magic(magic, pos)
    return Malformed(f"batch at position {pos} is torn: {max(remaining, 0)} bytes left, a header has {HEADER_SIZE}")


def _wrong_magic(magic: int, pos: int) -> Malformed:
    if magic in (0, 1):
        return Malformed(
            f"batch at position {pos} has the message format v{magic} of Kafka before 0.11, which is not supported: "
            "only record batches v2 are; convert the topic with Apache Kafka first"
        )
    return Malformed(f"batch at position {pos} has an unknown magic {magic}")


def check_length(header: BatchHeader, pos: int, end: int) -> int:
    """Return the position after the batch, after checking that its length is possible and ends within `end`."""
    length = header.batch_length
    if length < MIN_BATCH_LENGTH:
        raise Malformed(f"batch at position {pos} claims a length of {length}, less than its own header")
    after = pos + LOG_OVERHEAD + length
    if after > end:
        raise Malformed(f"batch at position {pos} is torn: it ends at {after}, the data at {end}")
    if header.last_offset_delta < 0 or header.record_count < 0:
        raise Malformed(
            f"batch at position {pos} has a negative last offset delta ({header.last_offset_delta}) "
            f"or record count ({header.record_count})"
        )
    return after


def iter_batches(buf: Buffer, start: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) for every batch in `buf[start:end]`, which must be whole batches.

    Raises `Malformed` at the first torn or garbage batch; all that was yielded before is well-formed, so a
    recovering reader cuts at the end of the last batch it got. CRCs are not checked here: see `crc_ok`.
    """
    limit = len(buf) if end is None else end
    pos = start
    while pos < limit:
        if limit - pos < HEADER_SIZE:
            raise _short_header(memoryview(buf)[:limit], pos)
        header = read_header(buf, pos)
        after = check_length(header, pos, limit)
        yield pos, header
        pos = after


def compute_crc(buf: Buffer, pos: int, batch_length: int) -> int:
    with memoryview(buf) as whole, whole[pos + ATTRIBUTES_AT : pos + LOG_OVERHEAD + batch_length] as covered:
        return crc32c(covered)


def crc_ok(buf: Buffer, pos: int, header: BatchHeader) -> bool:
    """Return whether the CRC matches the batch's bytes. The caller has checked the length."""
    with memoryview(buf) as whole, whole[pos + ATTRIBUTES_AT : pos + LOG_OVERHEAD + header.batch_length] as covered:
        return crc32c(covered) == header.crc


def check_crc(buf: Buffer, pos: int, header: BatchHeader) -> None:
    if not crc_ok(buf, pos, header):
        computed = compute_crc(buf, pos, header.batch_length)
        raise Malformed(f"batch at position {pos} is corrupt: stored crc {header.crc}, computed {computed}")


def patch_max_timestamp(
    buf: bytearray | memoryview | mmap, pos: int, max_timestamp: int, *, log_append_time: bool
) -> None:
    """Set the max timestamp and the timestamp type, and compute the CRC again if something changed.

    With `log_append_time` every record then reads as `max_timestamp`, without changes to the records.
    """
    header = read_header(buf, pos)
    attributes = header.attributes & ~TIMESTAMP_TYPE_FLAG
    if log_append_time:
        attributes |= TIMESTAMP_TYPE_FLAG
    if attributes == header.attributes and max_timestamp == header.max_timestamp:
        return
    _INT16.pack_into(buf, pos + ATTRIBUTES_AT, attributes)
    _INT64.pack_into(buf, pos + MAX_TIMESTAMP_AT, max_timestamp)
    _UINT32.pack_into(buf, pos + CRC_AT, compute_crc(buf, pos, header.batch_length))
