"""The SQL sink writes into tables with uuid, jsonb, enums, arrays, defaults, identity and generated columns."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from barnabas.spark.batch_identity import NotTheSameBatch
from barnabas.spark.pipelines.sinks.exactly_once import Batch, StreamOptions, Task
from barnabas.spark.pipelines.sinks.sql_table import SqlTarget
from barnabas.spark.pipelines.sinks.table_schema import TableMismatch
from barnabas.spark.pipelines.sources.sql_query import SqlSource
from tests.interop.postgresql import ask, server

UUID = "00000000-0000-0000-0000-00000000000"


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with server() as uri:
        yield uri


def schema_of(**columns: DataType) -> StructType:
    made = StructType()
    for name, kind in columns.items():
        made.add(name, kind)
    return made


def target_of(uri: str, table: str, schema: StructType, **options: str) -> SqlTarget:
    given = {"uri": uri, "table": table, **options}
    target = SqlSource(CaseInsensitiveDict(given)).streamWriter(schema, False).target
    assert isinstance(target, SqlTarget)
    return target


def write(uri: str, table: str, schema: StructType, *rows: dict[str, Any], batch: int = 0, **options: str) -> None:
    target = target_of(uri, table, schema, **options)
    data = pa.RecordBatch.from_pylist(list(rows), schema=to_arrow_schema(schema, timezone="UTC"))
    accepted = StreamOptions.parse(options).accepted(batch)
    target.publish(target.stage(iter([data]), Task("q", batch, 0, 0)), Batch("q", batch, accepted=accepted))


def stages(uri: str) -> list[tuple[object, ...]]:
    return ask(uri, "SELECT tablename FROM pg_tables WHERE tablename LIKE 'barnabas_stage%'")


RICH = schema_of(
    id=StringType(),
    doc=StringType(),
    old_doc=StringType(),
    mood=StringType(),
    moods=ArrayType(StringType()),
    tags=ArrayType(StringType()),
    numbers=ArrayType(IntegerType()),
    ids=ArrayType(StringType()),
    text_array=StringType(),
    span=StringType(),
    address=StringType(),
    lasts=StringType(),
    bits=StringType(),
    at=TimestampType(),
)


def test_types_that_spark_does_not_have_are_written(uri: str) -> None:
    ask(
        uri,
        "CREATE TYPE mood AS ENUM ('glad', 'sad')",
        "CREATE TABLE rich (id UUID PRIMARY KEY, doc JSONB, old_doc JSON, mood mood, moods mood[], tags TEXT[], "
        "numbers BIGINT[], ids UUID[], text_array INT[], span INT4RANGE, address INET, lasts INTERVAL, bits BIT(3), "
        "at TIMESTAMPTZ(3))",
    )
    row = {
        "id": UUID + "1",
        "doc": '{"a": 1}',
        "old_doc": "[1, 2]",
        "mood": "glad",
        "moods": ["glad", None, "sad"],
        "tags": ["a,b", 'c"d', None],
        "numbers": [1, 2],
        "ids": [UUID + "2"],
        "text_array": "{3,4}",
        "span": "[1,3)",
        "address": "10.0.0.1",
        "lasts": "1 day",
        "bits": "101",
        "at": datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC),
    }
    nothing = dict.fromkeys(RICH.names) | {"id": UUID + "2"}
    for batch, mode in enumerate(({"mode": "upsert", "key": "id"}, {"mode": "upsert", "key": "id"})):
        write(uri, "rich", RICH, row, nothing, batch=batch, **mode)
    names = ", ".join(f"{name}::text" for name in RICH.names)
    found = ask(uri, f"SELECT {names} FROM rich ORDER BY id")
    assert found == [
        (
            UUID + "1",
            '{"a": 1}',
            "[1, 2]",
            "glad",
            "{glad,NULL,sad}",
            '{"a,b","c\\"d",NULL}',
            "{1,2}",
            f"{{{UUID}2}}",
            "{3,4}",
            "[1,3)",
            "10.0.0.1/32",
            "1 day",
            "101",
            "2026-01-02 03:04:05.678+00",
        ),
        (UUID + "2", *[None] * 13),
    ]


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("id", "not a uuid", r"column id is uuid, and a text of the rows is not: .*not a uuid"),
        ("doc", "{broken", r"column doc is jsonb.*invalid input syntax for type json"),
        ("mood", "furious", r"column mood is mood2, .*invalid input value for enum mood2: ..?furious"),
        ("small", "abcd", r"column small is character varying\(3\), and 1 values are too large"),
    ],
)
def test_text_that_is_not_a_value_of_its_column_is_reported_before_it_is_published(
    uri: str, column: str, value: str, said: str
) -> None:
    ask(
        uri,
        "DROP TABLE IF EXISTS checked",
        "DROP TYPE IF EXISTS mood2",
        "DROP DOMAIN IF EXISTS small_text",
        "CREATE TYPE mood2 AS ENUM ('glad')",
        "CREATE DOMAIN small_text AS VARCHAR(3)",
        "CREATE TABLE checked (id UUID, doc JSONB, mood mood2, small small_text)",
    )
    schema = schema_of(id=StringType(), doc=StringType(), mood=StringType(), small=StringType())
    row = {"id": UUID + "1", "doc": "{}", "mood": "glad", "small": "abc"}
    with pytest.raises(TableMismatch, match=said):
        write(uri, "checked", schema, row | {column: value})
    assert stages(uri) == []


def test_table_that_was_dropped_and_made_again_does_not_have_its_batches(uri: str) -> None:
    schema = schema_of(id=LongType())
    write(uri, "dropped", schema, {"id": 1})
    for statement in ("DROP TABLE dropped", "CREATE TABLE dropped (id BIGINT)"):
        ask(uri, statement)
        with pytest.raises(NotTheSameBatch, match="differs in the target"):
            write(uri, "dropped", schema, {"id": 1})
    write(uri, "dropped", schema, {"id": 1}, acceptReplannedBatch="0:write")
    write(uri, "dropped", schema, {"id": 1})
    assert ask(uri, "SELECT id FROM dropped") == [(1,)]


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        ("UUID", IntegerType(), "column x is uuid in the table and int in the rows: cast it to string"),
        ("JSONB", BooleanType(), "column x is jsonb in the table and boolean in the rows"),
        ("INT[]", ArrayType(StringType()), r"column x is array<int> in the table and array<string> in the rows"),
        ("TIMESTAMPTZ(3)", StringType(), "column x is timestamp in the table and string in the rows"),
    ],
)
def test_rows_of_another_type_are_refused_at_the_start(uri: str, kind: str, given: DataType, said: str) -> None:
    ask(uri, "DROP TABLE IF EXISTS typed", f"CREATE TABLE typed (x {kind})")
    with pytest.raises(TableMismatch, match=said):
        target_of(uri, "typed", schema_of(x=given))


def test_columns_that_the_database_fills_may_be_left_out(uri: str) -> None:
    ask(
        uri,
        "CREATE TABLE filled (nr BIGINT GENERATED ALWAYS AS IDENTITY, also BIGINT GENERATED BY DEFAULT AS IDENTITY, s SERIAL, "
        "n INT, twice INT GENERATED ALWAYS AS (n * 2) STORED, at TIMESTAMPTZ NOT NULL DEFAULT now())",
    )
    write(uri, "filled", schema_of(n=IntegerType()), {"n": 1}, {"n": 2})
    assert ask(uri, "SELECT nr, also, s, n, twice, at IS NOT NULL FROM filled ORDER BY nr") == [
        (1, 1, 1, 1, 2, True),
        (2, 2, 2, 2, 4, True),
    ]
    with pytest.raises(TableMismatch, match="column twice is generated by the database: leave it out"):
        target_of(uri, "filled", schema_of(n=IntegerType(), twice=IntegerType()))
    with pytest.raises(TableMismatch, match="the rows have no column n"):
        target_of(uri, "filled", schema_of(s=IntegerType()))


def test_a_copy_brings_the_numbers_of_an_identity_column(uri: str) -> None:
    ask(uri, "CREATE TABLE copied (nr BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, said TEXT, code BIGINT)")
    schema = schema_of(nr=LongType(), said=StringType())
    for batch, said in enumerate(("a", "b")):
        row = {"nr": 70, "said": said}
        write(uri, "copied", schema, row, batch=batch, mode="upsert", key="nr", mergeSchema="true")
    assert ask(uri, "SELECT nr, said FROM copied") == [(70, "b")]
    ask(uri, "CREATE TABLE numbered (code BIGINT PRIMARY KEY, nr BIGINT GENERATED ALWAYS AS IDENTITY)")
    with pytest.raises(TableMismatch, match="column nr is GENERATED ALWAYS AS IDENTITY, which an upsert cannot set"):
        target_of(uri, "numbered", schema_of(code=LongType(), nr=LongType()), mode="upsert", key="code")
    write(uri, "numbered", schema_of(code=LongType(), nr=LongType()), {"code": 1, "nr": 9})
    assert ask(uri, "SELECT code, nr FROM numbered") == [(1, 9)]


def test_arrays_make_their_columns(uri: str) -> None:
    schema = schema_of(id=LongType(), tags=ArrayType(StringType()), numbers=ArrayType(LongType()))
    write(uri, "made", schema, {"id": 1, "tags": ["a"], "numbers": [1, None]})
    assert ask(uri, "SELECT tags::text, numbers::text, pg_typeof(numbers)::text FROM made") == [
        ("{a}", "{1,NULL}", "bigint[]")
    ]
    nested = schema_of(id=LongType(), x=ArrayType(ArrayType(LongType())))
    with pytest.raises(ValueError, match="column x is array<array<bigint>>, which barnabas-sql cannot write"):
        target_of(uri, "made2", nested)


CHANGES = schema_of(
    id=StringType(),
    n=LongType(),
    doc=StringType(),
    _deleted=BooleanType(),
    _sequence=StringType(),
    _unchanged=ArrayType(StringType()),
)


def test_upsert_keeps_a_value_that_the_change_left_alone(uri: str) -> None:
    ask(uri, "CREATE TABLE kept (id UUID PRIMARY KEY, n BIGINT, doc JSONB, _sequence TEXT)")

    def change(key: int, n: int, doc: str | None, order: int, *unchanged: str, deleted: bool = False) -> dict[str, Any]:
        row = {"id": f"{UUID}{key}", "n": n, "doc": doc, "_deleted": deleted, "_sequence": f"{order:03}"}
        return row | {"_unchanged": list(unchanged) or None}

    def apply(batch: int, *rows: dict[str, Any]) -> list[tuple[Any, ...]]:
        options = {"mode": "upsert", "key": "id", "orderBy": "_sequence", "deleteColumn": "_deleted"}
        write(uri, "kept", CHANGES, *rows, batch=batch, **options)
        return ask(uri, "SELECT n, doc::text FROM kept ORDER BY id")

    apply(0, change(1, 1, '{"a": 1}', 1), change(2, 1, '{"b": 1}', 2))
    assert apply(1, change(1, 2, None, 3, "doc"), change(2, 2, '{"b": 2}', 4), change(2, 3, None, 5, "doc")) == [
        (2, '{"a": 1}'),
        (3, '{"b": 2}'),
    ]
    assert apply(2, change(1, 0, None, 6, deleted=True), change(2, 4, None, 7)) == [(4, None)]
