"""Null lists and maps of structs stay null in the files of an Iceberg table, whatever pyiceberg does with their rows."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, IntegerType, LongType, MapType, StringType, StructType

from barnabas.spark.pipelines.sinks.iceberg_table import IcebergTarget
from barnabas.spark.tables.upkeep import compact

_ITEM = StructType().add("x", LongType()).add("more", ArrayType(StructType().add("y", LongType())))
COLUMNS = (
    StructType()
    .add("id", IntegerType())
    .add("items", ArrayType(_ITEM))
    .add("by_name", MapType(StringType(), _ITEM))
    .add("plain", ArrayType(LongType()))
    .add("inside", StructType().add("items", ArrayType(_ITEM)))
)
_FULL = [{"x": 1, "more": None}, None, {"x": None, "more": []}, {"x": 2, "more": [{"y": 3}, None]}]
ROWS: list[dict[str, Any]] = [
    {"id": 0, "items": None, "by_name": None, "plain": None, "inside": None},
    {"id": 1, "items": [], "by_name": [], "plain": [], "inside": {"items": None}},
    {
        "id": 2,
        "items": _FULL,
        "by_name": [("a", _FULL[0]), ("b", _FULL[3])],
        "plain": [1, None],
        "inside": {"items": []},
    },
    {"id": 3, "items": None, "by_name": None, "plain": None, "inside": {"items": _FULL}},
]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    settings = {"type": "sql", "uri": f"sqlite:///{tmp_path}/iceberg.db", "warehouse": f"file://{tmp_path}"}
    return IcebergTarget("default.nulls", COLUMNS, settings).load()


def in_files(table: Table) -> list[dict[str, Any]]:
    """Return the rows as Arrow reads them from the files of the table, without pyiceberg."""
    files = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    return sorted((row for file in files for row in parquet.read_table(file).to_pylist()), key=lambda row: row["id"])


def arrow(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=to_arrow_schema(COLUMNS, timezone="UTC"))


def test_nulls_stay_when_rows_are_written(table: Table) -> None:
    table.append(arrow(ROWS))
    assert in_files(table) == ROWS
    assert sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["id"]) == ROWS


def test_nulls_stay_in_a_slice_of_what_was_read(table: Table) -> None:
    table.append(arrow(ROWS)[1:])
    assert in_files(table) == ROWS[1:]


def test_nulls_stay_when_a_row_beside_them_is_deleted(table: Table) -> None:
    table.append(arrow(ROWS))
    table.delete(EqualTo("id", 2))  # type: ignore[call-arg]
    assert in_files(table) == [row for row in ROWS if row["id"] != 2]


def test_nulls_stay_when_files_are_put_together(table: Table) -> None:
    for row in ROWS:
        table.append(arrow([row]))
    assert compact(table, 2) == len(ROWS)
    assert in_files(table.refresh()) == ROWS
