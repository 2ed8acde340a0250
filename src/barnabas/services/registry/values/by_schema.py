"""Values in Confluent's format, by the schemas of a registry: bytes to JSON, and JSON to bytes. Avro, Protobuf, JSON Schema."""

import datetime
import decimal
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from barnabas.services.registry.formats import Reference
from barnabas.services.registry.references import imports
from barnabas.services.registry.values import avro, json_values
from barnabas.services.registry.values.avro_json import Typed
from barnabas.services.registry.values.bounds import VALUES_MAX

#: `RegistryClient.ask`.
Ask = Callable[..., Any]
#: Converts what follows the schema's id to (kind, value).
Reader = Callable[[bytes], tuple[str, Any]]
#: Converts a value of JSON to what follows the schema's id.
Writer = Callable[[Any], bytes]


@dataclass(frozen=True, slots=True)
class Schema:
    kind: str
    text: str
    #: By the names under which they are imported; each comes after those that it needs.
    references: Mapping[str, str]


def schema_of(answer: Mapping[str, Any], ask: Ask) -> Schema:
    """Return a schema that the registry has answered with. `ask` fetches what it imports."""

    def fetch(reference: Reference) -> Mapping[str, Any]:
        found: Mapping[str, Any] = ask("GET", "subjects", reference.subject, "versions", reference.version)
        return found

    found = imports(_references(answer), fetch, _references)
    texts = {name: str(imported["schema"]) for name, imported in found}
    return Schema(answer.get("schemaType", "AVRO"), answer["schema"], texts)


def _references(answer: Mapping[str, Any]) -> list[Reference]:
    return [Reference(each["name"], each["subject"], each["version"]) for each in answer.get("references") or ()]


def reader(schema: Schema, *, values_max: int = VALUES_MAX, bytes_text: Callable[[bytes], str] = bytes.hex) -> Reader:
    """`bytes_text`: how bytes of Avro look in JSON."""
    if schema.kind == "AVRO":
        written_as = _avro(schema)
        written_as.bounds  # noqa: B018  a schema beyond its bounds is refused now, not with each record
        return lambda payload: (
            "avro",
            _plain(avro.read(payload, written_as, values_max=values_max), bytes_text),
        )
    if schema.kind == "PROTOBUF":
        from barnabas.services.registry.values.protobuf import ProtobufFile  # protobuf takes 20 ms to load

        file = ProtobufFile(schema.text, schema.references)
        return lambda payload: ("protobuf", file.read(payload))
    return lambda payload: ("json schema", json_values.read(payload))


def writer(schema: Schema) -> Writer:
    """Return what writes values of a schema; of Protobuf, of the first message in its file. Bytes of Avro are characters up to
    U+00FF. A JSON Schema is not applied: the value is only JSON.

    The writer raises ValueError for a value that does not fit.
    """
    if schema.kind == "AVRO":
        parsed = _avro(schema)
        typed = Typed(parsed)
        return lambda value: avro.write(typed.value(parsed.schema, value), parsed)
    if schema.kind == "PROTOBUF":
        from barnabas.services.registry.values.protobuf import ProtobufFile

        return ProtobufFile(schema.text, schema.references).write
    return lambda value: json_values.write(value).encode()


def _avro(schema: Schema) -> avro.AvroType:
    return avro.parse(avro.json_of(text) for text in (*schema.references.values(), schema.text))


def _plain(value: Any, bytes_text: Callable[[bytes], str]) -> Any:
    """Convert Avro's logical types to values of JSON."""
    if isinstance(value, dict):
        return {str(key): _plain(each, bytes_text) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, bytes_text) for each in value]
    if isinstance(value, bytes):
        return bytes_text(value)
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | uuid.UUID):
        return str(value)
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    return value
