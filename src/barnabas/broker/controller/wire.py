"""Translates between the machine's values and Kafka 3.9's messages: the controller's requests and brokers' answers.

Nothing is decided here. The versions are those that a 3.9 broker uses with its own `inter.broker.protocol.version`.
"""

from collections.abc import Iterable, Mapping

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import ZERO_TOPIC_ID, TopicPartition
from barnabas.base.words import SECURITY_PROTOCOLS
from barnabas.broker.controller.effects import (
    LeaderAndIsrState,
    MetadataState,
    SendLeaderAndIsr,
    SendStopReplica,
    SendUpdateMetadata,
)
from barnabas.broker.controller.events import LeaderAndIsrAnswered, StopReplicaAnswered, UpdateMetadataAnswered
from barnabas.broker.zookeeper_client.znodes import BrokerRegistration
from barnabas.wire.messages.leader_and_isr import (
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicState,
)
from barnabas.wire.messages.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
)
from barnabas.wire.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    UpdateMetadataTopicState,
)

LEADER_AND_ISR_VERSION = 7
UPDATE_METADATA_VERSION = 8
STOP_REPLICA_VERSION = 4


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    topics: dict[str, list[TopicPartition]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(partition)
    return topics


# --- LeaderAndIsr -----------------------------------------------------------------------------------------------------


def _leader_and_isr_states(effect: SendLeaderAndIsr) -> list[LeaderAndIsrTopicState]:
    return [
        LeaderAndIsrTopicState(
            topic_name=topic,
            topic_id=effect.topic_ids.get(topic, ZERO_TOPIC_ID),
            partition_states=[_leader_and_isr_state(each, effect.partitions[each]) for each in partitions],
        )
        for topic, partitions in _by_topic(effect.partitions).items()
    ]


def _leader_and_isr_state(partition: TopicPartition, state: LeaderAndIsrState) -> LeaderAndIsrPartitionState:
    leadership, assignment = state.leadership, state.assignment
    return LeaderAndIsrPartitionState(
        partition_index=partition.partition,
        controller_epoch=leadership.controller_epoch,
        leader=leadership.leader,
        leader_epoch=leadership.leader_epoch,
        isr=list(leadership.isr),
        partition_epoch=leadership.partition_epoch,
        replicas=list(assignment.replicas),
        adding_replicas=list(assignment.adding),
        removing_replicas=list(assignment.removing),
        is_new=state.is_new,
        leader_recovery_state=int(leadership.recovery),
    )


def leader_and_isr_answer(effect: SendLeaderAndIsr, response: LeaderAndIsrResponse) -> LeaderAndIsrAnswered:
    names: dict[bytes, str] = {topic_id: topic for topic, topic_id in effect.topic_ids.items()}
    return LeaderAndIsrAnswered(
        broker_id=effect.broker_id,
        broker_epoch=effect.broker_epoch,
        error=ErrorCode(response.error_code),
        partition_errors={
            TopicPartition(names[topic.topic_id], each.partition_index): ErrorCode(each.error_code)
            for topic in response.topics
            if topic.topic_id in names
            for each in topic.partition_errors
        },
    )


# --- UpdateMetadata ---------------------------------------------------------------------------------------------------


def _topic_states(effect: SendUpdateMetadata) -> list[UpdateMetadataTopicState]:
    return [
        UpdateMetadataTopicState(
            topic_name=topic,
            topic_id=effect.topic_ids.get(topic, ZERO_TOPIC_ID),
            partition_states=[_metadata_state(each, effect.partitions[each]) for each in partitions],
        )
        for topic, partitions in _by_topic(effect.partitions).items()
    ]


def _metadata_state(partition: TopicPartition, state: MetadataState) -> UpdateMetadataPartitionState:
    return UpdateMetadataPartitionState(
        partition_index=partition.partition,
        controller_epoch=state.controller_epoch,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        zk_version=state.partition_epoch,
        replicas=list(state.replicas),
        offline_replicas=list(state.offline_replicas),
    )


def _live_broker(broker: BrokerRegistration) -> UpdateMetadataBroker:
    return UpdateMetadataBroker(
        id=broker.id,
        endpoints=[
            UpdateMetadataEndpoint(
                port=each.port,
                host=each.host,
                listener=each.listener,
                security_protocol=SECURITY_PROTOCOLS.index(each.security_protocol),
            )
            for each in broker.endpoints
        ],
        rack=broker.rack,
    )


def update_metadata_answer(broker_id: int, response: UpdateMetadataResponse) -> UpdateMetadataAnswered:
    return UpdateMetadataAnswered(broker_id, ErrorCode(response.error_code))


# --- StopReplica ------------------------------------------------------------------------------------------------------


def stop_replica_request(effect: SendStopReplica, *, controller_id: int) -> StopReplicaRequest:
    return StopReplicaRequest(
        controller_id=controller_id,
        controller_epoch=effect.controller_epoch,
        broker_epoch=effect.broker_epoch,
        topic_states=[
            StopReplicaTopicState(
                topic_name=topic,
                partition_states=[
                    StopReplicaPartitionState(
                        partition_index=each.partition,
                        leader_epoch=effect.partitions[each].leader_epoch,
                        delete_partition=effect.partitions[each].delete,
                    )
                    for each in partitions
                ],
            )
            for topic, partitions in _by_topic(effect.partitions).items()
        ],
    )


def stop_replica_answer(effect: SendStopReplica, response: StopReplicaResponse) -> StopReplicaAnswered:
    """Return the answers for partitions whose data was to be deleted; the others need none."""
    answered: Mapping[TopicPartition, ErrorCode] = {
        TopicPartition(each.topic_name, each.partition_index): ErrorCode(each.error_code)
        for each in response.partition_errors
    }
    error = ErrorCode(response.error_code)
    return StopReplicaAnswered(
        broker_id=effect.broker_id,
        broker_epoch=effect.broker_epoch,
        error=error,
        # A request that was refused as a whole names no partitions: none of them is deleted then.
        partition_errors={
            partition: answered.get(partition, error) for partition, state in effect.partitions.items() if state.delete
        },
    )


# --- the same news for several brokers --------------------------------------------------------------------------------


class Translator:
    """Translates a request that several brokers get only once."""

    def __init__(self, controller_id: int, listener: str) -> None:
        """`listener`: the listener over which brokers reach each other."""
        self._controller_id = controller_id
        self._listener = listener
        self._led: tuple[SendLeaderAndIsr, list[LeaderAndIsrTopicState]] | None = None
        self._last: tuple[SendUpdateMetadata, list[UpdateMetadataTopicState], list[UpdateMetadataBroker]] | None = None

    def leader_and_isr(self, effect: SendLeaderAndIsr) -> LeaderAndIsrRequest:
        # Brokers share these values, so comparing them is cheap.
        if (
            self._led is None
            or self._led[0].partitions != effect.partitions
            or self._led[0].topic_ids != effect.topic_ids
        ):
            self._led = (effect, _leader_and_isr_states(effect))
        return LeaderAndIsrRequest(
            controller_id=self._controller_id,
            controller_epoch=effect.controller_epoch,
            broker_epoch=effect.broker_epoch,
            topic_states=self._led[1],
            live_leaders=[
                LeaderAndIsrLiveLeader(broker_id=broker.id, host_name=endpoint.host, port=endpoint.port)
                for broker in effect.live_leaders
                if (endpoint := broker.endpoint(self._listener)) is not None
            ],
        )

    def update_metadata(self, effect: SendUpdateMetadata, broker_id: int) -> UpdateMetadataRequest:
        if self._last is None or self._last[0] is not effect:
            self._last = (effect, _topic_states(effect), [_live_broker(each) for each in effect.live_brokers])
        _, topic_states, live_brokers = self._last
        return UpdateMetadataRequest(
            controller_id=self._controller_id,
            controller_epoch=effect.controller_epoch,
            broker_epoch=effect.brokers[broker_id],
            topic_states=topic_states,
            live_brokers=live_brokers,
        )
