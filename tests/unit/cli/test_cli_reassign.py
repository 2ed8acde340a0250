"""Reassignments as data: the moves, and their throttles."""

import json
import random

import pytest

from barnabas.base.errors import BarnabasError
from barnabas.base.ids import TopicPartition
from barnabas.cli._command import UsageError
from barnabas.cli._reassign_plan import (
    Move,
    Replica,
    moves,
    moving_brokers,
    parse_assignment,
    parse_topics,
    propose,
    to_json,
    topic_throttles,
)
from barnabas.client.admin.partitions import Reassignment

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_assignment_is_read_with_its_log_directories() -> None:
    document = {
        "version": 1,
        "partitions": [
            {"topic": "t", "partition": 0, "replicas": [1, 2], "log_dirs": ["/d", "any"]},
            {"topic": "t", "partition": 1, "replicas": [2]},
        ],
    }
    assignment = parse_assignment(document)
    assert assignment.partitions == {T0: [1, 2], T1: [2]}
    assert assignment.log_dirs == {Replica(1, "t", 0): "/d"}


def test_assignment_that_was_printed_can_be_read() -> None:
    partitions = {T1: [3, 1], T0: [1, 2]}
    text = to_json(partitions)
    assert text.startswith(
        '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2],"log_dirs":["any","any"]}'
    )
    assert parse_assignment(json.loads(text)).partitions == partitions


@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        ([], "cannot be empty"),
        ([{"topic": "t", "partition": 0, "replicas": []}], "replica list cannot be empty"),
        ([{"topic": "t", "partition": 0, "replicas": [1, 1]}], "t-0 contains multiple entries for 1"),
        ([{"topic": "t", "partition": 0, "replicas": [1]}] * 2, "duplicate topic partitions: t-0"),
        ([{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": []}], "different from size of log dirs"),
        ([{"topic": "t", "replicas": [1]}], "'partition' is missing"),
    ],
)
def test_bad_assignment_is_refused(entries: list[object], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        parse_assignment({"partitions": entries})


def test_topics_to_move_must_differ() -> None:
    assert parse_topics({"topics": [{"topic": "a"}, {"topic": "b"}]}) == ["a", "b"]
    with pytest.raises(UsageError):
        parse_topics({"topics": [{"topic": "a"}, {"topic": "a"}]})


def test_only_new_replicas_are_destinations() -> None:
    found = moves({}, {T0: [2, 3]}, {T0: [1, 2]})
    assert found == {T0: Move(frozenset({1, 2}), frozenset({3}))}
    assert topic_throttles(found) == {"t": ("0:1,0:2", "0:3")}
    assert moving_brokers(found) == [1, 2, 3]


def test_move_in_progress_keeps_its_sources() -> None:
    ongoing = {T0: Reassignment(replicas=(1, 2, 3), adding=(3,), removing=(1,))}
    found = moves(ongoing, {T0: [4]}, {T0: [1, 2, 3]})
    assert found == {T0: Move(frozenset({1, 2}), frozenset({4}))}


def test_move_that_was_not_named_is_throttled_too() -> None:
    ongoing = {T1: Reassignment(replicas=(1, 2), adding=(2,), removing=())}
    found = moves(ongoing, {T0: [2]}, {T0: [1]})
    assert topic_throttles(found) == {"t": ("0:1,1:1", "0:2,1:2")}


def test_proposal_spreads_leaders_and_uses_every_rack() -> None:
    current = {TopicPartition("t", n): [1, 2] for n in range(6)}
    racks: dict[int, str | None] = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    for seed in range(20):
        proposed = propose(current, racks, random.Random(seed))
        assert sorted(replicas[0] for replicas in proposed.values()) == [1, 2, 3, 4, 5, 6]
        assert all(racks[first] != racks[second] for first, second in proposed.values())


def test_proposal_needs_enough_brokers_and_racks_for_all_or_none() -> None:
    with pytest.raises(BarnabasError, match="larger than available brokers: 1"):
        propose({T0: [1, 2]}, {1: None}, random.Random(0))
    with pytest.raises(UsageError, match="--disable-rack-aware"):
        propose({T0: [1]}, {1: "a", 2: None}, random.Random(0))
