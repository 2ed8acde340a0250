"""Kafka's placement of replicas, and its rules for new topics and partitions."""

from collections import Counter

import pytest

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.controller.placement import (
    BrokerPlace,
    Start,
    assign_replicas,
    grow,
    rack_alternated,
    validate_manual_assignment,
    validate_no_collision,
)
from barnabas.broker.zookeeper_client.znodes import ReplicaAssignment

FIVE = [BrokerPlace(number) for number in range(5)]
#: The example in Kafka's own documentation of the algorithm.
RACKS = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}
SIX = [BrokerPlace(number, rack) for number, rack in RACKS.items()]


def test_replicas_without_racks_go_where_kafkas_documentation_says() -> None:
    assert assign_replicas(FIVE, partitions=10, replication_factor=3, start=Start(0, 0)) == {
        0: (0, 1, 2),
        1: (1, 2, 3),
        2: (2, 3, 4),
        3: (3, 4, 0),
        4: (4, 0, 1),
        5: (0, 2, 3),
        6: (1, 3, 4),
        7: (2, 4, 0),
        8: (3, 0, 1),
        9: (4, 1, 2),
    }


def test_neighbours_in_the_round_are_in_different_racks() -> None:
    assert rack_alternated(RACKS) == [0, 3, 1, 5, 4, 2]
    assert rack_alternated({number: f"rack{number // 3}" for number in range(9)}) == [0, 3, 6, 1, 4, 7, 2, 5, 8]
    assert rack_alternated({1: "a", 2: "a", 3: "b"}) == [1, 3, 2]


def test_replicas_with_racks_go_where_kafkas_documentation_says() -> None:
    assert assign_replicas(SIX, partitions=7, replication_factor=3, start=Start(0, 0)) == {
        0: (0, 3, 1),
        1: (3, 1, 5),
        2: (1, 5, 4),
        3: (5, 4, 2),
        4: (4, 2, 0),
        5: (2, 0, 3),
        6: (0, 4, 2),
    }


@pytest.mark.parametrize("start", [Start(0, 0), Start(3, 1), Start(5, 4)])
@pytest.mark.parametrize("factor", [1, 2, 3, 4, 6])
def test_every_rack_is_used_before_one_is_used_twice(start: Start, factor: int) -> None:
    for replicas in assign_replicas(SIX, partitions=24, replication_factor=factor, start=start).values():
        assert len(set(replicas)) == factor
        racks = Counter(RACKS[each] for each in replicas)
        assert max(racks.values()) - min(racks.get(rack, 0) for rack in set(RACKS.values())) <= 1


@pytest.mark.parametrize("brokers", [FIVE, SIX])
def test_leaders_and_replicas_are_spread_evenly(brokers: list[BrokerPlace]) -> None:
    size = len(brokers)
    assignment = assign_replicas(brokers, partitions=size * 4, replication_factor=3, start=Start(2, 1))
    assert set(Counter(each[0] for each in assignment.values()).values()) == {4}
    assert set(Counter(broker for each in assignment.values() for broker in each).values()) == {12}


@pytest.mark.parametrize(
    ("partitions", "factor", "code"),
    [
        (0, 1, ErrorCode.INVALID_PARTITIONS),
        (1, 0, ErrorCode.INVALID_REPLICATION_FACTOR),
        (1, 6, ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_impossible_placement_is_refused(partitions: int, factor: int, code: ErrorCode) -> None:
    with pytest.raises(Refused) as refused:
        assign_replicas(FIVE, partitions=partitions, replication_factor=factor, start=Start(0, 0))
    assert refused.value.code is code


def test_one_broker_holds_the_only_replica() -> None:
    assert assign_replicas([BrokerPlace(7)], partitions=2, replication_factor=1, start=Start(0, 0)) == {
        0: (7,),
        1: (7,),
    }


def test_brokers_with_and_without_racks_do_not_mix() -> None:
    with pytest.raises(Refused, match="rack information"):
        assign_replicas([BrokerPlace(1, "a"), BrokerPlace(2)], partitions=1, replication_factor=1, start=Start(0, 0))


def test_names_that_collide_in_metrics_are_refused() -> None:
    with pytest.raises(Refused, match=r"collides with existing topics: a\.b"):
        validate_no_collision("a_b", ["a.b", "x"])
    validate_no_collision("a_b", ["a_b", "a-b"])
    validate_no_collision("ab", ["a.b"])


@pytest.mark.parametrize(
    ("assignment", "reason"),
    [
        ({0: (1, 2), 1: (1,)}, "same number of replicas"),
        ({0: (1, 1)}, "Duplicate"),
        ({0: (1,), 2: (1,)}, "consecutive"),
        ({1: (1,)}, "consecutive"),
        ({0: ()}, "at least one"),
    ],
)
def test_invalid_manual_assignment_is_refused(assignment: dict[int, tuple[int, ...]], reason: str) -> None:
    with pytest.raises(Refused, match=reason) as refused:
        validate_manual_assignment(assignment)
    assert refused.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_manual_assignment_is_used_in_order() -> None:
    assert validate_manual_assignment({1: [2, 1], 0: [1, 2]}) == {0: (1, 2), 1: (2, 1)}


def existing(*replicas: tuple[int, ...]) -> dict[int, ReplicaAssignment]:
    return {number: ReplicaAssignment(each) for number, each in enumerate(replicas)}


def test_new_partitions_continue_the_topics_round() -> None:
    before = assign_replicas(FIVE, partitions=3, replication_factor=2, start=Start(2, 2))
    added = grow("t", existing(*before.values()), count=6, brokers=list(reversed(FIVE)))
    assert before | added == assign_replicas(FIVE, partitions=6, replication_factor=2, start=Start(2, 2))


def test_topic_grows_with_a_manual_assignment() -> None:
    assert grow("t", existing((0, 1)), count=3, brokers=FIVE, manual=[[1, 2], [4, 3]]) == {1: (1, 2), 2: (4, 3)}


@pytest.mark.parametrize(
    ("count", "manual", "code", "reason"),
    [
        (1, None, ErrorCode.INVALID_PARTITIONS, "higher than the requested"),
        (2, None, ErrorCode.INVALID_PARTITIONS, "already has 2"),
        (3, [[0, 9]], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Unknown broker"),
        (4, [[0, 1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "by 2 but 1 assignments"),
        (3, [[]], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "replication factor of 0"),
        (3, [[1, 1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Duplicate brokers"),
        (3, [[1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Inconsistent replication factor"),
    ],
)
def test_invalid_growth_is_refused(count: int, manual: list[list[int]] | None, code: ErrorCode, reason: str) -> None:
    with pytest.raises(Refused, match=reason) as refused:
        grow("t", existing((0, 1), (1, 2)), count=count, brokers=FIVE, manual=manual)
    assert refused.value.code is code


def test_topic_does_not_grow_during_a_reassignment() -> None:
    moving = {0: ReplicaAssignment((0, 1), adding=(1,))}
    with pytest.raises(Refused) as refused:
        grow("t", moving, count=2, brokers=FIVE)
    assert refused.value.code is ErrorCode.REASSIGNMENT_IN_PROGRESS
