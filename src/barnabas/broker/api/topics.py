"""CreateTopics, v2 to v7; DeleteTopics, v1 to v6 (names, and ids from v6); CreatePartitions, v0 to v3.

Served by the controller; any other broker answers NOT_CONTROLLER, as Kafka does in ZooKeeper mode.
"""

from collections import Counter
from collections.abc import Sequence

from barnabas.base.config.describe import describe_topic
from barnabas.base.config.topic import check_not_by_hand, without_link
from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import ZERO_TOPIC_ID, TopicId
from barnabas.base.topics import CLUSTER_METADATA_TOPIC, is_internal
from barnabas.base.words import AclOperation, AclResourceType
from barnabas.broker.controller.events import Failure
from barnabas.broker.controller.topics import MorePartitions, NewTopic
from barnabas.broker.runtime.turns import in_turns
from barnabas.broker.security.authorizer import CLUSTER_NAME
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import serves
from barnabas.broker.server.refusal import refusal
from barnabas.broker.storage.log_append import read_only
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from barnabas.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from barnabas.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

#: KIP-599: from these versions on, requests over the quota are refused; before them they are executed, and the client waits.
_STRICT_CREATE, _STRICT_DELETE, _STRICT_CREATE_PARTITIONS = 6, 5, 3
#: Error code for settings that the caller may not describe.
_CONFIG_HIDDEN = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def refuse_delete(request: DeleteTopicsRequest, code: ErrorCode, message: str | None) -> ApiMessage:
    states = request.topics or [DeleteTopicState(name=name) for name in request.topic_names]
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(name=state.name, topic_id=state.topic_id, error_code=code, error_message=message)
            for state in states
        ]
    )


class TopicsApi:
    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    def _require_controller(self) -> None:
        if not self._context.controller.is_active:
            raise Refused(ErrorCode.NOT_CONTROLLER, "This is not the correct controller for this cluster.")

    # -- CreateTopics -------------------------------------------------------------------------------------------------

    @serves("CreateTopics", refusal("topics <- topics", configs=None))
    async def create(self, call: Call, request: CreateTopicsRequest) -> ApiMessage:
        self._require_controller()
        context = self._context
        results = {
            topic.name: CreatableTopicResult(name=topic.name, error_message=None, configs=None)
            for topic in request.topics
        }
        counts = Counter(topic.name for topic in request.topics)
        may_create_any = context.shows(call, AclOperation.CREATE, AclResourceType.CLUSTER, CLUSTER_NAME)
        wanted: list[NewTopic] = []
        for topic in request.topics:
            result = results[topic.name]
            if topic.name == CLUSTER_METADATA_TOPIC:
                result.error_code = ErrorCode.INVALID_REQUEST
                result.error_message = f"Creation of internal topic {topic.name} is prohibited."
                continue
            if not context.shows(call, AclOperation.DESCRIBE_CONFIGS, AclResourceType.TOPIC, topic.name):
                result.topic_config_error_code = _CONFIG_HIDDEN
            if counts[topic.name] > 1:
                result.error_code, result.error_message = (
                    ErrorCode.INVALID_REQUEST,
                    "Found multiple entries for this topic.",
                )
            elif not (may_create_any or context.allows_topic(call, AclOperation.CREATE, topic.name)):
                result.error_code, result.error_message = ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Authorization failed."
            else:
                try:
                    wanted.append(_new_topic(topic))
                except Refused as refusal:
                    result.error_code, result.error_message = refusal.code, refusal.message
        quota = context.mutation_quota(call, strict=call.api_version >= _STRICT_CREATE)
        created = await context.controller.create_topics(
            wanted, timeout_ms=request.timeout_ms, validate_only=request.validate_only, permit=quota.take
        )
        call.throttle_ms = quota.throttle_ms
        described: dict[tuple[tuple[str, str], ...], list[CreatableTopicConfigs]] = {}
        async for new_topic in in_turns(wanted):
            result, outcome = results[new_topic.name], created[new_topic.name]
            if outcome.failure is not None:
                result.error_code, result.error_message = outcome.failure.code, outcome.failure.message
                result.topic_config_error_code = ErrorCode.NONE
                continue
            result.topic_id = outcome.topic_id or ZERO_TOPIC_ID
            if not result.topic_config_error_code:
                # KIP-525: describe the new topic to clients that may see it. Topics with the same settings share a description.
                result.num_partitions, result.replication_factor = outcome.partitions, outcome.replication_factor
                alike = tuple(new_topic.configs.items())
                if alike not in described:
                    described[alike] = self._configs(new_topic)
                result.configs = described[alike]
        return CreateTopicsResponse(topics=list(results.values()))

    def _configs(self, topic: NewTopic) -> list[CreatableTopicConfigs]:
        return [
            CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.is_sensitive,
            )
            for entry in describe_topic(self._context.dynamic, topic.configs)
        ]

    # -- DeleteTopics -------------------------------------------------------------------------------------------------

    @serves("DeleteTopics", refuse_delete)
    async def delete(self, call: Call, request: DeleteTopicsRequest) -> ApiMessage:
        self._require_controller()
        context = self._context
        if not context.config.delete_topic_enable:
            code = ErrorCode.TOPIC_DELETION_DISABLED if call.api_version >= 3 else ErrorCode.INVALID_REQUEST
            raise Refused(code, "Topic deletion is disabled.")
        states = request.topics or [DeleteTopicState(name=name) for name in request.topic_names]
        results = [self._resolve(call, state) for state in states]
        names = Counter(result.name for result in results if result.name is not None)
        for result in results:
            if result.name is not None and names[result.name] > 1:
                result.error_code = ErrorCode.INVALID_REQUEST
                result.error_message = "Found multiple entries for this topic."
        doomed = [r for r in results if r.name is not None and not r.error_code]
        quota = context.mutation_quota(call, strict=call.api_version >= _STRICT_DELETE)
        outcomes = await context.controller.delete_topics(
            [r.name for r in doomed if r.name is not None], timeout_ms=request.timeout_ms, permit=quota.take
        )
        call.throttle_ms = quota.throttle_ms
        for result in doomed:
            failure = outcomes[result.name or ""]
            if failure is not None:
                result.error_code, result.error_message = failure.code, failure.message
        return DeleteTopicsResponse(responses=results)

    def _resolve(self, call: Call, state: DeleteTopicState) -> DeletableTopicResult:
        context = self._context
        result = DeletableTopicResult(name=state.name, topic_id=state.topic_id)
        by_id = state.name is None
        if by_id:
            result.name = context.metadata.topic_name(TopicId(state.topic_id))
            if result.name is None:
                result.error_code = ErrorCode.UNKNOWN_TOPIC_ID
                return result
        elif state.topic_id != ZERO_TOPIC_ID:
            result.error_code = ErrorCode.INVALID_REQUEST
            result.error_message = "Topic name and topic ID can not both be specified."
            return result
        assert result.name is not None
        if by_id and not context.allows_topic(call, AclOperation.DESCRIBE, result.name):
            result.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            result.name = None  # hidden from clients that may not describe the topic
        elif not context.allows_topic(call, AclOperation.DELETE, result.name):
            result.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif context.metadata.topic(result.name) is None:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif (link := context.link_of(result.name)) is not None:
            refusal = read_only(result.name, link)
            result.error_code, result.error_message = refusal.code, refusal.message
        else:
            result.topic_id = context.metadata.topic_id(result.name)
        return result

    # -- CreatePartitions ---------------------------------------------------------------------------------------------

    @serves("CreatePartitions", refusal("results <- topics"))
    async def create_partitions(self, call: Call, request: CreatePartitionsRequest) -> ApiMessage:
        self._require_controller()
        counts = Counter(topic.name for topic in request.topics)
        results = {topic.name: CreatePartitionsTopicResult(name=topic.name) for topic in request.topics}
        wanted: list[MorePartitions] = []
        for topic in request.topics:
            failure = self._refusal(call, topic.name, counts)
            if failure is not None:
                results[topic.name].error_code, results[topic.name].error_message = failure.code, failure.message
                continue
            by_hand: Sequence[Sequence[int]] | None = None
            if topic.assignments is not None:
                by_hand = [assignment.broker_ids for assignment in topic.assignments]
            wanted.append(MorePartitions(topic.name, topic.count, by_hand))
        quota = self._context.mutation_quota(call, strict=call.api_version >= _STRICT_CREATE_PARTITIONS)
        outcomes = await self._context.controller.create_partitions(
            wanted, timeout_ms=request.timeout_ms, validate_only=request.validate_only, permit=quota.take
        )
        call.throttle_ms = quota.throttle_ms
        for name, failure in outcomes.items():
            if failure is not None:
                results[name].error_code, results[name].error_message = failure.code, failure.message
        return CreatePartitionsResponse(results=list(results.values()))

    def _refusal(self, call: Call, name: str, counts: Counter[str]) -> Failure | None:
        if counts[name] > 1:
            return Failure(ErrorCode.INVALID_REQUEST, "Duplicate topic in request.")
        if not self._context.allows_topic(call, AclOperation.ALTER, name):
            return Failure(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "The topic authorization is failed.")
        if is_internal(name) and self._context.metadata.topic(name) is None:
            return Failure(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        if (link := self._context.link_of(name)) is not None:
            refusal = read_only(name, link)
            return Failure(refusal.code, refusal.message)
        return None


def _new_topic(topic: CreatableTopic) -> NewTopic:
    if topic.assignments and (topic.num_partitions != -1 or topic.replication_factor != -1):
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            "Both numPartitions or replicationFactor and replicasAssignments were set. Both cannot be used at the same time.",
        )
    configs: dict[str, str] = {}
    for entry in topic.configs:
        if entry.value is None:
            raise Refused(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {entry.name}")
        configs[entry.name] = entry.value
    check_not_by_hand(configs)
    assignment = {replicas.partition_index: tuple(replicas.broker_ids) for replicas in topic.assignments}
    if len(assignment) != len(topic.assignments):
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "a partition is assigned twice")
    return NewTopic(topic.name, topic.num_partitions, topic.replication_factor, assignment, without_link(configs))
