"""Transforms of whole records: their topic, their headers, whether they go on; and predicates. Pure."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from barnabas.base import json_reader
from barnabas.spark.connect.data import DataError, Header, Record, schema_of
from barnabas.spark.connect.transforms.base import OfSide, Transform, with_fields

Predicate: TypeAlias = Callable[[Record], bool]

_GROUP: Final = re.compile(r"\\(.)|\$(\d)|\$\{(\w+)\}", re.DOTALL)


@dataclass(frozen=True)
class RegexRouter(Transform):
    regex: re.Pattern[str]
    replacement: str

    def __call__(self, record: Record) -> Record | None:
        found = self.regex.fullmatch(record.topic)
        return record if found is None else replace(record, topic=expand(found, self.replacement))


def expand(found: re.Match[str], replacement: str) -> str:
    """Return a replacement as Java's `Matcher.replaceFirst` has it: `$1` and `${name}` are groups, a backslash quotes."""

    def part(each: re.Match[str]) -> str:
        if each[1] is not None:
            return each[1]
        return found[int(each[2]) if each[2] else each[3]] or ""

    return _GROUP.sub(part, replacement)


@dataclass(frozen=True)
class Filter(Transform):
    def __call__(self, record: Record) -> Record | None:
        return None


@dataclass(frozen=True)
class InsertHeader(Transform):
    header: str
    literal: str

    def __call__(self, record: Record) -> Record | None:
        value = _literal(self.literal)
        return replace(record, headers=(*record.headers, Header(self.header, value, schema_of(value))))


def _literal(text: str) -> object:
    """Return the value that Connect reads in a literal: a number, a boolean, a list, a map, or the text itself."""
    try:
        value = json_reader.read(text)
    except json_reader.BadJson:
        return text
    return text if value is None else value


@dataclass(frozen=True)
class DropHeaders(Transform):
    headers: tuple[str, ...]

    def __call__(self, record: Record) -> Record | None:
        return replace(record, headers=tuple(each for each in record.headers if each.key not in self.headers))


@dataclass(frozen=True)
class HeaderFrom(OfSide):
    fields: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    moves: bool = False

    def __call__(self, record: Record) -> Record | None:
        part = self.part(record)
        if part.value is None:
            return record
        values = self.require_fields(part)
        added = []
        for name, header in zip(self.fields, self.headers, strict=True):
            found = None if part.schema is None else part.schema.field(name)
            if part.schema is not None and found is None:
                raise DataError(f"HeaderFrom: field does not exist: {name}")
            added.append(Header(header, values.get(name), None if found is None else found.schema))
        record = replace(record, headers=(*record.headers, *added))
        if not self.moves:
            return record
        kept = {name: value for name, value in values.items() if name not in self.fields}
        schema = part.schema
        if schema is not None:
            schema = with_fields(schema, tuple(each for each in schema.fields if each.name not in self.fields))
        return self.put(record, kept, schema)


@dataclass(frozen=True)
class Conditional(Transform):
    """A transform for the records for which its predicate holds."""

    transform: Transform
    predicate: Predicate
    negate: bool = False

    def __call__(self, record: Record) -> Record | None:
        return self.transform(record) if self.predicate(record) is not self.negate else record


@dataclass(frozen=True)
class TopicNameMatches:
    pattern: re.Pattern[str]

    def __call__(self, record: Record) -> bool:
        return self.pattern.fullmatch(record.topic) is not None


@dataclass(frozen=True)
class HasHeaderKey:
    name: str

    def __call__(self, record: Record) -> bool:
        return any(each.key == self.name for each in record.headers)


@dataclass(frozen=True)
class RecordIsTombstone:
    def __call__(self, record: Record) -> bool:
        return record.value is None
