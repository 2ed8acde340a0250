"""Converters of texts, bytes and numbers. Pure."""

import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from barnabas.base import json_reader
from barnabas.spark.connect.converters.base import Converter, Typed
from barnabas.spark.connect.data import BOOLEAN, OPTIONAL_BYTES, OPTIONAL_STRING, DataError, Schema

_NUMBERS: Final = {"int16": ">h", "int32": ">i", "int64": ">q", "float32": ">f", "float64": ">d"}


@dataclass(frozen=True)
class StringConverter(Converter):
    """Text; any other value becomes the text that Java's `toString` gives."""

    encoding: str = "UTF-8"

    def to_connect(self, topic: str, data: bytes | None) -> Typed:
        # Java puts U+FFFD for bytes that are not text, and so loses them without a word: here they are a bad record.
        try:
            return Typed(OPTIONAL_STRING, None if data is None else data.decode(self.encoding))
        except UnicodeDecodeError as error:
            raise DataError(f"not {self.encoding}: {error.reason} at byte {error.start}") from None

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        return None if value is None else java_text(value).encode(self.encoding)


class ByteArrayConverter(Converter):
    """The bytes as they are."""

    def to_connect(self, topic: str, data: bytes | None) -> Typed:
        return Typed(OPTIONAL_BYTES, data)

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        if value is not None and not isinstance(value, bytes):
            raise DataError(f"ByteArrayConverter writes bytes, not {type(value).__name__}")
        return value


@dataclass(frozen=True)
class NumberConverter(Converter):
    """A number as Kafka's serializer of its type has it."""

    type: str

    def to_connect(self, topic: str, data: bytes | None) -> Typed:
        schema = Schema(self.type, optional=True)
        if data is None:
            return Typed(schema, None)
        try:
            return Typed(schema, struct.unpack(_NUMBERS[self.type], data)[0])
        except struct.error:
            size = struct.calcsize(_NUMBERS[self.type])
            raise DataError(f"{len(data)} bytes are not {self.type}, which has {size}") from None

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        if value is None:
            return None
        try:
            return struct.pack(_NUMBERS[self.type], value)
        except struct.error as error:
            raise DataError(f"{value!r} is not {self.type}: {error}") from None


class BooleanConverter(Converter):
    """One byte: 0 or 1."""

    def to_connect(self, topic: str, data: bytes | None) -> Typed:
        if data not in (None, b"\0", b"\1"):
            raise DataError(f"{len(data or b'')} bytes are not a boolean, which is one byte, 0 or 1")
        return Typed(BOOLEAN.as_optional(), None if data is None else data == b"\1")

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        if value is not None and not isinstance(value, bool):
            raise DataError(f"BooleanConverter writes booleans, not {type(value).__name__}")
        return None if value is None else b"\1" if value else b"\0"


class SimpleHeaderConverter(Converter):
    """Text of a header, read as JSON's number, boolean, list or object if it is one (Connect's default for headers)."""

    def to_connect(self, topic: str, data: bytes | None) -> Typed:
        if data is None:
            return Typed(None, None)
        text = data.decode(errors="replace")
        try:
            value = json_reader.read(text)
        except json_reader.BadJson:
            return Typed(OPTIONAL_STRING, text)
        return Typed(None, value) if isinstance(value, int | float | list | dict) else Typed(OPTIONAL_STRING, text)

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        if value is None or isinstance(value, bytes):
            return value
        return (value if isinstance(value, str) else java_text(value)).encode()


def java_text(value: Any) -> str:
    """Return a value as Java's `toString` has it: `Struct{a=1}`, `{a=1}`, `[1, 2]`, `true`."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case None:
            return "null"
        case dict():
            return "{" + ", ".join(f"{key}={java_text(each)}" for key, each in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(java_text, value)) + "]"
        case float():
            return "NaN" if value != value else str(value).replace("inf", "Infinity")
        case Decimal():
            return f"{value:f}"
        case bytes():
            raise DataError("bytes have no text: use ByteArrayConverter")
    return str(value)
