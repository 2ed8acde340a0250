"""Makes rows of plain records in the task that reads them, without the JVM.

Arrow's JSON reader accepts less than Spark's `from_json`, but reads what it accepts in the same way: a test compares them.
(But `-0` as a double is -0.0 here, which equals 0.0.) Other records are left over for Spark: a value that is not JSON or has
another type than its column, a field that the table does not have, a tombstone of an upsert. So no record is lost, and the
decisions about such records have one place.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Final

import pyarrow
import pyarrow.compute as compute
import pyarrow.json
import pyarrow.types as types
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BooleanType, DataType, DoubleType, LongType, StringType, StructType

from barnabas.spark.pipelines.sinks.files import TIME_MAX_US, TIME_MIN_US
from barnabas.spark.tables.inference import STRUCT_LEVELS_MAX

#: Records that are parsed at a time. If they are not all plain, halves of them are tried, down to the smaller number.
_BLOCK_RECORDS: Final = 8192
_BLOCK_RECORDS_MIN: Final = 512
#: Fields of a block for which Arrow may have to build columns.
_NAMES_MAX: Final = 40 * _BLOCK_RECORDS_MIN
#: A task that has left over most records of this many tries no more.
_TRIAL_RECORDS: Final = 4 * _BLOCK_RECORDS
_VALUE: Final = "value"
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"{}[]"))
_TIME: Final = "timestamp"


def is_plain(kind: DataType) -> bool:
    """Whether Arrow reads the type as Spark does: the types that JSON itself has."""
    if isinstance(kind, StructType):
        return bool(kind.fields) and all(is_plain(each.dataType) for each in kind.fields)
    if isinstance(kind, ArrayType):
        return is_plain(kind.elementType)
    return isinstance(kind, LongType | DoubleType | BooleanType | StringType)


@dataclass(frozen=True)
class Direct:
    """The way from plain records to rows. Goes to executors by pickle."""

    #: The columns of the JSON; None if the value itself is the column.
    json: StructType | None
    #: Pairs of a column of the table and the record's column that it takes.
    beside: tuple[tuple[str, str], ...]
    #: Columns that a plain row must have.
    required: tuple[str, ...] = ()
    #: The column that says whether a change deletes; a plain row does not.
    deleted: str | None = None


class DirectReader:
    """The reader of one task. It calls `split` for batch after batch."""

    def __init__(self, direct: Direct) -> None:
        self._direct = direct
        #: Options of Arrow's reader: `_strict` allows no unknown field, with `_inferring` Arrow builds types for unknown ones.
        self._strict: pyarrow.json.ParseOptions | None = None
        if direct.json is not None:
            self._schema = to_arrow_schema(direct.json, timezone="UTC")
            self._strict, self._inferring = (
                pyarrow.json.ParseOptions(explicit_schema=self._schema, unexpected_field_behavior=behavior)
                for behavior in ("error", "infer")
            )
        self._tried = 0
        self._left = 0

    def split(self, records: pyarrow.RecordBatch) -> tuple[list[pyarrow.RecordBatch], list[pyarrow.RecordBatch]]:
        """Return the rows of the table, and the records that are left over."""
        if self._tried >= _TRIAL_RECORDS and self._left > self._tried // 2:
            return [], [records]
        rows: list[pyarrow.RecordBatch] = []
        plain, rest = _divided(records, self._may_be_plain(records))
        for start in range(0, plain.num_rows, _BLOCK_RECORDS):
            self._take(plain.slice(start, _BLOCK_RECORDS), rows, rest)
        self._tried += records.num_rows
        self._left += sum(each.num_rows for each in rest)
        return rows, rest

    def _may_be_plain(self, records: pyarrow.RecordBatch) -> pyarrow.BooleanArray:
        values = records.column(_VALUE)
        if self._strict is None:
            wanted = values.is_valid() if self._direct.deleted is not None else pyarrow.repeat(True, len(values))
        else:
            wanted = compute.and_(compute.starts_with(values, b"{"), compute.ends_with(values, b"}"))
            wanted = compute.and_(wanted, _are_shallow(values))
        if _TIME in records.schema.names:
            micros = records.column(_TIME).view(pyarrow.int64())
            after, before = compute.greater_equal(micros, TIME_MIN_US), compute.less_equal(micros, TIME_MAX_US)
            wanted = compute.and_(wanted, compute.and_(after, before))
        return wanted.fill_null(False)

    def _take(
        self, block: pyarrow.RecordBatch, rows: list[pyarrow.RecordBatch], rest: list[pyarrow.RecordBatch]
    ) -> None:
        columns = self._columns(block.column(_VALUE), self._strict)
        if columns is None and block.num_rows > _BLOCK_RECORDS_MIN:
            half = block.num_rows // 2
            self._take(block.slice(0, half), rows, rest)
            self._take(block.slice(half), rows, rest)
            return
        if columns is None and _may_be_inferred(block.column(_VALUE)):
            columns = self._columns(block.column(_VALUE), self._inferring)
        if columns is None:
            rest.append(block)
            return
        columns |= {name: block.column(source) for name, source in self._direct.beside}
        if self._direct.deleted is not None:
            columns[self._direct.deleted] = pyarrow.repeat(False, block.num_rows)
        batch = pyarrow.RecordBatch.from_pydict(columns)
        present = [_is_there(columns[name]) for name in self._direct.required]
        if not all(each.true_count == len(each) for each in present):
            has_all = reduce(compute.and_, present)
            batch = batch.filter(has_all)
            rest.append(block.filter(compute.invert(has_all)))
        rows.append(batch)

    def _columns(
        self, values: pyarrow.BinaryArray, options: "pyarrow.json.ParseOptions | None"
    ) -> dict[str, pyarrow.Array] | None:
        """Return the columns of the values; None if not all values are plain."""
        if options is None:
            return {_VALUE: values}
        try:
            text = values.cast(pyarrow.string())
            # Every value begins with { and ends with }, and no JSON string contains a newline. So no record's text goes on
            # in the next one: if there are as many rows as records, each record has its row.
            lines = compute.binary_join(pyarrow.ListArray.from_arrays([0, len(text)], text), "\n")[0].as_buffer()
            found = pyarrow.json.read_json(
                pyarrow.BufferReader(lines),
                read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=lines.size + 1),
                parse_options=options,
            ).combine_chunks()
        except pyarrow.ArrowInvalid:
            return None
        if found.num_rows != len(values):
            return None
        columns = {}
        for field in found.schema:
            if field.name in self._schema.names:
                wanted = self._schema.field(field.name).type
                if not _covers(wanted, field.type):
                    return None
                column = found.column(field.name).chunk(0)
                columns[field.name] = column if field.type == wanted else column.cast(wanted)
            elif not _is_void(field.type):
                return None
        return {name: columns[name] for name in self._schema.names}


def _are_shallow(values: pyarrow.BinaryArray) -> pyarrow.BooleanArray:
    """Return for each value whether it has at most `STRUCT_LEVELS_MAX` objects and arrays within each other.

    Arrow's reader and later code descend by recursion: with 100 KB of `{"a":` the process dies.
    """
    opened = compute.add(compute.count_substring(values, b"{"), compute.count_substring(values, b"["))
    many = compute.greater(opened, STRUCT_LEVELS_MAX).fill_null(False)
    if many.true_count == 0:
        return pyarrow.repeat(True, len(values))
    # Few values get here. Brackets within strings count, too: such a value is left over for Spark.
    may_be = many.to_pylist()
    return pyarrow.array(
        [not each or _is_shallow(value.as_py()) for each, value in zip(may_be, values, strict=True)], pyarrow.bool_()
    )


def _is_shallow(value: bytes) -> bool:
    brackets = value.translate(None, _NO_BRACKETS)
    for _ in range(STRUCT_LEVELS_MAX):
        brackets = brackets.replace(b"{}", b"").replace(b"[]", b"")
    return not brackets


def _may_be_inferred(values: pyarrow.BinaryArray) -> bool:
    """Whether the block has few enough names: Arrow builds a column, as long as the block, for each unknown field."""
    names = compute.sum(compute.count_substring(values, b":"), min_count=0).as_py()
    return bool(names <= _NAMES_MAX)


def _divided(
    records: pyarrow.RecordBatch, wanted: pyarrow.BooleanArray
) -> tuple[pyarrow.RecordBatch, list[pyarrow.RecordBatch]]:
    if wanted.true_count == records.num_rows:
        return records, []
    return records.filter(wanted), [records.filter(compute.invert(wanted))]


def _is_there(column: pyarrow.Array) -> pyarrow.BooleanArray:
    """Return for each value whether it may be a key: neither null nor NaN."""
    if types.is_floating(column.type):
        return compute.invert(compute.is_null(column, nan_is_null=True))
    return column.is_valid()


def _covers(wanted: pyarrow.DataType, found: pyarrow.DataType) -> bool:
    """Whether the wanted type has all of the found one, except for fields whose type is unknown: null, or empty."""
    if types.is_struct(wanted) and types.is_struct(found):
        names = {each.name: each.type for each in wanted}
        return all(
            _covers(names[each.name], each.type) if each.name in names else _is_void(each.type) for each in found
        )
    if types.is_list(wanted) and types.is_list(found):
        return _covers(wanted.value_type, found.value_type)
    return bool(wanted == found)


def _is_void(kind: pyarrow.DataType) -> bool:
    """Whether the type makes no column, as in `inference`."""
    if types.is_struct(kind):
        return all(_is_void(each.type) for each in kind)
    return _is_void(kind.value_type) if types.is_list(kind) else bool(types.is_null(kind))
