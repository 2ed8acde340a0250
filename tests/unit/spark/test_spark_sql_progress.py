"""The SQL sink distinguishes new, repeated and other batches, and drops staging tables that dead runs have left."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, BooleanType, LongType, StringType, StructType

from barnabas.spark.batch_identity import UNKNOWN, BatchIdentity, NotTheSameBatch
from barnabas.spark.checkpoint import NAMELESS, Planned
from barnabas.spark.pipelines.sinks.exactly_once import Batch, Standing, StreamOptions, Task
from barnabas.spark.pipelines.sinks.sql_progress import Written, leftovers, stage_name, standing_of
from barnabas.spark.pipelines.sinks.sql_table import SqlTarget
from barnabas.spark.pipelines.sinks.table_schema import TableMismatch

QUERY = "8a3c5a86-5b63-4e21-8c3f-0c5cf9e61b77"
SCHEMA = StructType().add("id", LongType())
FIVE = BatchIdentity(query=QUERY, checkpoint="c", batch=5, offsets="o5", target="table public.t")


def test_batch_is_new_once() -> None:
    assert standing_of(None, FIVE) is Standing.WRITE
    assert standing_of(Written(4, replace(FIVE, batch=4, offsets="o4")), FIVE) is Standing.WRITE
    assert standing_of(Written(5, FIVE), FIVE) is Standing.LEAVE


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (replace(FIVE, offsets="other"), "differs in the planned offsets"),
        (replace(FIVE, checkpoint="other"), "differs in the checkpoint"),
        (replace(FIVE, checkpoint="other", batch=4), "differs in the checkpoint"),
        (replace(FIVE, batch=6, offsets="o6"), "A later batch was written already"),
        (replace(FIVE, offsets=UNKNOWN), "differs in the planned offsets"),
    ],
)
def test_another_batch_is_refused_until_an_option_names_it(written: BatchIdentity, said: str) -> None:
    before = Written(written.batch, written)
    with pytest.raises(NotTheSameBatch, match=said) as refused:
        standing_of(before, FIVE)
    message = str(refused.value)
    assert str(written) in message and str(FIVE) in message
    assert "acceptReplannedBatch=5:write" in message and "acceptReplannedBatch=5:skip" in message
    assert standing_of(before, FIVE, accepted="write") is Standing.WRITE
    assert standing_of(before, FIVE, accepted="skip") is Standing.SKIP


def test_checkpoint_that_was_set_back_on_purpose_writes_again() -> None:
    written = Written(7, replace(FIVE, checkpoint="before", batch=7))
    assert standing_of(written, FIVE, plan=Planned(replaces=("before",))) is Standing.WRITE
    assert standing_of(Written(7, None), FIVE, plan=Planned(replaces=(NAMELESS,))) is Standing.WRITE


def test_batch_of_an_older_barnabas_is_followed_by_later_ones_and_not_taken_for_another() -> None:
    assert standing_of(Written(4, None), FIVE) is Standing.WRITE
    with pytest.raises(NotTheSameBatch, match="An older barnabas wrote the progress table"):
        standing_of(Written(5, None), FIVE)


def test_batches_whose_plan_is_not_known_are_refused_when_they_come_again() -> None:
    unknown = replace(FIVE, checkpoint=UNKNOWN, offsets=UNKNOWN)
    assert standing_of(Written(4, replace(unknown, batch=4)), unknown) is Standing.WRITE
    with pytest.raises(NotTheSameBatch, match="there is no checkpoint"):
        standing_of(Written(5, unknown), unknown, plan=Planned(reason="there is no checkpoint"))


# -- staging tables ---------------------------------------------------------------------------------------------------


def test_no_two_staging_tables_have_one_name() -> None:
    names = {stage_name(QUERY, 0, "public.t") for _ in range(100)}
    assert len(names) == 100 and max(map(len, names)) <= 63
    assert len(stage_name("x" * 500, 10**13, "public.t")) <= 63


def test_only_staging_tables_of_written_batches_are_left_over() -> None:
    mine = [stage_name(QUERY, number, "public.t") for number in (3, 4, 5, 6)]
    others = [
        stage_name(QUERY, 3, "public.other"),
        stage_name("another query", 3, "public.t"),
        "barnabas_sink_progress",
        "barnabas_stage_of_mine",
    ]
    # Barnabas before 0.2 named them so, and got stuck on them.
    old = [f"barnabas_stage_{QUERY.replace('-', '')[:20]}_{number}_0_0" for number in (5, 6)]
    assert leftovers([*mine, *others, *old], QUERY, 5, "public.t") == {*mine[:3], old[0]}


# -- in a database ----------------------------------------------------------------------------------------------------


class Table:
    def __init__(self, folder: Path, name: str = "t", **options: str) -> None:
        self.folder, self.file, self.checkpoint = folder, folder / "db", folder / "checkpoint"
        self.options = {"uri": f"sqlite:///{self.file}", "table": name, "checkpointLocation": str(self.checkpoint)}
        self.options |= options

    def write(self, batch: int, *rows: int, planned: str = "", **options: str) -> None:
        """Write a batch as Spark does: it plans the batch, executors stage its rows, the driver publishes them."""
        (self.checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "metadata").write_text(f'{{"id":"{QUERY}"}}')
        (self.checkpoint / "offsets" / str(batch)).write_text(planned or f"plan {batch}")
        target = SqlTarget(self.options | options, SCHEMA)
        data = pa.RecordBatch.from_pylist([{"id": row} for row in rows], schema=pa.schema([("id", pa.int64())]))
        stream = StreamOptions.parse(self.options | options)
        items = target.stage(iter([data]), Task(QUERY, batch, 0, 0))
        target.publish(items, Batch(QUERY, batch, stream.plan(), stream.accepted(batch)))

    def ask(self, query: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.file)) as connection, connection:
            return connection.execute(query).fetchall()

    def rows(self) -> list[object]:
        return [row for (row,) in self.ask(f"SELECT id FROM {self.options['table']} ORDER BY id")]


def test_batch_after_one_whose_offsets_were_edited_is_refused_until_an_option_names_it(tmp_path: Path) -> None:
    """docs/memories.md: the offsets of the last batch, committed or not."""
    table = Table(tmp_path)
    table.write(0, 1)
    table.write(1, 2)
    (table.checkpoint / "offsets" / "1").write_text("edited, so that batch 2 begins elsewhere")
    with pytest.raises(NotTheSameBatch, match="the checkpoint was edited") as refused:
        table.write(2, 2, 3)
    assert "acceptReplannedBatch=2:write" in str(refused.value)
    assert table.rows() == [1, 2]
    table.write(2, 2, 3, acceptReplannedBatch="2:write")
    table.write(3, 4)
    assert table.rows() == [1, 2, 2, 3, 4]


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    yield Table(tmp_path)


def test_batch_that_was_planned_again_is_refused_and_not_thrown_away(table: Table) -> None:
    table.write(0, 1)
    table.write(1, 2)
    table.write(1, 2)
    assert table.rows() == [1, 2], "the same batch again"
    with pytest.raises(NotTheSameBatch, match="planned offsets"):
        table.write(1, 3, planned="another plan")
    assert table.rows() == [1, 2]
    table.write(1, 3, planned="another plan", acceptReplannedBatch="1:write")
    table.write(1, 3, planned="another plan")
    table.write(2, 4)
    assert table.rows() == [1, 2, 3, 4]


def test_one_query_writes_two_tables_of_one_database(table: Table) -> None:
    """A copy of a checkpoint that writes into another table: its batches were once taken for those of the first table, and left
    out."""
    other = Table(table.folder, "other")
    table.write(0, 1)
    other.write(0, 1)
    other.write(1, 2)
    table.write(1, 2)
    assert table.rows() == other.rows() == [1, 2]


@pytest.mark.parametrize("crashed", [False, True])
def test_progress_table_of_an_older_barnabas_is_understood(table: Table, crashed: bool) -> None:
    table.ask("CREATE TABLE barnabas_sink_progress (query_id VARCHAR(64) PRIMARY KEY, batch_id BIGINT NOT NULL)")
    table.ask(f"INSERT INTO barnabas_sink_progress VALUES ('{QUERY}', 4), ('other', 9)")
    if crashed:  # Spark had not noted the batch when the old version ended
        with pytest.raises(NotTheSameBatch, match="An older barnabas wrote the progress table"):
            table.write(4, 40)
        table.write(4, 40, acceptReplannedBatch="4:skip")
    table.write(5, 50)
    table.write(5, 50)
    assert table.rows() == [50]
    found = table.ask("SELECT query_id, target, batch_id FROM barnabas_sink_progress ORDER BY 1, 2")
    assert found == [(QUERY, "", 4), (QUERY, "table main.t", 5), ("other", "", 9)]


def test_staging_tables_of_runs_that_died_go_with_the_next_batch(table: Table) -> None:
    target = SqlTarget(table.options, SCHEMA)
    data = pa.RecordBatch.from_pylist([{"id": 1}], schema=pa.schema([("id", pa.int64())]))
    for _ in range(3):  # each dies before it publishes; Spark counts its attempts from 0
        target.stage(iter([data]), Task(QUERY, 0, 0, 0))
    target.stage(iter([data]), Task("another query", 0, 0, 0))
    table.write(0, 1)
    assert table.rows() == [1]
    left = table.ask("SELECT count(*) FROM sqlite_master WHERE name LIKE 'barnabas_stage%'")
    assert left == [(1,)], "that of another query"


# -- values that a change left alone ----------------------------------------------------------------------------------

CHANGES = (
    StructType()
    .add("id", LongType())
    .add("a", StringType())
    .add("b", StringType())
    .add("_deleted", BooleanType())
    .add("_sequence", LongType())
    .add("_unchanged", ArrayType(StringType()))
)


def test_upsert_keeps_values_that_changes_left_alone(tmp_path: Path) -> None:
    options = {"uri": f"sqlite:///{tmp_path}/db", "table": "t", "mode": "upsert", "key": "id", "orderBy": "_sequence"}
    options |= {"deleteColumn": "_deleted"}
    table = Table(tmp_path)

    def apply(batch: int, *rows: tuple[object, ...]) -> list[tuple[object, ...]]:
        target = SqlTarget(options, CHANGES)
        items = []
        for task, row in enumerate(rows):  # each by a task of its own
            data = pa.RecordBatch.from_pylist([dict(zip(CHANGES.names, row, strict=True))], schema=ARROW)
            items += target.stage(iter([data]), Task(QUERY, batch, task, 0))
        target.publish(items, Batch(QUERY, batch))
        return table.ask("SELECT id, a, b FROM t ORDER BY id")

    apply(0, (1, "a", "b", False, 1, None), (2, "a", "b", False, 2, None), (3, "a", None, False, 3, None))
    found = apply(
        1,
        (1, "a2", None, False, 11, ["b"]),  # the table has the value
        (2, "x", "y", False, 12, None),  # the batch has it
        (2, None, None, False, 13, ["a", "b"]),
        (2, "z", None, False, 14, ["b"]),
        (3, "a3", None, False, 15, ["b"]),  # the value is null
        (4, "a4", None, False, 16, ["b"]),  # no value is known
    )
    assert found == [(1, "a2", "b"), (2, "z", "y"), (3, "a3", None), (4, "a4", None)]
    found = apply(
        2, (1, None, None, True, 21, None), (1, "new", "n", False, 22, None), (1, "newer", None, False, 23, ["b"])
    )
    assert found[0] == (1, "newer", "n")
    assert apply(3, (1, "late", None, False, 20, ["b"]))[0] == (1, "newer", "n")


ARROW = pa.schema(
    [
        ("id", pa.int64()),
        ("a", pa.string()),
        ("b", pa.string()),
        ("_deleted", pa.bool_()),
        ("_sequence", pa.int64()),
        ("_unchanged", pa.list_(pa.string())),
    ]
)


def test_rows_may_lack_columns_that_have_a_default(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.ask("CREATE TABLE t (id BIGINT NOT NULL, made TEXT NOT NULL DEFAULT 'here', twice INT)")
    with pytest.raises(TableMismatch, match="the rows have no column twice"):
        table.write(0, 1)
    table.ask("ALTER TABLE t DROP COLUMN twice")
    table.write(0, 1)
    assert table.ask("SELECT id, made FROM t") == [(1, "here")]
