"""The second walk: what stays of each batch. Owner: the worker.

The rules are Kafka's (LogCleaner.cleanInto, MemoryRecords.filterTo):

- records that are not the last of their key go, and those of aborted transactions, and those without a key;
- a tombstone stays until its batch's delete horizon has passed; the first pass that keeps it sets the horizon (KIP-534);
- so does a marker whose transaction has no record left; one that has, stays;
- the last batch of an active producer, and the last of the round, stay as empty batches if nothing else is left of them;
- offsets, sequences, epochs and codecs stay as they are. A batch that loses nothing is copied byte for byte, and of one
  that loses records the others are: base offset and base timestamp stay, so their deltas hold.
"""

import logging
from typing import Final

from crc32c import crc32c

from barnabas.core.errors import Malformed
from barnabas.protocol.compression import compress
from barnabas.protocol.record_batch import (
    ATTRIBUTES_AT,
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
)
from barnabas.protocol.records import assemble, empty_batch, records_body
from barnabas.storage.cleaner.dirty_map import LIVE, LIVE_TOMBSTONE, new_header
from barnabas.storage.cleaner.job import CleanJob, CleanStats
from barnabas.storage.cleaner.output import CleanedWriter
from barnabas.storage.cleaner.scan import record_starts, shift_timestamp, timestamp_delta
from barnabas.storage.cleaner.source import check_batch, unpack_header
from barnabas.storage.cleaner.transactions import TransactionTracker

logger = logging.getLogger(__name__)

_TXN_FLAGS: Final = CONTROL_FLAG | TRANSACTIONAL_FLAG
_TOMBSTONES_GO: Final = bytes([0, LIVE, 0, 0]) + bytes(252)
_TOMBSTONES_STAY: Final = bytes([0, LIVE, 0, LIVE]) + bytes(252)


class BatchFilter:
    """One walk over a log. `output` is the segment that is being written; the caller exchanges it between groups."""

    def __init__(self, job: CleanJob, transactions: TransactionTracker, stats: CleanStats) -> None:
        self._job = job
        self._transactions = transactions
        self._stats = stats
        self.output: CleanedWriter

    def filter(self, piece: bytes, flags: bytearray | None, first: int = 0) -> tuple[int, int]:
        """Write what stays of the whole batches of `piece`; (their bytes, the number of their records).

        `flags[first]` is of the piece's first record; None: all records are past what the map knows, and stay.
        """
        output, stats = self.output, self._stats
        at, end, number = 0, len(piece), first
        # [copied, at) is to be copied as it is.
        copied = 0
        with memoryview(piece) as view:
            while end - at >= HEADER_SIZE:
                header = unpack_header(piece, at)
                length, attributes, count = header[1], header[5], header[12]
                if header[3] != MAGIC_V2 or length < MIN_BATCH_LENGTH or header[6] < 0 or count < 0:
                    check_batch(header)
                after = at + LOG_OVERHEAD + length
                if after > end:
                    break
                if crc32c(view[at + ATTRIBUTES_AT : after]) != header[4]:
                    raise Malformed(f"the batch at offset {header[0]} fails its CRC")
                if (
                    count
                    and not attributes & _TXN_FLAGS
                    and (flags is None or flags.count(LIVE, number, number + count) == count)
                ):
                    kept = None
                    stats.records_written += count
                else:
                    own = None if flags is None else flags[number : number + count]
                    kept = self._keep(piece, at, new_header(BatchHeader, header), own)
                if kept is None:
                    output.note(after - at, header[0] + header[6], header[8])
                else:
                    if copied < at:
                        output.write(piece[copied:at])
                    copied = after
                    if kept:
                        output.note(len(kept), header[0] + header[6], unpack_header(kept)[8])
                        output.write(kept)
                number += count
                at = after
        if copied < at:
            output.write(piece if at - copied == end else piece[copied:at])
        stats.bytes_read += at
        stats.records_read += number - first
        return at, number - first

    def _keep(self, piece: bytes, at: int, header: BatchHeader, flags: bytearray | None) -> bytes | None:
        """What stays of a batch: None, it is to be copied as it is; empty, nothing."""
        horizon_ms = header.delete_horizon_ms
        horizon_passed = horizon_ms is not None and horizon_ms <= self._job.now_ms
        if header.is_control:
            useless = self._transactions.on_control(header, records_body(piece, at, header))
            if header.record_count == 0 or (useless and horizon_passed):
                return self._without_records(header)
            self._stats.records_written += header.record_count
            if useless and horizon_ms is None:
                return self._rewrite(piece, at, header, bytes([LIVE]) * header.record_count, set_horizon=True)
            return None
        if header.is_transactional and self._transactions.on_data(header.producer_id, header.last_offset):
            return self._without_records(header)
        if header.record_count == 0:
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
        """The batch has no record left: does it stay for its producer's or its last offset's sake?"""
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

    def _rewrite(self, piece: bytes, at: int, header: BatchHeader, live: bytes, *, set_horizon: bool) -> bytes:
        """A batch of the records that `live` names, and a delete horizon where it is to have one."""
        job = self._job
        if header.codec:
            body = records_body(piece, at, header)
            starts = record_starts(body, 0, len(body), header.record_count)
        else:
            body = piece
            starts = record_starts(body, at + HEADER_SIZE, at + header.size_bytes, header.record_count)
        attributes, base_timestamp = header.attributes, header.base_timestamp
        if set_horizon:
            base_timestamp = job.now_ms + job.delete_retention_ms
            attributes |= DELETE_HORIZON_FLAG
        if attributes & TIMESTAMP_TYPE_FLAG:
            # Every record reads as appended at `max_timestamp`, whatever its delta.
            max_timestamp = header.max_timestamp
            records = b"".join(_runs(body, starts, live))
        elif set_horizon:
            records, max_timestamp = _shifted(body, starts, live, header.base_timestamp, base_timestamp)
        else:
            max_timestamp = _max_timestamp(body, starts, live, header)
            records = b"".join(_runs(body, starts, live))
        batch = assemble(
            compress(header.codec, records) if header.codec else records,
            base_offset=header.base_offset,
            last_offset_delta=header.last_offset_delta,
            record_count=live.count(LIVE),
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            leader_epoch=header.leader_epoch,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
        )
        if len(batch) > header.size_bytes and len(batch) > job.max_message_bytes:
            # As Kafka: it is kept. Fetches answer with one batch at least, however large.
            logger.warning(
                "%s: the batch at offset %d has grown to %d bytes, above max.message.bytes=%d",
                job.partition,
                header.base_offset,
                len(batch),
                job.max_message_bytes,
            )
        return batch


def _runs(body: bytes, starts: list[int], live: bytes) -> list[bytes]:
    """Neighbouring live records as one piece each."""
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


def _shifted(body: bytes, starts: list[int], live: bytes, old_base: int, new_base: int) -> tuple[bytes, int]:
    """The live records relative to another base timestamp, and their largest timestamp."""
    records = []
    max_timestamp = NO_TIMESTAMP
    for number, is_live in enumerate(live):
        if is_live:
            record, delta = shift_timestamp(body, starts[number], starts[number + 1], old_base - new_base)
            records.append(record)
            max_timestamp = max(max_timestamp, old_base + delta)
    return b"".join(records), max_timestamp


def _max_timestamp(body: bytes, starts: list[int], live: bytes, header: BatchHeader) -> int:
    """The largest timestamp of the live records. Mostly the last one has it, and it is the batch's."""
    base = header.base_timestamp
    last = live.rfind(LIVE)
    if base + timestamp_delta(body, starts[last]) == header.max_timestamp:
        return header.max_timestamp
    return max(base + timestamp_delta(body, starts[number]) for number, is_live in enumerate(live) if is_live)
