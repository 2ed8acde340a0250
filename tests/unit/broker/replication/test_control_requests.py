"""Control requests that a newer controller interrupts: listeners are notified of the work that was done."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.base.chance import random_uuid
from barnabas.base.config.log_config import LogConfig
from barnabas.base.errors import ErrorCode, LogDirFault, Refused
from barnabas.base.ids import (
    ZERO_TOPIC_ID,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    TopicId,
    TopicPartition,
)
from barnabas.base.metrics.registry import Registry
from barnabas.broker.api.control import ControlApi
from barnabas.broker.replication.appends import AppendEntry
from barnabas.broker.replication.control import EPOCH_DURING_DELETE
from barnabas.broker.replication.control_requests import SLICE_S, ControlRequests, PartitionOrder, StopOrder
from barnabas.broker.replication.failed_dirs import FailedDirs
from barnabas.broker.replication.machine import PartitionMachine
from barnabas.broker.replication.manager import ReplicaManager
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.state import PartitionLeadership, Role
from barnabas.broker.storage.environment import LogEnvironment
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.log_types import Origin
from barnabas.broker.storage.manager import LogManager
from barnabas.broker.storage.recovery import open_log
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache
from barnabas.wire.messages.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from barnabas.wire.records import BatchBuilder
from tests.manual_time import ManualClock, ManualTimers
from tests.unit.broker.storage.manager import manager_support as storage

ME = BrokerId(1)


class Logs:
    """Each new log takes some time to create."""

    def __init__(self, folder: Path, clock: ManualClock, *, create_ms: int) -> None:
        self._folder = folder
        self._clock = clock
        self._create_ms = create_ms
        self._env = LogEnvironment(clock=clock)
        self.logs: dict[TopicPartition, Log] = {}

    def get(self, partition: TopicPartition) -> Log | None:
        return self.logs.get(partition)

    def get_or_create(self, partition: TopicPartition, **kwargs: object) -> Log:
        self._clock.advance_ms(self._create_ms)
        path = str(self._folder / str(partition))
        self.logs[partition] = open_log(path, config=LogConfig(), env=self._env, partition=partition)
        return self.logs[partition]

    def delete(self, partition: TopicPartition) -> None:
        self.logs.pop(partition).abandon()

    def when_forgotten(self, then: Callable[[], None]) -> None:
        then()


def make(folder: Path, *, create_ms: int = 0) -> ControlRequests:
    clock = ManualClock()
    return make_with(Logs(folder, clock, create_ms=create_ms), clock)


def make_with(logs: Logs | LogManager, clock: ManualClock) -> ControlRequests:
    replicas = ReplicaManager(
        ME,
        clock=clock,
        timers=ManualTimers(clock),
        registry=Registry(),
        is_known=lambda tp: False,
        submit_isr_change=lambda partition, proposal: None,
        prefers_replica=lambda partition, params, offset: None,
        fetch_bytes_max=1 << 20,
    )
    fetchers: Any = SimpleNamespace(
        remove=lambda partitions: None, add=lambda partition, replica, **kwargs: None, together=nullcontext
    )

    async def load_settings(topics: object) -> None:
        return None

    return ControlRequests(
        ME,
        replicas,
        fetchers,
        logs,
        clock,
        broker_epoch=lambda: BrokerEpoch(1),
        make_machine=lambda tp: PartitionMachine(local_broker=ME, replica_lag_time_max_ms=1000),
        is_alive=lambda broker: True,
        load_settings=load_settings,
    )


def lead(number: int) -> PartitionOrder:
    state = PartitionLeadership(leader=ME, leader_epoch=LeaderEpoch(3), isr=(ME,), partition_epoch=0, replicas=(ME,))
    return PartitionOrder(TopicPartition("t", number), ZERO_TOPIC_ID, state)


def follow(number: int) -> PartitionOrder:
    leader = BrokerId(2)
    replicas = (ME, leader)
    state = PartitionLeadership(
        leader=leader, leader_epoch=LeaderEpoch(3), isr=replicas, partition_epoch=0, replicas=replicas
    )
    return PartitionOrder(TopicPartition("t", number), ZERO_TOPIC_ID, state)


async def test_coordinators_are_notified_of_partial_work_when_a_newer_controller_interrupts(tmp_path: Path) -> None:
    """The newer controller repeats the same leader epochs, which change nothing any more, so this is the only notification."""

    control = make(tmp_path, create_ms=1)
    led_partitions: list[TopicPartition] = []
    control.subscribe(lambda led, followed: led_partitions.extend(partition.tp for partition in led))
    of_one_slice = round(SLICE_S * 1000)
    orders = [lead(number) for number in range(of_one_slice + 4)]
    request = asyncio.create_task(control.leader_and_isr(orders, controller_epoch=1, broker_epoch=1))
    await asyncio.sleep(0)
    # UpdateMetadata of the newer controller
    assert control.check_epochs(controller_epoch=2, broker_epoch=1) is ErrorCode.NONE
    error, errors = await request
    assert error is ErrorCode.STALE_CONTROLLER_EPOCH and len(errors) == of_one_slice
    assert led_partitions == list(errors)


async def test_partitions_to_lead_come_before_those_to_follow(tmp_path: Path) -> None:
    """The order in the request does not matter."""

    control = make(tmp_path)
    done: list[TopicPartition] = []
    carry_out = control._carry_out

    def note(order: PartitionOrder, led: list[Partition], followed: list[Partition]) -> ErrorCode:
        done.append(order.tp)
        return carry_out(order, led, followed)

    control._carry_out = note  # type: ignore[method-assign]
    orders = [follow(0), lead(1), follow(2), lead(3)]
    _, errors = await control.leader_and_isr(orders, controller_epoch=1, broker_epoch=1)
    assert [each.partition for each in done] == [1, 3, 0, 2]
    assert set(errors.values()) == {ErrorCode.NONE}


async def test_gap_is_early_after_another_leader_and_out_of_order_if_this_broker_kept_leading(tmp_path: Path) -> None:
    """Only a new leader may meet batches behind one that the former leader has refused."""
    replicas = (ME, BrokerId(2))
    clock = ManualClock()
    control = make_with(Logs(tmp_path, clock, create_ms=0), clock)

    async def elect(leader: int, epoch: int) -> None:
        state = PartitionLeadership(
            leader=BrokerId(leader),
            leader_epoch=LeaderEpoch(epoch),
            isr=(ME,),
            partition_epoch=0,
            replicas=replicas,
        )
        order = PartitionOrder(TopicPartition("t", 0), ZERO_TOPIC_ID, state)
        _, errors = await control.leader_and_isr([order], controller_epoch=1, broker_epoch=1)
        assert errors == {order.tp: ErrorCode.NONE}

    def produce(sequence: int) -> ErrorCode:
        builder = BatchBuilder(producer_id=7, producer_epoch=0, base_sequence=sequence)
        builder.append(None, b"v", timestamp=0)
        outcomes: list[AppendEntry] = []
        control._replicas.appends.append(
            [AppendEntry(TopicPartition("t", 0), bytearray(builder.build()))],
            required_acks=1,
            timeout_ms=0,
            origin=Origin.CLIENT,
            on_done=outcomes.extend,
        )
        return outcomes[0].error

    await elect(ME, 0)
    assert produce(0) is ErrorCode.NONE
    await elect(ME, 1)
    assert produce(2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    await elect(2, 2)
    await elect(ME, 3)
    assert produce(2) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert [produce(1), produce(2)] == [ErrorCode.NONE] * 2
    clock.advance_ms(60_000)
    await elect(ME, 5)  # another broker led in epoch 4, and this broker missed it
    assert produce(4) is ErrorCode.NOT_ENOUGH_REPLICAS


async def test_coordinators_are_notified_of_partitions_whose_disk_failed(tmp_path: Path) -> None:
    """Otherwise a group would continue here while its next coordinator removes its members."""

    control = make(tmp_path)
    changes: list[tuple[list[TopicPartition], list[TopicPartition]]] = []
    control.subscribe(lambda led, followed: changes.append(([p.tp for p in led], [p.tp for p in followed])))
    reported: list[str] = []
    failures: list[BaseException] = []
    logs = SimpleNamespace(live_dirs=["/somewhere"])
    failed_dirs = FailedDirs(
        cast(LogManager, logs),
        control._replicas,
        control._fetchers,
        control,
        call_soon=asyncio.get_running_loop().call_soon,
        report=reported.append,
        fail=failures.append,
    )
    await control.leader_and_isr([lead(0)], controller_epoch=1, broker_epoch=1)
    failed_dirs.failed("/nowhere", [TopicPartition("t", 0), TopicPartition("t", 1)])
    assert reported == ["/nowhere"] and not failures
    await asyncio.sleep(0)
    assert changes == [([TopicPartition("t", 0)], []), ([], [TopicPartition("t", 0)])]
    logs.live_dirs = []
    failed_dirs.failed("/somewhere", [])
    assert reported == ["/nowhere"] and len(failures) == 1


async def test_delete_records_on_a_disk_that_fails_is_answered(tmp_path: Path) -> None:
    control = make(tmp_path)
    await control.leader_and_isr([lead(0)], controller_epoch=1, broker_epoch=1)
    replicas = control._replicas
    partition = replicas.hosted.require(TopicPartition("t", 0))

    def fail(offset: int) -> int:
        raise LogDirFault("/nowhere", OSError(5, "Input/output error"))

    replicas.hosted.partitions[partition.tp] = cast(Partition, SimpleNamespace(delete_records=fail))
    answers: list[tuple[ErrorCode, int]] = []
    replicas.delete_records([(partition.tp, 0)], timeout_ms=0, on_done=answers.extend)
    assert answers == [(ErrorCode.KAFKA_STORAGE_ERROR, -1)]


def with_dead_disk(healthy: Path, dead: Path) -> storage.Broker:
    """A broker that starts while one of its directories has been replaced by something else."""
    dead.rename(dead.with_name("kept"))
    dead.write_text("no directory")
    return storage.Broker(healthy, dead)


async def test_partitions_on_the_healthy_disk_are_led_by_a_broker_that_starts_with_a_dead_one(tmp_path: Path) -> None:
    """The controller learns which replicas are offline: the rest of its request is carried out."""

    healthy, dead = tmp_path / "healthy", tmp_path / "dead"
    before = storage.Broker(healthy, dead)
    partitions = [TopicPartition("t", number) for number in range(8)]
    for each in partitions:
        before.manager.get_or_create(each, topic_id=None, is_new=True)
    on_dead = {log.partition for log in before.manager if log.log_dir == str(dead)}
    assert len(on_dead) == 4
    before.manager.shutdown()

    after = with_dead_disk(healthy, dead)
    control = make_with(after.manager, after.clock)
    led_partitions: list[TopicPartition] = []
    control.subscribe(lambda led, followed: led_partitions.extend(partition.tp for partition in led))
    orders = [lead(number) for number in range(8)]
    error, errors = await control.leader_and_isr(orders, controller_epoch=1, broker_epoch=1)
    assert error is ErrorCode.NONE
    assert errors == {each: ErrorCode.KAFKA_STORAGE_ERROR if each in on_dead else ErrorCode.NONE for each in partitions}
    assert set(led_partitions) == set(partitions) - on_dead
    assert {each.tp for each in control._replicas if each.is_leader} == set(partitions) - on_dead
    # Clients learn that the disk failed, and do not look for another broker forever.
    with pytest.raises(Refused) as refused:
        control._replicas.hosted.require(min(on_dead)).leader_log()
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    after.manager.shutdown()


async def test_partition_on_a_dead_disk_is_not_reported_as_deleted(tmp_path: Path) -> None:
    """The log comes back with the repaired disk: the controller must ask for the deletion again then."""

    healthy, dead = tmp_path / "healthy", tmp_path / "dead"
    before = storage.Broker(healthy, dead)
    for number in range(2):
        before.manager.get_or_create(TopicPartition("t", number), topic_id=None, is_new=True)
    [lost] = [log.partition for log in before.manager if log.log_dir == str(dead)]
    [kept] = [log.partition for log in before.manager if log.log_dir == str(healthy)]
    before.manager.shutdown()

    after = with_dead_disk(healthy, dead)
    control = make_with(after.manager, after.clock)
    orders = [StopOrder(each, EPOCH_DURING_DELETE, delete=True) for each in (lost, kept)]
    stopping = asyncio.ensure_future(control.stop_replicas(orders, controller_epoch=1, broker_epoch=1))
    await asyncio.sleep(0.01)
    # The checkpoints still name the topic: a topic of the same name must not be created until they do not.
    assert not stopping.done()
    after.run()
    error, errors = await stopping
    assert error is ErrorCode.NONE
    assert errors == {lost: ErrorCode.KAFKA_STORAGE_ERROR, kept: ErrorCode.NONE}
    assert after.manager.get(kept) is None
    after.manager.shutdown()


async def test_log_of_another_topic_with_the_same_name_is_refused_and_the_others_are_opened(tmp_path: Path) -> None:
    broker = storage.Broker(tmp_path)
    broker.manager.get_or_create(TopicPartition("t", 0), topic_id=TopicId(random_uuid()), is_new=True)
    control = make_with(broker.manager, broker.clock)
    orders = [lead(number)._replace(topic_id=TopicId(random_uuid())) for number in range(2)]
    error, errors = await control.leader_and_isr(orders, controller_epoch=1, broker_epoch=1)
    assert error is ErrorCode.NONE
    assert list(errors.values()) == [ErrorCode.INCONSISTENT_TOPIC_ID, ErrorCode.NONE]
    broker.manager.shutdown()


async def test_leader_that_cannot_write_its_topic_id_without_a_descriptor_goes_on_leading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition was offline until the next start, although the broker had all that it needed."""

    control = make(tmp_path)
    await control.leader_and_isr([lead(0)], controller_epoch=1, broker_epoch=1)
    order = lead(0)._replace(topic_id=TopicId(random_uuid()))
    with monkeypatch.context() as patch:
        patch.setattr("barnabas.broker.storage.log.write_partition_metadata", storage.has_no_descriptor)
        _, errors = await control.leader_and_isr([order], controller_epoch=1, broker_epoch=1)
    (partition,) = control._replicas
    assert list(errors.values()) == [ErrorCode.NONE]
    assert (partition.machine.role, partition.local_log.topic_id) == (Role.LEADER, None)
    await control.leader_and_isr([order], controller_epoch=1, broker_epoch=1)
    assert partition.local_log.topic_id == order.topic_id


async def test_leader_of_a_former_topic_with_the_same_name_stops_in_any_epoch(tmp_path: Path) -> None:
    """Its replica was moved away, and the topic deleted and created again, while it was disconnected: epochs began at 0
    again."""

    control = make(tmp_path)
    old, new = TopicId(random_uuid()), TopicId(random_uuid())
    orders = [lead(number)._replace(topic_id=old) for number in range(3)]
    await control.leader_and_isr(orders, controller_epoch=1, broker_epoch=1)
    elsewhere = [(TopicPartition("t", number), id_, 0, [2, 3]) for number, id_ in enumerate((old, new, ZERO_TOPIC_ID))]
    control.stop_strays(elsewhere)
    assert [each.machine.role for each in control._replicas] == [Role.LEADER, Role.IDLE, Role.LEADER]


async def test_leader_whose_replica_was_moved_while_it_was_disconnected_stops(tmp_path: Path) -> None:
    """Only the metadata shows it: a broker gets no LeaderAndIsr and no StopReplica for partitions without a replica on it."""

    control = make(tmp_path)
    followed_partitions: list[TopicPartition] = []
    control.subscribe(lambda led, followed: followed_partitions.extend(partition.tp for partition in followed))
    await control.leader_and_isr([lead(0), lead(1), follow(2)], controller_epoch=1, broker_epoch=1)
    machines = {each.tp.partition: each.machine for each in control._replicas}
    followed_partitions.clear()
    context = SimpleNamespace(broker_id=ME, metadata=MetadataCache(), require_cluster=lambda call, operation: None)
    api = ControlApi(cast(Any, context), control)

    def tell(*states: tuple[int, int, list[int]]) -> None:
        partitions = [
            UpdateMetadataPartitionState(partition_index=number, leader=2, leader_epoch=epoch, replicas=replicas)
            for number, epoch, replicas in states
        ]
        topic = UpdateMetadataTopicState(topic_name="t", partition_states=partitions)
        request = UpdateMetadataRequest(controller_id=2, controller_epoch=1, broker_epoch=1, topic_states=[topic])
        api.update_metadata(cast(Any, None), request)

    tell((0, 3, [2, 3]), (1, 4, [2, ME]), (9, 4, [2, 3]))
    assert [machines[number].role for number in range(3)] == [Role.LEADER, Role.LEADER, Role.FOLLOWER]
    tell((0, 4, [2, 3]), (2, 4, [2, 3]))
    assert [machines[number].role for number in range(3)] == [Role.IDLE, Role.LEADER, Role.IDLE]
    assert followed_partitions == [TopicPartition("t", 0), TopicPartition("t", 2)]
