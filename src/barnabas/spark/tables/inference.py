"""Columns for JSON that has no schema: the types in a batch, joined with those of the table.

Spark looks at a batch while it writes it (`schema_of_variant_agg`) and describes it: `OBJECT<id: BIGINT, at: STRING>`.
A number is a bigint or a double, whatever its size. A field with several types is a string: its JSON.
A field that was always null has no column yet. Pure, except for the column that Spark computes.
"""

import re
from collections.abc import Iterable
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from barnabas.base.errors import BarnabasError

_TOKEN: Final = re.compile(r"`(?P<quoted>(?:[^`]|``)*)`|(?P<word>[^\s<>:,()`]+)|(?P<mark>[<>:,()])")
_SIMPLE: Final[dict[str, DataType]] = {
    "BIGINT": LongType(),
    "DOUBLE": DoubleType(),
    "FLOAT": DoubleType(),
    "BOOLEAN": BooleanType(),
    "STRING": StringType(),
}


#: The levels of objects and arrays that become structs and lists. A deeper value becomes a string: its JSON. Libraries that
#: read a table descend such types by recursion, and one record can have a thousand levels.
STRUCT_LEVELS_MAX: Final = 32


class NameClash(BarnabasError):
    """Two fields cannot be two columns. The message says which, and what to do."""


def objects_in(text: Column, *, fields_max: int) -> Column:
    """Return the JSON objects of a column as variants; null for a value that is not JSON, has a name twice, NaN, or too many
    fields."""
    parsed = F.try_parse_json(text)  # type: ignore[attr-defined, unused-ignore]
    # A field takes at least five characters: the names in a short text need not be counted.
    has_few = (F.length(text) < 5 * fields_max) | (F.size(F.json_object_keys(text)) <= fields_max)
    return F.when(F.ltrim(text).startswith("{") & has_few, parsed)


def seen_in(objects: Column) -> Column:
    """Return an aggregate that describes these objects."""
    return F.schema_of_variant_agg(objects)


def row_type(seen: str | None) -> StructType:
    """Return the description of `seen_in` as a row; an empty row if it saw no object."""
    if not seen:
        return StructType()
    kind = _Parser(seen).parse()
    return kind if isinstance(kind, StructType) else StructType()


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = [(found.lastgroup or "", found[found.lastgroup or 0]) for found in _TOKEN.finditer(text)]
        self._at = 0

    def parse(self, depth: int = 0) -> DataType | None:
        """Return the next type; None if it was always null or empty."""
        word = self._next().upper()
        if word in ("OBJECT", "ARRAY") and depth == STRUCT_LEVELS_MAX:
            self._skip()
            return StringType()
        if word == "OBJECT":
            return self._object(depth)
        if word == "ARRAY":
            self._next()
            kind = self.parse(depth + 1)
            self._next()
            return None if kind is None else ArrayType(kind)
        if word == "DECIMAL":
            for _ in "(p,s)":
                self._next()
            # DECIMAL without a fraction is a double, too: `1.0`, which cannot be read as a bigint, or a number too large for
            # one.
            return DoubleType()
        if word == "VOID":
            return None
        return _SIMPLE.get(word, StringType())

    def _skip(self) -> None:
        """Move past the type in angle brackets that comes next."""
        opened = 0
        while True:
            mark = self._peek()
            opened += {"<": 1, ">": -1}.get(mark, 0)
            self._at += 1
            if opened == 0:
                return

    def _object(self, depth: int) -> DataType | None:
        fields = []
        self._next()
        while self._peek() != ">":
            name = self._next().replace("``", "`")
            self._next()
            kind = self.parse(depth + 1)
            if kind is not None:
                fields.append(StructField(name, kind))
            if self._peek() == ",":
                self._next()
        self._next()
        return StructType(fields) if fields else None

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _peek(self) -> str:
        kind, text = self._tokens[self._at]
        return text if kind == "mark" else ""


def joined(known: StructType, seen: StructType) -> StructType:
    """Return `known` with the additional fields of `seen`. A known type stays: a value that does not fit it is an error."""
    fields = [StructField(each.name, _joined(each.dataType, _type_in(seen, each.name))) for each in known.fields]
    known_names = set(known.names)
    fields += [StructField(each.name, each.dataType) for each in seen.fields if each.name not in known_names]
    return StructType(fields)


def _joined(known: DataType, seen: DataType | None) -> DataType:
    if isinstance(known, StructType) and isinstance(seen, StructType):
        return joined(known, seen)
    if isinstance(known, ArrayType) and isinstance(seen, ArrayType):
        return ArrayType(_joined(known.elementType, seen.elementType))
    if isinstance(known, MapType) and isinstance(seen, MapType):
        return MapType(known.keyType, _joined(known.valueType, seen.valueType))
    return known


def merged(one: StructType, other: StructType) -> StructType:
    """Merge the types of two parts of a batch, before any type is known, as if they were one part."""
    names = sorted({*one.names, *other.names})
    return StructType([StructField(name, _merged(_type_in(one, name), _type_in(other, name))) for name in names])


def _merged(one: DataType | None, other: DataType | None) -> DataType:
    if one is None or other is None or one == other:
        return one or other or StringType()
    if isinstance(one, StructType) and isinstance(other, StructType):
        return merged(one, other)
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return ArrayType(_merged(one.elementType, other.elementType))
    numbers = LongType | DoubleType
    return DoubleType() if isinstance(one, numbers) and isinstance(other, numbers) else StringType()


def _type_in(row: StructType, name: str) -> DataType | None:
    return row[name].dataType if name in row.names else None


def check_names(row: StructType, reserved: Iterable[str]) -> None:
    """Refuse columns that the table cannot tell apart by name without case, and names that barnabas uses."""
    taken = {name.lower(): f"{name}, which every row of the table has" for name in reserved}
    for each in row.fields:
        if each.name.lower() in taken:
            raise NameClash(
                f"field {each.name!r} cannot be a column beside {taken[each.name.lower()]}: use --schema raw"
            )
        taken[each.name.lower()] = f"field {each.name!r}"


def loose(kind: DataType, *, widest: bool = False) -> DataType:
    """Return the type with nulls allowed everywhere. `widest`: with the largest numbers, for tables that cannot be widened
    later."""
    if isinstance(kind, StructType):
        return StructType([StructField(each.name, loose(each.dataType, widest=widest)) for each in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(loose(kind.elementType, widest=widest))
    if isinstance(kind, MapType):
        return MapType(loose(kind.keyType, widest=widest), loose(kind.valueType, widest=widest))
    if isinstance(kind, ByteType | ShortType):
        return LongType() if widest else IntegerType()
    if widest and isinstance(kind, IntegerType):
        return LongType()
    if widest and isinstance(kind, FloatType):
        return DoubleType()
    return kind


def conformed(value: Column, given: DataType, wanted: DataType) -> Column:
    """Return a value of type `given` as one of `wanted`, which has its fields and perhaps more."""
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        fields = [
            (
                conformed(value.getField(each.name), given[each.name].dataType, each.dataType)
                if each.name in given.names
                else F.lit(None).cast(each.dataType)
            ).alias(each.name)
            for each in wanted.fields
        ]
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        one, other = given.elementType, wanted.elementType
        return value if one == other else F.transform(value, lambda each: conformed(each, one, other))
    if isinstance(given, MapType) and isinstance(wanted, MapType):
        before, after = given.valueType, wanted.valueType
        return value if before == after else F.transform_values(value, lambda _, each: conformed(each, before, after))
    return value if given == wanted else value.cast(wanted)
