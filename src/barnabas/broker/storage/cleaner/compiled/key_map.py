"""`DirtyMap` with compiled loops: keys are replaced by 128-bit hashes, in a table that grows. Owner: the worker.

Kafka trusts MD5 in the same way. Each cleaning uses a new random seed, so that no producer can choose keys that collide.
"""

import secrets
from collections.abc import Iterator
from typing import Final, NamedTuple, NoReturn

import numpy as np
from crc32c import crc32c

from barnabas.base.errors import Malformed
from barnabas.broker.storage.cleaner.compiled import kernels
from barnabas.broker.storage.cleaner.compiled.kernels import BODY_START, BODY_STOP, INFLATED, NOT_READ, SOURCE, Uint64s
from barnabas.broker.storage.cleaner.dirty_map import checked_count, is_passed_over, new_header
from barnabas.broker.storage.cleaner.scan import scan_keys
from barnabas.broker.storage.cleaner.source import check_batch, unpack_header
from barnabas.broker.storage.cleaner.transactions import TransactionTracker
from barnabas.wire.record_batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL_FLAG,
    HEADER_SIZE,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)
from barnabas.wire.record_kernels import (
    AFTER,
    ATTRIBUTES,
    BASE_OFFSET,
    CRC,
    LAST_OFFSET,
    POS,
    TORN,
    ByteArray,
    Int64s,
    byte_array,
    scan_batches,
)
from barnabas.wire.record_kernels import OK as SCANNED
from barnabas.wire.records import records_body

#: Batches of a piece that are handled at once; the rest is read again.
BATCHES_MAX: Final = 8192
#: Decompressed bytes that are handled at once; a single batch may exceed it.
INFLATED_BYTES: Final = 4 << 20
#: Number of slots for the smallest buffer, and at the beginning of a table that may grow.
_SLOTS_LEAST: Final = 2
_SLOTS_FIRST: Final = 1 << 12
_SLOT_BYTES: Final = 8 * kernels.KEYS_WIDTH
_NOTHING: Final = byte_array(b"")


def max_slots(buffer_bytes: int) -> int:
    """Return the largest number of slots: while keys move, a table of half the size exists too."""
    slots = _SLOTS_LEAST
    while slots * 2 * _SLOT_BYTES * 3 // 2 <= buffer_bytes:
        slots *= 2
    return slots


def max_keys(slots: int) -> int:
    """Return three quarters: in a fuller table, a look-up passes many slots."""
    return slots * 3 // 4


class BatchTable:
    """The whole batches of a piece, as rows. The memory is reused for the next piece."""

    def __init__(self) -> None:
        self._rows: Int64s = np.empty((BATCHES_MAX, kernels.TABLE_WIDTH), dtype=np.int64)
        self.rows = self._rows[:0]
        #: Size of the batches in bytes.
        self.size_bytes = 0
        #: Whether the bytes after the batches are not a batch.
        self.is_damaged = False

    def read(self, piece: bytes, data: ByteArray) -> None:
        count, self.size_bytes, code = scan_batches(data, 0, len(piece), self._rows)
        self.rows = self._rows[:count]
        # The next piece checks an incomplete header.
        self.is_damaged = code not in (SCANNED, TORN) and len(piece) - self.size_bytes >= HEADER_SIZE

    def header(self, piece: bytes, row: int) -> BatchHeader:
        return new_header(BatchHeader, unpack_header(piece, int(self.rows[row, POS])))

    def check_end(self, piece: bytes) -> None:
        """Raise `Malformed` if the bytes after the batches are not a batch."""
        if self.is_damaged:
            check_batch(unpack_header(piece, self.size_bytes))


class _Keys(NamedTuple):
    hashes: Uint64s
    flags: ByteArray
    without_key: int
    #: Position after the last of their batches.
    after: int
    last_offset: int


class CompiledDirtyMap:
    """Behaves like `DirtyMap`."""

    def __init__(self, buffer_bytes: int, transactions: TransactionTracker) -> None:
        self._transactions = transactions
        #: Limit for the flags: a quarter of the buffer, one byte per record.
        self._records_max = buffer_bytes // 4
        self._slots_max = max_slots(buffer_bytes - self._records_max)
        self._keys_max = max_keys(self._slots_max)
        self._keys: Uint64s = new_table(min(_SLOTS_FIRST, self._slots_max))
        self._used = 0
        self._seed: Uint64s = np.frombuffer(secrets.token_bytes(16), dtype=np.uint64)
        self._table = BatchTable()
        self._large: Int64s = np.empty(BATCHES_MAX, dtype=np.int64)
        self.flags = bytearray()
        self.latest_offset = -1
        self.is_full = False
        self.without_key = 0

    def __len__(self) -> int:
        return self._used

    @property
    def utilization(self) -> float:
        return self._used / self._keys_max

    def index(self, piece: bytes) -> int:
        """Add whole batches of `piece`; return their size in bytes. 0: the map is full, and none was added."""
        taken = 0
        if self.is_full:
            return taken
        for keys in self._scan(piece, self._transactions):
            # Always take some keys at least, so that every pass makes progress.
            if self.flags and not self._fits(keys.hashes):
                self.is_full = True
                break
            self._make_room(len(keys.hashes))
            self._used += kernels.insert(self._keys, keys.hashes, len(self.flags))
            self.flags += keys.flags.data
            self.latest_offset = keys.last_offset
            self.without_key += keys.without_key
            taken = keys.after
        return taken

    def _fits(self, hashes: Uint64s) -> bool:
        if len(self.flags) + len(hashes) > self._records_max:
            return False
        if self._used + len(hashes) <= self._keys_max:
            return True
        if self._used + kernels.count_missing(self._keys, hashes) <= self._keys_max:
            return True
        return (
            self._used + kernels.count_missing(self._keys, np.ascontiguousarray(np.unique(hashes, axis=0)))
            <= self._keys_max
        )

    def _make_room(self, count: int) -> None:
        """Grow the table for `count` new keys, up to its limit: what `_fits` has accepted has room."""
        slots = len(self._keys)
        # The first keys may exceed the limit: see `index`.
        limit = self._slots_max if self.flags else None
        while max_keys(slots) < self._used + count and (limit is None or slots < limit):
            slots *= 2
        if slots > len(self._keys):
            larger = new_table(slots)
            kernels.move(self._keys, larger)
            self._keys = larger

    def close(self) -> None:
        """Mark records that are the last of their key as live: every record is known now."""
        kernels.mark_last(self._keys, np.frombuffer(self.flags, dtype=np.uint8))

    def flags_of_clean(self, piece: bytes) -> bytearray:
        """Return flags for records before the dirty part: live unless their key is in the map."""
        flags = bytearray()
        for keys in self._scan(piece, None):
            kernels.mark_missing(self._keys, keys.hashes, keys.flags)
            flags += keys.flags.data
            self.without_key += keys.without_key
        return flags

    # -- reading

    def _scan(self, piece: bytes, transactions: TransactionTracker | None) -> Iterator[_Keys]:
        """Yield the keys of every record in the whole batches of `piece`, as `dirty_map.scan_piece` finds them."""
        data = byte_array(piece)
        table = self._table
        table.read(piece, data)
        good = self._check_crcs(piece, data)
        rows = table.rows[:good]
        first = 0
        for last, inflated in self._bodies(piece, good, transactions):
            if first < last:
                yield self._read(piece, data, rows[first:last], inflated)
            first = last
        if good < len(table.rows):
            raise Malformed(f"the batch at offset {table.rows[good, BASE_OFFSET]} fails its CRC")
        table.check_end(piece)

    def _check_crcs(self, piece: bytes, data: ByteArray) -> int:
        """Return the first row with a wrong CRC; the number of rows if all are right."""
        rows = self._table.rows
        good, large = kernels.check_batches(data, rows, self._large)
        with memoryview(piece) as view:
            for number, (pos, after, crc) in enumerate(rows[self._large[:large]][:, (POS, AFTER, CRC)].tolist()):
                if crc32c(view[pos + ATTRIBUTES_AT : after]) != crc:
                    return int(self._large[number])
        return good

    def _bodies(
        self, piece: bytes, count: int, transactions: TransactionTracker | None
    ) -> Iterator[tuple[int, ByteArray]]:
        """Yield (row after the last, decompressed records) of batches that are handled together, up to row `count`."""
        rows = self._table.rows[:count]
        bodies: list[bytes] = []
        inflated_bytes = 0
        not_plain = rows[:, ATTRIBUTES] & (CODEC_MASK | CONTROL_FLAG | TRANSACTIONAL_FLAG) != 0
        for row in np.flatnonzero(not_plain).tolist():
            header = self._table.header(piece, row)
            at = int(rows[row, POS])
            if is_passed_over(piece, at, header, transactions):
                checked_count(header.record_count, header.size_bytes)
                rows[row, SOURCE] = NOT_READ
            elif header.codec:
                if not header.record_count:
                    rows[row, SOURCE] = NOT_READ
                    continue
                body = records_body(piece, at, header)
                bodies.append(body)
                rows[row, SOURCE] = INFLATED
                rows[row, BODY_START] = inflated_bytes
                inflated_bytes += len(body)
                rows[row, BODY_STOP] = inflated_bytes
                if inflated_bytes >= INFLATED_BYTES:
                    yield row + 1, byte_array(b"".join(bodies))
                    bodies.clear()
                    inflated_bytes = 0
        yield count, byte_array(b"".join(bodies)) if bodies else _NOTHING

    def _read(self, piece: bytes, data: ByteArray, rows: Int64s, inflated: ByteArray) -> _Keys:
        count, crowded = kernels.count_records(rows)
        if crowded >= 0:
            if crowded:
                self._read(piece, data, rows[:crowded], inflated)  # may raise first
            self._raise(piece, rows[crowded])
        hashes: Uint64s = np.empty((count, 2), dtype=np.uint64)
        flags: ByteArray = np.empty(count, dtype=np.uint8)
        bad, without_key = kernels.read_keys(data, inflated, rows, self._seed, hashes, flags)
        if bad >= 0:
            self._raise(piece, rows[bad])
        return _Keys(hashes, flags, without_key, int(rows[-1, AFTER]), int(rows[-1, LAST_OFFSET]))

    def _raise(self, piece: bytes, row: Int64s) -> NoReturn:
        """Raise Python's precise error for a batch."""
        at = int(row[POS])
        header = new_header(BatchHeader, unpack_header(piece, at))
        if row[SOURCE] == INFLATED:
            body = records_body(piece, at, header)
            scan_keys(body, 0, len(body), header.record_count, 0, [], [])
        else:
            scan_keys(piece, at + HEADER_SIZE, at + header.size_bytes, header.record_count, 0, [], [])
        raise Malformed(f"the batch at offset {header.base_offset} is malformed")


def new_table(slots: int) -> Uint64s:
    return np.zeros((slots, kernels.KEYS_WIDTH), dtype=np.uint64)
