"""Names of a segment's objects in the store, and the format of the second object. Pure.

Each segment has two objects, under the URL of `barnabas.remote.storage.url`:

    {topic}-{topic id}/{partition}/{start offset, 20 digits}-{segment uuid}.log      the records, as on disk
    {topic}-{topic id}/{partition}/{start offset, 20 digits}-{segment uuid}.indexes  everything else

Ids are written as Kafka writes them: URL-safe base64. The second object is small and is read as a whole:

    "BTIX", version (int16), number of parts (int16), then for each part its kind (int16), CRC32C, start and length (int32),
    then the CRC32C of all this; then the parts. Starts count from the beginning of the object; all numbers are big-endian.
`tiered.blocks` has the format of the part with the checksums of the first object.
"""

import re
import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

import crc32c

from barnabas.base.errors import Malformed
from barnabas.base.ids import Offset, TopicId, format_uuid, parse_uuid
from barnabas.broker.features.tiered.blocks import Blocks
from barnabas.broker.features.tiered.segment_metadata import RemoteSegment, RemoteSegmentId, TierPartition

LOG: Final = ".log"
INDEXES: Final = ".indexes"

_MAGIC: Final = b"BTIX"
_VERSION: Final = 1
_HEAD: Final = struct.Struct(">4shh")
_PART: Final = struct.Struct(">hIII")
_CRC: Final = struct.Struct(">I")
_PARTS_MAX: Final = 64

#: The largest segment: positions in it are int32.
_SEGMENT_BYTES_MAX: Final = 2**31 - 1
#: Snapshots of producers, leader epochs, and indexes with empty entries at their end: what does not grow with the records.
_OTHER_PARTS_BYTES_MAX: Final = 256 << 20

_PREFIX: Final = re.compile(r"([a-zA-Z0-9._-]{1,249})-([A-Za-z0-9_-]{22})/([0-9]{1,10})/")
_NAME: Final = re.compile(r"([0-9]{20})-([A-Za-z0-9_-]{22})(\.log|\.indexes)")


class Part(IntEnum):
    """The parts of the second object, each with the content of the file on disk."""

    OFFSET_INDEX = 1
    TIME_INDEX = 2
    #: Left out if no transaction was aborted.
    TXN_INDEX = 3
    #: The producers as of the segment's end. Left out if there was no snapshot.
    PRODUCER_SNAPSHOT = 4
    #: The leader epochs of the log, from its start to the segment's end: a `leader-epoch-checkpoint`.
    LEADER_EPOCHS = 5
    #: The segment's `Bounds` from the metadata topic, for readers that have access to the store only.
    BOUNDS = 6
    #: The `Blocks` of the records. Objects that were copied before 0.2.0 do not have it.
    BLOCKS = 7


class Bounds(NamedTuple):
    #: Offset of the last record (inclusive).
    end_offset: int
    max_timestamp: int

    def encode(self) -> bytes:
        return _BOUNDS.pack(*self)

    @staticmethod
    def decode(data: bytes) -> "Bounds":
        """:raises Malformed:"""
        if len(data) != _BOUNDS.size:
            raise Malformed(f"{len(data)} bytes are not the bounds of a segment")
        return Bounds(*_BOUNDS.unpack(data))


_BOUNDS: Final = struct.Struct(">qq")
_KINDS: Final = frozenset(Part)


class ObjectName(NamedTuple):
    """The fields of an object's key."""

    id: RemoteSegmentId
    start_offset: Offset
    #: `LOG` or `INDEXES`.
    suffix: str


def partition_prefix(of: TierPartition) -> str:
    return f"{of.topic}-{format_uuid(of.topic_id)}/{of.partition}/"


def log_key(segment: RemoteSegment) -> str:
    return _key(segment, LOG)


def indexes_key(segment: RemoteSegment) -> str:
    return _key(segment, INDEXES)


def indexes_of(log_key: str) -> str:
    """Return the key of the second object that belongs to a first one."""
    return log_key.removesuffix(LOG) + INDEXES


def keys(segment: RemoteSegment) -> list[str]:
    return [log_key(segment), indexes_key(segment)]


def _key(segment: RemoteSegment, suffix: str) -> str:
    prefix = partition_prefix(segment.id.of)
    return f"{prefix}{segment.start_offset:020d}-{format_uuid(segment.id.uuid)}{suffix}"


def parse_key(key: str) -> ObjectName | None:
    """None: not one of our objects."""
    prefix = _PREFIX.match(key)
    name = None if prefix is None else _NAME.fullmatch(key, prefix.end())
    if prefix is None or name is None:
        return None
    segment_id = RemoteSegmentId(TopicId(parse_uuid(prefix[2])), prefix[1], int(prefix[3]), parse_uuid(name[2]))
    return ObjectName(segment_id, Offset(int(name[1])), name[3])


# -- the second object --------------------------------------------------------------------------------------------------


def pack_indexes(parts: Mapping[Part, bytes]) -> bytes:
    head = bytearray(_HEAD.pack(_MAGIC, _VERSION, len(parts)))
    at = _HEAD.size + len(parts) * _PART.size + _CRC.size
    for kind, data in parts.items():
        head += _PART.pack(kind, crc32c.crc32c(data), at, len(data))
        at += len(data)
    head += _CRC.pack(crc32c.crc32c(bytes(head)))
    return b"".join([bytes(head), *parts.values()])


def indexes_bytes_max(segment_bytes: int = _SEGMENT_BYTES_MAX) -> int:
    """Return the most bytes that the second object of a segment can have.

    For a batch, of 61 bytes at least, the indexes have entries of 20 bytes at most; for an aborted transaction, whose marker
    has 78 bytes, one of 34. Together they are smaller than the records.
    """
    return segment_bytes + _OTHER_PARTS_BYTES_MAX


def unpack_indexes(data: bytes) -> dict[Part, bytes]:
    """:raises Malformed: if the object is incomplete or damaged. Parts of a later version are ignored."""
    if len(data) < _HEAD.size:
        raise Malformed(f"{len(data)} bytes are too few for the indexes of a segment")
    magic, version, count = _HEAD.unpack_from(data)
    if magic != _MAGIC or version != _VERSION or not 0 <= count <= _PARTS_MAX:
        raise Malformed(f"not the indexes of a segment: they begin with {data[: _HEAD.size].hex()}")
    end = _HEAD.size + count * _PART.size
    if len(data) < end + _CRC.size:
        raise Malformed(f"the header of the indexes is incomplete: {len(data)} bytes")
    if _CRC.unpack_from(data, end)[0] != crc32c.crc32c(data[:end]):
        raise Malformed("the header of the indexes has a wrong checksum")
    parts: dict[Part, bytes] = {}
    for i in range(count):
        kind, crc, start, length = _PART.unpack_from(data, _HEAD.size + i * _PART.size)
        part = data[start : start + length]
        if len(part) != length or crc32c.crc32c(part) != crc:
            raise Malformed(f"part {kind} of the indexes is damaged: {len(part)} of {length} bytes")
        if kind in _KINDS:
            parts[Part(kind)] = part
    return parts


def unpack_indexes_of(segment: RemoteSegment, data: bytes) -> dict[Part, bytes]:
    """:raises Malformed: also if the object says that it belongs to another segment."""
    parts = unpack_indexes(data)
    if Part.BOUNDS in parts:
        end = Bounds.decode(parts[Part.BOUNDS]).end_offset
        if end != segment.end_offset:
            raise Malformed(
                f"{indexes_key(segment)} has the indexes of a segment that ends at offset {end}, but the metadata says that "
                f"this one ends at {segment.end_offset}"
            )
    blocks_of(log_key(segment), parts, segment.size_bytes)
    return parts


def blocks_of(log_key: str, parts: Mapping[Part, bytes], size_bytes: int | None = None) -> Blocks | None:
    """Return the checksums of a first object; None if it was copied without.

    :raises Malformed: if they are those of another object, or do not fit the object's size, if that is known.
    """
    blocks = Blocks.decode(parts[Part.BLOCKS]) if Part.BLOCKS in parts else None
    if blocks is None:
        return None
    name = parse_key(log_key)
    if name is None or blocks.segment_uuid != name.id.uuid:
        raise Malformed(f"{indexes_of(log_key)} has the indexes of segment {format_uuid(blocks.segment_uuid)}")
    if size_bytes is not None and blocks.size_bytes != size_bytes:
        raise Malformed(
            f"{indexes_of(log_key)} has the indexes of {blocks.size_bytes} bytes of records, but there are {size_bytes}"
        )
    return blocks
