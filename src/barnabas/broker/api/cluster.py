"""Requests to the controller: ElectLeaders v0 to v2 (KIP-460), AlterPartitionReassignments and ListPartitionReassignments
(KIP-455), and, from brokers, AlterPartition v2 to v3 (KIP-497, KIP-903), ControlledShutdown v0 to v3, AllocateProducerIds v0
(KIP-730).

UpdateFeatures is answered as a 3.9 broker in ZooKeeper mode answers it. UnregisterBroker is not served, as there: ApiVersions
does not list it, and the client's own library reports that.
"""

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import TopicId, TopicPartition
from barnabas.base.words import AclOperation
from barnabas.broker.controller.events import (
    AllocateProducerIds,
    AlterPartition,
    AlterPartitionReply,
    AlterReassignments,
    ControlledShutdown,
    ElectionType,
    Failure,
    ListReassignments,
    ProposedIsr,
)
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import serves
from barnabas.broker.server.refusal import refusal
from barnabas.broker.zookeeper_client.znodes import LeaderRecoveryState
from barnabas.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from barnabas.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ResponsePartitionData,
    ResponseTopicData,
)
from barnabas.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)
from barnabas.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from barnabas.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from barnabas.wire.messages.update_features import (
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)


class ClusterApi:
    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    # -- for operators ------------------------------------------------------------------------------------------------

    @serves("ElectLeaders", refusal("replica_election_results.partition_result <- topic_partitions.partitions"))
    async def elect_leaders(self, call: Call, request: ElectLeadersRequest) -> ApiMessage:
        self._context.require_cluster(call, AclOperation.ALTER)
        try:
            election = ElectionType(request.election_type)
        except ValueError:
            raise Refused(ErrorCode.INVALID_REQUEST, f"election type {request.election_type} is unknown") from None
        partitions: list[TopicPartition] | None = None
        if request.topic_partitions is not None:
            partitions = [TopicPartition(t.topic, p) for t in request.topic_partitions for p in t.partitions]
        outcomes = await self._context.controller.elect_leaders(partitions, election, timeout_ms=request.timeout_ms)
        topics: dict[str, ReplicaElectionResult] = {}
        for tp, failure in outcomes.items():
            if partitions is None and failure is not None and failure.code is ErrorCode.ELECTION_NOT_NEEDED:
                continue  # the request was about all partitions: report only those that needed an election
            result = PartitionResult(partition_id=tp.partition, error_message=None)
            if failure is not None:
                result.error_code, result.error_message = failure.code, failure.message
            topics.setdefault(tp.topic, ReplicaElectionResult(topic=tp.topic)).partition_result.append(result)
        return ElectLeadersResponse(replica_election_results=list(topics.values()))

    @serves("AlterPartitionReassignments", refusal("responses.partitions <- topics.partitions"))
    async def alter_reassignments(self, call: Call, request: AlterPartitionReassignmentsRequest) -> ApiMessage:
        self._context.require_cluster(call, AclOperation.ALTER)
        targets: dict[TopicPartition, tuple[int, ...] | None] = {}
        rejected: dict[TopicPartition, Failure | None] = {}
        for topic in request.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition_index)
                target = None if partition.replicas is None else tuple(partition.replicas)
                if not request.allow_replication_factor_change and self._changes_factor(tp, target):
                    rejected[tp] = Failure(
                        ErrorCode.INVALID_REPLICATION_FACTOR, "the reassignment would change the replication factor"
                    )
                else:
                    targets[tp] = target
        accepted = await self._context.controller.call(AlterReassignments(targets))
        outcomes = {**rejected, **accepted}
        response = AlterPartitionReassignmentsResponse(
            error_message=None, allow_replication_factor_change=request.allow_replication_factor_change
        )
        for topic in request.topics:
            answers = ReassignableTopicResponse(name=topic.name)
            response.responses.append(answers)
            for partition in topic.partitions:
                failure = outcomes[TopicPartition(topic.name, partition.partition_index)]
                answers.partitions.append(
                    ReassignablePartitionResponse(
                        partition_index=partition.partition_index,
                        error_code=failure.code if failure is not None else ErrorCode.NONE,
                        error_message=failure.message if failure is not None else None,
                    )
                )
        return response

    def _changes_factor(self, tp: TopicPartition, target: tuple[int, ...] | None) -> bool:
        """Whether the number of replicas would change. During a reassignment, compare with the target's number."""
        known = self._context.controller.machine.context.assignment(tp).target
        return target is not None and bool(known) and len(known) != len(target)

    @serves("ListPartitionReassignments", refusal())
    async def list_reassignments(self, call: Call, request: ListPartitionReassignmentsRequest) -> ApiMessage:
        self._context.require_cluster(call, AclOperation.DESCRIBE)
        partitions: tuple[TopicPartition, ...] | None = None
        if request.topics is not None:
            partitions = tuple(TopicPartition(t.name, p) for t in request.topics for p in t.partition_indexes)
        ongoing = await self._context.controller.call(ListReassignments(partitions))
        topics: dict[str, OngoingTopicReassignment] = {}
        for tp, assignment in ongoing.items():
            topics.setdefault(tp.topic, OngoingTopicReassignment(name=tp.topic)).partitions.append(
                OngoingPartitionReassignment(
                    partition_index=tp.partition,
                    replicas=list(assignment.replicas),
                    adding_replicas=list(assignment.adding),
                    removing_replicas=list(assignment.removing),
                )
            )
        return ListPartitionReassignmentsResponse(error_message=None, topics=list(topics.values()))

    @serves("UpdateFeatures", refusal())
    async def update_features(self, call: Call, request: UpdateFeaturesRequest) -> ApiMessage:
        self._context.require_cluster(call, AclOperation.ALTER)
        outcomes = await self._context.controller.update_features(
            [update.feature for update in request.feature_updates]
        )
        if call.api_version >= 2 and outcomes:
            # These versions have no field for single features: without a top-level error, the client would assume success.
            failure = next(iter(outcomes.values()))
            message = f"The update failed for all features since the following feature had an error: {failure.message}"
            return UpdateFeaturesResponse(error_code=failure.code, error_message=message)
        return UpdateFeaturesResponse(
            error_message=None,
            results=[
                UpdatableFeatureResult(feature=name, error_code=failure.code, error_message=failure.message)
                for name, failure in outcomes.items()
            ],
        )

    # -- for brokers --------------------------------------------------------------------------------------------------

    @serves("AlterPartition", refusal())
    async def alter_partition(self, call: Call, request: AlterPartitionRequest) -> ApiMessage:
        self._context.require_cluster(call, AclOperation.CLUSTER_ACTION)
        proposals: dict[tuple[TopicId | str, int], ProposedIsr] = {}
        for topic in request.topics:
            for data in topic.partitions:
                members = data.new_isr_with_epochs
                proposals[TopicId(topic.topic_id), data.partition_index] = ProposedIsr(
                    leader_epoch=data.leader_epoch,
                    isr=tuple(m.broker_id for m in members) if members else tuple(data.new_isr),
                    partition_epoch=data.partition_epoch,
                    recovery=_recovery_state(data.leader_recovery_state),
                    isr_epochs=tuple(m.broker_epoch for m in members) if members else None,
                )
        proposed = AlterPartition(request.broker_id, request.broker_epoch, proposals, call.api_version)
        return _alter_partition_response(await self._context.controller.call(proposed))

    @serves("ControlledShutdown", refusal())
    async def controlled_shutdown(self, call: Call, request: ControlledShutdownRequest) -> ApiMessage:
        self._context.require_cluster(call, AclOperation.CLUSTER_ACTION)
        remaining = await self._context.controller.call(ControlledShutdown(request.broker_id, request.broker_epoch))
        return ControlledShutdownResponse(
            remaining_partitions=[
                RemainingPartition(topic_name=tp.topic, partition_index=tp.partition) for tp in remaining
            ]
        )

    @serves("AllocateProducerIds", refusal())
    async def allocate_producer_ids(self, call: Call, request: AllocateProducerIdsRequest) -> ApiMessage:
        self._context.require_cluster(call, AclOperation.CLUSTER_ACTION)
        block = await self._context.controller.call(AllocateProducerIds(request.broker_id, request.broker_epoch))
        return AllocateProducerIdsResponse(producer_id_start=block.first, producer_id_len=block.size)


def _recovery_state(number: int) -> LeaderRecoveryState:
    try:
        return LeaderRecoveryState(number)
    except ValueError:
        raise Refused(ErrorCode.INVALID_REQUEST, f"there is no leader recovery state {number}") from None


def _alter_partition_response(reply: AlterPartitionReply) -> AlterPartitionResponse:
    topics: dict[TopicId | str, ResponseTopicData] = {}
    for (topic_id, index), outcome in reply.partitions.items():
        assert isinstance(topic_id, bytes)
        topic = topics.setdefault(topic_id, ResponseTopicData(topic_id=topic_id))
        data = ResponsePartitionData(partition_index=index)
        topic.partitions.append(data)
        if isinstance(outcome, ErrorCode):
            data.error_code = outcome
            continue
        data.leader_id = outcome.leader
        data.leader_epoch = outcome.leader_epoch
        data.isr = list(outcome.isr)
        data.leader_recovery_state = outcome.recovery
        data.partition_epoch = outcome.partition_epoch
    return AlterPartitionResponse(error_code=reply.error, topics=list(topics.values()))
