"""The tables of the JDBC sink: columns made for them, as Connect makes them, and the types in which rows are written. Pure."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    FractionalType,
    IntegerType,
    IntegralType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from barnabas.spark.connect.data import DATE, DECIMAL, TIME, TIMESTAMP, DataError, Schema, struct
from barnabas.spark.pipelines.database import Column
from barnabas.spark.pipelines.postgres_types import DECIMAL_DIGITS_MAX

_COLUMNS: Final[Mapping[str, str]] = {
    "int8": "SMALLINT", "int16": "SMALLINT", "int32": "INT", "int64": "BIGINT", "float32": "REAL",
    "float64": "DOUBLE PRECISION", "boolean": "BOOLEAN", "string": "TEXT", "bytes": "BYTEA",
    DECIMAL: "DECIMAL", DATE: "DATE", TIME: "TIME", TIMESTAMP: "TIMESTAMP",
}  # fmt: skip
_SPARK: Final[Mapping[str, DataType]] = {
    "int8": ShortType(), "int16": ShortType(), "int32": IntegerType(), "int64": LongType(), "float32": FloatType(),
    "float64": DoubleType(), "boolean": BooleanType(), "string": StringType(), "bytes": BinaryType(),
    DATE: DateType(), TIME: StringType(), TIMESTAMP: TimestampNTZType(),
}  # fmt: skip


def column_type(schema: Schema) -> str:
    """Return PostgreSQL's type for a new column."""
    if schema.type == "array" and schema.values is not None:
        return f"{column_type(schema.values)}[]"
    return _COLUMNS.get(schema.name or "") or _COLUMNS[schema.type]


def create_table(quoted: Callable[[str], str], table: str, columns: Schema, keys: Sequence[str]) -> str:
    parts = []
    for each in columns.fields:
        null = "NULL" if each.schema.optional and each.name not in keys else "NOT NULL"
        parts.append(f"{quoted(each.name)} {column_type(each.schema)} {null}")
    if keys:
        parts.append(f"PRIMARY KEY ({', '.join(map(quoted, keys))})")
    return f"CREATE TABLE IF NOT EXISTS {quoted(table)} ({', '.join(parts)})"


def add_columns(quoted: Callable[[str], str], table: str, columns: Schema, known: Sequence[str]) -> list[str]:
    """Return the statements for columns that the table lacks. :raises DataError: for one that may neither be null nor has a
    default: rows that are there have no value for it."""
    statements = []
    for each in columns.fields:
        if each.name in known:
            continue
        if not each.schema.optional and each.schema.default is None:
            raise DataError(
                f"table {table} lacks column {each.name}, which is not optional and has no default: make the field optional"
            )
        statements.append(f"ALTER TABLE {quoted(table)} ADD COLUMN {quoted(each.name)} {column_type(each.schema)} NULL")
    return statements


def merged(schemas: Sequence[Schema]) -> Schema:
    """Return the columns of all these rows; one that some lack is optional. :raises DataError: for a column of two types."""
    found: dict[str, Schema] = {}
    for schema in schemas:
        for each in schema.fields:
            known = found.setdefault(each.name, each.schema)
            if column_type(known) != column_type(each.schema):
                raise DataError(
                    f"column {each.name} is {column_type(known)} in some records and {column_type(each.schema)} in others"
                )
            if each.schema.optional:
                found[each.name] = known.as_optional()
    lacking = {name for name in found for schema in schemas if schema.field(name) is None}
    return struct(*((name, each.as_optional() if name in lacking else each) for name, each in found.items()))


def row_type(columns: Schema, table: Sequence[Column]) -> StructType:
    """Return the Spark type of the rows: that of the table's column, if a value of the record can become one."""
    known = {each.name: each for each in table}
    made = StructType()
    for each in columns.fields:
        column = known.get(each.name)
        made.add(StructField(each.name, _written_as(each.schema, column), True))
    return made


def _written_as(schema: Schema, column: Column | None) -> DataType:
    given = spark_type(schema)
    held = column.kind.held_as() if column is not None and column.kind is not None else None
    if held is None:
        return given
    if isinstance(given, IntegralType) and isinstance(held, IntegralType | FractionalType):
        return held
    if isinstance(given, FractionalType) and isinstance(held, FractionalType):
        return held
    if isinstance(given, TimestampNTZType) and isinstance(held, TimestampType):
        return held
    return given


def spark_type(schema: Schema) -> DataType:
    if schema.type == "array" and schema.values is not None:
        return ArrayType(spark_type(schema.values))
    if schema.name == DECIMAL:
        return DecimalType(DECIMAL_DIGITS_MAX, schema.scale)
    return _SPARK.get(schema.name or "") or _SPARK[schema.type]


def written(kind: DataType) -> Callable[[Any], Any]:
    """Return a function from a value of Connect to one of this type."""
    match kind:
        case ArrayType():
            inner = written(kind.elementType)
            return lambda value: None if value is None else [inner(each) for each in value]
        case FloatType() | DoubleType():
            return lambda value: None if value is None else float(value)
        case DecimalType():
            return _decimal(kind)
        case StringType():
            return lambda value: value.isoformat(timespec="milliseconds") if isinstance(value, time) else value
        case TimestampNTZType():
            return lambda value: value.astimezone(UTC).replace(tzinfo=None) if isinstance(value, datetime) else value
    return lambda value: value


def _decimal(kind: DecimalType) -> Callable[[Any], Any]:
    unit = Decimal(1).scaleb(-kind.scale)

    def convert(value: Any) -> Any:
        if value is None:
            return None
        try:
            return (value if isinstance(value, Decimal) else Decimal(str(value))).quantize(unit)
        except InvalidOperation:
            raise DataError(f"{value} does not fit into {kind.simpleString()}") from None

    return convert
