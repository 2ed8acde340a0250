"""A table is filled only if its offsets belong to its rows: a table that was set back, or has other rows, stops."""

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from barnabas.base.ids import TopicPartition
from barnabas.spark.pipelines.sinks.exactly_once import NOWHERE, Task
from barnabas.spark.tables import filling, rows
from barnabas.spark.tables.definition import Definition, checked
from barnabas.spark.tables.filling import Plan, Staged, TableStopped
from barnabas.spark.tables.places import IcebergPlace, place_of
from barnabas.spark.tables.targets import target_of

PART = TopicPartition("orders", 0)
COLUMNS = rows.columns_beside(StructType().add("value", "binary"))


class Topic:
    """Stands for the cluster in a plan."""

    def partitions(self, *, required: bool) -> list[TopicPartition]:
        return [PART]

    def topic_ids(self) -> dict[str, bytes]:
        return {"orders": b"\1" * 16}

    def earliest(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {PART: 0}

    def latest(self, partitions: list[TopicPartition], known: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {PART: 9}


@pytest.fixture(params=["delta", "iceberg"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> Definition:
    given = Definition(name="orders", topic="orders", topic_id="01" * 16, url=str(tmp_path / "orders"), schema="raw")
    return checked(replace(given, format=request.param))


def plan(table: Definition) -> Plan:
    return filling.plan(table, place_of(table), Topic(), records_max=3)  # type: ignore[arg-type]


def fill(table: Definition) -> None:
    """Fill the table with the next three records."""
    planned, target = plan(table), target_of(table, COLUMNS)
    row = {"value": b"v", "_key": b"k", "_headers": [], "_partition": 0, "_timestamp": 0}
    found = [row | {"_offset": at} for at in range(planned.starts[PART], planned.ends[PART])]
    batch = pa.RecordBatch.from_pylist(found, schema=to_arrow_schema(COLUMNS, timezone="UTC"))
    items = target.stage(iter([batch]), Task("orders", 0, 0, 0))
    filling._Batch(table, planned, target).publish(Staged(items, [], len(found), 0, None))


def set_back(table: Definition, steps: int) -> None:
    """Set the table back, as people do to get rid of rows."""
    if table.format == "delta":
        there = DeltaTable(table.url)
        there.restore(there.version() - steps)
        return
    place = place_of(table)
    assert isinstance(place, IcebergPlace)
    assert place.table is not None
    to = [each.snapshot_id for each in place.table.snapshots()][-1 - steps]
    place.table.manage_snapshots().rollback_to_snapshot(to).commit()


@pytest.mark.parametrize("steps", [1, 2])
def test_a_table_that_was_set_back_stops_until_it_is_rebuilt(table: Definition, steps: int) -> None:
    for _ in range(3):
        fill(table)
    assert (plan(table).waiting, place_of(table).facts().rows) == (0, 9)
    set_back(table, steps)
    assert place_of(table).facts().rows == 9 - 3 * steps
    with pytest.raises(TableStopped, match=r"was set back: .*orders-0 to 9.*tables rebuild orders"):
        plan(table)
    rebuilt = table.rebuilt(table.topic_id, now_ms=1)
    filling._rebuild(rebuilt, Topic())  # type: ignore[arg-type]
    for _ in range(3):
        fill(rebuilt)
    assert place_of(table).facts().rows == 9


def test_commits_of_other_programs_do_not_stop_a_table(table: Definition) -> None:
    fill(table)
    fill(table)
    place = place_of(table)
    assert place.known(table.mark(0)) == 6
    if isinstance(place, IcebergPlace):
        assert place.table is not None
        place.table.append(place.table.scan().to_arrow().slice(0, 1))
        place.table.maintenance.expire_snapshots().by_id(place.table.snapshots()[0].snapshot_id).commit()
    else:
        there = DeltaTable(table.url)
        there.optimize.compact()
        there.delete("_offset = 0")
    fill(table)
    assert plan(table).waiting == 0


@pytest.mark.parametrize("table", ["delta"], indirect=True)
def test_a_delta_table_that_was_set_back_before_the_last_batch_goes_on(table: Definition) -> None:
    fill(table)
    DeltaTable(table.url).restore(0)
    found = place_of(table)
    assert found.set_back_since(0) is not None
    assert found.set_back_since(found.version()) is None


def test_a_table_with_the_rows_of_another_topic_stops_until_it_is_rebuilt(table: Definition) -> None:
    fill(replace(table, topic_id="01" * 16))
    other = replace(table, name="copy", topic_id="02" * 16)

    class Other(Topic):
        def topic_ids(self) -> dict[str, bytes]:
            return {"orders": b"\2" * 16}

    said = rf"{table.source:012x}.*topic orders with the id {other.topic_id} .source {other.source:012x}.*rebuild copy"
    with pytest.raises(TableStopped, match=said):
        filling.plan(other, place_of(other), Other(), records_max=3)  # type: ignore[arg-type]
    rebuilt = other.rebuilt(other.topic_id, now_ms=1)
    filling._rebuild(rebuilt, Other())  # type: ignore[arg-type]
    planned = filling.plan(rebuilt, place_of(rebuilt), Other(), records_max=3)  # type: ignore[arg-type]
    assert planned.starts == {PART: 0}
    assert place_of(table).facts().rows == 0


def test_rows_without_the_memory_of_their_offsets_are_not_written_again(table: Definition) -> None:
    """A deep clone in Databricks, or CREATE TABLE AS SELECT, copies rows and leaves the table's memory behind."""
    fill(table)
    copied = checked(replace(table, url=f"{table.url}-copied", table=f"{table.table}_copied" if table.table else ""))
    there = place_of(table).table  # type: ignore[attr-defined]
    if table.format == "delta":
        write_deltalake(copied.url, there.to_pyarrow_table())
    else:
        target = target_of(copied, COLUMNS)
        target.load().append(there.scan().to_arrow())
    with pytest.raises(TableStopped, match="has 3 rows of a topic, but does not remember their offsets"):
        plan(copied)
    again = replace(copied, generation=1)
    filling._rebuild(again, Topic())  # type: ignore[arg-type]
    assert plan(again).starts == {PART: 0}


@pytest.mark.parametrize("table", ["delta"], indirect=True)
def test_a_copied_and_a_deleted_delta_table_begin_where_their_rows_end(table: Definition, tmp_path: Path) -> None:
    fill(table)
    shutil.copytree(tmp_path / "orders", tmp_path / "copy")
    copy = replace(table, url=table.url.replace("orders", "copy"))
    fill(copy)
    assert (plan(copy).starts, plan(table).starts) == ({PART: 6}, {PART: 3})
    shutil.rmtree(tmp_path / "orders")
    assert (plan(table).marks, plan(table).starts) == ({PART: NOWHERE}, {PART: 0})
