"""Arrow columns into record batches: the rows of Spark's `kafka` sink (key, value, headers, topic, partition), and timestamp.

No Python object per record: `encode_kernels` works on the buffers in place. `Encoder` keeps the state that has to last
from one Arrow batch to the next: the partition that rows without a key stay on. Owner: one task.
"""

import random
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barnabas.base.errors import BarnabasError
from barnabas.base.ids import TopicPartition
from barnabas.client.blocking_producer import ReadyBatch
from barnabas.spark import encode_kernels as kernels
from barnabas.spark.encode_kernels import ByteArray, Int32s, Int64s
from barnabas.spark.encode_settings import HEADERS, KEY, PARTITION, TIMESTAMP, TOPIC, VALUE, EncoderSettings
from barnabas.wire.compression import Codec, compress
from barnabas.wire.record_batch import HEADER, HEADER_SIZE, LOG_OVERHEAD, MAGIC_V2, NO_SEQUENCE

_NO_BYTES: Final[ByteArray] = np.frombuffer(b"", dtype=np.uint8)


class RowRefused(BarnabasError):
    """A row that cannot become a record; the message says which and why."""


class _Bytes(NamedTuple):
    """A column of strings or bytes; sizes are -1 for null."""

    starts: Int64s
    sizes: Int64s
    data: ByteArray


class Encoder:
    def __init__(
        self, settings: EncoderSettings, partition_count: Callable[[str], int], *, chance: random.Random
    ) -> None:
        """`partition_count` may ask a broker; the encoder calls it once per topic and Arrow batch."""
        self._settings = settings
        self._partition_count = partition_count
        self._chance = chance
        #: For each topic the partition that rows without a key stay on (modulo the number of partitions), and the bytes left
        #: for it.
        self._sticky: dict[str, tuple[int, int]] = {}

    def encode(self, batch: pa.RecordBatch, *, now_ms: int) -> list[ReadyBatch]:
        """Return the batches that hold the rows. Rows of one partition keep their order."""
        rows = batch.num_rows
        if rows == 0:
            return []
        key = _bytes_column(_column(batch, KEY), rows)
        value = _bytes_column(_column(batch, VALUE), rows)
        header_from, header_key, header_value = _headers(_column(batch, HEADERS), rows)
        bounds = np.empty(rows, dtype=np.int64)
        kernels.bound_sizes(key.sizes, value.sizes, header_from, header_key.sizes, header_value.sizes, bounds)
        self._check_sizes(bounds)
        names, topics = self._topics(batch, rows)
        lanes, partitions = self._lanes(names, topics, _partitions(_column(batch, PARTITION), rows), key, bounds)
        timestamps = _timestamps(_column(batch, TIMESTAMP), rows, now_ms)
        order = np.empty(rows, dtype=np.int64)
        kernels.order_by_lane(lanes, len(partitions), order)
        count, room = kernels.room_for(order, lanes, bounds, self._settings.batch_bytes)
        out = np.empty(room, dtype=np.uint8)
        table = np.empty((count, kernels.TABLE_WIDTH), dtype=np.int64)
        kernels.write_batches(
            order,
            lanes,
            bounds,
            self._settings.batch_bytes,
            timestamps,
            *key,
            *value,
            header_from,
            *header_key,
            *header_value,
            out,
            table,
        )
        return self._ready(out.data, table.tolist(), partitions)

    def _check_sizes(self, bounds: Int64s) -> None:
        largest = int(bounds.argmax())
        if bounds[largest] > self._settings.record_bytes_max:
            raise RowRefused(
                f"a record of about {int(bounds[largest])} bytes is larger than max.request.size, "
                f"which is {self._settings.record_bytes_max}: raise kafka.max.request.size (and the topic's max.message.bytes)"
            )

    def _topics(self, batch: pa.RecordBatch, rows: int) -> tuple[list[str], Int32s]:
        """Return the names of the topics, and for each row the index of its name."""
        if self._settings.topic is not None:
            return [self._settings.topic], np.zeros(rows, dtype=np.int32)
        column = _column(batch, TOPIC)
        if column is None or column.null_count:
            raise RowRefused("null topic present in the data. Use the topic option for setting a topic.")
        encoded = pc.dictionary_encode(column)
        return encoded.dictionary.to_pylist(), np.asarray(encoded.indices, dtype=np.int32)

    def _lanes(
        self, names: list[str], topics: Int32s, wanted: Int32s, key: _Bytes, bounds: Int64s
    ) -> tuple[Int64s, list[TopicPartition]]:
        """Return the lane of each row, and the partition of each lane."""
        settings = self._settings
        counts = [self._partition_count(name) for name in names]
        partitions = [TopicPartition(name, index) for name, n in zip(names, counts, strict=True) for index in range(n)]
        first = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)[:-1]])
        before = [
            self._sticky.get(name) or (self._chance.randrange(n), 0) for name, n in zip(names, counts, strict=True)
        ]
        sticky = np.array([partition for partition, _ in before], dtype=np.int64)
        left = np.array([left for _, left in before], dtype=np.int64)
        lanes = np.empty(len(topics), dtype=np.int64)
        bad = kernels.assign_lanes(
            topics,
            first,
            np.array(counts, dtype=np.int64),
            wanted,
            *key,
            bounds,
            sticky,
            left,
            settings.batch_bytes,
            lanes,
        )
        if bad >= 0:
            topic = names[topics[bad]]
            raise RowRefused(
                f"partition {int(wanted[bad])} is not one of topic {topic!r}, which has {counts[topics[bad]]} partitions"
            )
        self._sticky |= {name: (int(sticky[at]), int(left[at])) for at, name in enumerate(names)}
        return lanes, partitions

    def _ready(self, out: memoryview, table: list[list[int]], partitions: list[TopicPartition]) -> list[ReadyBatch]:
        codec, level = self._settings.codec, self._settings.level
        ready = []
        for lane, start, stop, count, base_timestamp, max_timestamp in table:
            data = out[start:stop]
            if codec is not Codec.NONE:
                body = compress(codec, data[HEADER_SIZE:], level)
                data = memoryview(bytearray(HEADER_SIZE + len(body)))
                data[HEADER_SIZE:] = body
            fields = (count - 1, base_timestamp, max_timestamp, -1, -1, NO_SEQUENCE, count)
            HEADER.pack_into(data, 0, 0, len(data) - LOG_OVERHEAD, -1, MAGIC_V2, 0, codec, *fields)
            ready.append(ReadyBatch(partitions[lane], count, data))
        return ready


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    """Return the column of this name in any case, as Spark resolves names."""
    for index, known in enumerate(batch.schema.names):
        if known.lower() == name:
            return batch.column(index)
    return None


def _bytes_column(column: pa.Array | None, rows: int) -> _Bytes:
    if column is None:
        return _Bytes(np.zeros(rows, dtype=np.int64), np.full(rows, -1, dtype=np.int64), _NO_BYTES)
    _, offsets_buffer, data_buffer = column.buffers()
    kind = np.int64 if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type) else np.int32
    offsets: Int64s = np.zeros(len(column) + 1, dtype=np.int64)
    if offsets_buffer is not None and len(column):
        offsets[:] = np.frombuffer(offsets_buffer, dtype=kind)[column.offset : column.offset + len(column) + 1]
    starts = offsets[:-1]
    sizes = offsets[1:] - starts
    if column.null_count:
        sizes[np.asarray(column.is_null())] = -1
    data = _NO_BYTES if data_buffer is None else np.frombuffer(data_buffer, dtype=np.uint8)
    return _Bytes(np.ascontiguousarray(starts), sizes, data)


def _headers(column: pa.Array | None, rows: int) -> tuple[Int64s, _Bytes, _Bytes]:
    """Return where the headers of each row begin, and the keys and values of all headers."""
    if column is None:
        return np.zeros(rows + 1, dtype=np.int64), _bytes_column(None, 0), _bytes_column(None, 0)
    offsets = np.asarray(column.offsets).astype(np.int64)
    if column.null_count and np.any(np.diff(offsets)[np.asarray(column.is_null())]):
        # A null list may cover entries that belong to no row: only then is the column copied.
        column = pc.if_else(column.is_valid(), column, pa.scalar([], column.type))
        offsets = np.asarray(column.offsets).astype(np.int64)
    first = int(offsets[0])
    entries = column.values.slice(first, int(offsets[-1]) - first)
    keys, values = entries.field(0), entries.field(1)
    if entries.null_count or keys.null_count:
        raise RowRefused("a header is null or has a null key, which a record cannot hold")
    return offsets - first, _bytes_column(keys, len(entries)), _bytes_column(values, len(entries))


def _partitions(column: pa.Array | None, rows: int) -> Int32s:
    if column is None:
        return np.full(rows, kernels.NO_PARTITION, dtype=np.int32)
    filled = column.fill_null(kernels.NO_PARTITION) if column.null_count else column
    wanted = np.asarray(filled, dtype=np.int32).copy()
    # A row's own negative number must not be taken for NO_PARTITION.
    if column.null_count < rows and wanted.min() < 0:
        valid = np.asarray(column.is_valid())
        wanted[valid & (wanted < 0)] = np.iinfo(np.int32).min
    return wanted


def _timestamps(column: pa.Array | None, rows: int, now_ms: int) -> Int64s:
    if column is None:
        return np.full(rows, now_ms, dtype=np.int64)
    micros = pc.cast(column, pa.timestamp("us", column.type.tz)).view(pa.int64())
    millis = np.floor_divide(np.asarray(micros.fill_null(now_ms * 1000)).astype(np.int64), 1000)
    if rows and millis.min() < 0:
        raise RowRefused("a timestamp lies before 1970, which a record cannot hold")
    return millis
