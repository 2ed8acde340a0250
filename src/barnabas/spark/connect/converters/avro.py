"""Confluent's AvroConverter: Avro in the wire format of a schema registry.

Schemas map as Confluent's AvroData has it: a record is a struct with the record's full name, `[null, T]` is an optional T, an
enum is a string, `connect.*` members keep what Avro has no word for.
"""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from barnabas.services.registry import wire
from barnabas.services.registry.values.avro import AvroType, json_of, parse, read
from barnabas.spark.connect.converters.base import Converter, Typed
from barnabas.spark.connect.data import (
    DATE,
    DECIMAL,
    TIME,
    TIMESTAMP,
    DataError,
    Field,
    Schema,
    of_primitive,
    schema_of,
    to_primitive,
)
from barnabas.spark.pipelines.codecs.registry import RegisteredSchema, SchemaRegistry, UnknownSchema

_SCHEMAS_CACHED: Final = 1000
_NAMESPACE: Final = "io.confluent.connect.avro"
_DEFAULT_NAME: Final = "ConnectDefault"
_TO_AVRO: Final = {
    "int8": "int", "int16": "int", "int32": "int", "int64": "long", "float32": "float", "float64": "double",
    "boolean": "boolean", "string": "string", "bytes": "bytes",
}  # fmt: skip
_OF_AVRO: Final = {
    "int": "int32", "long": "int64", "float": "float32", "double": "float64", "boolean": "boolean", "string": "string",
    "bytes": "bytes", "fixed": "bytes", "enum": "string",
}  # fmt: skip
_LOGICAL: Final[Mapping[str, str]] = {
    "decimal": DECIMAL,
    "date": DATE,
    "time-millis": TIME,
    "timestamp-millis": TIMESTAMP,
}
_LOGICAL_OF: Final = {name: logical for logical, name in _LOGICAL.items()}


@dataclass(frozen=True)
class AvroConverter(Converter):
    registry: SchemaRegistry
    is_key: bool
    #: Whether writing registers schemas; otherwise they must be registered already.
    registers: bool = True

    def to_connect(self, topic: str, data: bytes | None) -> Typed:
        if data is None:
            return Typed(None, None)
        try:
            schema_id, payload = wire.unframe(data)
            known = _known(self.registry, schema_id)
            value = read(payload, known.avro)
        except (ValueError, LookupError, EOFError, TypeError, UnknownSchema) as error:
            raise DataError(f"not Avro of a registered schema: {error}") from None
        return Typed(known.schema, _value_of(known.schema, value))

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        if value is None and schema is None:
            return None
        schema = schema or schema_of(value)
        if schema is None:
            raise DataError("Avro needs a schema: these data have none")
        subject = f"{topic}-{'key' if self.is_key else 'value'}"
        text, parsed = _written(schema)
        schema_id = _registered(self.registry, subject, text, registers=self.registers)
        out = io.BytesIO()
        import fastavro

        try:
            fastavro.schemaless_writer(out, parsed.schema, _payload_of(schema, value))
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            raise DataError(f"cannot be written as Avro: {error}") from None
        return wire.frame(schema_id, out.getvalue())


@dataclass(frozen=True)
class _Known:
    avro: AvroType
    schema: Schema


@lru_cache(maxsize=_SCHEMAS_CACHED)
def _known(registry: SchemaRegistry, schema_id: int) -> _Known:
    found = registry.schema(schema_id)
    if found.kind != "AVRO":
        raise DataError(f"schema {schema_id} is {found.kind}, not AVRO")
    documents = [json_of(text) for text in (*registry.resolve(found), found.text)]
    named: dict[str, Any] = {}
    schema = None
    for document in documents:
        schema = schema_of_avro(document, named)
    assert schema is not None
    return _Known(parse([_without_logical(document) for document in documents]), schema)


def _without_logical(document: Any) -> Any:
    """Remove the logical types: values are read as Avro stores them, and `of_primitive` turns those that Connect has."""
    if isinstance(document, list):
        return [_without_logical(each) for each in document]
    if isinstance(document, dict):
        return {key: _without_logical(each) for key, each in document.items() if key != "logicalType"}
    return document


def schema_of_avro(document: Any, named: dict[str, Any], namespace: str = "") -> Schema:
    """Return Connect's schema of an Avro schema. `named`: the types that were defined before; gets those of `document`."""
    if isinstance(document, str):
        if document in _OF_AVRO:
            return Schema(_OF_AVRO[document])
        found = named.get(document) or named.get(f"{namespace}.{document}")
        if found is None:
            raise DataError(
                f"Avro type {document!r} refers to itself or is not known: Connect has no recursive schemas here"
            )
        return found  # type: ignore[no-any-return]
    if isinstance(document, list):
        return _union(document, named, namespace)
    kind = document.get("type")
    if isinstance(kind, dict | list):
        return schema_of_avro(kind, named, namespace)
    shared: dict[str, Any] = {
        "name": document.get("connect.name") or _LOGICAL.get(document.get("logicalType", "")),
        "version": document.get("connect.version"),
        "doc": document.get("connect.doc") or document.get("doc"),
        "parameters": tuple((key, str(value)) for key, value in document.get("connect.parameters", {}).items()),
    }
    match kind:
        case "record":
            return _record(document, named, namespace, shared)
        case "array":
            return Schema("array", **shared, values=schema_of_avro(document["items"], named, namespace))
        case "map":
            return Schema(
                "map", **shared, keys=Schema("string"), values=schema_of_avro(document["values"], named, namespace)
            )
        case "enum" | "fixed":
            made = Schema(_OF_AVRO[kind], **shared)
            named[_full_name(document, namespace)] = made
            return made
        case str() if kind in _OF_AVRO:
            if shared["name"] == DECIMAL and not dict(shared["parameters"]).get("scale"):
                shared["parameters"] = (*shared["parameters"], ("scale", str(document.get("scale", 0))))
            if shared["name"] in _LOGICAL_OF and shared["version"] is None:
                shared["version"] = 1
            return Schema(document.get("connect.type", _OF_AVRO[kind]), **shared)
    return schema_of_avro(kind, named, namespace)


def _full_name(document: Mapping[str, Any], namespace: str) -> str:
    name = str(document["name"])
    space = document.get("namespace", namespace)
    return name if "." in name or not space else f"{space}.{name}"


def _union(branches: list[Any], named: dict[str, Any], namespace: str) -> Schema:
    others = [each for each in branches if each != "null"]
    if len(others) != 1:
        raise DataError(f"a union of {len(others)} types has no schema in Connect here: only [null, T] has")
    made = schema_of_avro(others[0], named, namespace)
    return made.as_optional() if len(others) < len(branches) else made


def _record(document: Mapping[str, Any], named: dict[str, Any], namespace: str, shared: dict[str, Any]) -> Schema:
    full = _full_name(document, namespace)
    inside = full.rpartition(".")[0]
    if full not in (f"{_NAMESPACE}.{_DEFAULT_NAME}", _DEFAULT_NAME):
        shared["name"] = shared["name"] or full
    fields = []
    for each in document["fields"]:
        schema = schema_of_avro(each["type"], named, inside)
        default = each.get("default")
        if default is not None:
            schema = Schema(**{**vars(schema), "default": _default_of(schema, default)})
        fields.append(Field(each["name"], schema))
    made = Schema("struct", **shared, fields=tuple(fields))
    named[full] = made
    return made


def _default_of(schema: Schema, default: Any) -> Any:
    if schema.type == "bytes" and isinstance(default, str):
        default = default.encode("latin-1")
    return _value_of(schema, default)


def _value_of(schema: Schema, value: Any) -> Any:
    if value is None:
        return None
    match schema.type:
        case "struct":
            return {each.name: _value_of(each.schema, value.get(each.name)) for each in schema.fields}
        case "array" if schema.values is not None:
            return [_value_of(schema.values, each) for each in value]
        case "map" if schema.values is not None:
            return {key: _value_of(schema.values, each) for key, each in value.items()}
    return of_primitive(schema, value) if schema.name in _LOGICAL_OF else value


# -- writing ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=_SCHEMAS_CACHED)
def _written(schema: Schema) -> tuple[str, AvroType]:
    document = avro_of_schema(schema)
    try:
        return json.dumps(document, separators=(",", ":")), parse([_without_logical(document)])
    except ValueError as error:
        raise DataError(f"the schema is not one of Avro: {error}") from None


@lru_cache(maxsize=_SCHEMAS_CACHED)
def _registered(registry: SchemaRegistry, subject: str, text: str, *, registers: bool) -> int:
    if registers:
        return registry.register(subject, RegisteredSchema(text))
    schema_id, _ = registry.newest(subject)
    return schema_id


def avro_of_schema(schema: Schema) -> Any:
    made = _avro(schema)
    return ["null", made] if schema.optional else made


def _avro(schema: Schema) -> Any:
    extra: dict[str, Any] = {}
    if schema.type in ("int8", "int16"):
        extra["connect.type"] = schema.type
    if schema.version is not None:
        extra["connect.version"] = schema.version
    if schema.doc is not None:
        extra["connect.doc"] = schema.doc
    if schema.parameters:
        extra["connect.parameters"] = dict(schema.parameters)
    if schema.name is not None:
        extra["connect.name"] = schema.name
    match schema.type:
        case "struct":
            space, _, name = (schema.name or f"{_NAMESPACE}.{_DEFAULT_NAME}").rpartition(".")
            fields = [_avro_field(each) for each in schema.fields]
            return {"type": "record", "name": name, **({"namespace": space} if space else {}), "fields": fields} | extra
        case "array" if schema.values is not None:
            return {"type": "array", "items": avro_of_schema(schema.values)} | extra
        case "map" if schema.values is not None and schema.keys is not None:
            if schema.keys.type != "string":
                raise DataError(f"Avro has no map whose keys are {schema.keys.type}")
            return {"type": "map", "values": avro_of_schema(schema.values)} | extra
    kind = _TO_AVRO[schema.type]
    if schema.name == DECIMAL:
        extra |= {"scale": schema.scale, "precision": int(schema.parameter("connect.decimal.precision") or 64)}
    if schema.name in _LOGICAL_OF:
        extra["logicalType"] = _LOGICAL_OF[schema.name]
    return {"type": kind} | extra if extra else kind


def _avro_field(field: Field) -> dict[str, Any]:
    made: dict[str, Any] = {"name": field.name, "type": avro_of_schema(field.schema)}
    default = field.schema.default
    if default is not None:
        value = _payload_of(field.schema, default)
        made["default"] = value.decode("latin-1") if isinstance(value, bytes) else value
        if field.schema.optional:  # Avro: the default is of the first branch
            made["type"] = list(reversed(made["type"]))
    elif field.schema.optional:
        made["default"] = None
    return made


def _payload_of(schema: Schema, value: Any) -> Any:
    if value is None:
        return None
    match schema.type:
        case "struct":
            return {each.name: _payload_of(each.schema, value.get(each.name)) for each in schema.fields}
        case "array" if schema.values is not None:
            return [_payload_of(schema.values, each) for each in value]
        case "map" if schema.values is not None:
            return {key: _payload_of(schema.values, each) for key, each in value.items()}
    return to_primitive(schema, value)
