"""One segment of a log: a file of record batches, and the sparse indexes into it.

Owner: the event loop, except for a log that is being loaded, whose segments belong to the loading thread. `size_bytes`
determines where the file ends: bytes after it (a preallocated tail, a failed write) do not exist.

Files open lazily. The active segment keeps its log file open; the `SegmentPool` closes inactive ones when there are too
many. An index is checked when it is opened and at every use; an impossible one is rebuilt from the log.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Final

from barnabas.base.host.disk import TMP_SUFFIX, Disk, ReadableBuffer, write_fully
from barnabas.broker.storage import names
from barnabas.broker.storage.file_handle import OpenFile, SegmentPool
from barnabas.broker.storage.index_build import IndexBuilder, build_aside
from barnabas.broker.storage.index_file import CorruptIndex
from barnabas.broker.storage.index_under_repair import IndexUnderRepair
from barnabas.broker.storage.log_types import RELATIVE_OFFSET_MAX
from barnabas.broker.storage.offset_index import OffsetIndex
from barnabas.broker.storage.segment_batches import (
    BatchAt,
    CorruptSegment,
    SegmentBatches,
    find_from,
    header_at,
    last_header,
    short_scan,
)
from barnabas.broker.storage.time_index import NO_TIMESTAMP, TimeIndex, TimestampOffset
from barnabas.broker.storage.txn_index import TransactionIndex
from barnabas.wire.record_batch import BatchHeader

logger = logging.getLogger(__name__)

#: A segment is not rolled for its records' timestamps before it reaches this age or this size.
ROLLED_AGE_MS_MIN: Final = 1_000
ROLLED_BYTES_MIN: Final = 1 << 20
#: Appends whose positions a segment remembers.
TAIL_MAX: Final = 256
#: The largest timestamp is in the time index, and was not looked up yet.
UNKNOWN: Final = -2


class Segment:
    """Batches of ascending offsets, `base_offset` at or below the first. Appends go to the end; other methods only read."""

    __slots__ = (
        "_disk",
        "_file",
        "_first_timestamp",
        "_index_full",
        "_max_timestamp",
        "_offset_index",
        "_offset_of_max_timestamp",
        "_since_index_entry",
        "_time_index",
        "_txn_index",
        "base_offset",
        "created_ms",
        "directory",
        "index_interval_bytes",
        "is_active",
        "is_under_repair",
        "max_index_bytes",
        "pool",
        "preallocated",
        "repair_waiters",
        "roll_jitter_ms",
        "size_bytes",
        "tail",
        "transient",
    )

    def __init__(
        self,
        directory: str,
        base_offset: int,
        *,
        disk: Disk,
        created_ms: int,
        size_bytes: int = 0,
        index_interval_bytes: int,
        max_index_bytes: int,
        transient: str = "",
        pool: SegmentPool | None = None,
    ) -> None:
        self.directory = directory
        self.base_offset = base_offset
        #: "", or `.cleaned`, `.swap`, `.deleted`: the end of the files' names.
        self.transient = transient
        self.size_bytes = size_bytes
        self.index_interval_bytes = index_interval_bytes
        self.max_index_bytes = max_index_bytes
        self.created_ms = created_ms
        self.roll_jitter_ms = 0
        self.preallocated = False
        self.is_active = False
        #: Whether a thread rebuilds the indexes; until it is done there are none.
        self.is_under_repair = False
        self.repair_waiters: list[Callable[[], None]] = []
        #: None while the log is being loaded: the pool belongs to the event loop.
        self.pool = pool
        self._disk = disk
        self._file: OpenFile | None = None
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._txn_index: TransactionIndex | None = None
        self._since_index_entry = 0
        #: First offset -> position of the latest appends: most readers are there, and need no index. A truncation clears it.
        self.tail: dict[int, int] = {}
        self._index_full = False
        self._max_timestamp = UNKNOWN if size_bytes else NO_TIMESTAMP
        self._offset_of_max_timestamp = base_offset
        #: Max timestamp of the first batch, from which `segment.ms` counts; None until looked up.
        self._first_timestamp: int | None = None

    def __repr__(self) -> str:
        return f"Segment({names.log_file(self.base_offset, self.transient)}, {self.size_bytes} bytes)"

    # -- files

    @property
    def log_path(self) -> str:
        return f"{self.directory}/{names.log_file(self.base_offset, self.transient)}"

    def paths(self) -> list[str]:
        """Return every file that this segment may have, the log first."""
        stem = f"{self.directory}/{names.offset_prefix(self.base_offset)}"
        return [f"{stem}{suffix}{self.transient}" for suffix in (names.LOG_SUFFIX, *names.INDEX_SUFFIXES)]

    def create_files(self, *, preallocate_bytes: int = 0) -> None:
        """Create an empty log and empty indexes. The first entry allocates their room: an idle partition takes none."""
        self._file = self._open_log(create=True)
        try:
            if preallocate_bytes:
                self._disk.truncate(self._file.fd, preallocate_bytes)
                self.preallocated = True
            for path in self.paths()[1:3]:
                self._disk.close(self._disk.open(path, create=True))
        except OSError:
            self.release_files()
            raise

    def _open_log(self, *, create: bool = False) -> OpenFile:
        path = self.log_path
        return OpenFile(self._disk, self._disk.open(path, create=create), path)

    @property
    def file(self) -> OpenFile:
        opened = self._file
        if opened is None:
            opened = self._file = self._open_log()
        if not self.is_active and self.pool is not None:
            self.pool.touch(self)
        return opened

    def pin_if_open(self) -> OpenFile | None:
        """Return the log file, pinned, if it is open: writes through this descriptor are synced through it."""
        if self._file is not None:
            self._file.pin()
        return self._file

    @property
    def is_pinned(self) -> bool:
        return self._file is not None and self._file.pins > 0

    @property
    def offset_index(self) -> OffsetIndex:
        index = self._offset_index
        if index is None:
            self._open_indexes()
            index = self._offset_index
            assert index is not None
        elif not self.is_active and self.pool is not None:
            self.pool.touch(self)
        return index

    @property
    def time_index(self) -> TimeIndex:
        if self._time_index is None:
            self._open_indexes()
            assert self._time_index is not None
        return self._time_index

    @property
    def txn_index(self) -> TransactionIndex:
        if self._txn_index is None:
            path = f"{self.directory}/{names.txn_index_file(self.base_offset, self.transient)}"
            self._txn_index = TransactionIndex(path, self.base_offset, disk=self._disk)
        return self._txn_index

    def forget_txn_index(self) -> None:
        """Drop the open index: its file was replaced, and the next use reads it again."""
        self._txn_index = None

    def _open_indexes(self) -> None:
        """Open and check both indexes, or neither."""
        if self.is_under_repair:
            raise IndexUnderRepair(self)
        try:
            self._open_and_check_indexes()
        except OSError:
            self._release_indexes()  # one of them may be open: its map keeps a descriptor
            raise

    def _open_and_check_indexes(self) -> None:
        """Open both indexes; repair them if one is missing or impossible."""
        missing = [path for path in self.paths()[1:3] if not self._disk.exists(path)]
        offset_index, time_index = self._make_indexes()
        if not self.is_active and self.pool is not None:
            self.pool.touch(self)
        if missing:
            self._repair(f"{missing[0]} is missing")
        else:
            try:
                offset_index.sanity_check()
                time_index.sanity_check()
                if self._max_timestamp == UNKNOWN:
                    self._check_time_index(time_index)
            except CorruptIndex as error:
                self._repair(str(error))
        if self.is_active:
            self._make_room_in_indexes()

    def _check_time_index(self, time_index: TimeIndex) -> None:
        """Check the last entry, on which retention relies: the batch that it names must exist and have that timestamp."""
        timestamp, offset = time_index.last_entry
        try:
            found = (
                self.find(offset) if time_index.entries else find_from(self.file, 0, self.size_bytes, self.base_offset)
            )
            header = None if found is None else header_at(self.file, found.position, self.size_bytes)
        except CorruptSegment as error:
            # The log itself is damaged, and an index that is built from it would end at the damage.
            logger.error(
                "[segment %s] the log is damaged, its time index cannot be checked: %s", time_index.path, error
            )
            return
        if header is None:
            raise CorruptIndex(f"{time_index.path}: offset {offset} of the last entry is not in the segment")
        if header.max_timestamp != timestamp:
            raise CorruptIndex(
                f"{time_index.path}: the last entry has timestamp {timestamp}, the batch at {offset} {header.max_timestamp}"
            )

    def check_indexes(self) -> None:
        """Open the indexes, which rebuilds impossible ones."""
        if self._offset_index is None:
            self._open_indexes()

    def _make_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        self._offset_index, self._time_index = indexes = self.new_indexes()
        return indexes

    def new_indexes(self, suffix: str = "") -> tuple[OffsetIndex, TimeIndex]:
        """Return unopened index objects. `suffix` is added to the names of their files."""
        _, index_path, time_path, _ = self.paths()
        base, room, disk = self.base_offset, self.max_index_bytes, self._disk
        return (
            OffsetIndex(index_path + suffix, base, max_index_bytes=room, disk=disk),
            TimeIndex(time_path + suffix, base, max_index_bytes=room, disk=disk),
        )

    def _make_room_in_indexes(self) -> None:
        self.offset_index.preallocate()
        self.time_index.preallocate()
        self._index_full = self.offset_index.is_full or self.time_index.is_full

    def release_files(self) -> None:
        """Close descriptors and maps. The next use opens them again. Pinned ranges stay readable."""
        self._release_indexes()
        self._txn_index = None
        if self._file is not None:
            self._file.let_go()
            self._file = None

    def _release_indexes(self) -> None:
        if self._offset_index is not None:
            self._offset_index.release()
            self._offset_index = None
        if self._time_index is not None:
            self._time_index.release()
            self._time_index = None

    # -- becoming active, inactive, closed, deleted

    def become_active(self) -> None:
        self.is_active = True
        if self.pool is not None:
            self.pool.forget(self)
        if self._offset_index is not None:
            self._make_room_in_indexes()

    def become_inactive(self) -> None:
        """Complete the segment: the largest timestamp goes to the time index, for retention; the files shrink to their
        content."""
        self._finish_indexes()
        if self.preallocated:
            self._disk.truncate(self.file.fd, self.size_bytes)
            self.preallocated = False
        self.is_active = False
        self.tail.clear()
        if self.pool is not None:
            self.pool.touch(self)

    def _finish_indexes(self) -> None:
        last = self.time_index.last_entry  # opens both indexes, so that they have room
        self._index_full = True  # if the rest fails, the next append tries to roll again: trimmed indexes have no room
        if self.max_timestamp > last.timestamp:
            if self._time_index is not None and self._time_index.length_bytes == self._time_index.size_bytes:
                self.time_index.preallocate()
            self.time_index.maybe_append(self.max_timestamp, self.offset_of_max_timestamp, skip_full_check=True)
        self.offset_index.trim_to_valid_size()
        self.time_index.trim_to_valid_size()

    def complete(self) -> None:
        """Complete the active segment at a clean shutdown: finish the indexes, and shrink the files to their content."""
        if self.size_bytes and (self._max_timestamp != UNKNOWN or self._offset_index is not None):
            self._finish_indexes()
        if self.preallocated:
            self._disk.truncate(self.file.fd, self.size_bytes)
            self.preallocated = False

    def abandon(self) -> None:
        """Close without writing: for a failed directory, and for files that will be deleted."""
        if self.pool is not None:
            self.pool.forget(self)
        self.release_files()

    def change_transient(self, transient: str) -> None:
        """Rename the files, the log first, as recovery expects. Open files and maps stay valid."""
        before = self.paths()
        self.transient = transient
        if self._offset_index is not None and self._time_index is not None:
            # Their maps stay valid; only the names change, which a flush opens.
            self._offset_index.path, self._time_index.path = self.paths()[1:3]
        self._txn_index = None
        for source, target in zip(before, self.paths(), strict=True):
            self._disk.rename_if_exists(source, target)

    def delete_files(self) -> None:
        """Delete the files. Any thread, once only `self.directory` and the names are still used."""
        for path in self.paths():
            self._disk.unlink(path)

    def moved_to(self, directory: str) -> None:
        """Follow a rename of the partition's directory."""
        self.directory = directory
        if self._offset_index is not None and self._time_index is not None:
            self._offset_index.update_parent_dir(directory)
            self._time_index.update_parent_dir(directory)
        self._txn_index = None

    # -- timestamps

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of any record, `NO_TIMESTAMP` if there is none."""
        if self._max_timestamp == UNKNOWN:
            self._max_timestamp, self._offset_of_max_timestamp = self.time_index.last_entry
        return self._max_timestamp

    @property
    def offset_of_max_timestamp(self) -> int:
        """Last offset of the first batch that has the largest timestamp."""
        _ = self.max_timestamp  # looks both up
        return self._offset_of_max_timestamp

    @property
    def largest_timestamp(self) -> int:
        """For retention: `max_timestamp`, or the time of the file's last write if records have no timestamps."""
        timestamp = self.max_timestamp
        return timestamp if timestamp >= 0 else self._disk.modified_ms(self.log_path)

    @property
    def first_timestamp(self) -> int:
        """Max timestamp of the first batch; `NO_TIMESTAMP` if there is no batch yet."""
        if self._first_timestamp is None:
            if self.size_bytes == 0:
                return NO_TIMESTAMP
            self._first_timestamp = header_at(self.file, 0, self.size_bytes).max_timestamp
        return self._first_timestamp

    # -- writing

    def should_roll(
        self, size_bytes: int, max_timestamp: int, last_offset: int, now_ms: int, segment_bytes: int, roll_ms: int
    ) -> bool:
        """Whether an append of `size_bytes` belongs into a new segment."""
        size = self.size_bytes
        if size + size_bytes > segment_bytes or self._index_full:
            return True
        if not 0 <= last_offset - self.base_offset <= RELATIVE_OFFSET_MAX:
            return True
        if size == 0:
            return False
        first = self._first_timestamp
        if first is None:
            first = self.first_timestamp
        waited_ms = max_timestamp - first if first >= 0 else now_ms - self.created_ms
        if waited_ms <= roll_ms - self.roll_jitter_ms:
            return False
        # Producers choose the timestamps. By sending ever later ones, a producer could force a new segment for each batch.
        return size >= ROLLED_BYTES_MIN or not 0 <= now_ms - self.created_ms < ROLLED_AGE_MS_MIN

    def append(
        self, data: ReadableBuffer, first_offset: int, last_offset: int, max_timestamp: int, offset_of_max: int
    ) -> None:
        """Write whole batches to the end of the file, and add an index entry if enough bytes came since the last one.

        One entry per call, as in Kafka: it holds the position of the first batch of the call and the end of the last one.
        """
        position = self.size_bytes
        size = len(data)
        opened = self._file or self.file
        entry_due = self._since_index_entry > self.index_interval_bytes
        # Steps that need a descriptor come before the write: no step after the write may fail.
        if self._offset_index is None and (entry_due or self._max_timestamp == UNKNOWN):
            self._open_indexes()
        if entry_due and not self._index_full:  # full: the next append goes to another segment
            self.offset_index.reserve_entry()
            self.time_index.reserve_entry()
        written = self._disk.pwrite(opened.fd, data, position)
        if written < size:
            write_fully(self._disk, opened.fd, memoryview(data)[written:], position + written)
        self.size_bytes = position + size
        tail = self.tail
        if len(tail) >= TAIL_MAX:
            tail.clear()
        tail[first_offset] = position
        if position == 0:
            self._first_timestamp = max_timestamp
        if self._max_timestamp == UNKNOWN:
            self._max_timestamp, self._offset_of_max_timestamp = self.time_index.last_entry
        if max_timestamp > self._max_timestamp:
            self._max_timestamp = max_timestamp
            self._offset_of_max_timestamp = offset_of_max
        if entry_due and not self._index_full:
            self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(self._max_timestamp, self._offset_of_max_timestamp)
            self._index_full = self.offset_index.is_full or self.time_index.is_full
            self._since_index_entry = 0
        self._since_index_entry += size

    def truncate_to(self, offset: int, largest: TimestampOffset) -> int:
        """Drop every batch that reaches `offset` or beyond; return the number of bytes dropped.

        `largest`: the largest timestamp of the remaining batches, as `largest_timestamp_of` finds it.
        """
        found = self.find(offset)
        self.tail.clear()
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        dropped = 0
        if found is not None:
            dropped = self.size_bytes - found.position
            opened = self.file
            self._disk.truncate(opened.fd, found.position)
            self.size_bytes = found.position
            self.preallocated = False
            if opened.pins:
                # A response that sends from it must not send later writes; readers open the file again.
                opened.cut_at = found.position
                opened.let_go()
                self._file = None
        if self.size_bytes == 0:
            self._first_timestamp = None
            self._max_timestamp = NO_TIMESTAMP
            self._offset_of_max_timestamp = self.base_offset
        elif dropped:
            self._max_timestamp, self._offset_of_max_timestamp = largest
        self._since_index_entry = 0
        if self.is_active:
            self._make_room_in_indexes()
        return dropped

    def unindexed_below(self, offset: int) -> tuple[TimestampOffset, SegmentBatches]:
        """Return the last entry of the time index below `offset`, and the batches after it: the input of
        `largest_timestamp_of`. There may be many batches if timestamps do not ascend."""
        entry = self.time_index.last_below(offset)
        return entry, self.part_from(self.offset_index.lookup_position(entry.offset))

    def _repair(self, why: str) -> None:
        """Rebuild damaged indexes. If the event loop owns this segment, a thread does it, and this raises `IndexUnderRepair`.

        The indexes of an active segment were checked when the log was loaded, and change with each append: they are rebuilt
        at once.
        """
        if self.is_active or self.pool is None or self.pool.repair is None:
            self.rebuild_indexes(why)
            return
        self._release_indexes()
        self.is_under_repair = True
        try:
            self.pool.repair(self, why)
        except BaseException:
            self.is_under_repair = False  # no descriptor was free, for example: the next use begins the repair again
            raise
        if self._offset_index is None:
            raise IndexUnderRepair(self)

    def take_repaired(self, indexes: tuple[OffsetIndex, TimeIndex], builder: IndexBuilder) -> None:
        """Rename the rebuilt indexes to the names of the old ones."""
        for index, path in zip(indexes, self.paths()[1:3], strict=True):
            self._disk.rename(index.path, path)
        self._make_indexes()
        self._max_timestamp, self._offset_of_max_timestamp = builder.max_timestamp, builder.offset_of_max

    def rebuild_indexes(self, why: str) -> None:
        """Rebuild the offset and time index from the log. Blocks."""
        logger.warning("[segment %s] rebuilding the indexes, nothing to do: %s", self.log_path, why)
        if self.is_active:
            # In place: the next flush syncs them, and after a crash before it they are read from the log again.
            builder = self.index_builder(self.size_bytes)
            builder.add_all(self.part_from(0))
            self.take_indexes(builder)
            return
        self._release_indexes()
        indexes = self.new_indexes(TMP_SUFFIX)
        self.take_repaired(indexes, build_aside(indexes, self.part_from(0), self.index_interval_bytes, self._disk))

    def index_builder(self, size_bytes: int | None = None) -> IndexBuilder:
        """Empty the indexes and return a builder for them; pass it to `take_indexes`. `size_bytes`: see `IndexBuilder`."""
        if self._offset_index is None or self._time_index is None:
            self._make_indexes()
        assert self._offset_index is not None
        assert self._time_index is not None
        return IndexBuilder(self._offset_index, self._time_index, self.index_interval_bytes, size_bytes)

    def take_indexes(self, builder: IndexBuilder) -> None:
        self._max_timestamp, self._offset_of_max_timestamp = builder.max_timestamp, builder.offset_of_max
        builder.finish(trim=not self.is_active)

    # -- reading

    def headers(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of every batch from `position` on, where a batch begins."""
        return self.part_from(position).headers()

    def part_from(self, position: int) -> SegmentBatches:
        return SegmentBatches(self.file, position, self.size_bytes)

    def find(self, offset: int) -> BatchAt | None:
        """Return the first batch that reaches `offset`; None if all end before it."""
        position = self.offset_index.lookup_position(offset)
        if not position:
            return find_from(self.file, 0, self.size_bytes, offset)
        # Trust the index only if it points to a real batch, one that ends at or before `offset` (or holds it). Otherwise
        # rebuild it and look again.
        try:
            if position < self.size_bytes:
                found = find_from(self.file, position, self.size_bytes, offset)
                base = found.base_offset if found is not None and found.position == position else self.base_offset
                if base <= offset and (found is None or found.base_offset >= self.base_offset):
                    return found
            why = f"the entry for offset {offset} points to position {position}, which is not the start of such a batch"
        except CorruptSegment as error:
            if error.position != position:
                raise  # the entry is right, the log itself is damaged after it
            why = f"the entry for offset {offset} points to position {position}: {error}"
        self._repair(why)
        return find_from(self.file, self.offset_index.lookup_position(offset), self.size_bytes, offset)

    def last_boundary(self, start: BatchAt, limit: int) -> tuple[int, int]:
        """Return (position, offset) after the last batch that ends at or before position `limit`; `start` does."""
        position = max(self.offset_index.floor_position(limit - 1), start.position)
        end, upper = start.position + start.size_bytes, start.last_offset + 1
        for at, (base, size, last) in short_scan(self.file, position, limit, self.size_bytes):
            if at + size > limit:
                # It may be the first batch of the scan: then the previous batch ends at its start.
                return (at, base) if at > start.position else (end, upper)
            end, upper = at + size, last + 1
        return end, upper

    def next_offset(self) -> int:
        """Return the offset after the last batch; the base offset if there is none. `CorruptSegment` as in `last_batch`."""
        last = self.last_batch()
        return self.base_offset if last is None else last.next_offset

    def last_batch(self) -> BatchHeader | None:
        """Scan from the last index entry to the last batch. Raises `CorruptSegment` for invalid bytes after that entry."""
        index = self.offset_index
        start = index.lookup_position(index.last_offset) if index.entries else 0
        if start:
            try:
                return last_header(self.file, start, self.size_bytes)
            except CorruptSegment as error:
                if error.position != start:
                    raise
                self._repair(f"the last entry is wrong: {error}")
                index = self.offset_index
                start = index.lookup_position(index.last_offset) if index.entries else 0
        return last_header(self.file, start, self.size_bytes)

    def batch_bytes(self, position: int, size_bytes: int) -> bytes:
        return self.file.read(position, size_bytes)
