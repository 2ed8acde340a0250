"""Whether a reader's Avro schema can read data of a writer's: the rules and texts of SchemaCompatibility.java. Pure.

Pairs are remembered by identity, as in Java, so that the paths in the messages are the same.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from barnabas.services.registry.formats.avro_types import ABSENT, Field, Type
from barnabas.services.registry.formats.limits import DIFFERENCES_MAX, PAIR_STEPS, Budget, SchemaError, run

#: The types that a reader's type can read besides itself.
_PROMOTIONS = {
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "bytes": {"string"},
    "string": {"bytes"},
}


#: The path of a message is cut in its middle if it has more steps.
_STEPS_MAX = 200


@dataclass(frozen=True, slots=True)
class Place:
    """A path as a linked list: tuples would grow long for long chains of schemas."""

    step: str
    within: "Place | None" = None


@dataclass(frozen=True, slots=True)
class Difference:
    kind: str
    message: str
    place: Place

    @property
    def path(self) -> str:
        """A JSON pointer, except that it always begins with a slash."""
        steps: list[str] = []
        place = self.place
        while place is not None and place.within is not None:  # the root itself is not part of the path
            steps.append(place.step.replace("~", "~0").replace("/", "~1"))
            place = place.within
        if len(steps) > _STEPS_MAX:
            steps[_STEPS_MAX // 2 : -_STEPS_MAX // 2] = ["…"]
        return "/" + "/".join(reversed(steps))

    def text(self, reader: str, writer: str) -> str:
        described = {
            "FIXED_SIZE_MISMATCH": f"The size of FIXED type field at path '{self.path}' in the {reader} schema does not "
            f"match with the {writer} schema",
            "TYPE_MISMATCH": f"The type (path '{self.path}') of a field in the {reader} schema does not match with the "
            f"{writer} schema",
            "NAME_MISMATCH": f"The name of the schema has changed (path '{self.path}')",
            "MISSING_ENUM_SYMBOLS": f"The {reader} schema is missing enum symbols '{self.message}' at path '{self.path}' "
            f"in the {writer} schema",
            "MISSING_UNION_BRANCH": f"The {reader} schema is missing a type inside a union field at path '{self.path}' "
            f"in the {writer} schema",
            "READER_FIELD_MISSING_DEFAULT_VALUE": f"The field '{self.message}' at path '{self.path}' in the {reader} "
            f"schema has no default value and is missing in the {writer} schema",
        }[self.kind]
        return f"{{errorType:'{self.kind}', description:'{described}', additionalInfo:'{self.message}'}}"


def differences(reader: Type, writer: Type) -> list[Difference]:
    """Return at most DIFFERENCES_MAX differences, in the order of the reader's schema."""
    found: list[Difference] = []
    pending: list[Any] = [run(_Comparison().compare(reader, writer, Place("")))]
    while pending and len(found) < DIFFERENCES_MAX:
        item = pending.pop()
        if isinstance(item, Difference):
            found.append(item)
        else:
            pending += reversed(item)
    return found


#: Differences and nested lists of them: nothing is copied on the way up.
_Found = list[Any]
_Steps = Generator[Any, Any, _Found]


class _Comparison:
    def __init__(self) -> None:
        self._budget = Budget()
        #: None while a pair is being compared: a recursive pair is compatible unless proven otherwise.
        self._results: dict[tuple[int, int], _Found | None] = {}

    def compare(self, reader: Type, writer: Type, place: Place) -> _Steps:
        pair = (id(reader), id(writer))
        self._budget.spend()
        if pair in self._results:
            return self._results[pair] or []
        self._budget.spend(PAIR_STEPS)
        self._results[pair] = None
        result = yield from self._compare(reader, writer, place)
        self._results[pair] = result
        return result

    def _compare(self, reader: Type, writer: Type, place: Place) -> _Steps:
        if writer.kind == "union":
            return (yield from self._writer_union(reader, writer, place))
        if reader.kind == "union":
            for branch in reader.children:
                if not (yield self.compare(branch, writer, Place(""))):
                    return []
            return [_missing_branch(writer, place)]
        if reader.kind != writer.kind:
            if writer.kind in _PROMOTIONS.get(reader.kind, ()):
                return []
            message = f"reader type: {reader.kind.upper()} not compatible with writer type: {writer.kind.upper()}"
            return [Difference("TYPE_MISMATCH", message, place)]
        match reader.kind:
            case "array" | "map":
                step = "items" if reader.kind == "array" else "values"
                inside: _Found = yield self.compare(reader.children[0], writer.children[0], Place(step, place))
                return inside
            case "fixed":
                return _names(reader, writer, place) + _sizes(reader, writer, place)
            case "enum":
                self._budget.spend(len(reader.symbols) + len(writer.symbols))
                return _names(reader, writer, place) + _symbols(reader, writer, place)
            case "record":
                return _names(reader, writer, place) + (yield from self._fields(reader, writer, place))
            case _:
                return []

    def _writer_union(self, reader: Type, writer: Type, place: Place) -> _Steps:
        found: _Found = []
        for index, branch in enumerate(writer.children):
            here = Place(str(index), place)
            inside = yield self.compare(reader, branch, Place("") if reader.kind == "union" else here)
            if inside:
                found.append(_missing_branch(branch, here) if reader.kind == "union" else inside)
        return found

    def _fields(self, reader: Type, writer: Type, place: Place) -> _Steps:
        found: _Found = []
        for index, item in enumerate(reader.fields):
            self._budget.spend()
            here = Place(str(index), Place("fields", place))
            written = _written_field(writer, item)
            other = written.type if written is not None else writer
            if written is None and item.default is not ABSENT:
                continue
            if written is None and (item.type.kind != "enum" or item.type.default_symbol is None):
                found.append(Difference("READER_FIELD_MISSING_DEFAULT_VALUE", item.name, here))
                continue
            # An enum with a default of its own is compared with the record, as Avro does: it never matches.
            inside = yield self.compare(item.type, other, Place("type", here))
            if inside:
                found.append(inside)
        return found


def _written_field(writer: Type, item: Field) -> Field | None:
    names = [name for name in dict.fromkeys((item.name, *item.aliases)) if name in writer.field_by_name]
    if len(names) > 1:
        raise SchemaError(
            f"Reader record field {item.name} matches multiple fields in writer record {writer.full_name}"
        )
    return writer.field_by_name[names[0]] if names else None


def _missing_branch(writer: Type, place: Place) -> Difference:
    return Difference("MISSING_UNION_BRANCH", f"reader union lacking writer type: {writer.kind.upper()}", place)


def _names(reader: Type, writer: Type, place: Place) -> list[Difference]:
    """Namespaces may differ: Avro compares unqualified names, and aliases in full."""
    assert reader.name is not None and writer.name is not None
    if reader.name.simple == writer.name.simple or writer.name in reader.aliases:
        return []
    return [Difference("NAME_MISMATCH", f"expected: {writer.full_name}", Place("name", place))]


def _sizes(reader: Type, writer: Type, place: Place) -> list[Difference]:
    if reader.size == writer.size:
        return []
    return [Difference("FIXED_SIZE_MISMATCH", f"expected: {writer.size}, found: {reader.size}", Place("size", place))]


def _symbols(reader: Type, writer: Type, place: Place) -> list[Difference]:
    missing = set(writer.symbols) - set(reader.symbols)
    if not missing or reader.default_symbol is not None:
        return []
    return [Difference("MISSING_ENUM_SYMBOLS", f"[{', '.join(sorted(missing))}]", Place("symbols", place))]
