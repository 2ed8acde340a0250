"""Copying and expiry on real brokers, with a store in memory that fails on demand."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from barnabas.base.errors import ErrorCode, LogDirFault
from barnabas.base.ids import Offset
from barnabas.base.metrics.exposition import render
from barnabas.broker.features.tiered import layout, lineage
from barnabas.broker.features.tiered.leadership import Leadership
from barnabas.broker.features.tiered.metadata_records import metadata_partition
from barnabas.broker.features.tiered.segment_metadata import Event, SegmentState, SegmentUpdate
from barnabas.broker.features.tiered.store import StoreFault
from barnabas.broker.storage.log import Log
from barnabas.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tests.memory_store import MemoryStore
from tests.support.waiting import eventually
from tests.unit.broker.compose.live_broker import ask
from tests.unit.broker.features.tiered.tier_broker import TP, TieredBroker, is_whole, tiered_broker, tiered_brokers
from tests.unit.broker.zookeeper_client.zookeeper_fixture import zookeeper


async def test_rolled_segments_go_up_and_then_go_locally(tmp_path: Path) -> None:
    store = MemoryStore()
    async with zookeeper() as ensemble, tiered_broker(ensemble, tmp_path, store) as tier:
        await tier.create({"local.retention.bytes": "1"})
        await tier.produce(20)
        await eventually(lambda: is_whole(tier), what="every rolled segment is in the tier")
        await eventually(lambda: len(tier.log.segments) == 1, what="local segments go")
        assert tier.log.log_start_offset == 0
        assert tier.log.local_log_start_offset == tier.log.active_segment.base_offset > 0
        for each in tier.finished:
            assert len(store.objects[layout.log_key(each)]) == each.size_bytes
            parts = layout.unpack_indexes(store.objects[layout.indexes_key(each)])
            assert layout.Part.LEADER_EPOCHS in parts
            blocks = layout.blocks_of(layout.log_key(each), parts, each.size_bytes)
            assert blocks is not None
            blocks.check(store.objects[layout.log_key(each)], 0)
        text = render(tier.broker.registry).decode()
        assert f'kafka_server_topic_remote_copy_bytes_total{{topic="orders"}} {tier.view.size_bytes}' in text
        assert 'kafka_server_topic_remote_copy_lag_segments{partition="0",topic="orders"} 0' in text


async def test_log_whose_first_record_is_above_its_first_offset_is_copied_once(tmp_path: Path) -> None:
    """Like a replica of a formerly compacted topic: its leader epochs begin with the first record. No copy fills the gap."""
    store = MemoryStore()
    async with zookeeper() as ensemble, tiered_broker(ensemble, tmp_path, store) as tier:
        await tier.create({"remote.log.copy.disable": "true"})
        await tier.produce(20)
        lead = tier.manager.led[TP]
        tier.log.epochs.clear()
        tier.log.epochs.assign(lead.epoch, 1)
        tier.log.update_config(replace(tier.log.config, remote_log_copy_disable=False))
        rolled = [each.base_offset for each in tier.log.segments][:-1]
        await eventually(lambda: len(tier.finished) >= len(rolled), what="every rolled segment is in the tier")
        await eventually(
            lambda: (lead.copying is not None and lead.copying.done()) or len(tier.finished) > len(rolled),
            what="there is nothing left to copy",
        )
        assert [each.start_offset for each in tier.finished] == rolled


# -- a store that fails -------------------------------------------------------------------------------------------------


async def test_while_the_store_is_away_writes_go_on_and_local_deletion_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore(is_away=True)
    async with zookeeper() as ensemble, tiered_broker(ensemble, tmp_path, store) as tier:
        await tier.create({"local.retention.bytes": "1", "retention.bytes": "1000000"})
        await tier.produce(20)
        await eventually(lambda: tier.manager.health.failures >= 5, what="it is tried again and again")
        tier.log.delete_old_segments(tier.broker._clock.now_ms())
        assert tier.log.local_log_start_offset == 0
        assert len(tier.log.segments) == 7
        assert len(tier.view.all()) == 1, "an outage is no reason to announce a segment again and again"
        text = render(tier.broker.registry).decode()
        assert "kafka_server_topic_remote_copy_errors_total" in text
        assert 'kafka_server_topic_remote_copy_lag_segments{partition="0",topic="orders"} 6' in text
        assert tier.manager.health.failing_s > 0
        assert sum("the object store fails" in line for line in caplog.messages) == 1
        store.is_away = False
        await eventually(lambda: is_whole(tier), what="everything is copied once the store is back")
        await eventually(lambda: len(tier.log.segments) == 1, what="local segments go")
        assert tier.manager.health.failing_s == 0


async def test_a_store_that_does_not_answer_does_not_delay_producers(tmp_path: Path) -> None:
    answers = asyncio.Event()
    store = MemoryStore(delay=lambda: _wait(answers))
    async with zookeeper() as ensemble, tiered_broker(ensemble, tmp_path, store) as tier:
        await tier.create({"local.retention.bytes": "1"})
        await tier.produce(4)
        await eventually(lambda: store.requests, what="a copy has begun")
        await tier.produce(16)
        assert store.objects == {}
        assert tier.log.local_log_start_offset == 0
        answers.set()
        await eventually(lambda: is_whole(tier), what="everything is copied once the store answers")


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


async def test_answers_that_are_lost_leave_nothing_twice(tmp_path: Path) -> None:
    store = MemoryStore()
    store.loses = lambda kind, key: None if len(store.requests) % 3 else StoreFault("lost")
    async with zookeeper() as ensemble, tiered_broker(ensemble, tmp_path, store) as tier:
        await tier.create()
        await tier.produce(20)
        await eventually(lambda: is_whole(tier), what="every segment is there once")


# -- removal ------------------------------------------------------------------------------------------------------------


async def test_retention_is_of_the_whole_log(tmp_path: Path) -> None:
    store = MemoryStore()
    async with zookeeper() as ensemble, tiered_broker(ensemble, tmp_path, store) as tier:
        await tier.create({"local.retention.bytes": "1", "retention.ms": "3600000"})
        now = tier.broker._clock.now_ms()
        await tier.produce(9, timestamp=now - 7_200_000)
        await tier.produce(8, timestamp=now)
        await eventually(lambda: tier.log.log_start_offset == 9, what="old segments leave the tier")
        await eventually(lambda: is_whole(tier), what="its objects are gone")
        assert [each.start_offset for each in tier.view.all()] == [9, 12]


async def test_retention_waits_for_a_new_leader_that_does_not_know_yet_what_is_committed(tmp_path: Path) -> None:
    """The log start cannot pass the high watermark: an attempt used to end the broker."""
    store = MemoryStore()
    async with zookeeper() as ensemble, tiered_broker(ensemble, tmp_path, store) as tier:
        await tier.create()
        await tier.produce(10, timestamp=1_000_000)
        await eventually(lambda: is_whole(tier), what="history is in the tier")
        state, committed = tier.log, tier.log.high_watermark
        state.high_watermark = Offset(1)
        state.config = replace(state.config, retention_ms=1000)
        lead = tier.manager.led[TP]
        await tier.manager._carry_out(lead, tier.log, tier.view)
        assert (lead.look, tier.log.log_start_offset, len(tier.finished)) == (None, 0, 3)
        state.high_watermark = committed
        await eventually(lambda: tier.log.log_start_offset == 9 and not store.objects, what="old segments are removed")


async def test_disk_that_fails_as_the_log_start_moves_does_not_end_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory goes offline, and other brokers lead its partitions. Nothing is removed from the tier."""
    async with zookeeper() as ensemble, tiered_broker(ensemble, tmp_path, MemoryStore()) as tier:
        await tier.create({"local.retention.bytes": "1"})
        await tier.produce(10, timestamp=1_000_000)
        await eventually(lambda: is_whole(tier) and len(tier.log.segments) == 1, what="all is in the tier only")
        tier.log.update_config(replace(tier.log.config, retention_ms=1000))
        lead, segments = tier.manager.led[TP], tier.view.all()
        failed: list[str] = []

        def fails(of: Log, offset: int, reason: str) -> bool:
            failed.append(reason)
            raise LogDirFault(of.log_dir, OSError("bad block"))

        monkeypatch.setattr(Log, "maybe_increment_log_start_offset", fails)
        await tier.manager._expire(lead)
        assert failed == ["retention of the tier"]
        monkeypatch.setattr(lineage, "first_available", lambda *_: Offset(1))
        await tier.manager._begin(lead)
        assert failed[1:] == ["the tier has no older records"]
        assert tier.view.all() == segments


async def test_records_that_were_deleted_go_from_the_tier(tmp_path: Path) -> None:
    store = MemoryStore()
    async with zookeeper() as ensemble, tiered_broker(ensemble, tmp_path, store) as tier:
        await tier.create({"local.retention.bytes": "1"})
        await tier.produce(20)
        await eventually(lambda: len(tier.log.segments) == 1, what="history is in the tier only")
        store.fails = lambda kind, key: StoreFault("not now") if kind == "delete" else None
        partition = DeleteRecordsPartition(partition_index=0, offset=10)
        topic = DeleteRecordsTopic(name=TP.topic, partitions=[partition])
        request = DeleteRecordsRequest(topics=[topic], timeout_ms=30_000)
        answer = await ask(tier.broker, request, DeleteRecordsResponse, version=1)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
        await eventually(lambda: any(kind == "delete" for kind, _ in store.requests), what="the store refuses")
        text = render(tier.broker.registry).decode()
        assert 'kafka_server_topic_remote_delete_lag_segments{partition="0",topic="orders"} 3' in text
        size = sum(each.size_bytes for each in tier.view.all() if each.end_offset < 10)
        assert f'kafka_server_topic_remote_delete_lag_bytes{{partition="0",topic="orders"}} {size}' in text
        store.fails = lambda kind, key: None
        await eventually(lambda: len(tier.view.all()) == 3, what="the segments below the log start go")
        assert [each.start_offset for each in tier.view.all()] == [9, 12, 15]
        await eventually(lambda: len(store.objects) == 6, what="and their objects")


async def test_a_deleted_topic_leaves_nothing_in_the_tier(tmp_path: Path) -> None:
    store = MemoryStore()
    store.fails = lambda kind, key: None if kind != "delete" or len(store.requests) % 3 else StoreFault("not now")
    async with zookeeper() as ensemble, tiered_broker(ensemble, tmp_path, store) as tier:
        await tier.create({"local.retention.bytes": "1"})
        await tier.produce(20)
        await eventually(lambda: is_whole(tier), what="history is in the tier")
        former = set(store.objects)
        await tier.delete()
        await eventually(lambda: not store.objects, what="its objects go")
        await eventually(lambda: not list(tier.manager.metadata.led()), what="nothing is known of it")
        # Its name may be used again.
        await tier.create()
        tier.produced = 0
        await tier.produce(5)
        await eventually(lambda: is_whole(tier), what="the new topic is copied")
        assert not former & set(store.objects)


# -- failing brokers ----------------------------------------------------------------------------------------------------


class Stops:
    """Stops before or after the n-th step of copying or deleting, like a broker that fails there."""

    def __init__(self, tier: TieredBroker, at: int) -> None:
        self.at = at
        self.steps: list[str] = []
        self.has_stopped = asyncio.Event()
        store, metadata = tier.store, tier.manager.metadata
        self._wrap(store, "put", lambda key, data: f"put {key.rpartition('.')[2]}")
        self._wrap(store, "delete", lambda keys: "delete")
        self._wrap(metadata, "publish", lambda event: f"publish {event.state.name}")

    def _wrap(self, owner: object, name: str, what: Callable[..., str]) -> None:
        original: Callable[..., Awaitable[None]] = getattr(owner, name)

        async def wrapped(*arguments: object) -> None:
            await self._step(f"before {what(*arguments)}")
            await original(*arguments)
            await self._step(f"after {what(*arguments)}")

        setattr(owner, name, wrapped)

    async def _step(self, name: str) -> None:
        self.steps.append(name)
        if len(self.steps) >= self.at:
            self.has_stopped.set()
            await asyncio.Event().wait()


#: Before and after each step: two events and two objects of a copy; two events and one deletion of two objects.
COPY_STEPS = 8
DELETION_STEPS = 6


@pytest.mark.parametrize("step", range(1, COPY_STEPS + 1))
async def test_a_broker_that_dies_in_mid_copy_is_followed_by_one_that_makes_it_whole(tmp_path: Path, step: int) -> None:
    objects: dict[str, bytes] = {}
    async with zookeeper() as ensemble:
        async with tiered_broker(ensemble, tmp_path, MemoryStore(objects)) as tier:
            stops = Stops(tier, step)
            await tier.create({"local.retention.bytes": "1"})
            await tier.produce(10)
            await stops.has_stopped.wait()
            assert tier.log.local_log_start_offset == 0 or step > COPY_STEPS - 2
        async with tiered_broker(ensemble, tmp_path, MemoryStore(objects)) as tier:
            await eventually(lambda: is_whole(tier), what=f"all is whole after a death {stops.steps[-1]}")
            assert tier.log.log_start_offset == 0


@pytest.mark.parametrize("step", range(1, DELETION_STEPS + 1))
async def test_a_broker_that_dies_in_mid_deletion_is_followed_by_one_that_ends_it(tmp_path: Path, step: int) -> None:
    objects: dict[str, bytes] = {}
    async with zookeeper() as ensemble:
        async with tiered_broker(ensemble, tmp_path, MemoryStore(objects)) as tier:
            await tier.create({"local.retention.bytes": "1"})
            await tier.produce(13)
            await eventually(lambda: len(tier.log.segments) == 1, what="history is in the tier only")
            stops = Stops(tier, step)
            assert tier.log.maybe_increment_log_start_offset(6)
            await stops.has_stopped.wait()
        async with tiered_broker(ensemble, tmp_path, MemoryStore(objects)) as tier:
            await eventually(lambda: is_whole(tier), what=f"all is whole after a death {stops.steps[-1]}")
            assert [each.start_offset for each in tier.view.all()] == [6, 9]


@pytest.mark.parametrize("step", [1, 3, 5])
async def test_a_broker_that_dies_as_a_topic_is_deleted_is_followed_by_one_that_ends_it(
    tmp_path: Path, step: int
) -> None:
    """It fails before the first segment is announced as deleted, before its objects are deleted, or before that is
    announced."""
    objects: dict[str, bytes] = {}
    async with zookeeper() as ensemble:
        async with tiered_broker(ensemble, tmp_path, MemoryStore(objects)) as tier:
            await tier.create({"local.retention.bytes": "1"})
            await tier.produce(7)
            await eventually(lambda: is_whole(tier), what="history is in the tier")
            stops = Stops(tier, step)
            await tier.delete()
            await stops.has_stopped.wait()
            assert objects
        async with tiered_broker(ensemble, tmp_path, MemoryStore(objects)) as tier:
            await eventually(lambda: not objects, what=f"no object is left after a death {stops.steps[-1]}")
            await eventually(lambda: not list(tier.manager.metadata.led()), what="nothing is known of the topic")


# -- several brokers ----------------------------------------------------------------------------------------------------


async def test_followers_keep_what_is_not_copied_and_go_on_when_they_lead(tmp_path: Path) -> None:
    store = MemoryStore(is_away=True)
    settings = {
        "rlmm.config.remote.log.metadata.topic.replication.factor": "2",
        "controlled.shutdown.enable": "true",
    }
    async with zookeeper() as ensemble, tiered_brokers(ensemble, tmp_path, store, 2, settings) as brokers:
        await brokers[0].create({"local.retention.bytes": "1"}, replicas=2)
        await eventually(
            lambda: all(each.broker.replicas.hosted.get(TP) for each in brokers), what="both have a replica"
        )
        leader = next(each for each in brokers if each.broker.replicas.hosted.require(TP).is_leader)
        follower = next(each for each in brokers if each is not leader)
        await leader.produce(20)
        await eventually(lambda: leader.manager.health.failures > 3, what="the store is asked")
        await eventually(lambda: follower.log.log_end_offset == 20, what="the follower has it all")
        follower.log.delete_old_segments(follower.broker._clock.now_ms())
        assert follower.log.local_log_start_offset == 0, "the tier does not have it"
        leader.broker.stop()
        await eventually(lambda: follower.broker.replicas.hosted.require(TP).is_leader, what="the follower leads")
        store.is_away = False
        await eventually(lambda: is_whole(follower), what="the new leader copies, and removes what the old one began")
        await eventually(lambda: len(follower.log.segments) == 1, what="local segments go")


async def test_a_finished_copy_stays_although_the_metadata_is_read_again_just_then(tmp_path: Path) -> None:
    """The copy was unknown at that moment: its objects were deleted as if another leader had removed it; records were lost."""
    store = MemoryStore()
    async with zookeeper() as ensemble, tiered_broker(ensemble, tmp_path, store) as tier:
        await tier.create({"local.retention.bytes": "1"})
        metadata = tier.manager.metadata
        original = metadata.publish
        finishes = asyncio.Event()

        async def forgetful(event: Event) -> None:
            await original(event)
            if isinstance(event, SegmentUpdate) and not finishes.is_set():
                finishes.set()
                metadata.begin_again(metadata_partition(event.id.of, metadata.partition_count), 0)
                assert metadata.view(event.id.of) is None

        metadata.publish = forgetful  # type: ignore[method-assign]
        await tier.produce(10)
        await finishes.wait()
        await eventually(lambda: is_whole(tier), what="every copy that is finished is there")
        await eventually(lambda: len(tier.log.segments) == 1, what="local segments go")
        assert set(store.objects) == {key for each in tier.finished for key in layout.keys(each)}
        assert not [each for each in store.requests if each[0] == "delete"]


async def test_a_copy_that_a_deposed_leader_finishes_late_counts_or_goes(tmp_path: Path) -> None:
    """In either order: the finished copy of the old leader, or its removal by the new one. A late copy is removed, also if the
    store is unavailable just then, and the leadership ends."""
    store = MemoryStore()
    async with zookeeper() as ensemble, tiered_broker(ensemble, tmp_path, store) as tier:
        await tier.create()
        await eventually(lambda: TP in tier.manager.led, what="it leads")
        original = tier.manager.metadata.publish
        refused: list[str] = []
        is_late = asyncio.Event()
        former: Leadership | None = None

        def refuses(kind: str, key: str) -> StoreFault | None:
            assert former is not None
            if kind != "delete" or len(refused) == 3:
                return None
            refused.append(key)
            former.end()
            return StoreFault("not now")

        async def late(event: Event) -> None:
            nonlocal former
            if event.state is not SegmentState.COPY_FINISHED or former is not None:
                await original(event)
                return
            put = dict(store.objects)
            # Another leadership of the same broker, which does not know of the copy in progress. In the same epoch: a check of
            # the broker's partitions would end a leadership with another epoch.
            former = tier.manager.led.pop(TP)
            tier.manager.became_leader(former.of, former.epoch)
            await eventually(lambda: is_whole(tier), what="the next leadership makes it whole")
            store.objects |= put  # the upload took effect late
            store.fails = refuses
            await original(event)
            is_late.set()

        tier.manager.metadata.publish = late  # type: ignore[method-assign]
        await tier.produce(4)
        await eventually(is_late.is_set, what="a copy is finished too late")
        await tier.produce(6)
        await eventually(lambda: is_whole(tier), what="nothing is left of the late copy")
        assert len(refused) == 3
