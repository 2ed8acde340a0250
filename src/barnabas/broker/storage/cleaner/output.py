"""Writes a `.cleaned` segment: batches through a buffer, and indexes on the way. Owner: the worker."""

from barnabas.base.config.log_config import LogConfig
from barnabas.base.host.disk import Disk, ReadableBuffer, write_fully
from barnabas.broker.storage.cleaner.source import ReadThrottle
from barnabas.broker.storage.replacement import create_cleaned, finish_cleaned
from barnabas.broker.storage.time_index import TimeIndex
from barnabas.broker.storage.txn_index import AbortedTxn
from barnabas.wire.record_batch import HEADER_SIZE


def index_room_bytes(source_bytes: int, interval_bytes: int) -> int:
    """Return more bytes than an index of a segment of this size needs.

    An index is a sparse file until it is finished, and the first access to a page makes the kernel read megabytes of zeros
    around it: so the file is no larger than necessary. Batches that get a delete horizon grow a little, so twice the entries
    fit.
    """
    return 2 * (source_bytes // max(interval_bytes, HEADER_SIZE) + 2) * TimeIndex.ENTRY_SIZE


class CleanedWriter:
    """Call `write` for all batches, in order; then `finish`, or `discard` if the job ends early.

    The caller updates `indexes` and `position`: it has the batch's header anyway, so that costs least.
    """

    def __init__(
        self,
        directory: str,
        base_offset: int,
        *,
        disk: Disk,
        config: LogConfig,
        now_ms: int,
        buffer_bytes: int,
        throttle: ReadThrottle,
    ) -> None:
        self._disk = disk
        self._segment = create_cleaned(directory, base_offset, disk=disk, config=config, now_ms=now_ms)
        self.indexes = self._segment.index_builder()
        self._buffer_bytes = buffer_bytes
        self._throttle = throttle
        self._pending: list[ReadableBuffer] = []
        self._pending_bytes = 0
        self._written = 0
        #: Position of the next batch.
        self.position = 0

    def write(self, data: ReadableBuffer) -> None:
        """Write whole batches. `data` must not change afterwards."""
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= self._buffer_bytes:
            self._flush()

    def write_through(self, data: ReadableBuffer) -> None:
        """Like `write`, for data that may change afterwards. Unbuffered: for large data only."""
        self._pending.append(data)
        self._flush()

    def _flush(self) -> None:
        data = self._pending[0] if len(self._pending) == 1 else b"".join(self._pending)
        write_fully(self._disk, self._segment.file.fd, data, self._written)
        self._written += len(data)
        self._throttle.spent(len(data))
        self._pending.clear()
        self._pending_bytes = 0

    def finish(self, aborted: list[AbortedTxn], *, modified_ns: int) -> int:
        """Finish the segment: all is on disk, with the modification time of the replaced one. Return the size in bytes."""
        if self._pending:
            self._flush()
        segment = self._segment
        segment.size_bytes = self._written
        segment.take_indexes(self.indexes)
        for txn in aborted:
            segment.txn_index.append(txn)
        finish_cleaned(segment, self._disk)
        # As in Kafka: if records have no timestamps, retention uses the file's modification time.
        self._disk.set_modified_ns(segment.log_path, modified_ns)
        return self._written

    def discard(self) -> None:
        self._segment.abandon()
        self._segment.delete_files()
