"""Choose the partition of a record as the Java client does."""

import random
from typing import Final, Protocol

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash of Kafka's Java clients, as an unsigned number."""
    length = len(data)
    h = (_SEED ^ length) & _MASK
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k ^= k >> 24
        h = (h * _M & _MASK) ^ (k * _M & _MASK)
    tail = data[whole:]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_of_key(key: bytes, partition_count: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class Partitioner(Protocol):
    def choose(self, topic: str, key: bytes | None, partition_count: int, record_bytes: int) -> int: ...


class RoundRobinPartitioner:
    """Use one partition after the other and ignore the key, like Kafka's class of that name."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def choose(self, topic: str, key: bytes | None, partition_count: int, record_bytes: int) -> int:
        chosen = self._next.get(topic, 0) % partition_count
        self._next[topic] = chosen + 1
        return chosen


class StickyPartitioner:
    """Records without a key stay on one partition for a batch's worth of bytes, then switch to another (KIP-794)."""

    def __init__(self, sticky_bytes: int, chance: random.Random, *, ignore_keys: bool = False) -> None:
        """`ignore_keys`: treat records with a key like those without (`partitioner.ignore.keys`)."""
        self._ignore_keys = ignore_keys
        self._sticky_bytes = sticky_bytes
        self._chance = chance
        self._current: dict[str, int] = {}
        self._produced: dict[str, int] = {}

    def choose(self, topic: str, key: bytes | None, partition_count: int, record_bytes: int) -> int:
        if key is not None and not self._ignore_keys:
            return partition_of_key(key, partition_count)
        current = self._current.get(topic)
        produced = self._produced.get(topic, 0)
        if current is None or current >= partition_count or produced >= self._sticky_bytes:
            current = self._current[topic] = self._chance.randrange(partition_count)
            produced = 0
        self._produced[topic] = produced + record_bytes
        return current
