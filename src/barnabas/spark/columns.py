"""Record batches into Arrow columns: the columns of Spark's own Kafka source, filled without an object per record.

`BatchDecoder` takes the bytes of fetches or of segments one after the other and yields Arrow record batches. It decides which
batches count (offsets, control batches, aborted transactions), checks and decompresses them; `kernels` does the records.
Only message format v2. Input that is torn or made up gives `Malformed` with the partition and the batch's offset.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from numpy.typing import NDArray

from barnabas.base.errors import Malformed
from barnabas.base.ids import TopicPartition
from barnabas.spark import kernels as k
from barnabas.wire import record_kernels as r
from barnabas.wire.compression import DEFAULT_MAX_DECOMPRESSED_BYTES, decompress
from barnabas.wire.record_batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL_FLAG,
    HEADER_SIZE,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    read_header,
)
from barnabas.wire.records import ControlType, control_type, iter_records

Bytes = bytes | bytearray | memoryview

_HEADERS: Final = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
#: Row schema of Spark's own `kafka` source, by name.
TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": _HEADERS,
}
COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")

#: Large enough that Spark's cost per Arrow batch does not show, small enough for caches and for a task's memory.
MAX_ROWS: Final = 32 * 1024
MAX_BYTES: Final = 16 * 1024 * 1024

#: Length, attributes, timestamp delta, offset delta, key length, value length, header count: a byte each.
_RECORD_MIN: Final = 7
_SCAN_ROWS: Final = 4096
_NOTHING: Final = r.byte_array(b"")

_WRONG: Final = {
    k.BAD_VARINT: "a variable-length integer runs past its end",
    k.BAD_RECORD_LENGTH: "a record's length is not possible",
    k.BAD_OFFSET_DELTA: "a record's offset is not in order or outside its batch",
    k.BAD_KEY: "a key's length is not possible",
    k.BAD_VALUE: "a value's length is not possible",
    k.BAD_HEADER_COUNT: "a record's count of headers is not possible",
    k.BAD_HEADER: "a record header's length is not possible",
    k.BAD_RECORD_END: "a record does not end where its length says",
    k.BAD_BODY_END: "bytes follow the last record",
}


class Aborted(Protocol):
    """An aborted transaction, as in Fetch and in the transaction index."""

    @property
    def producer_id(self) -> int: ...
    @property
    def first_offset(self) -> int: ...


class _Body(NamedTuple):
    """A batch's records, ready for the kernel: a row of its table, and the bytes if they had to be decompressed."""

    row: tuple[int, int, int, int, int, int, int, int]
    inflated: bytes | None
    append_time: bool

    @property
    def rows(self) -> int:
        return self.row[k.BODY_COUNT]

    @property
    def size(self) -> int:
        return self.row[k.STOP] - self.row[k.START]


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([pa.field(name, TYPES[name]) for name in columns])


class BatchDecoder:
    """One partition's records from `from_offset` to before `to_offset`. Owner: one thread."""

    def __init__(
        self,
        partition: TopicPartition,
        *,
        from_offset: int,
        to_offset: int,
        columns: Sequence[str] = COLUMNS,
        read_committed: bool = False,
        check_crcs: bool = True,
        max_rows: int = MAX_ROWS,
        max_bytes: int = MAX_BYTES,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    ) -> None:
        self.partition = partition
        #: Records below are decoded, or the log has none there: the next bytes must begin here, or shortly before.
        self.position = from_offset
        self.to_offset = to_offset
        self.schema = arrow_schema(columns)
        self._columns = tuple(columns)
        self._read_committed = read_committed
        self._check_crcs = check_crcs
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        #: Most rows of one Arrow batch: a small range needs no room for more.
        self._rows_most = min(max_rows, to_offset - from_offset)
        self._max_decompressed_bytes = max_decompressed_bytes
        self._table: r.Int64s = np.empty((_SCAN_ROWS, r.TABLE_WIDTH), dtype=np.int64)
        self._constants: dict[tuple[str, bool], pa.Array] = {}
        self._ended = False

    @property
    def done(self) -> bool:
        """Whether the range is read to its end. Its last offsets may have no records, as after compaction."""
        return self._ended or self.position >= self.to_offset

    def decode(self, data: Bytes, aborted: Iterable[Aborted] = (), *, cut: bool = True) -> Iterator[pa.RecordBatch]:
        """Yield the records of the range that `data`, whole batches in a row, contains. `position` moves on with the batches
        yielded.

        `aborted`: the aborted transactions of these bytes, from the same fetch. The last batch may be `cut`, as
        brokers do; a first one that is not whole moves nothing, and the caller fetches more.
        """
        raw = r.byte_array(data)
        filtering = _AbortedFilter(aborted) if self._read_committed else None
        waiting: list[_Body] = []
        rows = size = 0
        reached = self.position
        for batch in self._batches(data, raw, cut=cut):
            body = self._body(data, batch, filtering)
            if body is not None:
                full = rows + body.rows > self._max_rows or size + body.size > self._max_bytes
                if waiting and (full or waiting[0].append_time != body.append_time):
                    yield from self._arrow(raw, waiting)
                    waiting, rows, size = [], 0, 0
                    self.position = reached
                waiting.append(body)
                rows += body.rows
                size += body.size
            reached = max(reached, batch[r.LAST_OFFSET] + 1)
        if waiting:
            yield from self._arrow(raw, waiting)
        self.position = max(self.position, reached)

    def _batches(self, data: Bytes, raw: r.ByteArray, *, cut: bool) -> Iterator[list[int]]:
        """Yield the headers of the batches that reach into the range. A batch past its end sets `position` to the end."""
        pos, end = 0, len(raw)
        while pos < end:
            count, pos, code = r.scan_batches(raw, pos, end, self._table)
            for row in self._table[:count].tolist():
                if row[r.BASE_OFFSET] >= self.to_offset:
                    self._ended = True
                    return
                if row[r.LAST_OFFSET] >= self.position:
                    yield row
            if code == r.TORN and cut:
                return
            if code != r.OK:
                raise self._malformed(data, pos, code)

    def _body(self, data: Bytes, batch: list[int], filtering: "_AbortedFilter | None") -> _Body | None:
        """Return the records of a batch that an application sees, checked and decompressed; None if it sees none."""
        pos, after, attributes = batch[r.POS], batch[r.AFTER], batch[r.ATTRIBUTES]
        if self._check_crcs:
            with memoryview(data) as whole, whole[pos + ATTRIBUTES_AT : after] as covered:
                if crc32c(covered) != batch[r.CRC]:
                    raise Malformed(f"{self._place(batch)} is corrupt: its CRC does not match")
        if filtering is not None and filtering.drops(data, batch):
            return None
        if attributes & CONTROL_FLAG or batch[r.COUNT] == 0:
            return None
        start, stop, inflated = pos + HEADER_SIZE, after, None
        codec = attributes & CODEC_MASK
        if codec:
            try:
                with memoryview(data) as whole, whole[start:after] as body:
                    inflated = decompress(codec, body, self._max_decompressed_bytes)
            except Malformed as error:
                raise Malformed(f"{self._place(batch)}: {error}") from None
            start, stop = 0, len(inflated)
        if batch[r.COUNT] * _RECORD_MIN > stop - start:
            raise Malformed(f"{self._place(batch)} claims {batch[r.COUNT]} records in {stop - start} bytes")
        append_time = bool(attributes & TIMESTAMP_TYPE_FLAG)
        timestamp = batch[r.MAX_TIMESTAMP if append_time else r.BASE_TIMESTAMP]
        row = (
            inflated is not None,
            start,
            stop,
            batch[r.BASE_OFFSET],
            batch[r.LAST_OFFSET],
            timestamp,
            append_time,
            batch[r.COUNT],
        )
        return _Body(row, inflated, append_time)

    # -- columns --------------------------------------------------------------------------------------------------------

    def _arrow(self, raw: r.ByteArray, bodies: list[_Body]) -> Iterator[pa.RecordBatch]:
        """The records of `bodies`, which agree in their timestamp type, as Arrow batches of at most `max_rows`."""
        inflated, table = _joined(bodies)
        room = sum(body.rows for body in bodies)
        size = sum(body.size for body in bodies)
        wants = frozenset(self._columns)
        offsets = _Fixed(room if "offset" in wants else 0)
        timestamps = _Fixed(room if "timestamp" in wants else 0)
        keys = _Variable(room, size, wanted="key" in wants)
        values = _Variable(room, size, wanted="value" in wants)
        counts = np.empty(room if "headers" in wants else 0, dtype=np.int64)
        places = np.empty(room if "headers" in wants else 0, dtype=np.int64)
        result: r.Int64s = np.zeros(k.RESULT_WIDTH, dtype=np.int64)
        k.read_records(
            raw,
            inflated,
            table,
            self.position,
            self.to_offset,
            offsets.array,
            timestamps.array,
            keys.ends,
            keys.valid,
            keys.bytes,
            values.ends,
            values.valid,
            values.bytes,
            counts,
            places,
            result,
        )
        if result[k.ERROR]:
            base = int(table[result[k.ERROR_BODY], k.BODY_BASE])
            raise Malformed(f"{self.partition}, batch at offset {base}: {_WRONG[int(result[k.ERROR])]}")
        rows = int(result[k.ROWS])
        if not rows:
            return
        by_name: dict[str, pa.Array] = {}
        if "offset" in wants:
            by_name["offset"] = offsets.arrow(TYPES["offset"], rows)
        if "timestamp" in wants:
            by_name["timestamp"] = timestamps.arrow(TYPES["timestamp"], rows)
        if "key" in wants:
            by_name["key"] = keys.arrow(pa.binary(), rows, int(result[k.KEY_BYTES]), int(result[k.KEY_NULLS]))
        if "value" in wants:
            by_name["value"] = values.arrow(pa.binary(), rows, int(result[k.VALUE_BYTES]), int(result[k.VALUE_NULLS]))
        if "headers" in wants:
            by_name["headers"] = _headers(raw, inflated, table, counts[:rows], places[:rows], result)
        arrays = [
            by_name[name] if name in by_name else self._constant(name, rows, bodies[0].append_time)
            for name in self._columns
        ]
        whole = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        for at in range(0, rows, self._max_rows):
            yield whole.slice(at, self._max_rows) if rows > self._max_rows else whole

    def _constant(self, name: str, rows: int, append_time: bool) -> pa.Array:
        """Return a column that is the same in every row: created once, then cut."""
        value: str | int
        if name == "topic":
            value = self.partition.topic
        else:
            value = self.partition.partition if name == "partition" else int(append_time)
        kept = self._constants.get((name, append_time))
        if kept is None or len(kept) < rows:
            kept = pa.repeat(pa.scalar(value, TYPES[name]), max(rows, self._rows_most))
            self._constants[name, append_time] = kept
        return kept.slice(0, rows)

    # -- errors ---------------------------------------------------------------------------------------------------------

    def _place(self, batch: list[int]) -> str:
        return f"{self.partition}, batch at offset {batch[r.BASE_OFFSET]}"

    def _malformed(self, data: Bytes, pos: int, code: int) -> Malformed:
        with memoryview(data) as view:
            if code == r.BAD_MAGIC:
                try:
                    read_header(view, pos)
                except Malformed as error:
                    return Malformed(f"{self.partition}: {error}")
            if code == r.TORN:
                return Malformed(f"{self.partition}: batch at position {pos} is torn: {len(view) - pos} bytes are left")
        what = "a length less than its own header" if code == r.BAD_LENGTH else "a negative last offset or record count"
        return Malformed(f"{self.partition}: batch at position {pos} claims {what}")


class _AbortedFilter:
    """Decides which batches belong to aborted transactions. Order matters: the producer's next transaction may be committed."""

    def __init__(self, aborted: Iterable[Aborted]) -> None:
        #: (first offset, producer id), the lowest offset last.
        self._ahead = sorted(((entry.first_offset, entry.producer_id) for entry in aborted), reverse=True)
        self._inside: set[int] = set()

    def drops(self, data: Bytes, batch: list[int]) -> bool:
        while self._ahead and self._ahead[-1][0] <= batch[r.LAST_OFFSET]:
            self._inside.add(self._ahead.pop()[1])
        if not self._inside:
            return False
        producer_id = batch[r.PRODUCER_ID]
        if batch[r.ATTRIBUTES] & CONTROL_FLAG:
            with memoryview(data) as view:
                marker = next(iter_records(view, batch[r.POS]), None)
            if marker is not None and control_type(marker.key) is ControlType.ABORT:
                self._inside.discard(producer_id)
            return True
        return bool(batch[r.ATTRIBUTES] & TRANSACTIONAL_FLAG) and producer_id in self._inside


# -- Arrow buffers ------------------------------------------------------------------------------------------------------


class _Fixed:
    """Room for a column of 64-bit integers; 0 rows if the query does not read it."""

    def __init__(self, rows: int) -> None:
        self._buffer = pa.allocate_buffer(rows * 8)
        self.array: r.Int64s = np.frombuffer(self._buffer, dtype=np.int64)

    def arrow(self, kind: pa.DataType, rows: int) -> pa.Array:
        return pa.Array.from_buffers(kind, rows, [None, self._buffer.slice(0, rows * 8)], null_count=0)


class _Variable:
    """Room for a column of byte strings. Unused bytes cost nothing: the system maps a page when it is written."""

    def __init__(self, rows: int, size: int, *, wanted: bool = True) -> None:
        self._ends = pa.allocate_buffer((rows + 1) * 4 if wanted else 0)
        self._bytes = pa.allocate_buffer(size if wanted else 0)
        self.ends = np.frombuffer(self._ends, dtype=np.int32)
        self.bytes = np.frombuffer(self._bytes, dtype=np.uint8)
        self.valid = _all_valid(rows if wanted else 0)
        if wanted:
            self.ends[0] = 0

    def arrow(self, kind: pa.DataType, rows: int, size: int, nulls: int) -> pa.Array:
        valid = pa.py_buffer(self.valid) if nulls else None
        buffers = [valid, self._ends.slice(0, (rows + 1) * 4), self._bytes.slice(0, size)]
        return pa.Array.from_buffers(kind, rows, buffers, null_count=nulls)


def _all_valid(rows: int) -> NDArray[np.uint8]:
    return np.full((rows + 7) // 8, 0xFF, dtype=np.uint8)


def _joined(bodies: list[_Body]) -> tuple[r.ByteArray, r.Int64s]:
    """Put decompressed bodies end to end; return them with the table of their places."""
    table: r.Int64s = np.array([body.row for body in bodies], dtype=np.int64)
    pieces = [body.inflated for body in bodies if body.inflated is not None]
    if not pieces:
        return _NOTHING, table
    packed = table[:, k.INFLATED] == 1
    sizes = table[packed, k.STOP]
    ends = np.cumsum(sizes)
    table[packed, k.START] = ends - sizes
    table[packed, k.STOP] = ends
    return r.byte_array(pieces[0] if len(pieces) == 1 else b"".join(pieces)), table


def _headers(
    raw: r.ByteArray, inflated: r.ByteArray, table: r.Int64s, counts: r.Int64s, places: r.Int64s, result: r.Int64s
) -> pa.Array:
    total, rows = int(result[k.HEADERS]), len(counts)
    keys = _Variable(total, int(result[k.HEADER_KEY_BYTES]))
    values = _Variable(total, int(result[k.HEADER_VALUE_BYTES]))
    lists = _Variable(rows, 0)
    nulls = k.read_headers(
        raw,
        inflated,
        table,
        counts,
        places,
        lists.ends,
        lists.valid,
        keys.ends,
        keys.bytes,
        values.ends,
        values.valid,
        values.bytes,
    )
    key_array = _texts(keys.arrow(pa.binary(), total, int(result[k.HEADER_KEY_BYTES]), 0))
    value_array = values.arrow(pa.binary(), total, int(result[k.HEADER_VALUE_BYTES]), int(nulls))
    structs = pa.StructArray.from_arrays([key_array, value_array], fields=list(_HEADERS.value_type))
    without = int(result[k.PLAIN_ROWS])
    valid = pa.py_buffer(lists.valid) if without else None
    ends = pa.py_buffer(lists.ends)
    return pa.Array.from_buffers(_HEADERS, rows, [valid, ends], null_count=without, children=[structs])


def _texts(keys: pa.Array) -> pa.Array:
    """Cast keys to text. Some producers do not write UTF-8, and few readers accept anything else in a column of text. Java's
    client replaces such bytes, and so does this."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode(errors="replace") for key in keys.to_pylist()], pa.string())
