"""What the JDBC source makes of a row: a record whose value is a struct of the columns. Pure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from pyspark.sql.types import (
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
    StructType,
    TimestampNTZType,
    TimestampType,
)

from barnabas.spark.connect import data
from barnabas.spark.connect.data import Field, Record, Schema

NUMERIC_MAPPINGS: Final = ("none", "best_fit")
#: Digits that every int64 has.
_LONG_DIGITS: Final = 18
_PRIMITIVES: Final[Mapping[type[DataType], str]] = {
    ShortType: "int16", IntegerType: "int32", LongType: "int64", FloatType: "float32", DoubleType: "float64",
    BooleanType: "boolean", BinaryType: "bytes", StringType: "string",
}  # fmt: skip


def schema_of(kind: DataType, *, optional: bool, best_fit: bool) -> Schema:
    """Return Connect's schema of a column. Types that Spark does not have are texts already."""
    match kind:
        case DecimalType() if best_fit and kind.precision <= _LONG_DIGITS:
            return Schema(_best_fit(kind), optional)
        case DecimalType():
            return data.decimal(kind.scale, optional=optional)
        case DateType():
            return data.day(optional=optional)
        case TimestampType() | TimestampNTZType():
            return data.timestamp(optional=optional)
    return Schema(_PRIMITIVES[type(kind)], optional)


def _best_fit(kind: DecimalType) -> str:
    if kind.scale > 0:
        return "float64"
    return (
        "int64" if kind.precision > 9 else "int32" if kind.precision > 4 else "int16" if kind.precision > 2 else "int8"
    )


@dataclass(frozen=True)
class RowRecords:
    """Makes a record of each row."""

    topic: str
    schema: Schema

    @classmethod
    def of(cls, topic: str, name: str, columns: StructType, *, needed: frozenset[str], best_fit: bool) -> "RowRecords":
        """`name`: of the struct, which is the table's. `needed`: the columns that are never null."""
        fields = tuple(
            Field(each.name, schema_of(each.dataType, optional=each.name not in needed, best_fit=best_fit))
            for each in columns.fields
        )
        return cls(topic, Schema("struct", name=name, fields=fields))

    def __call__(self, row: Mapping[str, Any]) -> Iterator[Record]:
        value = {
            each.name: _CONVERT.get(each.schema.name or each.schema.type, _same)(row[each.name])
            for each in self.schema.fields
        }
        yield Record(self.topic, value, self.schema)


def _same(value: Any) -> Any:
    return value


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, Decimal) else value


def _real(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else value


def _moment(value: datetime | None) -> datetime | None:
    return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


_CONVERT: Final[Mapping[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), _whole),
    "float64": _real,
    data.TIMESTAMP: _moment,
}
