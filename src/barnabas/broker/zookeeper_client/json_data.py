"""JSON in ZooKeeper: reading it with errors that name the path, and writing it in the order that Kafka 3.9 writes it.

Kafka encodes Scala and Java hash maps, so the order follows from hash functions, not from a schema. Readers do not
care, people who compare two clusters do: a tree that we wrote is the same, byte for byte, as one that Kafka wrote.
Only maps whose keys vary need this; fixed ones are spelled out in Kafka's order in `znodes`. Pure.
"""

import json
from collections.abc import Iterable
from typing import Any, Final

from barnabas.base.errors import Malformed
from barnabas.base.java_hash import java_hash

_MASK = 0xFFFF_FFFF


def dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


#: What comes out of a decoder that meets a value of another kind than it expects.
WRONG_KIND: Final = (KeyError, TypeError, ValueError, AttributeError, OverflowError)


def load(path: str, data: bytes) -> dict[str, Any]:
    """The JSON object that `path` holds. Anybody may have written it: whatever it is, only `Malformed` is raised."""
    try:
        value = json.loads(data)
        if b"\\u" in data:
            # Half a surrogate pair can be escaped in JSON, and never be sent again.
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise Malformed(f"{path} does not hold JSON: {data[:200]!r}") from error
    if not isinstance(value, dict):
        raise Malformed(f"{path} does not hold a JSON object: {data[:200]!r}")
    return value


class reading:  # noqa: N801 - it reads as a statement
    """`with reading(path, data) as value`: the JSON object. A field that is missing or of a wrong kind raises `Malformed`."""

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
    """A number that fits where messages carry it."""
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
    """Size of a table that doubles when it is three quarters full."""
    size = smallest
    while count >= size * 3 // 4:
        size *= 2
    return size


def properties_order(keys: Iterable[str]) -> list[str]:
    """Order of `java.util.Properties`: settings under /config."""
    names = list(keys)
    mask = _table_size(len(names), 16) - 1
    return sorted(names, key=lambda name: _spread(java_hash(name) & _MASK) & mask)


def mutable_map_order(keys: Iterable[str]) -> list[str]:
    """Order of `scala.collection.mutable.HashMap`: partitions of a topic. A bucket is kept sorted by signed hash."""
    names = list(keys)
    mask = _table_size(len(names), 16) - 1

    def position(name: str) -> tuple[int, int]:
        spread = _spread(java_hash(name) & _MASK)
        return spread & mask, _signed(spread)

    return sorted(names, key=position)
