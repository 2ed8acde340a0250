"""Defaults of a reader's schema: the values of fields that the writer did not know. fastavro returns the JSON of the schema."""

from collections.abc import Iterator, Mapping
from typing import Any

from barnabas.services.registry.values.avro import AvroType
from barnabas.services.registry.values.avro_json import FromJson, NotOfThisType
from barnabas.spark.pipelines.codecs.avro_types import Default, Schema, field_reading
from barnabas.spark.pipelines.codecs.base import CodecError


class _Defaults(FromJson):
    __slots__ = ()

    def default(self, field: Mapping[str, Any]) -> Any:
        known = field["default"]
        return known if isinstance(known, Default) else FromJson.default(self, field)


def put_in_defaults(parsed: AvroType) -> AvroType:
    """Make fastavro return a `Default` where it would return the JSON of one. Changes the schema."""
    for record in _records(parsed):
        for field in record["fields"]:
            if "default" in field and not isinstance(field["default"], Default):
                try:
                    value = _Defaults(parsed).value(field["type"], field["default"])
                except NotOfThisType as error:
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
