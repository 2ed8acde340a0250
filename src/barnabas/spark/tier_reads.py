"""Rows of a slice straight from the object store: the executor's side.

Threads get the next ranges of the object while those that have come are decoded. What is not there any more is asked of the
brokers, who know its new place, or say that it is gone.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import pyarrow as pa

from barnabas.client.fetching import whole_batches_end
from barnabas.spark.columns import BatchDecoder
from barnabas.spark.tier_slices import TierSlice, relevant
from barnabas.tiered.store import ObjectMissing, Store, StoreFault, open_store

_CHUNK_BYTES: Final = 8 << 20
#: Ranges under way or waiting: with the one that is decoded, what a task holds in memory.
_CHUNKS_AHEAD: Final = 3

#: Reads the records of a partition from an offset to another in some other way, for a reason.
Elsewhere = Callable[[int, int, Exception], Iterator[pa.RecordBatch]]


def read_slice(
    url: str,
    settings: Mapping[str, str],
    part: TierSlice,
    columns: Sequence[str],
    *,
    read_committed: bool,
    elsewhere: Elsewhere,
    insists: bool,
    check_crcs: bool = True,
) -> Iterator[pa.RecordBatch]:
    """`insists`: a store that fails is a failure, and not a reason to ask elsewhere. :raises StoreFault:"""
    decoder = BatchDecoder(
        part.partition,
        from_offset=part.from_offset,
        to_offset=part.until_offset,
        columns=columns,
        read_committed=read_committed,
        check_crcs=check_crcs,
    )
    try:
        yield from _decoded(open_store(url, settings), part, decoder)
    except StoreFault as error:
        if insists and not isinstance(error, ObjectMissing):
            raise
        yield from elsewhere(decoder.position, part.until_offset, error)


def _decoded(store: Store, part: TierSlice, decoder: BatchDecoder) -> Iterator[pa.RecordBatch]:
    left = b""
    for chunk in _chunks(store, part):
        data = memoryview(left + chunk if left else chunk)
        size = whole_batches_end(data)
        if size:
            yield from decoder.decode(data[:size], relevant(part.aborted, data), cut=False)
            if decoder.done:
                return
        left = bytes(data[size:])
    if left:
        raise StoreFault(f"{part.key} has no whole batch at the end of what was asked for, {part.start} to {part.end}")


def _chunks(store: Store, part: TierSlice) -> Iterator[bytes]:
    """The bytes of the slice, in order; the next ones are on their way."""
    starts = deque(range(part.start, part.end, _CHUNK_BYTES))
    coming: deque[Future[bytes]] = deque()
    with ThreadPoolExecutor(_CHUNKS_AHEAD) as pool:
        try:
            while starts or coming:
                while starts and len(coming) < _CHUNKS_AHEAD:
                    start = starts.popleft()
                    coming.append(pool.submit(_get, store, part.key, start, min(start + _CHUNK_BYTES, part.end)))
                yield coming.popleft().result()
        finally:
            for each in coming:
                each.cancel()


def _get(store: Store, key: str, start: int, end: int) -> bytes:
    return asyncio.run(store.get_range(key, start, end))
