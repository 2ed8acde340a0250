"""JSON in ZooKeeper: reading it with errors that name the path, and writing it in the order that Kafka 3.9 writes it.

Kafka encodes Scala and Java hash maps, so the order follows from hash functions, not from a schema. Readers do not care
about it, but people who compare two clusters do: our znodes equal Kafka's byte for byte. Only maps with variable keys need
this; fixed ones are written in Kafka's order in `znodes`. Pure.
"""

import json
from collections.abc import Iterable
from typing import Any, Final

from barnabas.base.errors import Malformed
from barnabas.base.java_hash import java_hash

_MASK = 0xFFFF_FFFF


def dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


#: Exceptions that a decoder raises for a value of an unexpected kind.
WRONG_KIND: Final = (KeyError, TypeError, ValueError, AttributeError, OverflowError)


def load(path: str, data: bytes) -> dict[str, Any]:
    """Return the JSON object of `path`. Any client may have written it: invalid data raises `Malformed`, nothing else."""
    try:
        value = json.loads(data)
        if b"\\u" in data:
            # JSON can escape half a surrogate pair, which no encoder can send again.
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise Malformed(f"{path} does not hold JSON: {data[:200]!r}") from error
    if not isinstance(value, dict):
        raise Malformed(f"{path} does not hold a JSON object: {data[:200]!r}")
    return value


class reading:  # noqa: N801 - it reads as a statement
    """`with reading(path, data) as value`: the JSON object. A missing field, or one of a wrong kind, raises `Malformed`."""

    __slots__ = ("_data", "_path")

    def __init__(self, path: str, data: bytes) -> None:
        self._path = path
        self._data = data

    def __enter__(self) -> dict[str, Any]:
        return load(self._path, self._data)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: object) -> None:
        if isinstance(error, WRONG_KIND):
            raise wrong_shape(self._path, self._data, error) from error


def int32(value: Any) -> int:
    """Return a number that fits into 32 bits, as messages carry it."""
    number = int(value)
    if not -(2**31) <= number < 2**31:
        raise ValueError(f"{number} does not fit into 32 bits")
    return number


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def wrong_shape(path: str, data: bytes, error: Exception) -> Malformed:
    return Malformed(f"{path} lacks a field or has one of a wrong kind ({error!r}): {data[:200]!r}")


def _spread(value: int) -> int:
    return value ^ (value >> 16)


def _signed(value: int) -> int:
    return value - (1 << 32) if value & 0x8000_0000 else value


def _table_size(count: int, smallest: int) -> int:
    """Return the size of a table that doubles when it is three quarters full."""
    size = smallest
    while count >= size * 3 // 4:
        size *= 2
    return size


def properties_order(keys: Iterable[str]) -> list[str]:
    """Sort as `java.util.Properties` does: settings under /config."""
    names = list(keys)
    mask = _table_size(len(names), 16) - 1
    return sorted(names, key=lambda name: _spread(java_hash(name) & _MASK) & mask)


def mutable_map_order(keys: Iterable[str]) -> list[str]:
    """Sort as `scala.collection.mutable.HashMap` does: partitions of a topic. A bucket is sorted by signed hash."""
    names = list(keys)
    mask = _table_size(len(names), 16) - 1

    def position(name: str) -> tuple[int, int]:
        spread = _spread(java_hash(name) & _MASK)
        return spread & mask, _signed(spread)

    return sorted(names, key=position)
