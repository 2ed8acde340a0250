"""The changes between two .proto files, by Confluent's rules. Pure.

A field is identified by its number, wherever it is in a message. A message that both files define is compared once; the
type of an imported field is compared where it is used.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from barnabas.services.registry.formats.limits import DIFFERENCES_MAX, PAIR_STEPS, Budget, run
from barnabas.services.registry.formats.proto_model import SCALARS, Enum, Field, File, Message, Names, joined

COMPATIBLE = frozenset(
    {
        *("MESSAGE_ADDED", "MESSAGE_MOVED", "ENUM_ADDED", "ENUM_REMOVED"),
        *("ENUM_CONST_ADDED", "ENUM_CONST_CHANGED", "ENUM_CONST_REMOVED"),
        *("FIELD_ADDED", "FIELD_REMOVED", "FIELD_NAME_CHANGED", "FIELD_STRING_OR_BYTES_LABEL_CHANGED"),
        *("ONEOF_ADDED", "ONEOF_REMOVED", "ONEOF_FIELD_ADDED", "ONEOF_FIELD_MOVED_TO_TOP_LEVEL"),
    }
)
_WORDS = {
    "PACKAGE_CHANGED": "The package at '{path}' in the {reader} schema does not match the package in the {writer} schema",
    "MESSAGE_REMOVED": "The {reader} schema is missing a MESSAGE type at path '{path}' in the {writer} schema",
    "FIELD_KIND_CHANGED": "The type of a field at path '{path}' in the {reader} schema does not match the {writer} schema",
    "FIELD_SCALAR_KIND_CHANGED": "The kind of a SCALAR field at path '{path}' in the {reader} schema does not match its "
    "kind in the {writer} schema",
    "FIELD_NAMED_TYPE_CHANGED": "The type of a MESSAGE field at path '{path}' in the {reader} schema does not match its "
    "type in the {writer} schema",
    "FIELD_NUMERIC_LABEL_CHANGED": "The label for a NUMERIC field at path '{path}' in the {reader} schema does not match "
    "its label in the {writer} schema",
    "REQUIRED_FIELD_ADDED": "A required field  at path '{path}' in the {reader} schema is missing in the {writer} schema",
    "REQUIRED_FIELD_REMOVED": "The {reader} schema is missing a required field at path: '{path}' in the {writer} schema",
    "ONEOF_FIELD_REMOVED": "The {reader} schema is missing a oneof field at path '{path}' in the {writer} schema",
    "MULTIPLE_FIELDS_MOVED_TO_ONEOF": "Multiple fields in the oneof at path '{path}' in the {reader} schema are outside a "
    "oneof in the {writer} schema",
    "FIELD_MOVED_TO_EXISTING_ONEOF": "A field in the oneof at path '{path}' in the {reader} schema is outside an existing "
    "oneof in the {writer} schema",
}
#: Scalars with the same encoding: one may be read as another.
_SCALAR_KINDS = {
    **dict.fromkeys(("int32", "int64", "uint32", "uint64", "bool"), "general number"),
    **dict.fromkeys(("sint32", "sint64"), "signed number"),
    **dict.fromkeys(("fixed32", "sfixed32"), "fixed32"),
    **dict.fromkeys(("fixed64", "sfixed64"), "fixed64"),
    **dict.fromkeys(("string", "bytes"), "string or bytes"),
    "float": "float",
    "double": "double",
}


@dataclass(eq=False, slots=True)
class Changes:
    """Changes with their paths from the root. Changes of an imported type are linked, not copied."""

    items: "list[tuple[str, str] | Changes]" = field(default_factory=list)
    compatible: bool = True

    def add(self, change: str, *path: str) -> None:
        self.items.append((change, "#/" + "/".join(path)))
        self.compatible = self.compatible and change in COMPATIBLE

    def include(self, inner: "Changes") -> None:
        if inner.items:
            self.items.append(inner)
            self.compatible = self.compatible and inner.compatible


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two schemas, and the scope in which its types are named."""

    names: Names
    package: str

    def scope(self, local: str) -> str:
        return joined(self.package, local)


def describe(change: str, path: str, reader: str, writer: str) -> str:
    words = _WORDS.get(change, "")
    said = words.replace("{reader}", reader).replace("{writer}", writer).replace("{path}", path)
    return f'{{errorType:"{change}", description:"{said}"}}'


def compare(original: File, original_names: Names, update: File, update_names: Names) -> Changes:
    changes = Changes()
    if original.package != update.package:
        changes.add("PACKAGE_CHANGED")
    sides = Side(original_names, original_names.package), Side(update_names, update_names.package)
    comparison = _Comparison()
    run(comparison.types(changes, original.types, update.types, "", *sides))
    return changes


def flatten(changes: Changes, without: frozenset[str] = frozenset()) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    pending: list[tuple[str, str] | Changes] = [changes]
    while pending and len(found) < DIFFERENCES_MAX:
        item = pending.pop()
        if not isinstance(item, Changes):
            if item[0] not in without:
                found.append(item)
        elif not (without and item.compatible):
            pending += reversed(item.items)
    return found


_Steps = Generator[Any, Any, None]


class _Comparison:
    def __init__(self) -> None:
        self._budget = Budget()
        #: Results for imported types, each pair once. None during the comparison: assumed compatible.
        self._imported: dict[tuple[int, int], Changes | None] = {}

    def types(
        self,
        changes: Changes,
        original: "list[Message | Enum]",
        update: "list[Message | Enum]",
        local: str,
        before: Side,
        after: Side,
    ) -> _Steps:
        """`local` is the name, within the package, of the message that contains the types."""
        path = local.split(".") if local else []
        messages = [{item.name: item for item in types if isinstance(item, Message)} for types in (original, update)]
        places = [{name: index for index, name in enumerate(named)} for named in messages]
        for name in dict.fromkeys((*messages[0], *messages[1])):
            self._budget.spend(PAIR_STEPS)
            old, new = messages[0].get(name), messages[1].get(name)
            if old is not None and new is not None:
                yield self.message(changes, old, new, joined(local, name), before, after)
                if places[0][name] != places[1][name]:
                    changes.add("MESSAGE_MOVED", *path, name)
            elif old is not None and not old.is_map_entry:
                changes.add("MESSAGE_REMOVED", *path, name)
            elif new is not None and not new.is_map_entry:
                changes.add("MESSAGE_ADDED", *path, name)
        enums = [{item.name: item for item in types if isinstance(item, Enum)} for types in (original, update)]
        for name in dict.fromkeys((*enums[0], *enums[1])):
            if name not in enums[1]:
                changes.add("ENUM_REMOVED", *path, name)
            elif name not in enums[0]:
                changes.add("ENUM_ADDED", *path, name)
            else:
                self._enum(changes, enums[0][name], enums[1][name], [*path, name])

    def _enum(self, changes: Changes, original: Enum, update: Enum, path: list[str]) -> None:
        before, after = ({item.tag: item.name for item in enum.constants} for enum in (original, update))
        self._budget.spend(len(before) + len(after))
        for tag in sorted(before.keys() | after.keys()):
            if tag not in after:
                changes.add("ENUM_CONST_REMOVED", *path, str(tag))
            elif tag not in before:
                changes.add("ENUM_CONST_ADDED", *path, str(tag))
            elif before[tag] != after[tag]:
                changes.add("ENUM_CONST_CHANGED", *path, str(tag))

    def message(
        self, changes: Changes, original: Message, update: Message, local: str, before: Side, after: Side
    ) -> _Steps:
        path = local.split(".")
        fields, new_fields = _fields(original), _fields(update)
        oneof_of, new_oneof_of = _oneofs(original), _oneofs(update)
        self._budget.spend(len(fields) + len(new_fields))
        self._oneofs(changes, original, update, path)
        # Removing a oneof with all its fields loses nothing; if some fields stay, the others are lost.
        kept = {oneof.name for oneof in update.oneofs}
        gone = {item.name for item in original.oneofs if item.name not in kept}
        gone -= {oneof_of[tag] for tag in oneof_of if tag in new_fields}
        for tag in sorted(fields.keys() | new_fields.keys()):
            oneof, new_oneof = oneof_of.get(tag), new_oneof_of.get(tag)
            place = [*path, *([new_oneof] if new_oneof is not None else []), str(tag)]
            if tag not in new_fields:
                if oneof is None:
                    required = fields[tag].label == "required"
                    changes.add("REQUIRED_FIELD_REMOVED" if required else "FIELD_REMOVED", *path, str(tag))
                elif oneof not in gone:
                    changes.add("ONEOF_FIELD_REMOVED", *path, oneof, str(tag))
            elif tag not in fields:
                if new_oneof is None:
                    required = new_fields[tag].label == "required"
                    changes.add("REQUIRED_FIELD_ADDED" if required else "FIELD_ADDED", *place)
                else:
                    changes.add("ONEOF_FIELD_ADDED", *place)
            else:
                if oneof is not None and new_oneof is None:
                    changes.add("ONEOF_FIELD_MOVED_TO_TOP_LEVEL", *place)
                yield self._field(changes, fields[tag], new_fields[tag], place, local, before, after)
        yield self.types(changes, original.types, update.types, local, before, after)

    def _oneofs(self, changes: Changes, original: Message, update: Message, path: list[str]) -> None:
        """Find fields that could all be set and now exclude each other: old data may have several of them."""
        fields, oneof_of = _fields(original), _oneofs(original)
        for oneof in update.oneofs:
            origins = {oneof_of.get(item.tag, str(item.tag)) for item in oneof.fields if item.tag in fields}
            if len(origins) > 1:
                moved = [item for item in oneof.fields if item.tag in fields and item.tag not in oneof_of]
                change = "MULTIPLE_FIELDS_MOVED_TO_ONEOF" if len(moved) > 1 else "FIELD_MOVED_TO_EXISTING_ONEOF"
                changes.add(change, *path, oneof.name)
        before, after = ({oneof.name for oneof in message.oneofs} for message in (original, update))
        for name in sorted(before ^ after):
            changes.add("ONEOF_REMOVED" if name in before else "ONEOF_ADDED", *path, name)

    def _field(
        self, changes: Changes, original: Field, update: Field, path: list[str], local: str, before: Side, after: Side
    ) -> _Steps:
        self._budget.spend(PAIR_STEPS)
        if original.name != update.name:
            changes.add("FIELD_NAME_CHANGED", *path)
        labels = (original.label, update.label)
        yield self._field_types(changes, original.type, update.type, labels, path, local, before, after)

    def _field_types(
        self,
        changes: Changes,
        original: str,
        update: str,
        labels: tuple[str | None, str | None],
        path: list[str],
        local: str,
        before: Side,
        after: Side,
    ) -> _Steps:
        original, kind = _kind(original, before, local)
        update, new_kind = _kind(update, after, local)
        if (kind in _SCALAR_GROUPS) != (new_kind in _SCALAR_GROUPS) or (
            kind not in _SCALAR_GROUPS and kind != new_kind
        ):
            changes.add("FIELD_KIND_CHANGED", *path)
        elif kind in _SCALAR_GROUPS:
            if kind != new_kind:
                changes.add("FIELD_SCALAR_KIND_CHANGED", *path)
            elif None not in labels and labels[0] != labels[1]:
                text = kind == "string or bytes"
                changes.add(f"FIELD_{'STRING_OR_BYTES' if text else 'NUMERIC'}_LABEL_CHANGED", *path)
        elif kind == "map":
            for old, new in zip(_map_types(original), _map_types(update), strict=True):
                yield self._field_types(changes, old, new, (None, None), path, local, before, after)
        else:
            yield self._message_types(changes, original, update, path, local, before, after)

    def _message_types(
        self, changes: Changes, original: str, update: str, path: list[str], local: str, before: Side, after: Side
    ) -> _Steps:
        old_name = before.names.resolve(original, before.scope(local))
        new_name = after.names.resolve(update, after.scope(local))
        if old_name is None or new_name is None:
            if original != update:
                changes.add("FIELD_NAMED_TYPE_CHANGED", *path)
            return
        old, new = before.names.types[old_name], after.names.types[new_name]
        old_local, new_local = _local(old_name, old.package), _local(new_name, new.package)
        if old_local != new_local:
            changes.add("FIELD_NAMED_TYPE_CHANGED", *path)
        elif not (old.is_local and new.is_local):  # types of the files themselves are compared on their own
            assert isinstance(old.element, Message) and isinstance(new.element, Message)
            pair = (id(old.element), id(new.element))
            if pair not in self._imported:
                self._imported[pair] = None
                inner = Changes()
                sides = Side(before.names, old.package), Side(after.names, new.package)
                yield self.message(inner, old.element, new.element, old_local, *sides)
                self._imported[pair] = inner
            found = self._imported[pair] or Changes()
            changes.include(found)
            if not found.compatible:
                changes.add("FIELD_NAMED_TYPE_CHANGED", *path)


_SCALAR_GROUPS = frozenset(_SCALAR_KINDS.values())


def _kind(name: str, side: Side, local: str) -> tuple[str, str]:
    """Return the effective type (a map for a map's entry) and its kind: a group of scalars, `map` or `message`."""
    if name in SCALARS:
        return name, _SCALAR_KINDS[name]
    if name.startswith("map<"):
        return name, "map"
    found = side.names.type(name, side.scope(local))
    if found is not None and isinstance(found.element, Enum):
        return name, "general number"
    entry = found.map_type if found is not None else None
    return (entry, "map") if entry is not None else (name, "message")


def _map_types(name: str) -> tuple[str, str]:
    return Field(None, name, "", 0).map_types or ("", "")


def _local(name: str, package: str) -> str:
    return name.removeprefix(f"{package}.") if package else name


def _fields(message: Message) -> dict[int, Field]:
    found = {item.tag: item for item in message.fields}
    return found | {item.tag: item for oneof in message.oneofs for item in oneof.fields}


def _oneofs(message: Message) -> dict[int, str]:
    return {item.tag: oneof.name for oneof in message.oneofs for item in oneof.fields}
