"""Slices of segments in an object store, which tasks read, and the cutting of a segment into slices.

A slice has the offsets to read, and the positions where they are. No two slices share an offset. Positions
come from the sparse index of the segment, so a slice may begin and end with a batch of its neighbours, whose records it
leaves out.
"""

import asyncio
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, NamedTuple

from barnabas.base.errors import Malformed
from barnabas.base.ids import TopicPartition
from barnabas.broker.features.tiered import layout
from barnabas.broker.features.tiered.layout import Part
from barnabas.broker.features.tiered.store import Store, StoreFault
from barnabas.broker.storage import txn_index
from barnabas.broker.storage.index_file import CorruptIndex
from barnabas.broker.storage.txn_index import AbortedTxn
from barnabas.spark.offsets import packed

_INDEX_ENTRY: Final = struct.Struct(">ii")
_GETS_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class TierSlice:
    """Records of a partition with from_offset <= offset < until_offset, in `start` to `end` of an object."""

    partition: TopicPartition
    topic_id: bytes
    key: str
    from_offset: int
    until_offset: int
    start: int
    end: int
    aborted: tuple[AbortedTxn, ...] = ()
    #: The first and the last offset of the whole segment, from the metadata; None: not known.
    segment_offsets: tuple[int, int] | None = None

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


class Place(NamedTuple):
    """A batch that the index names: its last offset, and where it begins."""

    last_offset: int
    position: int


def index_places(data: bytes, base_offset: int, size_bytes: int) -> Iterator[Place]:
    """Yield the entries of a segment's offset index. A preallocated file has empty entries after its end."""
    before = 0
    for relative, position in _INDEX_ENTRY.iter_unpack(data[: len(data) // _INDEX_ENTRY.size * _INDEX_ENTRY.size]):
        if position <= before or position >= size_bytes or relative < 0:
            if relative or position:
                continue  # the first batch, at 0, or one that was appended after the size was read
            return
        before = position
        yield Place(base_offset + relative, position)


async def get_indexes(store: Store, log_keys: Mapping[str, int | None]) -> dict[str, dict[Part, bytes]]:
    """Read the second object of each segment, several at once. Raises `StoreFault`.

    `log_keys`: the first objects, with their sizes if these are known.
    """
    slots = asyncio.Semaphore(_GETS_AT_ONCE)

    async def get(log_key: str, size_bytes: int | None) -> dict[Part, bytes]:
        key = layout.indexes_of(log_key)
        bytes_max = layout.indexes_bytes_max() if size_bytes is None else layout.indexes_bytes_max(size_bytes)
        async with slots:
            try:
                parts = layout.unpack_indexes(await store.get(key, bytes_max=bytes_max))
                layout.blocks_of(log_key, parts)
                return parts
            except Malformed as error:
                raise StoreFault(f"{key}: {error}") from error

    found = await asyncio.gather(*(get(key, size_bytes) for key, size_bytes in log_keys.items()))
    return dict(zip(log_keys, found, strict=True))


def aborted_in(log_key: str, parts: Mapping[Part, bytes]) -> Iterator[AbortedTxn]:
    """Yield the aborted transactions that ended in a segment. Raises `StoreFault`."""
    try:
        yield from txn_index.decode(log_key, parts.get(Part.TXN_INDEX, b""))
    except CorruptIndex as error:
        raise StoreFault(str(error)) from error


def cut(piece: TierSlice, places: Sequence[Place], *, max_bytes: int, max_records: int | None) -> list[TierSlice]:
    """Cut the piece into slices of at most `max_bytes`, or of `max_records` offsets if given, at the places of the index."""
    begin, end = _span(places, piece.from_offset, piece.until_offset, piece.start, piece.end)
    offsets = [piece.from_offset]
    if max_records is not None:
        offsets += range(piece.from_offset + max_records, piece.until_offset, max_records)
    else:
        last = begin
        for place in places:
            if begin < place.position < end and place.position - last >= max_bytes:
                if offsets[-1] < place.last_offset + 1 < piece.until_offset:
                    offsets.append(place.last_offset + 1)
                last = place.position
    slices = []
    for first, until in zip(offsets, [*offsets[1:], piece.until_offset], strict=True):
        start, stop = _span(places, first, until, begin, end)
        aborted = tuple(txn for txn in piece.aborted if txn.last_offset >= first and txn.first_offset < until)
        slices.append(replace(piece, from_offset=first, until_offset=until, start=start, end=stop, aborted=aborted))
    return slices


#: A task that reads so many bytes is worth its cost.
_SHARED_BYTES: Final = 256 << 20


def slices_in_tasks(slices: Sequence[TierSlice]) -> list[tuple[TierSlice, ...]]:
    """Let small slices that follow on each other in a partition share a task."""
    of_partitions = groupby(slices, lambda each: each.partition)
    return [task for _, some in of_partitions for task in packed(some, lambda each: each.size_bytes, _SHARED_BYTES)]


def _span(places: Sequence[Place], first: int, until: int, begin: int, end: int) -> tuple[int, int]:
    """Return an upper bound of the positions of the records in [first, until)."""
    start, stop = begin, end
    for number, place in enumerate(places):
        if place.last_offset < first:
            start = max(start, place.position)
        elif place.last_offset >= until:
            # The batch may begin inside the range; the batch of the next place ends after it.
            if number + 1 < len(places):
                stop = min(stop, places[number + 1].position)
            break
    return start, max(start, stop)


def relevant(aborted: Sequence[AbortedTxn], data: bytes | memoryview) -> list[AbortedTxn]:
    """Return the aborted transactions that reach into `data`. An earlier one of a producer says nothing of its next one."""
    first = int.from_bytes(data[:8], "big", signed=True)
    return [txn for txn in aborted if txn.last_offset >= first]
