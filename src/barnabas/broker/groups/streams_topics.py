"""Resolves a topology against the topics that exist: numbers of partitions and tasks, and internal topics to create. Pure.

A repartition topic without a number of partitions gets that of the largest input of the subtopology that writes it, a changelog
topic that of the largest input of its subtopology. Topics that are copartitioned must have the same number.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from barnabas.broker.groups.group import Topics
from barnabas.broker.groups.streams_tasks import TaskId
from barnabas.broker.groups.streams_topology import InternalTopicSpec, StreamsTopology, Subtopology, invalid_topology
from barnabas.wire.messages import streams_group_describe as described
from barnabas.wire.messages.streams_group_heartbeat import Status

#: Tasks that a group may have: members choose the topology, and the assignor goes through all tasks.
TASKS_MAX: Final = 100_000
#: Names in an error; the number of the others follows.
_NAMES_SHOWN: Final = 3


class StatusCode(IntEnum):
    """A remark to a member beside its assignment; the numbers are those on the wire."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5

    def status(self, detail: str) -> Status:
        return Status(status_code=self, status_detail=detail)


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A repartition or changelog topic with its number of partitions."""

    name: str
    partitions: int
    #: -1: the default of the cluster.
    replication_factor: int
    settings: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ConfiguredTopology:
    topology: StreamsTopology
    #: Stands for the topics from which this follows.
    metadata_hash: int
    #: Numbers of tasks by subtopology. Empty if the topics do not fit the topology.
    task_counts: Mapping[str, int]
    #: Numbers of partitions of internal topics by name.
    partitions: Mapping[str, int]
    missing: tuple[InternalTopic, ...] = ()
    #: Why no task can run; None: all topics exist and fit.
    problem: Status | None = None

    @property
    def is_ready(self) -> bool:
        return self.problem is None

    @property
    def stateful(self) -> frozenset[str]:
        """Return the ids of subtopologies that have a changelog."""
        return frozenset(each.subtopology_id for each in self.topology.subtopologies if each.changelogs)

    def tasks(self) -> Iterable[TaskId]:
        for subtopology_id, count in self.task_counts.items():
            for number in range(count):
                yield TaskId(subtopology_id, number)

    def describe(self) -> described.Topology:
        partitions = dict(self.partitions) if self.is_ready else {}
        return described.Topology(
            epoch=self.topology.epoch,
            subtopologies=[each.describe(partitions) for each in self.topology.subtopologies],
        )


class _Problem(Exception):
    def __init__(self, code: StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.status = code.status(detail)


def configure(topology: StreamsTopology, metadata_hash: int, topics: Topics) -> ConfiguredTopology:
    """:raises Refused: STREAMS_INVALID_TOPOLOGY, if no topics could fit."""
    try:
        decided = _decide(topology, topics)
        missing = _missing(topology, decided, topics)
    except _Problem as problem:
        return ConfiguredTopology(topology, metadata_hash, {}, {}, problem=problem.status)
    status = None
    if missing:
        names = _some(each.name for each in missing)
        status = StatusCode.MISSING_INTERNAL_TOPICS.status(f"Internal topics are missing: {names}")
    counts = {
        each.subtopology_id: max(_count(name, decided, topics) for name in each.inputs)
        for each in topology.subtopologies
    }
    if sum(counts.values()) > TASKS_MAX:
        raise invalid_topology(
            f"The topology has {sum(counts.values())} tasks, but a streams group has at most {TASKS_MAX}."
        )
    return ConfiguredTopology(topology, metadata_hash, counts, decided, missing, status)


def _count(name: str, decided: Mapping[str, int], topics: Topics) -> int:
    """Return the number of partitions; 0: it is not known yet."""
    return topics.partition_count(name) or decided.get(name, 0)


def _decide(topology: StreamsTopology, topics: Topics) -> dict[str, int]:
    """Return the number of partitions of every internal topic."""
    repartition = {topic.name for each in topology.subtopologies for topic in each.repartition_sources}
    absent = {name for each in topology.subtopologies for name in each.sources if not topics.partition_count(name)}
    if absent:
        raise _Problem(StatusCode.MISSING_SOURCE_TOPICS, f"Source topics {_some(absent)} are missing.")
    decided = _repartition_counts(topology, topics)
    if not repartition <= decided.keys():
        raise invalid_topology(
            "Failed to compute number of partitions for all repartition topics, because a repartition source topic is never "
            "used as a sink topic."
        )
    fixed = {topic.name for each in topology.subtopologies for topic in each.repartition_sources if topic.partitions}
    for each in topology.subtopologies:
        for group in each.copartition_groups():
            decided.update(_copartition(group, repartition, fixed, decided, topics))
    for each in topology.subtopologies:
        largest = max(_count(name, decided, topics) for name in each.inputs)
        decided.update((changelog.name, largest) for changelog in each.changelogs)
    return decided


def _repartition_counts(topology: StreamsTopology, topics: Topics) -> dict[str, int]:
    counts = {
        topic.name: topic.partitions
        for each in topology.subtopologies
        for topic in each.repartition_sources
        if topic.partitions
    }
    open_writers = [each for each in topology.subtopologies if not counts.keys() >= set(each.repartition_sinks)]
    while open_writers:
        waiting: list[Subtopology] = []
        for each in open_writers:
            known = max(
                *(counts.get(topic.name, 0) for topic in each.repartition_sources),
                *(topics.partition_count(name) for name in each.sources),
                0,
                0,
            )
            if not known:
                waiting.append(each)
                continue
            for name in each.repartition_sinks:
                counts.setdefault(name, known)
        if len(waiting) == len(open_writers):
            raise invalid_topology(
                "Failed to compute number of partitions for all repartition topics. There may be loops in the topology that "
                "cannot be resolved."
            )
        open_writers = waiting
    return counts


def _copartition(
    group: frozenset[str],
    repartition: set[str],
    fixed: set[str],
    decided: Mapping[str, int],
    topics: Topics,
) -> dict[str, int]:
    """Return the number that the repartition topics of the group must have."""
    counts = {name: _count(name, decided, topics) for name in sorted(group)}
    internal = {name: count for name, count in counts.items() if name in repartition}
    # Topics of the user cannot be changed, and come first; then repartition topics to which the user gave a number.
    leading = {name: count for name, count in counts.items() if name not in repartition}
    leading = leading or {name: count for name, count in internal.items() if name in fixed}
    if len(set(leading.values())) > 1:
        listed = ", ".join(f"{name}={count}" for name, count in leading.items())
        raise _Problem(
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
            f"Following topics do not have the same number of partitions: [{{{listed}}}]",
        )
    number = max((leading or internal).values(), default=0)
    for name, count in internal.items():
        if name in fixed and count != number:
            raise _Problem(
                StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                f"Number of partitions [{count}] of repartition topic [{name}] doesn't match number of partitions "
                f"[{number}] of the source topic.",
            )
    return dict.fromkeys(internal, number)


def _missing(topology: StreamsTopology, decided: Mapping[str, int], topics: Topics) -> tuple[InternalTopic, ...]:
    wanted: dict[str, InternalTopicSpec] = {}
    for each in topology.subtopologies:
        wanted.update((topic.name, topic) for topic in (*each.repartition_sources, *each.changelogs))
    missing: list[InternalTopic] = []
    for name, topic in sorted(wanted.items()):
        found, number = topics.partition_count(name), decided[name]
        if not found:
            missing.append(InternalTopic(name, number, topic.replication_factor or -1, topic.settings))
        elif found != number:
            raise _Problem(
                StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                f"Existing topic {name} has different number of partitions: expected {number}, found {found}",
            )
    return tuple(missing)


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = len(ordered) - _NAMES_SHOWN
    return ", ".join(ordered[:_NAMES_SHOWN]) + (f" and {more} additional topics" if more > 0 else "")
