"""`BatchFilter` with compiled loops. Batches that they do not decide are decided in Python, one by one. Owner: the worker."""

from struct import Struct
from typing import Final

import numpy as np
from crc32c import crc32c

from barnabas.base.errors import Malformed
from barnabas.broker.storage.cleaner.compiled import kernels
from barnabas.broker.storage.cleaner.compiled.kernels import FATE, FIRST_RECORD, FOR_PYTHON, GONE, REPLACED, WHOLE
from barnabas.broker.storage.cleaner.compiled.key_map import BATCHES_MAX, BatchTable
from barnabas.broker.storage.cleaner.job import CleanJob, CleanStats
from barnabas.broker.storage.cleaner.retention import BatchFilter
from barnabas.broker.storage.cleaner.source import unpack_header
from barnabas.broker.storage.cleaner.transactions import TransactionTracker
from barnabas.wire.record_batch import ATTRIBUTES_AT, CONTROL_FLAG, CRC_AT, TRANSACTIONAL_FLAG, BatchHeader
from barnabas.wire.record_kernels import (
    AFTER,
    ATTRIBUTES,
    COUNT,
    MAX_TIMESTAMP,
    POS,
    ByteArray,
    Int64s,
    byte_array,
)

#: Data of at least this size is written at once, without a buffer.
WRITE_THROUGH_BYTES: Final = 64 * 1024
_put_crc: Final = Struct(">I").pack_into


class CompiledBatchFilter(BatchFilter):
    """Behaves like `BatchFilter`."""

    def __init__(self, job: CleanJob, transactions: TransactionTracker, stats: CleanStats) -> None:
        super().__init__(job, transactions, stats)
        self._table = BatchTable()
        self._out = bytearray()
        self._entries: Int64s = np.empty((BATCHES_MAX, kernels.ENTRY_WIDTH), dtype=np.int64)
        self._unsealed: Int64s = np.empty((BATCHES_MAX, 2), dtype=np.int64)
        #: Last offsets of batches that may have to stay even if they are empty: `_must_stay` decides.
        ends = {job.end_offset - 1, *(last.last_data_offset for last in job.producers.values())}
        self._kept_ends: Int64s = np.array(sorted(ends), dtype=np.int64)

    def filter(self, piece: bytes, flags: bytearray | None, first: int = 0) -> tuple[int, int]:
        if flags is None:
            return super().filter(piece, flags, first)
        table, stats = self._table, self._stats
        data = byte_array(piece)
        table.read(piece, data)
        rows = table.rows
        count = int(rows[:, COUNT].sum())
        if count > len(flags) - first:
            raise Malformed(f"the piece has {count} records, but it had {len(flags) - first} in the first pass")
        own = byte_array(flags)[first : first + count]
        useless = self._look_at_transactions(piece)
        kept, for_python = kernels.judge_batches(rows, own, self._kept_ends, self._job.now_ms)
        replaced = bytearray()
        if for_python:
            for row in np.flatnonzero(rows[:, FATE] == FOR_PYTHON).tolist():
                self._decide(piece, row, own, replaced, useless=row in useless)
        self._write(piece, data, own, replaced)
        table.check_end(piece)
        stats.bytes_read += table.size_bytes
        stats.records_read += count
        stats.records_written += kept
        return table.size_bytes, count

    def _look_at_transactions(self, piece: bytes) -> set[int]:
        """Show every transactional batch to the tracker, in order; return the rows of the useless ones."""
        rows = self._table.rows
        attributes = rows[:, ATTRIBUTES]
        rows[:, FATE] = GONE
        useless = set()
        for row in np.flatnonzero(attributes & (CONTROL_FLAG | TRANSACTIONAL_FLAG)).tolist():
            header = self._table.header(piece, row)
            if self._is_useless(piece, int(rows[row, POS]), header):
                useless.add(row)
            if header.is_control or row in useless:
                rows[row, FATE] = FOR_PYTHON
        return useless

    def _decide(self, piece: bytes, row: int, flags: ByteArray, replaced: bytearray, *, useless: bool) -> None:
        """Decide about one batch in Python. Its replacement is appended to `replaced`."""
        fields = self._table.rows[row]
        first = int(fields[FIRST_RECORD])
        header = self._table.header(piece, row)
        own = bytearray(flags[first : first + header.record_count])
        kept = self._keep_known(piece, int(fields[POS]), header, own, useless=useless)
        if kept is None:
            fields[FATE] = WHOLE
        elif not kept:
            fields[FATE] = GONE
        else:
            fields[FATE] = REPLACED
            fields[POS] = len(replaced)
            replaced += kept
            fields[AFTER] = len(replaced)
            fields[MAX_TIMESTAMP] = unpack_header(kept)[8]

    def _write(self, piece: bytes, data: ByteArray, flags: ByteArray, replaced: bytearray) -> None:
        """Write the batches as decided."""
        output, indexes = self.output, self.output.indexes
        while True:
            room = len(piece) + len(replaced)
            if len(self._out) < room:
                self._out = bytearray(room)
            state: Int64s = np.array(
                (output.position, indexes.max_timestamp, indexes.offset_of_max, indexes.next_entry_after, 0, 0, 0),
                dtype=np.int64,
            )
            bad = kernels.write_batches(
                data,
                byte_array(bytes(replaced)),
                self._table.rows,
                flags,
                self._job.now_ms,
                indexes.interval_bytes,
                np.frombuffer(self._out, dtype=np.uint8),
                state,
                self._entries,
                self._unsealed,
            )
            if bad < 0:
                break
            # Extreme timestamps; or the file has changed, and Python raises the precise error.
            before = self._stats.records_written
            self._decide(piece, bad, flags, replaced, useless=False)
            self._stats.records_written = before  # these were counted when the batch was judged
        position, max_timestamp, offset_of_max, _, size, entries, unsealed = state.tolist()
        for entry in self._entries[:entries].tolist():
            last_offset, at, indexes.max_timestamp, indexes.offset_of_max = entry
            indexes.add(at, last_offset, indexes.max_timestamp)
        indexes.max_timestamp, indexes.offset_of_max = max_timestamp, offset_of_max
        with memoryview(self._out) as view:
            for start, end in self._unsealed[:unsealed].tolist():
                _put_crc(self._out, start + CRC_AT, crc32c(view[start + ATTRIBUTES_AT : end]))
            with view[:size] as kept:
                if size >= WRITE_THROUGH_BYTES:
                    output.write_through(kept)
                elif kept:
                    output.write(bytes(kept))
        output.position = position

    def _pick(self, body: bytes, start: int, stop: int, header: BatchHeader, live: bytes) -> tuple[list[bytes], int]:
        out: ByteArray = np.empty(stop - start, dtype=np.uint8)
        end, max_timestamp, _ = kernels.pick_records(
            byte_array(body), start, stop, byte_array(live), False, header.base_timestamp, header.max_timestamp, out, 0
        )
        if end < 0:
            return super()._pick(body, start, stop, header, live)
        return [out[:end].tobytes()], header.max_timestamp if header.timestamp_type else max_timestamp
