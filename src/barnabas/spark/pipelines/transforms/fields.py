"""Transforms of fields: insert, rename, mask, cast, flatten, extract."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Final, Literal, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    IntegralType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from barnabas.spark.pipelines._fields import (
    Change,
    Named,
    TransformError,
    column,
    column_type,
    each,
    fields_of,
    put,
    read,
    resolve,
    rewrite,
)
from barnabas.spark.pipelines._schema import columns_of


@dataclass(frozen=True)
class InsertField:
    """Add fields with the place of a record (each argument is the new field's name), or with fixed values."""

    topic: str | None = None
    partition: str | None = None
    offset: str | None = None
    timestamp: str | None = None
    static: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    of: str | None = None

    def __call__(self, df: DataFrame) -> DataFrame:
        fields = fields_of(df, self.of, "InsertField")
        new: dict[str, Column] = {}
        for source in ("topic", "partition", "offset", "timestamp"):
            if (name := getattr(self, source)) is not None:
                column_type(df, source, "InsertField")
                new[name] = column(source)
        new |= {name: F.lit(value) for name, value in self.static.items()}
        if not new:
            raise TransformError("InsertField: no field to insert was named")
        kept: list[Named] = [(old.name, value) for old, value in each(fields, self.of) if old.name not in new]
        return put(df, self.of, kept + list(new.items()), "InsertField")


@dataclass(frozen=True)
class ReplaceField:
    """Keep only some fields (`include`), leave some out (`exclude`), give others new names (`renames`).

    As in Connect, `exclude` wins over `include`, and both use the old names. Paths may be excluded and renamed.
    """

    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    renames: Mapping[str, str] = field(default_factory=dict)
    of: str | None = None

    def __call__(self, df: DataFrame) -> DataFrame:
        fields = fields_of(df, self.of, "ReplaceField")
        for name in self.include:
            if name not in fields.names:
                raise TransformError(f"ReplaceField: no field {name!r} to include; there are {', '.join(fields.names)}")
        changes: dict[str, Change] = {old: _renamed(new) for old, new in self.renames.items()}
        if self.include:
            changes |= {name: dropped for name in fields.names if name not in self.include}
        changes |= dict.fromkeys(self.exclude, dropped)
        return rewrite(df, self.of, changes, "ReplaceField")


def dropped(_: StructField, __: Column) -> list[Named]:
    return []


def _renamed(new: str) -> Change:
    return lambda _, value: [(new, value)]


@dataclass(frozen=True)
class MaskField:
    """Replace values by the empty one of their type (`""`, 0, false, 1970-01-01, `[]`), or by `replacement`. Null stays null.

    A replacement goes into strings and, if it is a number, into numbers.
    """

    fields: Sequence[str]
    replacement: str | None = None
    of: str | None = None

    def __call__(self, df: DataFrame) -> DataFrame:
        return rewrite(df, self.of, dict.fromkeys(self.fields, self._mask), "MaskField")

    def _mask(self, old: StructField, value: Column) -> list[Named]:
        mask = self._empty(old) if self.replacement is None else self._replaced(old, self.replacement)
        return [(old.name, F.when(value.isNotNull(), mask.cast(old.dataType)))]

    @staticmethod
    def _empty(old: StructField) -> Column:
        match old.dataType:
            case StringType() | BinaryType():
                return F.lit("")
            case BooleanType():
                return F.lit(False)
            case NumericType():
                return F.lit(0)
            case DateType() | TimestampNTZType():
                return F.lit("1970-01-01")
            case TimestampType():
                return F.timestamp_seconds(F.lit(0))
            case ArrayType():
                return F.array()
            case MapType():
                return F.create_map()
            case other:
                raise TransformError(f"MaskField: field {old.name!r} is {other.simpleString()}, which cannot be masked")

    @staticmethod
    def _replaced(old: StructField, replacement: str) -> Column:
        if isinstance(old.dataType, NumericType):
            try:
                Decimal(replacement)
                if isinstance(old.dataType, IntegralType):
                    int(replacement)
            except (InvalidOperation, ValueError):
                raise TransformError(
                    f"MaskField: field {old.name!r} is {old.dataType.simpleString()}, and {replacement!r} is not"
                ) from None
        elif not isinstance(old.dataType, StringType):
            raise TransformError(
                f"MaskField: field {old.name!r} is {old.dataType.simpleString()}: only strings and numbers take a replacement"
            )
        return F.lit(replacement)


#: Spark's type for each name of a type in Connect.
CONNECT_TYPES: Final[Mapping[str, str]] = {
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float32": "float",
    "float64": "double",
    "boolean": "boolean",
    "string": "string",
}

OnError: TypeAlias = Literal["FAIL", "NULL"]


@dataclass(frozen=True)
class Cast:
    """Give fields other types: `{"amount": "float64", "id": "int32"}`; Connect's names, or any of Spark's (`decimal(10,2)`).

    `spec` may be one type alone: then `of` itself is cast. A value that does not fit fails the query, or becomes null
    (`on_error="NULL"`). A timestamp becomes milliseconds and a date becomes days when cast to an integer, as in Connect.
    """

    spec: Mapping[str, str] | str
    of: str | None = None
    on_error: OnError = "FAIL"

    def __call__(self, df: DataFrame) -> DataFrame:
        if isinstance(self.spec, str):
            if self.of is None:
                raise TransformError("Cast: a type alone needs `of`, the column to cast")
            kind = column_type(df, self.of, "Cast")
            return df.withColumn(self.of, self._cast(kind, column(self.of), self.spec))
        changes: dict[str, Change] = {path: self._change(kind) for path, kind in self.spec.items()}
        return rewrite(df, self.of, changes, "Cast")

    def _change(self, kind: str) -> Change:
        return lambda old, value: [(old.name, self._cast(old.dataType, value, kind))]

    def _cast(self, old: DataType, value: Column, kind: str) -> Column:
        target = CONNECT_TYPES.get(kind, kind)
        if target in ("tinyint", "smallint", "int", "bigint"):
            if isinstance(old, TimestampType):
                value = F.unix_millis(value)
            elif isinstance(old, DateType):
                value = F.unix_date(value)
        return value.try_cast(target) if self.on_error == "NULL" else value.cast(target)


@dataclass(frozen=True)
class Flatten:
    """Make fields of structs to fields of their own, named by their path (`address.city`). Arrays and maps stay."""

    delimiter: str = "."
    of: str | None = None

    def __call__(self, df: DataFrame) -> DataFrame:
        return put(df, self.of, self._flat(fields_of(df, self.of, "Flatten"), (), ""), "Flatten")

    def _flat(self, fields: StructType, above: tuple[str, ...], prefix: str) -> list[Named]:
        named: list[Named] = []
        for old in fields.fields:
            path, name = (*above, old.name), prefix + old.name
            if isinstance(old.dataType, StructType):
                named += self._flat(old.dataType, path, name + self.delimiter)
            else:
                named.append((name, read(self.of, path)))
        return named


@dataclass(frozen=True)
class ExtractField:
    """Put one field in place of the struct that holds it; null for a null struct."""

    field: str
    of: str = "value"

    def __call__(self, df: DataFrame) -> DataFrame:
        path = resolve(fields_of(df, self.of, "ExtractField"), self.field, "ExtractField")
        return df.withColumn(self.of, read(self.of, path))


@dataclass(frozen=True)
class HoistField:
    """Wrap the column `of` in a struct with one field; with `of=None`, wrap all columns in one struct column."""

    field: str
    of: str | None = "value"

    def __call__(self, df: DataFrame) -> DataFrame:
        if self.of is None:
            return df.select(F.struct(*[column(name) for name in columns_of(df)]).alias(self.field))
        column_type(df, self.of, "HoistField")
        return df.withColumn(self.of, F.struct(column(self.of).alias(self.field)))


@dataclass(frozen=True)
class ValueToKey:
    """Make a struct of these fields of the value the key."""

    fields: Sequence[str]
    of: str | None = "value"
    key: str = "key"

    def __call__(self, df: DataFrame) -> DataFrame:
        if not self.fields:
            raise TransformError("ValueToKey: no field was named")
        known = fields_of(df, self.of, "ValueToKey")
        paths = [resolve(known, name, "ValueToKey") for name in self.fields]
        return df.withColumn(self.key, F.struct(*[read(self.of, path).alias(path[-1]) for path in paths]))
