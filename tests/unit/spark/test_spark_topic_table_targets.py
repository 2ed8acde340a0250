"""Tables of topics, without Spark: a table moves on with every batch, and has each of its rows once."""

import math
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.table.statistics import StatisticsFile
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from barnabas.base.ids import TopicPartition
from barnabas.spark.pipelines.cdc import DELETED
from barnabas.spark.pipelines.sinks.delta_table import DeltaTarget
from barnabas.spark.pipelines.sinks.exactly_once import NOWHERE, Overtaken, Span, Task
from barnabas.spark.pipelines.sinks.iceberg_table import IcebergTarget
from barnabas.spark.pipelines.sinks.table_schema import TableMismatch
from barnabas.spark.tables import filling, reading, rows
from barnabas.spark.tables.definition import OFFSET, PARTITION, TIMESTAMP, BadDefinition, Definition, checked
from barnabas.spark.tables.direct import Direct, DirectReader
from barnabas.spark.tables.places import place_of
from barnabas.spark.tables.storing import catalog_settings
from barnabas.spark.tables.targets import Target, target_of
from barnabas.spark.tables.upkeep import Upkeep

CHANGES = StructType(
    [
        StructField("id", LongType()),
        StructField(PARTITION, IntegerType()),
        StructField(OFFSET, LongType()),
        StructField(TIMESTAMP, TimestampType()),
        StructField(DELETED, BooleanType()),
    ]
)
#: How the table calls the one partition.
PART = "barnabas/orders//0"


def upserts(folder: Path, kind: str) -> Definition:
    return checked(
        Definition(name="orders", topic="orders", url=str(folder / "orders"), format=kind, mode="upsert", key=("id",))
    )


def staged(target: Target, *changes: tuple[int, int, bool]) -> list[dict[str, object]]:
    """Stage changes, given as (id, offset, whether it deletes)."""
    at = datetime(2026, 11, 1, tzinfo=UTC)
    rows: list[dict[str, Any]] = [
        {"id": each, PARTITION: 0, OFFSET: offset, TIMESTAMP: at, DELETED: gone} for each, offset, gone in changes
    ]
    data = pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(CHANGES, timezone="UTC"))
    return target.stage(iter([data]), Task("orders", 0, 0, 0))


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_table_moves_past_a_batch_without_changes(tmp_path: Path, kind: str) -> None:
    """Tombstones of missing keys, records that the table has in a newer form, no records at all: the table moves past all of
    them."""
    table = upserts(tmp_path, kind)
    target = target_of(table, CHANGES)
    at = NOWHERE
    for end, changes in (
        (3, [(1, 2, True)]),
        (5, [(1, 4, False), (2, 3, False)]),
        (7, [(9, 5, True), (8, 6, True)]),
        (8, [(1, 1, False), (2, 2, True)]),
        (9, []),
    ):
        target = target_of(table, CHANGES)
        items = staged(target, *changes)
        target.publish(items, Span({PART: at}, {PART: end}))
        assert place_of(table).known(PART) == end
        with pytest.raises(Overtaken):
            target.publish([], Span({PART: at}, {PART: end}))
        at = end
    assert place_of(table).facts().rows == 2


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_one_of_two_runs_with_a_batch_without_changes_finds_the_table_moved(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = upserts(tmp_path, kind)
    first = target_of(table, CHANGES)
    first.publish(staged(first, (1, 0, False)), Span({PART: NOWHERE}, {PART: 1}))
    name = "_publish" if kind == "delta" else "_commit"
    other = target_of(table, CHANGES)
    publish = getattr(type(other), name)

    def late(self: Target, *given: Any, **more: Any) -> None:
        monkeypatch.setattr(type(other), name, publish)
        target_of(table, CHANGES).publish([], Span({PART: 1}, {PART: 2}))
        publish(self, *given, **more)

    items = staged(other, (9, 1, True))
    monkeypatch.setattr(type(other), name, late)
    with pytest.raises(Overtaken):
        other.publish(items, Span({PART: 1}, {PART: 2}))
    assert place_of(table).known(PART) == 2


def test_partition_of_a_delta_table_has_its_rows_once_whatever_its_numbers_are(tmp_path: Path) -> None:
    """NaN equals nothing, and 0.0 equals -0.0."""
    schema = StructType([StructField("part", DoubleType()), StructField("id", LongType())])
    target = DeltaTarget(str(tmp_path / "delta"), schema, ["part"], {})
    parts = [math.nan, 0.0, -0.0, 1.5, None, math.nan, math.inf]
    rows = [{"part": part, "id": number} for number, part in enumerate(parts)]
    data = pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(schema, timezone="UTC"))
    target.publish(target.stage(iter([data]), Task("q", 0, 0, 0)), None)
    found = DeltaTable(str(tmp_path / "delta")).to_pyarrow_table().sort_by("id").to_pylist()
    assert [row["id"] for row in found] == list(range(len(parts)))
    assert str([row["part"] for row in found]) == str(parts)


def test_rows_that_pyiceberg_would_write_twice_are_refused(tmp_path: Path) -> None:
    schema = StructType([StructField("part", DoubleType()), StructField("id", LongType())])
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    target = IcebergTarget("a.b", schema, catalog, location=f"file://{tmp_path}/b", partition_by=["part"])
    target.plan()

    def write(*parts: float | None) -> None:
        rows = [{"part": part, "id": number} for number, part in enumerate(parts)]
        data = pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(schema, timezone="UTC"))
        target.publish(target.stage(iter([data]), Task("q", 0, 0, 0)), None)

    write(0.0, 1.5, None)
    with pytest.raises(TableMismatch, match=r"pyiceberg makes 4 of 2 .* It cannot tell 0\.0 from -0\.0"):
        write(0.0, -0.0)
    table = target.existing()
    assert table is not None
    assert table.scan().count() == 3


def test_delta_table_takes_times_that_python_does_not_have(tmp_path: Path) -> None:
    schema = StructType([StructField("at", TimestampType()), StructField("id", LongType())])
    target = DeltaTarget(str(tmp_path / "delta"), schema, [], {})
    times = pa.array([-(1 << 62), 0, 1_790_000_000_000_000_000], pa.timestamp("us", tz="UTC"))
    data = pa.RecordBatch.from_arrays([times, pa.array([0, 1, 2])], schema=to_arrow_schema(schema, timezone="UTC"))
    target.publish(target.stage(iter([data]), Task("q", 0, 0, 0)), None)
    found = DeltaTable(str(tmp_path / "delta")).to_pyarrow_table()
    assert found.column("at").combine_chunks().equals(times)
    [known] = DeltaTable(str(tmp_path / "delta")).get_add_actions(flatten=True)["min.at"].to_pylist()
    assert known == datetime(1, 1, 1, tzinfo=UTC)


def test_record_with_a_time_that_no_table_has_is_not_read_directly() -> None:
    times = pa.array([0, 1_790_000_000_000_000_000, -(1 << 62)], pa.timestamp("us", tz="UTC"))
    records = pa.RecordBatch.from_pydict({"value": pa.array([b"v"] * 3), "timestamp": times, "offset": [0, 1, 2]})
    rows, rest = DirectReader(Direct(None, (("at", "offset"),))).split(records)
    assert [each["at"] for batch in rows for each in batch.to_pylist()] == [0]
    assert [offset for batch in rest for offset in batch.column("offset").to_pylist()] == [1, 2]


def test_delta_table_is_not_partitioned_by_bytes(tmp_path: Path) -> None:
    schema = StructType([StructField("_key", BinaryType()), StructField("name", StringType())])
    target = DeltaTarget(str(tmp_path / "delta"), schema, ["_key"], {})
    with pytest.raises(TableMismatch, match="cannot be partitioned by _key, which is binary"):
        target.plan()


class Topic:
    """Stands for the cluster in a rebuild."""

    def partitions(self, *, required: bool) -> list[TopicPartition]:
        return [TopicPartition("orders", 0)]

    def topic_ids(self) -> dict[str, bytes]:
        return {}

    def earliest(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 5)

    def latest(self, partitions: list[TopicPartition], known: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 9)


def test_records_that_were_deleted_before_they_were_read_stop_a_table_or_are_passed_over(tmp_path: Path) -> None:
    """The table failed in a task, began again every 30 seconds for ever, and named an option that tables do not have."""
    table, topic = upserts(tmp_path, "delta"), Topic()
    assert filling.plan(table, place_of(table), topic, records_max=100).records == 4  # type: ignore[arg-type]
    target = target_of(table, CHANGES)
    target.publish(staged(target, (1, 0, False)), Span({PART: NOWHERE}, {PART: 3}))
    with pytest.raises(filling.TableStopped, match=r"orders-0 from 3 to 5\. .*rebuild orders.*--on-data-loss skip"):
        filling.plan(table, place_of(table), topic, records_max=100)  # type: ignore[arg-type]
    planned = filling.plan(replace(table, on_loss="skip"), place_of(table), topic, records_max=100)  # type: ignore[arg-type]
    assert planned.starts == {TopicPartition("orders", 0): 3}


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_zero_and_negative_zero_are_one_key(tmp_path: Path, kind: str) -> None:
    """Two changes of this key in a batch made the table fail for ever (Delta), or were two rows (Iceberg)."""
    changes = StructType([StructField("id", DoubleType()), *CHANGES.fields[1:]])
    table, at = upserts(tmp_path, kind), datetime(2026, 11, 1, tzinfo=UTC)
    for batch, keys in enumerate([(0.0, -0.0), (-0.0, 0.0)]):
        target = target_of(table, changes)
        rows = [
            {"id": key, PARTITION: 0, OFFSET: 2 * batch + number, TIMESTAMP: at, DELETED: False}
            for number, key in enumerate(keys)
        ]
        data = pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(changes, timezone="UTC"))
        items = target.stage(iter([data]), Task("orders", 0, 0, 0))
        target.publish(items, Span({PART: 2 * batch or NOWHERE}, {PART: 2 * batch + 2}))
    assert place_of(table).offsets() == {0: {3}}


def test_a_key_that_is_not_a_number_is_not_read_directly() -> None:
    """No row can be found by NaN, and pyiceberg fails with it: it is an error, like a key that is null."""
    direct = Direct(json=StructType([StructField("id", DoubleType())]), beside=(), required=("id",), deleted="_deleted")
    values = pa.array([b'{"id": 1.5}', b'{"id": NaN}', b'{"id": null}'], pa.binary())
    [taken], [left] = DirectReader(direct).split(pa.RecordBatch.from_pydict({"value": values}))
    assert taken.column("id").to_pylist() == [1.5]
    assert left.column("value").to_pylist() == [b'{"id": NaN}', b'{"id": null}']


def test_a_key_of_an_iceberg_table_has_no_dot() -> None:
    with pytest.raises(BadDefinition, match=r"--key 'a\.b' is not valid: Iceberg takes a dot"):
        checked(Definition(name="t", topic="t", url="/t", format="iceberg", mode="upsert", key=("a.b",)))
    checked(Definition(name="t", topic="t", url="/t", format="delta", mode="upsert", key=("a.b",)))


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_table_is_rebuilt_again_after_its_definition_was_removed_and_added(tmp_path: Path, kind: str) -> None:
    """The table remembers that it was rebuilt; a definition that is added again does not."""
    table = upserts(tmp_path, kind)
    for now_ms in (1_000, 2_000):
        target = target_of(table, CHANGES)
        target.publish(staged(target, (1, 0, False)), Span({PART: NOWHERE}, {PART: 1}))
        rebuilt = table.rebuilt("", now_ms=now_ms)
        for _ in range(2):
            filling._rebuild(rebuilt, Topic())  # type: ignore[arg-type]
        assert (place_of(table).facts().rows, place_of(table).known(PART)) == (0, NOWHERE)
    assert rebuilt.rebuilt("", now_ms=5).generation == 2_001, "clocks go back"


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_record_that_no_longer_fits_after_a_run_died_is_an_error(tmp_path: Path, kind: str) -> None:
    """The errors of a batch were published, its rows were not: the next run has another schema, and more errors."""
    table = checked(Definition(name="orders", topic="orders", url=str(tmp_path / "orders"), format=kind, schema="raw"))
    place = TopicPartition("orders", 0)
    more = [(rows.REASON, StringType()), (rows.RAW, BinaryType()), (rows.PUT_ASIDE, StringType())]
    types = StructType([*rows.ERROR_COLUMNS.fields, *(StructField(*each) for each in more)])

    def bad(*offsets: int) -> pa.RecordBatch:
        given = [{"reason": "why", PARTITION: 0, OFFSET: at, rows.REASON: f"{at}", rows.RAW: b""} for at in offsets]
        return pa.RecordBatch.from_pylist(given, schema=to_arrow_schema(types, timezone="UTC"))

    def next_batch(*, start: int) -> tuple[filling._Batch, filling._Split]:
        planned = filling.Plan({place: start - 1}, {place: start}, {place: 9}, {place: 9})
        batch = filling._Batch(
            table, planned, target_of(table, rows.row_columns(table, rows.value_of(table, StructType())))
        )
        return batch, filling._Split(iter([bad(1, 3, 6)]), lambda _: [], batch._known_bad)

    errors = target_of(table.errors(), rows.ERROR_COLUMNS)
    before = bad(1).select(rows.ERROR_COLUMNS.names)
    errors.publish(errors.stage(iter([before]), Task("q", 0, 0, 0)), Span({PART: NOWHERE}, {PART: 5}))
    _, split = next_batch(start=0)
    assert [batch.num_rows for batch in split.good()] == [0]
    assert (split.errors, split.first_error) == (2, "3"), "3 and 6 are reported; 1 was reported before"
    batch, _ = next_batch(start=5)
    assert batch._known_bad == {}, "the table has come as far: nothing need be looked up"


def test_large_rows_that_are_read_directly_are_staged_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("barnabas.spark.pipelines.sinks.files.BYTES_MAX", 1000)
    task = SimpleNamespace(partitionId=lambda: 0, taskAttemptId=lambda: 0)
    monkeypatch.setattr(reading.TaskContext, "get", lambda: task)
    columns = StructType().add("n", "string")
    held = reading._Held(DeltaTarget(str(tmp_path), columns, [], {}), "job")
    row = pa.RecordBatch.from_pylist([{"n": "x" * 400}], schema=to_arrow_schema(columns))
    staged = []
    for _ in range(6):
        held.add([row])
        staged.append(len(held.staged))
    assert staged == [0, 0, 1, 1, 1, 2]


def test_upkeep_keeps_files_that_other_programs_added_to_an_iceberg_table(tmp_path: Path) -> None:
    """Files in Hadoop's spelling of a path, and statistics, were not recognised as the table's, and were deleted after
    `keep_hours`."""
    table = checked(Definition(name="orders", topic="orders", url=str(tmp_path / "orders"), format="iceberg"))
    columns = StructType().add("n", "long")
    target = IcebergTarget(table.table, columns, catalog_settings(table), location=table.url)
    there = target.load()
    folder = tmp_path / "orders"
    (folder / "data").mkdir(exist_ok=True)
    pq.write_table(pa.table({"n": [1, 2, 3]}), folder / "data" / "theirs.parquet")
    there.add_files([f"file:{folder}/data/theirs.parquet"])
    (folder / "metadata" / "theirs.stats").write_bytes(b"")
    (folder / "data" / "nobodys.parquet").write_bytes(b"")
    made = there.refresh().current_snapshot()
    assert made is not None
    with there.update_statistics() as change:
        change.set_statistics(
            StatisticsFile.model_validate(
                {
                    "snapshot-id": made.snapshot_id,
                    "statistics-path": f"file:{folder}/metadata/theirs.stats",
                    "file-size-in-bytes": 0,
                    "file-footer-size-in-bytes": 0,
                    "blob-metadata": [],
                }
            )
        )
    for file in folder.rglob("*.*"):
        os.utime(file, (0, 0))
    Upkeep().after_batch(table)
    assert sorted(file.name for file in (folder / "data").iterdir()) == ["theirs.parquet"]
    assert (folder / "metadata" / "theirs.stats").exists()
    assert target.load().scan().to_arrow()["n"].to_pylist() == [1, 2, 3]
