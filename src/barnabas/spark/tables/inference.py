"""Columns out of JSON that nobody described: the types that a batch shows, joined with those that the table has.

Spark looks at a batch while it writes it (`schema_of_variant_agg`) and says what it saw: `OBJECT<id: BIGINT, at: STRING>`.
A number is a bigint or a double, whatever its size. What is sometimes one thing and sometimes another is a string: its JSON.
What was null so far has no column yet. Pure, but for the column that Spark computes.
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
DEPTH_MAX: Final = 32


class NameClash(BarnabasError):
    """Two fields cannot be two columns. The message says which, and what to do."""


def objects_in(text: Column, *, fields_max: int) -> Column:
    """The JSON objects of a column, as variants. Null where it is not JSON, has a name twice, NaN, or too many fields."""
    parsed = F.try_parse_json(text)  # type: ignore[attr-defined, unused-ignore]
    # A field takes five characters at least. Where there are few, names need not be counted.
    has_few = (F.length(text) < 5 * fields_max) | (F.size(F.json_object_keys(text)) <= fields_max)
    return F.when(F.ltrim(text).startswith("{") & has_few, parsed)


def seen_in(objects: Column) -> Column:
    """An aggregate: what these objects look like."""
    return F.schema_of_variant_agg(objects)


def row_type(seen: str | None) -> StructType:
    """What `seen_in` said, as a row; empty where it saw nothing."""
    if not seen:
        return StructType()
    kind = _Parser(seen).parse()
    return kind if isinstance(kind, StructType) else StructType()


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = [(found.lastgroup or "", found[found.lastgroup or 0]) for found in _TOKEN.finditer(text)]
        self._at = 0

    def parse(self, depth: int = 0) -> DataType | None:
        """None where nothing is known but that it was null, or empty."""
        word = self._next().upper()
        if word in ("OBJECT", "ARRAY") and depth == DEPTH_MAX:
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
            # Also without a fraction: that is `1.0`, which no bigint is read from, or more than a bigint holds.
            return DoubleType()
        if word == "VOID":
            return None
        return _SIMPLE.get(word, StringType())

    def _skip(self) -> None:
        """Go behind the type in angle brackets that comes next."""
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
    """`known` with the fields that `seen` has beside. A type that is known stays: what does not fit it is an error's."""
    fields = [StructField(each.name, _joined(each.dataType, _type_in(seen, each.name))) for each in known.fields]
    there = set(known.names)
    fields += [StructField(each.name, each.dataType) for each in seen.fields if each.name not in there]
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
    """A row of which nothing was known before: what two parts of a batch show, as if it had been looked at in one."""
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
    """Tables tell columns by their names without case, and some names are ours."""
    taken = {name.lower(): f"{name}, which every row of the table has" for name in reserved}
    for each in row.fields:
        if each.name.lower() in taken:
            raise NameClash(
                f"field {each.name!r} cannot be a column beside {taken[each.name.lower()]}: use --schema raw"
            )
        taken[each.name.lower()] = f"field {each.name!r}"


def loose(kind: DataType, *, widest: bool = False) -> DataType:
    """With nulls allowed everywhere. `widest`: numbers as large as they get, for tables that cannot be widened later."""
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
    """A value of type `given` as one of `wanted`, which has its fields and perhaps more."""
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
