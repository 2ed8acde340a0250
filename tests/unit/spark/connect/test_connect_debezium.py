"""Debezium's types and events, from changes as PostgreSQL's log has them."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from barnabas.spark.connect import data
from barnabas.spark.connect.converters.json_converter import JsonConverter
from barnabas.spark.connect.data import DataError, Schema
from barnabas.spark.connect.debezium.envelope import Events, Table
from barnabas.spark.connect.debezium.types import ColumnType, Modes, interval_us, type_of, value_of
from barnabas.spark.pipelines.database import Column
from barnabas.spark.pipelines.postgres_types import PostgresType


def kind(oid: int, typmod: int = -1, element: PostgresType | None = None) -> PostgresType:
    return PostgresType(oid, typmod, "pg_catalog", "x", "x", element=element)


#: The type's oid and typmod, the modes, a text of PostgreSQL, the schema and the value that Debezium gives.
VALUES: list[tuple[PostgresType, Modes, str, str, Any]] = [
    (kind(16), Modes(), "t", "boolean", True),
    (kind(21), Modes(), "7", "int16", 7),
    (kind(701), Modes(), "1e-3", "float64", 0.001),
    (kind(17), Modes(), "\\x00ff", "bytes", b"\x00\xff"),
    (kind(1700, (5 << 16 | 2) + 4), Modes(), "123.45", data.DECIMAL, Decimal("123.45")),
    (kind(1700), Modes(), "-1.50", "io.debezium.data.VariableScaleDecimal", {"scale": 2, "value": b"\xff\x6a"}),
    (kind(1700), Modes(decimals="string"), "NaN", "string", "NaN"),
    (kind(1700), Modes(decimals="double"), "1.5", "float64", 1.5),
    (kind(1082), Modes(), "2018-06-20", "io.debezium.time.Date", 17702),
    (kind(1114), Modes(), "2018-06-20 15:13:16.945104", "io.debezium.time.MicroTimestamp", 1529507596945104),
    (kind(1114, 3), Modes(), "2018-06-20 15:13:16.945", "io.debezium.time.Timestamp", 1529507596945),
    (
        kind(1114),
        Modes(times="connect"),
        "1970-01-01 00:00:01",
        data.TIMESTAMP,
        datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
    ),
    (
        kind(1184),
        Modes(),
        "2018-06-20 15:13:16.9451+02",
        "io.debezium.time.ZonedTimestamp",
        "2018-06-20T13:13:16.9451Z",
    ),
    (kind(1184), Modes(), "2018-06-20 15:13:00+00", "io.debezium.time.ZonedTimestamp", "2018-06-20T15:13:00Z"),
    (kind(1083), Modes(), "04:05:06.789", "io.debezium.time.MicroTime", 14706789000),
    (kind(1083, 0), Modes(), "04:05:06", "io.debezium.time.Time", 14706000),
    (kind(1266), Modes(), "04:05:06+02", "io.debezium.time.ZonedTime", "02:05:06Z"),
    (kind(1186), Modes(), "1 day -02:00:00", "io.debezium.time.MicroDuration", 79_200_000_000),
    (kind(3802), Modes(), '{"a": 1}', "io.debezium.data.Json", '{"a": 1}'),
    (kind(2950), Modes(), "a-b", "io.debezium.data.Uuid", "a-b"),
    (kind(869), Modes(), "10.0.0.1", "string", "10.0.0.1"),
    (kind(1007, element=kind(23)), Modes(), "{1,NULL,3}", "array", [1, None, 3]),
    (kind(1009, element=kind(25)), Modes(), '{a,"b \\"c\\",",NULL}', "array", ["a", 'b "c",', None]),
]


@pytest.mark.parametrize(
    ("of", "modes", "text", "name", "value"), VALUES, ids=[f"{each[0].oid}-{each[2]}" for each in VALUES]
)
def test_values_have_the_types_of_debezium(of: PostgresType, modes: Modes, text: str, name: str, value: Any) -> None:
    column = type_of(of, modes, optional=True)
    assert (column.schema.name or column.schema.type) == name and column.schema.optional
    assert value_of(column, text, "t") == value


def test_values_without_a_form_name_table_and_column() -> None:
    for of, text in (
        (kind(1082), "infinity"),
        (kind(1700, (5 << 16) + 4), "NaN"),
        (kind(1009, element=kind(25)), "{{a},{b}}"),
    ):
        with pytest.raises(DataError, match=r"public\.t, column c: "):
            value_of(type_of(of, Modes(), optional=True), text, "public.t, column c")


def test_intervals_count_years_and_months_as_debezium_does() -> None:
    assert (
        interval_us("1 year 2 mons 3 days 04:05:06.7")
        == 31_557_600_000_000 + 2 * 2_629_800_000_000 + 3 * 86_400_000_000 + 14_706_700_000
    )


COLUMNS = (
    Column("id", "integer", nullable=False, kind=kind(23)),
    Column("name", "text", nullable=False, kind=kind(25)),
    Column("note", "text", kind=kind(25)),
)
TABLE = Table.of("public.customers", "shop.public.customers", COLUMNS, ("id",), Modes())
EVENTS = Events("shop", "inventory", {"public.customers": TABLE})
CHANGE = {
    "table": "public.customers",
    "op": "c",
    "before": None,
    "after": [("id", "1"), ("name", "Ann"), ("note", None)],
    "unchanged": None,
    "lsn": 24023128,
    "commit_lsn": 24023200,
    "xid": 555,
    "committed": datetime(2019, 5, 28, 12, 31, 44, 863000, tzinfo=UTC),
    "number": 0,
}


def payload(change: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Return key and value of each event, as JSON has them."""
    converter = JsonConverter(with_schemas=False)
    found = []
    for each in EVENTS(CHANGE | change):
        key = converter.from_connect("t", each.key_schema, each.key)
        value = converter.from_connect("t", each.value_schema, each.value)
        found.append((json.loads(key or b"null"), None if value is None else json.loads(value)))
    return found


def test_an_insert_is_an_event_in_debeziums_envelope() -> None:
    [(key, value)] = payload({})
    assert key == {"id": 1}
    assert list(value) == ["before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"]
    assert (value["before"], value["after"], value["op"]) == (None, {"id": 1, "name": "Ann", "note": None}, "c")
    source = value["source"]
    assert list(source) == [
        "version", "connector", "name", "ts_ms", "snapshot", "db", "sequence", "ts_us", "ts_ns", "schema", "table", "txId",
        "lsn", "xmin",
    ]  # fmt: skip
    del source["version"]
    assert source == {
        "connector": "postgresql",
        "name": "shop",
        "ts_ms": 1559046704863,
        "snapshot": "false",
        "db": "inventory",
        "sequence": '["24023200","24023128"]',
        "ts_us": 1559046704863000,
        "ts_ns": 1559046704863000000,
        "schema": "public",
        "table": "customers",
        "txId": 555,
        "lsn": 24023128,
        "xmin": None,
    }


def test_schemas_have_debeziums_names() -> None:
    assert TABLE.key_schema == Schema("struct", name="shop.public.customers.Key", fields=(TABLE.row_schema.fields[0],))
    assert TABLE.value_schema.name == "shop.public.customers.Envelope"
    assert TABLE.row_schema.name == "shop.public.customers.Value" and TABLE.row_schema.optional
    written = JsonConverter().from_connect("t", TABLE.value_schema, next(EVENTS(CHANGE)).value)
    assert written is not None
    schema = json.loads(written)["schema"]
    assert [each["field"] for each in schema["fields"]] == [
        "before",
        "after",
        "source",
        "transaction",
        "op",
        "ts_ms",
        "ts_us",
        "ts_ns",
    ]


def test_a_delete_is_an_event_and_a_tombstone() -> None:
    [event, tombstone] = payload({"op": "d", "before": [("id", "1"), ("name", None), ("note", None)], "after": None})
    # The log has the key alone: a column that may not be null gets the empty value of its type.
    assert event[0] == {"id": 1} and event[1]["after"] is None
    assert event[1]["before"] == {"id": 1, "name": "", "note": None}
    assert tombstone == ({"id": 1}, None)
    silent = Events("shop", "inventory", {"public.customers": TABLE}, tombstones=False)
    assert len(list(silent(CHANGE | {"op": "d", "before": [("id", "1")], "after": None}))) == 1


def test_an_update_of_the_key_deletes_the_old_row_and_creates_the_new_one() -> None:
    moved = CHANGE | {"op": "u", "before": [("id", "1")], "after": [("id", "2"), ("name", "Ann"), ("note", None)]}
    gone, tombstone, made = EVENTS(moved)
    assert (gone.key, gone.value["op"], [each.key for each in gone.headers]) == ({"id": 1}, "d", ["__debezium.newkey"])
    assert (tombstone.key, tombstone.value) == ({"id": 1}, None)
    assert (made.key, made.value["op"], made.headers[0].value) == ({"id": 2}, "c", {"id": 1})


def test_an_update_has_a_placeholder_for_values_that_it_left_alone() -> None:
    [(_, value)] = payload({"op": "u", "after": [("id", "1"), ("name", "Ann")], "unchanged": ["note"]})
    assert value["after"]["note"] == "__debezium_unavailable_value" and value["before"] is None


def test_rows_of_a_snapshot_are_read_events_and_truncates_are_skipped() -> None:
    [(_, value)] = payload({"op": "r", "xid": None})
    assert (value["op"], value["source"]["snapshot"], value["source"]["sequence"]) == ("r", "true", '[null,"24023128"]')
    assert payload({"op": "t", "after": None}) == []


def test_a_table_without_a_key_has_events_without_one() -> None:
    table = Table.of("public.log", "shop.public.log", COLUMNS[1:], (), Modes())
    [event] = Events("shop", "inventory", {"public.log": table})(CHANGE | {"table": "public.log"})
    assert (event.key, event.key_schema) == (None, None)


def test_empty_values_are_those_of_their_column() -> None:
    for of in (
        kind(16),
        kind(20),
        kind(1114),
        kind(1184),
        kind(1700),
        kind(1700, (5 << 16) + 4),
        kind(1186),
        kind(2950),
    ):
        column: ColumnType = type_of(of, Modes(), optional=False)
        data.validated(column.schema, column.empty)
