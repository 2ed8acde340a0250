"""Changes of unusual tables, from a real PostgreSQL's log; without Spark, so that each test is quick."""

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from adbc_driver_postgresql import dbapi
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable

from barnabas.spark.pipelines.database import Database, DatabaseError
from barnabas.spark.pipelines.sources.postgres_changes import PostgresChangesSource
from barnabas.spark.pipelines.sources.sql_query import SqlSource
from tests.interop.postgresql import ask, server

Row = dict[str, Any]


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with server() as uri:
        yield uri


class Stream:
    """Reads as a query does: the snapshot first, then the changes since."""

    def __init__(self, uri: str, table: str, **options: str) -> None:
        source = PostgresChangesSource(CaseInsensitiveDict({"uri": uri, "table": table, **options}))
        self.schema = source.schema()
        self.reader: Any = source.streamReader(self.schema)
        self.place = self.reader.initialOffset()

    def more(self) -> list[Row]:
        end = self.reader.latestOffset(self.place, ReadAllAvailable())
        parts = self.reader.partitions(self.place, end) if end != self.place else []
        self.place = end
        rows = [row for part in parts for batch in self.reader.read(part) for row in batch.to_pylist()]
        orders = [row.pop("_sequence") for row in rows]
        assert orders == sorted(orders)
        return rows


def types_of(stream: Stream) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in stream.schema if not field.name.startswith("_")}


def test_generated_columns_are_left_out_of_snapshot_and_changes_alike(uri: str) -> None:
    ask(
        uri,
        "CREATE TABLE doubled (id INT PRIMARY KEY, n INT, twice INT GENERATED ALWAYS AS (n * 2) STORED)",
        "INSERT INTO doubled (id, n) VALUES (1, 10)",
    )
    stream = Stream(uri, "doubled")
    snapshot = stream.more()
    ask(uri, "UPDATE doubled SET n = 11")
    for row, n in zip([*snapshot, *stream.more()], (10, 11), strict=True):
        assert row == {"id": 1, "n": n, "_deleted": False, "_unchanged": None}
    with pytest.raises(DatabaseError, match="column twice is generated, and PostgreSQL does not log"):
        Stream(uri, "doubled", columns="id,twice")
    ask(uri, "CREATE TABLE keyed_by (n INT, twice INT GENERATED ALWAYS AS (n * 2) STORED PRIMARY KEY)")
    with pytest.raises(DatabaseError, match="column twice of the key is generated"):
        Stream(uri, "keyed_by")


def test_types_are_those_of_the_catalogue_and_not_of_their_names(uri: str) -> None:
    ask(
        uri,
        "CREATE TYPE interest_kind AS ENUM ('low', 'high')",
        "CREATE TYPE numeric_kind AS ENUM ('much')",
        "CREATE DOMAIN realm AS VARCHAR(20)",
        "CREATE DOMAIN kingdom AS realm",
        "CREATE DOMAIN boolish AS BOOLEAN",
        "CREATE DOMAIN price AS NUMERIC(8,2)",
        "CREATE TABLE named (id BIGINT PRIMARY KEY, kind interest_kind, much numeric_kind, place kingdom, ok boolish, "
        "cost price, millis TIMESTAMPTZ(3), local TIMESTAMP(0), code UUID, doc JSONB, tags TEXT[], moods interest_kind[], "
        "span INT4RANGE, lasts INTERVAL)",
    )
    insert = (
        "INSERT INTO named SELECT {}, 'low', 'much', 'here', true, 12.5, '2026-01-02 03:04:05.678+00', '2026-01-02 03:04:05', "
        "'00000000-0000-0000-0000-000000000001', '{{\"a\": 1}}', '{{a,NULL}}', '{{low,high}}', '[1,3)', '1 day 02:00:00'"
    )
    ask(uri, insert.format(1))
    stream = Stream(uri, "named")
    assert types_of(stream) == {
        "id": "bigint",
        "kind": "string",
        "much": "string",
        "place": "string",
        "ok": "boolean",
        "cost": "decimal(8,2)",
        "millis": "timestamp",
        "local": "timestamp_ntz",
        "code": "string",
        "doc": "string",
        "tags": "string",
        "moods": "string",
        "span": "string",
        "lasts": "string",
    }
    [before] = stream.more()
    ask(uri, insert.format(2))
    [after] = stream.more()
    assert before | {"id": 2} == after, "a snapshot and the log say the same"
    assert after["kind"] == "low" and after["ok"] is True and after["cost"] == Decimal("12.50")
    assert after["millis"] == datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
    assert (after["tags"], after["moods"], after["span"]) == ("{a,NULL}", "{low,high}", "[1,3)")


def test_a_table_is_read_with_the_same_texts(uri: str) -> None:
    """`sources.table`: Arrow's driver returns a range as bytes, and a uuid as sixteen bytes."""
    ask(
        uri,
        "DROP TYPE IF EXISTS size CASCADE",
        "DROP TABLE IF EXISTS sized",
        "CREATE TYPE size AS ENUM ('small', 'big')",
        "CREATE TABLE sized (id INT, s size, u UUID, r INT4RANGE, j JSONB, ss size[], ns INT[])",
        "INSERT INTO sized VALUES (1, 'big', '00000000-0000-0000-0000-000000000001', '[1,3)', '{\"a\": 1}', '{small}', "
        "'{1,2}')",
        "INSERT INTO sized (id) VALUES (2)",
    )
    source = SqlSource(CaseInsensitiveDict({"uri": uri, "table": "sized"}))
    reader = source.reader(source.schema())
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    uuid = "00000000-0000-0000-0000-000000000001"
    assert rows[0] == {"id": 1, "s": "big", "u": uuid, "r": "[1,3)", "j": '{"a": 1}', "ss": ["small"], "ns": [1, 2]}
    assert rows[1] == {"id": 2} | dict.fromkeys(("s", "u", "r", "j", "ss", "ns"))


def test_value_that_an_update_leaves_alone_does_not_stop_the_stream(uri: str) -> None:
    ask(
        uri,
        "CREATE TABLE documents (id INT PRIMARY KEY, n INT, body TEXT)",
        "ALTER TABLE documents ALTER body SET STORAGE EXTERNAL",
        "INSERT INTO documents VALUES (1, 1, repeat('x', 9000))",
    )
    stream = Stream(uri, "documents")
    [row] = stream.more()
    assert len(row["body"]) == 9000
    ask(uri, "UPDATE documents SET n = 2")
    assert stream.more() == [{"id": 1, "n": 2, "body": None, "_deleted": False, "_unchanged": ["body"]}]
    ask(uri, "UPDATE documents SET id = 5")
    gone, moved = stream.more()
    assert (gone["id"], gone["_deleted"]) == (1, True)
    assert (moved["id"], len(moved["body"]), moved["_unchanged"]) == (5, 9000, None), "read from the table"


def test_table_without_a_key_is_refused_before_anything_is_made(uri: str) -> None:
    ask(uri, "CREATE TABLE keyless (id INT, n INT)", "INSERT INTO keyless VALUES (1, 1), (2, 2)")
    with pytest.raises(DatabaseError, match=r"public\.keyless has no primary key .*Nothing was created"):
        Stream(uri, "keyless")
    assert ask(uri, "SELECT count(*) FROM pg_publication WHERE pubname = 'barnabas_keyless'") == [(0,)]
    assert ask(uri, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'barnabas_keyless'") == [(0,)]
    ask(uri, "UPDATE keyless SET n = 3 WHERE id = 1", "DELETE FROM keyless WHERE id = 2")

    stream = Stream(uri, "keyless", replicaIdentity="full")
    assert [row["id"] for row in stream.more()] == [1]
    ask(uri, "UPDATE keyless SET n = 4", "DELETE FROM keyless")
    rows = [(row["id"], row["n"], row["_deleted"]) for row in stream.more()]
    assert rows == [(1, 3, True), (1, 4, False), (1, 4, True)]


def test_table_that_is_known_by_a_unique_index_is_read_by_it(uri: str) -> None:
    ask(
        uri,
        "CREATE TABLE indexed (code TEXT NOT NULL, n INT)",
        "CREATE UNIQUE INDEX indexed_code ON indexed (code) INCLUDE (n)",
        "ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_code",
        "INSERT INTO indexed VALUES ('a', 1)",
    )
    stream = Stream(uri, "indexed")
    stream.more()
    ask(uri, "UPDATE indexed SET code = 'b'")
    assert [(row["code"], row["_deleted"]) for row in stream.more()] == [("a", True), ("b", False)]


def test_values_that_spark_does_not_have_name_their_row_and_column_or_give_it_an_error(uri: str) -> None:
    ask(uri, "CREATE TABLE odd (id INT PRIMARY KEY, n NUMERIC, d DATE, at TIMESTAMPTZ, f FLOAT8, note TEXT)")
    values = {
        1: "1.5, '2026-01-01', '2026-01-01', 'NaN', 'good'",
        2: "'NaN', NULL, NULL, NULL, 'NaN'",
        3: "1e30, NULL, NULL, NULL, 'large'",
        4: "1e-20, NULL, NULL, NULL, 'small'",
        5: "NULL, 'infinity', NULL, NULL, 'end'",
        6: "NULL, '0044-03-15 BC', '12000-01-01', NULL, 'far'",
    }
    for number, row in values.items():
        ask(uri, f"INSERT INTO odd VALUES ({number}, {row})")
    with pytest.raises(DatabaseError, match=r"public\.odd, row id=2, column n: 'NaN' .*exclude=.*PERMISSIVE"):
        Stream(uri, "odd", slot="odd_fail").more()
    assert [row["note"] for row in Stream(uri, "odd", slot="odd_some", exclude="n,d,at").more()][1] == "NaN"
    stream = Stream(uri, "odd", slot="odd_all", mode="PERMISSIVE")
    snapshot = stream.more()
    ask(uri, "DELETE FROM odd")
    assert [(row["id"], row["_error"]) for row in stream.more()] == [(number, None) for number in values]
    for number, row in values.items():
        ask(uri, f"INSERT INTO odd VALUES ({number}, {row})")
    changes = stream.more()
    for row, change in zip(snapshot, changes, strict=True):
        # Compared as text, because NaN is not equal to NaN.
        assert str(row) == str(change), "a snapshot and the log say the same"
    assert [row["_error"] is None for row in changes] == [True, False, False, False, False, False]
    assert [row["note"] for row in changes] == ["good", "NaN", "large", "small", "end", "far"]
    assert "row id=6, column d: '0044-03-15 BC'" in changes[-1]["_error"]["message"]
    assert "column at: '12000-01-01 00:00:00+00'" in changes[-1]["_error"]["message"]


def test_columns_are_chosen_and_a_key_cannot_be_left_out(uri: str) -> None:
    ask(uri, "CREATE TABLE chosen (id INT PRIMARY KEY, a INT, b INT, secret TEXT)")
    some, but = Stream(uri, "chosen", columns="id,a", slot="some"), Stream(uri, "chosen", exclude="secret", slot="but")
    ask(uri, "INSERT INTO chosen VALUES (1, 2, 3, 'x')")
    some.more(), but.more()
    assert some.more() == [{"id": 1, "a": 2, "_deleted": False, "_unchanged": None}]
    assert but.more() == [{"id": 1, "a": 2, "b": 3, "_deleted": False, "_unchanged": None}]
    ask(uri, "ALTER TABLE chosen ADD COLUMN later INT", "UPDATE chosen SET a = 4")
    assert [row["a"] for row in some.more()] == [4], "columns= lists all that is read"
    with pytest.raises(DatabaseError, match="has a column later that the query does not know"):
        but.more()
    with pytest.raises(DatabaseError, match="column id of the key cannot be left out"):
        Stream(uri, "chosen", exclude="id")
    with pytest.raises(DatabaseError, match="has no column idd; it has id, a, b, secret, later"):
        Stream(uri, "chosen", columns="idd")


def test_partitioned_table_is_one_table(uri: str) -> None:
    ask(
        uri,
        "CREATE TABLE events (id INT, day DATE, n INT, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
        "CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
        "CREATE TABLE events_2 PARTITION OF events FOR VALUES FROM ('2026-02-01') TO ('2026-03-01')",
        "INSERT INTO events VALUES (1, '2026-01-05', 1)",
    )
    stream = Stream(uri, "events")
    assert [row["id"] for row in stream.more()] == [1]
    ask(uri, "INSERT INTO events VALUES (2, '2026-02-05', 2)", "UPDATE events SET day = '2026-02-06' WHERE id = 1")
    ask(uri, "CREATE TABLE events_3 PARTITION OF events FOR VALUES FROM ('2026-03-01') TO ('2026-04-01')")
    ask(uri, "INSERT INTO events VALUES (3, '2026-03-05', 3)")
    rows = [(row["id"], row["day"].day, row["_deleted"]) for row in stream.more()]
    assert rows == [(2, 5, False), (1, 5, True), (1, 6, False), (3, 5, False)]

    ask(uri, "CREATE PUBLICATION own FOR TABLE events")
    with pytest.raises(DatabaseError, match=r"ALTER PUBLICATION own SET \(publish_via_partition_root = true\)"):
        Stream(uri, "events", publication="own", slot="own")
    ask(uri, "CREATE TABLE loose (id INT, day DATE) PARTITION BY RANGE (day)")
    with pytest.raises(DatabaseError, match="would not reach partitions that are added later"):
        Stream(uri, "loose", replicaIdentity="full")


def test_name_of_a_column_that_barnabas_adds_is_refused(uri: str) -> None:
    ask(uri, "CREATE TABLE marked (id INT PRIMARY KEY, _deleted BOOLEAN)")
    with pytest.raises(DatabaseError, match="has a column _deleted, a name of barnabas: exclude=_deleted"):
        Stream(uri, "marked")


def test_table_that_was_swapped_for_another_one_stops_the_stream(uri: str) -> None:
    """The publication follows the renamed table: without a check, no change of the new one would ever come."""
    ask(uri, "CREATE TABLE swapped (id INT PRIMARY KEY)", "INSERT INTO swapped VALUES (1)")
    stream = Stream(uri, "swapped")
    assert [row["id"] for row in stream.more()] == [1]
    ask(uri, "ALTER TABLE swapped RENAME TO before", "CREATE TABLE swapped (LIKE before INCLUDING ALL)")
    ask(uri, "INSERT INTO swapped VALUES (2)")
    with pytest.raises(DatabaseError, match=r"does not have table public.swapped.*new checkpoint"):
        stream.more()
    ask(uri, "ALTER PUBLICATION barnabas_swapped ADD TABLE swapped")
    with pytest.raises(DatabaseError, match=r"swapped is another table than before.*new checkpoint"):
        stream.more()
    del stream.place["oid"]  # a checkpoint of an earlier version
    assert stream.more() == []


def test_publication_that_leaves_changes_or_columns_out_is_refused(uri: str) -> None:
    ask(uri, "CREATE TABLE partly (id INT PRIMARY KEY, a INT, b INT)")
    ask(uri, "CREATE PUBLICATION inserts FOR TABLE partly WITH (publish = 'insert, truncate')")
    with pytest.raises(DatabaseError, match="publication inserts does not publish update, delete"):
        Stream(uri, "partly", publication="inserts")
    ask(uri, "CREATE PUBLICATION narrow FOR TABLE partly (id, a)")
    with pytest.raises(DatabaseError, match=r"publication narrow leaves out column b of public.partly"):
        Stream(uri, "partly", publication="narrow")
    stream = Stream(uri, "partly", publication="narrow", exclude="b")
    stream.more()
    ask(uri, "INSERT INTO partly VALUES (1, 2, 3)")
    assert [(row["id"], row["a"]) for row in stream.more()] == [(1, 2)]
    ask(uri, "ALTER PUBLICATION narrow SET (publish = 'insert')")
    with pytest.raises(DatabaseError, match="does not publish update, delete"):
        stream.more()


def test_texts_of_a_database_in_another_encoding_are_read(uri: str) -> None:
    with dbapi.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    latin = uri.removesuffix("postgres") + "latin"
    ask(latin, "CREATE TABLE words (id INT PRIMARY KEY, word TEXT)", "INSERT INTO words VALUES (1, chr(233))")
    stream = Stream(latin, "words")
    assert [row["word"] for row in stream.more()] == ["é"]
    ask(latin, "INSERT INTO words VALUES (2, chr(232))")
    assert [row["word"] for row in stream.more()] == ["è"]
    [batch] = Database(latin).rows("SELECT word FROM words WHERE id = 1")
    assert batch.to_pydict() == {"word": ["é"]}
