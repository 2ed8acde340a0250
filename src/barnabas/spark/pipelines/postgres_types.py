"""PostgreSQL's types as its catalogue has them: by oid, with typmod, domains resolved to the type beneath. Pure.

A name proves nothing: an enum may be called `interest_kind`, a domain `realm`, and `timestamptz(3)` prints as `timestamp(3)
with time zone`. The oids of PostgreSQL's own types never change.
"""

from dataclasses import dataclass
from typing import Final

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
    IntegralType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

#: Most digits of Spark's decimal.
DECIMAL_DIGITS_MAX: Final = 38
NUMERIC: Final = 1700
MONEY: Final = 790
#: `pg_type.typcategory` of numbers, such as `oid` and `money`, which PostgreSQL makes of other numbers.
_NUMBERS: Final = "N"

_HELD: Final[dict[int, DataType]] = {
    16: BooleanType(),
    17: BinaryType(),
    20: LongType(),
    21: ShortType(),
    23: IntegerType(),
    700: FloatType(),
    701: DoubleType(),
    1082: DateType(),
    1114: TimestampNTZType(),
    1184: TimestampType(),
    18: StringType(),  # "char"
    19: StringType(),  # name
    25: StringType(),  # text
    1042: StringType(),  # character(n)
    1043: StringType(),  # character varying(n)
}


@dataclass(frozen=True)
class PostgresType:
    """The type of a column or of an array's elements."""

    oid: int
    #: Size and scale, as PostgreSQL packs them; -1 if there are none.
    typmod: int
    schema: str
    #: PostgreSQL's own name of the type; the name of an array type begins with `_`.
    name: str
    #: As `format_type` prints it, with its size: `character varying(3)`.
    declared: str
    category: str = ""
    element: "PostgresType | None" = None

    @property
    def cast_name(self) -> str:
        """Return the name for a cast that keeps the whole value. `CAST(x AS character)` would keep one character; a quoted name
        has no size, so the assignment to the column checks the size."""
        return ".".join('"' + part.replace('"', '""') + '"' for part in (self.schema, self.name))

    def held_as(self) -> DataType | None:
        """Return the Spark type that has exactly the values of this type; None if there is no such type."""
        return decimal_of(self.typmod) if self.oid == NUMERIC else _HELD.get(self.oid)

    def read_as(self) -> DataType:
        """Return the Spark type for reading: text, as PostgreSQL prints it, if Spark has no such type."""
        return self.held_as() or StringType()

    def taken_as(self, given: DataType) -> DataType | None:
        """Return the Spark type to write if the rows have `given`; None if the column takes no such value."""
        held = self.held_as()
        if self.oid == NUMERIC:
            return given if isinstance(given, DecimalType | IntegralType) else decimal_of(self.typmod)
        if held is not None:
            return held
        if self.element is not None and isinstance(given, ArrayType):
            inner = self.element.taken_as(given.elementType)
            return None if inner is None else ArrayType(inner)
        if isinstance(given, StringType) or (self.category == _NUMBERS and isinstance(given, IntegralType)):
            return given
        return None

    def needs_cast(self, given: DataType) -> bool:
        """Whether only an explicit cast makes `given` a value of this type: text for a uuid, jsonb, an enum, an array."""
        if isinstance(given, ArrayType):
            return self.element is not None and self.element.needs_cast(given.elementType)
        return isinstance(given, StringType) and not isinstance(self.held_as(), StringType)


def decimal_of(typmod: int) -> DecimalType:
    """Return the type for a numeric of this size. Without a size, or for one that Spark does not have: Spark's largest decimal,
    with half of its digits behind the point."""
    precision, scale = numeric_size(typmod)
    if 0 < precision <= DECIMAL_DIGITS_MAX and 0 <= scale <= precision:
        return DecimalType(precision, scale)
    return DecimalType(DECIMAL_DIGITS_MAX, DECIMAL_DIGITS_MAX // 2 - 1)


def numeric_size(typmod: int) -> tuple[int, int]:
    """Return precision and scale; the precision is 0 if the column has none. Since PostgreSQL 15 a scale may be negative."""
    if typmod < 4:
        return 0, 0
    packed = typmod - 4
    scale = packed & 0x7FF
    return packed >> 16 & 0xFFFF, scale - 0x800 if scale & 0x400 else scale
