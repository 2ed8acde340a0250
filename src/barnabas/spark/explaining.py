"""Describes what a batch query would read: Spark's own `explain()` says `BatchScan barnabas (Python)` and no more."""

from collections.abc import Mapping
from dataclasses import dataclass

from barnabas.base.ids import TopicPartition
from barnabas.spark.offsets import OffsetRange
from barnabas.spark.options import source_options
from barnabas.spark.reader import BarnabasReader, RangePartition, TierTask
from barnabas.spark.tier_slices import TierSlice

_PARTITIONS_SHOWN = 20


@dataclass(slots=True)
class _Reading:
    """The offsets of one partition that the query reads."""

    from_offset: int
    until_offset: int
    from_brokers: int = 0
    from_store: int = 0

    def take(self, part: OffsetRange | TierSlice) -> None:
        self.from_offset = min(self.from_offset, part.from_offset)
        self.until_offset = max(self.until_offset, part.until_offset)
        if isinstance(part, TierSlice):
            self.from_store += part.until_offset - part.from_offset
        else:
            self.from_brokers += part.size


def explain(options: Mapping[str, str]) -> str:
    """Describe the offsets, where they come from, and how many tasks read them.

    Plans as `spark.read.format("barnabas").options(**options)` does, now, and reads no records. Leaves out filters of the
    query, which Spark pushes down later.
    """
    tasks = BarnabasReader(source_options(options, streaming=False), ()).partitions()
    readings: dict[TopicPartition, _Reading] = {}
    for task in tasks:
        parts: tuple[OffsetRange | TierSlice, ...] = ()
        if isinstance(task, RangePartition):
            parts = task.ranges
        elif isinstance(task, TierTask):
            parts = task.parts
        for part in parts:
            known = readings.setdefault(part.partition, _Reading(part.from_offset, part.until_offset))
            known.take(part)
    brokers = sum(each.from_brokers for each in readings.values())
    store = sum(each.from_store for each in readings.values())
    lines = [
        f"{_count(len(readings), 'partition')}, {_count(brokers + store, 'offset')}: {store:,} from the object store, "
        f"{brokers:,} from brokers. {_count(len(tasks), 'task')}"
    ]
    width = max((len(str(partition)) for partition in readings), default=0)
    for partition, each in sorted(readings.items())[:_PARTITIONS_SHOWN]:
        lines.append(
            f"  {partition!s:{width}}  {each.from_offset:,} to {each.until_offset:,}: "
            f"{each.from_store:,} from the store, {each.from_brokers:,} from brokers"
        )
    if len(readings) > _PARTITIONS_SHOWN:
        lines.append(f"  and {len(readings) - _PARTITIONS_SHOWN:,} more")
    return "\n".join(lines)


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
