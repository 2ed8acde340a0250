"""Messages of PostgreSQL's log of changes, without PostgreSQL: what they say, and what they mean for a table of changes."""

import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from barnabas.spark.pipelines.database import DatabaseError
from barnabas.spark.pipelines.sources import postgres_changes
from barnabas.spark.pipelines.sources.pgoutput import UNCHANGED, BadMessage, Change, Truncated, changes, commit_end
from barnabas.spark.pipelines.sources.postgres_changes import (
    Watched,
    lsn_number,
    lsn_text,
    parsed,
    patiently,
    rows_of,
    sequence,
    spark_type,
)

Values = list[object]
SCHEMA = StructType().add("id", LongType()).add("name", StringType())
BEGIN = b"B" + struct.pack(">qqi", 7, 0, 1)


def commit(end: int) -> bytes:
    return b"C" + struct.pack(">bqqq", 0, end - 1, end, 0)


def relation(oid: int, name: str, *columns: str) -> bytes:
    each = b"".join(b"\1" + column.encode() + b"\0" + struct.pack(">ii", 25, -1) for column in columns)
    return b"R" + struct.pack(">i", oid) + b"public\0" + name.encode() + b"\0d" + struct.pack(">h", len(columns)) + each


def row(values: Values) -> bytes:
    def value(one: object) -> bytes:
        if one is None:
            return b"n"
        if one is UNCHANGED:
            return b"u"
        data = str(one).encode()
        return b"t" + struct.pack(">i", len(data)) + data

    return struct.pack(">h", len(values)) + b"".join(map(value, values))


def change(kind: bytes, oid: int, *, new: Values | None = None, old: Values | None = None, how: bytes = b"K") -> bytes:
    before = b"" if old is None else how + row(old)
    after = b"" if new is None else b"N" + row(new)
    return kind + struct.pack(">i", oid) + before + after


TABLE = relation(1, "people", "id", "name")


def told(*messages: bytes, keys: tuple[str, ...] = ("id",)) -> list[dict[str, Any]]:
    return [row for each in changes(messages) for row in rows_of(each, "public.people", SCHEMA, keys)]


def test_changes_come_with_their_transaction_in_the_order_of_its_messages() -> None:
    rows = told(
        BEGIN,
        TABLE,
        change(b"I", 1, new=[1, "ann"]),
        change(b"U", 1, new=[1, "Ännchen"]),
        commit(100),
        BEGIN,
        change(b"D", 1, old=[1, None]),
        commit(200),
        BEGIN,
        change(b"I", 1, new=[9, "not committed"]),
    )
    assert [(each["id"], each["name"], each["_deleted"]) for each in rows] == [
        (1, "ann", False),
        (1, "Ännchen", False),
        (1, None, True),
    ]
    order = [each["_sequence"] for each in rows]
    assert order == sorted(order) and len(set(order)) == 3
    assert sequence(100, 0) < order[0] < sequence(200, 0) < order[2]


def test_a_row_that_gets_another_key_is_gone_under_the_old_one() -> None:
    rows = told(BEGIN, TABLE, change(b"U", 1, new=[2, "ann"], old=[1, None]), commit(5))
    assert [(each["id"], each["name"], each["_deleted"]) for each in rows] == [(1, None, True), (2, "ann", False)]
    assert rows[0]["_sequence"] < rows[1]["_sequence"]
    same = told(BEGIN, TABLE, change(b"U", 1, new=[1, "b"], old=[1, "a"], how=b"O"), commit(5))
    assert [(each["id"], each["name"], each["_deleted"]) for each in same] == [(1, "b", False)]


def test_a_large_value_that_was_not_touched_is_the_old_one_or_refused() -> None:
    full = told(BEGIN, TABLE, change(b"U", 1, new=[1, UNCHANGED], old=[1, "long"], how=b"O"), commit(5))
    assert full[0]["name"] == "long"
    with pytest.raises(DatabaseError, match=r"public\.people, column name: .*REPLICA IDENTITY FULL"):
        told(BEGIN, TABLE, change(b"U", 1, new=[1, UNCHANGED]), commit(5))


def test_other_tables_are_left_out_and_a_truncate_is_no_change_of_a_row() -> None:
    other = relation(2, "pets", "id")
    truncate = b"T" + struct.pack(">ibi", 1, 0, 2)
    assert told(BEGIN, TABLE, other, change(b"I", 2, new=[1]), truncate, commit(5)) == []
    both = b"T" + struct.pack(">ibii", 2, 0, 1, 2)
    assert list(changes([BEGIN, TABLE, other, both, commit(5)])) == [Truncated(("public.people", "public.pets"), 5)]
    with pytest.raises(DatabaseError, match=r"truncated at 0/5"):
        told(BEGIN, TABLE, other, both, commit(5))


def test_a_column_that_came_later_is_not_left_out_in_silence() -> None:
    wider = relation(1, "people", "id", "name", "more")
    with pytest.raises(DatabaseError, match="has a column more that the query does not know"):
        told(BEGIN, wider, change(b"I", 1, new=[1, "a", "b"]), commit(5))
    narrower = relation(1, "people", "id")
    assert told(BEGIN, narrower, change(b"I", 1, new=[1]), commit(5))[0]["name"] is None


@pytest.mark.parametrize(
    "message",
    [
        b"?",
        b"C\0",
        change(b"I", 77, new=[1]),
        change(b"I", 1, new=[1, "a"])[:-1],
        change(b"I", 1, new=[1]),
        b"I" + struct.pack(">i", 1) + b"X",
        b"R" + struct.pack(">i", 1) + b"public",
        b"I" + struct.pack(">i", 1) + b"N" + struct.pack(">h", 2) + b"zz",
        change(b"D", 1, new=[1, "a"]),
    ],
)
def test_bytes_that_are_no_message_are_refused(message: bytes) -> None:
    with pytest.raises(BadMessage):
        list(changes([BEGIN, TABLE, message, commit(5)]))


def test_other_messages_say_nothing_of_rows() -> None:
    assert list(changes([b"O", b"Y", b"M", BEGIN, commit(5)])) == []
    assert (commit_end(commit(77)), commit_end(BEGIN)) == (77, None)


def test_texts_of_postgresql_become_values_of_their_types() -> None:
    schema = StructType()
    values: dict[str, tuple[Any, object, object]] = {
        "b": (BooleanType(), "t", True),
        "i": (IntegerType(), "-7", -7),
        "d": (DoubleType(), "1e300", 1e300),
        "n": (DecimalType(8, 2), "12.30", Decimal("12.30")),
        "y": (BinaryType(), "\\x00ff", b"\x00\xff"),
        "day": (DateType(), "2026-01-02", date(2026, 1, 2)),
        "at": (TimestampType(), "2026-01-02 03:04:05.6+00", datetime(2026, 1, 2, 3, 4, 5, 600_000, UTC)),
        "local": (TimestampNTZType(), "2026-01-02 03:04:05", datetime(2026, 1, 2, 3, 4, 5)),
        "nothing": (LongType(), None, None),
    }
    for name, (kind, _, _) in values.items():
        schema.add(name, kind)
    row = {name: text for name, (_, text, _) in values.items()}
    assert parsed(row, "t", schema) == {name: value for name, (_, _, value) in values.items()}
    with pytest.raises(DatabaseError, match="t, column i: 'x' is not a int"):
        parsed({"i": "x"}, "t", schema)
    with pytest.raises(DatabaseError, match="t, column b: 'x' is not a boolean"):
        parsed({"b": "x"}, "t", schema)


@pytest.mark.parametrize(
    ("declared", "kind"),
    [
        ("bigint", LongType()),
        ("numeric(8,2)", DecimalType(8, 2)),
        ("timestamp with time zone", TimestampType()),
        ("timestamp without time zone", TimestampNTZType()),
        ("character varying(5)", StringType()),
        ("text[]", StringType()),
        ("integer[]", StringType()),
        ("uuid", StringType()),
        ("interval", StringType()),
        ("int4range", StringType()),
        ("bytea", BinaryType()),
    ],
)
def test_which_type_a_column_has(declared: str, kind: object) -> None:
    assert spark_type(declared) == kind


def test_places_in_the_log_are_numbers_that_compare() -> None:
    assert lsn_number("16/B374D848") == 0x16B374D848
    assert lsn_text(0x16B374D848) == "16/B374D848"
    assert lsn_text(lsn_number("0/0")) == "0/0"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": "t"}, "needs the option uri"),
        ({"uri": "postgresql://x/y"}, "needs the option table"),
        ({"uri": "sqlite:///x", "table": "t"}, "only PostgreSQL"),
        ({"uri": "postgresql://x/y", "table": "t", "slot": "No!"}, "PostgreSQL wants"),
        ({"uri": "postgresql://x/y", "table": "t", "snapshot": "maybe"}, "neither true nor false"),
        ({"uri": "postgresql://x/y", "table": "t", "slots": "x"}, "slot"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(Exception, match=said):
        Watched.parse(options)
    whole = Watched.parse({"uri": "postgresql://x/y", "table": "Shop.Orders", "maxRowsPerTrigger": "5"})
    assert (whole.slot, whole.publication, whole.max_rows) == ("barnabas_shop_orders", "barnabas_shop_orders", 5)


def test_a_slot_that_another_attempt_still_holds_is_waited_for() -> None:
    busy = [True, True, False]
    slept: list[float] = []

    def ask() -> list[int]:
        if busy.pop(0):
            raise DatabaseError("replication slot x is active for PID 7")
        return [1]

    assert patiently(ask, slept.append) == [1]
    assert slept == list(postgres_changes._BUSY_S[:2])

    def fail() -> list[int]:
        raise DatabaseError("no")

    with pytest.raises(DatabaseError, match="no"):
        patiently(fail, slept.append)


def test_a_change_keeps_its_transaction() -> None:
    [one] = changes([BEGIN, TABLE, change(b"I", 1, new=[1, "a"]), commit(9)])
    assert isinstance(one, Change) and (one.commit_lsn, one.number, one.old) == (9, 0, None)
