"""The sticky assignor of streams groups."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.groups.assignors.sticky import StreamsMemberSpec, StreamsSpec, assign_sticky
from barnabas.broker.groups.streams_tasks import NO_TASKS, TaskId, Tasks


def spec(
    processes: dict[str, str], counts: dict[str, int], standbys: int = 0, former: dict[str, Tasks] | None = None
) -> StreamsSpec:
    """`processes`: the process of each member. Subtopologies with an upper-case name have state."""
    return StreamsSpec(
        members={
            name: StreamsMemberSpec(process, (former or {}).get(name, NO_TASKS)) for name, process in processes.items()
        },
        task_counts=counts,
        stateful=frozenset(name for name in counts if name.isupper()),
        standby_replicas=standbys,
    )


def tasks(subtopology: str, *numbers: int) -> frozenset[TaskId]:
    return frozenset(TaskId(subtopology, number) for number in numbers)


def sizes(assignment: dict[str, Tasks]) -> list[int]:
    return sorted(len(each.active) for each in assignment.values())


def test_tasks_are_divided_evenly() -> None:
    assignment = assign_sticky(spec({"m1": "p1", "m2": "p2", "m3": "p3"}, {"a": 4, "B": 3}))
    assert sizes(assignment) == [2, 2, 3]


def test_processes_with_more_threads_get_more_tasks() -> None:
    assignment = assign_sticky(spec({"m1": "p1", "m2": "p1", "m3": "p1", "m4": "p2"}, {"a": 8}))
    assert sizes(assignment) == [2, 2, 2, 2]


def test_tasks_stay_where_they_are() -> None:
    former = {"m1": Tasks(tasks("a", 0, 2)), "m2": Tasks(tasks("a", 1, 3))}
    assignment = assign_sticky(spec({"m1": "p1", "m2": "p2"}, {"a": 4}, former=former))
    assert assignment == former


def test_new_member_takes_only_what_is_too_much_for_others() -> None:
    former = {"m1": Tasks(tasks("a", 0, 1, 2)), "m2": Tasks(tasks("a", 3, 4, 5))}
    assignment = assign_sticky(spec({"m1": "p1", "m2": "p2", "m3": "p3"}, {"a": 6}, former=former))
    assert sizes(assignment) == [2, 2, 2]
    assert assignment["m1"].active < former["m1"].active
    assert assignment["m2"].active < former["m2"].active


def test_member_with_a_standby_takes_over_the_task() -> None:
    former = {"m1": Tasks(tasks("A", 0), tasks("A", 1)), "m2": Tasks(tasks("A", 2), tasks("A", 0))}
    assignment = assign_sticky(spec({"m1": "p1", "m2": "p2"}, {"A": 3}, former=former))
    assert assignment["m1"].active == tasks("A", 0, 1)


def test_standbys_that_find_no_process_are_left_out() -> None:
    assignment = assign_sticky(spec({"m1": "p1", "m2": "p1"}, {"A": 2}, standbys=2))
    assert not any(each.standby for each in assignment.values())


def test_standby_stays_where_the_task_or_a_standby_was() -> None:
    former = {"m1": Tasks(tasks("A", 0), tasks("A", 1)), "m2": Tasks(tasks("A", 1), tasks("A", 0))}
    processes = {"m1": "p1", "m2": "p2"}
    assert assign_sticky(spec(processes, {"A": 2}, standbys=1, former=former)) == former


def test_group_without_members_has_no_assignment() -> None:
    assert assign_sticky(spec({}, {"a": 3})) == {}


members = st.dictionaries(st.sampled_from([f"m{n}" for n in range(8)]), st.sampled_from("pqr"), min_size=1)
counts = st.dictionaries(st.sampled_from(["a", "b", "C", "D"]), st.integers(1, 6))


@given(first=members, second=members, before=counts, after=counts, standbys=st.integers(0, 2))
def test_every_task_has_one_active_place_and_no_process_has_it_twice(
    first: dict[str, str], second: dict[str, str], before: dict[str, int], after: dict[str, int], standbys: int
) -> None:
    former = assign_sticky(spec(first, before, standbys))
    assignment = assign_sticky(spec(second, after, standbys, former))
    assert assignment.keys() == second.keys()
    everything = Counter({TaskId(name, number): 1 for name, count in after.items() for number in range(count)})
    assert Counter(task for each in assignment.values() for task in each.active) == everything
    places = Counter((second[name], task) for name, each in assignment.items() for task in each.all())
    assert all(count == 1 for count in places.values())
    copies = Counter(task for each in assignment.values() for task in each.standby)
    assert copies == {
        task: min(standbys, len(set(second.values())) - 1)
        for task in everything
        if task.subtopology.isupper() and min(standbys, len(set(second.values())) - 1)
    }


@given(processes=members, wanted=counts, standbys=st.integers(0, 2))
def test_assignment_that_changes_nothing_moves_no_active_task(
    processes: dict[str, str], wanted: dict[str, int], standbys: int
) -> None:
    once = assign_sticky(spec(processes, wanted, standbys))
    again = assign_sticky(spec(processes, wanted, standbys, once))
    assert {name: each.active for name, each in again.items()} == {name: each.active for name, each in once.items()}


@given(count=st.integers(1, 8), wanted=counts)
def test_members_of_processes_of_their_own_differ_by_one_task_at_most(count: int, wanted: dict[str, int]) -> None:
    assignment = assign_sticky(spec({f"m{n}": f"p{n}" for n in range(count)}, wanted))
    assert sizes(assignment)[-1] - sizes(assignment)[0] <= 1
