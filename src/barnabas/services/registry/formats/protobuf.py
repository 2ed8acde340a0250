"""Protobuf schemas: .proto text, or a FileDescriptorProto in base64. Pure."""

import base64
import binascii
from collections.abc import Mapping

from barnabas.services.registry.formats import proto_compatibility, proto_descriptor, proto_parser, proto_text
from barnabas.services.registry.formats.limits import REFERENCES_MAX, SchemaError
from barnabas.services.registry.formats.proto_known import known_file
from barnabas.services.registry.formats.proto_model import File, Message, Names, joined

_NAME = "default"


class ProtobufSchema:
    schema_type = "PROTOBUF"

    def __init__(self, text: str, references: Mapping[str, str], *, as_new: bool) -> None:
        self._file = _parse(text)
        parsed = {name: _parse(reference) for name, reference in references.items()}
        self._imported = _imports(self._file, parsed, as_new=as_new)
        self._names = Names(self._file, list(self._imported.values()))
        if as_new:
            proto_text.normalized(self._file, self._names)  # checks that every type is known
            proto_descriptor.check(_NAME, self._file, self._imported, self._names)
        self._canonical = proto_text.canonical(self._file)

    def canonical(self) -> str:
        return self._canonical

    def normalized(self) -> str:
        return proto_text.normalized(self._file, self._names)

    def formatted(self, wanted: str) -> str:
        """`serialized`: the FileDescriptorProto in base64, for clients without a parser."""
        if wanted == "serialized":
            descriptor = proto_descriptor.to_descriptor(_NAME, self._file, self._names)
            return base64.b64encode(descriptor.SerializeToString()).decode()
        return proto_text.canonical(self._file, extensions=False) if wanted == "ignore_extensions" else self._canonical

    def descriptor_set(self) -> bytes:
        """Return a FileDescriptorSet of the file and its imports, each after those that it needs; the file itself is last."""
        files = [
            *(proto_descriptor.to_descriptor(name, file, self._names) for name, file in self._imported.items()),
            proto_descriptor.to_descriptor(_NAME, self._file, self._names),
        ]
        return proto_descriptor.to_set(files)

    def messages(self) -> list[str]:
        """Return the full names of the file's own messages in their order: the first index of a record counts these."""
        package = self._file.package or ""
        return [joined(package, item.name) for item in self._file.types if isinstance(item, Message)]

    def incompatibilities(self, writer: "ProtobufSchema", reader_name: str, writer_name: str) -> list[str]:
        changes = proto_compatibility.compare(writer._file, writer._names, self._file, self._names)
        found = proto_compatibility.flatten(changes, proto_compatibility.COMPATIBLE)
        return [proto_compatibility.describe(change, path, reader_name, writer_name) for change, path in found]


def _parse(text: str) -> File:
    try:
        return proto_parser.parse(text)
    except SchemaError as refused:
        try:
            return proto_descriptor.from_bytes(base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError):
            raise refused from None


def _imports(file: File, references: Mapping[str, File], *, as_new: bool) -> dict[str, File]:
    """Return all direct and indirect imports, each after those that it needs. The later check finds cycles."""
    found: dict[str, File] = {}
    open_files: set[str] = set()
    pending: list[tuple[str, bool]] = [(name, False) for name in reversed(file.all_imports)]
    while pending:
        name, done = pending.pop()
        imported = references.get(name) or known_file(name)
        if done and imported is not None:
            found[name] = imported
        if done or name in open_files:
            continue
        if imported is None:
            if not as_new:
                continue
            raise SchemaError(f"Could not parse Protobuf - the import {name[:200]} is not among the references")
        open_files.add(name)
        if len(open_files) > REFERENCES_MAX:
            raise SchemaError(f"the schema imports more than {REFERENCES_MAX} files, which is the limit")
        pending.append((name, True))
        pending += [(inner, False) for inner in reversed(imported.all_imports)]
    return found
