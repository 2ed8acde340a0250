"""Reassignments as data: the JSON, the moves, the throttles for them, and a proposal."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from barnabas.base.ids import TopicPartition
from barnabas.broker.controller.placement import BrokerPlace, Start, assign_replicas
from barnabas.cli._command import UsageError
from barnabas.cli._json_files import entries
from barnabas.cli._json_files import field as json_field
from barnabas.cli._parsing import commas
from barnabas.client.admin.partitions import Reassignment

ANY_LOG_DIR: Final = "any"
_WHAT: Final = "--reassignment-json-file"


class Replica(NamedTuple):
    """One replica of a partition; its order is Kafka's listing order."""

    broker: int
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}-{self.broker}"


@dataclass(frozen=True, slots=True)
class Assignment:
    """The target replicas of partitions, and the log directories of some of these replicas."""

    partitions: dict[TopicPartition, list[int]] = field(default_factory=dict)
    log_dirs: dict[Replica, str] = field(default_factory=dict)


def parse_assignment(document: Mapping[str, Any]) -> Assignment:
    if document.get("version", 1) != 1:
        raise UsageError(f"Not supported version field value {document['version']}")
    assignment = Assignment()
    for entry in entries(dict(document), "partitions", what=_WHAT):
        where = TopicPartition(
            json_field(entry, "topic", str, what=_WHAT), json_field(entry, "partition", int, what=_WHAT)
        )
        replicas: list[int] = json_field(entry, "replicas", list, what=_WHAT)
        if not replicas:
            raise UsageError("Partition replica list cannot be empty")
        if where in assignment.partitions:
            raise UsageError(f"Partition reassignment contains duplicate topic partitions: {where}")
        twice = sorted({replica for replica in replicas if replicas.count(replica) > 1})
        if twice:
            raise UsageError(
                "Partition replica lists may not contain duplicate entries: "
                f"{where} contains multiple entries for {commas(twice)}"
            )
        log_dirs = entry.get("log_dirs", [ANY_LOG_DIR] * len(replicas))
        if len(log_dirs) != len(replicas):
            raise UsageError(
                f"Size of replicas list {replicas} is different from size of log dirs list {log_dirs} "
                f"for partition {where}"
            )
        assignment.partitions[where] = replicas
        for broker, log_dir in zip(replicas, log_dirs, strict=True):
            if log_dir != ANY_LOG_DIR:
                assignment.log_dirs[Replica(broker, *where)] = log_dir
    if not assignment.partitions:
        raise UsageError("Partition reassignment list cannot be empty")
    return assignment


def parse_topics(document: Mapping[str, Any]) -> list[str]:
    what = "--topics-to-move-json-file"
    if document.get("version", 1) != 1:
        raise UsageError(f"Not supported version field value {document['version']}")
    topics: list[str] = [
        json_field(entry, "topic", str, what=what) for entry in entries(dict(document), "topics", what=what)
    ]
    twice = sorted({topic for topic in topics if topics.count(topic) > 1})
    if twice:
        raise UsageError(f"List of topics to reassign contains duplicate entries: {twice}")
    return topics


def to_json(partitions: Mapping[TopicPartition, Sequence[int]]) -> str:
    """Format as `--execute` takes it, on one line, as Kafka writes it."""
    return json.dumps(
        {
            "version": 1,
            "partitions": [
                {
                    "topic": where.topic,
                    "partition": where.partition,
                    "replicas": list(replicas),
                    "log_dirs": [ANY_LOG_DIR] * len(replicas),
                }
                for where, replicas in sorted(partitions.items())
            ],
        },
        separators=(",", ":"),
    )


# -- moves and throttles ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Move:
    sources: frozenset[int]
    destinations: frozenset[int]


def moves(
    ongoing: Mapping[TopicPartition, Reassignment],
    proposed: Mapping[TopicPartition, Sequence[int]],
    current: Mapping[TopicPartition, Sequence[int]],
) -> dict[TopicPartition, Move]:
    """Return the moves in progress and the proposed ones. A move in progress keeps its sources."""
    found = {
        where: Move(frozenset(moving.replicas) - frozenset(moving.adding), frozenset(moving.adding))
        for where, moving in ongoing.items()
    }
    for where, replicas in proposed.items():
        sources = found[where].sources if where in found else frozenset(current[where])
        found[where] = Move(sources, frozenset(replicas) - sources)
    return found


def topic_throttles(moving: Mapping[TopicPartition, Move]) -> dict[str, tuple[str, str]]:
    """Return by topic the replicas that are throttled as leaders and as followers (`partition:broker`, …)."""
    leaders: dict[str, set[str]] = {}
    followers: dict[str, set[str]] = {}
    for (topic, partition), move in moving.items():
        leaders.setdefault(topic, set()).update(f"{partition}:{broker}" for broker in move.sources)
        followers.setdefault(topic, set()).update(f"{partition}:{broker}" for broker in move.destinations)
    return {topic: (",".join(sorted(leaders[topic])), ",".join(sorted(followers[topic]))) for topic in leaders}


def moving_brokers(moving: Mapping[TopicPartition, Move]) -> list[int]:
    return sorted({broker for move in moving.values() for broker in move.sources | move.destinations})


# -- a proposal ---------------------------------------------------------------------------------------------------------


def propose(
    current: Mapping[TopicPartition, Sequence[int]], racks: Mapping[int, str | None], chance: random.Random
) -> dict[TopicPartition, list[int]]:
    """Spread every topic evenly over the brokers of `racks`; the number of replicas stays."""
    by_topic: dict[str, list[TopicPartition]] = {}
    for where in sorted(current):
        by_topic.setdefault(where.topic, []).append(where)
    known = [rack for rack in racks.values() if rack is not None]
    if known and len(known) < len(racks):
        raise UsageError(
            "Not all brokers have rack information. Add --disable-rack-aware in command line to make replica "
            "assignment without rack information."
        )
    brokers = [BrokerPlace(broker, racks[broker]) for broker in sorted(racks)]
    proposed: dict[TopicPartition, list[int]] = {}
    for partitions in by_topic.values():
        placed = assign_replicas(
            brokers,
            partitions=len(partitions),
            replication_factor=len(current[partitions[0]]),
            start=Start(chance.randrange(len(brokers)), chance.randrange(len(brokers))) if brokers else Start(0, 0),
        )
        proposed.update((where, list(placed[index])) for index, where in enumerate(partitions))
    return proposed
