"""The coordinator with its machines and its handlers: answers wait for commits, records are pruned, topics come and go."""

import asyncio
from collections.abc import Coroutine, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import TopicId
from barnabas.base.metrics.exposition import render
from barnabas.base.metrics.registry import Registry
from barnabas.base.words import AclOperation
from barnabas.broker.api.share_state import ShareStateApi
from barnabas.broker.runtime.share_state import SharePartitionKey, StateBatch
from barnabas.broker.share_coordinator.coordinator import ShareCoordinator, coordinator_key, is_coordinator_key
from barnabas.broker.zookeeper_client.coordinator_context import CoordinatorContext
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache
from barnabas.wire.messages import delete_share_group_state as deleting
from barnabas.wire.messages import initialize_share_group_state as initializing
from barnabas.wire.messages import read_share_group_state as reading
from barnabas.wire.messages import read_share_group_state_summary as summing
from barnabas.wire.messages import write_share_group_state as writing
from barnabas.wire.messages.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from tests.manual_time import ManualClock, ManualTimers
from tests.memory_log import MemoryLog
from tests.support.handlers import handler_of
from tests.unit.broker.share_coordinator.share_harness import A0, A1, ORDERS, change

CONFIG = BrokerConfig.parse(
    {
        "broker.id": "1",
        "zookeeper.connect": "localhost:2181",
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
    }
)
DURING_DELETE = -2


class World:
    def __init__(self, *, commits_at_once: bool = True) -> None:
        self.clock = ManualClock()
        self.timers = ManualTimers(self.clock)
        self.log = MemoryLog(commits_at_once=commits_at_once)
        self.registry = Registry()
        self.metadata = MetadataCache()
        self.show_orders(leader=1)
        self.created: list[tuple[str, int, int, Mapping[str, str]]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.may_act = True
        self.coordinator = ShareCoordinator(
            CoordinatorContext(
                log=self.log,
                metadata=self.metadata,
                config=lambda: CONFIG,
                now_ms=self.clock.now_ms,
                timers=self.timers,
                spawn=self.spawn,
                create_topic=self.create,
                count_partitions=self.count_partitions,
                registry=self.registry,
            )
        )
        context: Any = SimpleNamespace(require_cluster=self.require_cluster)
        self.api = ShareStateApi(context, self.coordinator)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        self.tasks.append(asyncio.get_running_loop().create_task(work, name=name))
        return self.tasks[-1]

    def require_cluster(self, call: object, operation: AclOperation) -> None:
        assert operation is AclOperation.CLUSTER_ACTION
        if not self.may_act:
            raise Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")

    async def create(self, name: str, partitions: int, factor: int, settings: Mapping[str, str]) -> ErrorCode:
        self.created.append((name, partitions, factor, settings))
        return ErrorCode.NONE

    async def count_partitions(self, topic: str) -> int:
        return 1

    def show_orders(self, *, leader: int) -> None:
        states = [
            UpdateMetadataPartitionState(topic_name="orders", partition_index=index, leader=leader)
            for index in range(2)
        ]
        topic = UpdateMetadataTopicState(topic_name="orders", topic_id=ORDERS, partition_states=states)
        self.metadata.update(UpdateMetadataRequest(controller_id=1, topic_states=[topic]))

    async def lead(self, epoch: int = 1) -> None:
        self.coordinator.elected(0, epoch)
        await asyncio.gather(*self.tasks)

    async def ask(self, request: Any) -> Any:
        handler = handler_of(self.api, type(request).__name__.removesuffix("Request"))
        call: Any = None
        try:
            answer = handler.execute(call, request)
        except Refused as refused:
            return handler.refuse(request, refused.code, refused.message)
        assert isinstance(answer, Coroutine)
        return await answer


def initialize(*keys: SharePartitionKey, start_offset: int = 0) -> initializing.InitializeShareGroupStateRequest:
    partitions = [
        initializing.PartitionData(partition=key.partition, state_epoch=1, start_offset=start_offset) for key in keys
    ]
    topic = initializing.InitializeStateData(topic_id=ORDERS, partitions=partitions)
    return initializing.InitializeShareGroupStateRequest(group_id="g", topics=[topic])


def write(key: SharePartitionKey = A0, *, state_epoch: int = 1) -> writing.WriteShareGroupStateRequest:
    batch = writing.StateBatch(first_offset=2, last_offset=3, delivery_state=2, delivery_count=1)
    data = writing.PartitionData(
        partition=key.partition,
        state_epoch=state_epoch,
        leader_epoch=0,
        start_offset=1,
        delivery_complete_count=2,
        state_batches=[batch],
    )
    topic = writing.WriteStateData(topic_id=key.topic_id, partitions=[data])
    return writing.WriteShareGroupStateRequest(group_id=key.group_id, topics=[topic])


def read(partition: int = 0) -> reading.ReadShareGroupStateRequest:
    topic = reading.ReadStateData(
        topic_id=ORDERS, partitions=[reading.PartitionData(partition=partition, leader_epoch=0)]
    )
    return reading.ReadShareGroupStateRequest(group_id="g", topics=[topic])


async def test_state_is_initialized_written_read_and_deleted_by_requests() -> None:
    world = World()
    await world.lead()
    answer = await world.ask(initialize(A0, A1))
    assert [result.error_code for result in answer.results[0].partitions] == [0, 0]
    answer = await world.ask(write())
    assert answer.results == [
        writing.WriteStateResult(topic_id=ORDERS, partitions=[writing.PartitionResult(partition=0)])
    ]
    answer = await world.ask(read())
    assert answer.results[0].partitions == [
        reading.PartitionResult(
            partition=0,
            state_epoch=1,
            start_offset=1,
            state_batches=[reading.StateBatch(first_offset=2, last_offset=3, delivery_state=2, delivery_count=1)],
        )
    ]
    summary = summing.ReadShareGroupStateSummaryRequest(
        group_id="g",
        topics=[
            summing.ReadStateSummaryData(
                topic_id=ORDERS, partitions=[summing.PartitionData(partition=0, leader_epoch=0)]
            )
        ],
    )
    answer = await world.ask(summary)
    assert answer.results[0].partitions == [
        summing.PartitionResult(partition=0, state_epoch=1, leader_epoch=0, start_offset=1, delivery_complete_count=2)
    ]
    delete = deleting.DeleteShareGroupStateRequest(
        group_id="g",
        topics=[deleting.DeleteStateData(topic_id=ORDERS, partitions=[deleting.PartitionData(partition=0)])],
    )
    assert (await world.ask(delete)).results[0].partitions[0].error_code == 0
    answer = await world.ask(summary)
    [gone] = answer.results[0].partitions
    assert (gone.error_code, gone.start_offset, gone.delivery_complete_count) == (0, -1, -1)


async def test_errors_are_those_of_each_share_partition() -> None:
    world = World()
    await world.lead()
    await world.ask(initialize(A0))
    [failed] = (await world.ask(write(A1))).results[0].partitions
    assert failed.error_code == ErrorCode.INVALID_REQUEST
    assert "not initialized" in failed.error_message
    [fenced] = (await world.ask(write(state_epoch=0))).results[0].partitions
    assert fenced.error_code == ErrorCode.FENCED_STATE_EPOCH
    [unknown] = (await world.ask(initialize(A0._replace(partition=9)))).results[0].partitions
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_only_brokers_may_ask() -> None:
    world = World()
    world.may_act = False
    await world.lead()
    for request in (initialize(A0), write(), read()):
        [answer] = (await world.ask(request)).results[0].partitions
        assert (answer.partition, answer.error_code) == (0, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert not world.log.records


@pytest.mark.parametrize(
    "empty",
    [
        writing.WriteShareGroupStateRequest(group_id="g", topics=[]),
        writing.WriteShareGroupStateRequest(group_id="g", topics=[writing.WriteStateData(topic_id=ORDERS)]),
        write(A0._replace(group_id="")),
    ],
)
async def test_request_without_group_or_partitions_has_an_empty_answer(
    empty: writing.WriteShareGroupStateRequest,
) -> None:
    world = World()
    await world.lead()
    assert await world.ask(empty) == writing.WriteShareGroupStateResponse()


async def test_broker_that_does_not_coordinate_says_so() -> None:
    world = World()
    [answer] = (await world.ask(read())).results[0].partitions
    assert answer.error_code == ErrorCode.NOT_COORDINATOR
    world.log.may_load.clear()
    world.coordinator.elected(0, 1)
    [answer] = (await world.ask(read())).results[0].partitions
    assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.log.may_load.set()
    await asyncio.gather(*world.tasks)
    world.coordinator.close()
    [answer] = (await world.ask(read())).results[0].partitions
    assert answer.error_code == ErrorCode.NOT_COORDINATOR


async def test_answers_wait_for_the_commit_and_show_no_state_before_it() -> None:
    world = World(commits_at_once=False)
    await world.lead()
    created = asyncio.ensure_future(world.ask(initialize(A0)))
    seen = asyncio.ensure_future(world.ask(read()))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not created.done()
    assert not seen.done()
    world.log.settle()
    assert (await created).results[0].partitions[0].error_code == 0
    assert (await seen).results[0].partitions[0].error_code == 0


async def test_write_that_replicas_do_not_confirm_in_time_is_refused_and_stays_written() -> None:
    world = World(commits_at_once=False)
    await world.lead()
    created = asyncio.ensure_future(world.ask(initialize(A0)))
    await asyncio.sleep(0)
    world.timers.advance_ms(5_000)
    [late] = (await created).results[0].partitions
    assert late.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert len(world.log.records) == 1


async def test_topic_is_created_with_kafkas_settings() -> None:
    world = World()
    await world.coordinator.topic.ensure()
    assert world.created == [
        (
            "__share_group_state",
            1,
            1,
            {
                "cleanup.policy": "delete",
                "compression.type": "producer",
                "segment.bytes": "104857600",
                "min.insync.replicas": "1",
                "retention.ms": "-1",
            },
        )
    ]


async def test_log_is_pruned_at_intervals_and_the_next_coordinator_has_everything() -> None:
    world = World()
    await world.lead()
    for key in (A0, A1):
        await world.coordinator.initialize(key, state_epoch=1, start_offset=0)
    for offset in range(501):
        for key in (A0, A1):
            await world.coordinator.write(key, change(StateBatch(offset, offset, 2, 1), start_offset=0))
    states = dict(world.coordinator.machines[0].states)
    world.timers.advance_ms(300_000)
    assert world.log.starts == {0: 1002}
    assert b'last_pruned_offset{partition="0"} 1002' in render(world.registry)
    world.coordinator.resigned(0)
    await world.lead(epoch=3)
    reloaded = world.coordinator.machines[0].states
    assert {key: state.shown() for key, state in reloaded.items()} == {
        key: state.shown() for key, state in states.items()
    }


async def test_refused_pruning_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    await world.lead()
    await world.coordinator.initialize(A0, state_epoch=1, start_offset=0)
    await world.coordinator.delete(A0)
    delete_before = world.log.delete_before

    def refuse(partition: int, offset: int) -> None:
        raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE, "beyond the high watermark")

    world.log.delete_before = refuse  # type: ignore[method-assign]
    world.timers.advance_ms(300_000)
    assert "cannot delete records before offset 2" in caplog.text
    world.log.delete_before = delete_before  # type: ignore[method-assign]
    world.timers.advance_ms(300_000)
    assert world.log.starts == {0: 2}


async def test_states_of_a_deleted_topic_are_removed() -> None:
    world = World()
    await world.lead()
    await world.coordinator.initialize(A0, state_epoch=1, start_offset=0)
    world.show_orders(leader=DURING_DELETE)
    assert not world.coordinator.machines[0].states
    assert world.log.records[-1].value is None


async def test_metrics_show_writes_and_share_partitions() -> None:
    world = World()
    await world.lead()
    await world.ask(initialize(A0, A1))
    await world.ask(write())
    await asyncio.sleep(0)
    shown = render(world.registry)
    assert b"barnabas_share_coordinator_share_partitions 2" in shown
    assert b"kafka_server_share_coordinator_write_latency_ms_count 1" in shown


@pytest.mark.parametrize(
    ("text", "is_key"),
    [
        (coordinator_key(A0), True),
        (coordinator_key(A0._replace(group_id="a:b:c")), True),
        (coordinator_key(A0._replace(group_id=" ")), False),
        ("g:AAAAAAAAAAAAAAAAAAAAAQ:-1", False),
        ("g:AAAAAAAAAAAAAAAAAAAAAQ:x", False),
        ("g:AAAA:1", False),
        ("g:1", False),
        ("", False),
    ],
)
def test_text_that_names_a_share_partition(text: str, is_key: bool) -> None:
    assert is_coordinator_key(text) is is_key


def test_key_has_kafkas_form() -> None:
    assert coordinator_key(SharePartitionKey("g", TopicId(bytes(range(1, 17))), 3)) == "g:AQIDBAUGBwgJCgsMDQ4PEA:3"
