"""ISR changes on their way to the controller: the replica may be gone when the answer comes."""

import asyncio
from types import SimpleNamespace

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.metrics.registry import Registry
from barnabas.broker.replication.isr_changes import IsrChanges
from barnabas.broker.replication.machine import PartitionMachine
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.state import PartitionLeadership
from barnabas.wire.messages.alter_partition import AlterPartitionResponse, ResponsePartitionData, ResponseTopicData
from tests.manual_time import ManualClock

ORDERS = TopicPartition("orders", 0)
TOPIC_ID = b"o" * 16


async def test_answer_for_a_replica_that_was_deleted_meanwhile_is_dropped():
    machine = PartitionMachine(local_broker=1, replica_lag_time_max_ms=100)
    state = PartitionLeadership(leader=1, leader_epoch=5, isr=(1, 2), partition_epoch=10, replicas=(1, 2))
    machine.become_leader(state, log_end=0, now_ms=0)
    machine.record_append(1, 0)
    proposal = machine.tick(200, 1).propose
    assert proposal is not None
    partition = Partition(ORDERS, machine, ManualClock(), on_high_watermark=lambda _: None)
    partition.topic_id = TOPIC_ID
    settled, asked = [], asyncio.Event()

    async def controller(request):
        partition.log = None
        asked.set()
        answer = ResponsePartitionData(partition_index=0, leader_id=1, leader_epoch=5, isr=[1], partition_epoch=11)
        return AlterPartitionResponse(topics=[ResponseTopicData(topic_id=TOPIC_ID, partitions=[answer])])

    changes = IsrChanges(
        1,
        broker_epoch=lambda: 7,
        send=controller,
        on_settled=lambda *what: settled.append(what),
        clock=ManualClock(),
    )
    changes.submit(partition, proposal)
    task = asyncio.create_task(changes.run())
    await asked.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    assert settled == []
    task.cancel()


def lagged_behind():
    """A leader whose follower lacks a record, with its partition."""
    machine = PartitionMachine(local_broker=1, replica_lag_time_max_ms=100)
    state = PartitionLeadership(leader=1, leader_epoch=5, isr=(1, 2), partition_epoch=10, replicas=(1, 2))
    machine.become_leader(state, log_end=0, now_ms=0)
    machine.record_append(1, 0)
    partition = Partition(ORDERS, machine, ManualClock(), on_high_watermark=lambda _: None)
    partition.topic_id = TOPIC_ID
    partition.log = SimpleNamespace(log_end_offset=1)
    return machine, partition


def test_shrunk_isrs_and_refused_changes_are_counted():
    async def run(error_code):
        machine, partition = lagged_behind()
        settled, registry = asyncio.Event(), Registry()

        async def controller(request):
            answer = ResponsePartitionData(
                partition_index=0, leader_id=1, leader_epoch=5, isr=[1], partition_epoch=11, error_code=error_code
            )
            return AlterPartitionResponse(topics=[ResponseTopicData(topic_id=TOPIC_ID, partitions=[answer])])

        changes = IsrChanges(
            1,
            broker_epoch=lambda: 7,
            send=controller,
            on_settled=lambda *what: settled.set(),
            clock=ManualClock(),
            registry=registry,
        )
        changes.submit(partition, machine.tick(200, 1).propose)
        task = asyncio.create_task(changes.run())
        await settled.wait()
        task.cancel()
        name = "kafka_server_replica_manager_"
        return {
            each.name.removeprefix(name): metric.value
            for each in registry.families()
            for metric in each.series.values()
        }

    assert asyncio.run(run(0)) == {"isr_shrinks": 1, "isr_expands": 0, "failed_isr_updates": 0}
    refused = asyncio.run(run(ErrorCode.INVALID_UPDATE_VERSION))
    assert refused == {"isr_shrinks": 0, "isr_expands": 0, "failed_isr_updates": 1}


async def test_change_that_the_controller_could_not_make_is_sent_again_after_a_pause():
    machine, partition = lagged_behind()
    requests, asked_twice = [], asyncio.Event()

    async def controller(request):
        requests.append(request)
        await asyncio.sleep(0)
        if len(requests) == 2:
            asked_twice.set()
        answer = ResponsePartitionData(partition_index=0, error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        return AlterPartitionResponse(topics=[ResponseTopicData(topic_id=TOPIC_ID, partitions=[answer])])

    changes = IsrChanges(1, broker_epoch=lambda: 7, send=controller, on_settled=lambda *what: None, clock=ManualClock())
    changes.submit(partition, machine.tick(200, 1).propose)
    task = asyncio.create_task(changes.run())
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(requests) == 1
    await asyncio.wait_for(asked_twice.wait(), 10)
    assert requests[0] == requests[1]
    task.cancel()
