"""JSON Schemas as Confluent's registry models them: one kind of node for each kind of constraint. Pure.

Confluent compares the objects that its loaders make: Everit's for drafts 4 to 7, json-sKema's for 2019-09 and 2020-12. A
schema with constraints of several kinds is the product of one node of each. So `{"type": "string", "enum": ["a"]}` is an
`allOf` of a string and an enum, and `{"type": ["string", "null"]}` an `anyOf` of two.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from barnabas.services.registry.formats import json_text
from barnabas.services.registry.formats.json_text import Json
from barnabas.services.registry.formats.limits import SchemaError

DRAFTS = {
    "json-schema.org/schema": "draft-04",
    "json-schema.org/draft-04/schema": "draft-04",
    "json-schema.org/draft-06/schema": "draft-06",
    "json-schema.org/draft-07/schema": "draft-07",
    "json-schema.org/draft/2019-09/schema": "2019-09",
    "json-schema.org/draft/2020-12/schema": "2020-12",
}
_MODERN = ("2019-09", "2020-12")
_TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")
_NUMBERS = ("minimum", "maximum", "multipleOf")
_LIMITS = ("exclusiveMinimum", "exclusiveMaximum")
_STRING_WORDS = {"minLength", "maxLength", "pattern"}
_NUMBER_WORDS = {*_NUMBERS, *_LIMITS}
_ARRAY_WORDS = {"items", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains"}
_ARRAY_WORDS_MODERN = {"prefixItems", "items", "minItems", "maxItems", "uniqueItems", "contains", "unevaluatedItems"}
_OBJECT_WORDS = {
    *("properties", "required", "minProperties", "maxProperties"),
    *("patternProperties", "additionalProperties", "propertyNames"),
}
_CONDITION = ("if", "then", "else")
_BASE = "mem://input"


@dataclass(eq=False, slots=True)
class Node:
    """A schema of one kind. Compared by identity: a schema that refers to itself is a graph."""

    kind: str
    source: Json
    #: The keyword of a combination (`anyOf`, `allOf` or `oneOf`), or the target of a reference.
    word: str = ""
    children: "list[Node]" = field(default_factory=list)
    #: Bounds, patterns and values, by keyword.
    bounds: dict[str, Any] = field(default_factory=dict)
    #: Schemas of an object's or an array's parts, by keyword.
    parts: "dict[str, Node]" = field(default_factory=dict)
    properties: "dict[str, Node]" = field(default_factory=dict)
    patterns: "dict[str, Node]" = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    needed_properties: dict[str, frozenset[str]] = field(default_factory=dict)
    needed_schemas: "dict[str, Node]" = field(default_factory=dict)
    title: Json = None
    description: Json = None
    identifier: Json = None
    default: Json = None
    has_default: bool = False
    connect_type: Json = None
    #: The target of a reference, once it is resolved.
    target: "Node | None" = None

    @property
    def is_empty(self) -> bool:
        return self.kind in ("empty", "true")

    def text(self) -> str:
        return f"{self.kind} {self.word} {json_text.dumps(json_text.sorted_keys(self.source))}"


class Document:
    """A JSON Schema with the schemas that it refers to. Each place in the text has one node."""

    def __init__(self, root: Json, references: Mapping[str, Json]) -> None:
        self.draft = draft_of(root)
        self._modern = self.draft in _MODERN
        self._id_word = "id" if self.draft == "draft-04" else "$id"
        self._nodes: dict[int, Node] = {}
        #: By the address without a fragment, and by the address with an anchor.
        self._resources: dict[str, Json] = {}
        self._bases: dict[int, str] = {}
        base = _BASE
        if isinstance(root, dict) and isinstance(root.get(self._id_word), str):
            base = urljoin(_BASE + "/", urldefrag(root[self._id_word]).url) or _BASE
        for name, reference in references.items():
            for address in dict.fromkeys((urldefrag(name).url, _join(base, name), _join(_BASE, name))):
                self._resources.setdefault(address, reference)
            self._index(reference, _join(base, name))
        self._resources[base] = self._resources[_BASE] = root
        self._index(root, base)
        self._root = root

    @cached_property
    def root(self) -> Node:
        return self.node(self._root)

    def check(self) -> None:
        """Check that every schema in the document is valid, and that every reference resolves."""
        pending = [self.root]
        seen: set[int] = set()
        while pending:
            node = pending.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            if node.kind == "reference":
                pending.append(self.resolve(node))
            pending += _inner(node)
        for word in ("definitions", "$defs"):
            defined = self._root.get(word) if isinstance(self._root, dict) else None
            for item in defined.values() if isinstance(defined, dict) else ():
                if isinstance(item, dict | bool):
                    self.node(item)

    def node(self, source: Json) -> Node:
        if isinstance(source, bool):
            return Node("true" if source else "false", source)
        if not isinstance(source, dict):
            raise SchemaError(f"a JSON Schema is an object or a boolean, not {_short(source)}")
        known = self._nodes.get(id(source))
        if known is None:
            known = self._nodes[id(source)] = self._make(source)
        return known

    def resolve(self, node: Node) -> Node:
        """Follow a reference to its end; return an empty schema if it refers to itself."""
        if node.kind != "reference":
            return node
        if node.target is None:
            walked: dict[int, Node] = {}
            end = node
            while end.kind == "reference":
                if id(end) in walked:
                    end = Node("empty", True)
                    break
                walked[id(end)] = end
                end = end.target or self._target(end)
            for passed in walked.values():  # a long chain is followed once, wherever a reference enters it
                passed.target = end
            return end
        return node.target

    def _target(self, node: Node) -> Node:
        address, fragment = urldefrag(node.word)
        whole = f"{address}#{fragment}"
        if fragment and whole in self._resources:
            return self.node(self._resources[whole])
        if address not in self._resources:
            if address.removeprefix("https://").removeprefix("http://") in DRAFTS:
                return Node("metaschema", True, word=address)
            raise SchemaError(f"the reference {_short(node.word)} is not resolved: references are not downloaded")
        return self.node(_point(self._resources[address], unquote(fragment), node.word))

    def _make(self, source: dict[str, Any]) -> Node:
        nodes = list(self._constraints(source))
        if not nodes:
            result = Node("empty", source)
        elif len(nodes) == 1:
            [result] = nodes
        else:
            result = Node("combined", source, word="allOf", children=nodes)
        result.title, result.description = source.get("title"), source.get("description")
        result.identifier, result.connect_type = source.get(self._id_word), source.get("connect.type")
        if "default" in source:
            result.default, result.has_default = source["default"], True
        return result

    def _constraints(self, source: dict[str, Any]) -> Iterator[Node]:
        if "$ref" in source:
            if not isinstance(source["$ref"], str):
                raise SchemaError(f"$ref is a text, not {_short(source['$ref'])}")
            yield Node("reference", source, word=_join(self._bases.get(id(source), _BASE), source["$ref"]))
            if not self._modern:
                return
        if "enum" in source:
            yield Node("enum", source, bounds={"enum": _array(source, "enum")})
        for word in ("allOf", "anyOf", "oneOf"):
            if word in source:
                children = [self.node(item) for item in _array(source, word)]
                yield Node("combined", source, word=word, children=children)
        if "not" in source:
            yield Node("not", source, children=[self.node(source["not"])])
        if "const" in source and self.draft != "draft-04":
            yield Node("const", source, bounds={"const": source["const"]})
        types = source.get("type", [])
        named = [types] if isinstance(types, str) else _array(source, "type") if "type" in source else []
        for name in named:
            if name not in _TYPES:
                raise SchemaError(f"unknown type: {_short(name)}")
        typed = [self._typed(name, source) for name in named]
        if isinstance(types, list) and typed:
            yield Node("combined", source, word="anyOf", children=typed)
        else:
            yield from typed
        yield from self._sniffed(source, {_kind(name) for name in named})

    def _sniffed(self, source: dict[str, Any], have: set[str]) -> Iterator[Node]:
        """Constraints of a type that the schema does not name apply to values that happen to have that type."""
        string_words = _STRING_WORDS if self._modern else _STRING_WORDS | {"format"}
        array_words = _ARRAY_WORDS_MODERN if self._modern else _ARRAY_WORDS
        object_words = _OBJECT_WORDS | (
            {"dependentRequired", "dependentSchemas", "unevaluatedProperties"} if self._modern else {"dependencies"}
        )
        for kind, words in (
            ("array", array_words),
            ("object", object_words),
            ("number", _NUMBER_WORDS),
            ("string", string_words),
        ):
            if kind not in have and not words.isdisjoint(source):
                yield self._typed(kind, source)
        if self.draft not in ("draft-04", "draft-06") and any(word in source for word in _CONDITION):
            yield Node(
                "conditional", source, children=[self.node(source[word]) for word in _CONDITION if word in source]
            )

    def _typed(self, name: str, source: dict[str, Any]) -> Node:
        kind = _kind(name)
        node = Node(kind, source)
        if kind == "string":
            node.bounds = _counts(source, ("minLength", "maxLength"))
            if "pattern" in source:
                node.bounds["pattern"] = _pattern(source["pattern"])
        elif kind == "number":
            node.bounds = self._number_bounds(source)
            node.bounds["integer"] = name == "integer"
        elif kind == "array":
            self._array_parts(node, source)
        elif kind == "object":
            self._object_parts(node, source)
        return node

    def _number_bounds(self, source: dict[str, Any]) -> dict[str, Any]:
        bounds: dict[str, Any] = {}
        for word in (*_NUMBERS, *_LIMITS):
            value = source.get(word)
            if word not in source:
                continue
            if word in _LIMITS and isinstance(value, bool):  # draft 4: the bound itself is excluded
                bound = source.get("minimum" if word == "exclusiveMinimum" else "maximum")
                if value and bound is not None:
                    bounds[word] = _number(word, bound)
            else:
                bounds[word] = _number(word, value)
        return bounds

    def _array_parts(self, node: Node, source: dict[str, Any]) -> None:
        node.bounds = _counts(source, ("minItems", "maxItems"))
        node.bounds["uniqueItems"] = _boolean(source, "uniqueItems")
        node.bounds["permits"] = True
        for word in ("minContains", "maxContains"):
            if isinstance(source.get(word), int | Decimal) and not isinstance(source[word], bool):
                node.bounds[word] = source[word]
        if "contains" in source:
            node.parts["contains"] = self.node(source["contains"])
            if self._modern:
                node.bounds.setdefault("minContains", 1)
        items = source.get("items")
        tuple_items = source.get("prefixItems") if self._modern and "prefixItems" in source else items
        if isinstance(tuple_items, list):
            node.children = [self.node(item) for item in tuple_items]
        rest_word = "items" if self._modern and not isinstance(items, list) else "additionalItems"
        if rest_word in source and (rest_word == "additionalItems" or node.children):
            self._rest(node, source[rest_word], "additionalItems")
        elif "items" in source and not isinstance(items, list):
            if self._modern and items is False:
                node.bounds["permits"] = False
            elif not (self._modern and items is True):
                node.parts["items"] = self.node(items)
        if self._modern and "unevaluatedItems" in source:
            node.parts["unevaluated"] = self.node(source["unevaluatedItems"])

    def _object_parts(self, node: Node, source: dict[str, Any]) -> None:
        node.bounds = _counts(source, ("minProperties", "maxProperties"))
        node.bounds["permits"] = True
        node.properties = {key: self.node(item) for key, item in _object(source, "properties").items()}
        if isinstance(source.get("required", []), list):  # draft 3 had a boolean here
            node.required = _texts(source.get("required", []), "required")
        for pattern, item in _object(source, "patternProperties").items():
            node.patterns[_pattern(pattern)] = self.node(item)
        if "propertyNames" in source:
            node.parts["names"] = self.node(source["propertyNames"])
        if "additionalProperties" in source:
            self._rest(node, source["additionalProperties"], "additionalProperties")
        if self._modern and "unevaluatedProperties" in source:
            node.parts["unevaluated"] = self.node(source["unevaluatedProperties"])
        for word in ("dependentRequired", "dependentSchemas") if self._modern else ("dependencies",):
            for key, item in _object(source, word).items():
                if isinstance(item, list):
                    node.needed_properties[key] = _texts(item, word)
                else:
                    node.needed_schemas[key] = self.node(item)

    def _rest(self, node: Node, source: Json, word: str) -> None:
        """Set the rule for everything that other keywords do not name: all is allowed, nothing, or what a schema allows."""
        if source is False:
            node.bounds["permits"] = False
        elif source is not True:
            node.parts["rest"] = self.node(source)

    def _index(self, source: Json, base: str) -> None:
        """Index the base address of each reference, and the parts that have an address of their own."""
        pending: list[tuple[Json, str]] = [(source, base)]
        while pending:
            item, here = pending.pop()
            if isinstance(item, list):
                pending += [(inner, here) for inner in item]
            if not isinstance(item, dict):
                continue
            identifier = item.get(self._id_word)
            if isinstance(identifier, str) and item is not source:
                address, fragment = urldefrag(identifier)
                if fragment and not address:
                    self._resources.setdefault(f"{here}#{fragment}", item)
                else:
                    here = _join(here, address)
                    self._resources.setdefault(here, item)
            for word in ("$anchor", "$dynamicAnchor"):
                if isinstance(item.get(word), str):
                    self._resources.setdefault(f"{here}#{item[word]}", item)
            if "$ref" in item:
                self._bases[id(item)] = here
            pending += [(inner, here) for inner in item.values()]


def draft_of(root: Json) -> str:
    """Return the draft: draft 7 unless `$schema` names another known one."""
    said = root.get("$schema") if isinstance(root, dict) else None
    if not isinstance(said, str):
        return "draft-07"
    return DRAFTS.get(said.removesuffix("#").removeprefix("https://").removeprefix("http://"), "draft-07")


def _inner(node: Node) -> Iterator[Node]:
    yield from node.children
    for group in (node.parts, node.properties, node.patterns, node.needed_schemas):
        yield from group.values()


def _kind(name: str) -> str:
    return "number" if name == "integer" else name


def _join(base: str, name: str) -> str:
    """Like urljoin, which does not know `mem:`; a fragment alone stays in the document."""
    if name.startswith("#"):
        return urldefrag(base).url + name
    joined = urljoin(base.replace("mem://", "http://", 1), name)
    return joined.replace("http://input", _BASE, 1) if base.startswith("mem://") else joined


def _point(document: Json, pointer: str, reference: str) -> Json:
    current = document
    if pointer and not pointer.startswith("/"):
        raise SchemaError(f"the reference {_short(reference)} is not resolved: no anchor {_short(pointer)}")
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(current, dict) and step in current:
            current = current[step]
        elif isinstance(current, dict) and step == "$defs" and isinstance(current.get("definitions"), dict):
            current = current["definitions"]  # Confluent finds a definition under either word
        elif isinstance(current, list) and step.isdecimal() and int(step[:9]) < len(current):
            current = current[int(step[:9])]
        else:
            raise SchemaError(f"the reference {_short(reference)} is not resolved: nothing at {_short(step)}")
    return current


def _counts(source: dict[str, Any], words: tuple[str, ...]) -> dict[str, Any]:
    counts: dict[str, Any] = {}
    for word in words:
        if word in source:
            value = source[word]
            if isinstance(value, bool) or not isinstance(value, int | Decimal) or value < 0 or not _is_whole(value):
                raise SchemaError(f"{word} is a whole number, not {_short(value)}")
            counts[word] = value
    return counts


def _is_whole(value: int | Decimal) -> bool:
    return isinstance(value, int) or value == value.to_integral_value()


def _number(word: str, value: Json) -> int | Decimal:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise SchemaError(f"{word} is a number, not {_short(value)}")
    return value


def _boolean(source: dict[str, Any], word: str) -> bool:
    value = source.get(word, False)
    if not isinstance(value, bool):
        raise SchemaError(f"{word} is a boolean, not {_short(value)}")
    return value


def _array(source: dict[str, Any], word: str) -> list[Any]:
    value = source.get(word, [])
    if not isinstance(value, list):
        raise SchemaError(f"{word} is an array, not {_short(value)}")
    return value


def _object(source: dict[str, Any], word: str) -> dict[str, Any]:
    value = source.get(word, {})
    if not isinstance(value, dict):
        raise SchemaError(f"{word} is an object, not {_short(value)}")
    return value


def _texts(value: list[Any], word: str) -> frozenset[str]:
    for item in value:
        if not isinstance(item, str):
            raise SchemaError(f"{word} lists texts, not {_short(item)}")
    return frozenset(value)


def _pattern(pattern: Json) -> str:
    if not isinstance(pattern, str):
        raise SchemaError(f"a pattern is a text, not {_short(pattern)}")
    return pattern


def _short(value: object) -> str:
    text = json_text.dumps(value) if isinstance(value, dict | list | str | int | None) else str(value)
    return text if len(text) <= 200 else text[:200] + "…"
