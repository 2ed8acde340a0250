"""The types of a SQL table's columns: those that the sink creates, and the rows that existing ones take."""

from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    TimestampNTZType,
    TimestampType,
)

from barnabas.spark.pipelines.database import Column, Dialect
from barnabas.spark.pipelines.sinks.table_schema import TableMismatch

if TYPE_CHECKING:
    import pyarrow

#: Types of columns that the sink creates: PostgreSQL's, SQLite's.
_TYPES: Final[Mapping[type[DataType], tuple[str, str]]] = {
    ByteType: ("smallint", "INTEGER"),
    ShortType: ("smallint", "INTEGER"),
    IntegerType: ("integer", "INTEGER"),
    LongType: ("bigint", "INTEGER"),
    FloatType: ("real", "REAL"),
    DoubleType: ("double precision", "REAL"),
    BooleanType: ("boolean", "BOOLEAN"),
    StringType: ("text", "TEXT"),
    BinaryType: ("bytea", "BLOB"),
    DateType: ("date", "DATE"),
    TimestampType: ("timestamptz", "TIMESTAMP"),
    TimestampNTZType: ("timestamp", "TIMESTAMP"),
    DecimalType: ("numeric", "NUMERIC"),
}


def made_as(field: StructField, dialect: Dialect) -> str:
    """Return the type of a column that the sink creates for a column of the rows."""
    kind = field.dataType
    if isinstance(kind, ArrayType) and dialect is Dialect.POSTGRESQL and type(kind.elementType) in _TYPES:
        return f"{_TYPES[type(kind.elementType)][0]}[]"
    pair = _TYPES.get(type(kind))
    if pair is None:
        raise ValueError(
            f"column {field.name} is {kind.simpleString()}, which barnabas-sql cannot write; "
            "flatten it, or turn it into text with to_json"
        )
    return pair[0 if dialect is Dialect.POSTGRESQL else 1]


def taken_as(column: Column, given: DataType) -> DataType | None:
    """Return the Spark type in which a column takes rows of type `given`; None if it takes no such value."""
    return _sqlite_takes(column.declared.lower(), given) if column.kind is None else column.kind.taken_as(given)


#: SQLite takes any name for a type, and gives a column an affinity by what the name contains.
_SQLITE_HOLDS: Final[tuple[tuple[str, DataType], ...]] = (
    ("int", LongType()),
    ("smallint", LongType()),
    ("bigint", LongType()),
    ("serial", LongType()),
    ("bigserial", LongType()),
    ("real", DoubleType()),
    ("float", DoubleType()),
    ("double", DoubleType()),
    ("bool", BooleanType()),
    ("text", StringType()),
    ("character", StringType()),
    ("varchar", StringType()),
    ("char", StringType()),
    ("clob", StringType()),
    ("datetime", TimestampNTZType()),
    ("date", DateType()),
    ("timestamp with time zone", TimestampType()),
    ("timestamptz", TimestampType()),
    ("timestamp", TimestampNTZType()),
)


def _sqlite_takes(declared: str, given: DataType) -> DataType:
    """Decide by affinity: SQLite's integers have 64 bits, its floats 8 bytes, its times no zone."""
    if declared.startswith("interval"):
        return given
    if declared.startswith(("numeric", "decimal")):
        is_number = isinstance(given, DecimalType | ByteType | ShortType | IntegerType | LongType)
        return given if is_number else DecimalType(38, 18)
    found = next((kind for prefix, kind in _SQLITE_HOLDS if declared.startswith(prefix)), given)
    return given if isinstance(found, TimestampNTZType) and isinstance(given, TimestampType) else found


def cast_values(column: "pyarrow.Array", kind: "pyarrow.DataType") -> "pyarrow.Array":
    """Cast decimals to texts without a fraction of zeros: SQLite takes such a number for an integer, and keeps all its
    digits."""
    import pyarrow
    import pyarrow.compute as compute

    if not (pyarrow.types.is_decimal(column.type) and pyarrow.types.is_string(kind)):
        return column.cast(kind)
    return compute.replace_substring_regex(column.cast(kind), r"^([^.E]*)\.0+$", r"\1")


def require_exact(rows: "pyarrow.Table", *, what: str) -> None:
    """Refuse decimals that are neither an integer of 64 bits nor a float: SQLite would drop digits without an error. Refuse
    NaN, which SQLite does not have."""
    import pyarrow
    import pyarrow.compute as compute

    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if pyarrow.types.is_floating(column.type) and compute.any(compute.is_nan(column)).as_py():
            raise TableMismatch(
                f"{what} does not take these rows: column {name} has NaN, which SQLite stores as null. To write null, "
                f"use nullif({name}, double('NaN'))"
            )
        if not pyarrow.types.is_decimal(column.type):
            continue
        digits = compute.replace_substring_regex(column.cast(pyarrow.string()), r"E.*$|[^0-9]", "")
        # A float has every number of fifteen digits.
        many = compute.greater(compute.utf8_length(compute.utf8_trim(digits, "0")), 15)
        lost = [value for value in column.filter(many).to_pylist() if not _is_exact(value)]
        if lost:
            raise TableMismatch(
                f"{what} does not take these rows: SQLite holds some 15 digits of a decimal, and column {name} has "
                f"{len(lost)} values with more, the first of them {lost[0]}. Cast it to double, or to string"
            )


def _is_exact(value: Decimal) -> bool:
    is_whole = value == value.to_integral_value() and -(1 << 63) <= value < 1 << 63
    return is_whole or Decimal(repr(float(value))) == value
