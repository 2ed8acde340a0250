"""Rows of slices straight from the object store: the executor's side.

Threads read the next ranges of objects while the task decodes the last ones. If an object is gone, the reader asks the
brokers, which know the new place of its records, or report that they are deleted. Bytes are checked by the checksums that the
segment was copied with, as brokers check them.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import pyarrow as pa

from barnabas.base.errors import Malformed
from barnabas.broker.features.tiered import layout
from barnabas.broker.features.tiered.blocks import Blocks
from barnabas.broker.features.tiered.store import ObjectMissing, Store, StoreFault, open_store
from barnabas.client.fetching import whole_batches_end
from barnabas.spark.columns import BatchDecoder
from barnabas.spark.tier_slices import TierSlice, get_indexes, relevant
from barnabas.wire.record_batch import HEADER_SIZE, LENGTH_AT, LOG_OVERHEAD

#: A multiple of the usual size of blocks.
_CHUNK_BYTES: Final = 8 << 20
_OFFSET: Final = struct.Struct(">q")
#: Reads in progress or waiting: with the chunk that is being decoded, the memory of a task.
_CHUNKS_AHEAD: Final = 3

#: Reads the records of a slice from an offset to another in another way; gets the error that made it necessary.
Elsewhere = Callable[[TierSlice, int, int, Exception], Iterator[pa.RecordBatch]]


def read_slices(
    url: str,
    settings: Mapping[str, str],
    parts: Sequence[TierSlice],
    columns: Sequence[str],
    *,
    read_committed: bool,
    elsewhere: Elsewhere,
    insists: bool,
    check_crcs: bool = True,
) -> Iterator[pa.RecordBatch]:
    """`insists`: if the store fails, raise `StoreFault` instead of calling `elsewhere`."""
    with ThreadPoolExecutor(_CHUNKS_AHEAD) as pool:
        ahead = _Ahead(open_store(url, settings), parts, pool)
        try:
            for number, part in enumerate(parts):
                decoder = BatchDecoder(
                    part.partition,
                    from_offset=part.from_offset,
                    to_offset=part.until_offset,
                    columns=columns,
                    read_committed=read_committed,
                    check_crcs=check_crcs,
                )
                try:
                    yield from _decoded(ahead.chunks(number), part, decoder)
                except StoreFault as error:
                    if insists and not isinstance(error, ObjectMissing):
                        raise
                    yield from elsewhere(part, decoder.position, part.until_offset, error)
        finally:
            ahead.stop()


def _decoded(chunks: Iterator[memoryview], part: TierSlice, decoder: BatchDecoder) -> Iterator[pa.RecordBatch]:
    """Decode chunks in place. Only a batch that two chunks share is copied together."""
    cut = b""
    for chunk in chunks:
        start = 0
        if cut:
            cut, start = _completed(cut, chunk)
            if whole_batches_end(cut):
                _check_is_of(part, cut)
                yield from decoder.decode(cut, relevant(part.aborted, cut), cut=False)
                cut = b""
        if not cut:
            data = chunk[start:]
            size = whole_batches_end(data)
            if size:
                _check_is_of(part, data)
                yield from decoder.decode(data[:size], relevant(part.aborted, data), cut=False)
            cut = bytes(data[size:])
        if decoder.done:
            return
    if cut:
        raise StoreFault(f"{part.key} has no whole batch at the end of what was asked for, {part.start} to {part.end}")


def _check_is_of(part: TierSlice, data: bytes | memoryview) -> None:
    """Check that the first batch lies within the segment. Records of another segment would be left out, like a gap."""
    if part.segment_offsets is None:
        return
    first, last = part.segment_offsets
    (base,) = _OFFSET.unpack_from(data)
    if not first <= base <= last:
        raise StoreFault(
            f"{part.key} has offset {base}, but the metadata says that the segment has {first} to {last}: the object holds the "
            "bytes of another segment"
        )


def _completed(cut: bytes, chunk: memoryview) -> tuple[bytes, int]:
    """Complete the batch that begins with `cut` from `chunk`; return it, and how many bytes of `chunk` were used."""
    header = cut + bytes(chunk[: max(0, HEADER_SIZE - len(cut))])
    if len(header) < HEADER_SIZE:
        return header, len(chunk)
    missing = LOG_OVERHEAD + int.from_bytes(header[LENGTH_AT : LENGTH_AT + 4], "big", signed=True) - len(cut)
    if missing <= 0:
        return cut + bytes(chunk), len(chunk)  # the header's length is impossible: the batch will never be whole
    return cut + bytes(chunk[:missing]), min(missing, len(chunk))


class _Ahead:
    """The bytes of slices, in order. Reads the next chunks in advance, also those of the next slice."""

    def __init__(self, store: Store, parts: Sequence[TierSlice], pool: ThreadPoolExecutor) -> None:
        self._store = store
        self._parts = parts
        self._pool = pool
        #: The chunks to read: (number of the slice, start of the chunk).
        self._wanted = deque((number, start) for number, part in enumerate(parts) for start in _starts(part))
        self._coming: deque[tuple[int, Future[memoryview]]] = deque()
        #: The checksums of each object. Its chunks wait for them on the pool's threads, behind which they were submitted.
        self._blocks: dict[str, Future[Blocks | None]] = {}

    def chunks(self, number: int) -> Iterator[memoryview]:
        """Yield the chunks of one slice. Callers ask for slices in order; unread chunks of earlier slices are dropped."""
        while self._wanted and self._wanted[0][0] < number:
            self._wanted.popleft()
        while self._coming and self._coming[0][0] < number:
            self._coming.popleft()[1].cancel()
        self._ask()
        while self._coming and self._coming[0][0] == number:
            chunk = self._coming.popleft()[1].result()
            self._ask()
            yield chunk

    def stop(self) -> None:
        self._wanted.clear()
        for _, each in self._coming:
            each.cancel()

    def _ask(self) -> None:
        while self._wanted and len(self._coming) < _CHUNKS_AHEAD:
            number, start = self._wanted.popleft()
            part = self._parts[number]
            if part.key not in self._blocks:
                self._blocks[part.key] = self._pool.submit(_get_blocks, self._store, part.key)
            end = min(_next_start(start), part.end)
            self._coming.append(
                (number, self._pool.submit(_get, self._store, part.key, start, end, self._blocks[part.key]))
            )


def _starts(part: TierSlice) -> Iterator[int]:
    """Yield the starts of a slice's chunks: after the first one they are borders of blocks, too."""
    at = part.start
    while at < part.end:
        yield at
        at = _next_start(at)


def _next_start(start: int) -> int:
    return start // _CHUNK_BYTES * _CHUNK_BYTES + _CHUNK_BYTES


def _get_blocks(store: Store, log_key: str) -> Blocks | None:
    """Return the checksums of an object; None if it was copied without. Raises `StoreFault`."""
    return layout.blocks_of(log_key, asyncio.run(get_indexes(store, {log_key: None}))[log_key])


def _get(store: Store, key: str, start: int, end: int, checksums: "Future[Blocks | None]") -> memoryview:
    blocks = checksums.result()
    if blocks is None:
        return asyncio.run(store.get_range(key, start, end))
    if end > blocks.size_bytes:
        raise StoreFault(
            f"{key} was copied with {blocks.size_bytes} bytes, but the metadata says that it has {end} or more"
        )
    first, last = blocks.around(start, end)
    data = asyncio.run(store.get_range(key, first, last))
    try:
        blocks.check(data, first)
    except Malformed as error:
        raise StoreFault(f"{key}: {error}") from error
    return data[start - first : end - first]
