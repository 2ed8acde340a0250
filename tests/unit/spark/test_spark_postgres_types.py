"""PostgreSQL's types as types of Spark: recognised by oid, whatever their names are."""

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from barnabas.spark.pipelines.postgres_types import PostgresType, numeric_size


def pg(oid: int, name: str, declared: str = "", *, typmod: int = -1, category: str = "U") -> PostgresType:
    return PostgresType(oid, typmod, "pg_catalog", name, declared or name, category)


def typmod(precision: int, scale: int) -> int:
    """Pack a size as `numerictypmodin` does."""
    return (precision << 16 | scale & 0x7FF) + 4


UUID, JSONB, INT4, TEXT = (
    pg(2950, "uuid"),
    pg(3802, "jsonb"),
    pg(23, "int4", category="N"),
    pg(25, "text", category="S"),
)
ENUM = PostgresType(70_001, -1, "shop", "interest_kind", "shop.interest_kind", "E")
INTS = PostgresType(1007, -1, "pg_catalog", "_int4", "integer[]", "A", INT4)
UUIDS = PostgresType(2951, -1, "pg_catalog", "_uuid", "uuid[]", "A", UUID)


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        (pg(16, "bool"), BooleanType()),
        (pg(21, "int2"), ShortType()),
        (INT4, IntegerType()),
        (pg(20, "int8"), LongType()),
        (pg(700, "float4"), FloatType()),
        (pg(701, "float8"), DoubleType()),
        (pg(17, "bytea"), BinaryType()),
        (pg(1043, "varchar", "character varying(5)", typmod=9), StringType()),
        (pg(1082, "date"), DateType()),
        (pg(1114, "timestamp"), TimestampNTZType()),
        (pg(1184, "timestamptz", "timestamp(3) with time zone", typmod=3), TimestampType()),
        (pg(1700, "numeric", typmod=typmod(8, 2)), DecimalType(8, 2)),
        (pg(1700, "numeric"), DecimalType(38, 18)),
        (pg(1700, "numeric", typmod=typmod(60, 2)), DecimalType(38, 18)),
        (pg(1700, "numeric", typmod=typmod(5, -2)), DecimalType(38, 18)),
        (pg(1700, "numeric", typmod=typmod(2, 5)), DecimalType(38, 18)),
        (UUID, StringType()),
        (JSONB, StringType()),
        (INTS, StringType()),
        (ENUM, StringType()),
        (pg(70_002, "realm", category="E"), StringType()),
        (pg(70_003, "boolish", category="E"), StringType()),
        (pg(70_004, "date_kind", category="E"), StringType()),
        (pg(70_005, "numeric_kind", category="E"), StringType()),
        (pg(3904, "int4range", category="R"), StringType()),
        (pg(1186, "interval", category="T"), StringType()),
    ],
)
def test_type_that_a_column_is_read_as(kind: PostgresType, read: DataType) -> None:
    assert kind.read_as() == read


@pytest.mark.parametrize(
    ("kind", "given", "taken"),
    [
        (UUID, StringType(), StringType()),
        (UUID, IntegerType(), None),
        (JSONB, StringType(), StringType()),
        (JSONB, BooleanType(), None),
        (ENUM, StringType(), StringType()),
        (INTS, ArrayType(IntegerType()), ArrayType(IntegerType())),
        (INTS, ArrayType(ShortType()), ArrayType(IntegerType())),
        (INTS, StringType(), StringType()),
        (INTS, IntegerType(), None),
        (UUIDS, ArrayType(StringType()), ArrayType(StringType())),
        (UUIDS, ArrayType(IntegerType()), None),
        (pg(26, "oid", category="N"), LongType(), LongType()),
        (pg(26, "oid", category="N"), DoubleType(), None),
        (INT4, StringType(), IntegerType()),
    ],
)
def test_type_that_a_column_takes_for_the_type_of_the_rows(
    kind: PostgresType, given: DataType, taken: DataType | None
) -> None:
    assert kind.taken_as(given) == taken


def test_only_texts_that_are_not_text_there_are_cast() -> None:
    casts = [kind.name for kind in (UUID, JSONB, ENUM, INTS, TEXT) if kind.needs_cast(StringType())]
    assert casts == ["uuid", "jsonb", "interest_kind", "_int4"]
    assert UUIDS.needs_cast(ArrayType(StringType())) and not INTS.needs_cast(ArrayType(IntegerType()))
    assert not INT4.needs_cast(IntegerType())
    assert ENUM.cast_name == '"shop"."interest_kind"', "a name without a size keeps the whole value"


def test_sizes_of_numerics_are_unpacked() -> None:
    assert [numeric_size(typmod(*size)) for size in ((8, 2), (5, -2), (1000, 0))] == [(8, 2), (5, -2), (1000, 0)]
    assert numeric_size(-1) == (0, 0)
