"""Topics as tables: every record is in the table once, whichever process dies, and other programs read the table without
barnabas."""

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from barnabas.base.ids import TopicPartition
from barnabas.client.admin.partitions import delete_records
from barnabas.client.config import client_config
from barnabas.spark.pipelines.sinks.delta_table import DeltaTarget
from barnabas.spark.pipelines.sinks.exactly_once import Overtaken, Span, Task
from barnabas.spark.tables.catalogue import Catalogue
from barnabas.spark.tables.filling import Filled, TableStopped
from barnabas.spark.tables.inference import row_type
from barnabas.spark.tables.rows import columns_beside
from barnabas.spark.tables.runner import Runner, RunOptions
from barnabas.spark.tables.targets import target_of
from barnabas.testing import Kafka
from tests.topic_tables import Record, Tables, duckdb_rows, polars_rows


@pytest.fixture
def tables(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> Tables:
    return Tables(spark, kafka, tmp_path)


class Killed(BaseException):
    """The driver dies here."""


def dying(publish: Callable[..., None], *, of: str) -> Callable[..., None]:
    """Let the driver die instead of publishing into the table of this name."""

    def die_or_publish(self: Any, items: Any, batch: Any) -> None:
        if self.path.endswith(f"/{of}"):
            raise Killed
        publish(self, items, batch)

    return die_or_publish


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_json_topic_becomes_a_table_that_grows_with_it(tables: Tables, kind: str) -> None:
    table = tables.define("grows", partitions=2, format=kind)
    tables.produce(table, ("a", {"id": 1, "who": {"name": "x"}}, 0), ("b", {"id": 2, "none": None}, 1))
    assert tables.fill(table).rows == 2
    assert tables.fill(table) == Filled(), "there is nothing new"
    tables.produce(table, ("c", {"id": 3, "who": {"name": "y", "age": 4}, "tags": ["t"]}, 0), (None, None, 1))
    assert tables.fill(table).rows == 2
    found = sorted(polars_rows(table), key=lambda row: (row["_partition"], row["_offset"]))
    assert [(row["id"], row["_partition"], row["_offset"], row["_key"]) for row in found] == [
        (1, 0, 0, b"a"),
        (3, 0, 1, b"c"),
        (2, 1, 0, b"b"),
        (None, 1, 1, None),
    ]
    assert [row["who"] for row in found[:2]] == [{"name": "x", "age": None}, {"name": "y", "age": 4}]
    assert found[1]["tags"] == ["t"]
    assert found[0]["_headers"] == [{"key": "h", "value": b"1"}]
    assert duckdb_rows(table, "SELECT count(*), sum(id) FROM lake WHERE _timestamp > '2020-01-01'") == [(4, 6)]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_compacted_topic_becomes_the_last_row_of_each_key_and_tombstones_delete(tables: Tables, kind: str) -> None:
    table = tables.define("last", partitions=2, format=kind, mode="upsert", key=("id",))
    tables.produce(table, ("1", {"id": 1, "n": "a"}, 0), ("2", {"id": 2, "n": "b"}, 1), ("1", {"id": 1, "n": "c"}, 0))
    assert tables.fill(table).rows == 3
    tables.produce(table, ("2", None, 1), ("3", {"id": 3, "n": "d"}, 0), ("no number", None, 0), ('{"id": 9}', None, 0))
    assert (tables.fill(table).rows, len(polars_rows(table.errors()))) == (3, 1)
    tables.produce(table, ("1", {"id": 1, "n": "e", "more": True}, 0), ("3", None, 0), ("4", {"id": 4, "n": "f"}, 0))
    assert tables.fill(table).rows == 3
    found = sorted(polars_rows(table), key=lambda row: row["id"])
    assert [(row["id"], row["n"], row["more"], row["_offset"]) for row in found] == [
        (1, "e", True, 5),
        (4, "f", None, 7),
    ]
    assert tables.fill(table) == Filled(), "the table has it all"


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_changes_of_debezium_keep_a_table_equal_to_its_source(tables: Tables, kind: str) -> None:
    table = tables.define("cdc", format=kind, mode="upsert", key=("id", "at"), envelope="debezium")

    def change(op: str, before: object, after: object) -> Record:
        return ("k", {"schema": {}, "payload": {"op": op, "before": before, "after": after, "source": {"lsn": 1}}}, 0)

    one, two = {"id": 1, "at": "x", "v": 1}, {"id": 2, "at": "x", "v": 1}
    tables.produce(table, change("c", None, one), change("r", None, two), change("t", None, None))
    assert tables.fill(table).errors == 1, "a truncate is no change of a row"
    tables.produce(table, change("u", one, one | {"v": 2, "w": "new"}), change("d", two, None), ("k", None, 0))
    assert tables.fill(table).rows == 2
    assert [(row["id"], row["v"], row["w"]) for row in polars_rows(table)] == [(1, 2, "new")]


def test_records_that_do_not_fit_are_in_the_table_of_errors_once_when_drivers_die(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tables.define("bad", partitions=2)
    tables.produce(table, ("a", {"n": 1}, 0), ("b", b"no json", 0), ("c", b"{", 1))
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTarget, "publish", dying(DeltaTarget.publish, of="bad"))
        with pytest.raises(Killed):
            tables.fill(table, records_max=2)
    assert len(polars_rows(table.errors())) == 1, "these were published, the table was not"
    stopping = replace(table, on_error="stop")
    tables.produce(table, ("d", b"\xff", 1))
    with pytest.raises(
        TableStopped, match=r"records do not fit, the first of them: topic .*-bad, partition 0, offset 1"
    ):
        tables.fill(stopping)
    while tables.fill(table, records_max=2) != Filled():
        pass
    places = sorted(
        (row["_partition"], row["_offset"], row["value"], row["_key"]) for row in polars_rows(table.errors())
    )
    good = sorted((row["_partition"], row["_offset"]) for row in polars_rows(table))
    assert sorted([*good, *(each[:2] for each in places)]) == [(0, 0), (0, 1), (1, 0), (1, 1)], "each in one of them"
    assert (0, 1, b"no json", b"b") in places
    [reason] = [row["reason"] for row in polars_rows(table.errors()) if row["_key"] == b"b"]
    assert "partition 0, offset 1: value: not JSON" in reason


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_driver_that_was_believed_dead_adds_nothing(
    tables: Tables, kind: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has staged its rows when another one publishes the same records, in other pieces."""
    table = tables.define("zombie", format=kind, mode=mode, schema="raw")
    tables.produce(table, *((str(n), b"v", 0) for n in range(6)))
    assert tables.fill(table, records_max=2).rows == 2
    target = type(target_of(table, columns_beside(StructType().add("value", "binary")).add("_deleted", "boolean")))
    real = target.publish

    def late(self: Any, items: Any, batch: Any) -> None:
        monkeypatch.setattr(target, "publish", real)
        assert tables.fill(table, records_max=3).rows == 3
        real(self, items, batch)

    monkeypatch.setattr(target, "publish", late)
    with pytest.raises(Overtaken):
        tables.fill(table, records_max=2)
    assert tables.fill(table).rows == 1
    assert sorted(row["_offset"] for row in polars_rows(table)) == list(range(6))
    staged = list((tables.folder / "zombie").rglob("_barnabas_stage/**/*.parquet"))
    assert not staged, "nothing is left of what it staged"


def test_delta_refuses_the_second_of_two_commits_from_the_same_place(tmp_path: Path) -> None:
    """Both have read the table before either commits: Delta's log itself has to refuse the second one."""
    columns = StructType().add("n", "long")
    one, two = (DeltaTarget(str(tmp_path), columns, [], {}) for _ in range(2))
    one.publish([], Span({"p": -1}, {"p": 5}))
    handle = two.existing()
    assert handle is not None
    two._made = lambda: handle  # type: ignore[method-assign]  # as it was before the other commits
    one.publish([], Span({"p": 5}, {"p": 7}))
    with pytest.raises(Overtaken, match="was changed meanwhile"):
        two.publish([], Span({"p": 5}, {"p": 6}))
    assert DeltaTable(tmp_path).transaction_version("p") == 7


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_rebuilt_table_has_the_topic_again_and_no_column_that_only_old_records_had(tables: Tables, kind: str) -> None:
    partition = ("city",) if kind == "delta" else ("city", "day(_timestamp)")
    table = tables.define("again", format=kind, partition_by=partition)
    tables.produce(table, ("a", {"n": 4, "city": "B"}, 0), ("b", b"bad", 0))
    tables.fill(table)
    tables.kafka.cluster.ask(lambda client: delete_records(client, {TopicPartition(table.topic, 0): 2}))
    tables.produce(table, ("c", {"n": "x", "city": "A/b %"}, 0), ("d", {"n": "y"}, 0))
    assert tables.fill(table).errors == 2, "n is a number"
    rebuilt = replace(table, generation=1)
    assert tables.fill(rebuilt).rows == 2
    found = sorted(polars_rows(table), key=lambda row: row["_offset"])
    assert [(row["n"], row["city"], row["_offset"]) for row in found] == [("x", "A/b %", 2), ("y", None, 3)]
    assert polars_rows(table.errors()) == []
    assert tables.fill(rebuilt) == Filled()


def test_topic_that_was_made_again_stops_its_table(tables: Tables) -> None:
    table = tables.define("again", schema="raw")
    other = replace(table, topic_id="0" * 32)
    with pytest.raises(TableStopped, match=r"was deleted and made again.*tables rebuild again"):
        tables.fill(other)


def test_readers_that_trust_statistics_find_rows_by_columns_of_every_type(spark: SparkSession, tmp_path: Path) -> None:
    """A filter on a text found nothing: the file had no smallest text, which deltalake's dataset takes for null."""
    at = datetime(2026, 1, 1, 1, 2, 3, 456_789, tzinfo=UTC)
    kinds = "b boolean, n int, f double, s string, t timestamp, z timestamp_ntz, d date, m decimal(20,2), e string, x binary"
    columns = StructType.fromDDL(kinds)
    values = [
        True,
        1,
        math.nan,
        "\U0001f600" * 40,
        at,
        at.replace(tzinfo=None),
        at.date(),
        Decimal("123456789012345678.91"),
    ]
    row = dict(zip(columns.names, [*values, None, b"x"], strict=True))
    batch = pyarrow.RecordBatch.from_pylist([row, row | {"f": 2.5, "s": "b"}], to_arrow_schema(columns, timezone="UTC"))
    target = DeltaTarget(str(tmp_path), columns, [], {})
    target.publish(target.stage(iter([batch]), Task("q", 0, 0, 0)), None)
    lake = duckdb.connect().register("lake", DeltaTable(tmp_path).to_pyarrow_dataset())
    for found, where in (
        (2, "b"),
        (2, "n = 1"),
        (1, "f = 2.5"),
        (1, "s >= 'c'"),
        (1, f"s = '{values[3]}'"),
        (2, "t >= '2026-01-01 01:02:03.456789Z'"),
        (2, "z = '2026-01-01 01:02:03.456789'"),
        (2, "d = '2026-01-01'"),
        (2, "m = 123456789012345678.91"),
        (2, "e IS NULL"),
        (2, "x = 'x'::BLOB"),
    ):
        assert lake.sql(f"SELECT count(*) FROM lake WHERE {where}").fetchall() == [(found,)], where


def test_numbers_of_json_are_bigint_only_where_all_are_written_without_a_fraction(spark: SparkSession) -> None:
    """`1.0` is a decimal without a fraction to Spark, and no bigint to its parser: all records became errors."""
    seen = "OBJECT<`a b`: BIGINT, b: DECIMAL(1,0), c: ARRAY<OBJECT<d: DECIMAL(20,3), e: VOID>>, f: VARIANT, g: OBJECT<h: VOID>>"
    assert row_type(seen) == StructType.fromDDL("`a b` bigint, b double, c array<struct<d: double>>, f string")


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_run_that_ends_reads_on_past_a_batch_that_has_no_row(tables: Tables, mode: str) -> None:
    """The topic has more records of an aborted transaction than fit a batch."""
    table = tables.define(f"aborted-{mode}", mode=mode)
    producer = Producer({"bootstrap.servers": tables.kafka.bootstrap, "transactional.id": table.topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    for _ in range(10):
        producer.produce(table.topic, b'{"n": -1}', key=b"gone")
    assert producer.flush(60) == 0
    producer.abort_transaction(60)
    tables.produce(table, ("a", {"n": 1}, 0), ("b", {"n": 2}, 0))
    lines: list[str] = []
    settings = {"bootstrap.servers": tables.kafka.bootstrap}
    options = RunOptions(once=True, records_max=4, names=(table.name,))
    with Catalogue(client_config(tables.kafka.bootstrap)) as catalogue:
        catalogue.define(table)
        try:
            assert Runner(tables.spark, settings, options, tell=lines.append).run(), lines
        finally:
            catalogue.remove(table.name)
    assert sorted(row["n"] for row in polars_rows(table)) == [1, 2]


@pytest.mark.parametrize(("kind", "schema", "mode"), [("delta", "json", "append"), ("iceberg", "raw", "upsert")])
def test_record_whose_time_no_table_has_is_an_error_and_the_others_are_rows(
    tables: Tables, kind: str, schema: str, mode: str
) -> None:
    """The producer takes microseconds for milliseconds."""
    table = tables.define(f"time-{kind}", format=kind, schema=schema, mode=mode)
    producer = Producer({"bootstrap.servers": tables.kafka.bootstrap})
    producer.produce(table.topic, b'{"n": 1}', key=b"a", timestamp=1_790_000_000_000)
    producer.produce(table.topic, b'{"n": 2}', key=b"b", timestamp=1_790_000_000_000_000)
    assert producer.flush(60) == 0
    filled = tables.fill(table)
    assert (filled.rows, filled.errors) == (1, 1)
    assert [row["_offset"] for row in polars_rows(table)] == [0]
    [bad] = polars_rows(table.errors())
    assert (bad["_offset"], bad["_timestamp"], bad["value"]) == (1, None, b'{"n": 2}')
    assert bad["reason"].endswith(
        "partition 0, offset 1: timestamp 1790000000000000 ms is not in the years 1 to 9999 of a table"
    )


def test_record_with_a_key_that_is_not_a_number_is_an_error(tables: Tables) -> None:
    """pyiceberg has no filter for it: the table failed, and began again for ever."""
    table = tables.define("nan", format="iceberg", mode="upsert", key=("id",))
    producer = Producer({"bootstrap.servers": tables.kafka.bootstrap})
    for value in (b'{"id": 1.5}', b'{"id": NaN}'):
        producer.produce(table.topic, value)
    assert producer.flush(60) == 0
    filled = tables.fill(table)
    assert (filled.rows, filled.errors) == (1, 1)
    [bad] = polars_rows(table.errors())
    assert bad["reason"].endswith("offset 1: id is NaN, which equals no key of a row")
