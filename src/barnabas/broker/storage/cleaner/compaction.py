"""One cleaning of one log: two passes over its segments, which write `.cleaned` segments. Any thread or process.

It only reads the given segments and writes `.cleaned` files beside them; the caller swaps them in.
"""

import logging
import time
from collections.abc import Callable

from barnabas.base.config.log_config import LogConfig
from barnabas.base.host.disk import REAL_DISK, Disk
from barnabas.broker.storage import names
from barnabas.broker.storage.cleaner.engine import PYTHON, Engine, KeyMap
from barnabas.broker.storage.cleaner.grouping import GroupMember, group_segments
from barnabas.broker.storage.cleaner.job import CleanJob, CleanStats, Finished, GroupCleaned, Report, SourceSegment
from barnabas.broker.storage.cleaner.output import CleanedWriter, index_room_bytes
from barnabas.broker.storage.cleaner.retention import BatchFilter
from barnabas.broker.storage.cleaner.source import ReadThrottle, SegmentReader
from barnabas.broker.storage.cleaner.transactions import TransactionTracker
from barnabas.broker.storage.txn_index import AbortedTxn, TransactionIndex

logger = logging.getLogger(__name__)


def clean_log(
    job: CleanJob,
    report: Callable[[Report], None],
    *,
    engine: Engine = PYTHON,
    disk: Disk = REAL_DISK,
    throttle: ReadThrottle | None = None,
    clock_s: Callable[[], float] = time.monotonic,
) -> None:
    """Report each group once its `.cleaned` segment is durable, then `Finished`.

    Raises `OSError`, and `Malformed` for invalid data; then no unfinished file remains.
    """
    _Cleaning(job, report, engine, disk, throttle or ReadThrottle(job.io_bytes_per_second)).run(clock_s)


class _Cleaning:
    def __init__(
        self, job: CleanJob, report: Callable[[Report], None], engine: Engine, disk: Disk, throttle: ReadThrottle
    ) -> None:
        self._job = job
        self._report = report
        self._engine = engine
        self._disk = disk
        self._throttle = throttle
        self._stats = CleanStats()
        self._aborted = self._aborted_transactions()
        #: Positions of the dirty part's start and the mapped part's end: segment's base offset -> position in its file.
        self._dirty_from: dict[int, int] = {}
        self._mapped_to: dict[int, int] = {}

    def run(self, clock_s: Callable[[], float]) -> None:
        began_s = clock_s()
        job, stats = self._job, self._stats
        # The first pass begins in the middle, and would miss the markers of earlier transactions.
        dirty_aborted = [txn for txn in self._aborted if txn.last_offset >= job.first_dirty_offset]
        dirty_map = self._engine.key_map(job.dedupe_buffer_bytes, TransactionTracker(dirty_aborted))
        next_dirty = self._build(dirty_map)
        stats.buffer_utilization = dirty_map.utilization
        dirty_map.close()
        stats.map_s = clock_s() - began_s
        members = [self._member(segment) for segment in job.segments if segment.base_offset < next_dirty]
        groups = group_segments(members, segment_bytes=job.segment_bytes, segment_index_bytes=job.segment_index_bytes)
        transactions = TransactionTracker(self._aborted)
        batches = self._engine.batch_filter(job, transactions, stats)
        number = 0
        for group in groups:
            number = self._clean_group(group, batches, dirty_map, transactions, number)
            self._report(GroupCleaned(group[0].base_offset, tuple(member.base_offset for member in group)))
        stats.invalid_records = dirty_map.without_key
        stats.total_s = clock_s() - began_s
        self._report(Finished(next_dirty, stats))

    def _aborted_transactions(self) -> list[AbortedTxn]:
        """Return the aborted transactions that began below the end. Their markers may be in later segments."""
        job = self._job
        found: list[AbortedTxn] = []
        for base in (*(segment.base_offset for segment in job.segments), *job.later_segments):
            index = TransactionIndex(f"{job.directory}/{names.txn_index_file(base)}", base, disk=self._disk)
            found.extend(txn for txn in index.entries() if txn.first_offset < job.end_offset)
        return found

    # -- the first pass

    def _build(self, dirty_map: KeyMap) -> int:
        """Fill the map from the first dirty offset on; return the first offset that it does not cover."""
        job = self._job
        for segment in job.segments:
            if segment.end_offset <= job.first_dirty_offset:
                continue
            with self._reader(segment) as reader:
                start = 0
                if segment.base_offset < job.first_dirty_offset:
                    start = reader.position_of(job.first_dirty_offset)
                self._dirty_from[segment.base_offset] = start
                self._mapped_to[segment.base_offset] = reader.feed(dirty_map.index, start)
            if dirty_map.is_full:
                return max(dirty_map.latest_offset + 1, segment.base_offset, job.first_dirty_offset)
        return job.end_offset

    def _reader(self, segment: SourceSegment | GroupMember) -> SegmentReader:
        return SegmentReader(
            self._disk,
            f"{self._job.directory}/{names.log_file(segment.base_offset)}",
            segment.size_bytes,
            buffer_bytes=self._job.io_buffer_bytes,
            throttle=self._throttle,
        )

    # -- the second pass

    def _member(self, segment: SourceSegment) -> GroupMember:
        directory, base = self._job.directory, segment.base_offset
        return GroupMember(
            base,
            segment.end_offset,
            segment.size_bytes,
            self._size(f"{directory}/{names.index_file(base)}"),
            self._size(f"{directory}/{names.time_index_file(base)}"),
        )

    def _size(self, path: str) -> int:
        try:
            return self._disk.size(path)
        except FileNotFoundError:
            return 0  # the index was lost, and is rebuilt at its next use

    def _clean_group(
        self,
        group: list[GroupMember],
        batches: BatchFilter,
        dirty_map: KeyMap,
        transactions: TransactionTracker,
        number: int,
    ) -> int:
        """Write one segment; return the number of the first dirty record after it."""
        job = self._job
        output = CleanedWriter(
            job.directory,
            group[0].base_offset,
            disk=self._disk,
            config=LogConfig(
                index_interval_bytes=job.index_interval_bytes,
                segment_index_bytes=min(
                    job.segment_index_bytes,
                    index_room_bytes(sum(member.size_bytes for member in group), job.index_interval_bytes),
                ),
            ),
            now_ms=job.now_ms,
            buffer_bytes=job.io_buffer_bytes,
            throttle=self._throttle,
        )
        batches.output = output
        try:
            modified_ns = 0
            for member in group:
                with self._reader(member) as reader:
                    number = self._filter(member, reader, batches, dirty_map, number)
                    modified_ns = self._disk.modified_ns(reader.path)
            self._stats.bytes_written += output.finish(transactions.retained, modified_ns=modified_ns)
        except Exception:
            output.discard()
            raise
        transactions.retained.clear()
        return number

    def _filter(
        self, member: GroupMember, reader: SegmentReader, batches: BatchFilter, dirty_map: KeyMap, number: int
    ) -> int:
        """Filter the clean part, the dirty part in the map, and the part after it, each by its own rule."""
        end = member.size_bytes
        dirty_from = self._dirty_from.get(member.base_offset, end)
        mapped_to = self._mapped_to.get(member.base_offset, end)
        at = number

        def clean(piece: bytes) -> int:
            return batches.filter(piece, dirty_map.flags_of_clean(piece))[0]

        def dirty(piece: bytes) -> int:
            nonlocal at
            size, count = batches.filter(piece, dirty_map.flags, at)
            at += count
            return size

        reader.feed(clean, 0, dirty_from)
        reader.feed(dirty, dirty_from, mapped_to)
        reader.feed(lambda piece: batches.filter(piece, None)[0], mapped_to, end)
        return at
