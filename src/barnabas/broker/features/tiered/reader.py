"""Reads of records, timestamps and aborted transactions that are only in the tier, and the start state of new replicas.

Owner: the event loop. Every read waits for the store, so the state may change meanwhile: callers check leadership and the log's
bounds again. Raises `StoreFault` if the store fails or returns damaged data, and `NotInTier` if the record is not in the
tier.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from barnabas.base.errors import BarnabasError, Malformed
from barnabas.base.ids import Offset, TopicPartition
from barnabas.base.recent import Recent
from barnabas.broker.features.tiered import layout
from barnabas.broker.features.tiered.lineage import Piece, piece_at, pieces
from barnabas.broker.features.tiered.local_copies import LocalCopies, LocalCopy
from barnabas.broker.features.tiered.metadata_cache import RemoteLogMetadataCache
from barnabas.broker.features.tiered.segment_metadata import RemoteSegment, RemoteSegmentId
from barnabas.broker.features.tiered.store import ObjectMissing, Store, StoreFault
from barnabas.broker.runtime.threads import OnThread
from barnabas.broker.security.rates import Rate
from barnabas.broker.storage import producer_snapshot
from barnabas.broker.storage.checkpoints import parse_epochs
from barnabas.broker.storage.epoch_cache import LeaderEpochCache
from barnabas.broker.storage.file_handle import FileRange
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.log_read import search_timestamp
from barnabas.broker.storage.log_tier import TierStart
from barnabas.broker.storage.log_types import OffsetMetadata, ReadResult, TimestampedOffset
from barnabas.broker.storage.segment_batches import BatchAt, CorruptSegment, find_from
from barnabas.broker.storage.txn_index import AbortedTxn

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Number of readers whose next offset is remembered.
_READERS_MAX: Final = 10_000
#: Extra bytes for a header that begins at the end of the requested range.
_HEADER_ROOM: Final = 128
#: Up to this size a look-up runs on the event loop: headers are far apart in large batches, and small batches are indexed.
_LOOK_BYTES: Final = 4 << 20
#: Lower than any offset.
_ANY_OFFSET: Final = -(2**63)
#: How often a read looks for its segment again after retention deleted it.
_LOOKS: Final = 3


class NotInTier(BarnabasError):
    """No finished segment in the tier has this record of the log."""


@dataclass(frozen=True, slots=True)
class TierView:
    """The older part of a partition: the segments in the tier, and the log to which they belong."""

    log: Log
    segments: RemoteLogMetadataCache


class FetchQuota:
    """`remote.log.manager.fetch.max.bytes.per.second`. Owner: the event loop."""

    def __init__(self, *, windows: int, window_ms: int, now_ms: Callable[[], int], limit: int) -> None:
        self._rate = Rate(windows=windows, window_ms=window_ms)
        self._now_ms = now_ms
        #: Can be changed while the broker runs.
        self.limit = limit

    async def wait_for(self, size_bytes: int) -> None:
        """Count the bytes before the fetch: concurrent readers wait for each other."""
        now_ms = self._now_ms()
        self._rate.record(size_bytes, now_ms)
        wait_ms = self._rate.throttle_ms(self.limit, now_ms)
        if wait_ms > 0:
            await asyncio.sleep(wait_ms / 1000)


class TierReader:
    def __init__(self, store: Store, copies: LocalCopies, *, on_thread: OnThread, read_ahead_bytes: int) -> None:
        self._store = store
        self._copies = copies
        self._on_thread = on_thread
        self._read_ahead_bytes = read_ahead_bytes
        #: Next offsets of sequential readers, for which the tier is read ahead.
        self._expected: Recent[tuple[TopicPartition, int], bool] = Recent(_READERS_MAX)
        #: By partition: the segments with aborted transactions, and the state for which this list is valid.
        self._aborting: dict[TopicPartition, tuple[tuple[int, int, int], list[Piece]]] = {}

    # -- records ------------------------------------------------------------------------------------------------------

    async def read(
        self, view: TierView, offset: int, *, max_bytes: int, max_offset: int, min_one_batch: bool = True
    ) -> ReadResult:
        """Like `Log.read`, for records below the local start. Empty only because of `max_offset` or `max_bytes`."""
        tp = view.log.partition
        is_sequential = self._expected.pop((tp, offset)) is not None
        at = offset
        for _ in range(_LOOKS):
            if at > offset and at >= view.log.local_log_start_offset:
                return view.log.read(at, max_bytes=max_bytes, max_offset=max_offset, min_one_batch=min_one_batch)
            piece = piece_at(view.segments, view.log.epochs, at)
            if piece is None:
                raise NotInTier(f"{tp}: no segment in the tier has offset {at}")
            try:
                found = await self._read_piece(piece._replace(end=min(piece.end, max_offset)), max_bytes, min_one_batch)
            except ObjectMissing:
                if view.segments.get(piece.segment.id) == piece.segment:
                    raise
                continue  # retention has deleted it meanwhile
            if found is None and piece.end < max_offset:
                at = piece.end  # the segment has no more records
                continue
            if found is None:
                break
            self._expect(tp, found.upper_offset)
            if is_sequential:
                self._read_ahead(view, piece, found)
            return found
        here = Offset(offset)
        return ReadResult([], 0, OffsetMetadata(here, here, 0), here)

    async def _read_piece(self, piece: Piece, max_bytes: int, min_one_batch: bool) -> ReadResult | None:
        """None: the piece has no batch that reaches the offset and lies below its end."""
        copy = await self._copies.open(piece.segment)
        with copy, _Damage(self._copies, copy):
            first = await self._find(copy, piece.offset)
            if first is None or first.base_offset >= piece.end:
                return None
            limit, limit_offset = piece.segment.size_bytes, piece.end
            if piece.end <= piece.segment.end_offset:
                bound = await self._find(copy, piece.end)
                limit = limit if bound is None else bound.position
            available = limit - first.position
            if available > max_bytes and first.size_bytes > max_bytes and not min_one_batch:
                size, upper = 0, piece.offset
            else:
                wanted = min(available, max(max_bytes, first.size_bytes))
                end = first.position + wanted
                await self._copies.ensure(copy, first.position, min(end + _HEADER_ROOM, piece.segment.size_bytes))
                if wanted == available:
                    size, upper = available, limit_offset
                elif first.size_bytes >= max_bytes:
                    size, upper = first.size_bytes, first.last_offset + 1
                else:
                    around = copy.segment.offset_index.floor_position(end - 1)
                    last_boundary = partial(copy.segment.last_boundary, first, end)
                    cut, upper = await self._look(copy, max(around, first.position), end, last_boundary)
                    size = cut - first.position
            start = OffsetMetadata(Offset(piece.offset), Offset(piece.segment.start_offset), first.position)
            ranges = [FileRange(copy.segment.file, first.position, size)] if size else []
            return ReadResult(ranges, size, start, Offset(upper), is_cut=available > max_bytes)

    async def _find(self, copy: LocalCopy, offset: int) -> BatchAt | None:
        """Return the first batch that reaches `offset`. The index narrows down its position."""
        start, end = await self._ensure_around(copy, offset, offset)
        return await self._look(copy, start, end, partial(_find_checked, copy, start, offset))

    async def _ensure_around(self, copy: LocalCopy, first: int, last: int) -> tuple[int, int]:
        """Fetch the bytes that a look-up of these offsets may read. Return their positions."""
        index, size = copy.segment.offset_index, copy.source.size_bytes
        after = index.next_position(last)
        start, end = index.lookup_position(first), size if after is None else min(after + _HEADER_ROOM, size)
        await self._copies.ensure(copy, start, end)
        return start, end

    async def _look(self, copy: LocalCopy, start: int, end: int, work: Callable[[], T]) -> T:
        """Run a look-up at once if the bytes are few and in memory, as after a fetch; else on a thread."""
        if end - start <= _LOOK_BYTES:
            handle = copy.segment.file
            if handle.disk.is_resident(handle.fd, start, end - start):
                return work()
        return await self._on_thread(work)

    # -- reading ahead ------------------------------------------------------------------------------------------------

    def _expect(self, tp: TopicPartition, offset: int) -> None:
        self._expected.put((tp, offset), True)

    def _read_ahead(self, view: TierView, piece: Piece, found: ReadResult) -> None:
        end = found.start.position + found.size_bytes
        self._copies.read_ahead(piece.segment, end, end + self._read_ahead_bytes)
        left = piece.segment.size_bytes - end
        if left < self._read_ahead_bytes:
            following = piece_at(view.segments, view.log.epochs, piece.end)
            if following is not None:
                self._copies.read_ahead(following.segment, 0, self._read_ahead_bytes - left)

    # -- timestamps ---------------------------------------------------------------------------------------------------

    async def offset_for_timestamp(self, view: TierView, timestamp: int) -> TimestampedOffset | None:
        """Return the first record below the local start whose timestamp is `timestamp` or later; None if there is none."""
        log = view.log
        at = int(log.log_start_offset)
        # The local start may rise meanwhile: search the tier for what has left the disk, too.
        while (piece := next(pieces(view.segments, log.epochs, at, log.local_log_start_offset), None)) is not None:
            at = piece.end
            if piece.segment.max_timestamp < timestamp:
                continue
            copy = await self._copies.open(piece.segment)
            with copy, _Damage(self._copies, copy):
                found = await self._search(copy, timestamp, piece.offset)
            if found is not None and found.offset < piece.end:
                return found
        return None

    async def _search(self, copy: LocalCopy, timestamp: int, from_offset: int) -> TimestampedOffset | None:
        segment = copy.segment
        first = max(segment.time_index.lookup(timestamp).offset, from_offset)
        after = segment.time_index.after(timestamp)
        # The first record that is late enough is at the next index entry or before; but not before `from_offset`.
        last = copy.source.end_offset if after is None or after.offset < first else after.offset
        start, end = await self._ensure_around(copy, first, last)
        await self._look(copy, start, end, partial(_check_batch_at, copy, start))
        search = partial(search_timestamp, segment, timestamp, from_offset)
        try:
            return await self._on_thread(search)
        except CorruptSegment:
            # Search on: the indexed batch has that timestamp only before `from_offset`, or not at all.
            await self._copies.ensure(copy, start, copy.source.size_bytes)
            return await self._on_thread(search)

    def max_timestamp(self, view: TierView) -> int:
        """Return the largest timestamp of any segment below the local start; -1 if there is none."""
        log = view.log
        found = pieces(view.segments, log.epochs, log.log_start_offset, log.local_log_start_offset)
        return max((piece.segment.max_timestamp for piece in found), default=-1)

    # -- transactions -------------------------------------------------------------------------------------------------

    async def aborted_transactions(self, view: TierView, from_offset: int, upper_offset: int) -> list[AbortedTxn]:
        """Return those that overlap [from_offset, upper_offset). Their markers may be much later, even in the local log."""
        log = view.log
        found: dict[tuple[int, int], AbortedTxn] = {}
        looked_at: set[RemoteSegmentId] = set()
        border = -1
        # The local start may rise meanwhile: search the tier for what has left the disk, too.
        while border != log.local_log_start_offset:
            border = log.local_log_start_offset
            for piece in self._with_aborted(view):
                if piece.segment.end_offset < from_offset or piece.segment.id in looked_at:
                    continue
                copy = await self._copies.open(piece.segment)
                with copy, _Damage(self._copies, copy):
                    index = copy.segment.txn_index
                    collect = partial(index.collect, from_offset, upper_offset, end_offset=piece.end)
                    search = await self._on_thread(collect)
                looked_at.add(piece.segment.id)
                found.update({(txn.producer_id, txn.first_offset): txn for txn in search.aborted})
                if search.is_complete:
                    return list(found.values())
        local = log.aborted_transactions(from_offset, upper_offset)
        found.update({(txn.producer_id, txn.first_offset): txn for txn in local})
        return list(found.values())

    def _with_aborted(self, view: TierView) -> list[Piece]:
        """Return the segments with aborted transactions. The result is cached: every committed read asks, and most topics have
        none."""
        log = view.log
        state = (view.segments.version, log.local_log_start_offset, len(log.epochs))
        known = self._aborting.get(log.partition)
        if known is None or known[0] != state:
            found = [
                piece
                for piece in pieces(view.segments, log.epochs, log.log_start_offset, log.local_log_start_offset)
                if not piece.segment.txn_index_empty
            ]
            known = self._aborting[log.partition] = (state, found)
        return known[1]

    def forget(self, tp: TopicPartition) -> None:
        """Drop the state of a partition that left this broker."""
        self._aborting.pop(tp, None)

    # -- a new replica ------------------------------------------------------------------------------------------------

    async def start_after(self, segment: RemoteSegment, *, log_start_offset: int) -> TierStart:
        """Return the start state of a replica whose log is to begin after this segment."""
        try:
            data = await self._store.get(
                layout.indexes_key(segment), bytes_max=layout.indexes_bytes_max(segment.size_bytes)
            )
            parts = layout.unpack_indexes_of(segment, data)
            epochs = LeaderEpochCache(parse_epochs(f"epochs of {segment.id}", parts[layout.Part.LEADER_EPOCHS]))
            snapshot = parts.get(layout.Part.PRODUCER_SNAPSHOT)
            producers = [] if snapshot is None else producer_snapshot.decode(snapshot)
        except (Malformed, KeyError) as error:
            raise StoreFault(f"the indexes of {segment.id} are damaged: {error!r}") from error
        end = segment.end_offset + 1
        epochs.truncate_from_end(end)
        epochs.truncate_from_start(log_start_offset)
        return TierStart(end, log_start_offset, epochs.entries, producers)


def _find_checked(copy: LocalCopy, start: int, offset: int) -> BatchAt | None:
    """Return the first batch that reaches `offset`, at position `start` or later according to the index. If the object holds
    another segment's bytes there may be no such batch, which a consumer would mistake for a gap."""
    _check_batch_at(copy, start)
    found = copy.segment.find(offset)
    if found is not None:
        _check_is_of(copy.source, found)
    return found


def _check_batch_at(copy: LocalCopy, position: int) -> None:
    first = find_from(copy.segment.file, position, copy.source.size_bytes, _ANY_OFFSET)
    if first is not None:
        _check_is_of(copy.source, first)


def _check_is_of(source: RemoteSegment, batch: BatchAt) -> None:
    """:raises Malformed: if the batch is outside the segment's bounds in the metadata."""
    if not source.start_offset <= batch.base_offset <= batch.last_offset <= source.end_offset:
        raise Malformed(
            f"{layout.log_key(source)} has offsets {batch.base_offset} to {batch.last_offset} at position {batch.position}, "
            f"but the metadata says that the segment has {source.start_offset} to {source.end_offset}: the object holds the "
            "bytes of another segment"
        )


class _Damage:
    """Drops damaged copies: the next read fetches them again."""

    __slots__ = ("_copies", "_copy")

    def __init__(self, copies: LocalCopies, copy: LocalCopy) -> None:
        self._copies = copies
        self._copy = copy

    def __enter__(self) -> None:
        """Does nothing: errors are handled at the exit."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Malformed | OSError):
            self._copies.forget(self._copy)
            raise StoreFault(f"the store returned damaged data of {self._copy.source.id}: {error}") from error
