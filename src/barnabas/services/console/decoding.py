"""Readable forms of keys and values: text, JSON, decoded by a schema, records of internal topics, hex. Pure.

Content that cannot be decoded in the requested format is shown as hex, with the reason as a note. No output is markup.
"""

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from barnabas.base.errors import BarnabasError
from barnabas.services.registry.values import json_values
from barnabas.wire.internal_records import OffsetsDecoder, TransactionLogDecoder
from barnabas.wire.records import Record

FORMATS: Final = ("auto", "text", "json", "registry", "number", "hex", "base64")
#: Limit of a key, value or header in a list; a single record is shown whole.
SHOWN_CHARS_MAX: Final = 20_000
#: Control characters that do not occur in text.
_NOT_TEXT: Final = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_INTERNAL: Final[dict[str, OffsetsDecoder | TransactionLogDecoder]] = {
    "__consumer_offsets": OffsetsDecoder(),
    "__transaction_state": TransactionLogDecoder(),
}


class Undecodable(BarnabasError):
    """Why bytes cannot be decoded in the requested format."""


@dataclass(frozen=True, slots=True)
class Shown:
    format: str
    text: str
    #: The value that filters see: decoded JSON, or the text.
    data: Any
    size: int
    #: A remark for the user: the schema's id, or why hex is shown.
    note: str = ""

    def document(self, chars_max: int) -> dict[str, Any]:
        found: dict[str, Any] = {"format": self.format, "text": self.text[:chars_max], "size": self.size}
        if len(self.text) > chars_max:
            found["truncated"] = True
        if self.note:
            found["note"] = self.note
        return found


NOTHING: Final = Shown("null", "", None, 0)
#: Converts bytes in Confluent's format to (kind, data, note). Raises `Undecodable`.
ByRegistry = Callable[[bytes], tuple[str, Any, str]]


def compact(data: Any) -> str:
    return json_values.write(data, default=str)


def show(data: bytes | None, wanted: str, by_registry: ByRegistry | None) -> Shown:
    """`wanted` is one of `FORMATS`."""
    if data is None:
        return NOTHING
    data = bytes(data)
    try:
        if wanted == "auto":
            return _guessed(data, by_registry)
        return _ASKED[wanted](data) if wanted in _ASKED else _registered(data, by_registry)
    except Undecodable as error:
        return _hex(data, str(error))


def _guessed(data: bytes, by_registry: ByRegistry | None) -> Shown:
    note = ""
    if by_registry is not None and len(data) > 5 and data[0] == 0:
        try:
            return _registered(data, by_registry)
        except Undecodable as error:
            note = str(error)
    if data[:1] in (b"{", b"["):
        try:
            return _json(data)
        except Undecodable:
            pass
    try:
        return _text(data)
    except Undecodable:
        return _hex(data, note)


def _text(data: bytes) -> Shown:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise Undecodable(f"not UTF-8: {error.reason} at byte {error.start}") from None
    if _NOT_TEXT.search(text):
        raise Undecodable("it has control characters")
    return Shown("text", text, text, len(data))


def _json(data: bytes) -> Shown:
    try:
        text = data.decode()
        return Shown("json", text, json_values.read(text), len(data))
    except ValueError as error:
        raise Undecodable(f"not JSON: {error}") from None


def _registered(data: bytes, by_registry: ByRegistry | None) -> Shown:
    if by_registry is None:
        raise Undecodable("the console was started without --schema-registry")
    kind, value, note = by_registry(data)
    try:
        return Shown(kind, compact(value), value, len(data), note)
    except ValueError as error:
        raise Undecodable(str(error)) from None


def _number(data: bytes) -> Shown:
    if len(data) not in (1, 2, 4, 8):
        raise Undecodable(f"{len(data)} bytes are not a number of 1, 2, 4 or 8")
    value = int.from_bytes(data, "big", signed=True)
    return Shown("number", str(value), value, len(data))


def _hex(data: bytes, note: str = "") -> Shown:
    text = data.hex()
    return Shown("hex", text, text, len(data), note)


def _base64(data: bytes) -> Shown:
    text = base64.b64encode(data).decode()
    return Shown("base64", text, text, len(data))


_ASKED: Final[dict[str, Callable[[bytes], Shown]]] = {
    "text": lambda data: Shown("text", text := data.decode(errors="replace"), text, len(data)),
    "json": _json,
    "number": _number,
    "hex": _hex,
    "base64": _base64,
}


@dataclass(frozen=True, slots=True)
class ShownRecord:
    partition: int
    record: Record
    key: Shown
    value: Shown
    headers: tuple[tuple[str, Shown], ...]

    def document(self, chars_max: int = SHOWN_CHARS_MAX) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "offset": self.record.offset,
            "timestamp": self.record.timestamp,
            "key": self.key.document(chars_max),
            "value": self.value.document(chars_max),
            "headers": [{"name": name} | value.document(chars_max) for name, value in self.headers],
        }


def show_record(
    topic: str, partition: int, record: Record, *, key: str, value: str, by_registry: ByRegistry | None
) -> ShownRecord:
    """`key` and `value` are formats."""
    headers = tuple((name, show(content, "auto", None)) for name, content in record.headers)
    internal = _INTERNAL.get(topic)
    if internal is not None:
        shown_key, shown_value = internal.decode(record)
        if key == "auto" and shown_key is not None:
            shown = _internal(shown_key, record.key)
            rest = (
                _internal(shown_value, record.value)
                if value == "auto" and shown_value is not None and record.value is not None
                else show(record.value, value, None)
            )
            return ShownRecord(partition, record, shown, rest, headers)
    return ShownRecord(
        partition, record, show(record.key, key, by_registry), show(record.value, value, by_registry), headers
    )


def _internal(text: str, data: bytes | None) -> Shown:
    size = len(data) if data is not None else 0
    if text.startswith("{"):
        return Shown("internal", text, json_values.read(text), size)
    return Shown("internal", text, text, size)
