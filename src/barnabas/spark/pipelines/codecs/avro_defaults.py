"""Defaults of a reader's schema: the values of fields that the writer did not know. fastavro returns the JSON of the schema.

By the specification: bytes are characters up to U+00FF, logical types are the numbers and bytes that they are stored as, a
record is an object whose missing fields have their own defaults, a union's default is of its first branch (since Avro 1.12 of
any).
"""

import math
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from barnabas.services.registry.values.avro import AvroType
from barnabas.spark.pipelines.codecs.avro_types import Default, Schema, field_reading
from barnabas.spark.pipelines.codecs.base import CodecError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INT32: Final = range(-(2**31), 2**31)
_INT64: Final = range(-(2**63), 2**63)


class _NotOfThisType(ValueError):
    pass


def put_in_defaults(parsed: AvroType) -> AvroType:
    """Make fastavro return a `Default` where it would return the JSON of one. Changes the schema."""
    for record in _records(parsed):
        for field in record["fields"]:
            if "default" in field and not isinstance(field["default"], Default):
                try:
                    value = _value(parsed, field["type"], field["default"])
                except _NotOfThisType as error:
                    raise CodecError(
                        f"Avro: the default of {record['name']}.{field['name']} is not valid: {error}"
                    ) from None
                fix = field_reading(parsed, field["type"])
                field["default"] = Default(value if fix is None or value is None else fix(value))
    return parsed


def _records(parsed: AvroType) -> Iterator[dict[str, Any]]:
    """Yield each record once, even if names refer to it. Inner ones come first: outer ones use their defaults as they are."""
    seen: set[int] = set()

    def within(schema: Schema) -> Iterator[dict[str, Any]]:
        if isinstance(schema, list):
            for one in schema:
                yield from within(one)
        elif isinstance(schema, dict) and id(schema) not in seen:
            seen.add(id(schema))
            for inner in ("type", "items", "values"):
                yield from within(schema.get(inner))
            if schema.get("type") in ("record", "error"):
                for field in schema["fields"]:
                    yield from within(field["type"])
                yield schema

    yield from within([parsed.schema, *parsed.named.values()])


def _value(parsed: AvroType, schema: Schema, default: Any) -> Any:
    """Return the default as fastavro would have read it."""
    if isinstance(schema, list):
        for branch in schema:
            try:
                return _value(parsed, branch, default)
            except _NotOfThisType:
                continue
        raise _NotOfThisType(f"{default!r} fits no branch of its union")
    schema = parsed.deref(schema)
    if isinstance(schema, str):
        return _primitive(schema, default)
    kind = schema["type"]
    if kind in ("record", "error"):
        return _record(parsed, schema, default)
    if kind == "array":
        return [_value(parsed, schema["items"], each) for each in _of(default, list)]
    if kind == "map":
        return {name: _value(parsed, schema["values"], each) for name, each in _of(default, dict).items()}
    if kind == "enum":
        if default not in schema["symbols"]:
            raise _NotOfThisType(f"{default!r}: use one of {', '.join(schema['symbols'])}")
        return default
    stored = _primitive("bytes", default) if kind == "fixed" else _value(parsed, kind, default)
    return _logical(schema, stored)


def _of(default: Any, kind: type) -> Any:
    if not isinstance(default, kind):
        raise _NotOfThisType(f"{default!r} is not {'an array' if kind is list else 'an object'}")
    return default


def _record(parsed: AvroType, schema: Schema, default: Any) -> dict[str, Any]:
    given, values = _of(default, dict), {}
    for field in schema["fields"]:
        name = field["name"]
        if name in given:
            values[name] = _value(parsed, field["type"], given[name])
        elif "default" in field:
            known = field["default"]
            values[name] = known if isinstance(known, Default) else _value(parsed, field["type"], known)
        else:
            raise _NotOfThisType(f"{default!r} lacks {name}, which has no default of its own")
    return values


def _primitive(kind: str, default: Any) -> Any:
    number = isinstance(default, int | float) and not isinstance(default, bool)
    match kind:
        case "null" if default is None:
            return None
        case "boolean" if isinstance(default, bool):
            return default
        case "int" | "long" if number and default == math.floor(default):
            if int(default) in (_INT32 if kind == "int" else _INT64):
                return int(default)
        case "float" | "double" if number or default in ("NaN", "Infinity", "-Infinity", "INF", "-INF"):
            return float(default)
        case "string" if isinstance(default, str):
            return default
        case "bytes" if isinstance(default, str):
            try:
                return default.encode("latin-1")
            except UnicodeEncodeError:
                raise _NotOfThisType(f"{default!r} has characters that are not bytes") from None
    raise _NotOfThisType(f"{default!r} is not of type {kind}")


def _logical(schema: Schema, stored: Any) -> Any:
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
