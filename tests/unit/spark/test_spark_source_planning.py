"""Plans of queries, without Spark and without a cluster: ranges, splits, triggers, filters, groups."""

import logging
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from barnabas.base.errors import ConfigError
from barnabas.base.ids import TopicPartition
from barnabas.spark.lookup import check_covers
from barnabas.spark.offsets import (
    PARTITION_RECORDS,
    SHARED_RECORDS_MAX,
    SHARED_RECORDS_MIN,
    TASKS_BEFORE_SHARING,
    DataLoss,
    OffsetRange,
    TriggerDelay,
    from_json,
    in_tasks,
    plan_ranges,
    rate_limited,
    split_ranges,
    to_json,
    waiting_records,
)
from barnabas.spark.options import source_options
from barnabas.spark.progress import ProgressListener, progress_group
from barnabas.spark.pushdown import Bounds

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
A10 = TopicPartition("a", 10)


def test_offsets_are_written_as_the_official_source_writes_them_and_in_order():
    offsets = {B0: 1, A10: 2, A1: 3, A0: 4}
    assert list(to_json(offsets)) == ["a", "b"]
    assert to_json(offsets) == {"a": {"0": 4, "1": 3, "10": 2}, "b": {"0": 1}}
    assert str(to_json(offsets)) == str(to_json(dict(reversed(offsets.items()))))
    assert from_json(to_json(offsets)) == offsets


SIZES = st.lists(st.integers(0, 1000), min_size=1, max_size=6)


@given(sizes=SIZES, min_partitions=st.none() | st.integers(1, 40), max_records=st.none() | st.integers(1, 300))
def test_split_ranges_cover_every_offset_once_in_order(
    sizes: list[int], min_partitions: int | None, max_records: int | None
):
    whole = [OffsetRange(TopicPartition("t", index), 100, 100 + size) for index, size in enumerate(sizes)]
    split = split_ranges(whole, min_partitions=min_partitions, max_records=max_records)
    covered: dict[TopicPartition, list[int]] = {}
    for piece in split:
        assert piece.size > 0
        assert max_records is None or piece.size <= max_records
        covered.setdefault(piece.partition, []).extend(range(piece.from_offset, piece.until_offset))
    assert covered == {each.partition: list(range(100, 100 + each.size)) for each in whole if each.size}
    if min_partitions is not None:
        assert len(split) >= min(min_partitions, sum(sizes))


def test_a_batch_is_divided_by_size_by_default():
    def tasks(size: int, **options: str) -> int:
        chosen = source_options({"kafka.bootstrap.servers": "h:1", "subscribe": "a", **options}, streaming=False)
        whole = [OffsetRange(A0, 7, 7 + size), OffsetRange(A1, 0, 10)]
        split = split_ranges(whole, min_partitions=chosen.min_partitions, max_records=chosen.records_per_task)
        assert split[-1] == whole[1]
        return len(split) - 1

    assert tasks(1_000_000) == 1
    assert tasks(1_000_001) == 2
    assert tasks(10_000_000) == 10
    assert tasks(10_000_000, minPartitions="1") == 1  # for those who need the order
    assert tasks(10_000_000, minPartitions="5") == 4
    assert tasks(10_000_000, maxRecordsPerPartition="500000") == 20


@given(sizes=st.lists(st.integers(1, 300_000), min_size=1, max_size=400))
def test_small_ranges_share_a_task_where_there_are_very_many(sizes: list[int]):
    ranges = [OffsetRange(TopicPartition("t", index), 0, size) for index, size in enumerate(sizes)]
    tasks = in_tasks(ranges)
    assert [each for task in tasks for each in task] == ranges, "each once, in order"
    if len(ranges) <= TASKS_BEFORE_SHARING:
        assert all(len(task) == 1 for task in tasks)
    else:
        for task, after in pairwise(tasks):
            cost = sum(each.size + PARTITION_RECORDS for each in (*task, after[0]))
            assert cost > SHARED_RECORDS_MIN, "a task is worth what it costs"
    assert all(sum(each.size for each in task) <= SHARED_RECORDS_MAX for task in tasks if len(task) > 1)


def test_a_thousand_small_partitions_are_some_tasks():
    ranges = [OffsetRange(TopicPartition("t", index), 0, 50) for index in range(1000)]
    assert len(in_tasks(ranges)) == 3
    ranges = [OffsetRange(TopicPartition("t", index), 0, 1_000) for index in range(1000)]
    assert len(in_tasks(ranges)) == 8
    ranges = [OffsetRange(TopicPartition("t", index), 0, 10_000) for index in range(1000)]
    assert len(in_tasks(ranges)) == 53


def test_small_ranges_of_a_micro_batch_share_tasks_and_large_ones_do_not():
    def tasks(*sizes: int) -> list[int]:
        ranges = [OffsetRange(TopicPartition("t", index), 0, size) for index, size in enumerate(sizes)]
        shared = in_tasks(ranges, may_wait=True)
        assert [each for task in shared for each in task] == ranges, "each once, in order"
        return [len(task) for task in shared]

    assert tasks(2_000, 2_000, 2_000, 2_000) == [4]
    assert tasks(5_000, 5_000, 5_000, 5_000) == [2, 2]
    assert tasks(10_000, 10_000, 10_000, 10_000) == [1, 1, 1, 1]
    assert tasks(100_000, 10, 10, 10) == [1, 1, 1, 1]
    assert tasks(10) == [1]
    assert tasks() == []


def test_split_follows_size():
    split = split_ranges([OffsetRange(A0, 0, 900), OffsetRange(A1, 0, 100)], min_partitions=10)
    assert len([piece for piece in split if piece.partition == A0]) == 9
    assert {piece.size for piece in split} == {100}
    assert split_ranges([OffsetRange(A0, 0, 9), OffsetRange(A1, 5, 5)]) == [OffsetRange(A0, 0, 9)]
    assert str(split[0]) == "a-0 [0, 100)"


@given(
    behind=st.dictionaries(st.sampled_from([A0, A1, B0, A10]), st.integers(0, 500), min_size=1),
    limit=st.integers(1, 600),
)
def test_a_limited_trigger_goes_on_everywhere_and_never_past_the_end(behind: dict[TopicPartition, int], limit: int):
    start = dict.fromkeys(behind, 1000)
    latest = {partition: 1000 + count for partition, count in behind.items()}
    rounds = 0
    while start != latest:
        end = rate_limited(start, latest, new_from={}, limit=limit)
        assert all(start[p] <= end[p] <= latest[p] for p in latest)
        assert all(end[p] > start[p] for p in latest if latest[p] > start[p])
        assert sum(end[p] - start[p] for p in latest) <= limit + len(latest)
        start, rounds = end, rounds + 1
    assert rounds <= sum(behind.values()) // limit * 2 + len(behind) + 2


def test_a_limited_trigger_counts_a_new_partition_from_its_start_and_leaves_a_shrunken_one_to_planning():
    end = rate_limited({A0: 0}, {A0: 100, A1: 150}, new_from={A1: 50}, limit=20)
    assert end == {A0: 10, A1: 60}
    assert rate_limited({A0: 100, A1: 0}, {A0: 3, A1: 50}, new_from={}, limit=5) == {A0: 3, A1: 5}
    assert waiting_records({A0: 100}, {A0: 3, A1: 50}, new_from={A1: 40}) == 10


def test_ranges_of_a_micro_batch():
    ranges = plan_ranges({A0: 5, A1: 7}, {A0: 9, A1: 7, B0: 3}, new_from={B0: 0}, fail_on_data_loss=True)
    assert ranges == [OffsetRange(A0, 5, 9), OffsetRange(B0, 0, 3)]


@pytest.mark.parametrize(
    ("start", "end", "new_from", "message", "left"),
    [
        ({A0: 5, A1: 7}, {A0: 9}, {}, r"Partitions a-1 \(read up to offset 7\) are gone", [OffsetRange(A0, 5, 9)]),
        ({A0: 5}, {A0: 3}, {}, "Partition a-0's offset was changed from 5 to 3", []),
        ({}, {B0: 9}, {B0: 4}, "Added partition b-0 starts from offset 4 instead of 0", [OffsetRange(B0, 4, 9)]),
        ({}, {B0: 9}, {}, "Added partition b-0 is gone, with records up to offset 9", []),
    ],
)
def test_errors_name_the_lost_records(
    start: dict[TopicPartition, int],
    end: dict[TopicPartition, int],
    new_from: dict[TopicPartition, int],
    message: str,
    left: list[OffsetRange],
    caplog: pytest.LogCaptureFixture,
):
    with pytest.raises(DataLoss, match=f"{message}.*failOnDataLoss"):
        plan_ranges(start, end, new_from=new_from, fail_on_data_loss=True)
    with caplog.at_level(logging.WARNING, "barnabas.spark"):
        assert plan_ranges(start, end, new_from=new_from, fail_on_data_loss=False) == left
    assert "Some data may have been lost" in caplog.text


def test_a_trigger_waits_for_enough_records_but_not_for_ever():
    delay = TriggerDelay(min_offsets=100, max_delay_ms=1000)
    assert not delay.waits(waiting=0, now_ms=5000)  # the first never waits
    assert delay.waits(waiting=99, now_ms=5999)
    assert not delay.waits(waiting=100, now_ms=5999)
    assert delay.waits(waiting=1, now_ms=6998)
    assert not delay.waits(waiting=1, now_ms=6999)


def test_specific_offsets_must_name_all_partitions_that_are_read():
    check_covers({A0: 1, A1: 2}, [A1, A0], option="startingOffsets")
    with pytest.raises(ConfigError, match=r"If startingOffsets contains .* Specified: a-0\. Assigned: a-0, a-1"):
        check_covers({A0: 1}, [A0, A1], option="startingOffsets")


# -- filters ------------------------------------------------------------------------------------------------------------

PARTITION, OFFSET, TOPIC, TIME = ("partition",), ("offset",), ("topic",), ("timestamp",)


def taken(*filters: Filter) -> tuple[Bounds, list[Filter]]:
    bounds = Bounds()
    return bounds, list(bounds.take(filters))


def test_filters_on_partition_and_topic_choose_partitions():
    bounds, left = taken(In(PARTITION, (0, 1)), LessThan(PARTITION, 1), EqualTo(TOPIC, "a"), IsNotNull(TOPIC))
    assert left == []
    assert [p for p in (A0, A1, B0) if bounds.admits(p)] == [A0]
    bounds, left = taken(In(TOPIC, ("a", "b")), EqualNullSafe(TOPIC, "b"), GreaterThanOrEqual(PARTITION, 0))
    assert (left, bounds.admits(B0), bounds.admits(A0)) == ([], True, False)
    assert not taken(GreaterThan(PARTITION, 0))[0].admits(A0)


def test_filters_on_offset_cut_ranges():
    bounds, left = taken(GreaterThan(OFFSET, 4), LessThanOrEqual(OFFSET, 9))
    assert (left, bounds.cut(0, 100), bounds.cut(7, 8), bounds.cut(20, 30)) == ([], (5, 10), (7, 8), (20, 20))
    assert taken(EqualTo(OFFSET, 7))[0].cut(0, 100) == (7, 8)
    several = In(OFFSET, (3, 50, 9))
    bounds, left = taken(several)
    assert (left, bounds.cut(0, 20), bounds.cut(60, 70)) == ([several], (3, 10), (60, 60))


def test_a_filter_on_time_gives_a_beginning_and_is_checked_again():
    at = datetime(2024, 1, 1, 0, 0, 0, 1500, tzinfo=UTC)
    after = GreaterThanOrEqual(TIME, at)
    bounds, left = taken(after, LessThan(TIME, at))
    assert left == [after, LessThan(TIME, at)]
    assert bounds.timestamp_from_ms == 1_704_067_200_001
    later = datetime(2025, 1, 1, tzinfo=UTC)
    assert taken(after, EqualTo(TIME, later))[0].timestamp_from_ms == 1_735_689_600_000
    assert taken(GreaterThan(TIME, datetime(2024, 1, 1)))[0].timestamp_from_ms is None  # whose noon is it?


def test_filters_without_bounds_on_offsets_are_left_to_spark():
    others: list[Filter] = [
        EqualTo(("key",), b"k"),
        IsNull(OFFSET),
        Not(EqualTo(OFFSET, 3)),
        EqualTo(("headers", "offset"), 3),
        EqualTo(OFFSET, True),
        In(PARTITION, (1, None)),
        In(TOPIC, (None,)),
        GreaterThan(TOPIC, "a"),
    ]
    bounds, left = taken(*others)
    assert left == others
    assert bounds == Bounds()


# -- progress -----------------------------------------------------------------------------------------------------------


def test_the_group_of_a_query_is_named_or_stays_the_same_over_restarts():
    base = {"kafka.bootstrap.servers": "h:1"}

    def group(**more: str) -> str | None:
        return progress_group(source_options({**base, **more}, streaming=True))

    assert group(subscribe="a") is None
    assert group(subscribe="a", groupIdPrefix="p", **{"kafka.group.id": "mine"}) == "mine"
    first = group(subscribe="a,b", groupIdPrefix="p")
    assert first is not None
    assert first.startswith("p-")
    assert first == group(subscribe="b,a", groupIdPrefix="p")
    assert len({first, group(subscribePattern="a,b", groupIdPrefix="p"), group(subscribe="a", groupIdPrefix="p")}) == 3
    assert group(assign='{"a":[0,1]}', groupIdPrefix="p") == group(assign='{"a":[1,0]}', groupIdPrefix="p")
    with pytest.raises(ConfigError, match="progress needs a group"):
        ProgressListener({**base, "subscribe": "a"})
