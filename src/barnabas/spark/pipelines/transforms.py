"""Connect's transforms under the names that a Connect user knows, made of Spark's own expressions: no Python per record.

Each is a value that `DataFrame.transform` takes, so they chain, and print as what they do:

    orders.transform(MaskField(["card"], of="data")).transform(RegexRouter(r"raw-(.*)", "$1"))

`of` says whose fields: `None` the DataFrame's own columns, `"value"` those of the struct column `value` (Connect's `$Value`).
Paths reach into structs. Those that route or add headers work on the columns `topic` and `headers` of format `barnabas`.
A transform that does not fit the DataFrame raises `TransformError`, naming the field, while the plan is made; nothing has run.
"""

import re
from collections.abc import Callable, Mapping, Sequence
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

__all__ = [
    "Cast",
    "DropHeaders",
    "ExtractField",
    "Filter",
    "Flatten",
    "HeaderFrom",
    "HoistField",
    "InsertField",
    "InsertHeader",
    "MaskField",
    "RegexRouter",
    "ReplaceField",
    "Route",
    "TimestampConverter",
    "TimestampRouter",
    "Transform",
    "TransformError",
    "ValueToKey",
    "chain",
    "has_header_key",
    "record_is_tombstone",
    "topic_name_matches",
]

Transform: TypeAlias = Callable[[DataFrame], DataFrame]

TOPIC: Final = "topic"
HEADERS: Final = "headers"
HEADERS_TYPE: Final = "array<struct<key: string, value: binary>>"


def chain(*transforms: Transform) -> Transform:
    """One transform out of several, first to last."""

    def apply(df: DataFrame) -> DataFrame:
        for transform in transforms:
            df = df.transform(transform)
        return df

    return apply


def _condition(given: Column | str) -> Column:
    return F.expr(given) if isinstance(given, str) else given


# ---------------------------------------------------------------------------------------------------------------- fields


@dataclass(frozen=True)
class InsertField:
    """Add fields with where a record came from (each argument is the new field's name), or with fixed values."""

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

    As in Connect, `exclude` wins over `include`, and both speak of the old names. Paths may be excluded and renamed.
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
            changes |= {name: _dropped for name in fields.names if name not in self.include}
        changes |= dict.fromkeys(self.exclude, _dropped)
        return rewrite(df, self.of, changes, "ReplaceField")


def _dropped(_: StructField, __: Column) -> list[Named]:
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


#: Connect's names of types, and Spark's.
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
    """Fields of structs become fields of their own, named by their path (`address.city`). Arrays and maps stay."""

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
    """One field takes the place of the struct that holds it; of a null struct, null."""

    field: str
    of: str = "value"

    def __call__(self, df: DataFrame) -> DataFrame:
        path = resolve(fields_of(df, self.of, "ExtractField"), self.field, "ExtractField")
        return df.withColumn(self.of, read(self.of, path))


@dataclass(frozen=True)
class HoistField:
    """The column `of` is wrapped in a struct with one field; with `of=None`, all columns in one struct column."""

    field: str
    of: str | None = "value"

    def __call__(self, df: DataFrame) -> DataFrame:
        if self.of is None:
            return df.select(F.struct(*[column(name) for name in columns_of(df)]).alias(self.field))
        column_type(df, self.of, "HoistField")
        return df.withColumn(self.of, F.struct(column(self.of).alias(self.field)))


@dataclass(frozen=True)
class ValueToKey:
    """The key becomes a struct of these fields of the value."""

    fields: Sequence[str]
    of: str | None = "value"
    key: str = "key"

    def __call__(self, df: DataFrame) -> DataFrame:
        if not self.fields:
            raise TransformError("ValueToKey: no field was named")
        known = fields_of(df, self.of, "ValueToKey")
        paths = [resolve(known, name, "ValueToKey") for name in self.fields]
        return df.withColumn(self.key, F.struct(*[read(self.of, path).alias(path[-1]) for path in paths]))


# ------------------------------------------------------------------------------------------------------------------ time

Target: TypeAlias = Literal["string", "unix", "Date", "Time", "Timestamp"]
Precision: TypeAlias = Literal["seconds", "milliseconds", "microseconds", "nanoseconds"]
_PER_SECOND: Final[Mapping[str, int]] = {
    "seconds": 1,
    "milliseconds": 1_000,
    "microseconds": 1_000_000,
    "nanoseconds": 1_000_000_000,
}
_MS_PER_DAY: Final = 86_400_000
_ZONED: Final = re.compile(r"[XxZzVO]")


@dataclass(frozen=True)
class TimestampConverter:
    """Turn a point in time from one form into another: `string`, `unix`, `Date`, `Time` (milliseconds of the day), `Timestamp`.

    What it is now follows from its type: a string is read by `format`, an integer by `unix_precision`. All of it in UTC,
    whatever the session's time zone. `field=""` converts the column `of` itself.
    """

    target_type: Target
    field: str = ""
    format: str | None = None
    unix_precision: Precision = "milliseconds"
    of: str | None = None

    def __post_init__(self) -> None:
        if self.target_type not in ("string", "unix", "Date", "Time", "Timestamp"):
            raise TransformError(f"TimestampConverter: no target type {self.target_type!r}")
        if self.unix_precision not in _PER_SECOND:
            raise TransformError(f"TimestampConverter: no precision {self.unix_precision!r}")
        if self.target_type == "string" and not self.format:
            raise TransformError("TimestampConverter: a string needs a format")

    def __call__(self, df: DataFrame) -> DataFrame:
        if self.field:
            return rewrite(df, self.of, {self.field: self._change}, "TimestampConverter")
        if self.of is None:
            raise TransformError("TimestampConverter: name a field, or the column to convert as `of`")
        old = StructField(self.of, column_type(df, self.of, "TimestampConverter"))
        return df.withColumn(self.of, self._change(old, column(self.of))[0][1])

    def _change(self, old: StructField, value: Column) -> list[Named]:
        return [(old.name, self._written(self._instant(old, value)))]

    def _instant(self, old: StructField, value: Column) -> Column:
        match old.dataType:
            case TimestampType():
                return value
            case TimestampNTZType():
                return _utc_instant(value)
            case DateType():
                return _utc_instant(value.cast("timestamp_ntz"))
            case StringType():
                if not self.format:
                    raise TransformError(f"TimestampConverter: field {old.name!r} is a string, which needs a format")
                if _ZONED.search(self.format):
                    return F.to_timestamp(value, self.format)
                return _utc_instant(F.to_timestamp_ntz(value, F.lit(self.format)))
            case IntegralType():
                return self._from_unix(value)
            case other:
                raise TransformError(f"TimestampConverter: field {old.name!r} is {other.simpleString()}, not a time")

    def _from_unix(self, value: Column) -> Column:
        match self.unix_precision:
            case "seconds":
                return F.timestamp_seconds(value)
            case "milliseconds":
                return F.timestamp_millis(value)
            case "microseconds":
                return F.timestamp_micros(value)
            case _:
                return F.timestamp_micros(F.floor(value / 1000).cast("bigint"))

    def _written(self, instant: Column) -> Column:
        match self.target_type:
            case "Timestamp":
                return instant
            case "string":
                return F.date_format(_utc_wall_clock(instant), self.format or "")
            case "Date":
                return _utc_wall_clock(instant).cast("date")
            case "Time":
                return F.pmod(F.unix_millis(instant), F.lit(_MS_PER_DAY)).cast("int")
            case _:
                return self._unix(instant)

    def _unix(self, instant: Column) -> Column:
        match self.unix_precision:
            case "seconds":
                return F.unix_seconds(instant)
            case "milliseconds":
                return F.unix_millis(instant)
            case "microseconds":
                return F.unix_micros(instant)
            case _:
                return F.unix_micros(instant) * 1000


def _utc_wall_clock(instant: Column) -> Column:
    """A point in time as a clock in UTC shows it."""
    return F.convert_timezone(F.current_timezone(), F.lit("UTC"), instant.cast("timestamp_ntz"))


def _utc_instant(wall_clock: Column) -> Column:
    epoch = F.lit("1970-01-01").cast("timestamp_ntz")
    return F.timestamp_micros(F.timestamp_diff("MICROSECOND", epoch, wall_clock))


# --------------------------------------------------------------------------------------------------------------- records


@dataclass(frozen=True)
class Filter:
    """Drop the records for which the predicate is true (Connect's Filter); with `negate`, those for which it is not."""

    predicate: Column | str
    negate: bool = False

    def __call__(self, df: DataFrame) -> DataFrame:
        matched = F.coalesce(_condition(self.predicate), F.lit(False))
        return df.filter(matched if self.negate else ~matched)


def topic_name_matches(pattern: str) -> Column:
    """Connect's predicate TopicNameMatches: the regular expression matches the whole name."""
    return F.regexp_like(column(TOPIC), F.lit(_whole(pattern)))


def has_header_key(name: str) -> Column:
    """Connect's predicate HasHeaderKey."""
    return F.exists(column(HEADERS), lambda header: header.getField("key") == name)


def record_is_tombstone(value: str = "value") -> Column:
    """Connect's predicate RecordIsTombstone."""
    return column(value).isNull()


def _whole(pattern: str) -> str:
    return rf"\A(?:{pattern})\z"


@dataclass(frozen=True)
class RegexRouter:
    """Records whose topic matches the whole of `regex` go to `replacement`, in which `$1` is the first group."""

    regex: str
    replacement: str

    def __call__(self, df: DataFrame) -> DataFrame:
        column_type(df, TOPIC, "RegexRouter")
        return df.withColumn(TOPIC, F.regexp_replace(column(TOPIC), _whole(self.regex), self.replacement))


@dataclass(frozen=True)
class TimestampRouter:
    """The topic's name gets the record's time: `${topic}` and `${timestamp}` in `topic_format`, in UTC."""

    topic_format: str = "${topic}-${timestamp}"
    timestamp_format: str = "yyyyMMdd"

    def __call__(self, df: DataFrame) -> DataFrame:
        column_type(df, TOPIC, "TimestampRouter")
        column_type(df, "timestamp", "TimestampRouter")
        stamp = F.date_format(_utc_wall_clock(column("timestamp")), self.timestamp_format)
        parts = re.split(r"(\$\{topic\}|\$\{timestamp\})", self.topic_format)
        values = {"${topic}": column(TOPIC), "${timestamp}": stamp}
        return df.withColumn(TOPIC, F.concat(*[values.get(part, F.lit(part)) for part in parts if part]))


@dataclass(frozen=True)
class Route:
    """Choose the topic by what a record says: the first condition that is true names it.

    `otherwise` is the topic of the rest; without it they keep the one they have, or none (and the sink's option decides).
    """

    topics: Mapping[str, Column | str]
    otherwise: str | None = None

    def __call__(self, df: DataFrame) -> DataFrame:
        if not self.topics:
            raise TransformError("Route: no topic was named")
        rest = column(TOPIC) if self.otherwise is None and TOPIC in columns_of(df) else F.lit(self.otherwise)
        chosen: Column = rest.cast("string")
        for topic, condition in reversed(list(self.topics.items())):
            chosen = F.when(_condition(condition), F.lit(topic)).otherwise(chosen)
        return df.withColumn(TOPIC, chosen)


# --------------------------------------------------------------------------------------------------------------- headers


def headers_or_none_yet(df: DataFrame) -> Column:
    """The headers so far, never null, also of a source that was read without `includeHeaders`."""
    nothing = F.array().cast(HEADERS_TYPE)
    return F.coalesce(column(HEADERS), nothing) if HEADERS in columns_of(df) else nothing


def header(key: str, value: Column) -> Column:
    """One header; a value that is not bytes is written as text."""
    return F.struct(F.lit(key).alias("key"), value.alias("value"))


def _as_bytes(kind: DataType, value: Column) -> Column:
    return value if isinstance(kind, BinaryType) else value.cast("string").cast("binary")


@dataclass(frozen=True)
class InsertHeader:
    """Add a header with a fixed text."""

    header: str
    value_literal: str

    def __call__(self, df: DataFrame) -> DataFrame:
        new = F.array(header(self.header, F.lit(self.value_literal).cast("binary")))
        return df.withColumn(HEADERS, F.concat(headers_or_none_yet(df), new).cast(HEADERS_TYPE))


@dataclass(frozen=True)
class DropHeaders:
    """Remove all headers of these names."""

    headers: Sequence[str]

    def __call__(self, df: DataFrame) -> DataFrame:
        column_type(df, HEADERS, "DropHeaders")
        return df.withColumn(HEADERS, F.filter(column(HEADERS), lambda one: ~one.getField("key").isin(*self.headers)))


Move: TypeAlias = Literal["copy", "move"]


@dataclass(frozen=True)
class HeaderFrom:
    """Copy or move fields into headers, one each."""

    fields: Sequence[str]
    headers: Sequence[str]
    operation: Move = "copy"
    of: str | None = "value"

    def __post_init__(self) -> None:
        if len(self.fields) != len(self.headers) or not self.fields:
            raise TransformError("HeaderFrom: as many headers as fields, and at least one")
        if self.operation not in ("copy", "move"):
            raise TransformError(f"HeaderFrom: no operation {self.operation!r}: it is copy or move")

    def __call__(self, df: DataFrame) -> DataFrame:
        known = fields_of(df, self.of, "HeaderFrom")
        new: list[Column] = []
        for name, key in zip(self.fields, self.headers, strict=True):
            path = resolve(known, name, "HeaderFrom")
            kind = _type_at(known, path)
            new.append(header(key, _as_bytes(kind, read(self.of, path))))
        df = df.withColumn(HEADERS, F.concat(headers_or_none_yet(df), F.array(*new)).cast(HEADERS_TYPE))
        if self.operation == "move":
            df = rewrite(df, self.of, dict.fromkeys(self.fields, _dropped), "HeaderFrom")
        return df


def _type_at(fields: StructType, path: tuple[str, ...]) -> DataType:
    kind: DataType = fields
    for name in path:
        assert isinstance(kind, StructType)
        kind = kind[name].dataType
    if isinstance(kind, StructType | ArrayType | MapType):
        raise TransformError(f"HeaderFrom: field {'.'.join(path)!r} is {kind.simpleString()}; encode it first")
    return kind
