"""Causes of a growing lag: each from observations of a group, and none without a problem."""

from dataclasses import replace

from barnabas.base.ids import TopicPartition
from barnabas.services.console.causes import GroupSeen, PartitionSeen, causes
from barnabas.services.console.growth import Growth


def seen(
    *partitions: PartitionSeen, state: str = "Stable", members: tuple[str, ...] = ("m",), **more: int
) -> GroupSeen:
    return GroupSeen(state=state, members=members, partitions=partitions, **more)  # type: ignore[arg-type]


def part(index: int = 0, **more: object) -> PartitionSeen:
    usual: dict[str, object] = {"committed": 90, "start": 0, "end": 100, "stable_end": 100, "member": "reader"}
    return PartitionSeen(partition=TopicPartition("t", index), **(usual | more))  # type: ignore[arg-type]


def kinds(group: GroupSeen) -> list[str]:
    return [cause.kind for cause in causes(group)]


def test_group_that_keeps_up_has_nothing_to_explain() -> None:
    assert kinds(seen(part(committed=100))) == []
    assert kinds(seen(part(produced=10.0, consumed=10.0))) == []


def test_group_without_members_reads_nothing() -> None:
    assert kinds(seen(part(member=None), state="Empty", members=())) == ["no-members"]
    assert kinds(seen(part(committed=100, member=None), state="Empty", members=())) == []


def test_open_transaction_holds_readers_back() -> None:
    held = seen(part(committed=95, stable_end=95))
    assert kinds(held) == ["open-transaction"]
    described = replace(held, open_transactions={TopicPartition("t", 0): "producer 7"})
    assert "producer 7" in causes(described)[0].sentence and "offset 95" in causes(described)[0].sentence


def test_reader_that_has_yet_to_come_to_the_open_transaction_is_not_held_by_it() -> None:
    assert kinds(seen(part(committed=90, stable_end=95))) == []


def test_member_that_commits_nothing_while_records_wait_is_named() -> None:
    group = seen(part(still_s=60.0), part(1, still_s=0.0, member="other"))
    (cause,) = causes(group)
    assert cause.kind == "member-does-not-poll" and "reader has committed nothing for 60 s" in cause.sentence
    assert cause.partitions == (TopicPartition("t", 0),)


def test_member_that_commits_for_another_partition_is_not_blamed() -> None:
    """An ordinary consumer that catches up reads one partition after another."""
    busy = (part(still_s=175.0), part(1, still_s=1.0))
    (cause,) = causes(seen(*busy))
    assert cause.kind == "partition-stands-still" and cause.partitions == (TopicPartition("t", 0),)
    assert "t-0 for 175 s" in cause.sentence and "reader has" not in cause.sentence
    caught_up = (part(still_s=175.0), part(1, committed=100, still_s=1.0))
    assert kinds(seen(*caught_up)) == ["partition-stands-still"]
    all_still = (part(still_s=60.0), part(1, still_s=40.0), part(2, committed=100, still_s=90.0))
    assert kinds(seen(*all_still)) == ["member-does-not-poll"]


def test_members_that_share_a_client_id_are_distinguished() -> None:
    group = seen(part(still_s=60.0, member_id="reader-1"), part(1, still_s=0.0, member_id="reader-2"))
    assert kinds(group) == ["member-does-not-poll"]


def test_member_is_not_blamed_for_the_time_before_it_joined() -> None:
    still = part(still_s=300.0)
    assert kinds(replace(seen(still), settled_s=10.0)) == []
    assert "for 45 s" in causes(replace(seen(still), settled_s=45.0))[0].sentence


def test_partition_with_most_of_the_lag_and_of_the_traffic_is_hot() -> None:
    cold = [part(index, committed=99, produced=1.0) for index in range(3)]
    assert kinds(seen(*cold, part(3, committed=0, produced=500.0))) == ["hot-partition"]
    assert kinds(seen(*cold, part(3, committed=0, produced=1.0))) == []


def test_rebalances_in_a_row_are_a_loop() -> None:
    assert kinds(seen(part(), rebalances=3)) == ["rebalance-loop"]
    assert kinds(seen(part(), rebalances=1)) == []


def test_retention_that_comes_near_and_that_has_overtaken() -> None:
    assert kinds(seen(part(start=50, committed=52))) == ["retention-near"]
    assert kinds(seen(part(start=50, committed=40))) == ["records-lost"]
    assert "10 records" in causes(seen(part(start=50, committed=40)))[0].sentence


def test_group_slower_than_its_producers() -> None:
    assert kinds(seen(part(produced=100.0, consumed=50.0))) == ["slower-than-producers"]
    assert kinds(seen(part(produced=None, consumed=50.0))) == []


def test_growth_is_a_rate_over_seconds_and_restarts_after_a_gap_or_a_decrease() -> None:
    growth: Growth[str] = Growth(rate_s=5.0)
    growth.note("a", 100, 0.0)
    assert growth.rate("a") is None and growth.still_s("a") == 0
    for second in range(1, 11):
        growth.note("a", 100 + 10 * second, float(second))
    assert growth.rate("a") == 10.0 and growth.rate("a", over_s=30.0) is None
    growth.note("a", 200, 12.0)
    assert growth.still_s("a") == 2.0
    growth.note("a", 50, 13.0)
    assert growth.rate("a") is None
    growth.note("a", 60, 1000.0)
    assert growth.rate("a") is None and growth.age_s("a", 1001.0) == 1.0
