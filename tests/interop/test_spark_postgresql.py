"""A real PostgreSQL, Debian's, as source and sink of pipelines: incremental reads, upserts, each batch once."""

import os
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import DataType, DecimalType, DoubleType, IntegerType, LongType, StringType, StructType

from barnabas.spark.pipelines import cdc, dead_letter, sinks, sources
from barnabas.spark.pipelines.connector import Sink
from barnabas.spark.pipelines.database import DatabaseError
from barnabas.spark.pipelines.sinks.exactly_once import Batch, Task
from barnabas.spark.pipelines.sinks.sql_table import SqlTarget
from barnabas.spark.pipelines.sinks.table_schema import TableMismatch
from barnabas.spark.pipelines.sources.postgres_changes import PostgresChangesSource
from barnabas.spark.pipelines.sources.sql_query import SqlSource
from tests.interop.postgresql import ask, server

pytestmark = pytest.mark.timeout(900)  # several queries each, on what may be a busy machine


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with server() as uri:
        yield uri


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def run(sink: Sink, frame: DataFrame, checkpoint: Path) -> None:
    for _ in range(5):
        query = sink.writer(frame, checkpoint=str(checkpoint)).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(400), query.status
        except StreamingQueryException as error:
            # Spark gives a Python process ten seconds to start, and no setting changes that. Nothing was done yet.
            if "Python worker failed to connect back" not in str(error):
                raise
        else:
            return
    pytest.fail("the machine is too busy: no Python process starts within ten seconds")


def forget_last_commit(checkpoint: Path) -> None:
    """As if Spark had died after the batch was written, and before it noted that."""
    last = max((each for each in (checkpoint / "commits").iterdir() if each.name.isdigit()), key=lambda e: int(e.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def test_table_is_followed_by_time_and_number_into_another_table(spark: SparkSession, uri: str, tmp_path: Path) -> None:
    ask(
        uri,
        "CREATE TABLE orders (id BIGSERIAL PRIMARY KEY, item TEXT, price NUMERIC(8,2), tags TEXT[], changed TIMESTAMPTZ)",
        "INSERT INTO orders (item, price, changed) SELECT 'item ' || n, n / 2.0, '2026-01-01'::timestamptz + n * interval '1 s'"
        " FROM generate_series(1, 10) AS n",
    )
    orders = sources.table(
        uri, query="SELECT id, item, price, changed FROM orders", timestamp="changed", incrementing="id", max_rows=4
    )
    sink = sinks.sql(uri, "copies", mode="upsert", key=["id"], order_by="changed")
    checkpoint = tmp_path / "checkpoint"
    run(sink, orders.stream(spark), checkpoint)
    assert ask(uri, "SELECT count(*), min(id), max(id) FROM copies") == [(10, 1, 10)]

    # A change moves the time on, so the row comes again, and only it.
    ask(uri, "UPDATE orders SET item = 'changed', changed = '2026-02-01' WHERE id = 3")
    run(sink, orders.stream(spark), checkpoint)
    assert ask(uri, "SELECT item, changed FROM copies WHERE id = 3") == [("changed", datetime(2026, 2, 1, tzinfo=UTC))]
    assert ask(uri, "SELECT count(*) FROM copies") == [(10,)]

    ask(uri, "UPDATE copies SET item = 'by hand' WHERE id = 3")
    forget_last_commit(checkpoint)
    run(sink, orders.stream(spark), checkpoint)
    assert ask(uri, "SELECT item FROM copies WHERE id = 3") == [("by hand",)], "a batch that was written is left alone"
    assert ask(uri, "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'barnabas_stage%'") == [(0,)]


def test_every_type_comes_back_as_it_went(spark: SparkSession, uri: str) -> None:
    row = spark.range(1).select(
        F.lit(1).cast("smallint").alias("s"),
        F.lit(2).cast("int").alias("i"),
        F.lit(3).cast("long").alias("l"),
        F.lit(1.5).cast("double").alias("d"),
        F.lit(True).alias("b"),
        F.lit("Grüße").alias("t"),
        F.lit(b"\x00\xff").alias("y"),
        F.lit("2026-01-02").cast("date").alias("day"),
        F.lit("2026-01-02 03:04:05.678901").cast("timestamp").alias("at"),
        F.lit(Decimal("12.34")).alias("n"),
        F.lit(None).cast("string").alias("nothing"),
    )
    sinks.sql(uri, "kinds").write(row)
    [there] = sources.table(uri, "kinds").batch(spark).collect()
    [here] = row.collect()
    assert there.asDict() | {"n": Decimal(there.n)} == here.asDict()


def staged(uri: str, table: str, schema: StructType, rows: list[dict[str, object]], attempt: int = 0) -> Any:
    """A target with the rows of one task put aside, without Spark."""
    options = {"uri": uri, "table": table}
    target = SqlSource(CaseInsensitiveDict(options)).streamWriter(schema, False).target
    data = pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(schema, timezone="UTC"))
    return target, target.stage(iter([data]), Task("query", 1, 0, attempt))


def test_of_two_drivers_that_publish_one_batch_at_once_one_does(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old driver, taken for dead, inserts while the new one does. Neither sees what the other has not committed."""
    schema = StructType().add("id", LongType())
    first, items = staged(uri, "once", schema, [{"id": 0}])
    first.publish(items, Batch("query", 0))
    (old, old_items), (new, new_items) = (staged(uri, "once", schema, [{"id": 1}], attempt) for attempt in (1, 2))
    original, threads = SqlTarget._moves, []

    def moves(target: SqlTarget, stages: Sequence[str], unchanged: Collection[str]) -> list[str]:
        if target is old:
            threads.append(threading.Thread(target=new.publish, args=(new_items, Batch("query", 1))))
            threads[0].start()
            threads[0].join(2)
        return original(target, stages, unchanged)

    monkeypatch.setattr(SqlTarget, "_moves", moves)
    old.publish(old_items, Batch("query", 1))
    threads[0].join()
    assert ask(uri, "SELECT id FROM once ORDER BY id") == [(0,), (1,)]
    assert ask(uri, "SELECT batch_id FROM barnabas_sink_progress WHERE query_id = 'query'") == [(1,)]


def test_rows_that_a_table_cannot_take_are_refused_before_they_are_written(uri: str) -> None:
    ask(
        uri,
        "CREATE TABLE strict (id BIGINT NOT NULL, n INT, at TIMESTAMPTZ DEFAULT now() NOT NULL, price NUMERIC(8,2))",
    )

    def refused(said: str, **columns: DataType) -> None:
        schema = StructType()
        for name, kind in columns.items():
            schema.add(name, kind)
        with pytest.raises(TableMismatch, match=said):
            SqlSource(CaseInsensitiveDict({"uri": uri, "table": "strict", "mergeSchema": "true"})).writer(schema, False)

    refused("column n is int in the table and string in the rows", id=LongType(), n=StringType())
    refused("column n is int in the table and double in the rows", id=LongType(), n=DoubleType())
    refused("no column id, which must not be null", n=IntegerType())
    given = {"uri": uri, "table": "strict", "mergeSchema": "true"}
    schema = StructType().add("id", LongType()).add("price", DecimalType(8, 2)).add("more", StringType())
    target = SqlSource(CaseInsensitiveDict(given)).streamWriter(schema, False).target
    rows = [{"id": 1, "price": Decimal("1.25"), "more": "x"}]
    data = pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(schema, timezone="UTC"))
    target.publish(target.stage(iter([data]), Task("strict", 0, 0, 0)), Batch("strict", 0))
    assert ask(uri, "SELECT id, n, price::text, more FROM strict") == [(1, None, "1.25", "x")]


def test_a_column_is_widened_by_merge_schema_and_left_alone_without(uri: str) -> None:
    ask(uri, "CREATE TABLE narrow (id BIGINT, n INT, f REAL)", "INSERT INTO narrow VALUES (1, 7, 0.5)")
    schema = StructType().add("id", LongType()).add("n", LongType()).add("f", DoubleType())
    with pytest.raises(TableMismatch, match=r"column n is int in the table and bigint.*column f is float.*and double"):
        staged(uri, "narrow", schema, [])
    given = {"uri": uri, "table": "narrow", "mergeSchema": "true"}
    target = SqlSource(CaseInsensitiveDict(given)).streamWriter(schema, False).target
    rows = [{"id": 2, "n": 2**40, "f": 1e300}]
    data = pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(schema, timezone="UTC"))
    target.publish(target.stage(iter([data]), Task("narrow", 0, 0, 0)), None)
    assert ask(uri, "SELECT * FROM narrow ORDER BY id") == [(1, 7, 0.5), (2, 2**40, 1e300)]


def test_a_value_that_a_column_does_not_take_is_named_with_it(uri: str) -> None:
    ask(
        uri,
        "CREATE TABLE named (id BIGINT NOT NULL, code VARCHAR(3), price NUMERIC(5,2), n INT CHECK (n > 0))",
    )
    schema = StructType().add("id", LongType()).add("code", StringType()).add("price", DecimalType(10, 2))
    schema = schema.add("n", IntegerType())
    good = {"id": 1, "code": "abc", "price": Decimal("999.99"), "n": 1}
    for wrong, said in (
        ({"id": None}, r"column id is NOT NULL, and null in 1 rows"),
        (
            {"code": "abcd"},
            r"column code is character varying\(3\), and 1 values are too large, the first of them 'abcd'",
        ),
        ({"price": Decimal("1000.00")}, r"column price is numeric\(5,2\), and 1 values are too large.* 1000.00"),
    ):
        with pytest.raises(TableMismatch, match=said):
            staged(uri, "named", schema, [good, good | wrong])
    target, items = staged(uri, "named", schema, [good, good | {"n": -1}])
    with pytest.raises(Exception, match=r"named_n_check"):
        target.publish(items, None)
    assert ask(uri, "SELECT count(*) FROM named") == [(0,)]


def test_numbers_of_any_size_are_decimals(uri: str) -> None:
    ask(
        uri,
        "CREATE TABLE numbers (a NUMERIC(8,2), b NUMERIC, c NUMERIC(60,2))",
        "INSERT INTO numbers VALUES (1.25, 0.000000001, 7), (-3, 12345678901234567890, NULL)",
    )
    source = SqlSource(CaseInsensitiveDict({"uri": uri, "table": "numbers"}))
    schema = source.schema()
    assert [field.dataType.simpleString() for field in schema] == ["decimal(8,2)", "decimal(38,18)", "decimal(38,18)"]
    reader = source.reader(schema)
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert rows == [
        {"a": Decimal("1.25"), "b": Decimal("0.000000001"), "c": Decimal(7)},
        {"a": Decimal(-3), "b": Decimal(12345678901234567890), "c": None},
    ]


def test_missing_table_and_server_that_is_away_are_named(spark: SparkSession, uri: str) -> None:
    with pytest.raises(Exception, match='relation "nowhere" does not exist'):
        sources.table(uri, "nowhere").batch(spark)
    with pytest.raises(Exception, match=r"postgresql://127\.0\.0\.1:1/x: .*refused"):
        sources.table("postgresql://me:secret@127.0.0.1:1/x", "t").batch(spark)


def test_changes_of_a_table_come_out_of_its_log_after_a_snapshot_and_keep_a_copy(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    ask(
        uri,
        "CREATE TABLE people (id BIGINT PRIMARY KEY, name TEXT, born DATE, paid NUMERIC(8,2), ok BOOLEAN, at TIMESTAMPTZ, "
        "mark BYTEA, tags TEXT[], code UUID)",
        "INSERT INTO people SELECT n, 'p' || n, '2000-01-01', n / 4.0, n % 2 = 0, '2026-01-01 12:00:00+02', '\\x00ff', "
        "ARRAY['a', 'b'], '00000000-0000-0000-0000-000000000001' FROM generate_series(1, 5) AS n",
    )
    source = sources.changes(uri, "people", max_rows=3)
    sink, checkpoint = cdc.upsert_into_delta(str(tmp_path / "people"), keys=["id"]), tmp_path / "checkpoint"
    run(sink, source.stream(spark), checkpoint)

    def same() -> list[tuple[Any, ...]]:
        columns = "id, name, born, ok, at, mark, tags::text, code::text, paid::text"
        there = ask(uri, f"SELECT {columns} FROM people ORDER BY id")
        names = [each.removesuffix("::text") for each in columns.split(", ")]
        rows = DeltaTable(tmp_path / "people").to_pyarrow_table().sort_by("id").to_pylist()
        paid = [None if row["paid"] is None else str(row["paid"]) for row in rows]
        assert [(*[row[name] for name in names[:-1]], text) for row, text in zip(rows, paid, strict=True)] == there
        return there

    assert len(same()) == 5
    ask(uri, "UPDATE people SET name = 'other', born = NULL WHERE id = 1", "DELETE FROM people WHERE id = 2")
    ask(uri, "UPDATE people SET id = 30 WHERE id = 3", "INSERT INTO people (id, name) VALUES (6, 'Grüße')")
    ask(uri, *[f"UPDATE people SET name = 'n{n}' WHERE id = 4" for n in range(7)])
    ask(uri, "CREATE TABLE bystander (id INT)", "INSERT INTO bystander VALUES (1)")
    run(sink, source.stream(spark), checkpoint)
    assert [row[:2] for row in same()] == [(1, "other"), (4, "n6"), (5, "p5"), (6, "Grüße"), (30, "p3")]
    run(sink, source.stream(spark), checkpoint)
    forget_last_commit(checkpoint)
    ask(uri, "UPDATE people SET name = 'last' WHERE id = 5")
    run(sink, source.stream(spark), checkpoint)
    assert [row[1] for row in same()] == ["other", "n6", "last", "Grüße", "p3"]
    # The server may forget the changes that were read.
    [(kept,)] = ask(
        uri, "SELECT confirmed_flush_lsn > restart_lsn FROM pg_replication_slots WHERE slot_name = 'barnabas_people'"
    )
    assert kept


def test_copy_keeps_values_left_alone_and_bad_rows_are_kept_apart(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    ask(
        uri,
        "CREATE TABLE papers (id BIGINT PRIMARY KEY, price NUMERIC(8,2), body TEXT)",
        "ALTER TABLE papers ALTER body SET STORAGE EXTERNAL",
        "INSERT INTO papers VALUES (1, 1, repeat('x', 9000)), (2, 'NaN', 'bad from the start')",
    )
    source = sources.changes(uri, "papers", mode="PERMISSIVE")
    copy, letters = cdc.upsert_into_delta(str(tmp_path / "copy"), keys=["id"]), sinks.delta(str(tmp_path / "letters"))
    checkpoint = tmp_path / "checkpoint"

    def both(rows: DataFrame, batch: int) -> None:
        good, bad = dead_letter.split(rows, error="_error")
        copy.write(good, once=("papers", batch))
        letters.write(bad, once=("bad-papers", batch))

    def run_both() -> None:
        for _ in range(5):
            writer = source.stream(spark).writeStream.foreachBatch(both).trigger(availableNow=True)
            query = writer.option("checkpointLocation", str(checkpoint)).start()
            try:
                assert query.awaitTermination(400), query.status
                return
            except StreamingQueryException as error:
                if "Python worker failed to connect back" not in str(error):
                    raise
        pytest.fail("the machine is too busy: no Python process starts within ten seconds")

    def rows(name: str) -> list[dict[str, Any]]:
        return DeltaTable(tmp_path / name).to_pyarrow_table().sort_by("id").to_pylist()

    run_both()
    ask(
        uri,
        "UPDATE papers SET price = 2 WHERE id = 1",
        "INSERT INTO papers VALUES (3, 'NaN', 'bad later'), (4, 4, 'good')",
    )
    ask(uri, "UPDATE papers SET price = 5 WHERE id = 2")
    run_both()
    found = [(row["id"], str(row["price"]), row["body"][:4], len(row["body"])) for row in rows("copy")]
    assert found == [(1, "2.00", "xxxx", 9000), (2, "5.00", "bad ", 18), (4, "4.00", "good", 4)]
    assert [(row["id"], row["body"]) for row in rows("letters")] == [(2, "bad from the start"), (3, "bad later")]
    assert all("column price: 'NaN'" in row["_error"]["message"] for row in rows("letters"))


def reader_of(uri: str, table: str, **options: str) -> Any:
    source = PostgresChangesSource(CaseInsensitiveDict({"uri": uri, "table": table, **options}))
    return source.streamReader(source.schema())


def test_a_limit_is_of_what_has_not_been_read(uri: str) -> None:
    """Spark says that a batch is done when the next is planned: until then the slot stands before it."""
    ask(uri, "CREATE TABLE steps (id BIGINT PRIMARY KEY)")
    reader = reader_of(uri, "steps", snapshot="false")
    places = [reader.initialOffset()]
    for number in range(3):
        ask(uri, f"INSERT INTO steps VALUES ({number})")
    found = []
    for _ in range(3):
        end = reader.latestOffset(places[-1], ReadMaxRows(1))
        [part] = reader.partitions(places[-1], end)
        found.append([row["id"] for batch in reader.read(part) for row in batch.to_pylist()])
        places.append(end)
    assert found == [[0], [1], [2]]
    assert reader.latestOffset(places[-1], ReadMaxRows(1)) == places[-1]


def test_a_snapshot_has_the_texts_that_the_log_has(uri: str) -> None:
    """A cast to text is not what PostgreSQL prints: it drops the blanks of `char(n)` and gives an address its mask. A row would
    be there twice, under both keys."""
    ask(
        uri,
        "CREATE DOMAIN answer AS BOOLEAN",
        "CREATE TABLE hosts (code CHAR(5) PRIMARY KEY, at INET, said ANSWER, days DATERANGE, nothing INET)",
        "INSERT INTO hosts VALUES ('ab', '10.0.0.1', true, '[2026-01-31,2026-02-01)')",
    )
    ask(uri, "ALTER ROLE me SET datestyle TO 'German'")
    try:
        reader = reader_of(uri, "hosts")
        start = reader.initialOffset()
        middle = reader.latestOffset(start, ReadAllAvailable())
        ask(uri, "UPDATE hosts SET at = at")
        end = reader.latestOffset(middle, ReadAllAvailable())
        found = []
        for part in (*reader.partitions(start, middle), *reader.partitions(middle, end)):
            [read] = [row for batch in reader.read(part) for row in batch.to_pylist()]
            found.append({name: value for name, value in read.items() if name != "_sequence"})
    finally:
        ask(uri, "ALTER ROLE me RESET datestyle")
    row = {"code": "ab   ", "at": "10.0.0.1", "said": True, "days": "[2026-01-31,2026-02-01)", "nothing": None}
    assert found == [row | {"_deleted": False, "_unchanged": None}] * 2


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("CHAR(4)", ["aaaa", "aabb", "b   "]),
        ("BIT(4)", ["0001", "0111", "1010"]),
        ("VARCHAR(4)", ["aaaa", "aabb", "b"]),
    ],
)
def test_a_cursor_of_fixed_width_loses_no_row(uri: str, kind: str, values: list[str]) -> None:
    """`pg_typeof` says `character`, and as the name of a type that is one character long."""
    ask(uri, "DROP TABLE IF EXISTS coded", f"CREATE TABLE coded (code {kind}, n INT)")
    ask(uri, *[f"INSERT INTO coded VALUES ('{value}', {number})" for number, value in enumerate(values)])
    source = SqlSource(CaseInsensitiveDict({"uri": uri, "table": "coded", "cursor": "code"}))
    reader = source.streamReader(source.schema())
    found, place = [], reader.initialOffset()
    for _ in range(3):
        end = reader.latestOffset(place, ReadMaxRows(2))
        if end != place:
            [part] = reader.partitions(place, end)
            found.append([row["n"] for batch in reader.read(part) for row in batch.to_pylist()])
        place = end
    assert found == [[0, 1], [2]]


@pytest.mark.parametrize("kind", ["DATE", "TIMESTAMP", "TIMESTAMPTZ"])
@pytest.mark.parametrize("value", ["infinity", "-infinity"])
def test_infinity_is_refused_and_not_taken_for_a_day(uri: str, kind: str, value: str) -> None:
    """Arrow's driver adds the years to 1970, and they wrap round: the end of time would be before its beginning."""
    ask(uri, "DROP TABLE IF EXISTS spans", f"CREATE TABLE spans (id INT, upto {kind})")
    ask(uri, "INSERT INTO spans VALUES (1, '2026-01-01'), (2, NULL), (3, '4713-01-01 BC')")
    source = SqlSource(CaseInsensitiveDict({"uri": uri, "table": "spans"}))
    reader = source.reader(source.schema())
    [part] = reader.partitions()
    assert sum(batch.num_rows for batch in reader.read(part)) == 3
    ask(uri, f"INSERT INTO spans VALUES (4, '{value}')")
    with pytest.raises(DatabaseError, match=r"spans, column upto: .*infinity"):
        list(reader.read(part))


def test_money_is_refused_and_not_read_as_cents(uri: str) -> None:
    ask(uri, "CREATE TABLE prices (id INT, price MONEY)", "INSERT INTO prices VALUES (1, 12.5)")

    def rows(**options: str) -> list[dict[str, Any]]:
        source = SqlSource(CaseInsensitiveDict({"uri": uri, **options}))
        reader = source.reader(source.schema())
        return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]

    with pytest.raises(DatabaseError, match=r"prices, column price: money .*price::numeric"):
        rows(table="prices")
    assert rows(query="SELECT id, price::numeric FROM prices") == [{"id": 1, "price": Decimal("12.5")}]


def test_what_a_log_of_changes_does_not_say_is_refused(uri: str) -> None:
    ask(
        uri,
        "CREATE TABLE wide (id BIGINT PRIMARY KEY, n INT, big TEXT)",
        "ALTER TABLE wide ALTER COLUMN big SET STORAGE EXTERNAL",
        "INSERT INTO wide VALUES (1, 1, repeat('x', 9000))",
    )
    reader = reader_of(uri, "wide", snapshot="false", slot="wide_slot")
    reader_of(uri, "wide", slot="wide_slot").prepareForTriggerAvailableNow()  # Spark calls it before there is a slot
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == start, "nothing has happened"

    def changes() -> list[dict[str, Any]]:
        end = reader.latestOffset(start, ReadAllAvailable())
        [part] = reader.partitions(start, end)
        return [row for batch in reader.read(part) for row in batch.to_pylist()]

    ask(uri, "ALTER TABLE wide REPLICA IDENTITY FULL", "UPDATE wide SET n = 2")
    [row] = changes()
    assert (row["n"], len(row["big"]), row["_deleted"]) == (2, 9000, False)
    ask(uri, "ALTER TABLE wide REPLICA IDENTITY DEFAULT", "UPDATE wide SET n = 3")
    assert [(row["n"], row["big"], row["_unchanged"]) for row in changes()[-1:]] == [(3, None, ["big"])]
    past = reader.latestOffset(start, ReadAllAvailable())
    assert reader.latestOffset(past, ReadAllAvailable()) == past
    with pytest.raises(DatabaseError, match=r"slot wide_slot is at .*, past .* of the checkpoint"):
        reader.latestOffset(start, ReadAllAvailable())
    start = reader.initialOffset()
    ask(uri, "ALTER TABLE wide ADD COLUMN more INT", "INSERT INTO wide VALUES (2, 2, 'x', 1)")
    with pytest.raises(DatabaseError, match="has a column more that the query does not know"):
        changes()
    start = reader.latestOffset(start, ReadAllAvailable())
    ask(uri, "TRUNCATE wide")
    with pytest.raises(DatabaseError, match=r"public\.wide was truncated at"):
        changes()
    ask(uri, "SELECT pg_drop_replication_slot('wide_slot')")
    with pytest.raises(DatabaseError, match="slot wide_slot is gone"):
        reader.latestOffset(start, ReadAllAvailable())
    ask(uri, "CREATE TABLE unheard (id INT)", 'CREATE PUBLICATION "Other" FOR TABLE unheard')
    with pytest.raises(DatabaseError, match=r"publication Other does not have table public\.wide"):
        reader_of(uri, "wide", publication="Other").initialOffset()
    with pytest.raises(DatabaseError, match=r"no table public\.nowhere"):
        reader_of(uri, "nowhere")
