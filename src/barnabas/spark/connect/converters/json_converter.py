"""Connect's JsonConverter: JSON with the schema in each record (`{"schema": …, "payload": …}`) or without one. Pure."""

import base64
import binascii
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final

from barnabas.base import json_reader
from barnabas.spark.connect.converters.base import Converter, Typed
from barnabas.spark.connect.data import (
    DECIMAL,
    FLOATS,
    PRIMITIVES,
    DataError,
    Field,
    Schema,
    of_primitive,
    schema_of,
    to_primitive,
    unscaled_bytes,
    validated,
)

#: Names of types in JSON that are not those of `Schema.type`.
_FROM_JSON: Final = {"float": "float32", "double": "float64"}
_TO_JSON: Final = {"float32": "float", "float64": "double"}
#: As Jackson writes them: JSON has no such numbers.
_NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")
_SCHEMAS_CACHED: Final = 1000


@dataclass(frozen=True)
class JsonConverter(Converter):
    #: Whether a record has its schema with it (`schemas.enable`).
    with_schemas: bool = True
    #: Decimals as JSON numbers rather than Base64 (`decimal.format`).
    decimal_numbers: bool = False
    #: Whether null becomes the default of its field (`replace.null.with.default`).
    nulls_are_defaults: bool = True

    def to_connect(self, topic: str, data: bytes | None) -> Typed:
        if data is None:
            return Typed(None, None)
        if not self.with_schemas:
            return Typed(None, plain(read_json(data)))
        document = read_json(data, exact=True)
        if not isinstance(document, dict) or document.keys() != {"schema", "payload"}:
            raise DataError(
                'JsonConverter with schemas.enable requires "schema" and "payload" fields and may not contain additional '
                "fields. If you are trying to deserialize plain JSON data, set schemas.enable=false in your converter "
                "configuration."
            )
        if document["schema"] is None:
            return Typed(None, plain(document["payload"]))
        schema = schema_of_json(json.dumps(document["schema"], default=float))
        return Typed(schema, self.value_of(schema, document["payload"]))

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        if schema is None and value is None:
            return None
        payload = self.payload_of(schema, value)
        if not self.with_schemas:
            return _dumped(payload)
        return _dumped({"schema": None if schema is None else json_of_schema(schema), "payload": payload})

    # -- values -----------------------------------------------------------------------------------------------------

    def value_of(self, schema: Schema, payload: Any, where: str = "") -> Any:
        """Return the value of a payload of JSON."""
        if payload is None:
            if schema.default is not None and self.nulls_are_defaults:
                return schema.default
            if not schema.optional:
                raise DataError(f"null is not valid{_place(where)}: the schema is not optional")
            return None
        if schema.name == DECIMAL:
            return _decimal_of(schema, payload, where)
        read = self._of(schema, payload, where)
        return of_primitive(schema, read) if schema.name else read

    def _of(self, schema: Schema, payload: Any, where: str) -> Any:
        prefix = f"{where}." if where else ""
        match schema.type:
            case "struct" if isinstance(payload, dict):
                return {
                    each.name: self.value_of(each.schema, payload.get(each.name), prefix + each.name)
                    for each in schema.fields
                }
            case "array" if isinstance(payload, list) and schema.values is not None:
                return [self.value_of(schema.values, each, f"{where}[]") for each in payload]
            case "map" if schema.values is not None and schema.keys is not None:
                items: Any = payload.items() if isinstance(payload, dict) else payload
                keys = schema.keys
                return {
                    self.value_of(keys, key, where) if keys.type != "string" else key: self.value_of(
                        schema.values, each, f"{where}[]"
                    )
                    for key, each in items
                }
            case "bytes" if isinstance(payload, str):
                try:
                    return base64.b64decode(payload, validate=True)
                except binascii.Error:
                    raise DataError(f"{payload[:40]!r}{_place(where)} is not Base64, which bytes are in JSON") from None
            case kind if kind in FLOATS and isinstance(payload, int | Decimal) and not isinstance(payload, bool):
                return float(payload)
            case kind if kind in FLOATS and payload in _NOT_FINITE:
                return float(payload)
            case kind if kind in PRIMITIVES and kind != "bytes":
                return validated(Schema(kind), payload, where)
        raise DataError(f"{type(payload).__name__}{_place(where)} is not valid: its schema says {schema.type}")

    def payload_of(self, schema: Schema | None, value: Any) -> Any:
        """Return the value as JSON has it."""
        if schema is None:
            return _plain_payload(value)
        if value is None:
            if schema.default is not None and self.nulls_are_defaults:
                return self.payload_of(schema, schema.default)
            if not schema.optional:
                raise DataError("null is not valid: the schema is not optional")
            return None
        if schema.name == DECIMAL:
            if self.decimal_numbers:
                return value
            return base64.b64encode(unscaled_bytes(value, schema.scale)).decode()
        if schema.name:
            value = to_primitive(schema, value)
        match schema.type:
            case "struct":
                return {each.name: self.payload_of(each.schema, value.get(each.name)) for each in schema.fields}
            case "array":
                return [self.payload_of(schema.values, each) for each in value]
            case "map" if schema.keys is not None and schema.keys.type == "string":
                return {key: self.payload_of(schema.values, each) for key, each in value.items()}
            case "map":
                return [
                    [self.payload_of(schema.keys, key), self.payload_of(schema.values, each)]
                    for key, each in value.items()
                ]
            case "bytes":
                return base64.b64encode(value).decode()
            case kind if kind in FLOATS:
                return _finite_or_text(value)
        return value


def _finite_or_text(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _dumped(document: Any) -> bytes:
    try:
        text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    except TypeError:
        text = _text(document)
    return text.encode()


def _text(document: Any) -> str:
    """Print a document that has Decimals, which Python's encoder does not print with all their digits."""
    match document:
        case Decimal():
            return f"{document:f}"
        case dict():
            return (
                "{"
                + ",".join(f"{json.dumps(key, ensure_ascii=False)}:{_text(each)}" for key, each in document.items())
                + "}"
            )
        case list():
            return "[" + ",".join(map(_text, document)) + "]"
    return json.dumps(document, ensure_ascii=False)


def read_json(data: bytes, *, exact: bool = False) -> Any:
    """Parse JSON. `exact`: numbers with a point are Decimals, which have all their digits."""
    try:
        return json_reader.read(data, parse_float=Decimal) if exact else json_reader.read(data)
    except json_reader.BadJson as error:
        raise DataError(f"not JSON: {error}") from None


def plain(document: Any) -> Any:
    """Check data without a schema: numbers must be Java's long or double."""
    match document:
        case bool() | str() | float() | None:
            return document
        case Decimal():
            return float(document)
        case int():
            if not -(1 << 63) <= document < 1 << 63:
                raise DataError(f"{document} does not fit into int64")
            return document
        case list():
            return [plain(each) for each in document]
        case dict():
            return {key: plain(each) for key, each in document.items()}
    raise DataError(f"{type(document).__name__} is not of JSON")


def _plain_payload(value: Any) -> Any:
    match value:
        case bool() | str() | int() | None:
            return value
        case float():
            return _finite_or_text(value)
        case bytes():
            return base64.b64encode(value).decode()
        case Decimal():
            exponent = value.as_tuple().exponent
            return base64.b64encode(unscaled_bytes(value, -exponent if isinstance(exponent, int) else 0)).decode()
        case dict():
            return {str(key): _plain_payload(each) for key, each in value.items()}
        case list():
            return [_plain_payload(each) for each in value]
    return to_primitive(schema_of(value), value)


def _decimal_of(schema: Schema, payload: Any, where: str) -> Decimal:
    if isinstance(payload, str):
        try:
            number = int.from_bytes(base64.b64decode(payload, validate=True), "big", signed=True)
        except binascii.Error:
            raise DataError(f"{payload[:40]!r}{_place(where)} is not Base64, which a Decimal is in JSON") from None
        return Decimal(number).scaleb(-schema.scale)
    if isinstance(payload, bool) or not isinstance(payload, int | float | Decimal):
        raise DataError(f"{type(payload).__name__}{_place(where)} is not a Decimal")
    try:
        return Decimal(str(payload)).quantize(Decimal(1).scaleb(-schema.scale))
    except InvalidOperation:
        raise DataError(f"{payload}{_place(where)} has more digits than a Decimal of scale {schema.scale}") from None


def _place(where: str) -> str:
    return f" of field {where}" if where else ""


# -- schemas ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=_SCHEMAS_CACHED)
def schema_of_json(text: str) -> Schema:
    """Return the schema of an envelope. `text`: its JSON, the key of the cache."""
    return _schema(json.loads(text))


def _schema(document: Any) -> Schema:
    if not isinstance(document, dict) or not isinstance(document.get("type"), str):
        raise DataError("a schema in JSON is an object with a type")
    kind = _FROM_JSON.get(document["type"], document["type"])
    shared: dict[str, Any] = {
        "optional": bool(document.get("optional", False)),
        "name": document.get("name"),
        "version": document.get("version"),
        "doc": document.get("doc"),
        "parameters": tuple((str(key), str(value)) for key, value in (document.get("parameters") or {}).items()),
    }
    if kind == "struct":
        fields = document.get("fields")
        if not isinstance(fields, list) or not all(isinstance(each, dict) and "field" in each for each in fields):
            raise DataError("a struct in JSON has fields, each with a name in `field`")
        made = Schema("struct", **shared, fields=tuple(Field(str(each["field"]), _schema(each)) for each in fields))
    elif kind == "array":
        made = Schema("array", **shared, values=_schema(document.get("items")))
    elif kind == "map":
        made = Schema("map", **shared, keys=_schema(document.get("keys")), values=_schema(document.get("values")))
    elif kind in PRIMITIVES:
        made = Schema(kind, **shared)
    else:
        raise DataError(f"unknown type {document['type']!r} in a schema")
    default = document.get("default")
    if default is None:
        return made
    return Schema(kind, **shared, fields=made.fields, values=made.values, keys=made.keys,
                  default=JsonConverter().value_of(made, default))  # fmt: skip


def json_of_schema(schema: Schema) -> Mapping[str, Any]:
    """Return a schema as an envelope has it, with the members in the order of Connect."""
    made: dict[str, Any] = {"type": _TO_JSON.get(schema.type, schema.type)}
    if schema.type == "array" and schema.values is not None:
        made["items"] = json_of_schema(schema.values)
    elif schema.type == "map" and schema.keys is not None and schema.values is not None:
        made |= {"keys": json_of_schema(schema.keys), "values": json_of_schema(schema.values)}
    elif schema.type == "struct":
        made["fields"] = [{**json_of_schema(each.schema), "field": each.name} for each in schema.fields]
    made["optional"] = schema.optional
    for name in ("name", "version", "doc"):
        if (value := getattr(schema, name)) is not None:
            made[name] = value
    if schema.parameters:
        made["parameters"] = dict(schema.parameters)
    if schema.default is not None:
        made["default"] = JsonConverter().payload_of(schema, schema.default)
    return made
