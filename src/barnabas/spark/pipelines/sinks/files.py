"""Arrow batches into Parquet files, one set per partition value: what the Delta and Iceberg sinks put aside."""

import json
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from barnabas.spark.pipelines.sinks.table_schema import require_values

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.fs

#: Rows in memory at a time, on an executor.
ROWS_MAX = 262_144


def in_chunks(batches: "Iterator[pyarrow.RecordBatch]", written: StructType, *, what: str) -> "Iterator[pyarrow.Table]":
    """Tables of up to `ROWS_MAX` rows or a batch more, in the types of the table `what`, with a value wherever it needs one."""
    import pyarrow

    schema = to_arrow_schema(written, timezone="UTC")

    def chunk(waiting: "list[pyarrow.RecordBatch]") -> pyarrow.Table:
        table = pyarrow.Table.from_batches(waiting)
        require_values(table, written, what=what)
        return table.cast(schema)

    waiting: list[pyarrow.RecordBatch] = []
    rows = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            rows += batch.num_rows
        if rows >= ROWS_MAX:
            yield chunk(waiting)
            waiting, rows = [], 0
    if waiting:
        yield chunk(waiting)


def by_partition(
    table: "pyarrow.Table", columns: Sequence[str]
) -> "Iterator[tuple[dict[str, str | None], pyarrow.Table]]":
    """The rows of each combination of partition values, without these columns."""
    import pyarrow.compute as compute

    if not columns:
        yield {}, table
        return
    for combination in table.select(list(columns)).group_by(list(columns)).aggregate([]).to_pylist():
        chosen = table
        for name, value in combination.items():
            column = chosen.column(name)
            chosen = chosen.filter(compute.is_null(column) if value is None else compute.equal(column, value))
        yield {name: text_of(value) for name, value in combination.items()}, chosen.drop_columns(list(columns))


def text_of(value: object) -> str | None:
    """A partition value as Delta writes it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")
    return str(value)


def write_parquet(filesystem: "pyarrow.fs.FileSystem", path: str, table: "pyarrow.Table") -> int:
    """Write one file; returns its size."""
    import pyarrow.parquet as parquet

    with filesystem.open_output_stream(path) as stream:
        parquet.write_table(table, stream, compression="zstd", coerce_timestamps="us")
        return int(stream.tell())


def statistics(table: "pyarrow.Table") -> str:
    """Delta's statistics of a file: rows, and per simple column smallest, largest, nulls."""
    import pyarrow.compute as compute
    import pyarrow.types as types

    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if types.is_nested(column.type):
            continue
        nulls[name] = column.null_count
        simple = types.is_integer(column.type) or types.is_date(column.type)
        if simple and column.null_count < len(column):
            ends = compute.min_max(column).as_py()
            lowest[name], highest[name] = _json_value(ends["min"]), _json_value(ends["max"])
    document = {"numRecords": table.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}
    return json.dumps(document)


def _json_value(value: object) -> object:
    return value.isoformat() if isinstance(value, date) else str(value) if isinstance(value, Decimal) else value
