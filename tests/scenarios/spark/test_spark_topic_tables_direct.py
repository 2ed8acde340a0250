"""JSON that Arrow reads in place of Spark: the same rows, and no field is missed."""

from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import ArrayType, BooleanType, DoubleType, LongType, StringType, StructType

from barnabas.spark.pipelines.codecs import Json, decode
from barnabas.spark.tables import inference
from barnabas.spark.tables.direct import Direct, DirectReader
from barnabas.testing import Kafka
from tests.topic_tables import Tables, polars_rows


@pytest.fixture
def tables(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> Tables:
    return Tables(spark, kafka, tmp_path)


_ITEM = StructType().add("z", DoubleType())
KNOWN = (
    StructType()
    .add("a", LongType())
    .add("b", DoubleType())
    .add("c", StringType())
    .add("d", BooleanType())
    .add("o", StructType().add("x", LongType()).add("y", ArrayType(_ITEM)))
    .add("l", ArrayType(DoubleType()))
)
#: By whether they are plain.
PLAIN = [
    '{"a": 1, "b": 2.5, "c": "x", "d": true, "o": {"x": 1, "y": [{"z": 1}, null, {}]}, "l": [1, 2.5, null]}',
    "{}",
    '{"a": null, "b": null, "c": null, "d": null, "o": null, "l": null}',
    '{"a": -9223372036854775808, "b": 0, "d": false, "o": {}, "l": []}',
    '{"a": -0, "b": 0.1234567890123456789}',
    '{"b": 123456789012345678901234567890, "c": "\\u0000\\n\\/\\"\\\\\\u00e9\\ud83d\\ude00\\t\\b\\f\\r"}',
    '{"b": 4.9e-324, "c": ""}',
    '{"b": 1e5, "c": "2026-11-16T00:00:00Z"}',
    '{"b": NaN}',
    '{"b": -Infinity}',
    '{\n  "a" : 1 ,\r\n\t"o" : { "x" : 2 }\n}',
    '{"new": null, "o": {"x": 1, "new": null, "also": [], "more": {"less": {}}, "y": [{"new": null}]}, "void": [[], null]}',
    '{"c": "ünïcode \U0001f600"}',
]
OTHERS = [
    '{"a": 1.0}',
    '{"a": 1e2}',
    '{"a": 9223372036854775808}',
    '{"a": "1"}',
    '{"a": 1, "a": 2}',
    '{"b": "1.5"}',
    '{"b": "NaN"}',
    '{"b": 1e400}',
    '{"c": 1}',
    '{"c": {"in": [1, 2]}}',
    '{"c": "\\ud800"}',
    '{"c": "tab\there"}',
    '{"d": "true"}',
    '{"o": []}',
    '{"l": 1}',
    '{"l": {"x": 1}}',
    "{'a': 1}",
    '{"a": 1,}',
    '{"a": 01}',
    '{"a": +1}',
    '{"a": 1} {"a": 2}',
    '{"a": 1}\n{"a": 2}',
    '{"a": 1} x',
    ' {"a": 1}',
    '{"a": 1}\n',
    '{"c": "open}',
    '{"l": [{}',
    "{",
    "}",
    "[1]",
    "1",
    "null",
    "",
    "text",
    '{"new": 1}',
    '{"new": false}',
    '{"new": "2026-11-16T00:00:00Z"}',
    '{"new": [1]}',
    '{"new": {"deep": {"er": 0}}}',
    '{"o": {"x": 1, "new": ""}}',
    '{"o": {"y": [{"z": 1}, {"new": 1.5}]}}',
]


def records(values: list[bytes | None]) -> pyarrow.RecordBatch:
    columns = {"value": pyarrow.array(values, pyarrow.binary()), "offset": pyarrow.array(range(len(values)))}
    return pyarrow.RecordBatch.from_pydict(columns)


def split(values: list[bytes | None], direct: Direct) -> tuple[dict[int, dict[str, Any]], list[int]]:
    """Return the rows by offset, and the offsets that are left over."""
    rows, rest = DirectReader(direct).split(records(values))
    found = {row.pop("at"): row for batch in rows for row in batch.to_pylist()}
    return found, [offset for batch in rest for offset in batch.column("offset").to_pylist()]


BESIDE = (("at", "offset"),)


def test_direct_reads_equal_those_of_spark_and_leave_new_fields_over(spark: SparkSession) -> None:
    texts = [*PLAIN, *OTHERS]
    whole = decode(spark.createDataFrame([Row(value=text.encode()) for text in texts]), Json(KNOWN))
    by_spark = {bytes(row["value"]): row for row in whole.collect()}
    for text in texts:
        rows, rest = split([text.encode()], Direct(KNOWN, BESIDE))
        assert (len(rows), len(rest)) == ((1, 0) if text in PLAIN else (0, 1)), text
        if rows:
            found = by_spark[text.encode()]
            assert found["error"] is None, text
            assert repr(found["data"].asDict(recursive=True)) == repr(rows[0]), text
    plain = spark.createDataFrame([(text,) for text in PLAIN], "value string")
    [seen] = plain.select(inference.seen_in(inference.objects_in(plain.value, fields_max=100))).collect()
    assert inference.joined(KNOWN, inference.row_type(seen[0])) == KNOWN, "no field comes of what is read directly"


def test_records_among_many_are_each_in_the_rows_or_left_over_at_their_own_offset() -> None:
    """Also if a text goes on in the next record, or has two objects: the number of rows would be right by accident."""
    values: list[bytes | None] = [b'{"a": %d}' % number for number in range(20_000)]
    values[5000], values[5001] = b'{"l": [{}', b"{}]}"
    values[5002] = b'{"a": 1}{"a": 2}'
    values[12_000], values[12_001] = None, b"\xff"
    values[12_002] = b'{"c": "\xff"}'
    rows, rest = split(values, Direct(KNOWN, BESIDE))
    assert sorted([*rows, *rest]) == list(range(20_000))
    assert {5000, 5001, 5002, 12_000, 12_001, 12_002} <= set(rest)
    assert len(rest) < 2000, "of a block with a bad record, most is read"
    assert all(row["a"] == offset for offset, row in rows.items())


def test_task_that_reads_little_directly_tries_no_more() -> None:
    reader = DirectReader(Direct(KNOWN, BESIDE))
    for _ in range(6):
        assert reader.split(records([b'{"a": 1.0}'] * 8192))[0] == []
    good = records([b'{"a": 1}'])
    assert reader.split(good) == ([], [good])


@pytest.mark.parametrize(("json", "value"), [(KNOWN, b'{"a": 1}'), (None, b"v")])
def test_changes_without_a_key_and_tombstones_are_left_over(json: StructType | None, value: bytes) -> None:
    batch = records([value, value, None]).append_column("key", pyarrow.array([b"k", None, b"k"]))
    direct = Direct(json, (("_key", "key"), ("at", "offset")), required=("_key",), deleted="_deleted")
    rows, rest = DirectReader(direct).split(batch)
    assert [(row["_key"], row["at"], row["_deleted"]) for each in rows for row in each.to_pylist()] == [
        (b"k", 0, False)
    ]
    assert sorted(offset for each in rest for offset in each.column("offset").to_pylist()) == [1, 2]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_columns_of_the_first_batch_come_from_all_of_its_records(tables: Tables, kind: str) -> None:
    """The first records of each partition do not show everything: types widen, and fields are added."""
    table = tables.define("first", partitions=2, format=kind, on_error="stop")
    tables.produce(table, *(("k", {"n": n, "m": n, "s": {"x": n}}, n % 2) for n in range(2100)))
    tables.produce(table, ("k", {"n": 1.5, "m": "text", "s": {"x": 1, "y": True}, "b": [1]}, 1))
    assert tables.fill(table).rows == 2101
    found = polars_rows(table)
    assert sorted(found[0]) == sorted(["b", "m", "n", "s", "_key", "_headers", "_partition", "_offset", "_timestamp"])
    assert list(found[0])[:4] == ["b", "m", "n", "s"]
    last = max(found, key=lambda row: (row["_partition"], row["_offset"]))
    assert (last["n"], last["m"], last["s"], last["b"]) == (1.5, "text", {"x": 1, "y": True}, [1])
    assert sorted(int(row["m"]) for row in found if row["m"] != "text") == list(range(2100))
    assert sum(row["n"] for row in found) == sum(range(2100)) + 1.5
