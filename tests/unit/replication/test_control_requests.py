"""Control requests that are overtaken: what was carried out is told to those who must know."""

import asyncio
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from barnabas.broker import Broker
from barnabas.core.clock import ManualClock
from barnabas.core.config.log_config import LogConfig
from barnabas.core.errors import ErrorCode, LogDirFault
from barnabas.core.ids import ZERO_TOPIC_ID, BrokerEpoch, BrokerId, LeaderEpoch, TopicPartition
from barnabas.metrics.registry import Registry
from barnabas.replication.control_requests import SLICE_S, ControlRequests, PartitionOrder
from barnabas.replication.machine import PartitionMachine
from barnabas.replication.manager import ReplicaManager
from barnabas.replication.partition import Partition
from barnabas.replication.state import PartitionState
from barnabas.runtime.timers import ManualTimers
from barnabas.storage.environment import LogEnvironment
from barnabas.storage.log import Log
from barnabas.storage.manager import LogManager
from barnabas.storage.recovery import open_log

ME = BrokerId(1)


class Logs:
    """Each log that is made takes its time."""

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

    def has_offline_dirs(self) -> bool:
        return False

    def checkpointed_high_watermark(self, partition: TopicPartition) -> int:
        return 0


def make(folder: Path, *, create_ms: int = 0) -> ControlRequests:
    clock = ManualClock()
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
        Logs(folder, clock, create_ms=create_ms),
        clock,
        broker_epoch=lambda: BrokerEpoch(1),
        make_machine=lambda tp: PartitionMachine(local_broker=ME, replica_lag_time_max_ms=1000),
        is_alive=lambda broker: True,
        load_settings=load_settings,
    )


def lead(number: int) -> PartitionOrder:
    state = PartitionState(leader=ME, leader_epoch=LeaderEpoch(3), isr=(ME,), partition_epoch=0, replicas=(ME,))
    return PartitionOrder(TopicPartition("t", number), ZERO_TOPIC_ID, state)


def follow(number: int) -> PartitionOrder:
    leader = BrokerId(2)
    replicas = (ME, leader)
    state = PartitionState(
        leader=leader, leader_epoch=LeaderEpoch(3), isr=replicas, partition_epoch=0, replicas=replicas
    )
    return PartitionOrder(TopicPartition("t", number), ZERO_TOPIC_ID, state)


def test_coordinators_hear_of_what_was_done_before_a_newer_controller_came(tmp_path: Path) -> None:
    """The newer controller repeats the same leader epochs, which change nothing any more: nobody else would tell."""

    async def run() -> None:
        control = make(tmp_path, create_ms=1)
        told: list[TopicPartition] = []
        control.subscribe(lambda led, followed: told.extend(partition.tp for partition in led))
        of_one_slice = round(SLICE_S * 1000)
        orders = [lead(number) for number in range(of_one_slice + 4)]
        request = asyncio.create_task(control.leader_and_isr(orders, controller_epoch=1, broker_epoch=1))
        await asyncio.sleep(0)
        # UpdateMetadata of the newer controller
        assert control.check_epochs(controller_epoch=2, broker_epoch=1) is ErrorCode.NONE
        error, errors = await request
        assert error is ErrorCode.STALE_CONTROLLER_EPOCH and len(errors) == of_one_slice
        assert told == list(errors)

    asyncio.run(run())


def test_partitions_to_lead_come_before_those_to_follow(tmp_path: Path) -> None:
    """Whatever their order in the request."""

    async def run() -> None:
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

    asyncio.run(run())


def test_coordinators_hear_of_partitions_whose_disk_failed(tmp_path: Path) -> None:
    """Else a group would go on here while its next coordinator counts its members out."""

    async def run() -> None:
        control = make(tmp_path)
        told: list[tuple[list[TopicPartition], list[TopicPartition]]] = []
        control.subscribe(lambda led, followed: told.append(([p.tp for p in led], [p.tp for p in followed])))
        broker = Broker({"zookeeper.connect": "localhost:1", "broker.id": "1", "log.dirs": "/nowhere"})
        broker.control, broker.replicas = control, control._replicas
        broker.fetchers = control._fetchers
        broker.logs = cast(LogManager, SimpleNamespace(live_dirs=[]))
        broker._loop = asyncio.get_running_loop()
        await control.leader_and_isr([lead(0)], controller_epoch=1, broker_epoch=1)
        broker._dir_failed("/nowhere", [TopicPartition("t", 0), TopicPartition("t", 1)])
        await asyncio.sleep(0)
        assert told == [([TopicPartition("t", 0)], []), ([], [TopicPartition("t", 0)])]

    asyncio.run(run())


def test_delete_records_on_a_disk_that_fails_is_answered(tmp_path: Path) -> None:
    async def run() -> None:
        control = make(tmp_path)
        await control.leader_and_isr([lead(0)], controller_epoch=1, broker_epoch=1)
        replicas = control._replicas
        partition = replicas.require(TopicPartition("t", 0))

        def fail(offset: int) -> int:
            raise LogDirFault("/nowhere", OSError(5, "Input/output error"))

        replicas._partitions[partition.tp] = cast(Partition, SimpleNamespace(delete_records=fail))
        answers: list[tuple[ErrorCode, int]] = []
        replicas.delete_records([(partition.tp, 0)], timeout_ms=0, on_done=answers.extend)
        assert answers == [(ErrorCode.KAFKA_STORAGE_ERROR, -1)]

    asyncio.run(run())
