"""Makes rows of a table of changes from PostgreSQL's changes: parses the values, and splits a change that gives a row another
key."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Final, TypeAlias

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from barnabas.spark.pipelines._errors import ERROR_TYPE
from barnabas.spark.pipelines.cdc import DELETED, ERROR, SEQUENCE, UNCHANGED_COLUMNS
from barnabas.spark.pipelines.database import DatabaseError
from barnabas.spark.pipelines.sources.pgoutput import UNCHANGED, Change, Row, Truncated

#: Returns the current row of a key in the source table, as texts; None if it is gone.
LookUp: TypeAlias = Callable[[Mapping[str, str]], "Row | None"]
#: Columns that a table of changes adds to those of the table.
ADDED: Final = (DELETED, SEQUENCE, UNCHANGED_COLUMNS, ERROR)
_BAD_VALUE: Final = "BadValue"
_SHOWN: Final = 200
_ADVICE: Final = "Leave the column out (exclude=), or give such rows an error (mode=PERMISSIVE)"


@dataclass(frozen=True)
class Shape:
    """The columns and keys of a table that are read. Travels to executors."""

    table: str
    #: The columns by which PostgreSQL's log identifies a row; every column if the table has no key and REPLICA IDENTITY FULL.
    keys: tuple[str, ...]
    #: Columns of the table that are not read: excluded ones, and generated ones, which the log does not have.
    left_out: frozenset[str] = frozenset()
    #: The option `columns` lists the columns to read: a column that is added to the table later is not read.
    only_listed: bool = False
    #: A value that Spark does not have gives its row an error; otherwise it fails the query.
    permissive: bool = False


def schema_of_changes(columns: Sequence[StructField], *, permissive: bool) -> StructType:
    schema = StructType(list(columns)).add(DELETED, BooleanType()).add(SEQUENCE, StringType())
    schema = schema.add(UNCHANGED_COLUMNS, ArrayType(StringType()))
    return schema.add(ERROR, ERROR_TYPE) if permissive else schema


def rows_of(
    change: Change | Truncated, shape: Shape, schema: StructType, look_up: LookUp
) -> Iterator[dict[str, object]]:
    """Yield the row of a change; if the change gave the row another key, yield first that the row of the old key is gone."""
    if isinstance(change, Truncated):
        if shape.table in change.relations:
            raise DatabaseError(
                f"{shape.table} was truncated at {lsn_text(change.commit_lsn)}, and a table of changes cannot show that: empty "
                "the tables that are made of it and start again, with a new checkpoint and slot"
            )
        return
    if change.relation.name != shape.table:
        return
    new = sorted(set(change.relation.columns) - set(schema.names) - shape.left_out)
    if new and not shape.only_listed:
        raise DatabaseError(
            f"{shape.table} has a column {', '.join(new)} that the query does not know: start the run again"
        )
    order = sequence(change.commit_lsn, 2 * change.number + 1)
    row, old = change.row, change.old
    moved = old is not None and not change.deleted and any(_differ(old.get(key), row.get(key)) for key in shape.keys)
    if moved and old is not None:
        gone = {name: value if name in shape.keys else None for name, value in old.items()}
        before = sequence(change.commit_lsn, 2 * change.number)
        yield parsed(gone, shape, schema, only_key=True) | {DELETED: True, SEQUENCE: before}
        row = _whole(row, shape, look_up)
    yield parsed(row, shape, schema, only_key=change.deleted) | {DELETED: change.deleted, SEQUENCE: order}


def _differ(old: object, new: object) -> bool:
    return old is not None and new is not UNCHANGED and old != new


def _whole(row: Row, shape: Shape, look_up: LookUp) -> Row:
    """Complete a row that got a new key. Values that the update left alone are not in any earlier row of the new key, so look
    them up in the source table.

    The source table may have a later value already, or the row may be gone: then a later change says so.
    """
    if UNCHANGED not in row.values():
        return row
    found = look_up({key: str(row[key]) for key in shape.keys}) or {}
    return {name: found.get(name) if value is UNCHANGED else value for name, value in row.items()}


def parsed(row: Row, shape: Shape, schema: StructType, *, only_key: bool = False) -> dict[str, object]:
    """Parse the values of a row. `only_key`: the row is deleted, so its other columns may have any value."""
    found: dict[str, object] = {}
    unchanged, problems = [], []
    for each in schema.fields:
        if each.name in ADDED:
            continue
        value = row.get(each.name)
        found[each.name] = None
        if value is UNCHANGED:
            unchanged.append(each.name)
        elif value is not None:
            try:
                found[each.name] = value_of(str(value), each.dataType)
            except NoSuchValue as error:
                if not only_key or each.name in shape.keys:
                    problems.append(bad_value(shape, row, each, str(value), error))
    found[UNCHANGED_COLUMNS] = unchanged or None
    if problems and not shape.permissive:
        raise refuse(problems[0])
    if shape.permissive:
        found[ERROR] = error_of(problems)
    return found


def error_of(problems: Sequence[str]) -> dict[str, str] | None:
    return {"class": _BAD_VALUE, "message": "; ".join(problems)} if problems else None


def refuse(problem: str) -> DatabaseError:
    return DatabaseError(f"{problem}. {_ADVICE}")


def bad_value(shape: Shape, row: Mapping[str, object], column: StructField, text: str, reason: object) -> str:
    """Return a message with the table, the row and the column."""
    keys = ", ".join(f"{key}={row.get(key)}" for key in shape.keys)
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return f"{shape.table}, row {keys or 'without a key'}, column {column.name}: {shown!r} {reason}"


class NoSuchValue(ValueError):
    """Spark's type has no such value."""


def value_of(text: str, kind: DataType) -> object:
    """Parse the text that PostgreSQL prints. Raises `NoSuchValue` with the end of a sentence that begins with the text."""
    try:
        found = _PARSERS[type(kind)](text)
    except NoSuchValue:
        raise
    except (ValueError, KeyError, ArithmeticError) as error:
        raise NoSuchValue(f"is not a {kind.simpleString()}: {error}") from error
    if isinstance(kind, DecimalType):
        _check_digits(found, kind)
    bits = _BITS.get(type(kind))
    if bits is not None and isinstance(found, int) and not -(1 << bits - 1) <= found < 1 << bits - 1:
        raise NoSuchValue(f"is too large for {kind.simpleString()}: if the column was widened, start the run again")
    return found


def _check_digits(value: object, kind: DecimalType) -> None:
    assert isinstance(value, Decimal)
    if not value.is_finite():
        raise NoSuchValue(f"is not a number of {kind.simpleString()}")
    if value and value.adjusted() >= kind.precision - kind.scale:
        raise NoSuchValue(f"has more digits before the point than {kind.simpleString()}")
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)
    if exponent < -kind.scale and value != round(value, kind.scale):
        raise NoSuchValue(f"has more digits behind the point than {kind.simpleString()}")


def _boolean(text: str) -> bool:
    return {"t": True, "f": False}[text]


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("\\x"))


def _day(text: str) -> date:
    _check_year(text)
    return date.fromisoformat(text)


def _time(text: str) -> datetime:
    _check_year(text)
    return datetime.fromisoformat(text)


def _check_year(text: str) -> None:
    if text.lstrip("-") == "infinity" or text.endswith(" BC") or not text[4:5] == "-":
        raise NoSuchValue("is not in the years 1 to 9999, which Spark's times have")


_BITS: Final[Mapping[type[DataType], int]] = {ShortType: 16, IntegerType: 32, LongType: 64}
_PARSERS: Final[Mapping[type[DataType], Callable[[str], object]]] = {
    BooleanType: _boolean,
    ShortType: int,
    IntegerType: int,
    LongType: int,
    FloatType: float,
    DoubleType: float,
    DecimalType: Decimal,
    StringType: str,
    BinaryType: _bytes,
    DateType: _day,
    TimestampType: _time,
    TimestampNTZType: _time,
}


def has_no_value(column: str, kind: DataType) -> str | None:
    """Return the SQL condition that Spark does not have a value of the column; None if Spark has every value."""
    if isinstance(kind, DecimalType):
        limit = f"1e{kind.precision - kind.scale}"
        return f"{column} = 'NaN' OR abs({column}) >= {limit} OR {column} <> round({column}, {kind.scale})"
    if isinstance(kind, DateType):
        return f"NOT isfinite({column}) OR {column} < '0001-01-01' OR {column} > '9999-12-31'"
    if isinstance(kind, TimestampType | TimestampNTZType):
        return f"NOT isfinite({column}) OR {column} < '0001-01-01' OR {column} >= '10000-01-01'"
    return None


def sequence(lsn: int, number: int) -> str:
    """Return a text that every table can compare: the commit, then the change in it. As in `cdc`, its letter is newer than a
    time."""
    return f"L{lsn:020}{number:012}"


def lsn_number(text: str) -> int:
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


def lsn_text(number: int) -> str:
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"
