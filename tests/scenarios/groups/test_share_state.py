"""The state of share partitions in a cluster of three brokers: its coordinators fail, its log is pruned, its topic goes."""

import asyncio
from typing import Any

from barnabas.base.ids import BrokerId, TopicPartition
from barnabas.broker.compose import Broker as ComposedBroker
from barnabas.broker.runtime.share_state import SharePartitionKey, StateBatch
from barnabas.broker.share_coordinator.coordinator import coordinator_key
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.testing import Broker
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from barnabas.wire.messages.read_share_group_state import (
    PartitionData,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadStateData,
)
from tests.support.waiting import eventually

PARTITIONS = 6
_STATE = TopicPartition("__share_group_state", 0)


def composed(kafka: Any, broker_id: int) -> ComposedBroker:
    found = kafka._machinery.members[broker_id].broker
    assert isinstance(found, ComposedBroker)
    return found


def coordinator_of(kafka: Any, key: SharePartitionKey, *, seen_by: int) -> BrokerId | None:
    return composed(kafka, seen_by).share_state.coordinator.topic.coordinator_of(coordinator_key(key))


async def share_partitions(kafka: Any) -> list[SharePartitionKey]:
    await kafka.create_topic("orders", partitions=PARTITIONS)
    topic_id = composed(kafka, 1).context.metadata.topic_id("orders")
    return [SharePartitionKey("g", topic_id, partition) for partition in range(PARTITIONS)]


async def test_no_acknowledged_write_is_lost_when_coordinators_fail() -> None:
    async with Broker(brokers=3) as kafka:
        keys = await share_partitions(kafka)
        persister = composed(kafka, 1).share_state.persister
        for key in keys:
            await persister.initialize(key, state_epoch=1, start_offset=0)
        is_over = asyncio.Event()
        acknowledged = dict.fromkeys(keys, -1)

        async def acknowledge(key: SharePartitionKey) -> None:
            while not is_over.is_set():
                offset = acknowledged[key] + 1
                # Every second record is given up, so no two batches join.
                batch = StateBatch(offset, offset, 2 if offset % 2 else 4, 1)
                await persister.write(
                    key,
                    state_epoch=1,
                    leader_epoch=0,
                    start_offset=0,
                    delivery_complete_count=offset + 1,
                    batches=[batch],
                )
                acknowledged[key] = offset

        async with asyncio.TaskGroup() as leaders:
            for key in keys:
                leaders.create_task(acknowledge(key))
            for victim in (2, 3):
                await _progress(acknowledged)
                await kafka.kill(victim)
                await _progress(acknowledged)
                await kafka.start_broker(victim)
            await _progress(acknowledged)
            is_over.set()
        for key in keys:
            state = await composed(kafka, 3).share_state.persister.read(key, leader_epoch=0)
            kept = [offset for batch in state.batches for offset in range(batch.first_offset, batch.last_offset + 1)]
            assert kept == list(range(acknowledged[key] + 1)), key


async def _progress(acknowledged: dict[SharePartitionKey, int]) -> None:
    """Wait until every share partition has ten more acknowledged writes."""
    goal = {key: offset + 10 for key, offset in acknowledged.items()}
    await eventually(lambda: all(acknowledged[key] >= offset for key, offset in goal.items()))


async def test_log_stays_short_and_a_deleted_topic_leaves_nothing() -> None:
    config = {
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.prune.interval.ms": "20",
        "share.coordinator.snapshot.update.records.per.snapshot": "5",
    }
    async with Broker(brokers=1, config=config) as kafka:
        keys = await share_partitions(kafka)
        broker = composed(kafka, 1)
        persister = broker.share_state.persister
        for key in keys:
            await persister.initialize(key, state_epoch=1, start_offset=0)
        for offset in range(30):
            for key in keys:
                await persister.write(
                    key,
                    state_epoch=1,
                    leader_epoch=0,
                    start_offset=offset,
                    delivery_complete_count=0,
                    batches=[],
                )
        [machine] = broker.share_state.coordinator.machines.values()
        log = broker.replicas.hosted.require(_STATE).local_log
        await eventually(lambda: log.log_start_offset == machine.needed_from > PARTITIONS * 20)
        await kafka.kill(1)
        await kafka.start_broker(1)
        broker = composed(kafka, 1)
        for key in keys:
            assert (await broker.share_state.persister.read(key, leader_epoch=0)).start_offset == 29
        await kafka.delete_topic("orders")
        [machine] = broker.share_state.coordinator.machines.values()
        await eventually(lambda: not machine.states)


async def test_coordinator_is_found_and_asked_through_the_protocol() -> None:
    async with Broker(brokers=3) as kafka:
        keys = await share_partitions(kafka)
        async with AsyncClient(client_config(kafka.bootstrap)) as client:
            connection = await client.any_connection()
            found = await connection.request(
                FindCoordinatorRequest(key_type=2, coordinator_keys=[*map(coordinator_key, keys), "no key"]),
                FindCoordinatorResponse,
            )
            *places, wrong = found.coordinators
            assert [each.error_code for each in places] == [0] * PARTITIONS
            assert wrong.error_code == 42
            # Each broker hears of the new topic by itself.
            await eventually(lambda: all(coordinator_of(kafka, key, seen_by=2) is not None for key in keys))
            assert [each.node_id for each in places] == [coordinator_of(kafka, key, seen_by=2) for key in keys]
            await composed(kafka, 2).share_state.persister.initialize(keys[0], state_epoch=1, start_offset=7)
            request = ReadShareGroupStateRequest(
                group_id="g",
                topics=[
                    ReadStateData(topic_id=keys[0].topic_id, partitions=[PartitionData(partition=0, leader_epoch=0)])
                ],
            )
            answers = {
                broker_id: (await (await client.connection(broker_id)).request(request, ReadShareGroupStateResponse))
                for broker_id in (1, 2, 3)
            }
            codes = {broker: answer.results[0].partitions[0].error_code for broker, answer in answers.items()}
            assert codes == {broker: 0 if broker == places[0].node_id else 16 for broker in (1, 2, 3)}
            assert answers[places[0].node_id].results[0].partitions[0].start_offset == 7
