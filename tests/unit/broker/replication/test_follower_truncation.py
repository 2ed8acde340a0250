"""A follower's log is truncated while other things happen: real partition and log, a scripted leader, threads run by the
test."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from barnabas.base.ids import BrokerId, LeaderEpoch, TopicPartition
from barnabas.broker.replication.fetch_steps import FetchedPartition
from barnabas.broker.replication.fetchers import FetcherManager
from barnabas.broker.replication.machine import PartitionMachine
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.state import PartitionLeadership
from barnabas.broker.storage.epoch_cache import EpochEnd
from tests.manual_time import ManualThreads
from tests.support.async_fixture import async_fixture
from tests.unit.broker.replication.test_replica_fetcher import ScriptedLeader, add, managed, turns_until
from tests.unit.broker.storage.log import log_support

ME, LEADER = BrokerId(1), BrokerId(2)
TP = TopicPartition("topic", 0)


def state(leader: BrokerId, epoch: int) -> PartitionLeadership:
    replicas = (ME, LEADER)
    return PartitionLeadership(
        leader=leader, leader_epoch=LeaderEpoch(epoch), isr=replicas, partition_epoch=epoch, replicas=replicas
    )


class Follower:
    """A follower with 50 records of an idempotent producer in leader epoch 0; its leader ended that epoch at 20."""

    def __init__(self, folder: Path) -> None:
        self.stored = log_support.Partition(folder, manual_threads=True)
        for sequence in range(50):
            self.stored.log.append_as_leader(
                log_support.batch([b"x"], producer_id=7, producer_epoch=0, sequence=sequence),
                leader_epoch=0,
                now_ms=log_support.NOW_MS,
            )
        self.threads.run_pending()  # flushes of what was rolled
        machine = PartitionMachine(local_broker=ME, replica_lag_time_max_ms=1000)
        self.partition = Partition(TP, machine, self.stored.clock, on_high_watermark=lambda partition: None)
        self.partition.attach(self.stored.log)
        self.partition.become_follower(state(LEADER, 1))
        self.leader = ScriptedLeader()

    @property
    def threads(self) -> ManualThreads:
        assert isinstance(self.stored.threads, ManualThreads)
        return self.stored.threads

    async def begin_to_cut(self, manager: FetcherManager) -> None:
        add(manager, TP, self.partition, leader=LEADER, leader_epoch=LeaderEpoch(1))
        await self.leader.plan()
        self.leader.say(FetchedPartition(TP, 0, 20, 0, EpochEnd(LeaderEpoch(0), 20), None))
        await turns_until(lambda: len(self.threads) == 1)


@pytest.fixture
def follower(tmp_path: Path) -> Follower:
    return Follower(tmp_path)


@async_fixture
async def manager(follower: Follower) -> AsyncIterator[FetcherManager]:
    async with managed({LEADER: follower.leader}) as started:
        await follower.begin_to_cut(started)
        yield started


def test_follower_appends_no_records_of_a_later_epoch_than_its_leaders(tmp_path: Path) -> None:
    """The former leader truncated its log and wrote other records while its answer was being read from the file: below 50 it
    has other records now. The next leader compares only the last epoch, and would never notice (KAFKA-18723)."""
    partition = Follower(tmp_path).partition
    good = bytes(log_support.batch([b"good"], base_offset=50, leader_epoch=1))
    later = bytes(log_support.batch([b"later"], base_offset=51, leader_epoch=2))
    partition.append_follower(memoryview(good + later), 52, 0)
    assert (partition.log_end, partition.latest_epoch) == (51, 1)
    partition.append_follower(memoryview(later), 52, 0)
    assert (partition.log_end, partition.latest_epoch) == (51, 1)
    partition.become_follower(state(LEADER, 2))
    partition.append_follower(memoryview(later), 52, 0)
    assert (partition.log_end, partition.latest_epoch) == (52, 2)


async def test_follower_fetches_from_the_offset_of_its_truncation(follower: Follower, manager: FetcherManager) -> None:
    assert follower.partition.log_end == 50
    follower.threads.run_pending()
    assert (await follower.leader.plan()).to_send[TP].fetch_offset == 20
    entry = follower.partition.local_log.producers.entry(7)
    assert entry is not None and entry.last_sequence == 19


async def test_replica_that_becomes_leader_before_the_truncation_keeps_its_records(
    follower: Follower, manager: FetcherManager
) -> None:
    """The controller elected the replica with the records that it has. A truncation decided as follower would remove them."""

    manager.remove([TP])
    follower.partition.become_leader(state(ME, 2), now_ms=0)
    follower.threads.run_pending()
    await asyncio.sleep(0)
    assert follower.partition.log_end == 50
    assert follower.partition.is_leader


async def test_replica_in_another_epoch_before_the_truncation_asks_its_new_leader_first(
    follower: Follower, manager: FetcherManager
) -> None:
    manager.remove([TP])
    follower.partition.become_follower(state(LEADER, 3))
    add(manager, TP, follower.partition, leader=LEADER, leader_epoch=LeaderEpoch(3))
    follower.threads.run_pending()
    assert (await follower.leader.plan()).to_send[TP].fetch_offset == 50
