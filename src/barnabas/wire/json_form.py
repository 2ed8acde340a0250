"""Messages as JSON, as Kafka's generated converters write them: camel case, schema order, base64 for bytes."""

import base64
import json
from typing import TypeAlias

from barnabas.base.ids import format_uuid
from barnabas.wire.codec_source import in_range
from barnabas.wire.messages.base import Message, Wire

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


def message_to_json(message: Message, version: int) -> dict[str, Json]:
    """Convert the fields of `version`. A tagged field is left out if it has its default."""
    fields: dict[str, Json] = {}
    for name, spec in type(message).__wire__.items():
        if not in_range(spec.versions, version):
            continue
        value = getattr(message, name)
        if spec.tag is not None and _is_default(spec, value):
            continue
        fields[camel_case(name)] = _to_json(spec, value, version)
    return fields


def _is_default(spec: Wire, value: object) -> bool:
    if isinstance(spec.default, type):
        return bool(value == spec.default())
    return bool(value == spec.default)


def _to_json(spec: Wire, value: object, version: int) -> Json:
    if value is None:
        return None
    if isinstance(value, list):
        return [_element_to_json(spec.type, item, version) for item in value]
    return _element_to_json(spec.type, value, version)


def _element_to_json(kind: "str | type[Message]", value: object, version: int) -> Json:
    if isinstance(value, Message):
        return message_to_json(value, version)
    if isinstance(value, bytes | bytearray | memoryview):
        return format_uuid(bytes(value)) if kind == "uuid" else base64.b64encode(value).decode()
    if isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a message holds a {type(value).__name__}")


def camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def compact(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
