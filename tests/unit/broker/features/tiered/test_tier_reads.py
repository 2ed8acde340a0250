"""Fetches and look-ups of partitions whose records are in the tier, and changes while they wait for it."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import BrokerId, LeaderEpoch, TopicPartition
from barnabas.base.metrics.registry import Registry
from barnabas.base.words import MAX_TIMESTAMP, READ_COMMITTED
from barnabas.broker.features.tiered.metrics import TierMetrics
from barnabas.broker.features.tiered.reads import TierReads
from barnabas.broker.replication.fetch_session_cache import CachedPartition, FetchKey
from barnabas.broker.replication.fetches import WaitingFetch
from barnabas.broker.replication.machine import PartitionMachine
from barnabas.broker.replication.manager import ReplicaManager
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.reads import FetchParams, PartitionRead
from barnabas.broker.replication.state import PartitionLeadership
from barnabas.broker.runtime.timers import SLOT_MS
from barnabas.wire.record_batch import iter_batches
from tests.manual_time import ManualClock, ManualTimers
from tests.support.waiting import eventually
from tests.unit.broker.features.tiered.tier_support import CONFIG, Tier
from tests.unit.broker.storage.log.log_support import NOW_MS

ME, OTHER = BrokerId(1), BrokerId(2)
TP = TopicPartition("topic", 0)
CONSUMER = FetchParams(
    replica_id=-1,
    replica_epoch=-1,
    max_wait_ms=500,
    min_bytes=1,
    max_bytes=1 << 20,
    isolation_level=0,
    client_rack="",
    may_read_from_follower=False,
)


class World:
    """A broker that leads one partition, most of which is in the tier."""

    def __init__(self, tmp_path: Path, *, reads_max: int = 10) -> None:
        self.tier = Tier(tmp_path)
        self.clock = ManualClock()
        self.timers = ManualTimers(self.clock)
        self.registry = Registry()
        self.manager = ReplicaManager(
            ME,
            clock=self.clock,
            timers=self.timers,
            registry=self.registry,
            is_known=lambda tp: True,
            submit_isr_change=lambda partition, proposal: None,
            prefers_replica=lambda partition, params, offset: None,
            fetch_bytes_max=1 << 20,
        )
        machine = PartitionMachine(local_broker=ME, replica_lag_time_max_ms=1000)
        self.partition = Partition(TP, machine, self.clock, on_high_watermark=lambda partition: None)
        self.partition.attach(self.tier.log)
        self.lead(LeaderEpoch(0))
        self.manager.hosted.add(self.partition)
        self.is_known = True
        self.reads = self.manager.fetches.tier = TierReads(
            self.manager.hosted,
            self.tier.reader,
            segments_of=lambda log: self.tier.segments if self.is_known else None,
            timers=self.timers,
            registry=self.registry,
            metrics=TierMetrics(self.registry),
            spawn=self._spawn,
            max_wait_ms=lambda: 500,
            reads_max=reads_max,
        )
        self.answers: list[list[PartitionRead]] = []

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> object:
        return self.tier._spawn(work, name)

    def lead(self, epoch: LeaderEpoch) -> None:
        state = PartitionLeadership(
            leader=ME, leader_epoch=epoch, isr=(ME, OTHER), partition_epoch=0, replicas=(ME, OTHER)
        )
        self.partition.become_leader(state, now_ms=0)

    async def filled(self) -> "World":
        self.tier.partition.fill(60)
        self.tier.partition.commit()
        await self.tier.copy()
        return self

    def fetch(self, offset: int = 0, params: FetchParams = CONSUMER, count: int = 1) -> WaitingFetch | None:
        wanted: list[tuple[CachedPartition, TopicPartition | ErrorCode]] = [
            (CachedPartition(FetchKey("topic", 0), offset, 700, -1, -1, -1), TP) for _ in range(count)
        ]
        return self.manager.fetches.fetch(params, wanted, self.answers.append)

    async def answered(self) -> PartitionRead:
        await self.tier.settled()
        assert len(self.answers) == 1
        return self.answers[0][0]


async def made(tmp_path: Path, **how: int) -> World:
    return await World(tmp_path, **how).filled()


async def test_fetch_below_the_local_start_waits_for_the_tier(tmp_path: Path) -> None:
    world = await made(tmp_path)
    waiting = world.fetch(5)
    assert waiting is not None
    assert not world.answers
    assert waiting.operation.waits_for()["condition"] == "remote storage"
    assert len(world.reads.purgatory) == 1
    read = await world.answered()
    assert (read.error, read.log_start_offset, read.high_watermark) == (ErrorCode.NONE, 0, 120)
    data = b"".join(each.read() for each in read.ranges)
    assert next(header.base_offset for _, header in iter_batches(data)) == 4
    assert 0 < len(data) <= 700
    assert read.aborted_transactions is None
    assert not len(world.reads.purgatory)
    read.release()


async def test_read_committed_gets_the_aborted_transactions(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.tier.partition.transact(3, commit=False)
    await world.filled()
    world.fetch(0, CONSUMER._replace(isolation_level=READ_COMMITTED))
    read = await world.answered()
    assert read.aborted_transactions is not None
    assert [(txn.producer_id, txn.first_offset) for txn in read.aborted_transactions] == [(3, 0)]
    read.release()


async def test_follower_gets_the_error_that_its_offset_moved_to_the_tier(tmp_path: Path) -> None:
    world = await made(tmp_path)
    world.fetch(0, CONSUMER._replace(replica_id=2))
    assert world.answers[0][0].error is ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE


async def test_slow_store_delays_no_other_fetch_and_the_next_fetch_gets_the_late_records(tmp_path: Path) -> None:
    world = await made(tmp_path)
    world.tier.store.gate = asyncio.Event()
    world.fetch(0)
    await asyncio.sleep(0)
    local = world.tier.log.local_log_start_offset
    world.fetch(local)
    assert len(world.answers) == 1, "the other one was answered at once"
    world.answers.pop()[0].release()
    world.timers.advance_ms(499)
    assert not world.answers
    world.timers.advance_ms(1 + SLOT_MS)
    read = world.answers.pop()[0]
    assert (read.error, read.size_bytes) == (ErrorCode.NONE, 0), "no error: it asks again"
    assert world.reads._expired.value == 1
    world.tier.store.gate.set()
    await world.tier.settled()
    asked = len(world.tier.store.gets)
    world.fetch(0)
    read = await world.answered()
    assert read.size_bytes > 0
    assert len(world.tier.store.gets) == asked
    read.release()


async def test_client_that_goes_away_leaves_nothing_pinned(tmp_path: Path) -> None:
    world = await made(tmp_path)
    world.tier.store.gate = asyncio.Event()
    waiting = world.fetch(0)
    assert waiting is not None
    await asyncio.sleep(0)
    waiting.cancel()
    world.tier.store.gate.set()
    await world.tier.settled()
    assert not world.answers
    copy = next(iter(world.tier.copies._copies.values()))
    assert not copy.segment.is_pinned
    assert not copy.is_in_use


async def test_client_that_goes_away_leaves_nothing_pinned_of_what_was_read_for_it_meanwhile(tmp_path: Path) -> None:
    """Locally and in the tier: each such client kept descriptors open, also of deleted segments, until none was left."""
    world = await made(tmp_path)
    local = world.tier.log.local_log_start_offset
    wanted: list[tuple[CachedPartition, TopicPartition | ErrorCode]] = [
        (CachedPartition(FetchKey("topic", 0), offset, 700, -1, -1, -1), TP) for offset in (local, 0, 20)
    ]
    first = world.reads.reader.read
    gate = asyncio.Event()

    async def read(view: Any, offset: int, **how: Any) -> Any:
        if offset == 20:
            await gate.wait()
        return await first(view, offset, **how)

    world.reads.reader.read = read  # type: ignore[method-assign]
    waiting = world.manager.fetches.fetch(CONSUMER, wanted, world.answers.append)
    assert waiting is not None
    await eventually(lambda: len(waiting.operation.waits_for()["partitions"]) <= 1)
    assert any(segment.is_pinned for segment in world.tier.log.segments)
    waiting.cancel()
    gate.set()
    await world.tier.settled()
    assert not world.answers
    assert not any(segment.is_pinned for segment in world.tier.log.segments)
    assert not any(copy.segment.is_pinned for copy in world.tier.copies._copies.values())


async def test_answer_with_more_partitions_than_bytes_is_bounded(tmp_path: Path) -> None:
    world = await made(tmp_path)
    world.fetch(0, CONSUMER._replace(max_bytes=1000), count=5)
    await world.tier.settled()
    (reads,) = world.answers
    sizes = [read.size_bytes for read in reads]
    assert 0 < sum(sizes) <= 1000
    assert sizes[0] > 0
    assert sizes[2:] == [0, 0, 0]
    for read in reads:
        read.release()


async def test_more_reads_than_may_be_pending_are_answered_empty(tmp_path: Path) -> None:
    world = await made(tmp_path, reads_max=1)
    world.tier.store.gate = asyncio.Event()
    world.fetch(0)
    world.fetch(3)
    await asyncio.sleep(0)
    world.tier.store.gate.set()
    await world.tier.settled()
    assert len(world.answers) == 1
    world.timers.advance_ms(500 + SLOT_MS)
    assert [(reads[0].error, bool(reads[0].size_bytes)) for reads in world.answers] == [(0, True), (0, False)]
    world.answers[0][0].release()


async def test_store_that_is_away_is_an_error_when_the_time_is_up(tmp_path: Path) -> None:
    """Not earlier: a client that gets an error at once retries at once."""
    world = await made(tmp_path)
    world.tier.store.is_away = True
    world.fetch(0)
    await world.tier.settled()
    assert not world.answers
    world.timers.advance_ms(500 + SLOT_MS)
    assert world.answers[0][0].error is ErrorCode.KAFKA_STORAGE_ERROR


async def test_offset_is_not_out_of_range_while_the_tier_is_unknown(tmp_path: Path) -> None:
    """A new leader that has not read the metadata to its end: it must not send consumers elsewhere."""
    world = await made(tmp_path)
    world.is_known = False
    world.fetch(0)
    await world.tier.settled()
    assert not world.answers
    world.timers.advance_ms(500 + SLOT_MS)
    assert (world.answers[0][0].error, world.answers[0][0].size_bytes) == (ErrorCode.NONE, 0)


async def test_record_missing_from_the_tier_is_out_of_range(tmp_path: Path) -> None:
    world = await made(tmp_path)
    for segment in world.tier.segments.all():
        world.tier.delete(segment)
    world.fetch(0)
    assert (await world.answered()).error is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_log_start_that_moves_meanwhile_makes_it_out_of_range(tmp_path: Path) -> None:
    world = await made(tmp_path)
    world.tier.store.gate = asyncio.Event()
    world.fetch(0)
    await asyncio.sleep(0)
    world.tier.log.maybe_increment_log_start_offset(3)
    world.tier.store.gate.set()
    read = await world.answered()
    assert (read.error, read.size_bytes) == (ErrorCode.OFFSET_OUT_OF_RANGE, 0)


@pytest.mark.parametrize("change", ["epoch", "stopped", "moved"])
async def test_leadership_that_changes_meanwhile_is_not_answered_with_old_records(tmp_path: Path, change: str) -> None:
    world = await made(tmp_path)
    world.tier.store.gate = asyncio.Event()
    world.fetch(0)
    await asyncio.sleep(0)
    if change == "epoch":
        world.lead(LeaderEpoch(4))
    elif change == "stopped":
        world.manager.hosted.remove(TP)
    else:
        world.partition.log = None
    world.tier.store.gate.set()
    read = await world.answered()
    assert (read.error, read.size_bytes) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
    assert not any(copy.segment.is_pinned for copy in world.tier.copies._copies.values())


# -- look-ups and new replicas


async def test_timestamps_are_found_in_the_tier_and_the_latest_wherever_it_is(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.tier.partition.append(b"latest", timestamp=NOW_MS + 99)
    await world.filled()
    assert world.reads.may_have(world.partition)
    assert await world.reads.offset_for(world.partition, NOW_MS) == (NOW_MS + 99, 0, 0)
    assert await world.reads.offset_for(world.partition, MAX_TIMESTAMP) == (NOW_MS + 99, 0, 0)
    assert await world.reads.offset_for(world.partition, NOW_MS + 100) is None
    world.tier.partition.append(b"later", timestamp=NOW_MS + 100)
    assert await world.reads.offset_for(world.partition, MAX_TIMESTAMP) is None
    world.is_known = False
    with pytest.raises(Refused) as refused:
        await world.reads.offset_for(world.partition, 0)
    assert refused.value.code is ErrorCode.OFFSET_NOT_AVAILABLE
    await world.tier.settled()


async def test_follower_begins_where_the_tier_ends(tmp_path: Path) -> None:
    world = await made(tmp_path)
    local = world.tier.log.local_log_start_offset
    other = World(tmp_path / "other")
    other.tier.log.update_config(replace(CONFIG))
    other.tier.store, other.tier.segments = world.tier.store, world.tier.segments
    other.tier.reader._store = world.tier.store
    with pytest.raises(Refused, match="not in the tier yet"):
        await other.reads.begin(TP, local_start=local, epoch=7, log_start=2, is_wanted=lambda: True)
    await other.reads.begin(TP, local_start=local, epoch=0, log_start=2, is_wanted=lambda: False)
    assert other.tier.log.log_end_offset == 0
    await other.reads.begin(TP, local_start=local, epoch=0, log_start=2, is_wanted=lambda: True)
    log = other.tier.log
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (2, local, local)
    assert log.highest_copied_offset == local - 1
    world.tier.store.is_away = True
    with pytest.raises(Refused) as refused:
        await other.reads.begin(TP, local_start=local, epoch=0, log_start=2, is_wanted=lambda: True)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    counters = other.reads._metrics.of(TP.topic)
    assert (counters.begin_requests.value, counters.begin_errors.value) == (4, 2)
