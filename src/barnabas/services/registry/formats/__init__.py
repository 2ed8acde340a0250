"""Avro, JSON Schema and Protobuf: parse a schema, write its canonical form, compare two. Pure.

`parse` makes a `ParsedSchema` of a text and of the texts that it refers to. `incompatibilities` tells why a reader with
one schema cannot read what was written with another. Nothing here knows of subjects, versions or HTTP.
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
    """A name that a schema uses, and the version of a subject that it stands for."""

    name: str
    subject: str
    version: int


class ParsedSchema(Protocol):
    @property
    def schema_type(self) -> str: ...

    def canonical(self) -> str:
        """What `_schemas` stores and clients get back."""

    def normalized(self) -> str:
        """The same for schemas that differ only in what means nothing: `normalize=true`."""

    def formatted(self, wanted: str) -> str:
        """`?format=`: `resolved` of Avro, `serialized` and `ignore_extensions` of Protobuf; else the canonical text."""


def parse(
    schema_type: str, text: str, references: Mapping[str, str] | None = None, *, as_new: bool = True
) -> ParsedSchema:
    """The schema of a text; raises SchemaError.

    `references` has the text of every schema that it refers to by the reference's name, also those that those refer to,
    each after the ones that it needs. `as_new=False` is for what is stored already: what was once accepted stays readable.
    """
    references = references or {}
    _check_size(text, references)
    if schema_type not in _FORMATS:
        raise SchemaError(f"unknown schema type {schema_type}: it is one of {', '.join(_FORMATS)}")
    try:
        schema = _FORMATS[schema_type](text, references, as_new=as_new)
        schema.canonical().encode()
    except UnicodeEncodeError:
        raise SchemaError("the schema has half of a surrogate pair, which no UTF-8 text can hold") from None
    return schema


def incompatibilities(
    reader: ParsedSchema,
    writer: ParsedSchema,
    *,
    reader_name: str = "new",
    writer_name: str = "old",
    lenient: bool = False,
) -> list[str]:
    """Why data that was written with `writer` cannot be read with `reader`; empty if it can.

    The texts are Confluent's verbose messages. They call the schemas by the names given. `lenient` is a subject's
    `compatibilityPolicy: LENIENT`, which only JSON Schemas know.
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
    except SchemaError as error:  # it costs too much, or a stored schema does not hold what it refers to
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
