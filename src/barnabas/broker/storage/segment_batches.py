"""The batches in a segment's log file, read from front to back. Any thread, while the file is pinned."""

import struct
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from barnabas.base.errors import Malformed
from barnabas.broker.storage.file_handle import OpenFile
from barnabas.broker.storage.time_index import TimestampOffset
from barnabas.wire.record_batch import HEADER, HEADER_SIZE, LOG_OVERHEAD, MAGIC_V2, MIN_BATCH_LENGTH, BatchHeader

_SCAN_BYTES: Final = 1 << 20
#: The header fields for a look-up: base offset, length, leader epoch, magic, crc, attributes, last offset delta.
SHORT_HEADER: Final = struct.Struct(">qiibIhi")
_SHORT_HEADER_SIZE: Final = SHORT_HEADER.size
_short_header = SHORT_HEADER.unpack_from
#: One read covers the distance between two index entries at the default `index.interval.bytes`.
_LOOKUP_BYTES: Final = 4096


class BatchAt(NamedTuple):
    """A batch that a look-up found."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int


class CorruptSegment(Malformed):
    """Bytes in a log file that are not a batch, where a batch must be."""

    def __init__(self, message: str, position: int = 0) -> None:
        super().__init__(message)
        self.position = position


class SegmentBatches(NamedTuple):
    """The batches of a segment from `position` on, up to the segment's end when this object was created.

    Any thread may read them, while `file` is pinned: nothing before the end of a segment is ever written again.
    """

    file: OpenFile
    position: int
    size_bytes: int

    def headers(self) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of every batch. Checks lengths, not CRCs; `CorruptSegment` if the bytes are not a batch."""
        position, limit = self.position, self.size_bytes
        while position < limit:
            chunk = self.file.read(position, min(_SCAN_BYTES, limit - position))
            at, size = 0, len(chunk)
            while size - at >= HEADER_SIZE:
                header = BatchHeader._make(HEADER.unpack_from(chunk, at))
                check_batch(self.file.path, position + at, header.magic, header.batch_length, limit)
                yield position + at, header
                at += header.batch_length + LOG_OVERHEAD
            if at == 0:
                raise CorruptSegment(f"{self.file.path}: torn batch header at position {position}", position)
            position += at


def check_batch(path: str, position: int, magic: int, length: int, limit: int) -> None:
    if magic != MAGIC_V2:
        if magic in (0, 1):
            raise CorruptSegment(
                f"{path}: the batch at position {position} has message format v{magic} (Kafka before 0.11), which is not "
                "supported: convert the topic with Apache Kafka first",
                position,
            )
        raise CorruptSegment(f"{path}: the batch at position {position} has an unknown magic {magic}", position)
    if length < MIN_BATCH_LENGTH or position + LOG_OVERHEAD + length > limit:
        raise CorruptSegment(f"{path}: the batch at position {position} claims {length} bytes", position)


def largest_timestamp_of(indexed: TimestampOffset, batches: SegmentBatches, offset: int) -> TimestampOffset:
    """Return the largest timestamp of a segment below `offset`: from an index entry, or from one of the batches after it."""
    timestamp, found_at = indexed
    for _, header in batches.headers():
        if header.last_offset >= offset:
            break
        if header.max_timestamp > timestamp:
            timestamp, found_at = header.max_timestamp, header.last_offset
    return TimestampOffset(timestamp, found_at)


def find_from(file: OpenFile, position: int, limit: int, offset: int) -> BatchAt | None:
    """Return the first batch from `position` on that reaches `offset`; None if all below `limit` end before it."""
    pread, fd = file.disk.pread, file.fd
    while position < limit:
        chunk = pread(fd, _LOOKUP_BYTES, position)
        at, size = 0, min(len(chunk), limit - position)
        while size - at >= _SHORT_HEADER_SIZE:
            base, length, _, magic, _, _, last_delta = _short_header(chunk, at)
            if magic != MAGIC_V2 or length < MIN_BATCH_LENGTH or position + at + LOG_OVERHEAD + length > limit:
                check_batch(file.path, position + at, magic, length, limit)
            if base + last_delta >= offset:
                return BatchAt(position + at, length + LOG_OVERHEAD, base, base + last_delta)
            at += length + LOG_OVERHEAD
        if at == 0:
            raise CorruptSegment(f"{file.path}: torn batch header at position {position}", position)
        position += at
    return None


def short_scan(file: OpenFile, position: int, limit: int, end: int) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """Yield (position, (base offset, size, last offset)) of the batches that begin between `position` and `limit`."""
    while position < limit:
        chunk = file.disk.pread(file.fd, _LOOKUP_BYTES, position)
        at, size = 0, len(chunk)
        while size - at >= _SHORT_HEADER_SIZE and position + at < limit:
            base, length, _, magic, _, _, last_delta = _short_header(chunk, at)
            check_batch(file.path, position + at, magic, length, end)
            yield position + at, (base, length + LOG_OVERHEAD, base + last_delta)
            at += length + LOG_OVERHEAD
        if at == 0:
            raise CorruptSegment(f"{file.path}: torn batch header at position {position}", position)
        position += at


def header_at(file: OpenFile, position: int, limit: int) -> BatchHeader:
    """Read the header of the batch at `position` of a segment of `limit` bytes."""
    data = file.read(position, HEADER_SIZE)
    if len(data) < HEADER_SIZE:
        raise CorruptSegment(f"{file.path}: torn batch header at position {position}", position)
    header = BatchHeader._make(HEADER.unpack(data))
    check_batch(file.path, position, header.magic, header.batch_length, limit)
    return header


def last_header(file: OpenFile, position: int, limit: int) -> BatchHeader | None:
    """Scan from `position`, where a batch begins, to the last batch of a segment of `limit` bytes."""
    if position and position >= limit:
        raise CorruptSegment(f"{file.path}: position {position} is past the end at {limit}", position)
    last = deque((at for at, _ in short_scan(file, position, limit, limit)), maxlen=1)
    return header_at(file, last[0], limit) if last else None
