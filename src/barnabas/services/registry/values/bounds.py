"""How much one value may cost to decode. Pure."""

from typing import Final

#: fastavro recurses in C for each record, array and map within another one, without a limit of its own.
VALUE_DEPTH_MAX: Final = 200
#: Values that one byte may stand for. Every scalar but null takes a byte; records around it take none.
VALUES_PER_BYTE: Final = 4
#: Values beyond those: nulls, empty records, fixed of size 0.
VALUES_FREE: Final = 1_000
#: Python converts bytes to a decimal in time that grows with the square: 1.2 ms for this many, two minutes for a million.
DECIMAL_BYTES_MAX: Final = 4_096
#: fastavro parses a union at the top of a schema again for each record.
BRANCHES_MAX: Final = 1_000
#: Types of a schema, counted as often as they are used: a chain of 30 records with two fields each of the one before has 2^30.
TYPES_MAX: Final = 100_000
#: Values of one record, which take some 100 bytes each in Python. A record of 1 MiB cannot have more, see above.
VALUES_MAX: Final = 5_000_000


class Unreadable(ValueError):
    """The value, or its schema, goes beyond a bound. The message names the bound."""
