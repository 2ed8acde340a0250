"""History through real brokers: fetches across the local start, and followers that begin where the tier ends."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from pathlib import Path

from barnabas.base.errors import ErrorCode
from barnabas.base.words import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
)
from barnabas.broker.features.tiered.lineage import touches
from barnabas.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from barnabas.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from barnabas.wire.record_batch import iter_batches
from barnabas.wire.records import iter_records
from tests.memory_store import MemoryStore
from tests.support.waiting import eventually
from tests.unit.broker.compose.live_broker import ask, live_broker
from tests.unit.broker.features.tiered.tier_broker import SETTINGS, TP, TieredBroker, tiered_broker
from tests.unit.broker.zookeeper_client.zookeeper_fixture import zookeeper

LOCAL_NOTHING = {"local.retention.bytes": "1"}


async def fetch(tier: TieredBroker, offset: int, *, max_bytes: int = 1500) -> tuple[int, list[tuple[int, bytes]]]:
    wanted = FetchPartition(partition=TP.partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=1,
        topics=[FetchTopic(topic=TP.topic, partitions=[wanted])],
    )
    answer = await ask(tier.broker, request, FetchResponse, version=12)
    data = answer.responses[0].partitions[0]
    records = bytes(data.records or b"")
    found = [
        (record.offset, record.key or b"")
        for position, header in iter_batches(records)
        for record in iter_records(records, position, header)
        if record.offset >= offset
    ]
    return data.error_code, found


async def read_all(tier: TieredBroker, offset: int = 0) -> list[tuple[int, bytes]]:
    """Read as a consumer does: repeat the fetch after an answer without records."""
    found: list[tuple[int, bytes]] = []
    for _ in range(1000):
        if offset >= tier.log.high_watermark:
            return found
        error, some = await fetch(tier, offset)
        assert error == ErrorCode.NONE
        found += some
        offset = found[-1][0] + 1 if found else offset
    raise AssertionError("it does not end")


async def offsets(tier: TieredBroker, timestamps: Sequence[int]) -> list[tuple[int, int]]:
    found = []
    for timestamp in timestamps:
        wanted = ListOffsetsPartition(partition_index=TP.partition, timestamp=timestamp)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=TP.topic, partitions=[wanted])])
        answer = (await ask(tier.broker, request, ListOffsetsResponse, version=11)).topics[0].partitions[0]
        found.append((answer.error_code, answer.offset))
    return found


def all_of(count: int) -> list[tuple[int, bytes]]:
    return [(number, b"%d" % number) for number in range(count)]


async def test_history_is_read_over_the_border_and_after_a_restart(tmp_path: Path) -> None:
    store = MemoryStore()
    async with zookeeper() as ensemble:
        async with tiered_broker(ensemble, tmp_path, store) as tier:
            await tier.create(LOCAL_NOTHING)
            assert await offsets(tier, [LATEST_TIERED, EARLIEST_PENDING_UPLOAD]) == [(0, -1), (0, 0)]
            for number in range(30):
                await tier.produce(1, timestamp=1_000_000 + number * 1000)
            await eventually(
                lambda: tier.is_all_copied() and len(tier.log.segments) == 1, what="only the active segment is here"
            )
            local = tier.log.local_log_start_offset
            assert await read_all(tier) == all_of(30)
            assert await read_all(tier, 7) == all_of(30)[7:]
            times = [EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, LATEST, MAX_TIMESTAMP, 1_004_500, 1_029_000, 1_030_000]
            assert await offsets(tier, times) == [(0, each) for each in (0, local, local - 1, 30, 29, 5, 29, -1)]
            assert await offsets(tier, [EARLIEST_PENDING_UPLOAD]) == [(0, local)]
            assert (await fetch(tier, 31))[0] == ErrorCode.OFFSET_OUT_OF_RANGE
        async with tiered_broker(ensemble, tmp_path, store) as tier:
            tier.produced = 30
            await eventually(
                lambda: tier.broker.replicas.hosted.get(TP) and tier.broker.replicas.hosted.require(TP).is_leader,
                what="it leads",
            )
            assert (tier.log.log_start_offset, tier.log.local_log_start_offset) == (0, local)
            assert await read_all(tier) == all_of(30)
            await tier.produce(3)
            assert await read_all(tier) == all_of(33)


async def test_history_is_read_from_a_directory(tmp_path: Path) -> None:
    """With the production store, through obstore."""
    settings = {
        **SETTINGS,
        "barnabas.remote.storage.url": f"file://{tmp_path}/tier",
        "barnabas.remote.chunk.bytes": "65536",
    }
    async with zookeeper() as ensemble, live_broker(ensemble, tmp_path / "logs", settings) as broker:
        tier = TieredBroker(broker, MemoryStore())
        await tier.create(LOCAL_NOTHING)
        await tier.produce(20)
        await eventually(
            lambda: tier.is_all_copied() and len(tier.log.segments) == 1, what="only the active segment is here"
        )
        assert await read_all(tier) == all_of(20)
        assert await read_all(tier, 4) == all_of(20)[4:]


TWO = {"rlmm.config.remote.log.metadata.topic.replication.factor": "2", "default.replication.factor": "2"}


async def create_on(tier: TieredBroker, *brokers: int, more: Mapping[str, str] | None = None) -> None:
    """Create the topic on these brokers; the first one leads."""
    settings = {"remote.storage.enable": "true", "segment.bytes": "1000", "retention.ms": "-1", **LOCAL_NOTHING}
    settings |= more or {}
    topic = CreatableTopic(
        name=TP.topic,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=list(brokers))],
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in settings.items()],
    )
    answer = await ask(
        tier.broker, CreateTopicsRequest(topics=[topic], timeout_ms=30_000), CreateTopicsResponse, version=4
    )
    assert answer.topics[0].error_code == ErrorCode.NONE, answer.topics[0].error_message


def leads(tier: TieredBroker) -> bool:
    partition = tier.broker.replicas.hosted.get(TP)
    return partition is not None and partition.is_leader


async def test_follower_that_lost_its_disk_begins_where_the_tier_ends_and_then_leads(tmp_path: Path) -> None:
    store = MemoryStore()
    async with zookeeper() as ensemble, AsyncExitStack() as stack:
        leader = await stack.enter_async_context(
            tiered_broker(ensemble, tmp_path / "1", store, {**TWO, "broker.id": "1"})
        )
        own = {**TWO, "broker.id": "2"}
        async with tiered_broker(ensemble, tmp_path / "2", store, own) as follower:
            await create_on(leader, 1, 2)
            await eventually(lambda: leads(leader), what="it leads")
            await leader.produce(30)
            await eventually(
                lambda: leader.is_all_copied() and len(leader.log.segments) == 1, what="only the last segment is here"
            )
            await eventually(
                lambda: follower.log.local_log_start_offset > 0, what="a follower lets go of what is copied, too"
            )
        async with tiered_broker(ensemble, tmp_path / "new", store, own) as follower:
            partition = leader.broker.replicas.hosted.require(TP)
            await eventually(lambda: len(partition.machine.isr) == 2, what="the new replica is in sync")
            log = follower.log
            assert (log.log_start_offset, log.log_end_offset) == (0, 30)
            assert log.local_log_start_offset == leader.log.local_log_start_offset > 0
            assert log.epochs.below(30) == leader.log.epochs.below(30)
            assert not [each for each in log.segments if each.base_offset < log.local_log_start_offset]
            await stack.aclose()
            await eventually(lambda: leads(follower), what="the new replica leads")
            follower.produced = 30
            assert await read_all(follower) == all_of(30)
            await follower.produce(10)
            assert await read_all(follower) == all_of(40)
            await eventually(follower.is_all_copied, what="the new leader copies")
            assert await read_all(follower) == all_of(40)


async def test_records_discarded_by_an_unclean_election_are_not_read_from_the_tier(tmp_path: Path) -> None:
    """The tier has more records of the overruled leader than the winner has. The overruled leader begins where the winner's log
    agrees with its own in the tier, below its own first segment."""
    store = MemoryStore()
    three = {"rlmm.config.remote.log.metadata.topic.replication.factor": "3", "default.replication.factor": "3"}

    def broker(number: int) -> AbstractAsyncContextManager[TieredBroker]:
        return tiered_broker(ensemble, tmp_path / str(number), store, {**three, "broker.id": str(number)})

    async with zookeeper() as ensemble, broker(3) as third, AsyncExitStack() as first, AsyncExitStack() as second:
        loser = await first.enter_async_context(broker(1))
        winner = await second.enter_async_context(broker(2))
        await create_on(third, 1, 2, more={"unclean.leader.election.enable": "true"})
        await eventually(lambda: leads(loser), what="it leads")
        await loser.produce(12)
        await eventually(
            lambda: winner.broker.replicas.hosted.get(TP) and winner.log.log_end_offset == 12, what="both have it"
        )
        await second.aclose()
        await loser.produce(18)
        await eventually(
            lambda: loser.is_all_copied() and len(loser.log.segments) == 1, what="only the last segment is here"
        )
        assert loser.log.local_log_start_offset > 12
        await first.aclose()
        winner = await second.enter_async_context(broker(2))
        await eventually(lambda: leads(winner), what="the broker that is behind leads")
        assert winner.log.log_end_offset == 12
        winner.produced = 1000
        await winner.produce(15)
        expected = all_of(12) + [(12 + number, b"%d" % (1000 + number)) for number in range(15)]
        assert await read_all(winner) == expected
        await eventually(
            lambda: winner.is_all_copied() and len(winner.log.segments) == 1, what="the winner's history goes up"
        )
        assert await read_all(winner) == expected
        loser = await first.enter_async_context(broker(1))
        partition = winner.broker.replicas.hosted.require(TP)
        await eventually(lambda: len(partition.machine.isr) == 2, what="the overruled broker is in sync")
        assert loser.log.epochs.below(27) == winner.log.epochs.below(27)
        await second.aclose()
        await eventually(lambda: leads(loser), what="the overruled broker leads again")
        assert await read_all(loser) == expected
        known = loser.view.all()
        assert all(touches(each, loser.log.epochs, 27) for each in known if each.is_finished)


async def test_store_that_is_away_delays_readers_of_history_only(tmp_path: Path) -> None:
    store = MemoryStore()
    async with zookeeper() as ensemble, tiered_broker(ensemble, tmp_path, store) as tier:
        await tier.create(LOCAL_NOTHING)
        await tier.produce(20)
        await eventually(
            lambda: tier.is_all_copied() and len(tier.log.segments) == 1, what="only the active segment is here"
        )
        store.is_away = True
        local = tier.log.local_log_start_offset
        assert (await fetch(tier, 0))[0] == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await fetch(tier, local))[1] == all_of(20)[local:]
        assert await offsets(tier, [0, EARLIEST]) == [(ErrorCode.KAFKA_STORAGE_ERROR, -1), (0, 0)]
        await tier.produce(9)
        store.is_away = False
        assert await read_all(tier) == all_of(29)


async def test_topic_that_leaves_the_tier_begins_with_its_first_segment(tmp_path: Path) -> None:
    store = MemoryStore()
    async with zookeeper() as ensemble, tiered_broker(ensemble, tmp_path, store) as tier:
        await tier.create(LOCAL_NOTHING)
        await tier.produce(20)
        await eventually(
            lambda: tier.is_all_copied() and len(tier.log.segments) == 1, what="only the active segment is here"
        )
        assert await alter(tier, {"remote.storage.enable": "false"}) == ErrorCode.INVALID_CONFIG
        local = tier.log.local_log_start_offset
        off = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
        assert await alter(tier, off) == ErrorCode.NONE
        await eventually(lambda: tier.log.log_start_offset == local, what="the log begins with what is here")
        await eventually(lambda: not store.objects, what="nothing of it is in the tier")
        assert await offsets(tier, [EARLIEST, EARLIEST_LOCAL, LATEST_TIERED]) == [(0, local), (0, local), (0, -1)]
        assert await offsets(tier, [EARLIEST_PENDING_UPLOAD]) == [(0, -1)], "nothing goes there any more"
        assert (await fetch(tier, 0))[0] == ErrorCode.OFFSET_OUT_OF_RANGE
        assert await read_all(tier, local) == all_of(20)[local:]


async def alter(tier: TieredBroker, settings: dict[str, str]) -> int:
    changed = [AlterableConfig(name=name, config_operation=0, value=value) for name, value in settings.items()]
    resource = AlterConfigsResource(resource_type=2, resource_name=TP.topic, configs=changed)
    request = IncrementalAlterConfigsRequest(resources=[resource])
    answer = await ask(tier.broker, request, IncrementalAlterConfigsResponse, version=1)
    return answer.responses[0].error_code


async def test_topic_that_is_tiered_late_is_read_from_where_it_began(tmp_path: Path) -> None:
    store = MemoryStore()
    async with zookeeper() as ensemble, tiered_broker(ensemble, tmp_path, store) as tier:
        await tier.create({"remote.storage.enable": "false", "retention.bytes": "2500"})
        await tier.produce(20)
        await eventually(lambda: tier.log.log_start_offset > 0, what="retention deletes")
        assert await alter(tier, {"retention.bytes": "-1"}) == ErrorCode.NONE
        start = tier.log.log_start_offset
        assert await alter(tier, {"remote.storage.enable": "true", **LOCAL_NOTHING}) == ErrorCode.NONE
        await eventually(
            lambda: tier.is_all_copied() and len(tier.log.segments) == 1, what="only the active segment is here"
        )
        assert tier.log.log_start_offset == start
        assert await read_all(tier, start) == all_of(20)[start:]
        assert (await fetch(tier, start - 1))[0] == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_log_whose_first_record_is_above_its_first_offset_leaves_the_disk_and_is_read(tmp_path: Path) -> None:
    """Like a replica of a formerly compacted topic: its leader epochs begin with the first record. Its copied part seemed to
    begin with a gap, and so no segment was ever deleted locally."""
    store = MemoryStore()
    async with zookeeper() as ensemble, tiered_broker(ensemble, tmp_path, store) as tier:
        await tier.create({"remote.log.copy.disable": "true"})
        await tier.produce(20)
        epoch = tier.manager.led[TP].epoch
        tier.log.epochs.clear()
        tier.log.epochs.assign(epoch, 1)
        tier.log.update_config(replace(tier.log.config, remote_log_copy_disable=False, local_retention_bytes=1))
        await eventually(lambda: len(tier.log.segments) == 1, what="local segments go")
        assert tier.log.log_start_offset == 0
        assert tier.log.local_log_start_offset > 0
        assert await read_all(tier) == all_of(20)
