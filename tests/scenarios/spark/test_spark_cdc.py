"""Change data capture: envelopes into changes, and changes into tables, whatever comes late, twice or again."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from barnabas.spark.pipelines import sources
from barnabas.spark.pipelines._fields import TransformError
from barnabas.spark.pipelines.cdc import (
    check_changes,
    debezium,
    debezium_schema,
    keyed,
    upsert_into_delta,
    upsert_into_sql,
)
from barnabas.spark.pipelines.codecs import Json, decode
from barnabas.spark.pipelines.database import Database, fetch
from barnabas.spark.pipelines.delta_upsert import STAGE, DeltaUpsertTarget
from barnabas.spark.pipelines.sinks.exactly_once import Batch, Target, Task
from barnabas.spark.pipelines.sinks.sql_table import SqlTarget
from barnabas.testing import Kafka, wait_until

WAIT_S = 30

CHANGES = StructType().add("id", "long").add("name", "string").add("_deleted", "boolean").add("_sequence", "long")
#: id, name, deleted, sequence
Change = tuple[int | None, str | None, bool, int]


def apply(target: Target, number: int, *parts: list[Change], query: str = "q") -> None:
    """Apply a batch of several partitions as Spark does."""
    arrow = to_arrow_schema(CHANGES, timezone="UTC")
    items: list[dict[str, object]] = []
    for partition, rows in enumerate(parts):
        batch = pa.RecordBatch.from_pylist([dict(zip(CHANGES.names, row, strict=True)) for row in rows], schema=arrow)
        items += target.stage(iter([batch]), Task(query, number, partition, attempt=partition))
    target.publish(items, Batch(query, number))


class Tables:
    """A Delta table or a table of SQLite, with the same methods."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.path = str(folder / "customers")
        self.uri = f"sqlite:///{folder / 'shop.db'}"
        self.kind = kind
        if kind == "delta":
            self.target: Target = DeltaUpsertTarget(self.path, CHANGES, ["id"], soft=False, storage={})
        else:
            options = {"uri": self.uri, "table": "customers", "mode": "upsert", "key": "id"}
            self.target = SqlTarget(options | {"orderBy": "_sequence", "deleteColumn": "_deleted"}, CHANGES)

    def rows(self) -> list[tuple[Any, ...]]:
        if self.kind == "delta":
            found = DeltaTable(self.path).to_pyarrow_table().to_pylist()
        else:
            with Database(self.uri).connect() as connection:
                found = fetch(connection, "SELECT * FROM customers")
        return sorted((row["id"], row["name"]) for row in found)


@pytest.fixture(params=["delta", "sqlite"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Tables:
    return Tables(request.param, tmp_path)


def test_the_newest_change_of_a_key_wins_whatever_the_order_and_a_batch_counts_once(tables: Tables) -> None:
    apply(tables.target, 0, [(1, "new", False, 5), (2, "b", False, 2)], [(1, "old", False, 3), (3, "c", False, 4)])
    assert tables.rows() == [(1, "new"), (2, "b"), (3, "c")]
    apply(tables.target, 1, [(1, "late", False, 4), (2, None, True, 6), (3, None, True, 1), (4, None, True, 7)])
    assert tables.rows() == [(1, "new"), (3, "c")]
    apply(tables.target, 1, [(1, "again", False, 99)])  # a batch that comes again is not looked at
    assert tables.rows() == [(1, "new"), (3, "c")]
    apply(tables.target, 0, [(5, "e", False, 1)], query="another query, whose batches begin at 0")
    assert tables.rows() == [(1, "new"), (3, "c"), (5, "e")]


def test_a_late_change_does_not_revive_a_softly_deleted_row(tmp_path: Path) -> None:
    path = tmp_path / "customers"
    target = DeltaUpsertTarget(str(path), CHANGES, ["id"], soft=True, storage={})
    apply(target, 0, [(1, "a", False, 1)])
    apply(target, 1, [(1, "a", True, 5)])
    (path / STAGE / "q" / "0000000001-00000-dead.parquet").write_bytes(b"what an attempt left that died")
    apply(target, 2, [(1, "late", False, 4)])
    (row,) = DeltaTable(path).to_pyarrow_table().to_pylist()
    assert row == {"id": 1, "name": "a", "_deleted": True, "_sequence": 5}
    assert not list((path / STAGE).rglob("*.parquet"))


def test_a_database_keeps_soft_deletes_too(tmp_path: Path) -> None:
    sink = upsert_into_sql(f"sqlite:///{tmp_path}/db", "customers", keys=["id"], deletes="soft")
    target = SqlTarget(sink.options, CHANGES)
    apply(target, 0, [(1, "a", False, 1)])
    apply(target, 1, [(1, "a", True, 5)])
    apply(target, 2, [(1, "late", False, 4)])
    with Database(f"sqlite:///{tmp_path}/db").connect() as connection:
        [row] = fetch(connection, "SELECT * FROM customers")
    assert (row["name"], bool(row["_deleted"]), row["_sequence"]) == ("a", True, 5)
    with pytest.raises(ValueError, match="hard or soft"):
        upsert_into_sql("sqlite:///x", "t", keys=["id"], deletes="never")  # type: ignore[arg-type]


def test_rows_that_are_not_changes_are_refused_by_a_table_of_changes(tmp_path: Path) -> None:
    target = DeltaUpsertTarget(str(tmp_path / "t"), CHANGES, ["id"], soft=False, storage={})
    with pytest.raises(ValueError, match=r"1 changes for Delta table .*/t have no id"):
        apply(target, 0, [(None, "a", False, 1)])
    with pytest.raises(ValueError, match="rows lack _deleted, _sequence"):
        check_changes(StructType().add("id", "long"), ["id"])
    with pytest.raises(ValueError, match="the option key names its columns"):
        check_changes(CHANGES, [])
    with pytest.raises(ValueError, match="deletes='no' is not valid: use hard or soft"):
        upsert_into_delta("/t", keys=["id"], deletes="no")  # type: ignore[arg-type]
    apply(target, 0, [(1, "a", False, 1)])
    wider = StructType([*CHANGES.fields]).add("more", "string")
    other = DeltaUpsertTarget(str(tmp_path / "t"), wider, ["id"], soft=False, storage={})
    with pytest.raises(ValueError, match=re.escape("does not take these rows: the table has no column more string")):
        other.publish([], Batch("q", 1))


def test_envelopes_of_debezium_and_records_of_a_compacted_topic_become_changes(spark: SparkSession) -> None:
    values = [
        '{"payload": {"op": "r", "after": {"id": 1, "name": "a"}, "ts_ms": 10}}',
        '{"payload": {"op": "u", "before": {"id": 1, "name": "a"}, "after": {"id": 1, "name": "b"}, "ts_ms": 11}}',
        '{"payload": {"op": "d", "before": {"id": 1, "name": "b"}, "ts_ms": 12}}',
        None,
        '{"payload": {"op": "t", "ts_ms": 13}}',
    ]
    rows = [("shop.customers", 0, at, "1", value) for at, value in enumerate(values)]
    schema = "topic string, partition int, offset long, key string, value string"
    records = spark.createDataFrame(rows, schema).coalesce(1)
    codec = Json(debezium_schema("id long, name string"), envelope=True)
    decoded = decode(records, codec, mode="FAIL")
    changes = debezium(decoded.filter("offset < 4")).collect()
    assert [tuple(row)[:3] for row in changes] == [(1, "a", False), (1, "b", False), (1, "b", True)]
    assert [row._sequence for row in changes] == [f"{time:015}{at:019}" for time, at in ((10, 0), (11, 1), (12, 2))]
    assert [row._sequence for row in debezium(decoded.filter("offset < 3"), sequence="ts_ms").collect()] == [10, 11, 12]
    with pytest.raises(
        PySparkException, match=r"topic shop\.customers, partition 0, offset 4: operation t is no change"
    ):
        debezium(decoded).collect()
    with pytest.raises(TransformError, match="'data' has no 'before': is it Debezium's envelope"):
        debezium(decode(records, Json("id long")))

    simple = [("t", 0, 1, "7", '{"id": 7, "name": "x"}'), ("t", 0, 2, "8", None)]
    found = decode(spark.createDataFrame(simple, schema).coalesce(1), Json("id long, name string"))
    assert keyed(found, keys=["id"], sequence="offset").collect() == [Row(7, "x", False, 1), Row(8, None, True, 2)]
    with pytest.raises(TransformError, match="column 'key' is string, which has one value for"):
        keyed(found, keys=["id", "name"])


def test_changes_of_keys_that_moved_to_new_partitions_are_applied(
    spark: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    """The topic gets more partitions: most keys go to another one from then on, where offsets are lower."""
    topic = kafka.topic("rows", partitions=2)
    names = [f"k{number}" for number in range(50)]

    def produce(version: int) -> None:
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        for name in names:
            producer.produce(topic, key=name, value=json.dumps({"id": name, "n": version}))
        assert producer.flush(WAIT_S) == 0

    sink = upsert_into_delta(str(tmp_path / "t"), keys=["id"])

    def apply_all() -> dict[str, int]:
        records = sources.topic(topic, bootstrap=kafka.bootstrap).stream(spark)
        changes = keyed(
            decode(records, Json("id string, n int")).withColumn("key", F.col("key").cast("string")), keys=["id"]
        )
        query = sink.writer(changes, checkpoint=str(tmp_path / "c")).trigger(availableNow=True).start()
        assert query.awaitTermination(300)
        rows = DeltaTable(str(tmp_path / "t")).to_pyarrow_table().to_pylist()
        return {row["id"]: row["n"] for row in rows}

    for version in range(3):
        produce(version)
    assert apply_all() == dict.fromkeys(names, 2)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_partitions([NewPartitions(topic, 6)])[topic].result(60)
    wait_until(lambda: len(kafka.cluster.partitions(topic)) == 6)
    produce(3)
    assert apply_all() == dict.fromkeys(names, 3)


def test_the_place_in_the_database_log_orders_changes_before_clocks_and_partitions(
    spark: SparkSession,
) -> None:
    def changes(database: str, *records: tuple[int, str, str]) -> list[Row]:
        """Offset, operation and place of records, whose clock goes back; the changes come in their order."""
        schema = debezium_schema("id long, name string", source=database)  # type: ignore[arg-type]
        rows = [
            (n, json.dumps({"op": op, "ts_ms": 9 - n, "after": {"id": n}, "source": json.loads(text)}), offset)
            for n, (offset, op, text) in enumerate(records)
        ]
        df = spark.createDataFrame(rows, "n int, text string, offset long").coalesce(1)
        df = df.select(
            "*", F.lit("t").alias("topic"), F.lit(0).alias("partition"), F.current_timestamp().alias("timestamp")
        )
        df = df.select("*", F.from_json("text", schema).alias("data"))
        return sorted(debezium(df).collect(), key=lambda row: str(row["_sequence"]))

    of_postgresql = changes(
        "postgresql",
        (9, "u", '{"lsn": 90000000000}'),
        (1, "u", '{"lsn": 100000000000}'),
        (5, "r", "{}"),
        (2, "u", '{"lsn": 90000000000}'),
    )
    assert [row["id"] for row in of_postgresql] == [2, 3, 0, 1], (
        "a snapshot without a place first, equal ones by offset"
    )
    by_time = f"{2**47:015}{1:019}"
    assert all(row["_sequence"] > by_time for row in of_postgresql), "a table that was ordered by time goes on"
    of_mysql = changes(
        "mysql",
        (1, "u", '{"file": "bin.000009", "pos": 5000, "row": 0}'),
        (1, "u", '{"file": "bin.000010", "pos": 4, "row": 10}'),
        (1, "u", '{"file": "bin.000010", "pos": 4, "row": 9}'),
        (1, "r", '{"file": "", "pos": 0}'),
    )
    assert [row["id"] for row in of_mysql] == [3, 0, 2, 1]
    with pytest.raises(
        PySparkException, match=r"topic t, partition 0, offset 7: a change without its place in the log"
    ):
        changes("postgresql", (7, "u", '{"file": "bin.000009", "pos": 5000}'))


def test_changes_without_time_and_offset_need_an_order(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("k", (1,))], "key string, data struct<id: int>")
    with pytest.raises(TransformError, match="changes need an order"):
        keyed(frame, keys=["id"])


def test_record_that_cannot_be_read_is_neither_a_tombstone_nor_left_out(spark: SparkSession) -> None:
    schema = "topic string, partition int, offset long, timestamp timestamp, key string, value string"
    rows = [("t", 3, at, None, "7", value) for at, value in enumerate(['{"id": 7}', "no JSON", None])]
    records = spark.createDataFrame(rows, schema).coalesce(1)
    said = r"topic t, partition 3, offset 1: value: not JSON"
    simple = decode(records, Json("id long"))
    with pytest.raises(PySparkException, match=said):
        keyed(simple, keys=["id"]).collect()
    envelopes = decode(records, Json(debezium_schema("id long")))
    with pytest.raises(PySparkException, match=said):
        debezium(envelopes.filter("offset > 0")).collect()
    assert [row["_deleted"] for row in keyed(simple.filter("error is null"), keys=["id"]).collect()] == [False, True]
    assert debezium(envelopes.filter("error is null and offset > 0")).collect() == []


def test_change_without_a_sequence_fails_the_query_with_its_topic_partition_and_offset(spark: SparkSession) -> None:
    """Otherwise it would be ignored: a tombstone has no value, and so no version in it."""
    schema = "topic string, partition int, offset long, key string, value string"
    rows = [("t", 3, 0, "7", '{"id": 7, "version": 1}'), ("t", 3, 1, "7", None)]
    found = decode(spark.createDataFrame(rows, schema).coalesce(1), Json("id long, version long"))
    said = r"topic t, partition 3, offset 1: a change without its place in the order: version is null"
    with pytest.raises(PySparkException, match=said):
        keyed(found, keys=["id"], sequence="version").collect()
    assert [row["_sequence"] for row in keyed(found, keys=["id"], sequence="offset").collect()] == [0, 1]
