"""The cleaner's loops over records, compiled: keys into hashes, hashes into a table, and the remaining records of a batch.

They decide exactly as `scan`, `dirty_map` and `retention` do, and refuse the same data; tests compare them. Complicated
batches are left to Python, one by one. Every read follows a check against the end of the data: numba checks no bounds, and a
file may change during a pass.
"""

from typing import TypeAlias, cast

import numba
import numpy as np
from numpy.typing import NDArray

from barnabas.base.compiled import copy_bytes, int64, kernel
from barnabas.broker.storage.cleaner.scan import RECORD_BYTES_MIN
from barnabas.wire.record_batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CRC_AT,
    DELETE_HORIZON_FLAG,
    HEADER_SIZE,
    LENGTH_AT,
    LOG_OVERHEAD,
    MAX_TIMESTAMP_AT,
    RECORD_COUNT_AT,
    TIMESTAMP_TYPE_FLAG,
)
from barnabas.wire.record_kernels import (
    AFTER,
    ATTRIBUTES,
    BASE_TIMESTAMP,
    COUNT,
    CRC,
    LAST_OFFSET,
    MAX_TIMESTAMP,
    POS,
    ByteArray,
    Int64s,
    read_varint,
    read_varlong,
)
from barnabas.wire.record_kernels import TABLE_WIDTH as HEADER_WIDTH

Uint64s: TypeAlias = NDArray[np.uint64]

#: Columns after those of `scan_batches`. In the first pass: where a batch's records are, and in which array.
SOURCE, BODY_START, BODY_STOP = HEADER_WIDTH, HEADER_WIDTH + 1, HEADER_WIDTH + 2
#: Values of `SOURCE`: in the piece, in the second array, or not read at all.
PLAIN, INFLATED, NOT_READ = range(3)
#: In the second pass: the decision about a batch, and the number of its first record.
FATE, FIRST_RECORD = HEADER_WIDTH, HEADER_WIDTH + 1
#: Values of `FATE`. `FOR_PYTHON`: undecided; `REPLACED`: by the bytes at `POS` to `AFTER` of the second array.
GONE, FOR_PYTHON, WHOLE, PICKED, REPLACED = range(5)
TABLE_WIDTH = HEADER_WIDTH + 3

#: The CRC-32C of smaller batches is computed here; for larger ones the library is faster, despite the call.
SMALL_BATCH_BYTES = 1024

#: Columns of the table of keys: a hash of 128 bits, 0 for a free slot, and the number of the key's last record.
HASH_LOW, HASH_HIGH, NUMBER = range(3)
KEYS_WIDTH = 3

#: Flags of a record, as in `dirty_map`.
_LIVE, _TOMBSTONE, _LIVE_TOMBSTONE = 1, 2, 3

#: State of `write_batches`: the position in the output, the index builder's state, and its results: bytes, index entries,
#: and batches without a CRC.
POSITION, INDEX_MAX_TIMESTAMP, INDEX_OFFSET_OF_MAX, NEXT_ENTRY_AFTER, OUT, ENTRIES, UNSEALED = range(7)
STATE_WIDTH = 7

#: Columns of an entry for the index.
ENTRY_OFFSET, ENTRY_POSITION, ENTRY_MAX_TIMESTAMP, ENTRY_OFFSET_OF_MAX = range(4)
ENTRY_WIDTH = 4

#: Base timestamps and deltas beyond this are left to Python, whose numbers do not overflow.
_FAR = 1 << 62

uint64 = cast("type[np.uint64]", numba.uint64)


def _crc_tables() -> NDArray[np.uint32]:
    """Build tables for eight bytes at a time (Intel's slicing-by-8)."""
    tables = np.zeros((8, 256), dtype=np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        tables[0, byte] = crc
    for step in range(1, 8):
        for byte in range(256):
            before = int(tables[step - 1, byte])
            tables[step, byte] = before >> 8 ^ int(tables[0, before & 0xFF])
    return tables


_CRC_TABLES = _crc_tables()


@kernel
def crc32c_of(data: ByteArray, start: int, stop: int) -> int:
    crc = int64(0xFFFFFFFF)
    at = start
    while stop - at >= 8:
        crc ^= (
            int64(data[at])
            | int64(data[at + 1]) << 8
            | int64(data[at + 2]) << 16
            | int64(data[at + 3]) << 24
        )  # fmt: skip
        crc = (
            int64(_CRC_TABLES[7, crc & 0xFF])
            ^ int64(_CRC_TABLES[6, crc >> 8 & 0xFF])
            ^ int64(_CRC_TABLES[5, crc >> 16 & 0xFF])
            ^ int64(_CRC_TABLES[4, crc >> 24])
            ^ int64(_CRC_TABLES[3, data[at + 4]])
            ^ int64(_CRC_TABLES[2, data[at + 5]])
            ^ int64(_CRC_TABLES[1, data[at + 6]])
            ^ int64(_CRC_TABLES[0, data[at + 7]])
        )
        at += 8
    while at < stop:
        crc = crc >> 8 ^ int64(_CRC_TABLES[0, (crc ^ int64(data[at])) & 0xFF])
        at += 1
    return crc ^ 0xFFFFFFFF


@kernel
def check_batches(data: ByteArray, table: Int64s, large: Int64s) -> tuple[int, int]:
    """Return (the first row with a wrong CRC, or the number of rows; how many rows are in `large`, for the caller to check).

    Afterwards every row counts as uncompressed.
    """
    count = int64(0)
    for row in range(table.shape[0]):
        table[row, SOURCE] = PLAIN
        table[row, BODY_START] = table[row, POS] + HEADER_SIZE
        table[row, BODY_STOP] = table[row, AFTER]
        if table[row, AFTER] - table[row, POS] > SMALL_BATCH_BYTES:
            large[count] = row
            count += 1
        elif crc32c_of(data, table[row, POS] + ATTRIBUTES_AT, table[row, AFTER]) != table[row, CRC]:
            return row, count
    return table.shape[0], count


# -- keys


@kernel
def _rotated(word: np.uint64, bits: int) -> np.uint64:
    return (word << uint64(bits)) | (word >> uint64(64 - bits))


@kernel
def _sip_round(
    v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    v0 += v1
    v1 = _rotated(v1, 13) ^ v0
    v0 = _rotated(v0, 32)
    v2 += v3
    v3 = _rotated(v3, 16) ^ v2
    v0 += v3
    v3 = _rotated(v3, 21) ^ v0
    v2 += v1
    v1 = _rotated(v1, 17) ^ v2
    v2 = _rotated(v2, 32)
    return v0, v1, v2, v3


@kernel
def siphash(data: ByteArray, start: int, size: int, seed: Uint64s) -> tuple[np.uint64, np.uint64]:
    """Compute SipHash-2-4 of 128 bits. Its key is random in each cleaning, so producers cannot construct collisions."""
    v0 = seed[0] ^ uint64(0x736F6D6570736575)
    v1 = seed[1] ^ uint64(0x646F72616E646F6D) ^ uint64(0xEE)
    v2 = seed[0] ^ uint64(0x6C7967656E657261)
    v3 = seed[1] ^ uint64(0x7465646279746573)
    at = start
    for _ in range(size >> 3):
        word = (
            uint64(data[at])
            | uint64(data[at + 1]) << uint64(8)
            | uint64(data[at + 2]) << uint64(16)
            | uint64(data[at + 3]) << uint64(24)
            | uint64(data[at + 4]) << uint64(32)
            | uint64(data[at + 5]) << uint64(40)
            | uint64(data[at + 6]) << uint64(48)
            | uint64(data[at + 7]) << uint64(56)
        )
        at += 8
        v3 ^= word
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
        v0 ^= word
    word = uint64(size) << uint64(56)
    for byte in range(size & 7):
        word |= uint64(data[at + byte]) << uint64(8 * byte)
    v3 ^= word
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= uint64(0xEE)
    for _ in range(4):
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    low = v0 ^ v1 ^ v2 ^ v3
    v1 ^= uint64(0xDD)
    for _ in range(4):
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    return low, v0 ^ v1 ^ v2 ^ v3


@kernel
def _record_place(data: ByteArray, pos: int, end: int) -> tuple[int, int]:
    """Return (where a record's attributes are, where it ends); the end is -1 if it is not before `end`.

    As in `scan`, the sign of a length of one or two bytes is ignored.
    """
    if end - pos < 2:
        return pos, int64(-1)
    low = int64(data[pos])
    high = int64(data[pos + 1])
    if low < 0x80:
        at = pos + 1
        size = low >> 1
    elif high < 0x80:
        at = pos + 2
        size = (low & 0x7F | high << 7) >> 1
    else:
        size, at = read_varint(data, pos, end)
        if at < 0 or size < 0:
            return pos, int64(-1)
    if size > end - at:
        return pos, int64(-1)
    return at, at + size


@kernel
def count_records(table: Int64s) -> tuple[int, int]:
    """Return (the records of all rows, the first row too small for its record count, -1 if there is none)."""
    count = int64(0)
    for row in range(table.shape[0]):
        room = (table[row, BODY_STOP] - table[row, BODY_START]) // RECORD_BYTES_MIN
        if table[row, COUNT] > room and table[row, SOURCE] != NOT_READ:
            return count, row
        count += table[row, COUNT]
    return count, int64(-1)


@kernel
def read_keys(
    data: ByteArray, inflated: ByteArray, table: Int64s, seed: Uint64s, hashes: Uint64s, flags: ByteArray
) -> tuple[int, int]:
    """Compute the hash of the key and the flags of each record of the batches in `table`; return (the first malformed row, -1
    if there is none; the number of records without a key, among those that are read). Without a key the hash is zero.
    """
    number = int64(0)
    without_key = int64(0)
    for row in range(table.shape[0]):
        source = inflated if table[row, SOURCE] == INFLATED else data
        count = table[row, COUNT]
        if table[row, SOURCE] == NOT_READ:
            for _ in range(count):
                hashes[number, 0] = uint64(0)
                hashes[number, 1] = uint64(0)
                flags[number] = 0
                number += 1
            continue
        pos = table[row, BODY_START]
        end = table[row, BODY_STOP]
        for _ in range(count):
            at, stop = _record_place(source, pos, end)
            if stop < 0:
                return row, without_key
            at += 1
            for _ in range(2):  # the timestamp, the offset
                while at < stop and source[at] >= 0x80:
                    at += 1
                at += 1
            key_size, at = read_varint(source, at, stop)
            if at < 0 or key_size < -1 or key_size >= stop - at or at >= stop:
                return row, without_key
            if key_size < 0:
                hashes[number, 0] = uint64(0)
                hashes[number, 1] = uint64(0)
                without_key += 1
            else:
                low, high = siphash(source, at, key_size, seed)
                # A zero hash means that there is no key.
                hashes[number, 0] = low | uint64(1) if high == uint64(0) else low
                hashes[number, 1] = high
                at += key_size
            flags[number] = _TOMBSTONE if source[at] == 1 else 0
            number += 1
            pos = stop
        if pos != end:
            return row, without_key
    return int64(-1), without_key


@kernel
def _slot(keys: Uint64s, low: np.uint64, high: np.uint64) -> int:
    """Return the slot of a key, or its free slot. The number of slots is a power of two, and some are free."""
    mask = uint64(keys.shape[0] - 1)
    slot = low & mask
    while True:
        found_low = keys[slot, HASH_LOW]
        found_high = keys[slot, HASH_HIGH]
        if (found_low == low and found_high == high) or (found_low | found_high) == uint64(0):
            return int64(int(slot))
        slot = (slot + uint64(1)) & mask


@kernel
def insert(keys: Uint64s, hashes: Uint64s, first: int) -> int:
    """Set each key's number to that of its record, counted from `first`; return how many keys were new."""
    new = int64(0)
    for row in range(hashes.shape[0]):
        low = hashes[row, 0]
        high = hashes[row, 1]
        if (low | high) != uint64(0):
            slot = _slot(keys, low, high)
            if (keys[slot, HASH_LOW] | keys[slot, HASH_HIGH]) == uint64(0):
                keys[slot, HASH_LOW] = low
                keys[slot, HASH_HIGH] = high
                new += 1
            keys[slot, NUMBER] = uint64(first + row)
    return new


@kernel
def count_missing(keys: Uint64s, hashes: Uint64s) -> int:
    """Return how many of the keys are not in the table, counting repeated keys each time."""
    missing = int64(0)
    for row in range(hashes.shape[0]):
        low = hashes[row, 0]
        high = hashes[row, 1]
        if (low | high) != uint64(0):
            slot = _slot(keys, low, high)
            missing += (keys[slot, HASH_LOW] | keys[slot, HASH_HIGH]) == uint64(0)
    return missing


@kernel
def move(keys: Uint64s, into: Uint64s) -> None:
    """Move all keys into a larger, empty table."""
    for row in range(keys.shape[0]):
        low = keys[row, HASH_LOW]
        high = keys[row, HASH_HIGH]
        if (low | high) != uint64(0):
            slot = _slot(into, low, high)
            into[slot, HASH_LOW] = low
            into[slot, HASH_HIGH] = high
            into[slot, NUMBER] = keys[row, NUMBER]


@kernel
def mark_last(keys: Uint64s, flags: ByteArray) -> None:
    """Mark the records that the keys' numbers name as live."""
    for row in range(keys.shape[0]):
        if (keys[row, HASH_LOW] | keys[row, HASH_HIGH]) != uint64(0):
            flags[int64(keys[row, NUMBER])] |= _LIVE


@kernel
def mark_missing(keys: Uint64s, hashes: Uint64s, flags: ByteArray) -> None:
    """Mark a record as live if its key is not in the table; not if it has no key."""
    for row in range(hashes.shape[0]):
        low = hashes[row, 0]
        high = hashes[row, 1]
        if (low | high) != uint64(0):
            slot = _slot(keys, low, high)
            if (keys[slot, HASH_LOW] | keys[slot, HASH_HIGH]) == uint64(0):
                flags[row] |= _LIVE


# -- remaining records


@kernel
def _put_int(out: ByteArray, at: int, value: int, size: int) -> None:
    for byte in range(size):
        out[at + byte] = value >> 8 * (size - 1 - byte) & 0xFF


@kernel
def _timestamp(data: ByteArray, at: int, stop: int, base: int) -> tuple[int, bool]:
    """Return (the timestamp of the record whose attributes are at `at`, whether it could be read)."""
    delta, after = read_varlong(data, at + 1, stop)
    return base + delta, after >= 0 and -_FAR < delta < _FAR


@kernel
def pick_records(
    data: ByteArray,
    start: int,
    end: int,
    flags: ByteArray,
    tombstones_stay: bool,
    base_timestamp: int,
    max_timestamp: int,
    out: ByteArray,
    out_at: int,
) -> tuple[int, int, int]:
    """Copy the live ones of `len(flags)` records; return (where they end in `out`, their largest timestamp, their number).

    The end is -1 if the records are malformed, or their timestamps extreme. At least one record must be live.
    """
    if not -_FAR < base_timestamp < _FAR:
        return int64(-1), int64(0), int64(0)
    pos = int64(start)
    copied_from = int64(-1)
    last_at = int64(0)
    last_stop = int64(0)
    kept = int64(0)
    for number in range(flags.shape[0]):
        at, stop = _record_place(data, pos, end)
        if stop < 0:
            return int64(-1), int64(0), int64(0)
        if flags[number] == _LIVE or (tombstones_stay and flags[number] == _LIVE_TOMBSTONE):
            if copied_from < 0:
                copied_from = pos
            kept += 1
            last_at = at
            last_stop = stop
        elif copied_from >= 0:
            if pos - copied_from > out.shape[0] - out_at:
                return int64(-1), int64(0), int64(0)
            copy_bytes(out, out_at, data, copied_from, pos - copied_from)
            out_at += pos - copied_from
            copied_from = int64(-1)
        pos = stop
    if pos != end:
        return int64(-1), int64(0), int64(0)
    if copied_from >= 0:
        if pos - copied_from > out.shape[0] - out_at:
            return int64(-1), int64(0), int64(0)
        copy_bytes(out, out_at, data, copied_from, pos - copied_from)
        out_at += pos - copied_from
    # Usually the last record has the batch's largest timestamp.
    largest, fine = _timestamp(data, last_at, last_stop, base_timestamp)
    if not fine:
        return int64(-1), int64(0), int64(0)
    if largest == max_timestamp:
        return out_at, largest, kept
    pos = int64(start)
    for number in range(flags.shape[0]):
        at, stop = _record_place(data, pos, end)
        if flags[number] == _LIVE or (tombstones_stay and flags[number] == _LIVE_TOMBSTONE):
            timestamp, fine = _timestamp(data, at, stop, base_timestamp)
            if not fine:
                return int64(-1), int64(0), int64(0)
            largest = max(largest, timestamp)
        pos = stop
    return out_at, largest, kept


@kernel
def judge_batches(table: Int64s, flags: ByteArray, kept_ends: Int64s, now_ms: int) -> tuple[int, int]:
    """Decide about each row that is not for Python already; return (remaining records, rows for Python).

    `flags` has one item per record; `kept_ends` has the last offsets of batches that must stay even without records,
    ascending.
    """
    record = int64(0)
    records = int64(0)
    for_python = int64(0)
    for row in range(table.shape[0]):
        count = table[row, COUNT]
        table[row, FIRST_RECORD] = record
        live = int64(0)
        tombstones = int64(0)
        for number in range(record, record + count):
            live += flags[number] == _LIVE
            tombstones += flags[number] == _LIVE_TOMBSTONE
        record += count
        has_horizon = table[row, ATTRIBUTES] & DELETE_HORIZON_FLAG != 0
        kept = live + tombstones if has_horizon and table[row, BASE_TIMESTAMP] > now_ms else live
        if table[row, FATE] == FOR_PYTHON or count == 0 or (tombstones and not has_horizon):
            fate = FOR_PYTHON
        elif kept == count:
            fate = WHOLE
        elif kept:
            fate = FOR_PYTHON if table[row, ATTRIBUTES] & CODEC_MASK else PICKED
        else:
            near = np.searchsorted(kept_ends, table[row, LAST_OFFSET])
            must_stay = near < kept_ends.shape[0] and kept_ends[near] == table[row, LAST_OFFSET]
            fate = FOR_PYTHON if must_stay else GONE
        table[row, FATE] = fate
        if fate == FOR_PYTHON:
            for_python += 1
        else:
            records += kept
    return records, for_python


@kernel
def write_batches(
    data: ByteArray,
    replaced: ByteArray,
    table: Int64s,
    flags: ByteArray,
    now_ms: int,
    interval_bytes: int,
    out: ByteArray,
    state: Int64s,
    entries: Int64s,
    unsealed: Int64s,
) -> int:
    """Write the remaining batches of `table` to `out`; return -1, or a row whose records cannot be picked.

    `unsealed` gets the start and end of batches in `out` that still need a CRC. `out` must have room for all of them.
    """
    at = int64(0)
    entry = int64(0)
    open_batches = int64(0)
    for row in range(table.shape[0]):
        fate = table[row, FATE]
        if fate == GONE:
            continue
        start = table[row, POS]
        size = table[row, AFTER] - start
        last_offset = table[row, LAST_OFFSET]
        largest = table[row, MAX_TIMESTAMP]
        end = at + size
        if fate == WHOLE:
            copy_bytes(out, at, data, start, size)
        elif fate == REPLACED:
            copy_bytes(out, at, replaced, start, size)
        else:
            first = table[row, FIRST_RECORD]
            own = flags[first : first + table[row, COUNT]]
            base_timestamp = table[row, BASE_TIMESTAMP]
            end, largest, kept = pick_records(
                data,
                start + HEADER_SIZE,
                start + size,
                own,
                base_timestamp > now_ms,
                base_timestamp,
                largest,
                out,
                at + HEADER_SIZE,
            )
            if end < 0:
                return row
            if table[row, ATTRIBUTES] & TIMESTAMP_TYPE_FLAG:
                largest = table[row, MAX_TIMESTAMP]
            copy_bytes(out, at, data, start, HEADER_SIZE)
            _put_int(out, at + LENGTH_AT, end - at - LOG_OVERHEAD, 4)
            _put_int(out, at + MAX_TIMESTAMP_AT, largest, 8)
            _put_int(out, at + RECORD_COUNT_AT, kept, 4)
            if end - at > SMALL_BATCH_BYTES:
                unsealed[open_batches, 0] = at
                unsealed[open_batches, 1] = end
                open_batches += 1
            else:
                _put_int(out, at + CRC_AT, crc32c_of(out, at + ATTRIBUTES_AT, end), 4)
        position = state[POSITION]
        if largest > state[INDEX_MAX_TIMESTAMP]:
            state[INDEX_MAX_TIMESTAMP] = largest
            state[INDEX_OFFSET_OF_MAX] = last_offset
        if position > state[NEXT_ENTRY_AFTER]:
            state[NEXT_ENTRY_AFTER] = position + interval_bytes
            entries[entry, ENTRY_OFFSET] = last_offset
            entries[entry, ENTRY_POSITION] = position
            entries[entry, ENTRY_MAX_TIMESTAMP] = state[INDEX_MAX_TIMESTAMP]
            entries[entry, ENTRY_OFFSET_OF_MAX] = state[INDEX_OFFSET_OF_MAX]
            entry += 1
        state[POSITION] = position + end - at
        at = end
    state[OUT] = at
    state[ENTRIES] = entry
    state[UNSEALED] = open_batches
    return int64(-1)
