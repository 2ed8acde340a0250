"""The types of PostgreSQL as Debezium gives them, by oid, and their values from the texts that PostgreSQL prints. Pure.

Debezium's defaults are `time.precision.mode=adaptive` and `decimal.handling.mode=precise`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from barnabas.spark.connect import data
from barnabas.spark.connect.data import DataError, Field, Schema, unscaled_bytes
from barnabas.spark.pipelines.postgres_types import NUMERIC, PostgresType, numeric_size

_TIME: Final = "io.debezium.time."
_DATA: Final = "io.debezium.data."
DECIMALS: Final = ("precise", "double", "string")
TIMES: Final = ("adaptive", "adaptive_time_microseconds", "connect")

Parse = Callable[[str], Any]

_EPOCH: Final = datetime(1970, 1, 1)
_MICROSECOND: Final = timedelta(microseconds=1)
#: The scale that PostgreSQL shows a numeric of no size with, in Debezium's struct.
_VARIABLE: Final = Schema(
    "struct",
    name=_DATA + "VariableScaleDecimal",
    version=1,
    doc="Variable scaled decimal",
    fields=(Field("scale", data.INT32), Field("value", data.BYTES)),
)


@dataclass(frozen=True)
class Modes:
    """How a connector wants numbers and times."""

    decimals: str = "precise"
    times: str = "adaptive"


@dataclass(frozen=True)
class ColumnType:
    schema: Schema
    parse: Parse
    #: Stands for the value of a column that may not be null, where the log does not have it: in `before` of a deleted row.
    empty: Any


def type_of(kind: PostgresType | None, modes: Modes, *, optional: bool) -> ColumnType:
    """Return how a column is given. A type that has no form of its own is text, as PostgreSQL prints it."""
    if kind is None:
        return _text(optional)
    if kind.element is not None:
        inner = type_of(kind.element, modes, optional=True)
        return ColumnType(data.array(inner.schema, optional=optional), lambda text: _array(text, inner.parse), [])
    if kind.oid == NUMERIC:
        return _numeric(kind, modes, optional)
    if kind.oid in _TIMES:
        return _TIMES[kind.oid](_precision(kind), modes, optional)
    if kind.oid in _PLAIN:
        schema, parse, empty = _PLAIN[kind.oid]
        return ColumnType(schema.as_optional() if optional else schema, parse, empty)
    return _text(optional)


def _text(optional: bool) -> ColumnType:
    return ColumnType(Schema("string", optional), str, "")


def _numeric(kind: PostgresType, modes: Modes, optional: bool) -> ColumnType:
    if modes.decimals == "string":
        return _text(optional)
    if modes.decimals == "double":
        return ColumnType(Schema("float64", optional), float, 0.0)
    precision, scale = numeric_size(kind.typmod)
    if not precision:
        schema = _VARIABLE.as_optional() if optional else _VARIABLE
        return ColumnType(schema, _variable, {"scale": 0, "value": b"\0"})
    schema = data.decimal(scale, optional=optional)
    parameters = (*schema.parameters, ("connect.decimal.precision", str(precision)))
    schema = Schema("bytes", optional, data.DECIMAL, 1, parameters=parameters)
    return ColumnType(schema, _finite, Decimal(0))


def _finite(text: str) -> Decimal:
    number = Decimal(text)
    if not number.is_finite():
        raise DataError(f"numeric {text} is not a number that Connect's Decimal has: set decimal.handling.mode=string")
    return number


def _variable(text: str) -> dict[str, Any]:
    number = _finite(text)
    exponent = number.as_tuple().exponent
    scale = max(-exponent, 0) if isinstance(exponent, int) else 0
    return {"scale": scale, "value": unscaled_bytes(number, scale)}


# -- times ------------------------------------------------------------------------------------------------------------


def _precision(kind: PostgresType) -> int:
    """Return the digits of a second that a time has."""
    return kind.typmod if 0 <= kind.typmod <= 6 else 6


def _moment(text: str) -> datetime:
    if text.lstrip("-") == "infinity" or text.endswith(" BC"):
        raise DataError(f"time {text} is not in the years 1 to 9999")
    return datetime.fromisoformat(text)


def _microseconds(text: str) -> int:
    return (_moment(text) - _EPOCH) // _MICROSECOND


def _of_day(text: str) -> int:
    """Return the microseconds of a time of day. PostgreSQL has 24:00:00, too."""
    hours, minutes, seconds = text.split(":")
    return (int(hours) * 60 + int(minutes)) * 60_000_000 + int(Decimal(seconds) * 1_000_000)


def _timestamp(precision: int, modes: Modes, optional: bool) -> ColumnType:
    if modes.times == "connect":
        return ColumnType(
            data.timestamp(optional=optional), lambda text: _moment(text).replace(tzinfo=UTC), data.of_milliseconds(0)
        )
    if precision <= 3:
        return ColumnType(
            Schema("int64", optional, _TIME + "Timestamp", 1), lambda text: _microseconds(text) // 1000, 0
        )
    return ColumnType(Schema("int64", optional, _TIME + "MicroTimestamp", 1), _microseconds, 0)


def _zoned(_: int, __: Modes, optional: bool) -> ColumnType:
    def parse(text: str) -> str:
        utc = _moment(text).astimezone(UTC).replace(tzinfo=None)
        # Java leaves out zeros at the end: 12:00:00.5 and not 12:00:00.500000, but has the seconds.
        return utc.isoformat(timespec="microseconds").rstrip("0").rstrip(".") + "Z"

    return ColumnType(Schema("string", optional, _TIME + "ZonedTimestamp", 1), parse, "1970-01-01T00:00:00Z")


def _time(precision: int, modes: Modes, optional: bool) -> ColumnType:
    if modes.times == "connect":
        schema = data.time_of_day(optional=optional)
        return ColumnType(
            schema, lambda text: data.of_milliseconds(_of_day(text) // 1000).time(), data.of_milliseconds(0).time()
        )
    if precision <= 3 and modes.times == "adaptive":
        return ColumnType(Schema("int32", optional, _TIME + "Time", 1), lambda text: _of_day(text) // 1000, 0)
    return ColumnType(Schema("int64", optional, _TIME + "MicroTime", 1), _of_day, 0)


def _zoned_time(_: int, __: Modes, optional: bool) -> ColumnType:
    def parse(text: str) -> str:
        zone = re.search(r"[+-]\d\d(:\d\d)?$", text)
        moment = datetime.fromisoformat(f"2000-01-02T{text}" if zone else f"2000-01-02T{text}+00")
        return moment.astimezone(UTC).time().isoformat() + "Z"

    return ColumnType(Schema("string", optional, _TIME + "ZonedTime", 1), parse, "00:00:00Z")


def _day(_: int, modes: Modes, optional: bool) -> ColumnType:
    if modes.times == "connect":
        return ColumnType(data.day(optional=optional), lambda text: _moment(text).date(), date(1970, 1, 1))
    return ColumnType(Schema("int32", optional, _TIME + "Date", 1), lambda text: (_moment(text) - _EPOCH).days, 0)


_UNITS_US: Final[Mapping[str, Decimal]] = {
    # Debezium: a year has 365.25 days, a month the twelfth part of it.
    "year": Decimal(31_557_600_000_000),
    "mon": Decimal(2_629_800_000_000),
    "day": Decimal(86_400_000_000),
}


def _interval(_: int, __: Modes, optional: bool) -> ColumnType:
    return ColumnType(Schema("int64", optional, _TIME + "MicroDuration", 1), interval_us, 0)


def interval_us(text: str) -> int:
    """Return the microseconds of an interval in PostgreSQL's own style: `1 year 2 mons -3 days 04:05:06.7`."""
    total = Decimal(0)
    for number, unit in re.findall(r"([+-]?\d+) (year|mon|day)s?", text):
        total += int(number) * _UNITS_US[unit]
    clock = re.search(r"([+-]?)(\d+:\d\d:\d\d(?:\.\d+)?)$", text)
    if clock is not None:
        total += _of_day(clock[2]) * (-1 if clock[1] == "-" else 1)
    return int(total)


_TIMES: Final[Mapping[int, Callable[[int, Modes, bool], ColumnType]]] = {
    1082: _day,
    1083: _time,
    1114: _timestamp,
    1184: _zoned,
    1186: _interval,
    1266: _zoned_time,
}


# -- the others -------------------------------------------------------------------------------------------------------


def _boolean(text: str) -> bool:
    return text in ("t", "true")


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("\\x"))


def _real(text: str) -> float:
    return float(text)


def _named(name: str) -> tuple[Schema, Parse, Any]:
    return Schema("string", name=_DATA + name, version=1), str, ""


_PLAIN: Final[Mapping[int, tuple[Schema, Parse, Any]]] = {
    16: (data.BOOLEAN, _boolean, False),
    17: (data.BYTES, _bytes, b""),
    20: (data.INT64, int, 0),
    21: (Schema("int16"), int, 0),
    23: (data.INT32, int, 0),
    26: (data.INT64, int, 0),  # oid
    700: (Schema("float32"), _real, 0.0),
    701: (Schema("float64"), _real, 0.0),
    114: _named("Json"),
    3802: _named("Json"),  # jsonb
    142: _named("Xml"),
    2950: _named("Uuid"),
}


def value_of(column: ColumnType, text: str, where: str) -> Any:
    """:raises DataError: if the value has no form in Debezium's type."""
    try:
        return column.parse(text)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    except (ValueError, InvalidOperation, OverflowError) as error:
        raise DataError(
            f"{where}: {text[:80]!r} is not a {column.schema.name or column.schema.type}: {error}"
        ) from None


_ELEMENT: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|([^,{}]+)|([{},])')


def _array(text: str, parse: Parse) -> list[Any]:
    """Return the elements of an array. :raises DataError: for one of several dimensions."""
    found: list[Any] = []
    depth = 0
    for quoted, bare, mark in _ELEMENT.findall(text.partition("=")[2] if text.startswith("[") else text):
        if mark == "{":
            depth += 1
            if depth > 1:
                raise DataError("an array of several dimensions has no form in Connect")
        elif bare:
            found.append(None if bare == "NULL" else parse(bare))
        elif not mark:
            found.append(parse(re.sub(r"\\(.)", r"\1", quoted)))
    return found
