"""JSON with any names as a table: fields of any name are columns, and a record that cannot be a row stops nothing."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField

from barnabas.spark.tables import rows
from barnabas.spark.tables.definition import Definition
from barnabas.spark.tables.filling import Filled
from barnabas.testing import Kafka
from tests.topic_tables import Tables, duckdb_rows, polars_rows

#: Dots, quotes of every language, spaces, brackets, words of SQL, names of our own columns and of those within our code.
NAMES = [
    "service.name", "log.level.x", ".", "a.", ".a", "a`b", "``", 'a"b', "a'b", "a b", " ", "x" * 3000, "größe", "日本", "😀",
    "select", "null", "*", "1", "-", "a,b", "a;b", "a{b}", "a(b)", "a[0]", "a<b>", "<", "a:b", "a=b", "a/b", "a\\b", "a%b",
    "a\nb", "a\tb", "${x}", "key", "value", "topic", "partition", "offset", "headers", "timestamp", "data", "error", "payload",
    "_row", "barnabas_row", "_staged", "_refused", "_reason", "_raw", "_object", "c0", "c1", "_corrupt_record",
    "_Corrupt_Record_", "_partition_there", "_metadata", "_change_type", "element", "c", "t",
]  # fmt: skip
#: Objects that cannot be a row beside `{"id": 1, "in": {"id": 1}}`, and what the table of errors says of them.
REFUSED = [
    ({"ID": 5}, "field 'ID' differs only by case from column 'id'"),
    ({"id": 5, "iD": {"x": [1]}}, "field 'iD' differs only by case from column 'id'"),
    ({"id": 5, "_offset": 1}, "field '_offset' has the name of column _offset, which every row of the table has"),
    ({"id": 5, "_KEY": 1}, "field '_KEY' has the name of column _key, which every row of the table has"),
    ({"id": 5, "": 1}, "field '' has an empty name"),
    ({"id": 5, "a\0b": 1}, r"field 'a\x00b' has the character NUL in its name"),
    ({"id": 5, "in": {"Id": 1}}, "field 'Id' of 'in' differs only by case from column 'id'"),
    (
        {"id": 5, "in": {"list": [{"x": 1}, {"X": 1}]}},
        "field 'X' of 'in.list.element' differs only by case from column 'x'",
    ),
    ({"id": 5, "only": {"": {"x": 1}}}, "field '' of 'only' has an empty name"),
]


@pytest.fixture
def tables(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> Tables:
    return Tables(spark, kafka, tmp_path)


def reasons(table: Definition) -> dict[bytes, str]:
    return {row["value"]: row["reason"] for row in polars_rows(table.errors())}


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_fields_of_any_name_are_columns_and_a_record_that_cannot_be_a_row_is_an_error(
    tables: Tables, kind: str, mode: str
) -> None:
    key: dict[str, Any] = {"key": ("id", "service.name")} if mode == "upsert" and kind == "delta" else {}
    if mode == "upsert" and kind == "iceberg":
        key = {"key": ("id", "a`b")}
    table = tables.define("names", format=kind, mode=mode, **key)
    row: dict[str, Any] = {"id": 1, **{name: number for number, name in enumerate(NAMES)}}
    row |= {"in": {"id": 7, "list": [{"x": 1}], **dict.fromkeys(NAMES, "text")}}
    tables.produce(table, ("k", row, 0), *(("k", bad, 0) for bad, _ in REFUSED), ("l", row | {"id": 2, "Id": None}, 0))
    filled = tables.fill(table)
    assert (filled.rows, filled.errors) == (2, len(REFUSED))
    later = {"id": 3, "later.name": 1, "a`later": {"x.y": [{"`": 2}]}, **dict.fromkeys(NAMES, 0)}
    tables.produce(
        table, ("m", later, 0), ("k", {"ID": 9}, 0), *([("k", {"_deleted": 1}, 0)] if mode == "upsert" else [])
    )
    assert tables.fill(table).rows == 1
    assert tables.fill(table) == Filled(), "nothing waits"
    found = {each["id"]: each for each in polars_rows(table)}
    assert sorted(found) == [1, 2, 3]
    for name, value in row.items():
        if name != "in":
            assert found[1][name] == value, name
            assert found[1]["in"].get(name, "text") in ("text", 7), name
    assert (found[3]["later.name"], found[3]["a`later"]) == (1, {"x.y": [{"`": 2}]})
    assert duckdb_rows(table, 'SELECT "service.name", "a`b", "select" FROM lake WHERE id = 1') == [
        (row["service.name"], row["a`b"], row["select"])
    ]
    said = reasons(table)
    for offset, (bad, reason) in enumerate(REFUSED, start=1):
        assert said[json.dumps(bad).encode()].endswith(f"partition 0, offset {offset}: {reason}")
    if mode == "upsert":
        assert "has the name of column _deleted" in said[b'{"_deleted": 1}']
    again = replace(table, generation=1)
    assert tables.fill(again).rows == 3, "it is rebuilt as it was"
    assert {each["id"] for each in polars_rows(table)} == {1, 2, 3}


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_of_names_that_differ_by_case_most_records_decide_which_is_the_column(tables: Tables, kind: str) -> None:
    table = tables.define("contested", format=kind)
    tables.produce(
        table, ("a", {"ID": 1, "s": {"A": 1, "a.b": 1}}, 0), *(("b", {"id": n, "s": {"a": n}}, 0) for n in (2, 3))
    )
    filled = tables.fill(table)
    assert (filled.rows, filled.errors) == (2, 1)
    assert sorted((row["id"], row["s"]["a"]) for row in polars_rows(table)) == [(2, 2), (3, 3)]
    assert reasons(table).popitem()[1].endswith("field 'ID' differs only by case from column 'id'")


def test_a_dot_is_the_way_to_a_field_for_iceberg_only(tables: Tables) -> None:
    records = [("a", {"service": {"name": "x"}}, 0), ("b", {"service.name": "y"}, 0)]
    found = {}
    for kind in ("delta", "iceberg"):
        table = tables.define(f"dots-{kind}", format=kind, table="lake.dots" if kind == "iceberg" else "")
        tables.produce(table, records[0])
        tables.fill(table)
        tables.produce(table, records[1])
        found[kind] = (tables.fill(table).errors, list(reasons(table).values()) if kind == "iceberg" else [])
    assert found["delta"] == (0, [])
    assert found["iceberg"][0] == 1
    assert "field 'service.name' is the same column as a field within an object" in found["iceberg"][1][0]


def nested(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


#: Values that no column could be made of at first sight, and the reason where they are no rows.
STRANGE = {
    b'{"n": 1, "x": NaN}': "field 'x' is new, and this record cannot add a column to the table",
    b'{"n": 1, "twice": 1, "twice": 2}': "field 'twice' is new, and this record cannot add a column to the table",
    b'{"n": 1}{"n": 2}': "not JSON",
    b'{"n": 1} and more': "not JSON",
    b"{'n': 1}": "not JSON",
    b'{"n": ' + b"9" * 5000 + b"}": "not JSON",
    nested(5000): "not JSON",
    nested(100_000): "not JSON",
    b"{"
    + b",".join(b'"id-%d": 1' % n for n in range(2500))
    + b"}": "field 'id-0' is new, and this record cannot add a column to the table",
}


def test_records_that_readers_of_json_disagree_about_are_errors_and_lose_nothing(tables: Tables) -> None:
    table = tables.define("strange")
    tables.produce(table, ("a", {"n": 1}, 0))
    tables.fill(table)
    tables.produce(table, *(("k", value, 0) for value in STRANGE))
    tables.produce(table, ("b", b'{"n": NaN}', 0), ("c", b'{"n": 3, "n": 4}', 0), ("d", nested(100), 0))
    wide = json.dumps({f"id-{n}": n for n in range(2500)}, separators=(",", ":"))
    tables.produce(table, ("e", b'{"wide": ' + wide.encode() + b"}", 0))
    filled = tables.fill(table)
    said = reasons(table)
    missing = {value[:40]: said.get(value) for value, why in STRANGE.items() if why not in (said.get(value) or "")}
    assert not missing
    found = {row["_key"]: row for row in polars_rows(table)}
    assert (found[b"c"]["n"], filled.errors, len(found)) == (4, len(STRANGE) + 1, 4)
    assert json.dumps(found[b"d"]["a"]).count("a") > 32, "deep values are in the table, from some depth on as text"
    assert found[b"e"]["wide"] == wide
    tables.produce(table, ("f", {"n": 9, "more": 1}, 0))
    assert tables.fill(table).rows == 1, "one record has not used up what the table may have"


def test_times_that_an_iceberg_table_cannot_have_are_errors_of_their_records(spark: SparkSession) -> None:
    beyond, fine = 253_402_300_800_000_000, 1_700_000_000_000_000
    frame = spark.sql(
        "SELECT timestamp_micros(at) AS t, t::timestamp_ntz AS n, date_from_unix_date(at div 86400000000) AS d "
        f"FROM VALUES ({beyond}L), ({fine}L), (null) AS rows(at)"
    )
    wrong = [rows._impossible_time(frame.schema[name], frame[name]) for name in frame.columns]
    found = [list(row) for row in frame.select(*[each for each in wrong if each is not None]).collect()]
    assert found[0] == [f"{name} is not in the years 1 to 9999, which an Iceberg table has" for name in "tnd"]
    assert found[1:] == [[None] * 3] * 2
    assert rows._impossible_time(StructField("x", StringType()), frame.t) is None
