"""Replication throttles: the listed replicas, the used-up rate, and the leader's answers."""

from pathlib import Path

import pytest

from barnabas.base.ids import BrokerId, TopicPartition
from barnabas.broker.replication import throttle as throttles
from barnabas.broker.replication.throttle import UNLIMITED, ReplicationThrottle
from barnabas.broker.runtime.timers import SLOT_MS
from tests.unit.broker.replication.test_replica_manager import FOLLOWER, ME, TP, World


class Clock:
    def __init__(self) -> None:
        self.ms = 0

    def now_ms(self) -> int:
        return self.ms


def made(replicas: tuple[str, ...], *, limit: int = 1_000, clock: Clock | None = None) -> ReplicationThrottle:
    return ReplicationThrottle(
        BrokerId(2),
        windows=11,
        window_ms=1_000,
        now_ms=(clock or Clock()).now_ms,
        replicas_of=lambda topic: replicas if topic == "t" else (),
        limit=limit,
    )


@pytest.mark.parametrize(
    ("replicas", "listed"),
    [((), []), (("*",), [0, 1, 2]), (("0:1", "1:2", "2:2"), [1, 2]), (("0:20",), [])],
)
def test_list_names_replicas_of_this_broker_or_all(replicas: tuple[str, ...], listed: list[int]) -> None:
    throttle = made(replicas)
    assert [number for number in range(3) if throttle.is_listed(TopicPartition("t", number))] == listed
    assert not throttle.is_listed(TopicPartition("other", 0))


def test_only_listed_partitions_are_counted_and_throttled() -> None:
    throttle = made(("0:2",))
    throttle.record(TopicPartition("t", 1), 10**9)
    assert not throttle.is_used_up
    throttle.record(TopicPartition("t", 0), 1_001)
    assert throttle.is_throttled(TopicPartition("t", 0)) and not throttle.is_throttled(TopicPartition("t", 1))


def test_rate_covers_one_window_at_first_and_then_the_passed_ones() -> None:
    clock = Clock()
    throttle = made(("*",), clock=clock)
    throttle.record(TP, 3_000)
    assert throttle.is_used_up and throttle.wait_ms() == 2_000
    clock.ms = 2_999
    assert throttle.is_used_up
    clock.ms = 3_000
    assert not throttle.is_used_up and throttle.wait_ms() == 0


def test_limit_can_change_at_runtime_and_no_limit_throttles_nothing() -> None:
    throttle = made(("*",), limit=UNLIMITED)
    throttle.record(TP, 10**9)
    assert not throttle.is_throttled(TP) and throttle.wait_ms() == 0
    throttle.limit = 1
    assert throttle.is_throttled(TP) and throttle.bytes_per_second() == 10**9


def test_steady_copy_runs_at_the_limit() -> None:
    clock, copied = Clock(), 0
    throttle = made(("*",), limit=100_000, clock=clock)
    while clock.ms < 60_000:
        if not throttle.is_throttled(TP):
            throttle.record(TP, 8_000)
            copied += 8_000
        clock.ms += 50
    assert copied / 60 == pytest.approx(100_000, rel=0.05)


def test_cache_of_throttled_lists_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttles, "PARSED_MAX", 5)
    lists: list[tuple[str, ...]] = [(f"{number}:2",) for number in range(50)]
    throttle = ReplicationThrottle(
        BrokerId(2), windows=1, window_ms=1, now_ms=lambda: 0, replicas_of=lambda topic: lists[int(topic)]
    )
    assert all(throttle.is_listed(TopicPartition(str(number), number)) for number in range(50))
    assert len(throttle._parsed) <= 5


# -- the leader -------------------------------------------------------------------------------------------------------


def test_leader_withholds_records_from_a_follower_that_is_not_in_sync_until_the_rate_allows(tmp_path: Path) -> None:
    world = World(tmp_path, replicas=(ME, FOLLOWER))
    throttled = {TP}
    world.manager.fetches._is_throttled = throttled.__contains__
    world.append(100)
    answers = world.fetch_as_follower(0)
    assert answers == [] and world.pins == 0  # it waits, as if there were nothing
    world.append(100)
    assert answers == []
    world.timers.advance_ms(500 + SLOT_MS)
    [[read]] = answers
    assert not read.size_bytes and not read.error and read.high_watermark == world.log.high_watermark
    throttled.clear()
    [[read]] = world.fetch_as_follower(0)
    assert read.size_bytes == world.log.size_bytes
    read.release()


def test_followers_in_sync_and_consumers_are_never_throttled(tmp_path: Path) -> None:
    world = World(tmp_path, replicas=(ME, FOLLOWER))
    world.manager.fetches._is_throttled = lambda tp: True
    world.append(100)
    world.partition.machine.isr = frozenset({ME, FOLLOWER})
    [[read]] = world.fetch_as_follower(0)
    assert read.size_bytes
    read.release()
