"""The data of Kafka Connect: schemas, and records between converters, transforms and connectors. Pure.

A value with a schema of type struct is a dict with the schema's fields; a value without a schema is what JSON has (dict, list,
str, int, float, bool, None) or bytes. The logical types are Python's: Decimal, date, time, and datetime in UTC.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, Self, cast

PACKAGE: Final = "org.apache.kafka.connect.data."
DECIMAL: Final = PACKAGE + "Decimal"
DATE: Final = PACKAGE + "Date"
TIME: Final = PACKAGE + "Time"
TIMESTAMP: Final = PACKAGE + "Timestamp"

INTEGERS: Final[Mapping[str, int]] = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
FLOATS: Final = ("float32", "float64")
PRIMITIVES: Final = (*INTEGERS, *FLOATS, "boolean", "string", "bytes")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY: Final = date(1970, 1, 1)


class DataError(ValueError):
    """A record that a converter, a transform or a connector cannot use (Connect's DataException)."""


@dataclass(frozen=True)
class Schema:
    #: One of `PRIMITIVES`, array, map or struct.
    type: str
    optional: bool = False
    name: str | None = None
    version: int | None = None
    doc: str | None = None
    default: Any = field(default=None, hash=False)
    parameters: tuple[tuple[str, str], ...] = ()
    fields: "tuple[Field, ...]" = ()
    #: Schema of an array's elements or a map's values.
    values: "Schema | None" = None
    keys: "Schema | None" = None

    def field(self, name: str) -> "Field | None":
        return next((each for each in self.fields if each.name == name), None)

    def parameter(self, name: str) -> str | None:
        return dict(self.parameters).get(name)

    def as_optional(self) -> "Schema":
        return replace(self, optional=True)

    @property
    def scale(self) -> int:
        return int(self.parameter("scale") or 0)


@dataclass(frozen=True)
class Field:
    name: str
    schema: Schema


STRING: Final = Schema("string")
OPTIONAL_STRING: Final = Schema("string", optional=True)
BYTES: Final = Schema("bytes")
OPTIONAL_BYTES: Final = Schema("bytes", optional=True)
INT32: Final = Schema("int32")
INT64: Final = Schema("int64")
BOOLEAN: Final = Schema("boolean")


def decimal(scale: int, *, optional: bool = False) -> Schema:
    return Schema("bytes", optional, DECIMAL, 1, parameters=(("scale", str(scale)),))


def day(*, optional: bool = False) -> Schema:
    return Schema("int32", optional, DATE, 1)


def time_of_day(*, optional: bool = False) -> Schema:
    return Schema("int32", optional, TIME, 1)


def timestamp(*, optional: bool = False) -> Schema:
    return Schema("int64", optional, TIMESTAMP, 1)


def struct(*fields: tuple[str, Schema], optional: bool = False, name: str | None = None) -> Schema:
    return Schema("struct", optional, name, fields=tuple(Field(*each) for each in fields))


def array(of: Schema, *, optional: bool = False) -> Schema:
    return Schema("array", optional, values=of)


def mapping(keys: Schema, values: Schema, *, optional: bool = False) -> Schema:
    return Schema("map", optional, keys=keys, values=values)


@dataclass(frozen=True)
class Header:
    key: str
    value: Any
    schema: Schema | None = None


@dataclass(frozen=True)
class Record:
    """A record in Connect. A record of a source connector has no offset."""

    topic: str
    value: Any = None
    value_schema: Schema | None = None
    key: Any = None
    key_schema: Schema | None = None
    headers: tuple[Header, ...] = ()
    #: Milliseconds since 1970.
    timestamp: int | None = None
    partition: int | None = None
    offset: int | None = None

    def with_value(self, value: Any, schema: Schema | None) -> Self:
        return replace(self, value=value, value_schema=schema)

    def with_key(self, key: Any, schema: Schema | None) -> Self:
        return replace(self, key=key, key_schema=schema)


# -- logical types ----------------------------------------------------------------------------------------------------


def to_milliseconds(moment: datetime) -> int:
    """Return the milliseconds since 1970, cut as Java's Date cuts them."""
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def of_milliseconds(value: int) -> datetime:
    try:
        return _EPOCH + timedelta(milliseconds=value)
    except OverflowError:
        raise DataError(f"{value} ms since 1970 is not in the years 1 to 9999") from None


def to_primitive(schema: Schema | None, value: Any) -> Any:
    """Return the value of a logical type as Connect's converters write it: unscaled bytes, days, milliseconds."""
    if schema is None or value is None:
        return value
    match schema.name:
        case n if n == DECIMAL:
            return unscaled_bytes(value, schema.scale)
        case n if n == DATE:
            return (value - _DAY).days
        case n if n == TIME:
            return ((value.hour * 60 + value.minute) * 60 + value.second) * 1000 + value.microsecond // 1000
        case n if n == TIMESTAMP:
            return to_milliseconds(value)
    return value


def of_primitive(schema: Schema, value: Any) -> Any:
    """Return the value of a logical type from what a converter read."""
    if value is None:
        return None
    match schema.name:
        case n if n == DECIMAL:
            return Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-schema.scale)
        case n if n == DATE:
            try:
                return _DAY + timedelta(days=value)
            except OverflowError:
                raise DataError(f"{value} days since 1970 is not in the years 1 to 9999") from None
        case n if n == TIME:
            if not 0 <= value < 86_400_000:
                raise DataError(f"{value} is not a time of a day in milliseconds")
            return (_EPOCH + timedelta(milliseconds=value)).time()
        case n if n == TIMESTAMP:
            return of_milliseconds(value)
    return value


def unscaled_bytes(value: Decimal, scale: int) -> bytes:
    """Return a decimal as Java's `BigInteger.toByteArray` has its digits: big-endian, in as few bytes as hold the sign."""
    number = value.scaleb(scale)
    if number != number.to_integral_value():
        raise DataError(f"decimal {value} has more than {scale} digits behind the point")
    whole = int(number)
    return whole.to_bytes((whole + (whole < 0)).bit_length() // 8 + 1, "big", signed=True)


# -- checks and guesses -----------------------------------------------------------------------------------------------

_PYTHON: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(INTEGERS, (int,)),
    **dict.fromkeys(FLOATS, (float, int)),
    "boolean": (bool,),
    "string": (str,),
    "bytes": (bytes,),
    "array": (list,),
    "map": (dict,),
    "struct": (dict,),
}
_LOGICAL: Final[Mapping[str, type]] = {DECIMAL: Decimal, DATE: date, TIME: time, TIMESTAMP: datetime}


def validated(schema: Schema, value: Any, where: str = "") -> Any:
    """Return the value, with defaults put in for missing ones. Raises `DataError` if it does not have the schema."""
    place = f" of field {where}" if where else ""
    if value is None:
        if schema.default is not None:
            return schema.default
        if not schema.optional:
            raise DataError(f"null is not valid{place}: the schema is not optional")
        return None
    logical = _LOGICAL.get(schema.name or "")
    wanted: tuple[type, ...] = _PYTHON[schema.type] if logical is None else (logical,)
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        raise DataError(f"a value{place} is {type(value).__name__}, and its schema says {schema.name or schema.type}")
    bits = INTEGERS.get(schema.type)
    if bits is not None and isinstance(value, int) and not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise DataError(f"{value}{place} does not fit into {schema.type}")
    prefix, inner = f"{where}." if where else "", cast(Any, value)
    if schema.type == "struct":
        return {each.name: validated(each.schema, inner.get(each.name), prefix + each.name) for each in schema.fields}
    if schema.type == "array" and schema.values is not None:
        return [validated(schema.values, each, f"{where}[]") for each in inner]
    if schema.type == "map" and schema.values is not None:
        return {key: validated(schema.values, each, f"{where}[]") for key, each in inner.items()}
    return value


def schema_of(value: Any) -> Schema | None:
    """Return the schema that Connect gives a literal (`Values.inferSchema`)."""
    match value:
        case bool():
            return BOOLEAN
        case int():
            return INT64
        case float():
            return Schema("float64")
        case str():
            return STRING
        case bytes():
            return BYTES
        case Decimal():
            exponent = value.as_tuple().exponent
            return decimal(-exponent if isinstance(exponent, int) else 0)
        case datetime():
            return timestamp()
        case date():
            return day()
        case time():
            return time_of_day()
        case list():
            kinds = {schema_of(each) for each in value}
            return array(kinds.pop()) if len(kinds) == 1 and None not in kinds else None  # type: ignore[arg-type]
        case dict():
            kinds = {schema_of(each) for each in value.values()}
            return mapping(STRING, kinds.pop()) if len(kinds) == 1 and None not in kinds else None  # type: ignore[arg-type]
    return None
