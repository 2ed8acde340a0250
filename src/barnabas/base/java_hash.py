"""The partition of a group or a transactional id in an internal topic. It uses Java's hash, so that all brokers agree."""

from functools import lru_cache


def java_hash(text: str) -> int:
    """`String.hashCode`: over UTF-16 code units, a signed 32-bit integer."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


@lru_cache(maxsize=4096)
def partition_of(key: str, partitions: int) -> int:
    """Compute Kafka's `Utils.abs(key.hashCode) % partitions`, in which the absolute value of the least integer is 0."""
    value = java_hash(key)
    return 0 if value == -(1 << 31) else abs(value) % partitions
