"""Metadata, v0 to v13; DescribeCluster, v0 to v2; DescribeTopicPartitions, v0 (KIP-966).

Any broker answers from its cache. A missing topic may be created (`auto.create.topics.enable`); unlike Kafka, the answer waits
for the new topic's leaders, up to `AUTO_CREATION_WAIT_S`, so that the client need not try again.
Eligible leader replicas belong to KRaft and are always null here.
"""

from bisect import bisect_left
from struct import Struct

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import ZERO_TOPIC_ID, BrokerId, TopicId
from barnabas.base.topics import CLUSTER_METADATA_TOPIC, check_topic_name, is_internal
from barnabas.base.words import AclOperation, AclResourceType
from barnabas.broker.api.metadata_encoding import KnownAnswers, Question, encoded_partitions
from barnabas.broker.runtime.turns import SLICE_ELEMENTS, in_turns
from barnabas.broker.security.authorizer import CLUSTER_NAME
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import HandlerResult, serves
from barnabas.broker.server.large import is_long
from barnabas.broker.server.refusal import refusal
from barnabas.broker.zookeeper_client.metadata_cache import PartitionMetadata, TopicImage
from barnabas.broker.zookeeper_client.metadata_waits import wait_until_shown
from barnabas.wire.frame import response_writer
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from barnabas.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    ResponseCursor,
)
from barnabas.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)

AUTO_CREATION_WAIT_S = 2.0
#: From this version on clients may ask by id. v10 and v11 have ids in requests too, but their responses need names.
BY_ID_FROM_VERSION = 12
#: Answers about more topics are not kept.
KNOWN_TOPICS_MAX = 100
#: Size and correlation id of a frame.
HEAD = Struct(">ii")


def _is_by_id(wanted: MetadataRequestTopic) -> bool:
    """Whether the id counts, not the name, as in Kafka: the Java client sends an id with an empty name."""
    return wanted.topic_id != ZERO_TOPIC_ID


def refuse_metadata(request: MetadataRequest, code: ErrorCode, message: str | None) -> ApiMessage:
    return MetadataResponse(
        error_code=code,
        topics=[
            MetadataResponseTopic(error_code=code, name=topic.name or "", topic_id=topic.topic_id)
            for topic in request.topics or ()
        ],
    )


class MetadataApi:
    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._known = KnownAnswers(context.metadata)

    # -- Metadata -----------------------------------------------------------------------------------------------------

    @serves("Metadata", refuse_metadata)
    def handle(self, call: Call, request: MetadataRequest) -> HandlerResult:
        if call.api_version < BY_ID_FROM_VERSION and any(t.name is None or _is_by_id(t) for t in request.topics or ()):
            raise Refused(ErrorCode.INVALID_REQUEST, f"Metadata v{call.api_version} asks for topics by name only")
        missing = self._to_create(call, request)
        if missing:
            return self._create_then_answer(call, request, missing)
        if request.topics is None or (call.api_version == 0 and not request.topics):
            return self._answer_all(call, request)
        if (
            request.include_topic_authorized_operations
            or request.include_cluster_authorized_operations
            or call.meter is not None
            or call.is_sliced
            or len(request.topics) > KNOWN_TOPICS_MAX
        ):
            return self._answer(call, request, {})
        names = tuple([None if _is_by_id(topic) else topic.name for topic in request.topics])
        question = Question(call.api_version, call.channel.listener_name, names)
        known = self._known.get(question)
        # Which topics the sender may see can change without the metadata: ask each time. Only answers by name are kept.
        if known is not None and all(self._shows(call, name) for name in names):
            call.reply_parts([bytearray(HEAD.pack(len(known) + 4, call.correlation_id)) + known])
            return None
        response = self._answer(call, request, {})
        if None in names or any(topic.error_code for topic in response.topics) or is_long(response):
            return response
        (frame,) = response_writer(MetadataResponse, call.api_version)(response, call.correlation_id)
        self._known.keep(question, frame[HEAD.size :])  # type: ignore[index]  # it has no refs
        call.reply_parts([frame])  # type: ignore[list-item]
        return None

    def _shows(self, call: Call, topic: str | None) -> bool:
        return topic is not None and self._context.shows(call, AclOperation.DESCRIBE, AclResourceType.TOPIC, topic)

    def _answer_all(self, call: Call, request: MetadataRequest) -> HandlerResult:
        response = self._without_topics(call, request)
        images = list(self._context.metadata.topics.values())
        with_operations = request.include_topic_authorized_operations

        async def topic_by_topic() -> MetadataResponse:
            response.topics = [
                self._topic(call, image, with_operations)
                async for image in in_turns(images)
                if self._shows(call, image.name)
            ]
            return response

        if len(images) > SLICE_ELEMENTS:
            return topic_by_topic()
        response.topics = [
            self._topic(call, image, with_operations) for image in images if self._shows(call, image.name)
        ]
        return response

    def _to_create(self, call: Call, request: MetadataRequest) -> list[str]:
        if (
            not request.topics
            or not request.allow_auto_topic_creation
            or not self._context.config.auto_create_topics_enable
        ):
            return []
        return [
            topic.name
            for topic in request.topics
            if topic.name is not None
            and topic.name != CLUSTER_METADATA_TOPIC
            and not _is_by_id(topic)
            and self._context.metadata.topic(topic.name) is None
            and self._shows(call, topic.name)
        ]

    async def _create_then_answer(self, call: Call, request: MetadataRequest, missing: list[str]) -> ApiMessage:
        errors: dict[str, ErrorCode] = {}
        valid: list[str] = []
        may_create_any = self._context.shows(call, AclOperation.CREATE, AclResourceType.CLUSTER, CLUSTER_NAME)
        for name in missing:
            if not (may_create_any or self._context.allows_topic(call, AclOperation.CREATE, name)):
                errors[name] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                continue
            try:
                check_topic_name(name)
            except Refused as refused:
                errors[name] = refused.code
            else:
                valid.append(name)
        if valid:
            errors.update(await self._context.auto_create(valid))
            created = [name for name in valid if errors.get(name, ErrorCode.NONE) is ErrorCode.NONE]
            # For topics that come later, the client gets LEADER_NOT_AVAILABLE or UNKNOWN_TOPIC_OR_PARTITION, and tries again.
            await wait_until_shown(self._context.metadata, created, self._is_ready, timeout_s=AUTO_CREATION_WAIT_S)
        return self._answer(call, request, errors)

    def _is_ready(self, name: str) -> bool:
        image = self._context.metadata.topic(name)
        return image is not None and self._context.metadata.has_all_leaders(name, image.partitions)

    def _cluster_operations(self, call: Call) -> int:
        """Return the authorized operations; 0 for clients that may not describe the cluster, whatever else they may do."""
        if not self._context.shows(call, AclOperation.DESCRIBE, AclResourceType.CLUSTER, CLUSTER_NAME):
            return 0
        return self._context.authorized_operations(call, AclResourceType.CLUSTER, CLUSTER_NAME)

    def _without_topics(self, call: Call, request: MetadataRequest) -> MetadataResponse:
        context = self._context
        listener = call.channel.listener_name
        response = MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
                for broker, endpoint in context.metadata.alive_endpoints(listener)
            ],
            cluster_id=context.cluster_id,
            controller_id=context.metadata.controller_id if context.metadata.controller_id is not None else -1,
        )
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = self._cluster_operations(call)
        return response

    def _answer(self, call: Call, request: MetadataRequest, errors: dict[str, ErrorCode]) -> MetadataResponse:
        response = self._without_topics(call, request)
        with_operations = request.include_topic_authorized_operations
        assert request.topics is not None
        # Each topic once, as in Kafka: the answer for a topic of many partitions is thousands of times as long as its name.
        for wanted in {(topic.name, topic.topic_id): topic for topic in request.topics}.values():
            if wanted.name is None or _is_by_id(wanted):
                response.topics.append(self._topic_by_id(call, TopicId(wanted.topic_id), with_operations))
            else:
                error = errors.get(wanted.name, ErrorCode.NONE)
                response.topics.append(self._topic_by_name(call, wanted.name, error, with_operations))
        return response

    def _topic_by_id(self, call: Call, topic_id: TopicId, with_operations: bool) -> MetadataResponseTopic:
        name = self._context.metadata.topic_name(topic_id) if topic_id != ZERO_TOPIC_ID else None
        if name is None:
            return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, topic_id=topic_id, name=None)
        if not self._context.allows_topic(call, AclOperation.DESCRIBE, name):
            # The name stays hidden from clients that may not describe the topic.
            return MetadataResponseTopic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, topic_id=topic_id, name=None)
        image = self._context.metadata.topic(name)
        assert image is not None
        return self._topic(call, image, with_operations)

    def _topic_by_name(self, call: Call, name: str, error: ErrorCode, with_operations: bool) -> MetadataResponseTopic:
        if not self._context.allows_topic(call, AclOperation.DESCRIBE, name):
            return MetadataResponseTopic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name)
        image = self._context.metadata.topic(name)
        if image is not None:
            return self._topic(call, image, with_operations)
        if error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            # Created a moment ago, but this broker has no metadata for it yet: the client tries again.
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            try:
                check_topic_name(name)
            except Refused as refused:
                error = refused.code
        topic = MetadataResponseTopic(error_code=error, name=name, is_internal=is_internal(name))
        if with_operations and error is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            topic.topic_authorized_operations = self._context.authorized_operations(call, AclResourceType.TOPIC, name)
        return topic

    def _topic(self, call: Call, image: TopicImage, with_operations: bool) -> MetadataResponseTopic:
        topic = MetadataResponseTopic(
            name=image.name,
            topic_id=image.id,
            is_internal=is_internal(image.name),
            partitions=encoded_partitions(self._context.metadata, image, call.channel.listener_name, call.api_version),
        )
        if with_operations:
            topic.topic_authorized_operations = self._context.authorized_operations(
                call, AclResourceType.TOPIC, image.name
            )
        return topic

    def _offline(self, state: PartitionMetadata) -> list[int]:
        """Return the replicas whose directory has failed, or whose broker is gone."""
        brokers = self._context.metadata.brokers
        return [r for r in state.replicas if r in state.offline_replicas or BrokerId(r) not in brokers]

    # -- DescribeCluster ----------------------------------------------------------------------------------------------

    @serves("DescribeCluster", refusal())
    def describe_cluster(self, call: Call, request: DescribeClusterRequest) -> HandlerResult:
        if request.endpoint_type != 1:
            raise Refused(
                ErrorCode.MISMATCHED_ENDPOINT_TYPE
                if request.endpoint_type == 2
                else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                f"this is a broker (endpoint type 1), not an endpoint of type {request.endpoint_type}",
            )
        context = self._context
        controller_id = context.metadata.controller_id
        response = DescribeClusterResponse(
            cluster_id=context.cluster_id, controller_id=controller_id if controller_id is not None else -1
        )
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = self._cluster_operations(call)
        response.brokers = [
            DescribeClusterBroker(broker_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
            for broker, endpoint in context.metadata.alive_endpoints(call.channel.listener_name)
        ]
        return response

    # -- DescribeTopicPartitions --------------------------------------------------------------------------------------

    @serves("DescribeTopicPartitions", refusal("topics <- topics"))
    async def describe_topic_partitions(self, call: Call, request: DescribeTopicPartitionsRequest) -> ApiMessage:
        context = self._context
        cursor = request.cursor
        if cursor is not None and cursor.partition_index < 0:
            raise Refused(ErrorCode.INVALID_REQUEST, "DescribeTopicPartitionsRequest cursor partition must be valid")
        first = cursor.topic_name if cursor is not None else ""
        named = [topic.name for topic in request.topics]
        names = sorted(set(named)) if named else sorted(context.metadata.topics)
        limit = max(1, min(context.config.max_request_partition_size_limit, request.response_partition_limit))
        response = DescribeTopicPartitionsResponse()
        async for name in in_turns(names[bisect_left(names, first) :]):
            if not context.allows_topic(call, AclOperation.DESCRIBE, name):
                if named:
                    response.topics.append(
                        DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name)
                    )
                continue
            image = context.metadata.topic(name)
            if image is None:
                if named:
                    response.topics.append(_unknown_topic(name))
                continue
            start = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
            if limit <= 0:
                response.next_cursor = ResponseCursor(topic_name=name, partition_index=0)
                break
            numbers = [number for number in sorted(image.partitions) if number >= start]
            response.topics.append(self._topic_partitions(call, image, numbers[:limit]))
            if len(numbers) > limit:
                response.next_cursor = ResponseCursor(topic_name=name, partition_index=numbers[limit])
                break
            limit -= len(numbers)
        return response

    def _topic_partitions(
        self, call: Call, image: TopicImage, numbers: list[int]
    ) -> DescribeTopicPartitionsResponseTopic:
        listener = call.channel.listener_name
        topic = DescribeTopicPartitionsResponseTopic(
            name=image.name,
            topic_id=image.id,
            is_internal=is_internal(image.name),
            topic_authorized_operations=self._context.authorized_operations(call, AclResourceType.TOPIC, image.name),
        )
        for number in numbers:
            state = image.partitions[number]
            error = self._context.metadata.leader_error(state.leader, listener)
            topic.partitions.append(
                DescribeTopicPartitionsResponsePartition(
                    error_code=error,
                    partition_index=number,
                    leader_id=state.leader if error is ErrorCode.NONE else -1,
                    leader_epoch=state.leader_epoch,
                    replica_nodes=state.replicas,
                    isr_nodes=state.isr,
                    # The protocol allows null, but Kafka 3.9's admin client crashes on it.
                    eligible_leader_replicas=[],
                    last_known_elr=[],
                    offline_replicas=self._offline(state),
                )
            )
        return topic


def _unknown_topic(name: str) -> DescribeTopicPartitionsResponseTopic:
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        check_topic_name(name)
    except Refused as invalid:
        error = invalid.code  # no topic can ever have this name
    return DescribeTopicPartitionsResponseTopic(error_code=error, name=name, is_internal=is_internal(name))
