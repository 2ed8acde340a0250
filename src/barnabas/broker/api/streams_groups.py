"""Streams groups (KIP-1071): StreamsGroupHeartbeat v0, StreamsGroupDescribe v0.

If streams groups are off, both are refused with UNSUPPORTED_VERSION.
"""

from collections.abc import Iterable

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.words import AclOperation, AclResourceType
from barnabas.broker.api.group_descriptions import describe_groups
from barnabas.broker.groups.coordinator import GroupCoordinator
from barnabas.broker.groups.streams_topology import check_topic_names, named_topics
from barnabas.broker.security.authorizer import CLUSTER_NAME
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import HandlerResult, serves
from barnabas.broker.server.later import answer_later, requester_of
from barnabas.broker.server.refusal import refusal
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.streams_group_describe import (
    DescribedGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)
from barnabas.wire.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest

#: Kafka 4's message.
_HIDDEN_TOPICS = "The described group uses topics that the client is not authorized to describe."


class StreamsGroupsApi:
    def __init__(self, context: BrokerContext, coordinator: GroupCoordinator) -> None:
        self._context = context
        self._groups = coordinator.streams

    @serves("StreamsGroupHeartbeat", refusal())
    def heartbeat(self, call: Call, request: StreamsGroupHeartbeatRequest) -> HandlerResult:
        context = self._context
        context.require_streams_groups()
        if not context.allows(call, AclOperation.READ, AclResourceType.GROUP, request.group_id):
            raise Refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if request.topology is not None:
            names = named_topics(request.topology)
            check_topic_names(names)
            for name in names:
                if not context.allows_topic(call, AclOperation.DESCRIBE, name):
                    raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

        def may_create(topic: str) -> bool:
            may_create_any = context.shows(call, AclOperation.CREATE, AclResourceType.CLUSTER, CLUSTER_NAME)
            return may_create_any or context.allows_topic(call, AclOperation.CREATE, topic)

        return answer_later(call, request, self._groups.heartbeat(request, requester_of(call), may_create))

    @serves("StreamsGroupDescribe", refusal("groups <- group_ids"))
    async def describe(self, call: Call, request: StreamsGroupDescribeRequest) -> ApiMessage:
        self._context.require_streams_groups()
        groups = await describe_groups(
            self._context,
            call,
            request,
            describe=self._groups.describe,
            topics_of=_topics_of,
            refused=DescribedGroup,
            hidden_topics=_HIDDEN_TOPICS,
        )
        return StreamsGroupDescribeResponse(groups=groups)


def _topics_of(group: DescribedGroup) -> Iterable[str]:
    subtopologies = group.topology.subtopologies if group.topology is not None else None
    return dict.fromkeys(
        name
        for each in subtopologies or ()
        for name in (
            *each.source_topics,
            *each.repartition_sink_topics,
            *(topic.name for topic in each.repartition_source_topics),
            *(topic.name for topic in each.state_changelog_topics),
        )
    )
