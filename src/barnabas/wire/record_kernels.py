"""Record batches and varints in compiled loops, used by every kernel that reads records.

Every read is preceded by a bounds check: numba checks no bounds itself, and the bytes come from a network or a disk. Arrays of
input bytes are always read-only: numba compiles once per combination of types.

Numba compiles a cached function again when its own file changes, but not when this file changes.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from barnabas.base.compiled import int64, kernel

ByteArray: TypeAlias = NDArray[np.uint8]
Int64s: TypeAlias = NDArray[np.int64]

#: Columns of the batch table.
POS, AFTER, BASE_OFFSET, LAST_OFFSET, ATTRIBUTES, BASE_TIMESTAMP, MAX_TIMESTAMP, PRODUCER_ID, COUNT, CRC = range(10)
TABLE_WIDTH = 10

#: Results of `scan_batches`.
OK, TORN, BAD_LENGTH, BAD_MAGIC, BAD_COUNT = range(5)

_LOW_63 = 0x7FFFFFFFFFFFFFFF


def byte_array(data: bytes | bytearray | memoryview) -> ByteArray:
    """Return `data` as a kernel takes it, without a copy."""
    array = np.frombuffer(data, dtype=np.uint8)
    array.flags.writeable = False
    return array


@kernel
def read_int(data: ByteArray, pos: int, size: int) -> int:
    value = int64(0)
    for at in range(pos, pos + size):
        value = (value << 8) | int64(data[at])
    shift = 64 - 8 * size
    return (value << shift) >> shift


@kernel
def scan_batches(data: ByteArray, start: int, end: int, table: Int64s) -> tuple[int, int, int]:
    """Write headers from `start` on into `table`, until it is full, the data ends, or a header is invalid.

    Returns (batches, position after them, code). TORN is normal at the end of a fetch, which is cut to its size.
    """
    pos = int64(start)
    count = 0
    while count < table.shape[0] and pos < end:
        if end - pos <= 16:
            return count, pos, TORN
        if data[pos + 16] != 2:
            return count, pos, BAD_MAGIC
        if end - pos < 61:
            return count, pos, TORN
        length = read_int(data, pos + 8, 4)
        if length < 49:
            return count, pos, BAD_LENGTH
        after = pos + 12 + length
        if after > end:
            return count, pos, TORN
        last_delta = read_int(data, pos + 23, 4)
        records = read_int(data, pos + 57, 4)
        if last_delta < 0 or records < 0:
            return count, pos, BAD_COUNT
        base = read_int(data, pos, 8)
        row = table[count]
        row[POS] = pos
        row[AFTER] = after
        row[BASE_OFFSET] = base
        row[LAST_OFFSET] = base + last_delta
        row[ATTRIBUTES] = read_int(data, pos + 21, 2)
        row[BASE_TIMESTAMP] = read_int(data, pos + 27, 8)
        row[MAX_TIMESTAMP] = read_int(data, pos + 35, 8)
        row[PRODUCER_ID] = read_int(data, pos + 43, 8)
        row[COUNT] = records
        row[CRC] = read_int(data, pos + 17, 4) & 0xFFFFFFFF
        count += 1
        pos = after
    return count, pos, OK


@kernel
def read_varint(data: ByteArray, pos: int, end: int) -> tuple[int, int]:
    """Return (value, next position) of a 32-bit zigzag varint; the position is -1 if it is invalid."""
    value = int64(0)
    shift = 0
    while shift < 35:
        if pos >= end:
            return int64(0), int64(-1)
        byte = int64(data[pos])
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            value &= 0xFFFFFFFF
            return (value >> 1) ^ -(value & 1), pos
        shift += 7
    return int64(0), int64(-1)


@kernel
def read_varlong(data: ByteArray, pos: int, end: int) -> tuple[int, int]:
    """The same for 64 bits."""
    value = int64(0)
    shift = 0
    while shift < 70:
        if pos >= end:
            return int64(0), int64(-1)
        byte = int64(data[pos])
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return ((value >> 1) & _LOW_63) ^ -(value & 1), pos
        shift += 7
    return int64(0), int64(-1)
