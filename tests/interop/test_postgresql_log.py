"""Changes of many tables through one slot, from a real PostgreSQL's log; without Spark, so that each test is quick."""

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable

from barnabas.spark.pipelines import sources
from barnabas.spark.pipelines.database import DatabaseError
from barnabas.spark.pipelines.sources.change_rows import lsn_number
from barnabas.spark.pipelines.sources.postgres_log import PostgresLogSource
from tests.interop.postgresql import ask, server

Row = dict[str, Any]


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with server() as uri:
        yield uri


class Stream:
    """Reads as a query does: the snapshots first, then the changes since."""

    def __init__(self, uri: str, *tables: str, **more: Any) -> None:
        heartbeat = {"heartbeatMs": str(more.pop("heartbeat_ms", 0))}
        options = dict(sources.changes(uri, tables=tables, **more).options) | heartbeat
        self.reader: Any = PostgresLogSource(CaseInsensitiveDict(options)).streamReader(PostgresLogSource({}).schema())
        self.place = self.reader.initialOffset()

    def more(self) -> list[Row]:
        end = self.reader.latestOffset(self.place, ReadAllAvailable())
        parts = self.reader.partitions(self.place, end) if end != self.place else []
        self.place = end
        return [row for part in parts for batch in self.reader.read(part) for row in batch.to_pylist()]


def shown(rows: list[Row]) -> list[tuple[object, ...]]:
    return [(row["table"], row["op"], dict(row["after"] or ())) for row in rows]


def test_one_slot_gives_the_changes_of_all_tables_in_the_order_of_commits(uri: str) -> None:
    ask(
        uri,
        "CREATE TABLE a (id INT PRIMARY KEY, name TEXT)",
        'CREATE TABLE "B" (id INT PRIMARY KEY, at TIMESTAMPTZ)',
        "CREATE TABLE other (id INT PRIMARY KEY)",
        "INSERT INTO a VALUES (1, 'x')",
    )
    stream = Stream(uri, "a", "public.B", slot="both", publication="both")
    assert shown(stream.more()) == [("public.a", "r", {"id": "1", "name": "x"})]
    ask(
        uri,
        "INSERT INTO \"B\" VALUES (7, '2026-01-02 03:04:05+00')",
        "UPDATE a SET name = 'y'",
        "INSERT INTO other VALUES (1)",
        "DELETE FROM a",
        'TRUNCATE "B"',
    )
    found = stream.more()
    assert shown(found) == [
        ("public.B", "c", {"id": "7", "at": "2026-01-02 03:04:05+00"}),
        ("public.a", "u", {"id": "1", "name": "y"}),
        ("public.a", "d", {}),
        ("public.B", "t", {}),
    ]
    assert dict(found[2]["before"])["id"] == "1"
    assert [row["number"] for row in found] == [0, 1, 2, 3]  # a change of another table is not published
    assert len({(row["xid"], row["commit_lsn"], row["committed"]) for row in found}) == 1
    assert sorted(row["lsn"] for row in found) == [row["lsn"] for row in found]
    assert ask(uri, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'both'") == [(1,)]


def test_a_table_that_is_refused_leaves_nothing_behind(uri: str) -> None:
    ask(uri, "CREATE TABLE good (id INT PRIMARY KEY)", "CREATE TABLE keyless (id INT)")
    with pytest.raises(DatabaseError, match=r"public.keyless has no primary key"):
        Stream(uri, "good", "keyless", slot="refused", publication="refused")
    assert ask(uri, "SELECT count(*) FROM pg_publication WHERE pubname = 'refused'") == [(0,)]
    assert ask(uri, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'refused'") == [(0,)]
    stream = Stream(uri, "good", "keyless", slot="refused", publication="refused", replica_identity="full")
    ask(uri, "INSERT INTO keyless VALUES (1)", "UPDATE keyless SET id = 2")
    rows = stream.more() + stream.more()
    assert [(row["op"], dict(row["before"] or ())) for row in rows] == [("r", {}), ("c", {}), ("u", {"id": "1"})]


def test_the_slot_of_idle_tables_moves_on_after_a_heartbeat(uri: str) -> None:
    ask(uri, "CREATE TABLE idle (id INT PRIMARY KEY)", "CREATE TABLE busy (id INT)")
    for heartbeat_ms, has_moved in ((0, False), (1, True)):
        name = f"idle_{heartbeat_ms}"
        stream = Stream(uri, "idle", slot=name, publication=name, heartbeat_ms=heartbeat_ms)
        stream.more()
        before = lsn_number(stream.place["lsn"])
        ask(uri, "INSERT INTO busy SELECT generate_series(1, 100)")
        assert stream.more() == []
        assert (lsn_number(stream.place["lsn"]) > before) == has_moved
        stream.more()  # the next look tells the server
        [(slot,)] = ask(uri, f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{name}'")
        assert (lsn_number(slot) > before) == has_moved


def test_a_table_that_was_made_again_or_added_stops_the_stream(uri: str) -> None:
    ask(uri, "CREATE TABLE first (id INT PRIMARY KEY)", "CREATE TABLE second (id INT PRIMARY KEY)")
    stream = Stream(uri, "first", slot="made", publication="made")
    stream.more()
    ask(uri, "ALTER PUBLICATION made ADD TABLE second")
    both = Stream(uri, "first", "second", slot="made", publication="made")
    both.place = stream.place
    with pytest.raises(DatabaseError, match=r"public.second was not read before, and has no snapshot"):
        both.more()
    ask(uri, "DROP TABLE first", "CREATE TABLE first (id INT PRIMARY KEY)", "ALTER PUBLICATION made ADD TABLE first")
    with pytest.raises(DatabaseError, match="is another table than before"):
        stream.more()


def test_tables_and_a_table_do_not_go_together(uri: str) -> None:
    with pytest.raises(ValueError, match="needs either a table or tables="):
        sources.changes(uri)
    with pytest.raises(ValueError, match="columns, exclude and mode are of one table"):
        sources.changes(uri, tables=["a"], columns=["id"])
