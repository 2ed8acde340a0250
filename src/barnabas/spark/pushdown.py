"""Filters on partition, offset and timestamp, made into bounds for fetching. Pure.

The bounds meet a filter on `topic`, `partition` or `offset` exactly, and Spark need not check it again. `timestamp >= t` gives
the start: the broker finds the first record that is not older, and all records before it are older. Later records may still be
older (producers set the time), so Spark checks that filter again, and `timestamp < t` gives no end.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, TypeVar

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from barnabas.base.ids import TopicPartition

#: Spark 4.3 keeps what a reader planned for its filters with the loaded frame, and takes it for every other use of that frame:
#: `f.filter(a).union(f.filter(b))` reads b twice. So the option `filterPushdown` has to ask for it, for frames used once.
#:
#: The module of the worker that asks a reader for its filters. Only this worker may get a reader that takes filters: elsewhere
#: Spark refuses such a reader while `spark.sql.python.filterPushdown.enabled` is off, as it is by default.
_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"

_UNBOUNDED: Final = 1 << 63
T = TypeVar("T")


def asked_for_filters() -> bool:
    """Whether this process is the worker that passes filters to a reader."""
    return _PUSHDOWN_WORKER in sys.modules


@dataclass(slots=True)
class Bounds:
    """The bounds that the filters leave. No row has a record outside; the filters may still drop a record inside."""

    topics: set[str] | None = None
    partitions: set[int] | None = None
    partition_from: int = -_UNBOUNDED
    partition_until: int = _UNBOUNDED
    offset_from: int = -_UNBOUNDED
    offset_until: int = _UNBOUNDED
    offsets: set[int] | None = None
    #: In milliseconds, rounded down. None: no filter on time.
    timestamp_from_ms: int | None = None
    _columns: frozenset[str] = field(default=frozenset({"topic", "partition", "offset", "timestamp"}))

    def take(self, filters: Sequence[Filter]) -> Iterator[Filter]:
        """Narrow the bounds by each filter; yield the filters that Spark has to check itself."""
        for each in filters:
            if not self._takes(each):
                yield each

    def admits(self, partition: TopicPartition) -> bool:
        index = partition.partition
        return (
            (self.topics is None or partition.topic in self.topics)
            and (self.partitions is None or index in self.partitions)
            and self.partition_from <= index < self.partition_until
        )

    def cut(self, from_offset: int, until_offset: int) -> tuple[int, int]:
        """Return the part of a range that can hold rows; empty if no part can."""
        first, until = max(from_offset, self.offset_from), min(until_offset, self.offset_until)
        if self.offsets is not None:
            inside = [offset for offset in self.offsets if first <= offset < until]
            first, until = (min(inside), max(inside) + 1) if inside else (first, first)
        return first, max(first, until)

    # -- single filters -------------------------------------------------------------------------------------------------

    def _takes(self, each: Filter) -> bool:
        column: tuple[str, ...] = getattr(each, "attribute", ())
        if len(column) != 1 or column[0] not in self._columns:
            return False
        name = column[0]
        if isinstance(each, IsNotNull):
            return True  # topic, partition, offset and timestamp are never null
        value = getattr(each, "value", None)
        if name == "topic":
            return self._takes_topic(each, value)
        if name == "timestamp":
            self._note_timestamp(each, value)
            return False
        return self._takes_number(name, each, value)

    def _takes_topic(self, each: Filter, value: object) -> bool:
        if isinstance(each, EqualTo | EqualNullSafe) and isinstance(value, str):
            self.topics = _both(self.topics, [value])
            return True
        if isinstance(each, In) and _all_are(each.value, str):
            self.topics = _both(self.topics, each.value)
            return True
        return False

    def _takes_number(self, name: str, each: Filter, value: object) -> bool:
        if isinstance(each, In):
            if not _all_are(each.value, int):
                return False
            if name == "partition":
                self.partitions = _both(self.partitions, each.value)
                return True
            # Fetch from the least to the greatest offset: Spark drops the records between.
            self.offsets = _both(self.offsets, each.value)
            return False
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        if isinstance(each, EqualTo | EqualNullSafe):
            self._narrow(name, value, value + 1)
        elif isinstance(each, GreaterThan):
            self._narrow(name, value + 1, _UNBOUNDED)
        elif isinstance(each, GreaterThanOrEqual):
            self._narrow(name, value, _UNBOUNDED)
        elif isinstance(each, LessThan):
            self._narrow(name, -_UNBOUNDED, value)
        elif isinstance(each, LessThanOrEqual):
            self._narrow(name, -_UNBOUNDED, value + 1)
        else:
            return False
        return True

    def _narrow(self, name: str, first: int, until: int) -> None:
        if name == "partition":
            self.partition_from = max(self.partition_from, first)
            self.partition_until = min(self.partition_until, until)
        else:
            self.offset_from = max(self.offset_from, first)
            self.offset_until = min(self.offset_until, until)

    def _note_timestamp(self, each: Filter, value: object) -> None:
        if not isinstance(value, datetime) or not isinstance(
            each, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual
        ):
            return
        # A time without a zone is in the session's time zone, which this process does not know.
        if value.tzinfo is None:
            return
        elapsed = value - datetime(1970, 1, 1, tzinfo=UTC)
        at_ms = elapsed.days * 86_400_000 + elapsed.seconds * 1000 + elapsed.microseconds // 1000
        self.timestamp_from_ms = at_ms if self.timestamp_from_ms is None else max(self.timestamp_from_ms, at_ms)


def _all_are(values: Iterable[object], kind: type) -> bool:
    return all(isinstance(value, kind) and not isinstance(value, bool) for value in values)


def _both(before: set[T] | None, now: Iterable[T]) -> set[T]:
    return set(now) if before is None else before & set(now)
