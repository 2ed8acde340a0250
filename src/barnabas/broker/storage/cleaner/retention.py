"""The second pass: keeps or drops the records of each batch. Owner: the worker.

The rules are Kafka's (LogCleaner.cleanInto, MemoryRecords.filterTo):

- records go if they are not the last of their key, belong to an aborted transaction, or have no key;
- a tombstone stays until its batch's delete horizon has passed; the first pass that keeps it sets the horizon (KIP-534);
- so does a marker whose transaction has no record left; a marker with remaining records stays;
- the last batch of an active producer, and the last of the range, stay as empty batches if all their records go;
- offsets, sequences, epochs and codecs stay. A batch that loses nothing is copied byte for byte. In a batch that loses records,
  the others stay as they are: base offset and base timestamp stay, so their deltas remain valid.
"""

import logging
import struct
from itertools import compress as compress_by
from typing import Final

from barnabas.base.config.log_config import LONG_MAX
from barnabas.broker.storage.cleaner.dirty_map import LIVE, LIVE_TOMBSTONE, new_header
from barnabas.broker.storage.cleaner.job import CleanJob, CleanStats, LastRecord
from barnabas.broker.storage.cleaner.output import CleanedWriter
from barnabas.broker.storage.cleaner.scan import largest_timestamp_delta, record_starts, shift_timestamp
from barnabas.broker.storage.cleaner.source import check_batch, unpack_header
from barnabas.broker.storage.cleaner.transactions import TransactionTracker
from barnabas.wire.compression import compress
from barnabas.wire.record_batch import (
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_V2,
    MIN_BATCH_LENGTH,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    check_crc,
)
from barnabas.wire.records import empty_batch, join_batch, records_body

logger = logging.getLogger(__name__)

#: Base offset, length, magic, attributes, last offset delta, max timestamp, producer id, record count.
_unpack_short: Final = struct.Struct(">qi4xb4xhi8xqq6xi").unpack_from
#: The batch is not a simple case: `_keep` must decide.
UNDECIDED: Final = -1
_LIVE_OF_FLAG: Final = (0, 1, 0, UNDECIDED)
#: The last batch of an unknown producer.
NO_LAST_RECORD: Final = LastRecord(-1, -1)
_TXN_FLAGS: Final = CONTROL_FLAG | TRANSACTIONAL_FLAG
_TOMBSTONES_GO: Final = bytes([0, LIVE, 0, 0]) + bytes(252)
_TOMBSTONES_STAY: Final = bytes([0, LIVE, 0, LIVE]) + bytes(252)


class BatchFilter:
    """One pass over a log. `output` is the segment that is being written; the caller replaces it between groups."""

    def __init__(self, job: CleanJob, transactions: TransactionTracker, stats: CleanStats) -> None:
        self._job = job
        self._transactions = transactions
        self._stats = stats
        self.output: CleanedWriter

    def filter(self, piece: bytes, flags: bytearray | None, first: int = 0) -> tuple[int, int]:
        """Write what remains of the whole batches of `piece`; return (their bytes, the number of their records).

        `flags[first]` belongs to the piece's first record, and the first pass has checked the CRCs. None: all records are after
        the mapped part, and stay.
        """
        output, stats, producers, end_offset = self.output, self._stats, self._job.producers, self._job.end_offset
        indexes, position = output.indexes, output.position
        at, end, number = 0, len(piece), first
        # [copied, at) will be copied unchanged.
        copied = kept_records = 0
        while end - at >= HEADER_SIZE:
            base, length, magic, attributes, last_delta, max_timestamp, producer_id, count = _unpack_short(piece, at)
            if magic != MAGIC_V2 or length < MIN_BATCH_LENGTH or last_delta < 0 or count < 0:
                check_batch(unpack_header(piece, at))
            last_offset = base + last_delta
            after = at + LOG_OVERHEAD + length
            if after > end:
                break
            # Most batches stay whole or go whole, and are not transactional: these cost little.
            if attributes & _TXN_FLAGS or count == 0 or flags is None:
                live = UNDECIDED
            elif count == 1:
                live = _LIVE_OF_FLAG[flags[number]]
            else:
                live = flags.count(LIVE, number, number + count)
                if (live == 0 and flags.count(LIVE_TOMBSTONE, number, number + count)) or 0 < live < count:
                    live = UNDECIDED
            if live > 0:
                kept_records += count
            elif (
                live == 0
                and last_offset + 1 != end_offset
                and producers.get(producer_id, NO_LAST_RECORD)[0] != last_offset
            ):
                if copied < at:
                    output.write(piece[copied:at])
                copied = at = after
                number += count
                continue
            else:
                own = None if flags is None else flags[number : number + count]
                kept = self._keep(piece, at, new_header(BatchHeader, unpack_header(piece, at)), own)
                if kept is not None:
                    if copied < at:
                        output.write(piece[copied:at])
                    copied = at = after
                    number += count
                    if kept:
                        indexes.add(position, last_offset, unpack_header(kept)[8])
                        position += len(kept)
                        output.write(kept)
                    continue
            if max_timestamp > indexes.max_timestamp or position > indexes.next_entry_after:
                indexes.add(position, last_offset, max_timestamp)
            position += after - at
            number += count
            at = after
        if copied < at:
            output.write(piece if at - copied == end else piece[copied:at])
        output.position = position
        stats.bytes_read += at
        stats.records_read += number - first
        stats.records_written += kept_records
        return at, number - first

    def _keep(self, piece: bytes, at: int, header: BatchHeader, flags: bytearray | None) -> bytes | bytearray | None:
        """Return what remains of a batch: None to copy it unchanged; empty for nothing."""
        if flags is None:
            check_crc(piece, at, header)
        return self._keep_known(piece, at, header, flags, useless=self._is_useless(piece, at, header))

    def _is_useless(self, piece: bytes, at: int, header: BatchHeader) -> bool:
        """Whether it is a marker without a transaction, or aborted data. Call once per transactional batch, in order."""
        if header.is_control:
            return self._transactions.on_control(header, records_body(piece, at, header))
        return header.is_transactional and self._transactions.on_data(header.producer_id, header.last_offset)

    def _keep_known(
        self, piece: bytes, at: int, header: BatchHeader, flags: bytearray | None, *, useless: bool
    ) -> bytes | bytearray | None:
        """Decide like `_keep`, for a batch whose bytes and transaction have been checked."""
        horizon_ms = header.delete_horizon_ms
        horizon_passed = horizon_ms is not None and horizon_ms <= self._job.now_ms
        if header.is_control:
            if header.record_count == 0 or (useless and horizon_passed):
                return self._without_records(header)
            self._stats.records_written += header.record_count
            if useless and horizon_ms is None:
                return self._rewrite(piece, at, header, bytes([LIVE]) * header.record_count, set_horizon=True)
            return None
        if useless or header.record_count == 0:
            return self._without_records(header)
        if flags is None:
            self._stats.records_written += header.record_count
            return None
        live = bytes(flags.translate(_TOMBSTONES_GO if horizon_passed else _TOMBSTONES_STAY))
        kept = live.count(LIVE)
        if kept == 0:
            return self._without_records(header)
        self._stats.records_written += kept
        set_horizon = horizon_ms is None and flags.count(LIVE_TOMBSTONE) > 0
        if kept == header.record_count and not set_horizon:
            return None
        return self._rewrite(piece, at, header, live, set_horizon=set_horizon)

    def _without_records(self, header: BatchHeader) -> bytes | None:
        """Decide about a batch without remaining records: it may stay for its producer, or for its last offset."""
        if not self._must_stay(header):
            return b""
        return None if header.record_count == 0 else empty_batch(header)

    def _must_stay(self, header: BatchHeader) -> bool:
        if header.next_offset == self._job.end_offset:
            return True
        last = self._job.producers.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return False
        if last.last_data_offset >= 0:
            return header.last_offset == last.last_data_offset
        return header.is_control and header.producer_epoch == last.producer_epoch

    def _rewrite(self, piece: bytes, at: int, header: BatchHeader, live: bytes, *, set_horizon: bool) -> bytearray:
        """Return a batch of the records that `live` marks, with a delete horizon if `set_horizon`."""
        job = self._job
        if header.codec:
            body = records_body(piece, at, header)
            start, stop = 0, len(body)
        else:
            body, start, stop = piece, at + HEADER_SIZE, at + header.size_bytes
        attributes, base_timestamp = header.attributes, header.base_timestamp
        if set_horizon:
            base_timestamp = job.now_ms + job.delete_retention_ms
            attributes |= DELETE_HORIZON_FLAG
        if set_horizon and not attributes & TIMESTAMP_TYPE_FLAG:
            starts = record_starts(body, start, stop, header.record_count)
            records, max_timestamp = _shifted(body, starts, live, header.base_timestamp, base_timestamp)
        else:
            records, max_timestamp = self._pick(body, start, stop, header, live)
        if header.codec:
            records = [compress(header.codec, b"".join(records))]
        kept = header._replace(
            attributes=attributes,
            base_timestamp=base_timestamp,
            # A producer may have timestamps near the largest number.
            max_timestamp=min(max(max_timestamp, -LONG_MAX), LONG_MAX),
            record_count=live.count(LIVE),
        )
        batch = join_batch(kept, records)
        if len(batch) > header.size_bytes and len(batch) > job.max_message_bytes:
            # As in Kafka, the batch stays. A fetch returns at least one batch, however large.
            logger.warning(
                "[log cleaner] %s: the batch at offset %d has grown to %d bytes, raise max.message.bytes=%d",
                job.partition,
                header.base_offset,
                len(batch),
                job.max_message_bytes,
            )
        return batch

    def _pick(self, body: bytes, start: int, stop: int, header: BatchHeader, live: bytes) -> tuple[list[bytes], int]:
        """Return the live records of `body[start:stop]` unchanged, and their largest timestamp."""
        starts = record_starts(body, start, stop, header.record_count)
        records = _runs(body, starts, live)
        if header.attributes & TIMESTAMP_TYPE_FLAG:
            # Every record has the append time `max_timestamp`, whatever its delta.
            return records, header.max_timestamp
        return records, _max_timestamp(body, starts, live, header)


def _runs(body: bytes, starts: list[int], live: bytes) -> list[bytes]:
    """Join neighbouring live records into one piece each."""
    runs = []
    count = len(live)
    first = live.find(LIVE)
    while first >= 0:
        dead = live.find(0, first)
        if dead < 0:
            dead = count
        runs.append(body[starts[first] : starts[dead]])
        first = live.find(LIVE, dead)
    return runs


def _shifted(body: bytes, starts: list[int], live: bytes, old_base: int, new_base: int) -> tuple[list[bytes], int]:
    """Return the live records relative to another base timestamp, and their largest timestamp."""
    records = []
    max_timestamp = NO_TIMESTAMP
    for number, is_live in enumerate(live):
        if is_live:
            record, delta = shift_timestamp(body, starts[number], starts[number + 1], old_base - new_base)
            records.append(record)
            max_timestamp = max(max_timestamp, old_base + delta)
    return records, max_timestamp


def _max_timestamp(body: bytes, starts: list[int], live: bytes, header: BatchHeader) -> int:
    """Return the largest timestamp of the live records. Usually the last record has it, and it equals the batch's."""
    base = header.base_timestamp
    if base + largest_timestamp_delta(body, (starts[live.rfind(LIVE)],)) == header.max_timestamp:
        return header.max_timestamp
    return base + largest_timestamp_delta(body, compress_by(starts, live))
