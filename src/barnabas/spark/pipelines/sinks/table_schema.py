"""Compares a table's columns with those of the rows, for every kind of table, before anything is written. Pure."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StructField,
    StructType,
)

if TYPE_CHECKING:
    import pyarrow

#: PostgreSQL's names of types with a size that values must keep.
_SIZED: Final = re.compile(
    r"(?:character varying|character|varchar|char)\((?P<length>\d+)\)|numeric\((?P<precision>\d+)(?:,(?P<scale>\d+))?\)"
)
_SHOWN: Final = 200
_INTEGERS: Final = (ByteType, ShortType, IntegerType, LongType)
_DIGITS: Final = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 19}


class TableMismatch(ValueError):
    """Rows that the table cannot hold. The message names table, column and types."""


@dataclass(frozen=True)
class Fit:
    """How rows go into a table."""

    #: The columns of the rows, in the types that the table has or gets, nullable if the table allows null.
    written: StructType
    added: tuple[StructField, ...] = ()
    widened: tuple[StructField, ...] = ()


def fit(
    rows: StructType,
    table: StructType,
    *,
    what: str,
    merge: bool,
    can_widen: bool = False,
    optional: Collection[str] = (),
) -> Fit:
    """Compare rows and table. `merge` (the option mergeSchema): columns and fields may be added, and columns widened if
    possible.

    `optional`: columns of the table whose values the database computes if the rows lack them.
    """
    written, added, widened, problems = [], [], [], []
    known = {field.name: field for field in table.fields}
    for field in rows.fields:
        existing = known.get(field.name)
        if existing is None:
            added.append(StructField(field.name, field.dataType, True))
            written.append(added[-1])
        elif becomes(field.dataType, existing.dataType):
            written.append(existing)
        elif merge and grows(existing.dataType, field.dataType):
            added.append(StructField(field.name, field.dataType, existing.nullable))
            written.append(added[-1])
        elif merge and can_widen and becomes(existing.dataType, field.dataType):
            widened.append(StructField(field.name, field.dataType, existing.nullable))
            written.append(widened[-1])
        else:
            kinds = f"{existing.dataType.simpleString()} in the table and {field.dataType.simpleString()} in the rows"
            problems.append(f"column {field.name} is {kinds}")
    if added and not merge:
        names = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in added)
        problems.append(f"the table has no column {names} (mergeSchema=true would add it)")
    lacking = [field for field in table.fields if field.name not in rows.names and field.name not in optional]
    if not merge and lacking:
        problems.append(f"the rows have no column {', '.join(field.name for field in lacking)}")
    elif needed := [field.name for field in lacking if not field.nullable]:
        problems.append(f"the rows have no column {', '.join(needed)}, which must not be null")
    if problems:
        raise TableMismatch(f"{what} does not take these rows: {'; '.join(problems)}")
    return Fit(StructType(written), tuple(added), tuple(widened))


def becomes(given: DataType, wanted: DataType) -> bool:
    """Whether every value of `given` is also one of `wanted`, unchanged."""
    if isinstance(given, NullType) or given == wanted:
        return True
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        return given.names == wanted.names and all(
            becomes(one.dataType, other.dataType) for one, other in zip(given.fields, wanted.fields, strict=True)
        )
    if isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        return becomes(given.elementType, wanted.elementType)
    if isinstance(given, MapType) and isinstance(wanted, MapType):
        return becomes(given.keyType, wanted.keyType) and becomes(given.valueType, wanted.valueType)
    if isinstance(given, _INTEGERS):
        if isinstance(wanted, _INTEGERS):
            return _INTEGERS.index(type(given)) <= _INTEGERS.index(type(wanted))
        return isinstance(wanted, DecimalType) and wanted.precision - wanted.scale >= _DIGITS[type(given)]
    if isinstance(given, DecimalType) and isinstance(wanted, DecimalType):
        return wanted.scale >= given.scale and wanted.precision - wanted.scale >= given.precision - given.scale
    return isinstance(given, FloatType) and isinstance(wanted, DoubleType)


def grows(existing: DataType, given: DataType) -> bool:
    """Whether `given` is `existing` with more fields in its structs, behind the existing ones."""
    if existing == given:
        return True
    if isinstance(existing, StructType) and isinstance(given, StructType):
        return given.names[: len(existing.names)] == existing.names and all(
            grows(one.dataType, other.dataType) for one, other in zip(existing.fields, given.fields, strict=False)
        )
    if isinstance(existing, ArrayType) and isinstance(given, ArrayType):
        return grows(existing.elementType, given.elementType)
    return isinstance(existing, MapType) and isinstance(given, MapType) and grows(existing.valueType, given.valueType)


def require_values(
    rows: "pyarrow.Table", written: StructType, *, what: str, declared: Mapping[str, str] | None = None
) -> None:
    """Refuse nulls where the table has none, values longer than it holds, and text that is not UTF-8, on the executor, before
    anything is written.

    `declared`: sizes that Spark's types do not have, such as `character varying(3)`.
    """
    import pyarrow.compute as compute

    _require_texts(rows, what=what)
    for field in written.fields:
        if not field.nullable and field.name in rows.column_names and (nulls := rows.column(field.name).null_count):
            first = rows.filter(compute.is_null(rows.column(field.name))).slice(0, 1).to_pylist()[0]
            raise TableMismatch(
                f"{what} does not take these rows: column {field.name} is NOT NULL, and null in {nulls} rows, "
                f"the first of them {_shown(first)}"
            )
    for name, kind in (declared or {}).items():
        found = _SIZED.fullmatch(kind)
        if found is None or name not in rows.column_names:
            continue
        column = rows.column(name)
        if found["length"]:
            over = column.filter(compute.greater(compute.utf8_length(column), int(found["length"]))).to_pylist()
        else:
            # A value rounds up from half of the last digit that is kept.
            precision, scale = int(found["precision"]), int(found["scale"] or 0)
            limit = Decimal(10) ** (precision - scale) - Decimal(5).scaleb(-scale - 1)
            # Few values come near the limit: floats find those, and they are compared exactly.
            near = compute.greater_equal(compute.abs(compute.cast(column, "float64")), float(limit) * 0.999)
            over = [value for value in column.filter(near).to_pylist() if abs(Decimal(value)) >= limit]
        if over:
            raise TableMismatch(
                f"{what} does not take these rows: column {name} is {kind}, and {len(over)} values are too large, "
                f"the first of them {_shown(over[0])}"
            )


def _require_texts(rows: "pyarrow.Table", *, what: str) -> None:
    """Refuse text that is not UTF-8: Spark makes text of any bytes, and most readers refuse a file with such text."""
    import pyarrow

    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if not _has_texts(column.type):
            continue
        try:
            column.validate(full=True)
        except pyarrow.ArrowInvalid as error:
            raise TableMismatch(
                f"{what} does not take these rows: column {name} has text that is not UTF-8 ({error}). make_valid_utf8({name}) "
                "replaces it"
            ) from None


def _has_texts(kind: "pyarrow.DataType") -> bool:
    import pyarrow.types as types

    if types.is_nested(kind):
        return any(_has_texts(kind.field(at).type) for at in range(kind.num_fields))
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _shown(value: object) -> str:
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def same_types(one: StructType, other: StructType) -> bool:
    return [(field.name, field.dataType) for field in one] == [(field.name, field.dataType) for field in other]


def flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "false").lower()
    if text not in ("true", "false"):
        raise ValueError(f"{name} is {text!r}: use true or false")
    return text == "true"


def columns_named(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]
