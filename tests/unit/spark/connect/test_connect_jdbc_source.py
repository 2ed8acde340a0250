"""What the JDBC source makes of rows, and of them topics get."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BooleanType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
)

from barnabas.spark.connect import data
from barnabas.spark.connect.conversion import Conversion
from barnabas.spark.connect.converters.json_converter import JsonConverter
from barnabas.spark.connect.converters.simple import SimpleHeaderConverter
from barnabas.spark.connect.data import Schema
from barnabas.spark.connect.jdbc.source_rows import RowRecords, schema_of
from barnabas.spark.connect.source_flow import RecordRefused, Tolerance, _written, topics_of
from barnabas.spark.connect.transforms.table import PACKAGE, chain_of

COLUMNS = (
    StructType()
    .add("id", LongType())
    .add("name", StringType())
    .add("price", DecimalType(10, 2))
    .add("day", DateType())
    .add("at", TimestampNTZType())
    .add("done", BooleanType())
)
ROW = {
    "id": 1,
    "name": None,
    "price": Decimal("1.50"),
    "day": date(2026, 1, 2),
    "at": datetime(2026, 1, 2, 3, 4, 5),
    "done": True,
}


def conversion(**settings: str) -> Conversion:
    chain, problems = chain_of({key.replace("_", "."): value for key, value in settings.items()})
    assert not problems
    plain = JsonConverter(with_schemas=False)
    return Conversion(plain, plain, SimpleHeaderConverter(), chain)


def test_a_row_is_a_struct_of_its_columns() -> None:
    maker = RowRecords.of("pg-orders", "orders", COLUMNS, needed=frozenset({"id"}), best_fit=False)
    [record] = maker(ROW)
    assert record.topic == "pg-orders" and record.key is None
    assert record.value == ROW | {"at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)}
    assert record.value_schema == data.struct(
        ("id", data.INT64),
        ("name", data.OPTIONAL_STRING),
        ("price", data.decimal(2, optional=True)),
        ("day", data.day(optional=True)),
        ("at", data.timestamp(optional=True)),
        ("done", Schema("boolean", optional=True)),
        name="orders",
    )


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (DecimalType(2, 0), "int8"),
        (DecimalType(4, 0), "int16"),
        (DecimalType(9, 0), "int32"),
        (DecimalType(18, 0), "int64"),
        (DecimalType(18, 2), "float64"),
        (DecimalType(19, 2), "bytes"),
        (IntegerType(), "int32"),
    ],
)
def test_best_fit_makes_numbers_of_numerics(kind: DecimalType, expected: str) -> None:
    assert schema_of(kind, optional=True, best_fit=True).type == expected


def test_rows_become_bytes_of_topics() -> None:
    maker = RowRecords.of("pg-orders", "orders", COLUMNS, needed=frozenset({"id"}), best_fit=True)
    keyed = conversion(
        transforms="key,id,route",
        transforms_key_type=PACKAGE + "ValueToKey",
        transforms_key_fields="id",
        transforms_id_type=PACKAGE + "ExtractField$Key",
        transforms_id_field="id",
        transforms_route_type=PACKAGE + "RegexRouter",
        transforms_route_regex="pg-(.*)",
        transforms_route_replacement="shop.$1",
    )
    batch = pa.RecordBatch.from_pylist([ROW])
    [made] = _written(maker, keyed, Tolerance("c", False, False), iter([batch]))
    [row] = made.to_pylist()
    assert (row["topic"], row["key"]) == ("shop.orders", b"1")
    assert row["value"] == b'{"id":1,"name":null,"price":1.5,"day":20455,"at":1767323045000,"done":true}'


def test_a_record_that_cannot_be_written_fails_the_flow_or_is_left_out() -> None:
    maker = RowRecords.of("t", "orders", COLUMNS, needed=frozenset(), best_fit=True)
    bad = conversion(transforms="x", transforms_x_type=PACKAGE + "Cast$Value", transforms_x_spec="name:int32")
    batch = pa.RecordBatch.from_pylist([ROW | {"name": "a"}, ROW | {"name": "5"}])
    with pytest.raises(RecordRefused, match="connector c: TRANSFORMATION: Cast: field name: 'a' is not a number"):
        list(_written(maker, bad, Tolerance("c", False, False), iter([batch])))
    [made] = _written(maker, bad, Tolerance("c", True, True), iter([batch]))
    assert [b'"name":5' in each["value"] for each in made.to_pylist()] == [True]


def test_topics_to_make_are_those_after_the_routers() -> None:
    routed = conversion(
        transforms="r",
        transforms_r_type=PACKAGE + "RegexRouter",
        transforms_r_regex="pg-(.*)",
        transforms_r_replacement="$1",
    )
    assert topics_of(routed, ("pg-a", "pg-b", "c")) == ("a", "b", "c")
