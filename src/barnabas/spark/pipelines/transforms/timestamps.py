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


#: Parts of a pattern: text in quotes, a letter as often as it is repeated, or any other character.
_TOKEN: Final = re.compile(r"'(?:[^']|'')*'|([A-Za-z])\1*|.", re.DOTALL)
_ZONE_LETTERS: Final = "XxZzVO"
_TIME_LETTERS: Final = "aBhKkHmsSAnN"
#: Java's text for UTC for these letters of a pattern; an entry of one letter is for longer ones, too.
_ZONE_TEXTS: Final[Mapping[str, str]] = {
    "X": "Z",
    "x": "+00",
    "xx": "+0000",
    "xxx": "+00:00",
    "xxxx": "+0000",
    "xxxxx": "+00:00",
    "Z": "+0000",
    "ZZZZ": "GMT",
    "ZZZZZ": "Z",
    "z": "UTC",
    "zzzz": "Coordinated Universal Time",
    "V": "UTC",
    "O": "GMT",
}
#: A day on which no time zone changed its clocks.
_PLAIN_DAY: Final = "2003-01-15"
_US_PER_DAY: Final = 86_400_000_000


@dataclass(frozen=True)
class TimestampConverter:
    """Turn a point in time from one form into another: `string`, `unix`, `Date`, `Time` (milliseconds of the day), `Timestamp`.

    The type gives the present form: a string is read by `format`, an integer by `unix_precision`. All of it in UTC,
    whatever the session's time zone. `field=""` converts the column `of` itself.
    """

    target_type: Target
    field: str = ""
    format: str | None = None
    unix_precision: Precision = "milliseconds"
    of: str | None = None

    def __post_init__(self) -> None:
        if self.target_type not in ("string", "unix", "Date", "Time", "Timestamp"):
            raise TransformError(f"TimestampConverter: there is no target type {self.target_type!r}")
        if self.unix_precision not in _PER_SECOND:
            raise TransformError(f"TimestampConverter: there is no precision {self.unix_precision!r}")
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
                if any(token[0] in _ZONE_LETTERS for token in _tokens(self.format)):
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
                # As decimals: a float does not have all digits of nanoseconds, and rounds up to the next microsecond.
                return F.timestamp_micros(F.floor(value.cast("decimal(20,0)") / 1000).cast("bigint"))

    def _written(self, instant: Column) -> Column:
        match self.target_type:
            case "Timestamp":
                return instant
            case "string":
                return in_utc(instant, self.format or "")
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


# Spark itself goes through the time zone of the session wherever it can, in which one hour a year is missing and another one
# comes twice. The functions below do not.


def utc_wall_clock(instant: Column) -> Column:
    """Return the time of a clock in UTC at a point in time."""
    micros = F.unix_micros(instant)
    days = F.floor(micros / F.lit(_US_PER_DAY).cast("decimal(20,0)")).cast("int")
    seconds = (F.pmod(micros, F.lit(_US_PER_DAY)) / F.lit(1_000_000).cast("decimal(20,0)")).cast("decimal(18,6)")
    return _moment("1970-01-01") + F.make_dt_interval(days, F.lit(0), F.lit(0), seconds)


def in_utc(instant: Column, pattern: str) -> Column:
    """Return the text of a point in time, by a pattern of Java's, as a clock in UTC shows it."""
    clock = utc_wall_clock(instant)
    day = clock.cast("date")
    time = _moment(_PLAIN_DAY) + F.make_dt_interval(F.lit(0), F.hour(clock), F.minute(clock), _seconds(clock))
    texts: list[Column] = []
    for kind, part in _parts(pattern):
        texts.append(F.lit(part) if kind == "zone" else F.date_format(day if kind == "day" else time, part))
    return F.concat(*texts)


def _tokens(pattern: str) -> list[str]:
    return [found[0] for found in _TOKEN.finditer(pattern)]


def _parts(pattern: str) -> list[tuple[Literal["day", "time", "zone"], str]]:
    """Divide a pattern into pieces for the day, the time, or the zone; for the zone, the text to write."""
    parts: list[tuple[Literal["day", "time", "zone"], str]] = []
    kind: Literal["day", "time"] = "day"
    for token in _tokens(pattern):
        if token in "[]":
            continue  # an optional part is written
        if token[0] in _ZONE_LETTERS:
            parts.append(("zone", _ZONE_TEXTS.get(token) or _ZONE_TEXTS[token[0]]))
            continue
        if token[0].isalpha():
            kind = "time" if token[0] in _TIME_LETTERS else "day"
        if parts and parts[-1][0] == kind:
            parts[-1] = kind, parts[-1][1] + token
        else:
            parts.append((kind, token))
    return parts


def _utc_instant(wall_clock: Column) -> Column:
    days = F.unix_date(wall_clock.cast("date")).cast("bigint")
    minutes = F.hour(wall_clock) * 60 + F.minute(wall_clock)
    micros = (_seconds(wall_clock) * 1_000_000).cast("bigint")
    return F.timestamp_micros(days * F.lit(_US_PER_DAY) + minutes * F.lit(60_000_000).cast("bigint") + micros)


def _moment(day: str) -> Column:
    return F.lit(day).cast("timestamp_ntz")


def _seconds(wall_clock: Column) -> Column:
    """Return seconds with their fraction."""
    return F.extract(F.lit("SECOND"), wall_clock)
