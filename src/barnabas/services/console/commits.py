"""Committed offsets of groups in a compact form: 15,000 groups of ten partitions take a few megabytes. Pure.

Groups that read the same partitions share one `Reads`. A group's lag is only computed again after its offsets, or the ends of
its partitions, have changed, so that iterating over all groups is cheap.
"""

import math
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from barnabas.base.ids import TopicPartition

UNKNOWN: Final = -1


@dataclass(slots=True, eq=False)
class Reads:
    """A set of partitions for which groups have committed offsets."""

    partitions: tuple[TopicPartition, ...]
    #: The ends as last seen; replaced by a new list when one changes.
    ends: list[int] = field(default_factory=list)
    #: None if there are several topics.
    only_topic: str | None = field(init=False)

    def __post_init__(self) -> None:
        topics = {partition.topic for partition in self.partitions}
        self.only_topic = topics.pop() if len(topics) == 1 else None

    def see_ends(self, end_of: Callable[[TopicPartition], int]) -> None:
        ends = [end_of(each) for each in self.partitions]
        if ends != self.ends:
            self.ends = ends


@dataclass(slots=True, eq=False)
class Committed:
    """A group's offsets, in the order of `reads.partitions`."""

    reads: Reads
    offsets: "array[int]"
    at_s: float
    #: When the offsets last changed; -inf if they were never seen to change.
    moved_s: float
    lag: int = 0
    _counted: list[int] | None = None

    def as_dict(self) -> dict[TopicPartition, int]:
        return dict(zip(self.reads.partitions, self.offsets, strict=True))

    def count(self) -> int:
        ends = self.reads.ends
        if self._counted is not ends:
            self.lag = sum(end - offset for end, offset in zip(ends, self.offsets, strict=True) if end > offset)
            self._counted = ends
        return self.lag


@dataclass(frozen=True, slots=True)
class Totals:
    at_s: float
    by_group: Mapping[str, int]
    #: Lag by topic.
    by_topic: Mapping[str, int]


class Commits:
    """By group, in the order of the requests: the group that was not requested for the longest time comes first."""

    def __init__(self) -> None:
        self._groups: dict[str, Committed] = {}
        self._reads: dict[tuple[TopicPartition, ...], Reads] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def get(self, group: str) -> Committed | None:
        return self._groups.get(group)

    def oldest(self) -> Iterable[str]:
        return self._groups

    def note(self, group: str, found: Mapping[TopicPartition, int], now_s: float) -> None:
        partitions = tuple(found)
        reads = self._reads.get(partitions)
        if reads is None:
            reads = self._reads[partitions] = Reads(partitions)
        offsets = array("q", found.values())
        known = self._groups.pop(group, None)
        if known is None:
            known = Committed(reads, offsets, now_s, -math.inf)
        elif known.reads is not reads or known.offsets != offsets:
            known = Committed(reads, offsets, now_s, now_s)
        known.at_s = now_s
        self._groups[group] = known

    def keep(self, is_wanted: Callable[[str], bool]) -> None:
        """Drop the other groups."""
        for group in [group for group in self._groups if not is_wanted(group)]:
            del self._groups[group]
        used = {known.reads.partitions: known.reads for known in self._groups.values()}
        if len(used) < len(self._reads):
            self._reads = used

    def clear(self) -> None:
        self._groups.clear()
        self._reads.clear()

    def of_topic(self, topic: str) -> dict[str, dict[TopicPartition, int]]:
        """Return the committed offsets of the topic, by group."""
        readers = {id(each) for each in self._reads.values() if any(p.topic == topic for p in each.partitions)}
        return {
            group: {partition: offset for partition, offset in known.as_dict().items() if partition.topic == topic}
            for group, known in self._groups.items()
            if id(known.reads) in readers
        }

    def partitions(self) -> set[TopicPartition]:
        return {partition for reads in self._reads.values() for partition in reads.partitions}

    def totals(self, end_of: Callable[[TopicPartition], int], now_s: float) -> Totals:
        """`end_of` returns the last known end, or `UNKNOWN`."""
        for reads in self._reads.values():
            reads.see_ends(end_of)
        by_group: dict[str, int] = {}
        by_topic: dict[str, int] = {}
        for group, known in self._groups.items():
            lag = by_group[group] = known.count()
            reads = known.reads
            if reads.only_topic is not None:
                by_topic[reads.only_topic] = by_topic.get(reads.only_topic, 0) + lag
                continue
            for partition, end, offset in zip(reads.partitions, reads.ends, known.offsets, strict=True):
                by_topic[partition.topic] = by_topic.get(partition.topic, 0) + max(end - offset, 0)
        return Totals(now_s, by_group, by_topic)
