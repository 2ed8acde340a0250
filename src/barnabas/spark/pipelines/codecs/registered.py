"""Decodes and encodes columns with the schemas of a registry's subject, whatever their format: Avro, JSON Schema or Protobuf.

`from_registry` and `to_registry` are functions of a column, without a JAR. `Registered` is the same as a codec of `decode` and
`encode`, with dead letters: a record whose schema the registry does not know is a bad record.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, BinaryType, BooleanType, DataType, MapType, StructType

from barnabas.services.registry import wire
from barnabas.services.registry.formats import SchemaError
from barnabas.services.registry.formats.protobuf import ProtobufSchema
from barnabas.spark.pipelines.codecs import avro, json_types, protobuf
from barnabas.spark.pipelines.codecs.base import CodecError, Convert, by_record, by_typed_record
from barnabas.spark.pipelines.codecs.json_codec import Json
from barnabas.spark.pipelines.codecs.registry import RegisteredSchema, SchemaRegistry, UnknownSchema


def from_registry(
    column: Column | str,
    registry: SchemaRegistry | str,
    subject: str,
    *,
    message: str | None = None,
    mode: Literal["FAIL", "PERMISSIVE"] = "FAIL",
) -> Column:
    """Decode the bytes of a column with the subject's newest schema.

    `message` is for Protobuf: the full name of a message in the file; else the first one. A record that cannot be read fails
    the query, or is null (`mode="PERMISSIVE"`); to keep such records, use `decode` with `Registered`.
    """
    if mode not in ("FAIL", "PERMISSIVE"):
        raise CodecError(f"from_registry: mode {mode!r} is not valid: use FAIL or PERMISSIVE")
    both = Registered(_settings(registry), subject, message).decoder()(_column(column).cast("binary"))
    return both.getField("data") if mode == "PERMISSIVE" else _or_fail(both)


def to_registry(
    column: Column | str, registry: SchemaRegistry | str, subject: str, *, message: str | None = None
) -> Column:
    """Encode a column with the subject's newest schema, behind that schema's id."""
    return _or_fail(Registered(_settings(registry), subject, message).encoder(None)(_column(column)))


@dataclass(frozen=True)
class Registered:
    """A codec of a subject. Records that were written with any version of it are read with the newest one."""

    registry: SchemaRegistry
    subject: str
    message: str | None = None

    def decoder(self) -> Callable[[Column], Column]:
        _, newest = self._newest()
        if newest.kind == "AVRO":
            return avro.Avro(registry=self.registry, subject=self.subject).decoder()
        references = self.registry.references(newest)
        registry = self.registry
        if newest.kind == "PROTOBUF":
            files, name = self._protobuf(newest)
            kind = protobuf.spark_type(files, name)

            def make() -> Convert:
                return _KnownMessage(registry, name, protobuf.reader(files, name, framed=True))

            return by_record(make, kind)
        shape = json_types.spark_type(newest.text, references)
        if not isinstance(shape, StructType | ArrayType | MapType):
            raise CodecError(
                f"subject {self.subject!r}: Spark reads JSON objects and arrays, not {shape.simpleString()}"
            )
        parsed = Json(shape, registry=registry).decoder()
        known = by_record(lambda: _Known(registry, "JSON", lambda _: True), BooleanType())

        def column(raw: Column) -> Column:
            return _once(F.struct(known(raw).alias("known"), parsed(raw).alias("parsed")), _first_error)

        return column

    def encoder(self, kind: DataType | None) -> Callable[[Column], Column]:
        schema_id, newest = self._newest()
        head = wire.frame(schema_id, b"")
        if newest.kind == "AVRO":
            text, imports = newest.text, self.registry.resolve(newest)
            return by_record(lambda: avro.writer(text, imports, head), BinaryType())
        if newest.kind == "JSON":
            return Json().encoder_behind(head, kind or StructType())
        files, name = self._protobuf(newest)
        head += wire.write_indexes(protobuf.indexes(files, name))
        if kind is not None:
            protobuf.writer(files, name, kind, head)  # raises now if the column does not fit
        return by_typed_record(lambda given: protobuf.writer(files, name, given, head), BinaryType())

    def field_numbers(self) -> dict[int, str]:
        """Return the numbers of the newest schema's message; an empty mapping if it is not Protobuf."""
        _, newest = self._newest()
        return protobuf.field_numbers(*self._protobuf(newest)) if newest.kind == "PROTOBUF" else {}

    def _newest(self) -> tuple[int, RegisteredSchema]:
        schema_id, newest = self.registry.newest(self.subject)
        if newest.kind not in ("AVRO", "JSON", "PROTOBUF"):
            raise CodecError(f"subject {self.subject!r} has {newest.kind} schemas")
        return schema_id, newest

    def _protobuf(self, newest: RegisteredSchema) -> tuple[bytes, str]:
        """Return the files, and the full name of the message."""
        try:
            schema = ProtobufSchema(newest.text, self.registry.references(newest), as_new=False)
        except SchemaError as error:
            raise CodecError(f"subject {self.subject!r}: {error}") from None
        files = schema.descriptor_set()
        return files, self.message or protobuf.first_message(files)


class _Known:
    """Reads a record if the registry knows its schema. Asks for an unknown schema once per batch."""

    def __init__(self, registry: SchemaRegistry, kind: str, read: Convert) -> None:
        self._registry, self._kind, self._read = registry, kind, read
        self._problems: dict[int, Exception | None] = {}

    def __call__(self, data: object) -> object:
        assert isinstance(data, bytes)
        schema_id, _ = wire.unframe(data)
        if schema_id not in self._problems:
            self._problems[schema_id] = self._problem(schema_id)
        if (problem := self._problems[schema_id]) is not None:
            raise problem
        return self._read(data)

    def _problem(self, schema_id: int) -> Exception | None:
        try:
            kind = self._registry.schema(schema_id).kind
        except UnknownSchema as error:
            return error
        return None if kind == self._kind else ValueError(f"schema {schema_id} is {kind}, not {self._kind}")


class _KnownMessage(_Known):
    """Also checks that the record is of the wanted message: a topic may have several, and bytes of one can be read as
    another."""

    def __init__(self, registry: SchemaRegistry, name: str, read: Convert) -> None:
        super().__init__(registry, "PROTOBUF", self._checked)
        self._name = name
        self._read_message = read
        self._messages: dict[int, list[str]] = {}

    def _checked(self, data: object) -> object:
        assert isinstance(data, bytes)
        schema_id, payload = wire.unframe(data)
        if schema_id not in self._messages:
            self._messages[schema_id] = _messages(self._registry, schema_id)
        messages, (index, *inner) = self._messages[schema_id], wire.read_indexes(payload)[0]
        if not 0 <= index < len(messages):
            raise ValueError(f"schema {schema_id} has {len(messages)} messages; the record is of message {index}")
        written = messages[index]
        # For nested messages compare only the depth: clients do not agree whether map entries are counted.
        below = self._name.removeprefix(written).split(".")[1:]
        if not f"{self._name}.".startswith(f"{written}.") or len(below) != len(inner):
            raise ValueError(f"the record is a {'message within ' if inner else ''}{written}, not a {self._name}")
        return self._read_message(data)


@lru_cache(maxsize=1000)
def _messages(registry: SchemaRegistry, schema_id: int) -> list[str]:
    schema = registry.schema(schema_id)
    return ProtobufSchema(schema.text, registry.references(schema), as_new=False).messages()


@lru_cache(maxsize=64)
def _of(url: str) -> SchemaRegistry:
    return SchemaRegistry(url)


def _settings(registry: SchemaRegistry | str) -> SchemaRegistry:
    return _of(registry) if isinstance(registry, str) else registry


def _column(column: Column | str) -> Column:
    return F.col(column) if isinstance(column, str) else column


def _first_error(both: Column) -> Column:
    error = F.coalesce(both.getField("known").getField("error"), both.getField("parsed").getField("error"))
    data = F.when(error.isNull(), both.getField("parsed").getField("data"))
    return F.struct(data.alias("data"), error.alias("error"))


def _or_fail(both: Column) -> Column:
    def checked(once: Column) -> Column:
        problem = once.getField("error")
        return F.when(problem.isNotNull(), F.raise_error(problem.getField("message"))).otherwise(once.getField("data"))

    return _once(both, checked)


def _once(value: Column, use: Callable[[Column], Column]) -> Column:
    """Compute the value once: Spark computes the argument of a higher-order function once, other values for every use."""
    return F.get(F.transform(F.array(value), use), F.lit(0))


__all__ = ["Registered", "from_registry", "to_registry"]
