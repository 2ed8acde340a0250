"""Decides which fields of JSON may be columns, and which records have a field that may not. Pure.

A table finds its columns by name without case, and has columns of its own. A field that cannot have a column does not stop the
table: the records that have a value in it are errors, and the other records are rows.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeAlias

from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from barnabas.spark.tables.definition import BESIDE

#: The names on the way to a field. `ELEMENT` stands for the elements of an array.
Path = tuple[str, ...]
ELEMENT: Final = "element"
#: Most fields of a table that come from JSON, those within objects included. A producer that uses ids as names of
#: fields would otherwise get a column for each id. A new object with too many fields is a string: its JSON. If a row, or an
#: object of the table, has too many new fields, all are refused: one record must not use up the fields that other records may
#: need.
FIELDS_MAX: Final = 2000
#: A type in the form in which records are compared with it: an object's fields, the one type of an array's elements, else None.
_Shape: TypeAlias = "dict[str, _Shape] | list[_Shape] | None"
_SHOWN: Final = 100


@dataclass(frozen=True)
class Rules:
    """The rules for the names of one table's columns."""

    #: Columns that every row has beside those of the value.
    reserved: tuple[str, ...] = BESIDE
    #: Whether the field `a.b` is the same column as the field `b` of the object `a`, as in Iceberg.
    dots_are_paths: bool = False
    fields_max: int = FIELDS_MAX

    def why_not(self, path: Path, taken: Mapping[str, str], paths: Iterable[str]) -> str | None:
        """Say why a field cannot be a column. `taken`: names of its row by their lower case; `paths`: those of all other
        columns."""
        name = path[-1]
        if not name:
            return f"field {_shown(path)} has an empty name"
        if "\0" in name:
            return f"field {_shown(path)} has the character NUL in its name"
        other = taken.get(name.lower())
        if other is not None and len(path) == 1 and other in self.reserved:
            return f"field {_shown(path)} has the name of column {other}, which every row of the table has"
        if other is not None:
            return f"field {_shown(path)} differs only by case from column {other!r}"
        if self.dots_are_paths and _key(path) in paths:
            return (
                f"field {_shown(path)} is the same column as a field within an object: Iceberg takes a dot for a path"
            )
        return None

    def taken(self, names: Iterable[str], above: Path) -> dict[str, str]:
        """Return the names of a row's fields by their lower case."""
        return {name.lower(): name for name in (*names, *(() if above else self.reserved))}


@dataclass(frozen=True)
class Admitted:
    """The fields of a batch that become columns."""

    columns: StructType
    #: Whether a field was left out.
    refused: bool = False
    #: Whether that was because of their number.
    is_full: bool = False
    #: New fields that differ only by case. Count the records that have each of them, and ask again with these votes.
    contested: frozenset[Path] = frozenset()


def admitted(wanted: StructType, known: StructType, rules: Rules, votes: Mapping[Path, int] | None = None) -> Admitted:
    """Return `wanted` without the fields that cannot be columns beside those of `known`.

    Of new fields that differ only by case, the one with the most `votes` becomes the column.
    """
    work = _Admission(rules, votes or {}, paths=set(_paths(known, ())), size=_size(known))
    columns = work.row(wanted, known, ())
    return Admitted(columns, work.refused, work.is_full, frozenset(work.contested))


@dataclass
class _Admission:
    rules: Rules
    votes: Mapping[Path, int]
    #: The full names of all columns so far, as Iceberg has them.
    paths: set[str]
    #: How many fields the table has so far.
    size: int
    refused: bool = False
    is_full: bool = False
    contested: set[Path] = field(default_factory=set)

    def row(self, wanted: StructType, known: StructType, above: Path) -> StructType:
        taken = self.rules.taken(known.names, above)
        known_types = {each.name: each.dataType for each in known.fields}
        new = [each.name for each in wanted.fields if each.name not in known_types]
        is_full = self.size + len(new) > self.rules.fields_max
        kinds: dict[str, DataType] = {}
        for each in sorted(wanted.fields, key=lambda each: each.name in new):
            path = (*above, each.name)
            if each.name in new and (is_full or not self._admits(path, new, taken)):
                self.refused = True
                self.is_full |= is_full
                continue
            kind = self._kind(each.dataType, known_types.get(each.name), path)
            if isinstance(kind, StructType) and not kind.fields:
                continue  # every field of this object was refused
            kinds[each.name] = kind
            taken[each.name.lower()] = each.name
        return StructType([StructField(each.name, kinds[each.name]) for each in wanted.fields if each.name in kinds])

    def _admits(self, path: Path, new: list[str], taken: Mapping[str, str]) -> bool:
        *above, name = path
        rivals = [(*above, other) for other in new if other.lower() == name.lower()]
        if len(rivals) > 1 and name.lower() not in taken:
            self.contested.update(rival for rival in rivals if rival not in self.votes)
            if path != max(rivals, key=lambda rival: self.votes.get(rival, 0)):
                return False
        if self.rules.why_not(path, taken, self.paths) is not None:
            return False
        self.size += 1
        self.paths.add(_key(path))
        return True

    def _kind(self, wanted: DataType, known: DataType | None, path: Path) -> DataType:
        if isinstance(wanted, StructType):
            if known is None and self.size + _size(wanted) > self.rules.fields_max:
                return StringType()
            return self.row(wanted, known if isinstance(known, StructType) else StructType(), path)
        if isinstance(wanted, ArrayType):
            inner = known.elementType if isinstance(known, ArrayType) else None
            self.paths.add(_key((*path, ELEMENT)))
            element = self._kind(wanted.elementType, inner, (*path, ELEMENT))
            return element if isinstance(element, StructType) and not element.fields else ArrayType(element)
        return wanted


def _key(path: Path) -> str:
    return ".".join(path).lower()


def _paths(kind: DataType, above: Path) -> Iterator[str]:
    if isinstance(kind, StructType):
        for each in kind.fields:
            yield _key((*above, each.name))
            yield from _paths(each.dataType, (*above, each.name))
    elif isinstance(kind, ArrayType):
        yield _key((*above, ELEMENT))
        yield from _paths(kind.elementType, (*above, ELEMENT))


def _shape_of(kind: DataType) -> _Shape:
    if isinstance(kind, StructType):
        return {each.name: _shape_of(each.dataType) for each in kind.fields}
    return [_shape_of(kind.elementType)] if isinstance(kind, ArrayType) else None


def _size(kind: DataType) -> int:
    if isinstance(kind, StructType):
        return len(kind.fields) + sum(_size(each.dataType) for each in kind.fields)
    return _size(kind.elementType) if isinstance(kind, ArrayType) else 0


def _shown(path: Path) -> str:
    text = repr(path[-1]) if len(path) == 1 else f"{path[-1]!r} of {'.'.join(path[:-1])!r}"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


# -- records ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """Finds the records with a value in a field that has no column. Goes to executors by pickle."""

    columns: StructType
    rules: Rules
    #: Whether fields were refused because of their number.
    is_full: bool = False
    #: Whether the value is Debezium's envelope, with or without Connect's around it.
    is_envelope: bool = False

    def reason(self, value: bytes | None) -> str | None:
        """Say why the record is refused. None if it is good, or if Spark finds the reason."""
        try:
            document = _loaded(value)
        except ValueError as error:
            return f"not JSON: {error}"
        except RecursionError:
            return "objects or arrays too deep within each other"
        for row in rows_of(document, is_envelope=self.is_envelope):
            for reason in self._reasons(row, self._shape, ()):
                return reason
        return None

    @cached_property
    def _shape(self) -> _Shape:
        return _shape_of(self.columns)

    @cached_property
    def _paths(self) -> frozenset[str]:
        return frozenset(_paths(self.columns, ()))

    def _reasons(self, value: object, shape: _Shape, path: Path) -> Iterator[str]:
        if isinstance(value, dict) and isinstance(shape, dict):
            for name, inner in value.items():
                if name in shape:
                    yield from self._reasons(inner, shape[name], (*path, name))
                elif not is_void(inner):
                    yield self._reason((*path, name), inner, shape)
        elif isinstance(value, list) and isinstance(shape, list):
            for inner in value:
                yield from self._reasons(inner, shape[0], (*path, ELEMENT))

    def _reason(self, path: Path, value: object, row: "dict[str, _Shape]") -> str:
        reason = self.rules.why_not(path, self.rules.taken(row, path[:-1]), self._paths)
        if reason is not None:
            return reason
        if isinstance(value, dict):
            # The object has no column because none of its fields may have one.
            return next(self._reasons(value, {}, path))
        if self.is_full:
            has, limit = _size(self.columns), self.rules.fields_max
            return f"field {_shown(path)} is one of too many new fields: the table has {has}, and gets no more than {limit}"
        return (
            f"field {_shown(path)} is new, and this record cannot add a column to the table: "
            f"it has a name twice, or NaN, or more than {self.rules.fields_max} fields"
        )


@dataclass
class Votes:
    """Counts the records that have a value in each of these fields."""

    contested: Iterable[Path]
    is_envelope: bool = False

    def of(self, values: Iterable[bytes | None]) -> dict[Path, int]:
        counts = dict.fromkeys(self.contested, 0)
        for value in values:
            try:
                rows = rows_of(_loaded(value), is_envelope=self.is_envelope)
            except (ValueError, RecursionError):
                continue
            for path in counts:
                counts[path] += any(_has(row, path) for row in rows)
        return counts


def _has(value: object, path: Path) -> bool:
    if not path:
        return not is_void(value)
    if isinstance(value, list):
        return path[0] == ELEMENT and any(_has(each, path[1:]) for each in value)
    return isinstance(value, dict) and path[0] in value and _has(value[path[0]], path[1:])


def rows_of(document: object, *, is_envelope: bool) -> list[dict[str, Any]]:
    """Return the objects that are rows: the document, or those within Debezium's envelope."""
    if is_envelope and isinstance(document, dict):
        inner = document.get("payload") or document
        found = [inner.get("after"), inner.get("before")] if isinstance(inner, dict) else []
    else:
        found = [document]
    return [each for each in found if isinstance(each, dict)]


def _loaded(value: bytes | None) -> object:
    if value is None:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return json.loads(text, parse_int=float)  # an int of more than 4,300 digits would be a ValueError


def is_void(value: object) -> bool:
    """Whether a value makes no column: null, or objects and arrays with nothing else in them."""
    if isinstance(value, dict):
        return all(is_void(each) for each in value.values())
    return all(is_void(each) for each in value) if isinstance(value, list) else value is None
