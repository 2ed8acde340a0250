"""The first pass: finds which records of the dirty part are the last of their key. Owner: the worker.

Records of the dirty part are numbered in order, and a map takes each key to the number of its last record. A byte per record
then holds all that the second pass must know (`LIVE`, `TOMBSTONE`), so that it reads no key again; and any key in the map
supersedes records before the dirty part. If a pass meets more keys than the memory allows, it ends there: the rest stays
dirty, and the next pass continues.
"""

import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from barnabas.base.errors import Malformed
from barnabas.broker.storage.cleaner.scan import Key, scan_keys, scan_one
from barnabas.broker.storage.cleaner.source import check_batch, unpack_header
from barnabas.broker.storage.cleaner.transactions import TransactionTracker
from barnabas.wire.record_batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL_FLAG,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_V2,
    MIN_BATCH_LENGTH,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)
from barnabas.wire.records import records_body

DEAD: Final = 0
#: The record is the last of its key.
LIVE: Final = 1
#: The record has no value.
TOMBSTONE: Final = 2
LIVE_TOMBSTONE: Final = LIVE | TOMBSTONE

#: A key (64 bytes at most) and a number (32), as Python allocates them.
_ENTRY_BYTES: Final = 96
#: A slot of a dict's table: its share of 24-byte entries (two thirds of the slots) and of a 4-byte index.
_SLOT_BYTES: Final = 20
_LIVE_OF_MISSING: Final = bytes([LIVE, DEAD]) + bytes(254)

_NOT_PLAIN: Final = CODEC_MASK | CONTROL_FLAG | TRANSACTIONAL_FLAG
#: Base offset, length, magic, CRC, attributes, last offset delta, record count: reading these costs half of the whole header.
_unpack_short: Final = struct.Struct(">qi4xbIhi30xi").unpack_from

new_header: Final = tuple.__new__


def max_keys(buffer_bytes: int) -> int:
    """Return the number of keys that fit into so many bytes. A dict doubles its table when two thirds are full."""
    best, slots = 0, 8
    while slots * _SLOT_BYTES < buffer_bytes:
        best = max(best, min(slots * 2 // 3, (buffer_bytes - slots * _SLOT_BYTES) // _ENTRY_BYTES))
        slots *= 2
    return best


class DirtyMap:
    """Fill it with `index` until that returns 0, then `close` it, then read it."""

    def __init__(self, buffer_bytes: int, transactions: TransactionTracker) -> None:
        self._numbers: dict[Key, int] = {}
        self._transactions = transactions
        #: Limit for the flags: a quarter of the buffer, one byte per record.
        self._records_max = buffer_bytes // 4
        self._keys_max = max(max_keys(buffer_bytes - self._records_max), 1)
        #: Flags of every record of the dirty part, in order.
        self.flags = bytearray()
        #: Last offset of the batches in the map.
        self.latest_offset = -1
        self.is_full = False
        #: Number of records without a key, which cannot be compacted.
        self.without_key = 0

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def utilization(self) -> float:
        return len(self._numbers) / self._keys_max

    def index(self, piece: bytes) -> int:
        """Add the whole batches of `piece`; return their size in bytes. 0: the map is full, and none was added."""
        keys: list[Key] = []
        tombstones: list[int] = []
        scan = scan_piece(piece, keys, tombstones, first=len(self.flags), transactions=self._transactions)
        numbers = self._numbers
        # Always take at least one piece, so that every pass makes progress.
        if numbers and not self._fits(keys):
            self.is_full = True
            return 0
        first = len(self.flags)
        numbers.update(zip(keys, range(first, first + len(keys)), strict=True))
        self.flags += bytes(len(keys))
        for number in tombstones:
            self.flags[number] = TOMBSTONE
        self.latest_offset = scan.last_offset
        self.without_key += scan.without_key
        return scan.size_bytes

    def _fits(self, keys: list[Key]) -> bool:
        if len(self.flags) + len(keys) > self._records_max:
            return False
        if len(self._numbers) + len(keys) <= self._keys_max:
            return True
        return len(self._numbers) + len(set(keys) - self._numbers.keys()) <= self._keys_max

    def close(self) -> None:
        """Mark records that are the last of their key as live: every record is known now."""
        # Records without a key have no last record of their key: they are not kept.
        self._numbers.pop(None, None)
        flags = self.flags
        for number in self._numbers.values():
            flags[number] |= LIVE
        self._numbers[None] = -1

    def flags_of_clean(self, piece: bytes) -> bytearray:
        """Return flags for records before the dirty part: live unless their key is in the map."""
        keys: list[Key] = []
        tombstones: list[int] = []
        self.without_key += scan_piece(piece, keys, tombstones, first=0, transactions=None).without_key
        flags = bytearray(map(self._numbers.__contains__, keys)).translate(_LIVE_OF_MISSING)
        for number in tombstones:
            flags[number] |= TOMBSTONE
        return flags


class Scan(NamedTuple):
    size_bytes: int
    last_offset: int
    without_key: int


def scan_piece(
    piece: bytes, keys: list[Key], tombstones: list[int], *, first: int, transactions: TransactionTracker | None
) -> Scan:
    """Collect the keys of every record in the whole batches of `piece`.

    Records of control batches, and with `transactions` also those of aborted batches, count as records without a key.
    """
    at, last_offset, end = 0, -1, len(piece)
    passed_over = 0
    append = keys.append
    with memoryview(piece) as view:
        while end - at >= HEADER_SIZE:
            base, length, magic, crc, attributes, last_delta, count = _unpack_short(piece, at)
            after = at + LOG_OVERHEAD + length
            if magic != MAGIC_V2 or length < MIN_BATCH_LENGTH or last_delta < 0 or count < 0:
                check_batch(unpack_header(piece, at))
            if after > end:
                break
            if crc32c(view[at + ATTRIBUTES_AT : after]) != crc:
                raise Malformed(f"the batch at offset {base} fails its CRC")
            last_offset = base + last_delta
            if attributes & _NOT_PLAIN == 0:
                if count != 1 or not scan_one(piece, at + HEADER_SIZE, after, first + len(keys), append, tombstones):
                    scan_keys(piece, at + HEADER_SIZE, after, count, first + len(keys), keys, tombstones)
            else:
                header = new_header(BatchHeader, unpack_header(piece, at))
                if is_passed_over(piece, at, header, transactions):
                    keys.extend([None] * checked_count(count, after - at))
                    passed_over += count
                elif count:
                    body = records_body(piece, at, header)
                    scan_keys(body, 0, len(body), count, first + len(keys), keys, tombstones)
            at = after
    return Scan(at, last_offset, keys.count(None) - passed_over)


def is_passed_over(piece: bytes, at: int, header: BatchHeader, transactions: TransactionTracker | None) -> bool:
    """Whether the batch is a control batch or aborted. The tracker must see every such batch."""
    if header.is_control:
        if transactions is not None:
            transactions.on_control(header, records_body(piece, at, header))
        return True
    return (
        header.is_transactional
        and transactions is not None
        and transactions.on_data(header.producer_id, header.last_offset)
    )


def checked_count(count: int, size_bytes: int) -> int:
    """Check the record count of a batch that is not decoded. Compression can make a record a fraction of a byte."""
    if count > size_bytes * 1024:
        raise Malformed(f"{count} records in {size_bytes} bytes")
    return count
