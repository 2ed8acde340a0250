"""The interface of transforms: one record to one record, or to none. Pure."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from barnabas.spark.connect.converters.base import Typed
from barnabas.spark.connect.data import DataError, Field, Record, Schema

#: The part of a record that a transform works on: `$Key`, `$Value`, or the record itself.
Side = Literal["Key", "Value", ""]


class Transform(ABC):
    @abstractmethod
    def __call__(self, record: Record) -> Record | None:
        """Return the changed record, or None if it is dropped. :raises DataError: if the record does not fit."""


@dataclass(frozen=True)
class OfSide(Transform):
    """A transform of a record's key or value."""

    side: Side

    def part(self, record: Record) -> Typed:
        if self.side == "Key":
            return Typed(record.key_schema, record.key)
        return Typed(record.value_schema, record.value)

    def put(self, record: Record, value: Any, schema: Schema | None) -> Record:
        return record.with_key(value, schema) if self.side == "Key" else record.with_value(value, schema)

    def require_fields(self, part: Typed) -> dict[str, Any]:
        """Return the fields of a struct or map. :raises DataError: for any other value."""
        if not isinstance(part.value, dict) or (part.schema is not None and part.schema.type != "struct"):
            kind = part.schema.type if part.schema is not None else type(part.value).__name__
            raise DataError(f"{type(self).__name__} needs a {self.side.lower()} with fields, not {kind}")
        return part.value


@lru_cache(maxsize=1000)
def with_fields(schema: Schema, fields: tuple[Field, ...]) -> Schema:
    return replace(schema, fields=fields)


def inserted(schema: Schema, *added: Field) -> Schema:
    """Return the schema with these fields, each in the place of a field that has its name, or else at the end."""
    new = {each.name: each for each in added}
    kept = [new.pop(each.name, each) for each in schema.fields]
    return with_fields(schema, (*kept, *new.values()))


def steps_of(path: str) -> list[str]:
    """Return the steps of a path in `field.syntax.version=V2`: dots between them, a name with dots in backticks."""
    steps, at = [], 0
    while at <= len(path):
        if path.startswith("`", at):
            end = path.find("`", at + 1)
            while end >= 0 and path[end - 1] == "\\":
                end = path.find("`", end + 1)
            if end < 0 or (end + 1 < len(path) and path[end + 1] != "."):
                raise ValueError(f"{path!r} is not a path: a backtick does not end before a dot")
            steps.append(path[at + 1 : end].replace("\\`", "`"))
            at = end + 2
        else:
            end = path.find(".", at)
            end = len(path) if end < 0 else end
            steps.append(path[at:end])
            at = end + 1
    if not all(steps):
        raise ValueError(f"{path!r} is not a path: a step is empty")
    return steps
