"""Transforms of the fields of a key or a value. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from decimal import InvalidOperation
from typing import Any, Final

from barnabas.spark.connect.converters.simple import java_text
from barnabas.spark.connect.data import (
    FLOATS,
    INT32,
    INT64,
    INTEGERS,
    STRING,
    DataError,
    Field,
    Record,
    Schema,
    of_milliseconds,
    schema_of,
    struct,
    timestamp,
    to_primitive,
)
from barnabas.spark.connect.transforms.base import OfSide, inserted, with_fields

_TRUE: Final = ("true",)


@dataclass(frozen=True)
class InsertField(OfSide):
    topic: str | None = None
    partition: str | None = None
    offset: str | None = None
    timestamp: str | None = None
    static: str | None = None
    static_value: str | None = None

    def __call__(self, record: Record) -> Record | None:
        part = self.part(record)
        if part.value is None:
            return record
        values = dict(self.require_fields(part))
        fields = []
        for given, schema, value in (
            (self.topic, STRING, record.topic),
            (self.partition, INT32, record.partition),
            (self.offset, INT64, record.offset),
            (self.timestamp, timestamp(), None if record.timestamp is None else of_milliseconds(record.timestamp)),
            (self.static, STRING, self.static_value),
        ):
            if given is None:
                continue
            # A name may end with ! (required) or ? (optional, the default).
            name = given[:-1] if given.endswith(("!", "?")) else given
            fields.append(Field(name, schema if given.endswith("!") else schema.as_optional()))
            values[name] = value if part.schema is not None else to_primitive(schema, value)
        return self.put(record, values, None if part.schema is None else inserted(part.schema, *fields))


@dataclass(frozen=True)
class ReplaceField(OfSide):
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    renames: Mapping[str, str] = field(default_factory=dict)

    def _keeps(self, name: str) -> bool:
        return name not in self.exclude and (not self.include or name in self.include)

    def __call__(self, record: Record) -> Record | None:
        part = self.part(record)
        if part.value is None:
            return record
        values = self.require_fields(part)
        kept = {self.renames.get(name, name): value for name, value in values.items() if self._keeps(name)}
        schema = part.schema
        if schema is not None:
            fields = (
                Field(self.renames.get(each.name, each.name), each.schema)
                for each in schema.fields
                if self._keeps(each.name)
            )
            schema = with_fields(schema, tuple(fields))
        return self.put(record, kept, schema)


_EMPTY: Final[Mapping[str, Any]] = {
    **dict.fromkeys(INTEGERS, 0),
    **dict.fromkeys(FLOATS, 0.0),
    "boolean": False,
    "string": "",
    "bytes": b"",
    "array": [],
    "map": {},
}


@dataclass(frozen=True)
class MaskField(OfSide):
    fields: tuple[str, ...] = ()
    replacement: str | None = None

    def __call__(self, record: Record) -> Record | None:
        part = self.part(record)
        if part.value is None:
            return record
        values = dict(self.require_fields(part))
        for name in self.fields:
            if name in values:
                values[name] = self._masked(values[name])
        return self.put(record, values, part.schema)

    def _masked(self, value: Any) -> Any:
        if value is None:
            return None
        if self.replacement is None:
            return self._empty(value)
        try:
            match value:
                case bool() | bytes() | list() | dict() | datetime() | date() | time():
                    raise DataError(f"MaskField cannot replace a {type(value).__name__}")
                case str():
                    return self.replacement
            return type(value)(self.replacement)
        except (ValueError, InvalidOperation):
            raise DataError(f"MaskField: {self.replacement!r} is not of type {type(value).__name__}") from None

    @staticmethod
    def _empty(value: Any) -> Any:
        match value:
            case datetime():
                return of_milliseconds(0)
            case date():
                return of_milliseconds(0).date()
            case time():
                return time()
        return type(value)()


@dataclass(frozen=True)
class ValueToKey(OfSide):
    fields: tuple[str, ...] = ()

    def __call__(self, record: Record) -> Record | None:
        part = self.part(record)
        values = self.require_fields(part)
        if part.schema is None:
            return record.with_key({name: values.get(name) for name in self.fields}, None)
        chosen = []
        for name in self.fields:
            found = part.schema.field(name)
            if found is None:
                raise DataError(f"ValueToKey: field does not exist: {name}")
            chosen.append(found)
        return record.with_key({name: values.get(name) for name in self.fields}, Schema("struct", fields=tuple(chosen)))


@dataclass(frozen=True)
class HoistField(OfSide):
    field: str = ""

    def __call__(self, record: Record) -> Record | None:
        part = self.part(record)
        schema = None if part.schema is None else struct((self.field, part.schema))
        return self.put(record, {self.field: part.value}, schema)


@dataclass(frozen=True)
class ExtractField(OfSide):
    path: tuple[str, ...] = ()

    def __call__(self, record: Record) -> Record | None:
        schema, value = self.part(record)
        if schema is None:
            for step in self.path:
                value = value.get(step) if isinstance(value, dict) else None
            return self.put(record, value, None)
        for step in self.path:
            found = schema.field(step)
            if found is None:
                raise DataError(f"ExtractField: unknown field: {step}")
            value = value.get(step) if value is not None else None
            schema = found.schema
        return self.put(record, value, schema)


@dataclass(frozen=True)
class SetSchemaMetadata(OfSide):
    name: str | None = None
    version: int | None = None

    def __call__(self, record: Record) -> Record | None:
        part = self.part(record)
        if part.schema is None:
            if part.value is None:
                return record
            raise DataError("SetSchemaMetadata needs records with schemas")
        schema = replace(
            part.schema,
            name=part.schema.name if self.name is None else self.name,
            version=part.schema.version if self.version is None else self.version,
        )
        return self.put(record, part.value, schema)


@dataclass(frozen=True)
class Flatten(OfSide):
    delimiter: str = "."

    def __call__(self, record: Record) -> Record | None:
        part = self.part(record)
        if part.value is None:
            return record
        values = self.require_fields(part)
        if part.schema is None:
            return self.put(record, self._map(values, ""), None)
        flat: dict[str, Any] = {}
        fields: list[Field] = []
        self._struct(part.schema, values, "", optional=part.schema.optional, flat=flat, fields=fields)
        return self.put(record, flat, Schema("struct", part.schema.optional, part.schema.name, fields=tuple(fields)))

    def _map(self, values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        flat: dict[str, Any] = {}
        for name, value in values.items():
            if isinstance(value, dict):
                flat |= self._map(value, prefix + name + self.delimiter)
            else:
                flat[prefix + name] = value
        return flat

    def _struct(
        self,
        schema: Schema,
        values: Mapping[str, Any] | None,
        prefix: str,
        *,
        optional: bool,
        flat: dict[str, Any],
        fields: list[Field],
    ) -> None:
        for each in schema.fields:
            value = None if values is None else values.get(each.name)
            may_lack = optional or each.schema.optional
            if each.schema.type == "struct":
                self._struct(
                    each.schema, value, prefix + each.name + self.delimiter, optional=may_lack, flat=flat, fields=fields
                )
                continue
            flat[prefix + each.name] = value
            fields.append(Field(prefix + each.name, each.schema.as_optional() if may_lack else each.schema))


# -- Cast -------------------------------------------------------------------------------------------------------------

CAST_TYPES: Final = (*INTEGERS, *FLOATS, "boolean", "string")


@dataclass(frozen=True)
class Cast(OfSide):
    #: Types by field; the whole key or value is under "".
    spec: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, record: Record) -> Record | None:
        part = self.part(record)
        if "" in self.spec:
            schema = None if part.schema is None else Schema(self.spec[""], part.schema.optional)
            return self.put(record, cast(part.value, self.spec[""]), schema)
        if part.value is None:
            return record
        values = dict(self.require_fields(part))
        for name, kind in self.spec.items():
            if name in values:
                try:
                    values[name] = cast(values[name], kind)
                except DataError as error:
                    raise DataError(f"Cast: field {name}: {error}") from None
        schema = part.schema
        if schema is not None:
            fields = (Field(each.name, self._schema(each)) for each in schema.fields)
            schema = with_fields(schema, tuple(fields))
        return self.put(record, values, schema)

    def _schema(self, of: Field) -> Schema:
        kind = self.spec.get(of.name)
        if kind is None:
            return of.schema
        default = None if of.schema.default is None else cast(of.schema.default, kind)
        return Schema(kind, of.schema.optional, default=default)


def cast(value: Any, kind: str) -> Any:
    """Return the value in one of `CAST_TYPES`, cut as Java cuts numbers."""
    if value is None:
        return None
    match value:
        case datetime() | date() | time():
            if kind == "string":
                return _time_text(value)
            value = to_primitive(schema_of(value), value)
        case bytes() | list() | dict():
            raise DataError(f"a {type(value).__name__} cannot be cast to {kind}")
    return _CASTS[kind](value)


def _time_text(value: datetime | date | time) -> str:
    text = value.isoformat() if type(value) is date else value.replace(tzinfo=None).isoformat(timespec="milliseconds")  # type: ignore[call-arg]
    return text if type(value) is date else f"{text}Z"


def _to_boolean(value: Any) -> bool:
    return value.strip().lower() in _TRUE if isinstance(value, str) else bool(value)


def _to_number(kind: str) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        try:
            if kind in FLOATS:
                return float(value)
            whole = int(value)
        except (ValueError, OverflowError):
            raise DataError(f"{value!r} is not a number of type {kind}") from None
        bits = INTEGERS[kind]
        if isinstance(value, str) and not -(1 << bits - 1) <= whole < 1 << bits - 1:
            raise DataError(f"{value!r} does not fit into {kind}")
        return (whole + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)

    return convert


_CASTS: Final[Mapping[str, Callable[[Any], Any]]] = {
    **{kind: _to_number(kind) for kind in (*INTEGERS, *FLOATS)},
    "boolean": _to_boolean,
    "string": java_text,
}
