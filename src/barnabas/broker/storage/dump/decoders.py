"""Converts keys and values for printing: as text here, as records of internal topics by `wire.internal_records`.

A decoder turns a record into (key, payload), each None if there is nothing to print. It never fails on a record: an error
message takes the place of data that cannot be decoded, as in Kafka's tool.
"""

from typing import Final, Protocol

from barnabas.base.errors import BarnabasError
from barnabas.wire.records import Record


class UnknownDecoder(BarnabasError):
    """A decoder class that is not built in: Java classes cannot be loaded."""


class RecordDecoder(Protocol):
    def decode(self, record: Record) -> tuple[str | None, str | None]: ...


class ValueDecoder(Protocol):
    def __call__(self, data: bytes) -> str: ...


def decode_string(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def decode_default(data: bytes) -> str:
    """Return the bytes in hexadecimal. Java's tool prints the identity of an array here, which is useless."""
    return "0x" + data.hex()


def decode_integer(data: bytes) -> str:
    return str(int.from_bytes(data, "big", signed=True)) if len(data) == 4 else decode_default(data)


def decode_long(data: bytes) -> str:
    return str(int.from_bytes(data, "big", signed=True)) if len(data) == 8 else decode_default(data)


_BY_CLASS: Final[dict[str, ValueDecoder]] = {
    "StringDecoder": decode_string,
    "DefaultDecoder": decode_default,
    "IntegerDecoder": decode_integer,
    "LongDecoder": decode_long,
}
_PACKAGES: Final = ("", "kafka.serializer.", "org.apache.kafka.tools.api.")


def decoder_of_class(name: str) -> ValueDecoder:
    """Return the decoder for one of Kafka's own decoder classes."""
    package, _, simple = name.rpartition(".")
    if simple in _BY_CLASS and f"{package}." in (*_PACKAGES, "."):
        return _BY_CLASS[simple]
    known = ", ".join(f"{_PACKAGES[-1]}{simple}" for simple in _BY_CLASS)
    raise UnknownDecoder(f"decoder class {name} cannot be loaded, there is no JVM here; known are {known}")


class PlainDecoder:
    """Decodes keys and values by one decoder each."""

    def __init__(self, key: ValueDecoder = decode_string, value: ValueDecoder = decode_string) -> None:
        self._key = key
        self._value = value

    def decode(self, record: Record) -> tuple[str | None, str | None]:
        key = None if record.key is None else self._key(record.key)
        return key, None if record.value is None else self._value(record.value)
