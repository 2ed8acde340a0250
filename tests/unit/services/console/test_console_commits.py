"""Commits of thousands of groups, and the sums of their lags."""

import pytest

from barnabas.base.ids import TopicPartition as Tp
from barnabas.services.console.commits import UNKNOWN, Commits
from barnabas.services.console.growth import Growth


def test_lags_follow_offsets_and_ends() -> None:
    commits = Commits()
    ends = {Tp("a", 0): 10, Tp("a", 1): 20, Tp("b", 0): 5}
    commits.note("one", {Tp("a", 0): 4, Tp("a", 1): 20}, 1.0)
    commits.note("two", {Tp("a", 0): 4, Tp("b", 0): 1}, 1.0)
    commits.note("ahead", {Tp("b", 0): 9}, 1.0)
    commits.note("lost", {Tp("gone", 0): 3}, 1.0)

    def totals() -> tuple[dict[str, int], dict[str, int]]:
        found = commits.totals(lambda each: ends.get(each, UNKNOWN), 1.0)
        return dict(found.by_group), dict(found.by_topic)

    assert totals() == ({"one": 6, "two": 10, "ahead": 0, "lost": 0}, {"a": 12, "b": 4, "gone": 0})
    ends[Tp("a", 0)] = 14
    assert totals()[0] == {"one": 10, "two": 14, "ahead": 0, "lost": 0}
    commits.note("one", {Tp("a", 0): 14, Tp("a", 1): 20}, 2.0)
    assert totals() == ({"two": 14, "ahead": 0, "lost": 0, "one": 0}, {"a": 10, "b": 4, "gone": 0})


def test_groups_that_read_the_same_share_it_until_they_are_gone() -> None:
    commits = Commits()
    for number in range(3):
        commits.note(f"g{number}", {Tp("a", 0): number, Tp("a", 1): number}, float(number))
    first, second = commits.get("g0"), commits.get("g1")
    assert first is not None and second is not None and first.reads is second.reads
    assert commits.of_topic("a")["g2"] == {Tp("a", 0): 2, Tp("a", 1): 2}
    commits.note("other", {Tp("b", 0): 1}, 3.0)
    commits.keep(lambda group: group == "other")
    assert len(commits) == 1 and commits.partitions() == {Tp("b", 0)}
    assert commits.of_topic("a") == {}


def test_group_requested_longest_ago_comes_first_and_only_changes_count_as_moves() -> None:
    commits = Commits()
    for group in ("a", "b"):
        commits.note(group, {Tp("t", 0): 1}, 1.0)
    commits.note("a", {Tp("t", 0): 1}, 2.0)
    assert list(commits.oldest()) == ["b", "a"]
    known = commits.get("a")
    assert known is not None and (known.at_s, known.moved_s) == (2.0, float("-inf"))
    commits.note("a", {Tp("t", 0): 2}, 3.0)
    moved = commits.get("a")
    assert moved is not None and moved.moved_s == 3.0


@pytest.mark.parametrize(("values", "is_still"), [([5, 5, 5], True), ([5, 5, 6], False), ([5], False)])
def test_offset_observed_for_long_without_a_change_counts_as_still(values: list[int], is_still: bool) -> None:
    growth: Growth[str] = Growth()
    for number, value in enumerate(values):
        growth.note("p", value, number * 6.0)
    assert growth.is_still("p", 6.0 * (len(values) - 1), 10.0) is is_still
