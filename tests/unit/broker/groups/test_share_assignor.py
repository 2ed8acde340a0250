"""The simple assignor of share groups."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.groups.assignors.simple import assign_simple
from barnabas.broker.groups.assignors.spec import Assignment, MemberSpec
from barnabas.broker.groups.records import Partitions

T1, T2 = b"1" * 16, b"2" * 16


def member(*topics: bytes, current: Partitions | None = None) -> MemberSpec:
    return MemberSpec(None, None, frozenset(topics), current or {})


def numbers(count: int) -> frozenset[int]:
    return frozenset(range(count))


def sharing(assignment: Assignment) -> Counter[tuple[bytes, int]]:
    return Counter((t, n) for each in assignment.values() for t, held in each.items() for n in held)


def sizes(assignment: Assignment) -> list[int]:
    return sorted(sum(map(len, each.values())) for each in assignment.values())


def test_fewer_members_than_partitions_divide_them() -> None:
    assignment = assign_simple({"a": member(T1), "b": member(T1)}, {T1: numbers(5)})
    assert set(sharing(assignment).values()) == {1}
    assert sizes(assignment) == [2, 3]


def test_more_members_than_partitions_share_them() -> None:
    assignment = assign_simple({f"m{n:02}": member(T1) for n in range(50)}, {T1: numbers(1)})
    assert sharing(assignment) == {(T1, 0): 50}


def test_each_partition_is_shared_by_equally_many_members_even_if_some_members_get_two() -> None:
    # 3 partitions and 4 members: each partition has ceil(4 / 3) = 2 members, as in Kafka.
    assignment = assign_simple({name: member(T1) for name in "abcd"}, {T1: numbers(3)})
    assert set(sharing(assignment).values()) == {2}
    assert sizes(assignment) == [1, 1, 2, 2]


def test_partitions_without_a_state_are_not_assigned() -> None:
    assert assign_simple({"a": member(T1, T2)}, {T1: frozenset({1}), T2: frozenset()}) == {"a": {T1: {1}}}


def test_different_subscriptions_are_balanced_for_each_topic() -> None:
    assignment = assign_simple(
        {"a": member(T1), "b": member(T2), "c": member(T1, T2), "idle": member()}, {T1: numbers(4), T2: numbers(4)}
    )
    assert [len(assignment[name].get(T1, ())) for name in ("a", "b", "c", "idle")] == [2, 0, 2, 0]
    assert [len(assignment[name].get(T2, ())) for name in ("a", "b", "c", "idle")] == [0, 2, 2, 0]


def test_member_that_leaves_moves_only_its_own_partitions() -> None:
    members = {f"m{n}": member(T1) for n in range(4)}
    before = assign_simple(members, {T1: numbers(12)})
    after = assign_simple({f"m{n}": member(T1, current=before[f"m{n}"]) for n in range(3)}, {T1: numbers(12)})
    for name, held in after.items():
        assert held[T1] >= before[name][T1]


@st.composite
def histories(draw: st.DrawFn) -> tuple[dict[str, MemberSpec], dict[bytes, frozenset[int]]]:
    counts = {T1: draw(st.integers(0, 7)), T2: draw(st.integers(0, 3))}
    members = {}
    is_mixed = draw(st.booleans())
    for number in range(draw(st.integers(1, 9))):
        topics = draw(st.sets(st.sampled_from([T1, T2]))) if is_mixed else {T1, T2}
        # The former assignment may be any, and have partitions of topics that are gone.
        current = {
            topic: draw(st.frozensets(st.integers(0, 8), min_size=1))
            for topic in draw(st.sets(st.sampled_from([T1, T2])))
        }
        members[f"m{number}"] = member(*topics, current=current)
    return members, {topic: frozenset(range(count)) for topic, count in counts.items()}


@given(histories())
def test_assignment_is_complete_and_balanced_from_any_former_one(
    history: tuple[dict[str, MemberSpec], dict[bytes, frozenset[int]]],
) -> None:
    members, assignable = history
    assignment = assign_simple(members, assignable)
    assert set(assignment) == set(members)
    for member_id, each in assignment.items():
        for topic_id, held in each.items():
            assert held
            assert topic_id in members[member_id].topics
            assert held <= assignable[topic_id]
    subscriptions = {each.topics for each in members.values()}
    for topics in [frozenset({T1, T2})] if len(subscriptions) == 1 else [frozenset({T1}), frozenset({T2})]:
        subscribers = [member_id for member_id, each in members.items() if topics <= each.topics]
        places = [(topic_id, number) for topic_id in topics for number in assignable[topic_id]]
        if not subscribers or not places or not any(topics & each.topics for each in members.values()):
            continue
        shared = sharing(assignment)
        assert {shared[place] for place in places} == {-(-len(subscribers) // len(places))}
        loads = [sum(len(assignment[name].get(topic_id, ())) for topic_id in topics) for name in subscribers]
        assert max(loads) - min(loads) <= 1
    kept = {name: MemberSpec(None, None, each.topics, assignment[name]) for name, each in members.items()}
    assert assign_simple(kept, assignable) == assignment, "an assignment without a reason to move has moved"
