"""Avro schemas as Java's Avro parses them. Pure.

The libraries fastavro and avro parse Avro too, but drop details that Confluent's canonical text needs: the order of properties,
defaults as they were written, names as they were split. So this is a separate parser, modelled on Schema.java.
"""

import re
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import Any

from barnabas.services.registry.formats import json_text
from barnabas.services.registry.formats.json_text import Json
from barnabas.services.registry.formats.limits import SchemaError, run

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED = frozenset({"record", "enum", "fixed"})
_RESERVED = frozenset({"doc", "fields", "items", "name", "namespace", "size", "symbols", "values", "type", "aliases"})
_FIELD_RESERVED = frozenset({"default", "doc", "name", "order", "type", "aliases"})
_ORDERS = ("ascending", "descending", "ignore")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_UNICODE_NAME = re.compile(r"[^\W\d]\w*\Z")
_FLOAT = re.compile(r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\Z")
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1


class Absent:
    """No default, which differs from a default of null."""


ABSENT = Absent()


@dataclass(frozen=True, slots=True)
class Name:
    simple: str
    space: str | None

    @property
    def full(self) -> str:
        return f"{self.space}.{self.simple}" if self.space else self.simple

    @staticmethod
    def of(name: str, space: str | None) -> "Name":
        if "." in name:
            space, _, name = name.rpartition(".")
        return Name(name, space or None)

    def within(self, space: str | None) -> str:
        """Return the name as written within the namespace `space`: short if it belongs there and is not a keyword of Avro."""
        words = PRIMITIVES | NAMED | {"array", "map", "union"}
        return self.simple if self.space and self.space == space and self.simple not in words else self.full


@dataclass(eq=False, slots=True)
class Type:
    """One type. All users of a named type share it, so that a recursive schema is a graph."""

    kind: str
    props: dict[str, Json] = field(default_factory=dict)
    name: Name | None = None
    doc: str | None = None
    aliases: list[Name] = field(default_factory=list)
    fields: "list[Field]" = field(default_factory=list)
    field_by_name: "dict[str, Field]" = field(default_factory=dict)
    symbols: list[str] = field(default_factory=list)
    default_symbol: str | None = None
    size: int = 0
    #: The items of an array, the values of a map, the branches of a union.
    children: "list[Type]" = field(default_factory=list)
    is_error: bool = False

    @property
    def full_name(self) -> str:
        return self.name.full if self.name else self.kind


@dataclass(eq=False, slots=True)
class Field:
    name: str
    type: Type
    doc: str | None
    default: Json | Absent
    order: str
    aliases: list[str]
    props: dict[str, Json]


def parse(text: str, references: Iterable[str], *, as_new: bool) -> tuple[Type, list[str]]:
    """Parse a text. Return its type, and the names of the types that the references define at their top level.

    `as_new` checks names and defaults strictly, for registrations. A stored schema may be older than the checks.
    """
    parser = _Parser(as_new=as_new)
    known = [parser.parse(reference).full_name for reference in references]
    return parser.parse(text), known


class _Parser:
    """Parses texts one after the other; later texts can use the names of earlier ones."""

    def __init__(self, *, as_new: bool) -> None:
        self._as_new = as_new
        self._named: dict[str, Type] = {}
        self._definitions: dict[str, tuple[Json, str | None]] = {}
        #: Names used before their definition, with stand-ins that the definition replaces.
        self._unresolved: dict[str, Type] = {}

    def parse(self, text: str) -> Type:
        parsed = self._type(json_text.loads(text, comments=True), None)
        if self._unresolved:
            raise SchemaError(f"Undefined schema: {next(iter(self._unresolved))}")
        if self._as_new:
            _check_defaults(parsed)
        return parsed

    def _type(self, node: Json, space: str | None) -> Type:
        if isinstance(node, str):
            return self._find(node, space)
        if isinstance(node, list):
            return self._union([self._type(branch, space) for branch in node])
        if not isinstance(node, dict):
            raise SchemaError(f"not an Avro schema: {_short(node)}")
        kind = node.get("type")
        if not isinstance(kind, str):
            raise SchemaError(f"No type: {_short(node)}")
        if kind in PRIMITIVES:
            return Type(kind, _properties(node, _RESERVED))
        if kind in ("array", "map"):
            return self._collection(kind, node, space)
        if kind in ("record", "error", "enum", "fixed"):
            return self._named_type(kind, node, space)
        # {"type": "other.Record"}: Avro before 1.12 takes this for a name.
        if self._lookup(kind, space):
            return self._find(kind, space)
        raise SchemaError(f"Undefined type: {kind}")

    def _collection(self, kind: str, node: dict[str, Any], space: str | None) -> Type:
        word = "items" if kind == "array" else "values"
        if word not in node:
            raise SchemaError(f"{kind.capitalize()} has no {word} type: {_short(node)}")
        return Type(kind, _properties(node, _RESERVED), children=[self._type(node[word], space)])

    def _union(self, branches: list[Type]) -> Type:
        seen: set[str] = set()
        for branch in branches:
            if branch.kind == "union":
                raise SchemaError("Nested union")
            if branch.full_name in seen:
                raise SchemaError(f"Duplicate in union:{branch.full_name}")
            seen.add(branch.full_name)
        return Type("union", children=branches)

    def _named_type(self, kind: str, node: dict[str, Any], space: str | None) -> Type:
        own_space = _text(node, "namespace")
        simple = _text(node, "name")
        if simple is None:
            raise SchemaError(f"No name in schema: {_short(node)}")
        name = Name.of(simple, space if own_space is None else own_space)
        self._check_full_name(name)
        if name.full in PRIMITIVES:
            raise SchemaError(f"Schemas may not be named after primitives: {name.full}")
        if name.full in self._definitions:
            if self._definitions[name.full] != (node, space):
                raise SchemaError(f"Can't redefine: {name.full}")
            return self._named[name.full]
        result = self._unresolved.pop(name.full, None) or Type(kind)
        result.kind = "record" if kind == "error" else kind
        result.is_error = kind == "error"
        result.name, result.doc = name, _text(node, "doc")
        self._definitions[name.full] = (node, space)
        self._named[name.full] = result
        if kind == "enum":
            self._enum(result, node)
        elif kind == "fixed":
            self._fixed(result, node)
        else:
            self._record(result, node)
        result.props = _properties(node, _RESERVED | {"default"} if kind == "enum" else _RESERVED)
        result.aliases = list(dict.fromkeys(Name.of(alias, name.space) for alias in _aliases(node)))
        return result

    def _record(self, result: Type, node: dict[str, Any]) -> None:
        assert result.name is not None
        fields = node.get("fields")
        if not isinstance(fields, list):
            raise SchemaError(f"Record has no fields: {_short(node)}")
        for item in fields:
            parsed = self._field(item, result.name.space)
            if parsed.name in result.field_by_name:
                raise SchemaError(f"Duplicate field {parsed.name} in record {result.full_name}")
            result.fields.append(parsed)
            result.field_by_name[parsed.name] = parsed

    def _field(self, node: Json, space: str | None) -> Field:
        name = _text(node, "name") if isinstance(node, dict) else None
        if not isinstance(node, dict) or name is None:
            raise SchemaError(f"No field name: {_short(node)}")
        self._check_name(name)
        if node.get("type") is None:
            raise SchemaError(f"No field type: {_short(node)}")
        kind = self._type(node["type"], space)
        order = node.get("order", "ascending")
        if not isinstance(order, str) or order.lower() not in _ORDERS:
            raise SchemaError(f"the order of field {name} is {_short(order)}: use one of {', '.join(_ORDERS)}")
        default = node.get("default", ABSENT)
        if kind.kind in ("float", "double") and isinstance(default, str):
            default = _number(name, default)
        properties = _properties(node, _FIELD_RESERVED)
        return Field(name, kind, _text(node, "doc"), default, order.lower(), _aliases(node), properties)

    def _enum(self, result: Type, node: dict[str, Any]) -> None:
        symbols = node.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
            raise SchemaError(f"Enum has no symbols: {_short(node)}")
        seen: set[str] = set()
        for symbol in symbols:
            self._check_name(symbol)
            if symbol in seen:
                raise SchemaError(f"Duplicate enum symbol: {symbol}")
            seen.add(symbol)
        default = _text(node, "default")
        if default is not None and default not in seen:
            raise SchemaError(f"The Enum Default: {default} is not in the enum symbol set: {_short(symbols)}")
        result.symbols, result.default_symbol = symbols, default

    def _fixed(self, result: Type, node: dict[str, Any]) -> None:
        size = node.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _INT_MAX:
            raise SchemaError(f"Invalid or no size: {_short(node)}")
        result.size = size

    def _lookup(self, name: str, space: str | None) -> Type | None:
        qualified = Name.of(name, space).full
        return self._named.get(qualified) or self._named.get(name)

    def _find(self, name: str, space: str | None) -> Type:
        if name in PRIMITIVES:
            return Type(name)
        if found := self._lookup(name, space):
            return found
        full = Name.of(name, space)
        return self._unresolved.setdefault(full.full, Type("unresolved", name=full))

    def _check_full_name(self, name: Name) -> None:
        self._check_name(name.simple)
        if self._as_new:
            for part in (name.space or "").split(".") if name.space else ():
                self._check_name(part)

    def _check_name(self, name: str) -> None:
        if not name:
            raise SchemaError("Empty name")
        if not (_NAME if self._as_new else _UNICODE_NAME).match(name):
            raise SchemaError(f"Illegal character in: {_short(name)}")


def _check_defaults(root: Type) -> None:
    """Check that the default of every field is a value of the field's type."""
    verdicts: dict[tuple[int, int], bool] = {}
    seen: set[int] = set()
    pending = [root]
    while pending:
        current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        pending += current.children
        for item in current.fields:
            pending.append(item.type)
            if item.default is not ABSENT and not run(_is_value(item.type, item.default, verdicts)):
                raise SchemaError(
                    f"Invalid default for field {item.name}: {_short(item.default)} not a {item.type.kind}"
                )


def _is_value(kind: Type, value: Json | Absent, verdicts: dict[tuple[int, int], bool]) -> Generator[Any, Any, bool]:
    """Whether a default fits. A record that contains itself through its defaults does not fit: an open verdict counts as no."""
    if isinstance(value, Absent):
        return False
    key = (id(kind), id(value))
    verdict = verdicts.get(key)
    if verdict is None:
        verdicts[key] = False
        verdict = verdicts[key] = yield from _judge(kind, value, verdicts)
    return verdict


def _judge(kind: Type, value: Any, verdicts: dict[tuple[int, int], bool]) -> Generator[Any, Any, bool]:
    match kind.kind:
        case "union":
            for branch in kind.children:
                if (yield _is_value(branch, value, verdicts)):
                    return True
            return False
        case "array" | "map":
            if not isinstance(value, list if kind.kind == "array" else dict):
                return False
            items: list[Any] = value if isinstance(value, list) else list(value.values())
            for item in items:
                if not (yield _is_value(kind.children[0], item, verdicts)):
                    return False
            return True
        case "record":
            if not isinstance(value, dict):
                return False
            for item in kind.fields:
                if not (yield _is_value(item.type, value.get(item.name, item.default), verdicts)):
                    return False
            return True
        case _:
            return _is_plain_value(kind.kind, value)


def _is_plain_value(kind: str, value: Any) -> bool:
    if kind == "null":
        return value is None
    if kind == "boolean":
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if kind in ("int", "long"):
        bound = _INT_MAX if kind == "int" else _LONG_MAX
        return isinstance(value, int) and -bound - 1 <= value <= bound
    if kind in ("float", "double"):
        return isinstance(value, int | float)
    return isinstance(value, str)


def _properties(node: dict[str, Any], reserved: frozenset[str]) -> dict[str, Json]:
    return {key: value for key, value in node.items() if key not in reserved}


def _aliases(node: dict[str, Any]) -> list[str]:
    aliases = node.get("aliases", [])
    if not isinstance(aliases, list):
        raise SchemaError(f"aliases not an array: {_short(node)}")
    for alias in aliases:
        if not isinstance(alias, str):
            raise SchemaError(f"alias not a string: {_short(alias)}")
    return list(dict.fromkeys(aliases))


def _text(node: dict[str, Any], key: str) -> str | None:
    value = node.get(key)
    return value if isinstance(value, str) else None


def _number(name: str, text: str) -> float:
    if not _FLOAT.match(text.strip()):
        raise SchemaError(f"Invalid default for field {name}: {_short(text)} is not a number")
    return float(text)


def _short(node: object) -> str:
    text = json_text.dumps(node) if isinstance(node, dict | list | str | int | float | None) else str(node)
    return text if len(text) <= 200 else text[:200] + "…"
