"""Avro by fastavro: records as they are, or behind the five bytes that Confluent's serializers put in front."""

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import fastavro
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.types import BinaryType, DataType

from barnabas.services.registry import wire
from barnabas.services.registry.values.avro import AvroType, read
from barnabas.spark.pipelines.codecs import avro_types
from barnabas.spark.pipelines.codecs.avro_defaults import put_in_defaults
from barnabas.spark.pipelines.codecs.base import CodecError, Convert, ConvertsBatches, by_record
from barnabas.spark.pipelines.codecs.registry import RegisteredSchema, SchemaRegistry, UnknownSchema


@dataclass(frozen=True)
class Avro:
    """Avro, one record a value.

    `schema`: the schema to read records as, whatever they were written with (Avro's schema resolution), and to write them with.
    Without one, reading uses the newest schema of `subject`, and writing makes one from the column's type.
    `registry`: records are in Confluent's wire format; the writer's schema is fetched by its id, and writing registers.
    """

    schema: str | Mapping[str, Any] | None = None
    registry: SchemaRegistry | None = None
    subject: str | None = None

    @property
    def _text(self) -> str | None:
        return self.schema if self.schema is None or isinstance(self.schema, str) else json.dumps(self.schema)

    def decoder(self) -> Callable[[Column], Column]:
        text, imports = self._reader()
        kind = avro_types.spark_type(put_in_defaults(avro_types.parse_for_columns(text, imports)))
        registry = self.registry

        def make() -> Convert:
            return _Reader(text, imports, registry)

        return by_record(make, kind)

    def _reader(self) -> tuple[str, tuple[str, ...]]:
        if self._text is not None:
            return self._text, ()
        if self.registry is None or self.subject is None:
            raise CodecError("Avro: reading needs a schema, or a registry and a subject to read the newest schema of")
        newest = self.registry.latest(self.subject)
        if newest.kind != "AVRO":
            raise CodecError(f"Avro: subject {self.subject!r} has {newest.kind} schemas")
        return newest.text, self.registry.resolve(newest)

    def encoder(self, kind: DataType) -> Callable[[Column], Column]:
        text = self._text or avro_types.schema_of(kind)
        avro_types.parse(text)
        head = b""
        if self.registry is not None:
            if self.subject is None:
                raise CodecError("Avro: writing with a registry needs the subject to register under")
            head = wire.frame(self.registry.register(self.subject, RegisteredSchema(text)), b"")

        def make() -> Convert:
            return writer(text, (), head)

        return by_record(make, BinaryType())


@lru_cache(maxsize=1000)
def _parsed(text: str, imports: tuple[str, ...]) -> AvroType:
    return avro_types.parse(text, imports)


@lru_cache(maxsize=1000)
def _with_defaults(text: str, imports: tuple[str, ...]) -> AvroType:
    return put_in_defaults(avro_types.parse_for_columns(text, imports))


class _Reader(ConvertsBatches):
    """Reads the records of one batch. Asks the registry for an id that it does not know once per batch, not once per record."""

    def __init__(self, text: str, imports: tuple[str, ...], registry: SchemaRegistry | None) -> None:
        self._text, self._imports = text, imports
        self._reader = _with_defaults(text, imports)
        self._fix = avro_types.reading(self._reader)
        self._names = avro_types.tells_names(self._reader)
        self._registry = registry
        self._unknown: dict[int, str] = {}

    def whole(self, values: pa.Array, arrow_type: pa.DataType) -> pa.Array | None:
        """Read all records by compiled code, if they were written with the schema that they are read with, and it is a flat
        one."""
        from barnabas.spark.pipelines.codecs import avro_columns

        plan = avro_columns.plan_of(self._reader, arrow_type)
        first = next((value for value in values if value.is_valid), None)
        if plan is None or first is None:
            return None
        head = b""
        if self._registry is not None:
            try:
                schema_id, _ = wire.unframe(first.as_py())
                if self._written_with(self._registry, schema_id) is not self._reader:
                    return None
            except (UnknownSchema, ValueError):
                return None  # each record reports its own error
            head = wire.frame(schema_id, b"")
        return avro_columns.read(values, plan, head=head)

    def __call__(self, data: object) -> object:
        assert isinstance(data, bytes)
        writer, payload = self._reader, data
        if self._registry is not None:
            schema_id, payload = wire.unframe(data)
            writer = self._written_with(self._registry, schema_id)
        read_as = None if writer is self._reader else self._reader
        value = read(payload, writer, read_as=read_as, named=self._names)
        return value if self._fix is None or value is None else self._fix(value)

    def _written_with(self, registry: SchemaRegistry, schema_id: int) -> AvroType:
        if (reason := self._unknown.get(schema_id)) is not None:
            raise UnknownSchema(reason)
        try:
            schema = registry.schema(schema_id)
            imports = registry.resolve(schema)
        except UnknownSchema as error:
            self._unknown[schema_id] = str(error)
            raise
        if schema.kind != "AVRO":
            raise ValueError(f"schema {schema_id} is {schema.kind}, not AVRO")
        same = (schema.text, imports) == (self._text, self._imports)
        return self._reader if same else _parsed(schema.text, imports)


def writer(text: str, imports: tuple[str, ...], head: bytes) -> Convert:
    parsed = _parsed(text, imports)
    fix = avro_types.writing(parsed)

    def write(value: object) -> object:
        out = io.BytesIO()
        out.write(head)
        fastavro.schemaless_writer(out, parsed.schema, value if fix is None else fix(value))
        return out.getvalue()

    return write
