"""Reads from a log: by offset, by timestamp, and aborted transactions. Owner: the event loop."""

from typing import NamedTuple

from barnabas.base.errors import ErrorCode, Malformed, Refused
from barnabas.base.ids import LeaderEpoch, Offset
from barnabas.broker.storage.file_handle import FileRange
from barnabas.broker.storage.log_state import LogState
from barnabas.broker.storage.log_types import OffsetMetadata, ReadResult, TimestampedOffset
from barnabas.broker.storage.record_check import first_record_at_or_after
from barnabas.broker.storage.segment import Segment
from barnabas.broker.storage.segment_batches import BatchAt
from barnabas.broker.storage.segments import SegmentList
from barnabas.broker.storage.time_index import NO_TIMESTAMP
from barnabas.broker.storage.txn_index import AbortedTxn
from barnabas.wire.record_batch import BatchHeader


class Bound(NamedTuple):
    """An offset that a read must not reach, and the position of its batch."""

    offset: int
    segment_base_offset: int
    position: int


_NOWHERE = Bound(-1, 0, 0)
#: Twice as fast as a call of the class.
_new = tuple.__new__

#: Largest number of batches that one look-up by timestamp decodes without success: the header claims the timestamp, but no
#: record has it. The next batch is then the answer. Otherwise a log full of such batches would be decoded for each look-up.
LOOKUP_BATCHES_MAX = 32


def _locate(segments: SegmentList, offset: int) -> Bound:
    """Return where the batch that holds or follows `offset` begins; the end of the segment if there is no such batch."""
    segment = segments.at(max(segments.floor(offset), 0))
    found = segment.find(offset) if segment.size_bytes else None
    position = segment.size_bytes if found is None else found.position
    return Bound(offset, segment.base_offset, position)


def _read(
    segments: SegmentList, offset: int, *, max_bytes: int, bound: Bound, min_one_batch: bool
) -> ReadResult | None:
    """Read whole batches of one segment from the one that holds or follows `offset`, all below `bound`.

    None if there are none. Skips a segment that has no batch left at `offset` (compaction removed them).
    """
    for place in range(max(segments.floor(offset), 0), len(segments)):
        segment = segments.at(place)
        base = segment.base_offset
        if base > bound.segment_base_offset:
            return None
        is_last = base == bound.segment_base_offset
        limit = bound.position if is_last else segment.size_bytes
        if limit == 0:
            continue
        found = segment.find(offset)
        if found is None or found.position >= limit:
            continue
        return _take(
            segment,
            found,
            offset,
            limit=limit,
            limit_offset=bound.offset if is_last else segments.base_after(place) or bound.offset,
            max_bytes=max_bytes,
            min_one_batch=min_one_batch,
        )
    return None


def _take(
    segment: Segment, first: BatchAt, offset: int, *, limit: int, limit_offset: int, max_bytes: int, min_one_batch: bool
) -> ReadResult:
    """Return the range from `first` to the last batch boundary within `max_bytes`."""
    position = first.position
    available = limit - position
    if available <= max_bytes:
        size, upper = available, limit_offset
    elif first.size_bytes > max_bytes:
        size, upper = (first.size_bytes, first.last_offset + 1) if min_one_batch else (0, offset)
    else:
        end, upper = segment.last_boundary(first, position + max_bytes)
        size = end - position
    start = OffsetMetadata(Offset(offset), Offset(segment.base_offset), position)
    ranges = [FileRange(segment.file, position, size)] if size else []
    return ReadResult(ranges, size, start, Offset(upper), is_cut=available > max_bytes)


def search_timestamp(segment: Segment, timestamp: int, from_offset: int) -> TimestampedOffset | None:
    """Return the first record of the segment with at least this timestamp and this offset."""
    indexed = segment.time_index.lookup(timestamp)
    # The indexed batch may itself hold the record: begin with it, not after it.
    start = segment.find(max(indexed.offset, from_offset, segment.base_offset))
    if start is None:
        return None  # DeleteRecords moved the log start past the end of this segment
    misses = 0
    for at, header in segment.headers(start.position):
        if header.max_timestamp >= timestamp and header.last_offset >= from_offset:
            misses += 1
            if misses > LOOKUP_BATCHES_MAX:
                return TimestampedOffset(
                    header.max_timestamp, Offset(max(header.base_offset, from_offset)), _epoch(header)
                )
            record = first_record_at_or_after(
                segment.batch_bytes(at, header.size_bytes), header, timestamp=timestamp, from_offset=from_offset
            )
            if record is not None:
                return TimestampedOffset(record[0], Offset(record[1]), _epoch(header))
    return None


def _epoch(header: BatchHeader) -> LeaderEpoch | None:
    return LeaderEpoch(header.leader_epoch) if header.leader_epoch >= 0 else None


class LogReader:
    """Answers with file ranges, never with copied bytes. Owner: the log.

    It caches the position of the last bound. A change to the segments must call `forget_positions`.
    """

    __slots__ = ("_bound", "_state")

    def __init__(self, state: LogState) -> None:
        self._state = state
        #: Cached position of the last bound: usually the high watermark, for many reads in a row.
        self._bound = _NOWHERE

    def read(self, offset: int, *, max_bytes: int, max_offset: int, min_one_batch: bool = True) -> ReadResult:
        """Read whole batches from the one that holds or follows `offset`, all below `max_offset` (exclusive).

        They are of one segment and at most `max_bytes`, except for a larger first batch if `min_one_batch`. The result is empty
        only if there is nothing below `max_offset`. Raises `OFFSET_OUT_OF_RANGE` outside [log start, log end], and
        `OFFSET_MOVED_TO_TIERED_STORAGE` below the local start.
        """
        state = self._state
        if not state.local_log_start_offset <= offset <= state.log_end_offset:
            raise self._out_of_range(offset)
        if state.is_closed:
            raise state.storage_error()
        try:
            if offset < max_offset:
                active = state.segments.active
                position = active.tail.get(offset)
                if position is not None:
                    # The usual reader is at the tail, and gets all that there is: no index, no scan.
                    end_offset = min(max_offset, state.log_end_offset)
                    end = active.size_bytes if end_offset == state.log_end_offset else active.tail.get(end_offset, 0)
                    size = end - position
                    if 0 < size <= max_bytes:
                        start = _new(OffsetMetadata, (offset, active.base_offset, position))
                        file_range = FileRange(active.file, position, size)
                        return _new(ReadResult, ([file_range], size, start, end_offset, False))
                bound = self._locate(max_offset)
                found = _read(state.segments, offset, max_bytes=max_bytes, bound=bound, min_one_batch=min_one_batch)
                if found is not None:
                    return found
            else:
                bound = self._locate(offset)
        except OSError as error:
            state.fault(error)
        except Malformed as error:
            raise state.corrupt(error) from None
        here = Offset(offset)
        return ReadResult([], 0, OffsetMetadata(here, Offset(bound.segment_base_offset), bound.position), here)

    def aborted_transactions(self, from_offset: int, upper_offset: int) -> list[AbortedTxn]:
        """Return the aborted transactions that overlap [from_offset, upper_offset). A marker may be in a later segment than its
        records."""
        state, segments = self._state, self._state.segments
        found: list[AbortedTxn] = []
        try:
            for place in range(max(segments.floor(from_offset), 0), len(segments)):
                search = segments.at(place).txn_index.collect(from_offset, upper_offset)
                found.extend(search.aborted)
                if search.is_complete:
                    break
        except OSError as error:
            state.fault(error)
        except Malformed as error:
            raise state.corrupt(error) from None
        return found

    def offset_for_timestamp(self, timestamp: int) -> TimestampedOffset | None:
        """Return the first record whose timestamp is `timestamp` or later; None if there is none."""
        state = self._state
        with state.reading():
            for segment in state.segments:
                if segment.size_bytes and segment.largest_timestamp >= timestamp:
                    found = search_timestamp(segment, timestamp, state.log_start_offset)
                    if found is not None:
                        return found
        return None

    def earliest_offset(self) -> TimestampedOffset:
        state = self._state
        earliest = state.epochs.earliest
        is_known = earliest is not None and earliest.start_offset <= state.log_start_offset
        return TimestampedOffset(-1, state.log_start_offset, earliest.epoch if earliest and is_known else None)

    def earliest_local_offset(self) -> TimestampedOffset:
        state = self._state
        return TimestampedOffset(-1, state.local_log_start_offset, state.epochs.epoch_at(state.local_log_start_offset))

    def latest_tiered_offset(self) -> TimestampedOffset | None:
        """Return the last offset that is known to be in the tier; None if there is none."""
        state = self._state
        if not state.is_tiered or state.highest_copied_offset < 0:
            return None
        highest = Offset(state.highest_copied_offset)
        return TimestampedOffset(-1, highest, state.epochs.epoch_at(highest))

    def earliest_pending_upload_offset(self) -> TimestampedOffset | None:
        """Return the first offset that is not in the tier yet; None if unknown, or if the log is not tiered."""
        state = self._state
        if not state.is_tiered:
            return None
        if state.highest_copied_offset >= 0:
            pending = Offset(max(state.highest_copied_offset + 1, state.log_start_offset))
            return TimestampedOffset(-1, pending, state.epochs.epoch_at(pending))
        # Nothing was copied, or this broker has not yet read that something was.
        return self.earliest_offset() if state.local_log_start_offset == state.log_start_offset else None

    def latest_offset(self) -> TimestampedOffset:
        state = self._state
        return TimestampedOffset(-1, state.log_end_offset, state.epochs.latest_epoch)

    def offset_of_max_timestamp(self) -> TimestampedOffset | None:
        """Return the first record with the largest timestamp; None if no record has one."""
        with self._state.reading():
            segment = max(self._state.segments, key=lambda candidate: candidate.max_timestamp)
            largest = segment.max_timestamp
            if largest == NO_TIMESTAMP or not segment.size_bytes:
                return None
            start = segment.find(segment.offset_of_max_timestamp)
            for at, header in segment.headers(0 if start is None else start.position):
                if header.max_timestamp == largest:
                    record = first_record_at_or_after(
                        segment.batch_bytes(at, header.size_bytes),
                        header,
                        timestamp=largest,
                        from_offset=header.base_offset,
                    )
                    if record is not None:
                        return TimestampedOffset(largest, Offset(record[1]), _epoch(header))
        return None

    def _locate(self, offset: int) -> Bound:
        state = self._state
        if offset >= state.log_end_offset:
            active = state.segments.active
            return Bound(state.log_end_offset, active.base_offset, active.size_bytes)
        bound = self._bound
        if bound.offset != offset:
            bound = self._bound = _locate(state.segments, offset)
        return bound

    def forget_positions(self) -> None:
        """Drop the cached position: segments were deleted or truncated."""
        self._bound = _NOWHERE

    def _out_of_range(self, offset: int) -> Refused:
        state = self._state
        if state.log_start_offset <= offset < state.local_log_start_offset:
            return Refused(
                ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE,
                f"{state.partition}: offset {offset} is in remote storage, this log begins at {state.local_log_start_offset}",
            )
        return Refused(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"Received request for offset {offset} for partition {state.partition}, but we only have log segments in the "
            f"range {state.log_start_offset} to {state.log_end_offset}.",
        )
