"""Offsets of a query: ranges to read, how they are split over tasks, and how much a trigger takes. Pure.

An offset of the stream is `{"topic": {"0": 23}}`, as in the checkpoints of Spark's own source. Topics and partitions are in
order, since Spark compares offsets as text.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, TypeAlias, TypeVar

from barnabas.base.errors import BarnabasError
from barnabas.base.ids import TopicPartition

T = TypeVar("T")

Offsets: TypeAlias = Mapping[TopicPartition, int]
#: The form in which Spark stores offsets.
OffsetJson: TypeAlias = dict[str, dict[str, int]]

_log: Final = logging.getLogger("barnabas.spark")

_WHY: Final = (
    "Some data may have been lost because they are not available in Kafka any more; either the data was aged out by Kafka "
    "or the topic may have been deleted before all the data in the topic was processed."
)
_HOW: Final = (
    "If you don't want your query to fail on such cases, set the source option 'failOnDataLoss' to 'false': "
    "it then goes on with the remaining records and logs a warning."
)


class DataLoss(BarnabasError):
    """Records that the query should have read are gone. The message names topic, partition and offset."""


def report_data_loss(what: str, *, fail: bool) -> None:
    """Apply `failOnDataLoss`: end the query, or log a warning and go on."""
    if fail:
        raise DataLoss(f"{what}. {_WHY} {_HOW}")
    _log.warning("%s. %s", what, _WHY)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records of one partition with from_offset <= offset < until_offset."""

    partition: TopicPartition
    from_offset: int
    until_offset: int
    #: Id of the topic that was planned; empty if the cluster has no topic ids.
    topic_id: bytes = b""

    @property
    def size(self) -> int:
        return self.until_offset - self.from_offset

    def __str__(self) -> str:
        return f"{self.partition} [{self.from_offset}, {self.until_offset})"


def to_json(offsets: Offsets) -> OffsetJson:
    topics: OffsetJson = {}
    for partition, offset in sorted(offsets.items()):
        topics.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return topics


def from_json(value: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(index)): offset
        for topic, partitions in value.items()
        for index, offset in partitions.items()
    }


def plan_ranges(start: Offsets, end: Offsets, *, new_from: Offsets, fail_on_data_loss: bool) -> list[OffsetRange]:
    """Return the ranges of a micro-batch. `new_from`: the first offsets of the partitions that only `end` has."""

    def lost(what: str) -> None:
        report_data_loss(what, fail=fail_on_data_loss)

    if gone := sorted(start.keys() - end.keys()):
        places = ", ".join(f"{partition} (read up to offset {start[partition]})" for partition in gone)
        lost(f"Partitions {places} are gone")
    ranges = []
    for partition, until in sorted(end.items()):
        first = start.get(partition)
        if first is None:
            first = new_from.get(partition)
            if first is None:
                lost(f"Added partition {partition} is gone, with records up to offset {until}")
                continue
            if first > 0:
                lost(f"Added partition {partition} starts from offset {first} instead of 0")
        if until < first:
            lost(f"Partition {partition}'s offset was changed from {first} to {until}")
            continue
        if until > first:
            ranges.append(OffsetRange(partition, first, until))
    return ranges


def split_ranges(
    ranges: Sequence[OffsetRange], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """Split ranges for tasks: none larger than `max_records`, and at least `min_partitions`, the larger split first.

    A task reads one range, so that without either option each topic partition is one task, in order.
    """
    found = [each for each in ranges if each.size > 0]
    if max_records is not None:
        found = [piece for each in found for piece in _pieces(each, -(-each.size // max_records))]
    if min_partitions is None or len(found) >= min_partitions or not found:
        return found
    # Each range gets its share of the tasks by size; tasks that rounding leaves over go where the pieces are largest.
    total = sum(each.size for each in found)
    shares = [min(each.size, max(1, min_partitions * each.size // total)) for each in found]
    while sum(shares) < min(min_partitions, total):
        largest = max(range(len(found)), key=lambda at: found[at].size / shares[at])
        shares[largest] += 1
    return [piece for each, share in zip(found, shares, strict=True) for piece in _pieces(each, share)]


def _pieces(whole: OffsetRange, count: int) -> Iterable[OffsetRange]:
    ends = [whole.from_offset + whole.size * index // count for index in range(count + 1)]
    for begin, end in pairwise(ends):
        if end > begin:
            yield replace(whole, from_offset=begin, until_offset=end)


#: So many tasks keep the cores of most clusters busy. If there are more partitions, small ones share a task.
TASKS_BEFORE_SHARING: Final = 64
#: A task with so many records is worth its cost, which is that of about 50,000 records.
SHARED_RECORDS_MIN: Final = 200_000
SHARED_RECORDS_MAX: Final = 1_000_000
#: Most records of a shared task in a micro-batch: a task costs fifty milliseconds beside its records, and the next micro-batch
#: waits for all tasks. A larger limit would leave a query that does slow work on each record with too few tasks when it falls
#: behind.
STREAM_TASK_RECORDS: Final = 10_000
#: Cost of a partition beside its records, in records.
PARTITION_RECORDS: Final = 500


def in_tasks(ranges: Sequence[OffsetRange], *, may_wait: bool = False) -> list[tuple[OffsetRange, ...]]:
    """Divide ranges among tasks: one range each, or several small ones if there are very many, or if the ranges `may_wait` for
    each other, as in a micro-batch. Keeps the order, and divides no range."""
    total = sum(_cost(each) for each in ranges)
    if len(ranges) > TASKS_BEFORE_SHARING:
        enough = min(SHARED_RECORDS_MAX, max(SHARED_RECORDS_MIN, total // TASKS_BEFORE_SHARING))
        return packed(ranges, _cost, enough)
    tasks = max(1, total // STREAM_TASK_RECORDS)
    if may_wait and tasks < len(ranges):
        return packed(ranges, _cost, -(-total // tasks))
    return [(each,) for each in ranges]


def packed(items: Iterable[T], cost: Callable[[T], int], most: int) -> list[tuple[T, ...]]:
    """Group items in order up to the cost `most`; an item that costs more is alone."""
    found: list[tuple[T, ...]] = []
    shared: list[T] = []
    total = 0
    for each in items:
        if shared and total + cost(each) > most:
            found.append(tuple(shared))
            shared, total = [], 0
        shared.append(each)
        total += cost(each)
    return [*found, tuple(shared)] if shared else found


def _cost(of: OffsetRange) -> int:
    return of.size + PARTITION_RECORDS


def rate_limited(start: Offsets, latest: Offsets, *, new_from: Offsets, limit: int) -> dict[TopicPartition, int]:
    """Limit a trigger to `maxOffsetsPerTrigger` records: each partition gets a share by the records that wait in it."""
    begins = {partition: start.get(partition, new_from.get(partition, 0)) for partition in latest}
    waiting = {partition: max(0, latest[partition] - begins[partition]) for partition in latest}
    total = sum(waiting.values())
    if total <= limit:
        return dict(latest)
    end = {}
    for partition, behind in waiting.items():
        if not behind:
            # The end is also before the start if the topic was created again and is shorter: planning sees that and reports it.
            end[partition] = latest[partition]
            continue
        # At least one record: a small partition would wait for ever beside a large one.
        share = max(1, limit * behind // total)
        end[partition] = min(latest[partition], begins[partition] + share)
    return end


class TriggerDelay:
    """Decides by `minOffsetsPerTrigger` and `maxTriggerDelay` whether a trigger waits for more records. Callers pass the
    time."""

    def __init__(self, *, min_offsets: int, max_delay_ms: int) -> None:
        self._min_offsets = min_offsets
        self._max_delay_ms = max_delay_ms
        #: As in Spark's own source, the first trigger never waits.
        self._last_trigger_ms: int | None = None

    def waits(self, *, waiting: int, now_ms: int) -> bool:
        due = self._last_trigger_ms is None or now_ms - self._last_trigger_ms >= self._max_delay_ms
        if not due and waiting < self._min_offsets:
            return True
        self._last_trigger_ms = now_ms
        return False


def waiting_records(start: Offsets, latest: Offsets, *, new_from: Offsets) -> int:
    return sum(max(0, latest[p] - start.get(p, new_from.get(p, 0))) for p in latest)
