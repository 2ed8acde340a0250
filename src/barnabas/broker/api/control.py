"""Requests that only a controller sends: LeaderAndIsr v0 to v7, StopReplica v0 to v4, UpdateMetadata v0 to v8, as in Kafka 3.9.

Requests of KRaft controllers (v7, v8 with `is_kraft_controller`) are refused: a ZooKeeper cluster without migration has none.
"""

from collections.abc import Iterator, Sequence

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import ZERO_TOPIC_ID, BrokerId, ControllerEpoch, LeaderEpoch, TopicId, TopicPartition
from barnabas.base.words import AclOperation
from barnabas.broker.replication.control_requests import ControlRequests, PartitionOrder, StopOrder
from barnabas.broker.replication.state import PartitionLeadership
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import HandlerResult, serves
from barnabas.broker.server.refusal import refusal
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from barnabas.wire.messages.stop_replica import StopReplicaPartitionError, StopReplicaRequest, StopReplicaResponse
from barnabas.wire.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse


class ControlApi:
    def __init__(self, context: BrokerContext, control: ControlRequests) -> None:
        self._context = context
        self._control = control

    @serves("LeaderAndIsr", refusal())
    async def leader_and_isr(self, call: Call, request: LeaderAndIsrRequest) -> ApiMessage:
        self._check(call, request.is_kraft_controller)
        error, errors = await self._control.leader_and_isr(
            _orders(request), controller_epoch=request.controller_epoch, broker_epoch=request.broker_epoch
        )
        response = LeaderAndIsrResponse(error_code=error)
        if call.api_version < 5:
            response.partition_errors = [
                LeaderAndIsrPartitionError(topic_name=tp.topic, partition_index=tp.partition, error_code=code)
                for tp, code in errors.items()
            ]
            return response
        for topic in request.topic_states:
            answers = LeaderAndIsrTopicError(topic_id=topic.topic_id)
            response.topics.append(answers)
            for state in topic.partition_states:
                code = errors.get(TopicPartition(topic.topic_name, state.partition_index))
                if code is not None:
                    answers.partition_errors.append(
                        LeaderAndIsrPartitionError(partition_index=state.partition_index, error_code=code)
                    )
        return response

    @serves("StopReplica", refusal())
    async def stop_replica(self, call: Call, request: StopReplicaRequest) -> ApiMessage:
        self._check(call, request.is_kraft_controller)
        error, errors = await self._control.stop_replicas(
            _stop_orders(request), controller_epoch=request.controller_epoch, broker_epoch=request.broker_epoch
        )
        return StopReplicaResponse(
            error_code=error,
            partition_errors=[
                StopReplicaPartitionError(topic_name=tp.topic, partition_index=tp.partition, error_code=code)
                for tp, code in errors.items()
            ],
        )

    @serves("UpdateMetadata", refusal())
    def update_metadata(self, call: Call, request: UpdateMetadataRequest) -> HandlerResult:
        self._check(call, request.is_kraft_controller)
        error = self._control.check_epochs(controller_epoch=request.controller_epoch, broker_epoch=request.broker_epoch)
        if error is ErrorCode.NONE:
            change = self._context.metadata.update(request)
            self._control.stop_strays(_elsewhere(request, self._context.broker_id))
            if change.brokers_changed:
                self._control.leaders_changed_liveness()
        return UpdateMetadataResponse(error_code=error)

    def _check(self, call: Call, is_kraft_controller: bool) -> None:
        self._context.require_cluster(call, AclOperation.CLUSTER_ACTION)
        if is_kraft_controller:
            raise Refused(ErrorCode.INVALID_REQUEST, "a broker in ZooKeeper mode does not accept a KRaft controller")


def _elsewhere(
    request: UpdateMetadataRequest, broker_id: BrokerId
) -> Iterator[tuple[TopicPartition, bytes, int, Sequence[int]]]:
    """Yield partitions of which a broker has no replica."""
    for topic in request.topic_states:
        for state in topic.partition_states:
            if broker_id not in state.replicas:
                tp = TopicPartition(topic.topic_name, state.partition_index)
                yield tp, topic.topic_id, state.leader_epoch, state.replicas


def _orders(request: LeaderAndIsrRequest) -> Iterator[PartitionOrder]:
    for topic in request.topic_states:
        for state in topic.partition_states:
            tp = TopicPartition(topic.topic_name, state.partition_index)
            yield PartitionOrder(tp, TopicId(topic.topic_id), _state(state))
    for state in request.ungrouped_partition_states:
        yield PartitionOrder(TopicPartition(state.topic_name, state.partition_index), ZERO_TOPIC_ID, _state(state))


def _state(state: LeaderAndIsrPartitionState) -> PartitionLeadership:
    return PartitionLeadership(
        leader=BrokerId(state.leader),
        leader_epoch=LeaderEpoch(state.leader_epoch),
        isr=_brokers(state.isr),
        partition_epoch=state.partition_epoch,
        replicas=_brokers(state.replicas),
        controller_epoch=ControllerEpoch(state.controller_epoch),
        adding_replicas=_brokers(state.adding_replicas),
        removing_replicas=_brokers(state.removing_replicas),
        leader_recovery_state=state.leader_recovery_state,
        is_new=state.is_new,
    )


def _brokers(ids: list[int]) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, ids))


def _stop_orders(request: StopReplicaRequest) -> Iterator[StopOrder]:
    for topic_state in request.topic_states:
        for state in topic_state.partition_states:
            tp = TopicPartition(topic_state.topic_name, state.partition_index)
            yield StopOrder(tp, state.leader_epoch, state.delete_partition)
    for topic in request.topics:
        for index in topic.partition_indexes:
            yield StopOrder(TopicPartition(topic.name, index), -1, request.delete_partitions)
    for old in request.ungrouped_partitions:
        yield StopOrder(TopicPartition(old.topic_name, old.partition_index), -1, request.delete_partitions)
