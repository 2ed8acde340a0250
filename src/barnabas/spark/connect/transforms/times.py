"""Transforms of times. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from typing import Any, Final

from barnabas.spark.connect import java_time
from barnabas.spark.connect.data import (
    DataError,
    Field,
    Record,
    Schema,
    day,
    of_milliseconds,
    time_of_day,
    timestamp,
    to_milliseconds,
)
from barnabas.spark.connect.transforms.base import OfSide, Transform, with_fields

TARGETS: Final = ("string", "unix", "Date", "Time", "Timestamp")
#: Units of a unix time in a second.
PRECISIONS: Final[Mapping[str, int]] = {
    "seconds": 1,
    "milliseconds": 1_000,
    "microseconds": 1_000_000,
    "nanoseconds": 1_000_000_000,
}
_TYPES: Final[Mapping[str, Schema]] = {
    "string": Schema("string"),
    "unix": Schema("int64"),
    "Date": day(),
    "Time": time_of_day(),
    "Timestamp": timestamp(),
}


@dataclass(frozen=True)
class TimestampConverter(OfSide):
    target: str = "Timestamp"
    #: "": the whole key or value.
    path: tuple[str, ...] = ()
    format: str | None = None
    precision: str = "milliseconds"

    def __call__(self, record: Record) -> Record | None:
        schema, value = self.part(record)
        return self.put(record, self._value(value, self.path), self._schema(schema, self.path))

    def _value(self, value: Any, path: tuple[str, ...]) -> Any:
        if not path:
            return self._converted(value)
        if not isinstance(value, dict) or path[0] not in value:
            return value
        return value | {path[0]: self._value(value[path[0]], path[1:])}

    def _schema(self, schema: Schema | None, path: tuple[str, ...]) -> Schema | None:
        if schema is None:
            return None
        if not path:
            made = _TYPES[self.target]
            return made.as_optional() if schema.optional else made
        fields = tuple(
            Field(each.name, self._schema(each.schema, path[1:]) or each.schema) if each.name == path[0] else each
            for each in schema.fields
        )
        return with_fields(schema, fields)

    def _converted(self, value: Any) -> Any:
        if value is None:
            return None
        moment = self._moment(value)
        match self.target:
            case "string":
                return java_time.format_time(self.format or "", moment)
            case "unix":
                return to_milliseconds(moment) * PRECISIONS[self.precision] // 1_000
            case "Date":
                return moment.date()
            case "Time":
                return moment.time()
        return moment

    def _moment(self, value: Any) -> datetime:
        """Return the time, which Connect has in milliseconds."""
        match value:
            case datetime():
                return value
            case date():
                return of_milliseconds(0).replace(year=value.year, month=value.month, day=value.day)
            case time():
                return datetime.combine(of_milliseconds(0).date(), value, of_milliseconds(0).tzinfo)
            case int() if not isinstance(value, bool):
                return of_milliseconds(value * 1_000 // PRECISIONS[self.precision])
            case str() if self.format is not None:
                try:
                    return java_time.parse_time(self.format, value)
                except (ValueError, OverflowError) as error:
                    raise DataError(f"TimestampConverter: {error}") from None
        raise DataError(f"TimestampConverter: {value!r} is not a time that it reads")


@dataclass(frozen=True)
class TimestampRouter(Transform):
    topic_format: str = "${topic}-${timestamp}"
    timestamp_format: str = "yyyyMMdd"

    def __call__(self, record: Record) -> Record | None:
        if record.timestamp is None:
            raise DataError(f"TimestampRouter: a record of {record.topic} has no timestamp")
        stamp = java_time.format_time(self.timestamp_format, of_milliseconds(record.timestamp))
        topic = self.topic_format.replace("${topic}", record.topic).replace("${timestamp}", stamp)
        return replace(record, topic=topic)
