"""Avro schemas as text: Java's Schema.toString, and Confluent's normalized form. Pure."""

import math
from collections.abc import Iterable
from typing import Any

from barnabas.base.json_reader import DEPTH_MAX
from barnabas.services.registry.formats import json_text
from barnabas.services.registry.formats.avro_types import ABSENT, Absent, Field, Type
from barnabas.services.registry.formats.json_text import Json
from barnabas.services.registry.formats.limits import SchemaError

#: The logical types that Java's Avro knows, and their base types. Other logical types are ordinary properties.
_LOGICAL = {
    "big-decimal": {"bytes"},
    "date": {"int"},
    "time-millis": {"int"},
    "time-micros": {"long"},
    "timestamp-millis": {"long"},
    "timestamp-micros": {"long"},
    "timestamp-nanos": {"long"},
    "local-timestamp-millis": {"long"},
    "local-timestamp-micros": {"long"},
    "local-timestamp-nanos": {"long"},
}


def canonical(root: Type, known: Iterable[str]) -> str:
    """Write a type in full where it first appears and by its name after that; `known` types by name only."""
    return json_text.dumps(_Writer(set(known), normalize=False).write(root, None))


def normalized(root: Type, known: Iterable[str]) -> str:
    """Write the normalized form: properties sorted, and without an empty doc or the default order.

    Confluent writes this form with full names and parses it again; it stores the canonical text of the result.
    """
    return json_text.dumps(_Writer(set(known), normalize=True).write(root, None))


class _Writer:
    def __init__(self, known: set[str], *, normalize: bool) -> None:
        self._known = known
        self._normalize = normalize

    def write(self, kind: Type, space: str | None, depth: int = 0) -> Json:
        """Write a type where it is first used, even if it is defined later, so flat text may become deeply nested."""
        if depth > DEPTH_MAX:
            raise SchemaError(f"types nested more than {DEPTH_MAX} deep, which is the limit")
        match kind.kind:
            case "union":
                return [self.write(branch, space, depth + 1) for branch in kind.children]
            case "array" | "map":
                word = "items" if kind.kind == "array" else "values"
                inner = self.write(kind.children[0], space, depth + 1)
                return {"type": kind.kind, word: inner, **self._properties(kind)}
            case "record" | "enum" | "fixed":
                return self._named(kind, space, depth)
            case _:
                properties = self._properties(kind)
                return {"type": kind.kind, **properties} if properties else kind.kind

    def _named(self, kind: Type, space: str | None, depth: int) -> Json:
        name = kind.name
        assert name is not None
        if name.full in self._known:
            return name.within(space)
        self._known.add(name.full)
        written: dict[str, Json] = {"type": "error" if kind.is_error and not self._normalize else kind.kind}
        written["name"] = name.simple
        if name.space != space:
            written["namespace"] = name.space or ""
        if kind.doc is not None and (kind.doc or not self._normalize):
            written["doc"] = kind.doc
        if kind.kind == "record":
            written["fields"] = [self._field(item, name.space, depth + 3) for item in kind.fields]
        elif kind.kind == "enum":
            written["symbols"] = list(kind.symbols)
            if kind.default_symbol is not None:
                written["default"] = kind.default_symbol
        else:
            written["size"] = kind.size
        written |= self._properties(kind)
        if kind.aliases:
            aliases = [alias.within(name.space) for alias in kind.aliases]
            if self._normalize:  # sorted by full names
                ordered = sorted(kind.aliases, key=lambda alias: json_text.utf16(alias.full))
                aliases = [alias.within(name.space) for alias in ordered]
            written["aliases"] = aliases
        return written

    def _field(self, item: Field, space: str | None, depth: int) -> Json:
        written: dict[str, Json] = {"name": item.name, "type": self.write(item.type, space, depth)}
        if item.doc is not None:
            written["doc"] = item.doc
        default = _as_read(item.default, item.type) if self._normalize else item.default
        if not isinstance(default, Absent):
            written["default"] = json_text.sorted_keys(default) if self._normalize else default
        if item.order != "ascending":
            written["order"] = item.order
        if item.aliases:
            written["aliases"] = sorted(item.aliases, key=json_text.utf16) if self._normalize else item.aliases
        return written | (_in_order(item.props) if self._normalize else item.props)

    def _properties(self, kind: Type) -> dict[str, Json]:
        if not self._normalize:
            return kind.props
        first = [key for key in ("logicalType", "precision", "scale") if _is_logical(kind) and key in kind.props]
        if kind.props.get("logicalType") != "decimal":
            first = first[:1]
        elif kind.props.get("scale") == 0:
            first = [key for key in first if key != "scale"]
        return {key: kind.props[key] for key in first} | _in_order(kind.props)


def _in_order(properties: dict[str, Json]) -> dict[str, Json]:
    ordered = json_text.sorted_keys(properties)
    assert isinstance(ordered, dict)
    return ordered


def _is_logical(kind: Type) -> bool:
    """Whether Java's Avro accepts the logical type: it ignores one that does not fit its base type."""
    logical = kind.props.get("logicalType")
    if logical == "uuid":
        return kind.kind == "string" or (kind.kind == "fixed" and kind.size == 16)
    if logical == "duration":
        return kind.kind == "fixed" and kind.size == 12
    if logical == "decimal":
        precision, scale = kind.props.get("precision"), kind.props.get("scale", 0)
        if kind.kind not in ("bytes", "fixed") or type(precision) is not int or type(scale) is not int:
            return False
        digits_max = 2**31 - 1 if kind.kind == "bytes" else math.floor(math.log10(2) * (8 * kind.size - 1))
        return 0 < precision <= digits_max and 0 <= scale <= precision
    return isinstance(logical, str) and kind.kind in _LOGICAL.get(logical, ())


def _as_read(value: Any, kind: Type | None) -> Json | Absent:
    """A default as Java holds it: a whole number of a floating type gets a decimal point; a wrong type yields no value."""
    if value is ABSENT or value is None:
        return value
    if kind is not None and kind.kind == "union":
        for branch in kind.children:
            read = ABSENT if branch.kind == "null" else _as_read(value, branch)
            if read is not ABSENT:
                return read
        return ABSENT
    word = kind.kind if kind is not None else None
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return _number_as_read(value, word)
    if isinstance(value, str):
        return value if word in (None, "string", "enum", "bytes", "fixed") else ABSENT
    if isinstance(value, list):
        item_type = kind.children[0] if kind is not None and word == "array" else None
        return [_or_null(_as_read(item, item_type)) for item in value]
    read_object: dict[str, Json] = {}
    for key, item in value.items():
        inner = None
        if kind is not None and word == "map":
            inner = kind.children[0]
        elif kind is not None and word == "record" and key in kind.field_by_name:
            inner = kind.field_by_name[key].type
        read_object[key] = _or_null(_as_read(item, inner))
    return read_object


def _number_as_read(value: int | float, word: str | None) -> Json | Absent:
    if word in ("double", "float"):
        return float(value)
    if word is None or (isinstance(value, int) and word in ("int", "long")):
        return value
    return ABSENT


def _or_null(value: Json | Absent) -> Json:
    return None if isinstance(value, Absent) else value
