"""Values of Avro from JSON. Pure.

By the specification of defaults: bytes are characters up to U+00FF, logical types are the numbers and bytes that they are
stored as, a record is an object whose missing fields have their own defaults, a union's value is of the first branch that fits.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from barnabas.base.names import did_you_mean
from barnabas.services.registry.values.avro import AvroType

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INT32: Final = range(-(2**31), 2**31)
_INT64: Final = range(-(2**63), 2**63)


class NotOfThisType(ValueError):
    """The JSON does not fit the schema."""


@dataclass(frozen=True, slots=True)
class FromJson:
    """Makes the values that fastavro would have read."""

    parsed: AvroType

    def value(self, schema: Any, given: Any) -> Any:
        """:raises NotOfThisType: if it does not fit."""
        if isinstance(schema, list):
            return self.branch(schema, given)[1]
        schema = self.parsed.deref(schema)
        if isinstance(schema, str):
            return _primitive(schema, given)
        kind = schema["type"]
        if kind in ("record", "error"):
            return self.record(schema, given)
        if kind == "array":
            return [self.value(schema["items"], each) for each in _of(given, list)]
        if kind == "map":
            return {name: self.value(schema["values"], each) for name, each in _of(given, dict).items()}
        if kind == "enum":
            if given not in schema["symbols"]:
                raise NotOfThisType(f"{given!r}: use one of {', '.join(schema['symbols'])}")
            return given
        stored = _primitive("bytes", given) if kind == "fixed" else self.value(kind, given)
        return self.logical(schema, stored)

    def branch(self, schemas: Sequence[Any], given: Any) -> tuple[Any, Any]:
        """Return the branch of a union that it fits, and the value."""
        for each in schemas:
            try:
                return each, self.value(each, given)
            except NotOfThisType:
                continue
        raise NotOfThisType(f"{given!r} fits no branch of its union")

    def record(self, schema: Mapping[str, Any], given: Any) -> dict[str, Any]:
        present, values = _of(given, dict), {}
        for field in schema["fields"]:
            name = field["name"]
            if name in present:
                values[name] = self.value(field["type"], present[name])
            elif "default" in field:
                values[name] = self.default(field)
            else:
                raise NotOfThisType(f"{given!r} lacks {name}, which has no default of its own")
        return values

    def default(self, field: Mapping[str, Any]) -> Any:
        return self.value(field["type"], field["default"])

    def logical(self, schema: Mapping[str, Any], stored: Any) -> Any:
        match schema.get("logicalType"):
            case "decimal":
                return Decimal(int.from_bytes(stored, "big", signed=True)).scaleb(-int(schema.get("scale", 0)))
            case "date":
                return date(1970, 1, 1) + timedelta(days=stored)
            case "timestamp-millis":
                return _EPOCH + timedelta(milliseconds=stored)
            case "timestamp-micros":
                return _EPOCH + timedelta(microseconds=stored)
            case "local-timestamp-millis":
                return (_EPOCH + timedelta(milliseconds=stored)).replace(tzinfo=None)
            case "local-timestamp-micros":
                return (_EPOCH + timedelta(microseconds=stored)).replace(tzinfo=None)
        return stored


class Typed(FromJson):
    """Makes values for fastavro to write from JSON that a person typed: logical types are also what people read (a date, a
    decimal number), and the branch of a union may be named, as in Avro's JSON encoding: `{"string": "x"}`."""

    __slots__ = ()

    def value(self, schema: Any, given: Any) -> Any:
        if isinstance(schema, list):
            branch, value = self.branch(schema, given)
            known = self.parsed.deref(branch)
            # fastavro takes the branch of a record as a pair.
            return (known["name"], value) if isinstance(known, dict) and known.get("type") == "record" else value
        known = self.parsed.deref(schema)
        read = _AS_TEXT.get(known.get("logicalType", "")) if isinstance(known, dict) else None
        if read is not None and (isinstance(given, str) or read is _decimal):
            try:
                return read(given)
            except (ValueError, InvalidOperation):
                raise NotOfThisType(f"{given!r} is not a {known['logicalType']}") from None
        return FromJson.value(self, schema, given)

    def branch(self, schemas: Sequence[Any], given: Any) -> tuple[Any, Any]:
        if isinstance(given, dict) and len(given) == 1:
            [(name, inner)] = given.items()
            for each in schemas:
                if name in _names(self.parsed.deref(each)):
                    return each, self.value(each, inner)
        others = [each for each in schemas if each != "null"]
        if given is not None and len(others) == 1:
            return others[0], self.value(others[0], given)  # its error says more than "no branch"
        return FromJson.branch(self, schemas, given)

    def record(self, schema: Mapping[str, Any], given: Any) -> dict[str, Any]:
        fields = {field["name"]: field for field in schema["fields"]}
        for name in _of(given, dict):
            if name not in fields:
                raise NotOfThisType(f"{schema['name']} has no field {name}{did_you_mean(name, fields)}")
        values = {}
        for name, field in fields.items():
            if name not in given and "default" not in field:
                raise NotOfThisType(f"the field {name} is missing")
            try:
                values[name] = self.value(field["type"], given[name]) if name in given else self.default(field)
            except NotOfThisType as error:
                raise NotOfThisType(f"{name}: {error}") from None
        return values

    def logical(self, schema: Mapping[str, Any], stored: Any) -> Any:
        return stored


def _names(schema: Any) -> tuple[str, ...]:
    """Return how Avro's JSON encoding may name a branch."""
    if isinstance(schema, str):
        return (schema,)
    name = schema.get("name", schema["type"])
    return (name, name.rpartition(".")[2])


def _of(given: Any, kind: type) -> Any:
    if not isinstance(given, kind):
        raise NotOfThisType(f"{given!r} is not {'an array' if kind is list else 'an object'}")
    return given


def _primitive(kind: str, given: Any) -> Any:
    number = isinstance(given, int | float) and not isinstance(given, bool)
    match kind:
        case "null" if given is None:
            return None
        case "boolean" if isinstance(given, bool):
            return given
        case "int" | "long" if number and given == math.floor(given):
            if int(given) in (_INT32 if kind == "int" else _INT64):
                return int(given)
        case "float" | "double" if number or given in ("NaN", "Infinity", "-Infinity", "INF", "-INF"):
            return float(given)
        case "string" if isinstance(given, str):
            return given
        case "bytes" if isinstance(given, str):
            try:
                return given.encode("latin-1")
            except UnicodeEncodeError:
                raise NotOfThisType(f"{given!r} has characters that are not bytes") from None
    raise NotOfThisType(f"{given!r} is not of type {kind}")


def _decimal(given: Any) -> Decimal:
    if not isinstance(given, str | int | float) or isinstance(given, bool):
        raise ValueError
    return Decimal(str(given))


def _instant(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


#: Logical types as people write them.
_AS_TEXT: Final[dict[str, Callable[[Any], Any]]] = {
    "decimal": _decimal,
    "date": date.fromisoformat,
    "time-millis": time.fromisoformat,
    "time-micros": time.fromisoformat,
    "timestamp-millis": _instant,
    "timestamp-micros": _instant,
    "local-timestamp-millis": datetime.fromisoformat,
    "local-timestamp-micros": datetime.fromisoformat,
}
