"""Loops over Arrow's buffers, compiled: which partition a row goes to, and rows into the bytes of record batches.

A column of bytes is three arrays: where each row starts, its size (-1 for null), and the bytes of all. Every size was
checked by Arrow; `room_for` says how much an output needs before `write_batches` fills it, so that no write can run over.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from barnabas.base.compiled import copy_bytes, int64, kernel

ByteArray: TypeAlias = NDArray[np.uint8]
Int32s: TypeAlias = NDArray[np.int32]
Int64s: TypeAlias = NDArray[np.int64]

HEADER_SIZE = 61
#: Columns of the table of batches.
LANE, START, STOP, COUNT, BASE_TIMESTAMP, MAX_TIMESTAMP = range(6)
TABLE_WIDTH = 6

#: Stands for a row without a partition of its own.
NO_PARTITION = -1
#: Most bytes of a record besides key, value and headers: five varints of 5 bytes, a varlong of 10, attributes.
RECORD_OVERHEAD = 36
HEADER_OVERHEAD = 10


@kernel
def murmur2(data: ByteArray, start: int, size: int) -> int:
    """The hash of Kafka's Java producer, as an unsigned 32-bit number."""
    mask = int64(0xFFFFFFFF)
    m = int64(0x5BD1E995)
    h = (int64(0x9747B28C) ^ size) & mask
    whole = size & ~int64(3)
    at = start
    while at < start + whole:
        k = int64(data[at]) | int64(data[at + 1]) << 8 | int64(data[at + 2]) << 16 | int64(data[at + 3]) << 24
        k = (k * m) & mask
        k ^= k >> 24
        k = (k * m) & mask
        h = ((h * m) & mask) ^ k
        at += 4
    left = size - whole
    if left > 0:
        if left == 3:
            h ^= int64(data[at + 2]) << 16
        if left >= 2:
            h ^= int64(data[at + 1]) << 8
        h ^= int64(data[at])
        h = (h * m) & mask
    h ^= h >> 13
    h = (h * m) & mask
    return h ^ (h >> 15)


@kernel
def assign_lanes(
    topics: Int32s,
    first_lanes: Int64s,
    partition_counts: Int64s,
    wanted: Int32s,
    key_starts: Int64s,
    key_sizes: Int64s,
    key_data: ByteArray,
    bounds: Int64s,
    sticky: Int64s,
    sticky_left: Int64s,
    sticky_bytes: int,
    lanes: Int64s,
) -> int:
    """Find a lane (a partition of a topic) for each row. Return the first row whose partition the topic does not have, or -1.

    As in the Java producer: the row's own partition, else its key's hash, else stay on a partition for a batch's worth of
    bytes.
    """
    for row in range(len(lanes)):
        topic = topics[row]
        count = partition_counts[topic]
        if wanted[row] != NO_PARTITION:
            partition = int64(wanted[row])
            if partition < 0 or partition >= count:
                return row
        elif key_sizes[row] >= 0:
            partition = (murmur2(key_data, key_starts[row], key_sizes[row]) & 0x7FFFFFFF) % count
        else:
            if sticky_left[topic] <= 0:
                sticky[topic] += 1
                sticky_left[topic] = sticky_bytes
            sticky_left[topic] -= bounds[row]
            partition = sticky[topic] % count
        lanes[row] = first_lanes[topic] + partition
    return -1


@kernel
def bound_sizes(
    key_sizes: Int64s,
    value_sizes: Int64s,
    header_from: Int64s,
    header_key_sizes: Int64s,
    header_value_sizes: Int64s,
    bounds: Int64s,
) -> None:
    """Compute an upper bound for the bytes of each record."""
    for row in range(len(bounds)):
        size = int64(RECORD_OVERHEAD) + max(key_sizes[row], 0) + max(value_sizes[row], 0)
        for header in range(header_from[row], header_from[row + 1]):
            size += HEADER_OVERHEAD + max(header_key_sizes[header], 0) + max(header_value_sizes[header], 0)
        bounds[row] = size


@kernel
def order_by_lane(lanes: Int64s, lane_count: int, order: Int64s) -> None:
    """Sort the rows by lane, and keep the order within a lane."""
    starts = np.zeros(lane_count + 1, dtype=np.int64)
    for row in range(len(lanes)):
        starts[lanes[row] + 1] += 1
    for lane in range(lane_count):
        starts[lane + 1] += starts[lane]
    for row in range(len(lanes)):
        lane = lanes[row]
        order[starts[lane]] = row
        starts[lane] += 1


@kernel
def room_for(order: Int64s, lanes: Int64s, bounds: Int64s, batch_bytes: int) -> tuple[int, int]:
    """Return the number of batches that `write_batches` makes, and an upper bound for their bytes."""
    batches = total = filled = int64(0)
    lane = int64(-1)
    for at in range(len(order)):
        row = order[at]
        if lanes[row] != lane or filled + bounds[row] > batch_bytes:
            lane = lanes[row]
            batches += 1
            total += HEADER_SIZE
            filled = int64(HEADER_SIZE)
        filled += bounds[row]
        total += bounds[row]
    return batches, total


@kernel
def size_of(number: int) -> int:
    """Return the bytes of a zig-zag varint."""
    left = (number << 1) ^ (number >> 63)
    size = int64(1)
    # A logical shift: an arithmetic shift would fill up the rest of a negative number with ones.
    left = (left >> 7) & int64(0x01FFFFFFFFFFFFFF)
    while left != 0:
        left >>= 7
        size += 1
    return size


@kernel
def put(out: ByteArray, at: int, number: int) -> int:
    """Write a zig-zag varint; return the position after it."""
    left = (number << 1) ^ (number >> 63)
    rest = (left >> 7) & int64(0x01FFFFFFFFFFFFFF)
    low = left & 0x7F
    while rest != 0:
        out[at] = low | 0x80
        at += 1
        low = rest & 0x7F
        rest >>= 7
    out[at] = low
    return at + 1


@kernel
def put_bytes(out: ByteArray, at: int, data: ByteArray, start: int, size: int) -> int:
    at = put(out, at, size)
    if size > 0:
        copy_bytes(out, at, data, start, size)
        at += size
    return at


@kernel
def write_batches(
    order: Int64s,
    lanes: Int64s,
    bounds: Int64s,
    batch_bytes: int,
    timestamps: Int64s,
    key_starts: Int64s,
    key_sizes: Int64s,
    key_data: ByteArray,
    value_starts: Int64s,
    value_sizes: Int64s,
    value_data: ByteArray,
    header_from: Int64s,
    header_key_starts: Int64s,
    header_key_sizes: Int64s,
    header_key_data: ByteArray,
    header_value_starts: Int64s,
    header_value_sizes: Int64s,
    header_value_data: ByteArray,
    out: ByteArray,
    table: Int64s,
) -> None:
    """Write records after room for a header, batch after batch; `table` gets the place of each. The same cuts as `room_for`."""
    batch = int64(-1)
    at = filled = delta = base = int64(0)
    lane = int64(-1)
    for index in range(len(order)):
        row = order[index]
        if lanes[row] != lane or filled + bounds[row] > batch_bytes:
            if batch >= 0:
                table[batch, STOP] = at
                table[batch, COUNT] = delta
            batch += 1
            lane = lanes[row]
            base = timestamps[row]
            table[batch, LANE] = lane
            table[batch, START] = at
            table[batch, BASE_TIMESTAMP] = base
            table[batch, MAX_TIMESTAMP] = base
            at += HEADER_SIZE
            filled = int64(HEADER_SIZE)
            delta = int64(0)
        filled += bounds[row]
        table[batch, MAX_TIMESTAMP] = max(table[batch, MAX_TIMESTAMP], timestamps[row])
        key, value = key_sizes[row], value_sizes[row]
        first, last = header_from[row], header_from[row + 1]
        size = 1 + size_of(timestamps[row] - base) + size_of(delta) + size_of(key) + size_of(value)
        size += max(key, 0) + max(value, 0) + size_of(last - first)
        for header in range(first, last):
            size += size_of(header_key_sizes[header]) + max(header_key_sizes[header], 0)
            size += size_of(header_value_sizes[header]) + max(header_value_sizes[header], 0)
        at = put(out, at, size)
        out[at] = 0
        at = put(out, at + 1, timestamps[row] - base)
        at = put(out, at, delta)
        at = put_bytes(out, at, key_data, key_starts[row], key)
        at = put_bytes(out, at, value_data, value_starts[row], value)
        at = put(out, at, last - first)
        for header in range(first, last):
            at = put_bytes(out, at, header_key_data, header_key_starts[header], header_key_sizes[header])
            at = put_bytes(out, at, header_value_data, header_value_starts[header], header_value_sizes[header])
        delta += 1
    if batch >= 0:
        table[batch, STOP] = at
        table[batch, COUNT] = delta
