"""A Delta table keeps the values that changes of its rows left alone."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BooleanType, LongType, StringType, StructType

from barnabas.spark.pipelines._errors import ERROR_TYPE
from barnabas.spark.pipelines.cdc import check_changes, has_unchanged
from barnabas.spark.pipelines.delta_upsert import DeltaUpsertSource
from barnabas.spark.pipelines.sinks.exactly_once import Batch, Task

SCHEMA = (
    StructType()
    .add("id", LongType())
    .add("a", StringType())
    .add("b", StringType())
    .add("_deleted", BooleanType())
    .add("_sequence", StringType())
    .add("_unchanged", ArrayType(StringType()))
)
Row = tuple[int, str | None, str | None, bool, str, list[str] | None]


def apply(folder: Path, batch: int, *rows: Row, deletes: str = "hard") -> list[tuple[object, ...]]:
    source = DeltaUpsertSource(CaseInsensitiveDict({"path": str(folder), "key": "id", "deletes": deletes}))
    target = source.streamWriter(SCHEMA, False).target
    arrow = to_arrow_schema(SCHEMA, timezone="UTC")
    items = []
    for task, row in enumerate(rows):
        data = pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, row, strict=True))], schema=arrow)
        items += target.stage(iter([data]), Task("q", batch, task, 0))
    target.publish(items, Batch("q", batch))
    table = DeltaTable(folder).to_pyarrow_table().sort_by("id")
    assert "_unchanged" not in table.column_names
    return [(row["id"], row["a"], row["b"]) for row in table.to_pylist()]


def test_merge_keeps_values_that_changes_left_alone(tmp_path: Path) -> None:
    for deletes in ("hard", "soft"):
        folder = tmp_path / deletes
        apply(
            folder,
            0,
            (1, "a", "b", False, "01", None),
            (2, "a", "b", False, "02", None),
            (3, "a", None, False, "03", None),
            deletes=deletes,
        )
        found = apply(
            folder,
            1,
            (1, "a2", None, False, "11", ["b"]),  # the table has the value
            (2, "x", "y", False, "12", None),  # the batch has it
            (2, None, None, False, "13", ["a", "b"]),
            (2, "z", None, False, "14", ["b"]),
            (3, "a3", None, False, "15", ["b"]),  # the value is null
            (4, "a4", None, False, "16", ["b"]),  # no value is known
            deletes=deletes,
        )
        assert found == [(1, "a2", "b"), (2, "z", "y"), (3, "a3", None), (4, "a4", None)], deletes
        late = apply(folder, 2, (1, "late", None, False, "10", ["b"]), deletes=deletes)
        assert late[0] == (1, "a2", "b")
        assert apply(folder, 3, (1, "plain", "p", False, "31", None), deletes=deletes)[0] == (1, "plain", "p")


def test_rows_that_may_be_bad_are_not_applied_before_they_are_split() -> None:
    with pytest.raises(ValueError, match=r"rows have _error: .*dead_letter\.split\(rows, error='_error'\)"):
        check_changes(StructType([*SCHEMA.fields]).add("_error", ERROR_TYPE), ["id"])


def test_only_a_list_of_names_marks_unchanged_columns() -> None:
    assert has_unchanged(SCHEMA)
    assert has_unchanged(StructType().add("_unchanged", ArrayType(StringType(), containsNull=False)))
    assert not has_unchanged(StructType().add("_unchanged", BooleanType()))
    assert not has_unchanged(StructType().add("id", LongType()))
