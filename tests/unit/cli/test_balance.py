"""Proposals for places of replicas and leaders."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.base.ids import TopicPartition
from barnabas.cli._balance import NoPlace, Partition, Proposal, propose

Partitions = dict[TopicPartition, Partition]


def topic(name: str, *replicas: tuple[int, ...], size: int = 100, rate: float = 0.0) -> Partitions:
    return {TopicPartition(name, number): Partition(each, size, rate) for number, each in enumerate(replicas)}


def after(partitions: Partitions, proposal: Proposal) -> dict[TopicPartition, tuple[int, ...]]:
    return {where: proposal.targets.get(where, partition.replicas) for where, partition in partitions.items()}


def test_balanced_cluster_is_left_alone() -> None:
    partitions = topic("t", (1, 2), (2, 3), (3, 1))
    assert propose(partitions, {1: None, 2: None, 3: None}) == Proposal()


def test_new_broker_gets_its_share() -> None:
    partitions = topic("t", *[(1, 2), (2, 1)] * 6)
    proposal = propose(partitions, {1: None, 2: None, 3: None})
    replicas = Counter(broker for each in after(partitions, proposal).values() for broker in each)
    leaders = Counter(each[0] for each in after(partitions, proposal).values())
    assert max(replicas.values()) - min(replicas.values()) <= 1
    assert max(leaders.values()) - min(leaders.values()) <= 1
    assert proposal.moves == 8 and proposal.bytes == 800


def test_large_partitions_are_weighed() -> None:
    partitions = topic("big", (1,), (1,), size=10_000) | topic("small", (2,), (2,), size=10)
    proposal = propose(partitions, {1: None, 2: None})
    sizes = Counter[int]()
    for where, (broker,) in after(partitions, proposal).items():
        sizes[broker] += partitions[where].bytes
    assert sizes[1] < 15_000 > sizes[2]


def test_busy_leaders_are_spread_without_copying() -> None:
    partitions = topic("busy", (1, 2), (1, 2), size=5, rate=1000.0) | topic("idle", (2, 1), (2, 1), size=5)
    proposal = propose(partitions, {1: None, 2: None})
    led = after(partitions, proposal)
    assert {led[TopicPartition("busy", number)][0] for number in (0, 1)} == {1, 2}
    assert proposal.moves == 0 and proposal.leaders > 0


def test_replicas_are_spread_over_racks() -> None:
    partitions = topic("t", (1, 2), (2, 1), (3, 4), (4, 3))
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    for replicas in after(partitions, propose(partitions, racks)).values():
        assert len({racks[broker] for broker in replicas}) == 2


def test_drained_broker_becomes_empty_and_others_keep_their_replicas() -> None:
    partitions = topic("t", (1, 2), (2, 3), (3, 1), (1, 2))
    proposal = propose(partitions, {1: None, 2: None, 3: None}, drain=[3], only_drain=True)
    assert all(3 not in replicas for replicas in after(partitions, proposal).values())
    assert set(proposal.targets) == {TopicPartition("t", 1), TopicPartition("t", 2)}


def test_drain_without_room_is_refused() -> None:
    with pytest.raises(NoPlace, match=r"t-0 has 2 replicas, and 1 brokers would be left"):
        propose(topic("t", (1, 2)), {1: None, 2: None}, drain=[2])


def test_broker_that_is_down_keeps_its_replicas() -> None:
    partitions = topic("t", (9, 1), (1, 9), (2, 1))
    proposal = propose(partitions, {1: None, 2: None})
    assert [replicas for replicas in after(partitions, proposal).values() if 9 in replicas] != []


def test_moves_are_bounded() -> None:
    partitions = topic("t", *[(1,)] * 10)
    assert propose(partitions, {1: None, 2: None}, moves_max=2).moves == 2


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000))
def test_proposal_keeps_every_replica_once_and_never_gets_worse(seed: int) -> None:
    chance = random.Random(seed)
    brokers = {number: chance.choice(["a", "b", None]) for number in range(chance.randint(2, 6))}
    partitions: Partitions = {}
    for number in range(chance.randint(1, 25)):
        replicas = tuple(chance.sample(sorted(brokers), chance.randint(1, len(brokers))))
        partitions[TopicPartition("t", number)] = Partition(replicas, chance.randint(0, 1000), chance.random() * 100)
    proposal = propose(partitions, brokers)
    for where, replicas in after(partitions, proposal).items():
        assert len(set(replicas)) == len(replicas) == len(partitions[where].replicas)
        assert set(replicas) <= brokers.keys()
    again = {
        where: Partition(replicas, partitions[where].bytes, partitions[where].rate)
        for where, replicas in after(partitions, proposal).items()
    }
    # A finished move is not proposed again.
    assert propose(again, brokers).moves == 0
