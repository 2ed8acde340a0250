"""Avro's types and Spark's, both ways, and the conversion of Python values between fastavro and Arrow.

As in Spark's own Avro source: an enum is a string, fixed is binary, `[null, T]` is a nullable T, `[int, long]` is a long,
any other union is a struct `member0, member1, …` of which one is set. Times of day and UUIDs are the numbers and strings
in which Avro stores them.
"""

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from fastavro.validation import validate
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from barnabas.services.registry.values import avro
from barnabas.services.registry.values.avro import AvroType
from barnabas.services.registry.values.bounds import Unreadable
from barnabas.spark.pipelines.codecs.base import CodecError

#: A schema in fastavro's form: a name, a list (a union), or a mapping.
Schema: TypeAlias = Any
Fix: TypeAlias = Callable[[Any], Any]

_PRIMITIVES: Final[Mapping[str, DataType]] = {
    "null": NullType(),
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
}
_LOGICAL: Final[Mapping[str, DataType]] = {
    "date": DateType(),
    "timestamp-millis": TimestampType(),
    "timestamp-micros": TimestampType(),
    "local-timestamp-millis": TimestampNTZType(),
    "local-timestamp-micros": TimestampNTZType(),
}
#: Digits of Spark's decimals.
_PRECISION_MAX: Final = 38
_NAMED: Final = ("record", "error", "enum", "fixed")
_SINGLE: Final = struct.Struct("<f")


class Default:
    """Stands for a field that was not written: its value, as Arrow takes it."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def parse(text: str, imports: Iterable[str] = ()) -> AvroType:
    """Parse a schema after those that it imports."""
    try:
        return avro.parse(_plain(avro.json_of(one)) for one in (*imports, text))
    except (ValueError, KeyError, TypeError) as error:
        raise CodecError(f"Avro: not a schema: {error}") from error


def parse_for_columns(text: str, imports: Iterable[str] = ()) -> AvroType:
    """Parse a schema that columns are made of. Each use of a type becomes a column: their number is bounded."""
    parsed = parse(text, imports)
    try:
        parsed.bounds.check_types()
    except Unreadable as error:
        raise CodecError(f"Avro: {error}") from error
    return parsed


def _plain(schema: Schema) -> Schema:
    """Drop the logical types that Spark does not show as such: fastavro would turn them into objects."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: _plain(value) if key in ("type", "items", "values") else value for key, value in schema.items()}
    if kept.get("type") in ("record", "error"):
        kept["fields"] = [_plain(one) for one in schema["fields"]]
    if kept.get("logicalType") not in (*_LOGICAL, "decimal", None):
        del kept["logicalType"]
    return kept


def _branches(schema: Sequence[Schema]) -> list[Schema]:
    return [one for one in schema if one != "null"]


def _promoted(branches: Sequence[Schema]) -> DataType | None:
    """Return the one type that holds all branches; None if there is none."""
    if len(branches) == 1:
        return None
    names = set(branches) if all(isinstance(one, str) for one in branches) else set()
    if names == {"int", "long"}:
        return LongType()
    return DoubleType() if names == {"float", "double"} else None


def spark_type(parsed: AvroType) -> DataType:
    """Return the Spark type of such records."""
    return _spark_type(parsed, parsed.schema, ())[0]


def _spark_type(parsed: AvroType, schema: Schema, above: tuple[str, ...]) -> tuple[DataType, bool]:
    """Return the type, and whether it may be null."""
    if isinstance(schema, list):
        return _union_type(parsed, schema, above)
    schema = parsed.deref(schema)
    if isinstance(schema, str):
        return _PRIMITIVES[schema], schema == "null"
    kind = schema["type"]
    if kind in _NAMED and schema["name"] in above:
        raise CodecError(f"Avro: {schema['name']} contains itself, and no Spark type does")
    logical = schema.get("logicalType")
    if logical == "decimal":
        if not isinstance(schema.get("precision"), int):
            raise CodecError("Avro: a decimal needs a precision, which is a whole number")
        if schema["precision"] > _PRECISION_MAX:
            raise CodecError(f"Avro: a decimal of {schema['precision']} digits; Spark has {_PRECISION_MAX} at most")
        return DecimalType(schema["precision"], schema.get("scale", 0)), False
    if logical in _LOGICAL:
        return _LOGICAL[logical], False
    if kind in ("record", "error"):
        above = (*above, schema["name"])
        fields = [(one["name"], *_spark_type(parsed, one["type"], above)) for one in schema["fields"]]
        return StructType([StructField(*one) for one in fields]), False
    if kind == "array":
        return ArrayType(*_spark_type(parsed, schema["items"], above)), False
    if kind == "map":
        return MapType(StringType(), *_spark_type(parsed, schema["values"], above)), False
    if kind == "enum":
        return StringType(), False
    if kind == "fixed":
        return BinaryType(), False
    return _spark_type(parsed, kind, above)


def _union_type(parsed: AvroType, schema: Sequence[Schema], above: tuple[str, ...]) -> tuple[DataType, bool]:
    branches = _branches(schema)
    nullable = len(branches) < len(schema)
    if not branches:
        return NullType(), True
    if len(branches) == 1:
        return _spark_type(parsed, branches[0], above)[0], nullable
    if (promoted := _promoted(branches)) is not None:
        return promoted, nullable
    members = [_spark_type(parsed, one, above)[0] for one in branches]
    return StructType([StructField(f"member{at}", kind) for at, kind in enumerate(members)]), nullable


def reading(parsed: AvroType) -> Fix | None:
    """Return a function that turns a value from fastavro into one for Arrow; None if values need no change."""
    return _fix(parsed, parsed.schema, reads=True, named=tells_names(parsed))


def field_reading(parsed: AvroType, schema: Schema) -> Fix | None:
    """Return the same function for a part of the schema."""
    return _fix(parsed, schema, reads=True)


def writing(parsed: AvroType) -> Fix | None:
    """Return a function that turns a value from Arrow into one for fastavro; None if values need no change."""
    return _fix(parsed, parsed.schema, reads=False)


def _fix(parsed: AvroType, schema: Schema, *, reads: bool, named: bool = False) -> Fix | None:
    """`named`: fastavro gives a named type in a union together with its name (`tells_names`)."""
    if isinstance(schema, list):
        return _union_fix(parsed, _branches(schema), reads=reads, named=named)
    schema = parsed.deref(schema)
    if isinstance(schema, str):
        return None
    kind = schema["type"]
    if kind in ("record", "error"):
        fixes = {one["name"]: _fix(parsed, one["type"], reads=reads, named=named) for one in schema["fields"]}
        if reads:
            # A field that was not written has its default, which only has to be taken out of its `Default`.
            with_default = {one["name"] for one in schema["fields"] if "default" in one}
            fixes = {name: _or_default(fix) if name in with_default else fix for name, fix in fixes.items()}
        fix = _record_fix({name: fix for name, fix in fixes.items() if fix is not None})
        return _without_name(fix) if named else fix
    if kind == "array":
        inner = _fix(parsed, schema["items"], reads=reads, named=named)
        return None if inner is None else lambda values: [inner(value) for value in values]
    if kind == "map":
        each = _fix(parsed, schema["values"], reads=reads, named=named)
        return _map_fix(each or (lambda value: value), reads=reads)
    if named and kind in _NAMED:
        return _without_name(None)
    return _fix(parsed, kind, reads=reads, named=named) if isinstance(kind, dict | list) else None


def _without_name(inner: Fix | None) -> Fix:
    def fix(value: Any) -> Any:
        value = value[1] if isinstance(value, tuple) else value
        return value if inner is None else inner(value)

    return fix


def _or_default(inner: Fix | None) -> Fix:
    def fix(value: Any) -> Any:
        if isinstance(value, Default):
            return value.value
        return value if inner is None else inner(value)

    return fix


def _record_fix(fixes: Mapping[str, Fix]) -> Fix | None:
    if not fixes:
        return None

    def fix(record: dict[str, Any]) -> dict[str, Any]:
        for name, inner in fixes.items():
            if (value := record.get(name)) is not None:
                record[name] = inner(value)
        return record

    return fix


def _map_fix(inner: Fix, *, reads: bool) -> Fix:
    if reads:
        return lambda mapping: [(key, inner(value)) for key, value in mapping.items()]
    return lambda pairs: {key: inner(value) for key, value in pairs}


def _union_fix(parsed: AvroType, branches: Sequence[Schema], *, reads: bool, named: bool) -> Fix | None:
    if len(branches) <= 1 or _promoted(branches) is not None:
        inner = _fix(parsed, branches[0], reads=reads, named=named) if len(branches) == 1 else None
        return None if inner is None else lambda value: None if value is None else inner(value)
    fixes = [_fix(parsed, one, reads=reads, named=named) or (lambda value: value) for one in branches]
    schemas = [parsed.deref(one) for one in branches]
    members = [f"member{at}" for at in range(len(branches))]
    # A value without a name is rarely of a named type: only if its writer had no union.
    likely = sorted(zip(members, schemas, fixes, strict=True), key=lambda each: _is_named(each[1]))

    def spread(value: Any) -> dict[str, Any]:
        name, value = value if isinstance(value, tuple) else (None, value)
        for member, schema, fix in likely:
            is_it = _is_of(value, schema) if name is None else _is_named(schema) and schema["name"] == name
            if is_it:
                return {member: fix(value)}
        raise ValueError(f"{value!r} fits no branch of its union")

    def gather(struct: dict[str, Any]) -> Any:
        for member, schema, fix in zip(members, schemas, fixes, strict=True):
            if (value := struct[member]) is not None:
                # With the name of its branch: fastavro would take the first branch that fits, a long for a double.
                return (schema["name"] if _is_named(schema) else _type_name(schema), fix(value))
        return None

    def fix_or_null(value: Any) -> Any:
        return None if value is None else spread(value) if reads else gather(value)

    return fix_or_null


def _is_named(schema: Schema) -> bool:
    return isinstance(schema, dict) and schema["type"] in _NAMED


def _type_name(schema: Schema) -> str:
    return schema if isinstance(schema, str) else str(schema["type"])


def _is_of(value: Any, schema: Schema) -> bool:
    """Whether fastavro may have read the value from this branch. When it validates, it takes an integer for a float."""
    match _type_name(schema):
        case "float":
            return isinstance(value, float) and _is_single(value)
        case "double":
            return isinstance(value, float)
        case "record" | "error":
            return isinstance(value, dict) and value.keys() == {one["name"] for one in schema["fields"]}
    return bool(validate(value, schema, raise_errors=False))


def _is_single(value: float) -> bool:
    """Whether a float of four bytes holds the value exactly."""
    try:
        return value != value or _SINGLE.unpack(_SINGLE.pack(value))[0] == value
    except OverflowError:
        return False


def tells_names(parsed: AvroType) -> bool:
    """Whether fastavro has to return the name with a value of a named type: other branches of its union may look the same."""

    def within(schema: Schema, seen: frozenset[str]) -> bool:
        if isinstance(schema, list):
            beside = len(_branches(schema)) > 1 and any(_is_named(parsed.deref(one)) for one in schema)
            return beside or any(within(one, seen) for one in schema)
        schema = parsed.deref(schema)
        if isinstance(schema, str) or (name := schema.get("name", "")) in seen:
            return False
        if schema["type"] in ("record", "error"):
            return any(within(one["type"], seen | {name}) for one in schema["fields"])
        return any(within(schema[inner], seen) for inner in ("type", "items", "values") if inner in schema)

    return within(parsed.schema, frozenset())


def schema_of(kind: DataType, name: str = "topLevelRecord") -> str:
    """Return the Avro schema of a Spark type, as JSON."""
    return json.dumps(_avro(kind, name))


def _avro(kind: DataType, name: str) -> Schema:
    match kind:
        case StructType():
            fields = []
            for one in kind.fields:
                inner = _avro(one.dataType, f"{name}_{one.name}")
                nullable: Schema = {"name": one.name, "type": ["null", inner], "default": None}
                fields.append(nullable if one.nullable else {"name": one.name, "type": inner})
            return {"type": "record", "name": name, "fields": fields}
        case ArrayType():
            inner = _avro(kind.elementType, f"{name}_item")
            return {"type": "array", "items": ["null", inner] if kind.containsNull else inner}
        case MapType(keyType=StringType()):
            inner = _avro(kind.valueType, f"{name}_value")
            return {"type": "map", "values": ["null", inner] if kind.valueContainsNull else inner}
        case DecimalType():
            return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        case DateType():
            return {"type": "int", "logicalType": "date"}
        case TimestampType():
            return {"type": "long", "logicalType": "timestamp-micros"}
        case TimestampNTZType():
            return {"type": "long", "logicalType": "local-timestamp-micros"}
        case ByteType() | ShortType():
            return "int"
    for primitive, spark in _PRIMITIVES.items():
        if kind == spark:
            return primitive
    raise CodecError(f"Avro: no type for {name}, which is {kind.simpleString()}")
