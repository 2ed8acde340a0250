"""Writes Arrow batches into Parquet files, one set per partition value, for the Delta and Iceberg sinks."""

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from barnabas.spark.pipelines.sinks.table_schema import TableMismatch, require_values

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.fs

#: Most rows and bytes in memory at a time, on an executor.
ROWS_MAX = 262_144
BYTES_MAX = 128 * 1024 * 1024
_ROW: Final = "barnabas_row"
#: The years 1 to 9999, which deltalake, pyiceberg and most readers can represent. The times of a producer that takes
#: microseconds for milliseconds are later.
TIME_MIN_US: Final = -62_135_596_800_000_000
TIME_MAX_US: Final = 253_402_300_799_999_999
DAY_MIN: Final = -719_162
DAY_MAX: Final = 2_932_896


def is_enough(rows: int, size_bytes: int) -> bool:
    """Whether there is enough for a file. Bytes count, too: a task would otherwise hold 262,144 values of any size."""
    return rows >= ROWS_MAX or size_bytes >= BYTES_MAX


def in_chunks(batches: "Iterator[pyarrow.RecordBatch]", written: StructType, *, what: str) -> "Iterator[pyarrow.Table]":
    """Yield tables in the types of the table `what`. A table ends with the batch that brings it to `ROWS_MAX` rows or
    `BYTES_MAX`. Raises if a column that must not be null has a null."""
    import pyarrow

    schema = to_arrow_schema(written, timezone="UTC")

    def chunk(waiting: "list[pyarrow.RecordBatch]") -> pyarrow.Table:
        table = pyarrow.Table.from_batches(waiting)
        require_values(table, written, what=what)
        return table.cast(schema)

    waiting: list[pyarrow.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            rows += batch.num_rows
            size_bytes += batch.nbytes
        if is_enough(rows, size_bytes):
            yield chunk(waiting)
            waiting, rows, size_bytes = [], 0, 0
    if waiting:
        yield chunk(waiting)


def require_named_times(rows: "pyarrow.Table", *, what: str) -> None:
    """Refuse times and days outside of the years 1 to 9999, which pyiceberg cannot write."""
    import pyarrow
    import pyarrow.compute as compute
    import pyarrow.types as types

    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if types.is_timestamp(column.type):
            numbers, least, most, unit = column.cast(pyarrow.int64()), TIME_MIN_US, TIME_MAX_US, "microseconds"
        elif types.is_date32(column.type):
            numbers, least, most, unit = column.cast(pyarrow.int32()), DAY_MIN, DAY_MAX, "days"
        else:
            continue
        ends = compute.min_max(numbers).as_py()
        wrong = [end for end in ends.values() if end is not None and not least <= end <= most]
        if wrong:
            raise TableMismatch(
                f"{what} does not take these rows: column {name} has a time that is not in the years 1 to 9999: {wrong[0]} "
                f"{unit} since 1970"
            )


def by_partition(
    table: "pyarrow.Table", columns: Sequence[str]
) -> "Iterator[tuple[dict[str, str | None], pyarrow.Table]]":
    """Yield the rows of each combination of partition values, without these columns."""
    import pyarrow

    if not columns:
        yield {}, table
        return
    # Select rows by number, not by value: NaN equals nothing, and 0.0 equals -0.0, which is another group.
    rows = pyarrow.array(range(table.num_rows), pyarrow.int64())
    numbered = table.select(list(columns)).append_column(_ROW, rows)
    groups = numbered.group_by(list(columns), use_threads=False).aggregate([(_ROW, "list")])
    others = table.drop_columns(list(columns))
    for values, chosen in zip(
        groups.select(list(columns)).to_pylist(), groups.column(f"{_ROW}_list").combine_chunks(), strict=True
    ):
        yield {name: text_of(value) for name, value in values.items()}, others.take(chosen.values)


def text_of(value: object) -> str | None:
    """Return a partition value as Delta writes it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return str(value)


def write_parquet(filesystem: "pyarrow.fs.FileSystem", path: str, table: "pyarrow.Table") -> int:
    """Write one file; return its size."""
    import pyarrow.parquet as parquet

    with filesystem.open_output_stream(path) as stream:
        parquet.write_table(table, stream, compression="zstd", coerce_timestamps="us")
        return int(stream.tell())


#: Number of characters of the smallest and largest text that Delta keeps.
_TEXT_MAX: Final = 32
#: Sorts behind all texts that begin with the same characters.
_LAST_CHARACTER: Final = "\U0010ffff"


def statistics(table: "pyarrow.Table") -> str:
    """Return Delta's statistics of a file: rows, and per simple column smallest, largest, nulls.

    A column of a type that Delta has statistics of must have all three: a reader that finds no smallest value may take it for
    null, and skip the file (deltalake's Arrow dataset does).
    """
    import pyarrow.types as types

    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if types.is_nested(column.type) or types.is_binary(column.type) or types.is_large_binary(column.type):
            continue
        nulls[name] = column.null_count
        if column.null_count < len(column):
            lowest[name], highest[name] = _ends(column)
    document = {"numRecords": table.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}
    return json.dumps(document, allow_nan=False)


def _ends(column: "pyarrow.ChunkedArray") -> tuple[object, object]:
    """Return bounds in Delta's form: no value of the column is smaller or larger."""
    import pyarrow.compute as compute
    import pyarrow.types as types

    if types.is_floating(column.type) and not compute.all(compute.is_finite(column)).as_py():
        return -sys.float_info.max, sys.float_info.max  # JSON has no other numbers
    if types.is_timestamp(column.type):
        return _times(column)
    if types.is_date(column.type):
        return _days(column)
    ends = compute.min_max(column).as_py()
    low, high = ends["min"], ends["max"]
    if isinstance(low, str):
        return low[:_TEXT_MAX], high if len(high) <= _TEXT_MAX else high[:_TEXT_MAX] + _LAST_CHARACTER
    if isinstance(low, Decimal):
        return _number(low, math.floor), _number(high, math.ceil)
    return low, high


def _days(column: "pyarrow.ChunkedArray") -> tuple[str, str]:
    """Return the bounds of days, moved into the years 1 to 9999."""
    import pyarrow.compute as compute

    ends = compute.min_max(column)
    clamped = (min(max(ends[name].value, DAY_MIN), DAY_MAX) for name in ("min", "max"))
    low, high = ((date(1970, 1, 1) + timedelta(days=days)).isoformat() for days in clamped)
    return low, high


def _times(column: "pyarrow.ChunkedArray") -> tuple[str, str]:
    """Return the bounds of times, moved into the years 1 to 9999 and cut to milliseconds, to which readers add one."""
    import pyarrow.compute as compute

    zone = UTC if column.type.tz else None
    ends = compute.min_max(column)
    clamped = (min(max(ends[name].value, TIME_MIN_US), TIME_MAX_US) for name in ("min", "max"))
    times = (datetime(1970, 1, 1, tzinfo=zone) + timedelta(microseconds=micros) for micros in clamped)
    low, high = (each.isoformat("T" if zone else " ", "milliseconds").replace("+00:00", "Z") for each in times)
    return low, high


def _number(value: Decimal, rounded: Callable[[Decimal], int]) -> float | int:
    """Return a decimal as a JSON number: itself, or an integer beyond it if a float is not exact."""
    near = float(value)
    return near if Decimal(repr(near)) == value else rounded(value)
