"""`.snapshot`: the producers of a partition at an offset, so that recovery need not read the log from its start.

Version 1, identical to Kafka's: version int16, CRC-32C uint32 of the rest, then an array of 46-byte entries.
The offset is in the file's name. Reading raises `CorruptSnapshot`; the owner deletes such a file and uses an older one.
"""

import struct
from collections.abc import Iterable
from typing import Final

from crc32c import crc32c

from barnabas.base.errors import Malformed
from barnabas.base.host.disk import REAL_DISK, Disk
from barnabas.base.ids import Offset
from barnabas.broker.storage.producer_entry import BatchMetadata, ProducerEntry

VERSION: Final = 1
_PREFIX: Final = struct.Struct(">hIi")
#: producer id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch, first offset of the txn
_ENTRY: Final = struct.Struct(">qhiqiqiq")
_CRC_FROM: Final = 6


class CorruptSnapshot(Malformed):
    """A producer snapshot with invalid content."""


def encode(entries: Iterable[ProducerEntry]) -> bytes:
    packed = [
        _ENTRY.pack(
            entry.producer_id,
            entry.producer_epoch,
            entry.last_sequence,
            entry.last_data_offset,
            entry.last_offset_delta,
            entry.last_timestamp,
            entry.coordinator_epoch,
            -1 if entry.txn_first_offset is None else entry.txn_first_offset,
        )
        for entry in entries
    ]
    body = struct.pack(">i", len(packed)) + b"".join(packed)
    return struct.pack(">hI", VERSION, crc32c(body)) + body


def decode(data: bytes) -> list[ProducerEntry]:
    if len(data) < _PREFIX.size:
        raise CorruptSnapshot(f"Snapshot failed schema validation: {len(data)} bytes are too few")
    version, crc, count = _PREFIX.unpack_from(data)
    if version != VERSION:
        raise CorruptSnapshot(f"Snapshot contained an unknown file version {version}")
    # Kafka distinguishes missing bytes from wrong bytes; both have the same effect.
    if count < 0 or count * _ENTRY.size > len(data) - _PREFIX.size:
        raise CorruptSnapshot(f"Snapshot failed schema validation: {count} entries in {len(data)} bytes")
    computed = crc32c(memoryview(data)[_CRC_FROM:])
    if crc != computed:
        raise CorruptSnapshot(
            f"Snapshot is corrupt (CRC is no longer valid). Stored crc: {crc}. Computed crc: {computed}"
        )
    return [_entry(fields) for fields in _ENTRY.iter_unpack(data[_PREFIX.size : _PREFIX.size + count * _ENTRY.size])]


def _entry(fields: tuple[int, ...]) -> ProducerEntry:
    producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp, coordinator_epoch, txn_first = fields
    batches: tuple[BatchMetadata, ...] = ()
    if last_offset >= 0:
        batches = (BatchMetadata(last_sequence, Offset(last_offset), offset_delta, timestamp),)
    return ProducerEntry(
        producer_id,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        last_timestamp=timestamp,
        txn_first_offset=txn_first if txn_first >= 0 else None,
        batches=batches,
    )


def write(path: str, entries: Iterable[ProducerEntry], *, sync: bool = True, disk: Disk = REAL_DISK) -> None:
    """Write the snapshot atomically, so that a crash leaves no partial file."""
    disk.replace_file(path, encode(entries), sync=sync)


def read(path: str, *, disk: Disk = REAL_DISK) -> list[ProducerEntry]:
    return decode(disk.read_file(path))
