"""What the JDBC sink makes of records: tables, columns, keys, statements, types."""

from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql.types import (
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from barnabas.spark.connect import data
from barnabas.spark.connect.data import DataError, Record, Schema
from barnabas.spark.connect.jdbc.sink_rows import RowMaker
from barnabas.spark.connect.jdbc.sink_tables import add_columns, create_table, merged, row_type, spark_type, written
from barnabas.spark.connect.jdbc.url import postgresql_uri
from barnabas.spark.pipelines.database import Column
from barnabas.spark.pipelines.postgres_types import PostgresType

VALUE = data.struct(("id", data.INT64), ("name", data.OPTIONAL_STRING), ("price", data.decimal(2)))
ORDER = {"id": 7, "name": "a", "price": Decimal("1.50")}


def record(value: Any = ORDER, schema: Schema | None = VALUE, **more: Any) -> Record:
    return Record("shop.orders", value, schema, partition=2, offset=41, **more)


def quoted(name: str) -> str:
    return f'"{name}"'


def test_key_of_the_row_comes_from_where_pk_mode_says() -> None:
    keyed = record(key={"id": 7, "zone": "x"}, key_schema=data.struct(("id", data.INT64), ("zone", data.STRING)))
    row = RowMaker(pk_mode="record_key")(keyed)
    assert (row.keys, row.values) == (("id", "zone"), {"id": 7, "zone": "x", "name": "a", "price": Decimal("1.50")})
    assert RowMaker(pk_mode="record_key", pk_fields=("zone",))(keyed).keys == ("zone",)
    row = RowMaker(pk_mode="record_key", pk_fields=("number",))(record(key=5, key_schema=data.INT64))
    assert (row.keys, row.values["number"]) == (("number",), 5)
    assert RowMaker(pk_mode="record_value", pk_fields=("id",))(record()).keys == ("id",)
    row = RowMaker(pk_mode="kafka")(record())
    assert (row.keys, list(row.values.values())[:3]) == (
        ("__connect_topic", "__connect_partition", "__connect_offset"),
        ["shop.orders", 2, 41],
    )
    assert RowMaker(only=("name",))(record()).values == {"name": "a"}


def test_table_is_named_by_the_topic() -> None:
    assert RowMaker("kafka_${topic}").table_of("orders") == "kafka_orders"
    assert RowMaker(tables={"a": "b"}).table_of("a") == "b"
    assert RowMaker(normalizes=True).table_of("my-orders.x") == "my_orders.x"


@pytest.mark.parametrize(
    ("maker", "given", "message"),
    [
        (RowMaker(), record({"id": 1}, None), "this one has no schema"),
        (RowMaker(), record(None, None), "set delete.enabled=true"),
        (RowMaker(pk_mode="record_key"), record(), "needs a key with a schema"),
        (RowMaker(pk_mode="record_key"), record(key=1, key_schema=data.INT64), "pk.fields must name its one column"),
        (RowMaker(pk_mode="record_value", pk_fields=("x",)), record(), "has no field x, which pk.fields names"),
        (
            RowMaker(pk_mode="record_value", pk_fields=("name",)),
            record(ORDER | {"name": None}),
            "name of the primary key is null",
        ),
        (RowMaker(only=("x",)), record(), "no field of the value is in fields.whitelist"),
        (RowMaker(), record({"a": {}}, data.struct(("a", data.struct()))), "field a is a struct"),
        (RowMaker(), record({"a.b": 1}, data.struct(("a.b", data.INT64))), "has a dot in its name"),
    ],
)
def test_record_that_makes_no_row_says_why(maker: RowMaker, given: Record, message: str) -> None:
    with pytest.raises(DataError, match=message):
        maker(given)


def test_tombstone_deletes_the_row_of_its_key() -> None:
    row = RowMaker(pk_mode="record_key", pk_fields=("id",), deletes=True)(
        record(None, None, key=5, key_schema=data.INT64)
    )
    assert row.is_deleted and row.values == {"id": 5}


def test_statements_make_the_columns_that_connect_makes() -> None:
    """The types of Confluent's dialect for PostgreSQL."""
    assert create_table(quoted, "orders", VALUE, ("id",)) == (
        'CREATE TABLE IF NOT EXISTS "orders" ("id" BIGINT NOT NULL, "name" TEXT NULL, "price" DECIMAL NOT NULL, '
        'PRIMARY KEY ("id"))'
    )
    more = data.struct(
        ("id", data.INT64), ("at", data.timestamp(optional=True)), ("t", data.time_of_day(optional=True))
    )
    assert add_columns(quoted, "orders", more, ["id"]) == [
        'ALTER TABLE "orders" ADD COLUMN "at" TIMESTAMP NULL',
        'ALTER TABLE "orders" ADD COLUMN "t" TIME NULL',
    ]
    with pytest.raises(DataError, match="lacks column price, which is not optional and has no default"):
        add_columns(quoted, "orders", VALUE, ["id", "name"])


def test_records_of_two_schemas_share_a_batch_of_one_table() -> None:
    other = data.struct(("id", data.INT64), ("gift", data.BOOLEAN))
    both = merged([VALUE, other])
    assert [(each.name, each.schema.optional) for each in both.fields] == [
        ("id", False),
        ("name", True),
        ("price", True),
        ("gift", True),
    ]
    with pytest.raises(DataError, match="column id is BIGINT in some records and TEXT in others"):
        merged([VALUE, data.struct(("id", data.STRING))])


def test_rows_are_written_in_the_types_of_the_table() -> None:
    def column(name: str, oid: int) -> Column:
        return Column(name, "", kind=PostgresType(oid, -1, "pg_catalog", "x", "x"))

    schema = data.struct(("n", data.INT64), ("f", data.decimal(2)), ("at", data.timestamp()), ("new", data.STRING))
    made = row_type(schema, [column("n", 23), column("f", 701), column("at", 1184)])
    assert [each.dataType for each in made.fields] == [IntegerType(), DoubleType(), TimestampType(), StringType()]
    assert spark_type(data.timestamp()) == TimestampNTZType() and spark_type(data.INT64) == LongType()


def test_values_become_those_of_their_column() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert written(TimestampNTZType())(at) == at.replace(tzinfo=None)
    assert written(StringType())(time(4, 5)) == "04:05:00.000"
    assert written(DoubleType())(Decimal("1.5")) == 1.5
    assert written(DecimalType(38, 2))(3) == Decimal("3.00")
    with pytest.raises(DataError, match="does not fit"):
        written(DecimalType(38, 2))(Decimal(10) ** 40)


def test_jdbc_urls_become_those_of_postgresql() -> None:
    assert (
        postgresql_uri("jdbc:postgresql://h:5432/db", "me", "p w@")
        == "postgresql://h:5432/db?user=me&password=p%20w%40"
    )
    given = "jdbc:postgresql://a,b/db?currentSchema=shop&ssl=true&sslrootcert=/ca&prepareThreshold=0"
    assert postgresql_uri(given, None, None) == (
        "postgresql://a,b/db?options=-csearch_path%3Dshop&sslmode=verify-full&sslrootcert=%2Fca"
    )
    for wrong, message in (
        ("jdbc:mysql://h/db", "only jdbc:postgresql"),
        ("jdbc:postgresql://h/db?gssEncMode=x", "gssEncMode has no counterpart"),
        ("jdbc:postgresql://me:pw@h/db", "give the user by connection.user"),
    ):
        with pytest.raises(ValueError, match=message):
            postgresql_uri(wrong, None, None)
