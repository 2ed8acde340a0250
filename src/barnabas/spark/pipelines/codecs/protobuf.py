"""Protobuf, by a generated class or by a descriptor set (`protoc --include_imports --descriptor_set_out=…`)."""

import base64
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.message import DecodeError, Message
from pyspark.sql import Column
from pyspark.sql.types import BinaryType, DataType

from barnabas.services.registry import wire
from barnabas.services.registry.values.protobuf import check_rows, widest
from barnabas.spark.pipelines.codecs import protobuf_types
from barnabas.spark.pipelines.codecs.base import CodecError, Convert, by_record
from barnabas.spark.pipelines.codecs.registry import Reference, RegisteredSchema, SchemaRegistry

_KNOWN: Final = "google/protobuf/"
_KNOWN_MODULES: Final = ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")


@dataclass(frozen=True)
class Protobuf:
    """Protobuf, one message per value.

    `message`: a generated class, or a full name (`shop.v1.Order`) with the `descriptor_set` (a path or bytes) that has it.
    `registry`: messages are in Confluent's wire format. Reading needs only the message, since Protobuf knows fields by number;
    writing registers the message's file, and the files that it imports, under `subject`. `confluent` says so without a registry
    (reading only).
    """

    message: type[Message] | str
    descriptor_set: bytes | str | Path | None = None
    registry: SchemaRegistry | None = None
    subject: str | None = None
    confluent: bool = False

    def _resolved(self) -> tuple[bytes, str]:
        """Return the files, each after those it imports, and the message's full name."""
        if not isinstance(self.message, str):
            descriptor = self.message.DESCRIPTOR
            files = descriptor_pb2.FileDescriptorSet(file=list(_with_imports(descriptor.file, set())))
            return files.SerializeToString(), str(descriptor.full_name)
        if self.descriptor_set is None:
            raise CodecError(f"Protobuf: {self.message!r} needs the descriptor set that has it")
        given = self.descriptor_set
        data = given if isinstance(given, bytes) else Path(given).read_bytes()
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(data)
        except DecodeError as error:
            raise CodecError(f"Protobuf: not a descriptor set: {error}") from error
        return descriptor_pb2.FileDescriptorSet(file=_sorted(list(files.file))).SerializeToString(), self.message

    def decoder(self) -> Callable[[Column], Column]:
        files, name = self._resolved()
        framed = self.confluent or self.registry is not None

        def make() -> Convert:
            return reader(files, name, framed=framed)

        return by_record(make, protobuf_types.spark_type(_descriptor(files, name)))

    def encoder(self, kind: DataType) -> Callable[[Column], Column]:
        files, name = self._resolved()
        message = _descriptor(files, name)
        protobuf_types.writing(message, kind)  # raises now if the column does not fit
        head = b""
        if self.registry is not None:
            if self.subject is None:
                raise CodecError("Protobuf: writing with a registry needs the subject to register under")
            schema_id = self.registry.register(self.subject, _registrable(self.registry, message.file))
            head = wire.frame(schema_id, wire.write_indexes(indexes_of(message)))
        elif self.confluent:
            raise CodecError("Protobuf: writing Confluent's wire format needs a registry")

        def make() -> Convert:
            return writer(files, name, kind, head)

        return by_record(make, BinaryType())


def _with_imports(file: FileDescriptor, seen: set[str]) -> Iterator[descriptor_pb2.FileDescriptorProto]:
    if file.name in seen:
        return
    seen.add(file.name)
    for imported in file.dependencies:
        yield from _with_imports(imported, seen)
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    yield proto


def _sorted(files: list[Any]) -> list[Any]:
    """Sort files after those that they import. Protobuf's own files need not be in the set."""
    by_name = {file.name: file for file in files}
    done: dict[str, Any] = {}

    def visit(name: str, asked_by: str, above: tuple[str, ...]) -> None:
        if name in done:
            return
        if name in above:
            raise CodecError(f"Protobuf: {name} imports itself")
        if name not in by_name:
            done.update((file.name, file) for file in _known(name, asked_by) if file.name not in done)
            return
        for imported in by_name[name].dependency:
            visit(imported, name, (*above, name))
        done[name] = by_name[name]

    for name in by_name:
        visit(name, name, ())
    return list(done.values())


def _known(name: str, asked_by: str) -> Iterator[Any]:
    module = name.removeprefix(_KNOWN).removesuffix(".proto")
    if not name.startswith(_KNOWN) or module not in _KNOWN_MODULES:
        raise CodecError(f"Protobuf: {asked_by} imports {name}, which the set lacks: make it with --include_imports")
    file = importlib.import_module(f"google.protobuf.{module}_pb2").DESCRIPTOR
    return _with_imports(file, set())


@lru_cache(maxsize=64)
def _class(files: bytes, name: str) -> type[Message]:
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(files).file:
            pool.Add(file)
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))  # type: ignore[no-any-return]
    except KeyError:
        raise CodecError(f"Protobuf: no message {name!r} in the descriptor set") from None
    except TypeError as error:
        raise CodecError(f"Protobuf: not a descriptor set: {error}") from error


def _descriptor(files: bytes, name: str) -> Descriptor:
    return _class(files, name).DESCRIPTOR


def reader(files: bytes, name: str, *, framed: bool) -> Convert:
    message_class = _class(files, name)
    read = protobuf_types.reading(message_class.DESCRIPTOR)
    fields_max = widest(message_class.DESCRIPTOR)

    def convert(data: object) -> object:
        assert isinstance(data, bytes)
        payload = wire.skip_indexes(wire.unframe(data)[1]) if framed else data
        message = message_class()
        message.ParseFromString(payload)
        check_rows(message, len(payload), fields_max)
        return read(message)

    return convert


def writer(files: bytes, name: str, kind: DataType, head: bytes) -> Convert:
    message_class = _class(files, name)
    write = protobuf_types.writing(message_class.DESCRIPTOR, kind)

    def convert(row: object) -> object:
        message = message_class()
        write(message, row)
        return head + message.SerializeToString()

    return convert


def spark_type(files: bytes, name: str) -> DataType:
    return protobuf_types.spark_type(_descriptor(files, name))


def field_numbers(files: bytes, name: str) -> dict[int, str]:
    return {field.number: field.name for field in _descriptor(files, name).fields}


def first_message(files: bytes) -> str:
    """Return the full name of the first message of the last file."""
    last = descriptor_pb2.FileDescriptorSet.FromString(files).file[-1]
    if not last.message_type:
        raise CodecError("Protobuf: the schema has no message")
    return f"{last.package}.{last.message_type[0].name}".lstrip(".")


def indexes(files: bytes, name: str) -> list[int]:
    return indexes_of(_descriptor(files, name))


def indexes_of(message: Descriptor) -> list[int]:
    """Return the indexes of a message in its file, from the outermost message to the inner ones."""
    outer = message.containing_type
    if outer is None:
        return [list(message.file.message_types_by_name).index(message.name)]
    return [*indexes_of(outer), list(outer.nested_types_by_name).index(message.name)]


def _registrable(registry: SchemaRegistry, file: FileDescriptor) -> RegisteredSchema:
    """Return a file as the registry takes it, after registering those that it imports, each under its own name."""
    references = []
    for imported in file.dependencies:
        if imported.name.startswith(_KNOWN):
            continue
        schema = _registrable(registry, imported)
        registry.register(imported.name, schema)
        references.append(Reference(imported.name, imported.name, registry.version_of(imported.name, schema)))
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    return RegisteredSchema(base64.b64encode(proto.SerializeToString()).decode(), "PROTOBUF", tuple(references))
