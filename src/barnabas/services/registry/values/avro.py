"""Avro values by fastavro, within bounds."""

import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from barnabas.services.registry.formats import json_text
from barnabas.services.registry.values.avro_bounds import AvroBounds
from barnabas.services.registry.values.bounds import VALUES_MAX, Unreadable


@dataclass
class AvroType:
    """A schema as fastavro has it (a name, a list of branches, or a mapping), with every named type that it mentions."""

    schema: Any
    named: dict[str, Any] = field(default_factory=dict)

    def deref(self, schema: Any) -> Any:
        return self.named.get(schema, schema) if isinstance(schema, str) else schema

    @cached_property
    def bounds(self) -> AvroBounds:
        return AvroBounds(self.schema, self.named)


def json_of(text: str) -> Any:
    """A schema's JSON. :raises SchemaError: if it is not JSON, or nested too deeply for parsers that recurse."""
    return json_text.loads(text)


def parse(schemas: Iterable[Any]) -> AvroType:
    """The last of these schemas (their JSON), which may use the types of those before it.

    :raises ValueError: if fastavro refuses one of them. Other kinds of failures of fastavro become this one.
    """
    import fastavro

    parsed = AvroType(None)
    try:
        for one in schemas:
            parsed.schema = fastavro.parse_schema(one, named_schemas=parsed.named)
    except (fastavro.schema.SchemaParseException, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return parsed


def read(
    payload: bytes,
    written_as: AvroType,
    *,
    read_as: AvroType | None = None,
    named: bool = False,
    values_max: int = VALUES_MAX,
) -> Any:
    """One value. `read_as` resolves it to another schema. With `named`, fastavro names the branch of a union where it can.

    :raises Unreadable: if decoding would cost too much. fastavro raises other errors for bytes that are not of this schema.
    """
    import fastavro

    written_as.bounds.check(payload, values_max, skips=read_as is not None)
    source = io.BytesIO(payload)
    reader = None if read_as is None else read_as.schema
    value = _NOTHING
    if named:
        try:
            value = fastavro.schemaless_reader(source, written_as.schema, reader, return_named_type=True)
        except TypeError:
            # fastavro 1.13 finds no name where one schema defines a type in a union and the other refers to it.
            source.seek(0)
    if value is _NOTHING:
        value = fastavro.schemaless_reader(source, written_as.schema, reader)
    if left := len(payload) - source.tell():
        raise ValueError(f"{left} bytes are left over after the record")
    return value


def write(value: Any, written_as: AvroType) -> bytes:
    """:raises ValueError: if the value is not of the schema"""
    import fastavro

    out = io.BytesIO()
    try:
        fastavro.schemaless_writer(out, written_as.schema, value)
    except (TypeError, AttributeError, LookupError, OverflowError) as error:
        raise ValueError(f"{type(error).__name__} {error}") from None
    return out.getvalue()


_NOTHING: Any = object()

__all__ = ["AvroType", "Unreadable", "json_of", "parse", "read", "write"]
