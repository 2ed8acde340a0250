"""Messages of PostgreSQL's log of changes, without PostgreSQL: their contents, and the rows that they become."""

import struct
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
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

from barnabas.spark.pipelines._errors import ERROR_TYPE
from barnabas.spark.pipelines.database import DatabaseError
from barnabas.spark.pipelines.sources import postgres_changes
from barnabas.spark.pipelines.sources.change_rows import (
    LookUp,
    NoSuchValue,
    Shape,
    lsn_number,
    lsn_text,
    parsed,
    rows_of,
    sequence,
    value_of,
)
from barnabas.spark.pipelines.sources.pgoutput import (
    UNCHANGED,
    BadMessage,
    Change,
    Message,
    Row,
    Transaction,
    Truncated,
    changes,
    commit_end,
)
from barnabas.spark.pipelines.sources.postgres_changes import ChangesReader, patiently
from barnabas.spark.pipelines.sources.watched_table import Watched

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


PEOPLE = Shape("public.people", ("id",))


def gone_since_then(key: Mapping[str, str]) -> None:
    return None


def rows_from(*messages: bytes, shape: Shape = PEOPLE, look_up: LookUp = gone_since_then) -> list[dict[str, Any]]:
    return [row for each in changes(messages) for row in rows_of(each, shape, SCHEMA, look_up)]


def test_changes_come_with_their_transaction_in_the_order_of_its_messages() -> None:
    rows = rows_from(
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
    rows = rows_from(BEGIN, TABLE, change(b"U", 1, new=[2, "ann"], old=[1, None]), commit(5))
    assert [(each["id"], each["name"], each["_deleted"]) for each in rows] == [(1, None, True), (2, "ann", False)]
    assert rows[0]["_sequence"] < rows[1]["_sequence"]
    same = rows_from(BEGIN, TABLE, change(b"U", 1, new=[1, "b"], old=[1, "a"], how=b"O"), commit(5))
    assert [(each["id"], each["name"], each["_deleted"]) for each in same] == [(1, "b", False)]


def test_unchanged_large_value_comes_from_the_old_row_or_is_named_as_unchanged() -> None:
    full = rows_from(BEGIN, TABLE, change(b"U", 1, new=[1, UNCHANGED], old=[1, "long"], how=b"O"), commit(5))
    assert (full[0]["name"], full[0]["_unchanged"]) == ("long", None)
    [row] = rows_from(BEGIN, TABLE, change(b"U", 1, new=[1, UNCHANGED]), commit(5))
    assert (row["name"], row["_unchanged"]) == (None, ["name"])


def test_large_value_of_a_row_that_got_another_key_is_read_from_the_table() -> None:
    """The log does not have the value: a message with an old key has nulls in place of the other columns."""
    asked: list[Mapping[str, str]] = []

    def look_up(key: Mapping[str, str]) -> Row:
        asked.append(key)
        return {"id": "2", "name": "long"}

    moved = change(b"U", 1, new=[2, UNCHANGED], old=[1, None])
    gone, row = rows_from(BEGIN, TABLE, moved, commit(5), look_up=look_up)
    assert (gone["id"], gone["_deleted"], row["name"], row["_unchanged"]) == (1, True, "long", None)
    assert asked == [{"id": "2"}]
    _, gone_since = rows_from(BEGIN, TABLE, moved, commit(5))
    assert (gone_since["name"], gone_since["_unchanged"]) == (None, None), "a later change says that it is gone"


def test_row_of_a_table_without_a_key_is_known_by_all_its_columns() -> None:
    whole = Shape("public.people", ("id", "name"))
    rows = rows_from(BEGIN, TABLE, change(b"U", 1, new=[1, "b"], old=[1, "a"], how=b"O"), commit(5), shape=whole)
    assert [(each["id"], each["name"], each["_deleted"]) for each in rows] == [(1, "a", True), (1, "b", False)]


def test_excluded_columns_are_not_new_ones() -> None:
    wider = relation(1, "people", "id", "name", "more")
    inserted = change(b"I", 1, new=[1, "a", "b"])
    for shape in (
        Shape("public.people", ("id",), left_out=frozenset({"more"})),
        Shape("public.people", ("id",), only_listed=True),
    ):
        assert [row["name"] for row in rows_from(BEGIN, wider, inserted, commit(5), shape=shape)] == ["a"]


def test_changes_of_other_tables_are_left_out_and_a_truncate_is_refused() -> None:
    other = relation(2, "pets", "id")
    truncate = b"T" + struct.pack(">ibi", 1, 0, 2)
    assert rows_from(BEGIN, TABLE, other, change(b"I", 2, new=[1]), truncate, commit(5)) == []
    both = b"T" + struct.pack(">ibii", 2, 0, 1, 2)
    [found] = changes([BEGIN, TABLE, other, Message(both, 3), commit(5)])
    in_2000 = Transaction(1, 946_684_800_000_000)
    assert found == Truncated(("public.people", "public.pets"), 5, transaction=in_2000, lsn=3)
    with pytest.raises(DatabaseError, match=r"truncated at 0/5"):
        rows_from(BEGIN, TABLE, other, both, commit(5))


def test_a_column_that_was_added_later_fails_the_query() -> None:
    wider = relation(1, "people", "id", "name", "more")
    with pytest.raises(DatabaseError, match="has a column more that the query does not know"):
        rows_from(BEGIN, wider, change(b"I", 1, new=[1, "a", "b"]), commit(5))
    narrower = relation(1, "people", "id")
    assert rows_from(BEGIN, narrower, change(b"I", 1, new=[1]), commit(5))[0]["name"] is None


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
        b"I" + struct.pack(">i", 1) + b"N" + struct.pack(">h", 2) + b"t" + struct.pack(">i", -5),
        b"T" + struct.pack(">ibi", 1, 0, 99),
    ],
)
def test_bytes_that_are_not_a_message_are_refused(message: bytes) -> None:
    with pytest.raises(BadMessage):
        list(changes([BEGIN, TABLE, message, commit(5)]))


def test_messages_without_rows_are_ignored() -> None:
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
    shape = Shape("t", ("i",))
    expected = {name: value for name, (_, _, value) in values.items()}
    assert parsed(row, shape, schema) == expected | {"_unchanged": None}
    with pytest.raises(DatabaseError, match=r"t, row i=x, column i: 'x' is not a int: .*exclude=.*PERMISSIVE"):
        parsed({"i": "x"}, shape, schema)
    with pytest.raises(DatabaseError, match="t, row i=7, column b: 'x' is not a boolean"):
        parsed({"i": "7", "b": "x"}, shape, schema)


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("NaN", DecimalType(8, 2), "is not a number of"),
        ("Infinity", DecimalType(38, 18), "is not a number of"),
        ("123456789012345678901", DecimalType(38, 18), "more digits before the point"),
        ("1000000.00", DecimalType(8, 2), "more digits before the point"),
        ("0.00000000000000000001", DecimalType(38, 18), "more digits behind the point"),
        ("infinity", DateType(), "years 1 to 9999"),
        ("0044-03-15 BC", DateType(), "years 1 to 9999"),
        ("12000-01-01", DateType(), "years 1 to 9999"),
        ("-infinity", TimestampType(), "years 1 to 9999"),
        ("0044-03-15 00:00:00 BC", TimestampNTZType(), "years 1 to 9999"),
        ("5000000000", IntegerType(), "too large for int"),
        ("9223372036854775808", LongType(), "too large for bigint"),
    ],
)
def test_values_that_spark_does_not_have_are_refused(text: str, kind: DataType, said: str) -> None:
    with pytest.raises(NoSuchValue, match=said):
        value_of(text, kind)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("0.0", DecimalType(38, 18), Decimal(0)),
        ("0.000000000000000000000", DecimalType(38, 18), Decimal(0)),
        ("999999.99", DecimalType(8, 2), Decimal("999999.99")),
        ("1.500", DecimalType(3, 1), Decimal("1.5")),
        ("-9223372036854775808", LongType(), -(1 << 63)),
        ("0001-01-01", DateType(), date(1, 1, 1)),
        ("9999-12-31 23:59:59.999999+00", TimestampType(), datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)),
        ("Infinity", DoubleType(), float("inf")),
    ],
)
def test_values_at_the_ends_of_spark_s_types_are_read(text: str, kind: DataType, value: object) -> None:
    assert value_of(text, kind) == value


def test_bad_value_gives_its_row_an_error_and_fails_nothing_in_mode_permissive() -> None:
    schema = (
        StructType().add("id", LongType()).add("n", DecimalType(8, 2)).add("d", DateType()).add("_error", ERROR_TYPE)
    )
    shape = Shape("t", ("id",), permissive=True)
    row = parsed({"id": "7", "n": "NaN", "d": "infinity"}, shape, schema)
    assert (row["id"], row["n"], row["d"]) == (7, None, None)
    error = row["_error"]
    assert isinstance(error, dict) and error["class"] == "BadValue"
    assert "t, row id=7, column n: 'NaN'" in error["message"] and "column d: 'infinity'" in error["message"]
    assert parsed({"id": "7", "n": "1", "d": None}, shape, schema)["_error"] is None


def test_deleted_row_with_a_bad_value_is_still_deleted() -> None:
    schema = StructType().add("id", LongType()).add("n", DecimalType(8, 2))
    row = parsed({"id": "7", "n": "NaN"}, Shape("t", ("id",)), schema, only_key=True)
    assert (row["id"], row["n"]) == (7, None)


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
        ({"uri": "postgresql://x/y", "table": "t", "snapshot": "maybe"}, "use true or false"),
        ({"uri": "postgresql://x/y", "table": "t", "mode": "drop"}, "use FAIL or PERMISSIVE"),
        ({"uri": "postgresql://x/y", "table": "t", "replicaIdentity": "index"}, "the only value is full"),
        ({"uri": "postgresql://x/y", "table": "t", "columns": "a", "exclude": "b"}, "do not go together"),
        ({"uri": "postgresql://x/y", "table": "t", "slots": "x"}, "slot"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, str], said: str) -> None:
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


class Restored:
    """A database that was restored from a copy which is older than the checkpoint, with its slot."""

    slot, max_rows = "slot", None
    database = SimpleNamespace(name="shop")

    def require_same(self, oid: int | None) -> int:
        return 1

    def place(self) -> int:
        return 50

    def end_of_log(self) -> int:
        return 80

    def advance(self, lsn: int) -> list[object]:
        return []


def test_log_that_ends_before_the_checkpoint_stops_the_stream() -> None:
    """The slot would move to the end of the log, and changes up to the checkpoint's place would be left out in silence."""
    reader = ChangesReader(cast(Watched, Restored()), StructType())
    with pytest.raises(DatabaseError, match="the log of shop ends at 0/50, before 0/64 of the checkpoint"):
        reader.latestOffset({"lsn": "0/64", "snapshot": False, "oid": 1}, ReadAllAvailable())


def test_a_change_keeps_its_transaction() -> None:
    [one] = changes([BEGIN, TABLE, change(b"I", 1, new=[1, "a"]), commit(9)])
    assert isinstance(one, Change) and (one.commit_lsn, one.number, one.old) == (9, 0, None)
