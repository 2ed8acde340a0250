"""The changes between two JSON Schemas, by Confluent's rules. Pure.

The rules apply to nodes of one kind (`json_model`). A pair of nodes is compared once, wherever it appears. A pair that appears
again during its own comparison is assumed compatible; if that turns out wrong, everything is compared again with that
knowledge, until nothing new is found.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

import re2

from barnabas.services.registry.formats import json_text
from barnabas.services.registry.formats.json_changes import COMPATIBLE
from barnabas.services.registry.formats.json_model import Document, Node
from barnabas.services.registry.formats.limits import DIFFERENCES_MAX, PAIR_STEPS, Budget, run

#: A longer path is cut in its middle.
_PATH_MAX = 10_000
#: Cost of compiling a pattern, in steps: a schema has few patterns, but a thousand may take a megabyte each.
_PATTERN_STEPS = 500


@dataclass(eq=False, slots=True)
class Changes:
    """Changes of a pair, with paths relative to it. Changes of inner pairs are linked, not copied."""

    items: "list[tuple[str, str | Changes]]" = field(default_factory=list)
    compatible: bool = True

    def add(self, change: str, path: str, compatible_changes: frozenset[str]) -> None:
        self.items.append((path, change))
        self.compatible = self.compatible and change in compatible_changes

    def include(self, inner: "Changes", path: str) -> None:
        if inner.items:
            self.items.append((path, inner))
            self.compatible = self.compatible and inner.compatible


_Steps = Generator[Any, Any, Changes]


def incompatible_changes(
    writer: Document, reader: Document, compatible_changes: frozenset[str] = COMPATIBLE
) -> list[tuple[str, str]]:
    """Return the changes that break a reader, with their paths: at most DIFFERENCES_MAX."""
    return flatten(compare(writer, reader, compatible_changes), compatible_changes)


def compare(writer: Document, reader: Document, compatible_changes: frozenset[str] = COMPATIBLE) -> Changes:
    budget = Budget()
    known: dict[tuple[int, int], Changes] = {}
    while True:
        comparison = _Comparison(writer, reader, compatible_changes, known, budget)
        changes = run(comparison.compare(writer.root, reader.root))
        broken = {pair: inner for pair, inner in comparison.memo.items() if not inner.compatible}
        if not comparison.assumed or broken.keys() == known.keys():
            return changes
        known = broken


def flatten(changes: Changes, without: frozenset[str] = frozenset()) -> list[tuple[str, str]]:
    """List the changes in order, except those in `without`. Branches without a relevant change are skipped, to save time."""
    found: list[tuple[str, str]] = []
    pending: list[tuple[str, str | Changes]] = [("#", changes)]
    while pending and len(found) < DIFFERENCES_MAX:
        path, item = pending.pop()
        if isinstance(item, Changes):
            if not (without and item.compatible):
                pending += [(f"{path}/{step}" if step else path, inner) for step, inner in reversed(item.items)]
        elif item not in without:
            text = path if path != "#" else "#/"
            found.append((item, text if len(text) <= _PATH_MAX else f"{text[:5000]}…{text[-4000:]}"))
    return found


class _Comparison:
    def __init__(
        self,
        writer: Document,
        reader: Document,
        compatible_changes: frozenset[str],
        known: dict[tuple[int, int], Changes],
        budget: Budget,
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._compatible_changes = compatible_changes
        self._known = known
        self._budget = budget
        self._in_comparison: set[tuple[int, int]] = set()
        #: Keeps nodes alive that references create during the comparison: pairs are known by identity.
        self._kept: list[Node] = []
        self._distincts: dict[int, list[Node]] = {}
        self._patterns = Patterns(budget)
        self._reversed = False
        self.memo: dict[tuple[int, int], Changes] = {}
        self.assumed = False

    def compare(self, original: Node | None, update: Node | None) -> _Steps:
        if original is None or update is None:
            changes = Changes()
            if original is not update:
                self._add(changes, "SCHEMA_ADDED" if original is None else "SCHEMA_REMOVED")
            return changes
        # Under `not` the roles are swapped, but each node finds its references in its own document.
        documents = (self._reader, self._writer) if self._reversed else (self._writer, self._reader)
        original, update = documents[0].resolve(original), documents[1].resolve(update)
        pair = (id(original), id(update))
        self._budget.spend()
        if pair in self.memo:
            return self.memo[pair]
        if pair in self._in_comparison:
            if pair in self._known:
                return self._known[pair]
            self.assumed = True
            return Changes()
        self._budget.spend(PAIR_STEPS)
        self._kept += (original, update)
        self._in_comparison.add(pair)
        changes = yield from self._compare(original, update)
        self._in_comparison.discard(pair)
        self.memo[pair] = changes
        return changes

    def _add(self, changes: Changes, change: str, path: str = "") -> None:
        changes.add(change, path, self._compatible_changes)

    def _compare(self, original: Node, update: Node) -> _Steps:
        taken = yield from self._one_of_a_sum(original, update)
        if taken is not None:
            return taken
        changes = Changes()
        if original.kind != update.kind:
            same_bytes = original.connect_type == update.connect_type == "bytes"
            if original.kind != "false" and not update.is_empty and not same_bytes:
                self._add(changes, "TYPE_CHANGED")
            return changes
        for attribute in ("identifier", "title", "description", "default"):
            if getattr(original, attribute) != getattr(update, attribute):
                self._add(changes, f"{attribute.replace('identifier', 'id').upper()}_CHANGED")
        compare: Callable[[Changes, Node, Node], Generator[Any, Any, None]] | None = {
            "string": self._strings,
            "number": self._numbers,
            "const": self._consts,
            "enum": self._enums,
            "combined": self._combined,
            "not": self._nots,
            "object": self._objects,
            "array": self._arrays,
            "metaschema": self._metaschemas,
        }.get(original.kind)
        if compare is not None:
            yield from compare(changes, original, update)
        return changes

    def _one_of_a_sum(self, original: Node, update: Node) -> Generator[Any, Any, Changes | None]:
        """Whether one schema became a sum that contains it, or a product that contained the new schema was reduced to it."""
        if (original.kind == "combined") == (update.kind == "combined"):
            return None
        whole = update if update.kind == "combined" else original
        if len(whole.children) != 1 and (whole.word == "allOf") != (whole is original):
            return None
        for child in whole.children:
            inner = yield self.compare(*((original, child) if whole is update else (child, update)))
            if inner.compatible:
                changes = Changes()
                changes.include(inner, "")
                if len(whole.children) != 1:
                    self._add(changes, "SUM_TYPE_EXTENDED" if whole is update else "PRODUCT_TYPE_NARROWED")
                return changes
        return None

    def _bounds(self, changes: Changes, original: Node, update: Node, words: dict[str, str]) -> None:
        for word, name in words.items():
            before, after = original.bounds.get(word), update.bounds.get(word)
            if before is None and after is not None:
                self._add(changes, f"{name}_ADDED", word)
            elif before is not None and after is None:
                self._add(changes, f"{name}_REMOVED", word)
            elif before is not None and before != after:
                self._add(changes, f"{name}_{'INCREASED' if before < after else 'DECREASED'}", word)

    def _strings(self, changes: Changes, original: Node, update: Node) -> Generator[Any, Any, None]:
        self._bounds(changes, original, update, {"maxLength": "MAX_LENGTH", "minLength": "MIN_LENGTH"})
        before, after = original.bounds.get("pattern"), update.bounds.get("pattern")
        if before != after:
            change = "ADDED" if before is None else "REMOVED" if after is None else "CHANGED"
            self._add(changes, f"PATTERN_{change}", "pattern")
        yield from ()

    def _numbers(self, changes: Changes, original: Node, update: Node) -> Generator[Any, Any, None]:
        words = {"maximum": "MAXIMUM", "minimum": "MINIMUM"}
        words |= {"exclusiveMaximum": "EXCLUSIVE_MAXIMUM", "exclusiveMinimum": "EXCLUSIVE_MINIMUM"}
        self._bounds(changes, original, update, words)
        before, after = original.bounds.get("multipleOf"), update.bounds.get("multipleOf")
        if before != after:
            self._add(changes, f"MULTIPLE_OF_{_multiples(before, after)}", "multipleOf")
        if original.bounds["integer"] != update.bounds["integer"]:
            self._add(changes, "TYPE_EXTENDED" if original.bounds["integer"] else "TYPE_NARROWED")
        yield from ()

    def _consts(self, changes: Changes, original: Node, update: Node) -> Generator[Any, Any, None]:
        if _key(original.bounds["const"]) != _key(update.bounds["const"]):
            self._add(changes, "ENUM_ARRAY_CHANGED", "const")
        yield from ()

    def _enums(self, changes: Changes, original: Node, update: Node) -> Generator[Any, Any, None]:
        before, after = original.bounds["enum"], update.bounds["enum"]
        self._budget.spend(len(before) + len(after))
        self._sets(changes, set(map(_key, before)), set(map(_key, after)), "ENUM_ARRAY", "enum")
        yield from ()

    def _sets(self, changes: Changes, before: Any, after: Any, name: str, path: str) -> None:
        if before != after:
            change = "EXTENDED" if after > before else "NARROWED" if before > after else "CHANGED"
            self._add(changes, f"{name}_{change}", path)

    def _metaschemas(self, changes: Changes, original: Node, update: Node) -> Generator[Any, Any, None]:
        if original.word != update.word:
            self._add(changes, "TYPE_CHANGED")
        yield from ()

    def _nots(self, changes: Changes, original: Node, update: Node) -> Generator[Any, Any, None]:
        """Compare the schemas under `not` with the roles swapped."""
        self._reversed = not self._reversed
        inner = yield self.compare(update.children[0], original.children[0])
        self._reversed = not self._reversed
        self._add(changes, "NOT_TYPE_NARROWED" if inner.compatible else "NOT_TYPE_EXTENDED", "not")

    def _combined(self, changes: Changes, original: Node, update: Node) -> Generator[Any, Any, None]:
        single, single_update = len(original.children) == 1, len(update.children) == 1
        if original.word != update.word:
            extended = (
                update.word == "anyOf"
                or (single and (single_update or update.word == "oneOf"))
                or (single_update and original.word == "allOf")
            )
            self._add(changes, "COMBINED_TYPE_EXTENDED" if extended else "COMBINED_TYPE_CHANGED")
            if not extended:
                return
        before, after = self._distinct(original), self._distinct(update)
        if len(before) < len(after):
            self._add(changes, "PRODUCT_TYPE_EXTENDED" if update.word == "allOf" else "SUM_TYPE_EXTENDED")
        elif len(before) > len(after):
            self._add(changes, "PRODUCT_TYPE_NARROWED" if original.word == "allOf" else "SUM_TYPE_NARROWED")
        fits: list[dict[int, Changes]] = []
        for child in before:
            row: dict[int, Changes] = {}
            for index, other in enumerate(after):
                inner = yield self.compare(child, other)
                if inner.compatible:
                    row[index] = inner
            fits.append(row)
        matched = _matching(fits, self._budget)
        for index, other_index in sorted(matched.items()):
            changes.include(fits[index][other_index], f"{original.word}/{index}")
        if len(matched) < min(len(before), len(after)):
            self._add(changes, "COMBINED_TYPE_SUBSCHEMAS_CHANGED")

    def _distinct(self, node: Node) -> list[Node]:
        if len(node.children) == 1:
            return node.children
        if id(node) not in self._distincts:
            found: dict[str, Node] = {}
            for child in node.children:
                text = child.text()
                self._budget.spend(len(text) // 10)
                found.setdefault(text, child)
            self._distincts[id(node)] = list(found.values())
        return self._distincts[id(node)]

    def _objects(self, changes: Changes, original: Node, update: Node) -> Generator[Any, Any, None]:
        self._required(changes, original, update)
        for key in dict.fromkeys((*original.properties, *update.properties)):
            path = f"properties/{key}"
            before, after = original.properties.get(key), update.properties.get(key)
            if before is not None and after is not None:
                changes.include((yield self.compare(before, after)), path)
            elif before is not None:
                cover = None if _is_open(update) else self._cover(update, key)
                yield from self._removed(changes, before, update, cover, path, "PROPERTY")
            elif after is not None:
                yield from self._property_added(changes, original, update, key, path)
        yield from self._dependencies(changes, original, update)
        yield from self._rest(changes, original, update, "ADDITIONAL_PROPERTIES", "additionalProperties")
        yield from self._unevaluated(changes, original, update, "UNEVALUATED_PROPERTIES", "unevaluatedProperties")
        self._bounds(changes, original, update, {"maxProperties": "MAX_PROPERTIES", "minProperties": "MIN_PROPERTIES"})

    def _required(self, changes: Changes, original: Node, update: Node) -> None:
        for key in original.properties:
            if key not in update.properties or (key in original.required) == (key in update.required):
                continue
            if key in original.required:
                change = "REQUIRED_ATTRIBUTE_REMOVED"
            elif update.properties[key].has_default:
                change = "REQUIRED_ATTRIBUTE_WITH_DEFAULT_ADDED"
            else:
                change = "REQUIRED_ATTRIBUTE_ADDED"
            self._add(changes, change, f"required/{key}")

    def _property_added(
        self, changes: Changes, original: Node, update: Node, key: str, path: str
    ) -> Generator[Any, Any, None]:
        """An added property: the original may have allowed it as an unnamed one, so data may contain it already."""
        added = update.properties[key]
        required, default = key in update.required, added.has_default
        if _is_open(original):
            if added.is_empty:
                self._add(changes, "PROPERTY_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL", path)
            elif required:
                with_default = "WITH_DEFAULT_" if default else ""
                self._add(changes, f"REQUIRED_PROPERTY_{with_default}ADDED_TO_OPEN_CONTENT_MODEL", path)
            else:
                self._add(changes, "OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", path)
            return
        cover = self._cover(original, key)
        if cover is not None:
            inner = yield self.compare(cover, added)
            changes.include(inner, path)
            covered = "IS" if inner.compatible else "NOT"
            self._add(changes, f"PROPERTY_ADDED_{covered}_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", path)
        if required:
            with_default = "WITH_DEFAULT_" if default else ""
            self._add(changes, f"REQUIRED_PROPERTY_{with_default}ADDED_TO_UNOPEN_CONTENT_MODEL", path)
        else:
            self._add(changes, "OPTIONAL_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL", path)

    def _removed(
        self, changes: Changes, before: Node, update: Node, cover: Node | None, path: str, name: str
    ) -> Generator[Any, Any, None]:
        """A removed property or item: whether it stays allowed depends on how the update treats unnamed ones."""
        if _is_open(update):
            self._add(changes, f"{name}_REMOVED_FROM_OPEN_CONTENT_MODEL", path)
        elif cover is not None:
            inner = yield self.compare(before, cover)
            changes.include(inner, path)
            covered = "IS" if inner.compatible else "NOT"
            self._add(changes, f"{name}_REMOVED_{covered}_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", path)
        elif before.kind == "false":
            self._add(changes, f"{name}_WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL", path)
        else:
            self._add(changes, f"{name}_REMOVED_FROM_CLOSED_CONTENT_MODEL", path)

    def _dependencies(self, changes: Changes, original: Node, update: Node) -> Generator[Any, Any, None]:
        for key in dict.fromkeys((*original.needed_properties, *update.needed_properties)):
            path = f"dependencies/{key}"
            before, after = original.needed_properties.get(key), update.needed_properties.get(key)
            if before is None or after is None:
                self._add(changes, "DEPENDENCY_ARRAY_ADDED" if before is None else "DEPENDENCY_ARRAY_REMOVED", path)
            else:
                self._sets(changes, before, after, "DEPENDENCY_ARRAY", path)
        for key in dict.fromkeys((*original.needed_schemas, *update.needed_schemas)):
            path = f"dependencies/{key}"
            schema, new_schema = original.needed_schemas.get(key), update.needed_schemas.get(key)
            if schema is None or new_schema is None:
                self._add(changes, f"DEPENDENCY_SCHEMA_{'ADDED' if schema is None else 'REMOVED'}", path)
            else:
                changes.include((yield self.compare(schema, new_schema)), path)

    def _rest(self, changes: Changes, original: Node, update: Node, name: str, path: str) -> Generator[Any, Any, None]:
        before, after = original.parts.get("rest"), update.parts.get("rest")
        if original.bounds["permits"] != update.bounds["permits"]:
            self._add(changes, f"{name}_{'ADDED' if update.bounds['permits'] else 'REMOVED'}", path)
        elif before is None and after is not None:
            self._add(changes, f"{name}_NARROWED", path)
        elif before is not None and after is None:
            self._add(changes, f"{name}_EXTENDED", path)
        else:
            changes.include((yield self.compare(before, after)), path)

    def _unevaluated(
        self, changes: Changes, original: Node, update: Node, name: str, path: str
    ) -> Generator[Any, Any, None]:
        before, after = original.parts.get("unevaluated"), update.parts.get("unevaluated")
        if before is None and after is None:
            return
        shut = before is not None and before.kind == "false"
        shuts = after is not None and after.kind == "false"
        opened, opens = before is None or before.is_empty, after is None or after.is_empty
        if shut != shuts:
            self._add(changes, f"{name}_{'ADDED' if shut else 'REMOVED'}", path)
        elif (before is None) != (after is None) or opened != opens:
            narrowed = before is None if (before is None) != (after is None) else opened
            self._add(changes, f"{name}_{'NARROWED' if narrowed else 'EXTENDED'}", path)
        else:
            changes.include((yield self.compare(before, after)), path)

    def _arrays(self, changes: Changes, original: Node, update: Node) -> Generator[Any, Any, None]:
        changes.include((yield self.compare(original.parts.get("items"), update.parts.get("items"))), "items")
        for index in range(max(len(original.children), len(update.children))):
            before = original.children[index] if index < len(original.children) else None
            after = update.children[index] if index < len(update.children) else None
            path = f"items/{index}"
            if before is not None and after is not None:
                changes.include((yield self.compare(before, after)), path)
            elif before is not None:
                yield from self._removed(changes, before, update, self._cover(update, None), path, "ITEM")
            elif after is not None:
                yield from self._item_added(changes, original, after, path)
        yield from self._rest(changes, original, update, "ADDITIONAL_ITEMS", "additionalItems")
        yield from self._unevaluated(changes, original, update, "UNEVALUATED_ITEMS", "unevaluatedItems")
        self._bounds(changes, original, update, {"maxItems": "MAX_ITEMS", "minItems": "MIN_ITEMS"})
        if original.bounds["uniqueItems"] != update.bounds["uniqueItems"]:
            self._add(
                changes, f"UNIQUE_ITEMS_{'REMOVED' if original.bounds['uniqueItems'] else 'ADDED'}", "uniqueItems"
            )
        self._bounds(changes, original, update, {"maxContains": "MAX_CONTAINS", "minContains": "MIN_CONTAINS"})

    def _item_added(self, changes: Changes, original: Node, added: Node, path: str) -> Generator[Any, Any, None]:
        cover = self._cover(original, None)
        if _is_open(original):
            with_empty = "ITEM_WITH_EMPTY_SCHEMA_ADDED" if added.is_empty else "ITEM_ADDED"
            self._add(changes, f"{with_empty}_TO_OPEN_CONTENT_MODEL", path)
        elif cover is not None:
            inner = yield self.compare(cover, added)
            changes.include(inner, path)
            covered = "IS" if inner.compatible else "NOT"
            self._add(changes, f"ITEM_ADDED_{covered}_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", path)
        else:
            self._add(changes, "ITEM_ADDED_TO_CLOSED_CONTENT_MODEL", path)

    def _cover(self, node: Node, name: str | None) -> Node | None:
        """Return the schema that applies to an unnamed property or item: a pattern's, or the one for all others."""
        if name is not None:
            for pattern, schema in node.patterns.items():
                if self._patterns.match(pattern, name):
                    return schema
        if "rest" in node.parts:
            return node.parts["rest"]
        unevaluated = node.parts.get("unevaluated")
        if not node.bounds["permits"] or unevaluated is None or unevaluated.kind == "false" or unevaluated.is_empty:
            return None
        return unevaluated


class Patterns:
    """RE2 takes linear time for every pattern. A pattern that RE2 does not support (look-ahead) matches nothing here."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._options = re2.Options()
        self._options.log_errors = False
        self._options.max_mem = 1 << 18
        self._compiled: dict[str, Any] = {}

    def match(self, pattern: str, text: str) -> bool:
        self._budget.spend(1 + len(text) // 100)
        if pattern not in self._compiled:
            self._budget.spend(_PATTERN_STEPS)
            try:
                self._compiled[pattern] = re2.compile(pattern, self._options)
            except re2.error:
                self._compiled[pattern] = None
        compiled = self._compiled[pattern]
        return compiled is not None and compiled.search(text) is not None


def _is_open(node: Node) -> bool:
    """Whether the schema allows any unnamed property or item."""
    unevaluated = node.parts.get("unevaluated")
    closed = not node.bounds["permits"] or "rest" in node.parts or bool(node.patterns)
    return not closed and (unevaluated is None or unevaluated.is_empty)


def _multiples(before: Any, after: Any) -> str:
    if before is None:
        return "ADDED"
    if after is None:
        return "REMOVED"
    if _divides(before, after):
        return "EXPANDED"
    return "REDUCED" if _divides(after, before) else "CHANGED"


def _divides(divisor: Any, number: Any) -> bool:
    try:
        return bool(divisor != 0 and Decimal(number) % Decimal(divisor) == 0)
    except InvalidOperation:  # the quotient has more digits than the context keeps
        return False


def _key(value: Any) -> str:
    return json_text.dumps(json_text.sorted_keys(value))


def _matching(fits: list[dict[int, Changes]], budget: Budget) -> dict[int, int]:
    """Return a maximum matching, by augmenting paths, from left to right."""
    left_of: dict[int, int] = {}
    for start in range(len(fits)):
        came_from: dict[int, int] = {}
        queue = [start]
        free: int | None = None
        while queue and free is None:
            left = queue.pop(0)
            budget.spend(1 + len(fits[left]) // 10)
            for right in fits[left]:
                if right in came_from:
                    continue
                came_from[right] = left
                if right not in left_of:
                    free = right
                    break
                queue.append(left_of[right])
        right_of = {left: right for right, left in left_of.items()} if free is not None else {}
        while free is not None:
            left = came_from[free]
            left_of[free], free = left, right_of.get(left)
    return {left: right for right, left in left_of.items()}
