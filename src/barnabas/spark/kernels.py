"""Loops over record bytes, compiled: records into Arrow's buffers, no object per record.

Every read is preceded by a check against the end of the data, and every length against the remaining bytes: numba checks no
bounds itself, and the bytes come from a network or a disk. An error is a code and a place; `columns` makes a message of them.
Arrays of bytes are always read-only ones: numba compiles once per combination of types.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from barnabas.base.compiled import copy_bytes, int64, kernel
from barnabas.wire.record_kernels import ByteArray, Int64s, read_int, read_varint, read_varlong

Int32s: TypeAlias = NDArray[np.int32]

#: Columns of the table of bodies: where the decompressed records of a batch lie, and the fields of its header.
#: INFLATED is 1 where the bytes are in the second array. APPEND_TIME is 1 where MAX_TIMESTAMP is every record's.
INFLATED, START, STOP, BODY_BASE, BODY_LAST, BODY_TIMESTAMP, APPEND_TIME, BODY_COUNT = range(8)

#: Codes of what `read_records` and `read_headers` found.
(
    FINE,
    BAD_VARINT,
    BAD_RECORD_LENGTH,
    BAD_OFFSET_DELTA,
    BAD_KEY,
    BAD_VALUE,
    BAD_HEADER_COUNT,
    BAD_HEADER,
    BAD_RECORD_END,
    BAD_BODY_END,
) = range(10)

#: Places in the result of `read_records`.
ROWS, KEY_NULLS, VALUE_NULLS, KEY_BYTES, VALUE_BYTES, HEADERS, HEADER_KEY_BYTES, HEADER_VALUE_BYTES, PLAIN_ROWS = range(
    9
)
ERROR, ERROR_BODY, ERROR_AT = 9, 10, 11
RESULT_WIDTH = 12

_MICROS_MAX_MS = 9_223_372_036_854_775


@kernel
def next_offset(data: ByteArray) -> int:
    """Return the offset after the last whole batch; -1 if there is none. Looks only at each header's length."""
    pos = int64(0)
    end = data.shape[0]
    found = int64(-1)
    while end - pos >= 61:
        length = read_int(data, pos + 8, 4)
        after = pos + 12 + length
        if length < 49 or after > end:
            break
        found = read_int(data, pos, 8) + read_int(data, pos + 23, 4) + 1
        pos = after
    return found


@kernel
def _micros(milliseconds: int) -> int:
    """Convert to microseconds, Spark's unit. A time that does not fit becomes the first or last possible one, and does not wrap
    round."""
    if milliseconds > _MICROS_MAX_MS:
        return int64(_MICROS_MAX_MS) * 1000
    if milliseconds < -_MICROS_MAX_MS:
        return int64(-_MICROS_MAX_MS) * 1000
    return milliseconds * 1000


@kernel
def _skip_headers(data: ByteArray, pos: int, stop: int, totals: Int64s) -> tuple[int, int, int]:
    """Skip the headers and add their bytes to `totals`; return (next position, headers, code)."""
    count, pos = read_varint(data, pos, stop)
    if pos < 0:
        return pos, int64(0), BAD_VARINT
    # A header has two bytes at least.
    if count < 0 or count * 2 > stop - pos:
        return pos, int64(0), BAD_HEADER_COUNT
    for _ in range(count):
        size, pos = read_varint(data, pos, stop)
        if pos < 0 or size < 0 or size > stop - pos:
            return pos, int64(0), BAD_HEADER
        totals[HEADER_KEY_BYTES] += size
        pos += size
        size, pos = read_varint(data, pos, stop)
        if pos < 0 or size < -1 or size > stop - pos:
            return pos, int64(0), BAD_HEADER
        if size > 0:
            totals[HEADER_VALUE_BYTES] += size
            pos += size
    return pos, count, FINE


@kernel
def read_records(
    data: ByteArray,
    inflated: ByteArray,
    bodies: Int64s,
    from_offset: int,
    to_offset: int,
    offsets: Int64s,
    timestamps: Int64s,
    key_ends: Int32s,
    key_valid: ByteArray,
    key_bytes: ByteArray,
    value_ends: Int32s,
    value_valid: ByteArray,
    value_bytes: ByteArray,
    header_counts: Int64s,
    header_places: Int64s,
    result: Int64s,
) -> None:
    """Read the records of `bodies` with an offset in [from_offset, to_offset) into the columns, one after the other.

    A column that is not wanted is an array without room: offsets, timestamps, key_ends, value_ends and header_counts of
    length 0. `*_ends` have a leading 0; `*_valid` come with every bit set. `header_places` gets the body (high 24 bits)
    and position (low 40) of each record's headers. There is room for as many rows as the counts sum to, and for the bytes of
    all bodies.
    """
    want_offset = offsets.shape[0] > 0
    want_timestamp = timestamps.shape[0] > 0
    want_key = key_ends.shape[0] > 0
    want_value = value_ends.shape[0] > 0
    want_headers = header_counts.shape[0] > 0
    row = int64(0)
    key_at = int64(0)
    value_at = int64(0)
    for body in range(bodies.shape[0]):
        source = inflated if bodies[body, INFLATED] else data
        pos = bodies[body, START]
        end = bodies[body, STOP]
        base = bodies[body, BODY_BASE]
        greatest = bodies[body, BODY_LAST] - base
        base_timestamp = bodies[body, BODY_TIMESTAMP]
        append_time = bodies[body, APPEND_TIME] != 0
        last_delta = int64(-1)
        for _ in range(bodies[body, BODY_COUNT]):
            begin = pos
            code = FINE
            size, pos = read_varint(source, pos, end)
            if pos < 0:
                result[ERROR], result[ERROR_BODY], result[ERROR_AT] = BAD_VARINT, body, begin
                return
            if size < 6 or size > end - pos:
                result[ERROR], result[ERROR_BODY], result[ERROR_AT] = BAD_RECORD_LENGTH, body, begin
                return
            stop = pos + size
            timestamp, pos = read_varlong(source, pos + 1, stop)
            if pos < 0:
                result[ERROR], result[ERROR_BODY], result[ERROR_AT] = BAD_VARINT, body, begin
                return
            delta, pos = read_varint(source, pos, stop)
            if pos < 0 or delta <= last_delta or delta > greatest:
                result[ERROR], result[ERROR_BODY], result[ERROR_AT] = BAD_OFFSET_DELTA, body, begin
                return
            last_delta = delta
            key_size, pos = read_varint(source, pos, stop)
            if pos < 0 or key_size < -1 or key_size > stop - pos:
                result[ERROR], result[ERROR_BODY], result[ERROR_AT] = BAD_KEY, body, begin
                return
            key_from = pos
            if key_size > 0:
                pos += key_size
            value_size, pos = read_varint(source, pos, stop)
            if pos < 0 or value_size < -1 or value_size > stop - pos:
                result[ERROR], result[ERROR_BODY], result[ERROR_AT] = BAD_VALUE, body, begin
                return
            value_from = pos
            if value_size > 0:
                pos += value_size
            headers_from = pos
            headers = int64(0)
            offset = base + delta
            inside = from_offset <= offset < to_offset
            if pos < stop and source[pos] == 0:
                pos += 1
            else:
                key_total = result[HEADER_KEY_BYTES]
                value_total = result[HEADER_VALUE_BYTES]
                pos, headers, code = _skip_headers(source, pos, stop, result)
                if code != FINE:
                    result[ERROR], result[ERROR_BODY], result[ERROR_AT] = code, body, begin
                    return
                if not inside:
                    result[HEADER_KEY_BYTES] = key_total
                    result[HEADER_VALUE_BYTES] = value_total
            if pos != stop:
                result[ERROR], result[ERROR_BODY], result[ERROR_AT] = BAD_RECORD_END, body, begin
                return
            if not inside:
                continue
            if want_offset:
                offsets[row] = offset
            if want_timestamp:
                timestamps[row] = _micros(base_timestamp if append_time else base_timestamp + timestamp)
            if want_key:
                if key_size < 0:
                    key_valid[row >> 3] &= ~(1 << (row & 7)) & 0xFF
                    result[KEY_NULLS] += 1
                else:
                    copy_bytes(key_bytes, key_at, source, key_from, key_size)
                    key_at += key_size
                key_ends[row + 1] = key_at
            if want_value:
                if value_size < 0:
                    value_valid[row >> 3] &= ~(1 << (row & 7)) & 0xFF
                    result[VALUE_NULLS] += 1
                else:
                    copy_bytes(value_bytes, value_at, source, value_from, value_size)
                    value_at += value_size
                value_ends[row + 1] = value_at
            if want_headers:
                header_counts[row] = headers
                header_places[row] = int64(body) << 40 | headers_from
            if headers == 0:
                result[PLAIN_ROWS] += 1
            result[HEADERS] += headers
            row += 1
        if pos != end:
            result[ERROR], result[ERROR_BODY], result[ERROR_AT] = BAD_BODY_END, body, pos
            return
    result[ROWS] = row
    result[KEY_BYTES] = key_at
    result[VALUE_BYTES] = value_at


@kernel
def read_headers(
    data: ByteArray,
    inflated: ByteArray,
    bodies: Int64s,
    counts: Int64s,
    places: Int64s,
    list_ends: Int32s,
    list_valid: ByteArray,
    key_ends: Int32s,
    key_bytes: ByteArray,
    value_ends: Int32s,
    value_valid: ByteArray,
    value_bytes: ByteArray,
) -> int:
    """Write the headers that `read_records` has found and checked into the buffers of a list of structs.

    A record without headers has null, not an empty list, as in Spark's own source. Return the number of null values.
    """
    nulls = 0
    header = 0
    key_at = 0
    value_at = 0
    for row in range(counts.shape[0]):
        count = counts[row]
        if count == 0:
            list_valid[row >> 3] &= ~(1 << (row & 7)) & 0xFF
            list_ends[row + 1] = header
            continue
        body = places[row] >> 40
        pos = places[row] & 0xFFFFFFFFFF
        source = inflated if bodies[body, INFLATED] else data
        stop = bodies[body, STOP]
        _, pos = read_varint(source, pos, stop)
        for _ in range(count):
            size, pos = read_varint(source, pos, stop)
            copy_bytes(key_bytes, key_at, source, pos, size)
            pos += size
            key_at += size
            key_ends[header + 1] = key_at
            size, pos = read_varint(source, pos, stop)
            if size < 0:
                value_valid[header >> 3] &= ~(1 << (header & 7)) & 0xFF
                nulls += 1
            else:
                copy_bytes(value_bytes, value_at, source, pos, size)
                pos += size
                value_at += size
            value_ends[header + 1] = value_at
            header += 1
        list_ends[row + 1] = header
    return nulls
