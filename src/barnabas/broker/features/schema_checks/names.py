"""Names that a schema gives to records: `RecordNameStrategy` derives subjects from them. Pure.

An Avro schema has a full name, a JSON Schema a title. A Protobuf file has a name for each message. Only bytes after the
schema id, which the broker does not read, say which message a record is: so all names are allowed.
"""

import json
from collections.abc import Iterator
from typing import Final

from barnabas.base.errors import Malformed
from barnabas.wire.varint import read_uvarint

AVRO: Final = "AVRO"
JSON: Final = "JSON"
PROTOBUF: Final = "PROTOBUF"
#: Fields of Protobuf's own descriptors.
_FILE_PACKAGE, _FILE_MESSAGES = 2, 4
_MESSAGE_NAME, _MESSAGE_NESTED = 1, 3
_MESSAGE_LEVELS_MAX: Final = 32
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def record_names(schema_type: str, text: str) -> set[str]:
    """Return the names of an Avro or JSON schema."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return set()
    if schema_type == JSON:
        title = schema.get("title") if isinstance(schema, dict) else None
        return {title} if isinstance(title, str) else set()
    if isinstance(schema, str):
        return {schema}
    if not isinstance(schema, dict):
        return set()
    name, space = schema.get("name"), schema.get("namespace")
    if not isinstance(name, str):
        kind = schema.get("type")
        return {kind} if isinstance(kind, str) else set()
    return {f"{space}.{name}" if isinstance(space, str) and space and "." not in name else name}


def message_names(file_descriptor: bytes) -> set[str]:
    """Return the names of a serialized FileDescriptorProto; raise `Malformed` if it cannot be parsed."""
    package, messages = "", []
    for number, value in _fields(file_descriptor):
        if number == _FILE_PACKAGE:
            package = _text(value)
        elif number == _FILE_MESSAGES:
            messages.append(value)
    return {name for message in messages for name in _message_names(message, package, _MESSAGE_LEVELS_MAX)}


def _message_names(message: bytes, scope: str, depth: int) -> Iterator[str]:
    if not depth:
        raise Malformed("messages are nested too deep")
    nested = []
    full_name = scope
    for number, value in _fields(message):
        if number == _MESSAGE_NAME:
            full_name = f"{scope}.{_text(value)}".lstrip(".")
        elif number == _MESSAGE_NESTED:
            nested.append(value)
    yield full_name
    for each in nested:
        yield from _message_names(each, full_name, depth - 1)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the length-delimited fields."""
    pos, end = 0, len(data)
    while pos < end:
        tag, pos = read_uvarint(data, pos)
        kind = tag & 7
        if kind == _BYTES:
            size, pos = read_uvarint(data, pos)
            if pos + size > end:
                raise Malformed(f"a field of {size} bytes runs past the end of a descriptor")
            yield tag >> 3, data[pos : pos + size]
            pos += size
        elif kind == _VARINT:
            while pos < end and data[pos] >= 0x80:
                pos += 1
            pos += 1
        elif kind in (_FIXED32, _FIXED64):
            pos += 4 if kind == _FIXED32 else 8
        else:
            raise Malformed(f"a field of the unknown kind {kind} in a descriptor")
