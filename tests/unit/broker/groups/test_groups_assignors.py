"""Server-side assignors, compared with Kafka's documentation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.groups.assignors import ASSIGNORS
from barnabas.broker.groups.assignors.range import assign_range
from barnabas.broker.groups.assignors.spec import Assignment, GroupSpec, MemberSpec
from barnabas.broker.groups.assignors.uniform import assign_uniform
from barnabas.broker.groups.records import Partitions

T1, T2, T3 = b"1" * 16, b"2" * 16, b"3" * 16


def member(
    *topics: bytes, current: Partitions | None = None, instance: str | None = None, rack: str | None = None
) -> MemberSpec:
    return MemberSpec(instance, rack, frozenset(topics), current or {})


def spec(
    members: dict[str, MemberSpec], counts: dict[bytes, int], racks: dict[int, set[str]] | None = None
) -> GroupSpec:
    return GroupSpec(members, counts, lambda topic_id, number: frozenset((racks or {}).get(number, ())))


def sizes(assignment: Assignment) -> dict[str, int]:
    return {member_id: sum(map(len, each.values())) for member_id, each in assignment.items()}


# -- range -------------------------------------------------------------------------------------------------------------


def test_range_gives_the_same_numbers_of_every_topic() -> None:
    group = spec({"a": member(T1, T2), "b": member(T1, T2)}, {T1: 3, T2: 3})
    assert assign_range(group) == {"a": {T1: {0, 1}, T2: {0, 1}}, "b": {T1: {2}, T2: {2}}}


def test_range_with_more_members_than_partitions_leaves_some_without() -> None:
    group = spec({"a": member(T1), "b": member(T1), "c": member(T1)}, {T1: 2})
    assert assign_range(group) == {"a": {T1: {0}}, "b": {T1: {1}}, "c": {}}


def test_range_orders_static_members_first_and_by_instance() -> None:
    group = spec({"a": member(T1), "z": member(T1, instance="i1"), "y": member(T1, instance="i2")}, {T1: 3})
    assert assign_range(group) == {"z": {T1: {0}}, "y": {T1: {1}}, "a": {T1: {2}}}


def test_range_with_different_subscriptions_shares_each_topic_among_its_own() -> None:
    group = spec({"a": member(T1, T2), "b": member(T1), "c": member(T2, T3)}, {T1: 3, T2: 3, T3: 2})
    assert assign_range(group) == {
        "a": {T1: {0, 1}, T2: {0, 1}},
        "b": {T1: {2}},
        "c": {T2: {2}, T3: {0, 1}},
    }


# -- uniform -----------------------------------------------------------------------------------------------------------


def test_uniform_balances_over_all_topics_together() -> None:
    group = spec({"a": member(T1, T2), "b": member(T1, T2)}, {T1: 3, T2: 3})
    assert sizes(assign_uniform(group)) == {"a": 3, "b": 3}


def test_uniform_keeps_what_members_have_when_one_joins() -> None:
    before: dict[str, Partitions] = {"a": {T1: frozenset({0, 1, 2})}, "b": {T1: frozenset({3, 4, 5})}}
    group = spec({"a": member(T1, current=before["a"]), "b": member(T1, current=before["b"]), "c": member(T1)}, {T1: 6})
    after = assign_uniform(group)
    assert sizes(after) == {"a": 2, "b": 2, "c": 2}
    assert after["a"][T1] < before["a"][T1]
    assert after["b"][T1] < before["b"][T1]


def test_uniform_gives_only_the_lost_partitions_away_when_one_leaves() -> None:
    group = spec(
        {"a": member(T1, current={T1: frozenset({0, 1})}), "b": member(T1, current={T1: frozenset({2, 3})})}, {T1: 6}
    )
    after = assign_uniform(group)
    assert {0, 1} <= after["a"][T1]
    assert {2, 3} <= after["b"][T1]
    assert sizes(after) == {"a": 3, "b": 3}


def test_uniform_lets_the_member_with_most_partitions_keep_the_odd_one() -> None:
    group = spec(
        {"a": member(T1, current={T1: frozenset({0})}), "b": member(T1, current={T1: frozenset({1, 2})})}, {T1: 3}
    )
    assert assign_uniform(group) == {"a": {T1: {0}}, "b": {T1: {1, 2}}}


def test_uniform_forgets_partitions_and_topics_that_are_gone() -> None:
    current = {T1: frozenset({0, 7}), T2: frozenset({0})}
    assert assign_uniform(spec({"a": member(T1, current=current)}, {T1: 2})) == {"a": {T1: {0, 1}}}


def test_uniform_prefers_members_near_a_replica_when_that_costs_no_balance() -> None:
    racks = {0: {"x"}, 1: {"y"}, 2: {"x"}, 3: {"y"}}
    group = spec({"a": member(T1, rack="y"), "b": member(T1, rack="x")}, {T1: 4}, racks)
    assert assign_uniform(group) == {"a": {T1: {1, 3}}, "b": {T1: {0, 2}}}


def test_uniform_never_trades_balance_for_racks() -> None:
    group = spec({"a": member(T1, rack="x"), "b": member(T1, rack="y")}, {T1: 4}, {n: {"x"} for n in range(4)})
    assert sizes(assign_uniform(group)) == {"a": 2, "b": 2}


def test_uniform_sheds_far_partitions_first() -> None:
    racks = {0: {"y"}, 1: {"x"}}
    group = spec({"a": member(T1, rack="x", current={T1: frozenset({0, 1})}), "b": member(T1)}, {T1: 2}, racks)
    assert assign_uniform(group) == {"a": {T1: {1}}, "b": {T1: {0}}}


def test_uniform_with_different_subscriptions_balances_as_far_as_they_allow() -> None:
    group = spec({"a": member(T1), "b": member(T1, T2), "c": member(T2)}, {T1: 4, T2: 2})
    assert sorted(sizes(assign_uniform(group)).values()) == [2, 2, 2]


def test_uniform_heterogeneous_moves_partitions_to_a_new_member() -> None:
    current = {T1: frozenset({0, 1, 2, 3}), T2: frozenset({0, 1})}
    group = spec({"a": member(T1, T2, current=current), "b": member(T1)}, {T1: 4, T2: 2})
    after = assign_uniform(group)
    assert sizes(after) == {"a": 3, "b": 3}
    assert after["a"][T2] == {0, 1}


# -- both --------------------------------------------------------------------------------------------------------------

TOPICS = [T1, T2, T3]
racks = st.sampled_from([None, "x", "y"])


@st.composite
def groups(draw: st.DrawFn) -> GroupSpec:
    counts = {topic: draw(st.integers(1, 8)) for topic in TOPICS}
    is_homogeneous = draw(st.booleans())
    shared = frozenset(draw(st.sets(st.sampled_from(TOPICS), min_size=1)))
    free = {(topic, number) for topic in TOPICS for number in range(counts[topic] + 1)}
    members = {}
    for n in range(draw(st.integers(1, 6))):
        topics = shared if is_homogeneous else frozenset(draw(st.sets(st.sampled_from(TOPICS))))
        held = draw(st.sets(st.sampled_from(sorted(free)))) if free else set()
        free -= held
        current: dict[bytes, frozenset[int]] = {}
        for topic, number in held:
            current[topic] = current.get(topic, frozenset()) | {number}
        instance = draw(st.sampled_from([None, f"i{n}"]))
        members[f"m{n}"] = MemberSpec(instance, draw(racks), topics, current)
    where = {(topic, number): draw(racks) for topic in TOPICS for number in range(counts[topic])}
    return GroupSpec(members, counts, lambda t, n: frozenset({where[t, n]} - {None}))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@given(group=groups())
def test_every_partition_of_a_subscribed_topic_goes_to_exactly_one_subscriber(name: str, group: GroupSpec) -> None:
    assignment = ASSIGNORS[name](group)
    assert assignment.keys() == group.members.keys()
    given_out = [(t, n) for each in assignment.values() for t, numbers in each.items() for n in numbers]
    subscribed = {topic for each in group.members.values() for topic in each.topics}
    expected = {(topic, n) for topic in subscribed for n in range(group.partition_counts[topic])}
    assert len(given_out) == len(set(given_out))
    assert set(given_out) == expected
    for member_id, each in assignment.items():
        assert each.keys() <= group.members[member_id].topics
        assert all(each.values())


@given(group=groups())
def test_uniform_is_balanced_when_all_subscribe_to_the_same(group: GroupSpec) -> None:
    if group.is_homogeneous:
        loads = sizes(assign_uniform(group)).values()
        assert max(loads) - min(loads) <= 1


@given(group=groups())
def test_uniform_with_different_subscriptions_cannot_be_improved_by_one_move(group: GroupSpec) -> None:
    assignment = assign_uniform(group)
    loads = sizes(assignment)
    for donor, each in assignment.items():
        for topic in each:
            for taker, other in group.members.items():
                if topic in other.topics:
                    assert loads[donor] - loads[taker] <= 1


@given(group=groups())
def test_uniform_changes_nothing_when_nothing_changed(group: GroupSpec) -> None:
    once = assign_uniform(group)
    again = GroupSpec(
        {
            key: MemberSpec(each.instance_id, each.rack_id, each.topics, once[key])
            for key, each in group.members.items()
        },
        group.partition_counts,
        group.racks,
    )
    assert assign_uniform(again) == once
