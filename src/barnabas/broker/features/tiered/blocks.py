"""Checksums of a segment's records in the store, one for each block of the object. Pure.

The checksums of record batches do not cover their base offsets, and say nothing about batches in another order or of another
segment. These do. They are a part of the segment's second object:

    version (int16), block size (int32), size of the records (int64), segment uuid (16 bytes), then CRC32C of each block (int32)

All numbers are big-endian. The last block may be shorter.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import crc32c

from barnabas.base.errors import Malformed

#: A reader of any range fetches up to two blocks more than it needs. A segment of 1 GiB has 64 KiB of checksums.
BLOCK_BYTES: Final = 64 << 10

#: A reader holds some blocks in memory, whatever an object says.
BLOCK_BYTES_MAX: Final = 16 << 20

_VERSION: Final = 1
_HEAD: Final = struct.Struct(">hIq16s")
_CRC: Final = struct.Struct(">I")
#: Blocks that are read from the disk at once for their checksums.
_BLOCKS_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Blocks:
    block_bytes: int
    #: Size of the first object.
    size_bytes: int
    #: The id of the segment: each attempt to copy it has its own.
    segment_uuid: bytes
    #: The CRC32C of each block, packed: (size_bytes / block_bytes, rounded up) * 4 bytes.
    checksums: bytes

    @staticmethod
    def of(
        read: Callable[[int, int], bytes], size_bytes: int, segment_uuid: bytes, *, block_bytes: int = BLOCK_BYTES
    ) -> "Blocks":
        """Compute the checksums. `read(size, position)` returns bytes of the records.

        :raises OSError: if it returns too few.
        """
        checksums = bytearray()
        step = block_bytes * _BLOCKS_AT_ONCE
        for start in range(0, size_bytes, step):
            wanted = min(step, size_bytes - start)
            data = memoryview(read(wanted, start))
            if len(data) != wanted:
                raise OSError(f"the segment has {start + len(data)} bytes instead of {size_bytes}")
            for at in range(0, wanted, block_bytes):
                checksums += _CRC.pack(crc32c.crc32c(data[at : at + block_bytes]))
        return Blocks(block_bytes, size_bytes, segment_uuid, bytes(checksums))

    def encode(self) -> bytes:
        return _HEAD.pack(_VERSION, self.block_bytes, self.size_bytes, self.segment_uuid) + self.checksums

    @staticmethod
    def decode(data: bytes) -> "Blocks | None":
        """None: a later version. :raises Malformed:"""
        if len(data) < _HEAD.size:
            raise Malformed(f"{len(data)} bytes are too few for the checksums of a segment")
        version, block_bytes, size_bytes, segment_uuid = _HEAD.unpack_from(data)
        if version > _VERSION:
            return None
        checksums = data[_HEAD.size :]
        if version < 1 or not 1 <= block_bytes <= BLOCK_BYTES_MAX or size_bytes < 0:
            raise Malformed(
                f"checksums of a segment with version {version}, {block_bytes} bytes a block, {size_bytes} in all"
            )
        if len(checksums) != -(-size_bytes // block_bytes) * _CRC.size:
            raise Malformed(f"{len(checksums)} bytes of checksums for {size_bytes} bytes in blocks of {block_bytes}")
        return Blocks(block_bytes, size_bytes, segment_uuid, checksums)

    def around(self, start: int, end: int) -> tuple[int, int]:
        """Return the borders of the blocks that have these bytes, 0 <= start <= end <= size_bytes."""
        first = start // self.block_bytes * self.block_bytes
        return first, min(-(-end // self.block_bytes) * self.block_bytes, self.size_bytes)

    def check(self, data: bytes | memoryview, start: int) -> None:
        """Check whole blocks that begin at `start`. :raises Malformed:"""
        view = memoryview(data)
        if start % self.block_bytes or start + len(view) > self.size_bytes:
            raise Malformed(f"{len(view)} bytes from {start} on are not whole blocks of {self.block_bytes} bytes")
        for at in range(0, len(view), self.block_bytes):
            number = (start + at) // self.block_bytes
            (wanted,) = _CRC.unpack_from(self.checksums, number * _CRC.size)
            if crc32c.crc32c(view[at : at + self.block_bytes]) != wanted:
                raise Malformed(
                    f"the {self.block_bytes} bytes from {start + at} on have a wrong checksum: they are damaged, or another "
                    "segment's"
                )
