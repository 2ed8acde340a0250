"""WriteTxnMarkers and DescribeProducers on real logs: a marker ends an open transaction once, and groups get theirs in
order."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.base.config.log_config import LogConfig
from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import BrokerId, LeaderEpoch, TopicPartition
from barnabas.base.metrics.registry import Registry
from barnabas.base.topics import GROUP_METADATA_TOPIC
from barnabas.base.words import AclOperation
from barnabas.broker.api.producers import ProducersApi
from barnabas.broker.api.txn_markers import TxnMarkersApi
from barnabas.broker.replication.appends import AppendEntry
from barnabas.broker.replication.machine import PartitionMachine
from barnabas.broker.replication.manager import ReplicaManager
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.state import PartitionLeadership
from barnabas.broker.storage.environment import LogEnvironment
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.log_types import Origin
from barnabas.broker.storage.recovery import open_log
from barnabas.broker.transactions.state import Identity
from barnabas.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from barnabas.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from barnabas.wire.records import BatchBuilder
from tests.manual_time import ManualClock, ManualTimers
from tests.support.handlers import handler_of
from tests.unit.broker.transactions.txn_harness import A0, A1

OFFSETS = TopicPartition(GROUP_METADATA_TOPIC, 4)
PRODUCER = Identity(7, 3)
ME = BrokerId(1)


class World:
    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.replicas = ReplicaManager(
            ME,
            clock=self.clock,
            timers=ManualTimers(self.clock),
            registry=Registry(),
            is_known=lambda tp: False,
            submit_isr_change=lambda partition, proposal: None,
            prefers_replica=lambda partition, params, offset: None,
            fetch_bytes_max=1 << 20,
        )
        self._folder = folder
        self._env = LogEnvironment(clock=self.clock)
        self.marked: list[tuple[int, int, int, bool, int]] = []
        self.denied: set[AclOperation] = set()
        for partition in (A0, A1, OFFSETS):
            self._lead(partition)
        context: Any = SimpleNamespace(
            replicas=self.replicas,
            clock=self.clock,
            config=SimpleNamespace(request_timeout_ms=1000),
            allows=lambda call, operation, resource, name: operation not in self.denied,
            allows_topic=lambda call, operation, name: operation not in self.denied,
            require_cluster=self._require_cluster,
            metadata=SimpleNamespace(topic=lambda name: object() if name in ("a", GROUP_METADATA_TOPIC) else None),
        )
        self.api = TxnMarkersApi(context, self._note)
        self.producers = ProducersApi(context)

    def _require_cluster(self, call: object, operation: AclOperation) -> None:
        if operation in self.denied:
            raise Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    def _lead(self, tp: TopicPartition) -> None:
        machine = PartitionMachine(local_broker=ME, replica_lag_time_max_ms=1000)
        partition = Partition(tp, machine, self.clock, on_high_watermark=lambda partition: None)
        partition.attach(open_log(str(self._folder / str(tp)), config=LogConfig(), env=self._env, partition=tp))
        state = PartitionLeadership(
            leader=ME, leader_epoch=LeaderEpoch(0), isr=(ME,), partition_epoch=0, replicas=(ME,)
        )
        partition.become_leader(state, now_ms=self.clock.now_ms())
        self.replicas.hosted.add(partition)

    def _note(self, partition: int, producer_id: int, producer_epoch: int, *, committed: bool, offset: int) -> None:
        self.marked.append((partition, producer_id, producer_epoch, committed, offset))

    def log(self, tp: TopicPartition) -> Log:
        partition = self.replicas.hosted.get(tp)
        assert partition is not None
        return partition.local_log

    def produce(self, tp: TopicPartition, identity: Identity, sequence: int) -> None:
        builder = BatchBuilder(
            producer_id=identity.producer_id, producer_epoch=identity.epoch, base_sequence=sequence, transactional=True
        )
        builder.append(b"k", b"v", timestamp=self.clock.now_ms())
        self.replicas.appends.append(
            [AppendEntry(tp, bytearray(builder.build()))],
            required_acks=-1,
            timeout_ms=0,
            origin=Origin.CLIENT,
            on_done=lambda outcomes: None,
        )

    def write(
        self,
        *partitions: TopicPartition,
        identity: Identity = PRODUCER,
        commit: bool = True,
        version: int = 0,
        epoch: int = 0,
    ) -> list[int]:
        request = WriteTxnMarkersRequest(
            markers=[marker(*partitions, identity=identity, commit=commit, version=version, epoch=epoch)]
        )
        return errors(asyncio.run(self.api.write_here(request)))


def marker(
    *partitions: TopicPartition, identity: Identity = PRODUCER, commit: bool = True, version: int = 0, epoch: int = 0
) -> WritableTxnMarker:
    return WritableTxnMarker(
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        transaction_result=commit,
        topics=[WritableTxnMarkerTopic(name=tp.topic, partition_indexes=[tp.partition]) for tp in partitions],
        coordinator_epoch=epoch,
        transaction_version=version,
    )


def errors(response: WriteTxnMarkersResponse) -> list[int]:
    return [each.error_code for result in response.markers for topic in result.topics for each in topic.partitions]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    for partition in world.replicas:
        partition.local_log.close()


def test_a_marker_ends_the_open_transaction_and_lets_readers_on(world: World) -> None:
    world.produce(A0, PRODUCER, 0)
    assert world.log(A0).last_stable_offset == 0
    assert world.write(A0, A1) == [0, 0]
    assert world.log(A0).last_stable_offset == world.log(A0).log_end_offset == 2
    assert world.log(A1).log_end_offset == 1, "a partition without data gets its marker too"


def test_a_second_marker_does_no_harm(world: World) -> None:
    world.produce(A0, PRODUCER, 0)
    assert world.write(A0, commit=False) == [0]
    assert world.write(A0, commit=False) == [0]
    assert len(world.log(A0).aborted_transactions(0, 10)) == 1  # type: ignore[arg-type]


def test_an_older_coordinator_is_fenced(world: World) -> None:
    world.produce(A0, PRODUCER, 0)
    assert world.write(A0, epoch=5) == [0]
    assert world.write(A0, epoch=4) == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
    assert world.write(A0, identity=Identity(7, 2), epoch=5) == [ErrorCode.INVALID_PRODUCER_EPOCH]


def test_the_end_of_an_earlier_transaction_does_not_end_the_next(world: World) -> None:
    world.produce(A0, Identity(7, 4), 0)
    assert world.write(A0, identity=Identity(7, 4), version=2) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert world.log(A0).producers.has_ongoing_transaction(7, 4)
    assert world.write(A0, identity=Identity(7, 5), version=2) == [0]
    assert world.write(A0, identity=Identity(7, 5), version=2) == [0], "a retry"


def test_marker_for_a_partition_on_another_broker_is_refused(world: World) -> None:
    assert world.write(A0, TopicPartition("b", 0)) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert world.write(TopicPartition("b", 0)) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    partition = world.replicas.hosted.get(A0)
    assert partition is not None
    state = PartitionLeadership(
        leader=BrokerId(2),
        leader_epoch=LeaderEpoch(1),
        isr=(BrokerId(2),),
        partition_epoch=1,
        replicas=(ME, BrokerId(2)),
    )
    partition.become_follower(state)
    assert world.write(A0) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_the_group_coordinator_gets_markers_with_their_offsets(world: World) -> None:
    world.produce(OFFSETS, PRODUCER, 0)
    request = WriteTxnMarkersRequest(
        markers=[marker(OFFSETS, A0), marker(OFFSETS, identity=Identity(8, 0), commit=False), marker(OFFSETS, epoch=-1)]
    )
    assert errors(asyncio.run(world.api.write_here(request))) == [0, 0, 0, ErrorCode.TRANSACTION_COORDINATOR_FENCED]
    assert world.marked == [(4, 7, 3, True, 1), (4, 8, 0, False, 2)], "none for the marker that was refused"


def test_markers_need_cluster_action_or_alter(world: World) -> None:
    answers: list[Any] = []
    call: Any = SimpleNamespace(reply=answers.append)
    world.denied = {AclOperation.CLUSTER_ACTION}
    world.api.handle(call, WriteTxnMarkersRequest(markers=[marker(A0)]))
    world.denied = {AclOperation.ALTER}
    world.api.handle(call, WriteTxnMarkersRequest(markers=[marker(A0)]))
    assert [errors(answer) for answer in answers] == [[0], [0]]
    world.denied = {AclOperation.ALTER, AclOperation.CLUSTER_ACTION}
    with pytest.raises(Refused, match="CLUSTER_AUTHORIZATION_FAILED"):
        world.api.handle(call, WriteTxnMarkersRequest(markers=[marker(A0)]))
    response: Any = handler_of(world.api, "WriteTxnMarkers").refuse(
        WriteTxnMarkersRequest(markers=[marker(A0, A1)]), ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None
    )
    assert errors(response) == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * 2


def test_an_empty_request_is_answered(world: World) -> None:
    assert asyncio.run(world.api.write_here(WriteTxnMarkersRequest())) == WriteTxnMarkersResponse()


def test_producers_are_described_with_their_open_transactions(world: World) -> None:
    world.produce(A0, PRODUCER, 0)
    world.produce(A0, Identity(8, 0), 0)
    world.write(A0, epoch=6)
    request = DescribeProducersRequest(
        topics=[
            TopicRequest(name="a", partition_indexes=[0, 9]),
            TopicRequest(name="b", partition_indexes=[0]),
            TopicRequest(name="not/valid", partition_indexes=[0]),
        ]
    )
    response: Any = world.producers.describe(SimpleNamespace(), request)  # type: ignore[arg-type]
    known, elsewhere = response.topics[0].partitions
    assert {
        (
            each.producer_id,
            each.producer_epoch,
            each.last_sequence,
            each.coordinator_epoch,
            each.current_txn_start_offset,
        )
        for each in known.active_producers
    } == {(7, 3, 0, 6, -1), (8, 0, 0, -1, 1)}
    assert elsewhere.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert response.topics[1].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert response.topics[2].partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    world.denied = {AclOperation.READ}
    response = world.producers.describe(SimpleNamespace(), request)  # type: ignore[arg-type]
    assert response.topics[0].partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
