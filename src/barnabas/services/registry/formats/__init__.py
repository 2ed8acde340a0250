"""Avro, JSON Schema and Protobuf: parse a schema, write its canonical form, compare two. Pure.

`parse` makes a `ParsedSchema` from a text and the texts that it refers to. `incompatibilities` says why a reader with
one schema cannot read data that was written with another. Subjects, versions and HTTP are unknown here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from barnabas.services.registry.formats.avro import AvroSchema
from barnabas.services.registry.formats.json_schema import JsonSchema
from barnabas.services.registry.formats.limits import (
    CHARS_MAX,
    CHARS_WITH_REFERENCES_MAX,
    REFERENCES_MAX,
    SchemaError,
)
from barnabas.services.registry.formats.protobuf import ProtobufSchema

__all__ = ["ParsedSchema", "Reference", "SchemaError", "incompatibilities", "parse"]

_FORMATS: dict[str, type[AvroSchema] | type[JsonSchema] | type[ProtobufSchema]] = {
    "AVRO": AvroSchema,
    "JSON": JsonSchema,
    "PROTOBUF": ProtobufSchema,
}


@dataclass(frozen=True)
class Reference:
    """A name that a schema uses, and the version of a subject to which it refers."""

    name: str
    subject: str
    version: int


class ParsedSchema(Protocol):
    @property
    def schema_type(self) -> str: ...

    def canonical(self) -> str:
        """Return the text that `_schemas` stores and clients receive."""

    def normalized(self) -> str:
        """Return the canonical text without insignificant differences, for `normalize=true`."""

    def formatted(self, wanted: str) -> str:
        """Return `?format=`: `resolved` (Avro), `serialized`, `ignore_extensions` (Protobuf), else the canonical text."""


def parse(
    schema_type: str, text: str, references: Mapping[str, str] | None = None, *, as_new: bool = True
) -> ParsedSchema:
    """Parse a schema; raise SchemaError if it is not valid.

    `references` has the text of every schema that it refers to, directly or not, by the reference's name; each comes
    after those that it needs. `as_new=False` is for stored schemas: they stay readable when the checks become stricter.
    """
    references = references or {}
    _check_size(text, references)
    if schema_type not in _FORMATS:
        raise SchemaError(f"unknown schema type {schema_type}: use one of {', '.join(_FORMATS)}")
    try:
        schema = _FORMATS[schema_type](text, references, as_new=as_new)
        schema.canonical().encode()
    except UnicodeEncodeError:
        raise SchemaError("the schema contains half of a surrogate pair, which UTF-8 cannot encode") from None
    return schema


def incompatibilities(
    reader: ParsedSchema,
    writer: ParsedSchema,
    *,
    reader_name: str = "new",
    writer_name: str = "old",
    lenient: bool = False,
) -> list[str]:
    """Return why `reader` cannot read data that was written with `writer`; empty if it can.

    The texts are Confluent's verbose messages, with the given names of the schemas. `lenient` is a subject's
    `compatibilityPolicy: LENIENT`, which only applies to JSON Schemas.
    """
    if reader.schema_type != writer.schema_type:
        return ["Incompatible because of different schema type"]
    try:
        if isinstance(reader, AvroSchema) and isinstance(writer, AvroSchema):
            return reader.incompatibilities(writer, reader_name, writer_name)
        if isinstance(reader, JsonSchema) and isinstance(writer, JsonSchema):
            return reader.incompatibilities(writer, reader_name, writer_name, lenient=lenient)
        if isinstance(reader, ProtobufSchema) and isinstance(writer, ProtobufSchema):
            return reader.incompatibilities(writer, reader_name, writer_name)
    except SchemaError as error:  # the comparison costs too much, or a stored schema lacks one of its references
        return [f"Unexpected exception during compatibility check: {error}"]
    raise TypeError(f"{type(reader).__name__} and {type(writer).__name__} are not schemas that `parse` made")


def _check_size(text: str, references: Mapping[str, str]) -> None:
    if len(text) > CHARS_MAX:
        raise SchemaError(f"the schema has {len(text)} characters; {CHARS_MAX} is the limit")
    if len(references) > REFERENCES_MAX:
        raise SchemaError(f"the schema refers to {len(references)} schemas; {REFERENCES_MAX} is the limit")
    total = len(text) + sum(map(len, references.values()))
    if total > CHARS_WITH_REFERENCES_MAX:
        raise SchemaError(
            f"the schema has {total} characters with its references; {CHARS_WITH_REFERENCES_MAX} is the limit"
        )
