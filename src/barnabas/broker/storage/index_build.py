"""Builds the offset and time index of a segment, batch by batch, as appends would have written them."""

import logging

from barnabas.base.host.disk import Disk
from barnabas.broker.storage.log_types import RELATIVE_OFFSET_MAX
from barnabas.broker.storage.offset_index import OffsetIndex
from barnabas.broker.storage.segment_batches import CorruptSegment, SegmentBatches
from barnabas.broker.storage.time_index import NO_TIMESTAMP, TimeIndex

logger = logging.getLogger(__name__)


def build_aside(
    indexes: tuple[OffsetIndex, TimeIndex], batches: SegmentBatches, interval_bytes: int, disk: Disk
) -> "IndexBuilder":
    """Build both indexes of a segment in temporary files, which are on disk before they get their names. A power cut in between
    leaves the old indexes, in which the damage still shows. Writing over the old ones could leave a mix without visible damage.
    Blocks; any thread."""
    for index in indexes:
        disk.unlink(index.path)
    builder = IndexBuilder(*indexes, interval_bytes, batches.size_bytes)
    builder.add_all(batches)
    builder.finish(trim=True)
    for index in indexes:
        index.release()
        disk.fsync_path(index.path)
    return builder


class IndexBuilder:
    """Empties both indexes, then takes every batch of the segment in order, then `finish`.

    Callers may leave out a batch that begins at or before `next_entry_after` and has no timestamp above `max_timestamp`.
    """

    __slots__ = (
        "_offset_index",
        "_time_index",
        "interval_bytes",
        "max_timestamp",
        "next_entry_after",
        "offset_of_max",
    )

    def __init__(
        self, offset_index: OffsetIndex, time_index: TimeIndex, interval_bytes: int, size_bytes: int | None = None
    ) -> None:
        """`size_bytes`: the size of the segment, if known. After an unclean stop thousands of small segments are read, and room
        that their indexes cannot need would cost more than everything else."""
        entries_max = None if size_bytes is None else size_bytes // (interval_bytes + 1)
        offset_index.reset(entries_max)
        time_index.reset(None if entries_max is None else entries_max + 1)
        self._offset_index = offset_index
        self._time_index = time_index
        self.interval_bytes = interval_bytes
        #: A batch that begins past this position gets an index entry.
        self.next_entry_after = interval_bytes
        self.max_timestamp = NO_TIMESTAMP
        self.offset_of_max = offset_index.base_offset

    def add(self, position: int, last_offset: int, max_timestamp: int) -> None:
        if max_timestamp > self.max_timestamp:
            self.max_timestamp, self.offset_of_max = max_timestamp, last_offset
        if position > self.next_entry_after:
            self.next_entry_after = position + self.interval_bytes
            # An index that is too small for its segment stays sparse: look-ups scan further, but still succeed.
            if not self._offset_index.is_full:
                self._offset_index.append(last_offset, position)
            if not self._time_index.is_full:
                self._time_index.maybe_append(self.max_timestamp, self.offset_of_max)

    def add_all(self, batches: SegmentBatches) -> None:
        """Add every batch of the segment, or those before the first damage."""
        before = self._offset_index.base_offset - 1
        limit = self._offset_index.base_offset + RELATIVE_OFFSET_MAX
        try:
            for position, header in batches.headers():
                # The CRC does not cover the base offset.
                if not before < header.base_offset <= header.last_offset <= limit:
                    raise CorruptSegment(
                        f"{batches.file.path}: offsets [{header.base_offset}, {header.last_offset}] follow on {before}",
                        position,
                    )
                before = header.last_offset
                self.add(position, before, header.max_timestamp)
        except CorruptSegment as error:
            logger.error(
                "[segment %s] the indexes end at the damage, look-ups find no later record: %s",
                batches.file.path,
                error,
            )

    def finish(self, *, trim: bool) -> None:
        self._time_index.maybe_append(self.max_timestamp, self.offset_of_max, skip_full_check=True)
        for index in (self._offset_index, self._time_index):
            if trim:
                index.trim_to_valid_size()
            else:
                index.preallocate()
