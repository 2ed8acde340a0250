"""Transforms between the forms of a timestamp."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    DateType,
    IntegralType,
    StringType,
    StructField,
    TimestampNTZType,
    TimestampType,
)

from barnabas.spark.pipelines._fields import (
    Named,
    TransformError,
    column,
    column_type,
    rewrite,
)

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
                return F.date_format(utc_wall_clock(instant), self.format or "")
            case "Date":
                return utc_wall_clock(instant).cast("date")
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


def utc_wall_clock(instant: Column) -> Column:
    """A point in time as a clock in UTC shows it."""
    return F.convert_timezone(F.current_timezone(), F.lit("UTC"), instant.cast("timestamp_ntz"))


def _utc_instant(wall_clock: Column) -> Column:
    epoch = F.lit("1970-01-01").cast("timestamp_ntz")
    return F.timestamp_micros(F.timestamp_diff("MICROSECOND", epoch, wall_clock))
