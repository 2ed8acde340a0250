"""Writing a `.cleaned` segment: batches through a buffer, indexes as they go. Owner: the worker."""

from barnabas.base.config.log_config import LogConfig
from barnabas.base.host.disk import Disk, ReadableBuffer, write_fully
from barnabas.broker.storage.cleaner.source import ReadThrottle
from barnabas.broker.storage.replacement import create_cleaned, finish_cleaned
from barnabas.broker.storage.time_index import TimeIndex
from barnabas.broker.storage.txn_index import AbortedTxn
from barnabas.wire.record_batch import HEADER_SIZE


def index_room_bytes(source_bytes: int, interval_bytes: int) -> int:
    """More than an index needs of what stays of so many bytes.

    An index is a sparse file until it is finished, and a page that is touched for the first time has the kernel read
    megabytes of nothing around it: the file is no larger than it must be. Batches that get a delete horizon grow a
    little: twice the entries have room.
    """
    return 2 * (source_bytes // max(interval_bytes, HEADER_SIZE) + 2) * TimeIndex.ENTRY_SIZE


class CleanedWriter:
    """`write` for all batches, in order; then `finish`. `discard` where the job ends early.

    Whoever writes keeps `indexes` and `position` up: with a batch at hand anyway, that costs the least.
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
        #: Where the next batch will begin.
        self.position = 0

    def write(self, data: ReadableBuffer) -> None:
        """Bytes of whole batches. `data` must not change afterwards."""
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= self._buffer_bytes:
            self._flush()

    def write_through(self, data: ReadableBuffer) -> None:
        """`write` of what may change afterwards. Not buffered: of much data only."""
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
        """All is on disk, and as old as what it replaces: the size in bytes."""
        if self._pending:
            self._flush()
        segment = self._segment
        segment.size_bytes = self._written
        segment.take_indexes(self.indexes)
        for txn in aborted:
            segment.txn_index.append(txn)
        finish_cleaned(segment, self._disk)
        # Kafka does so too: where records have no timestamps, retention goes by the file's.
        self._disk.set_modified_ns(segment.log_path, modified_ns)
        return self._written

    def discard(self) -> None:
        self._segment.abandon()
        self._segment.delete_files()
