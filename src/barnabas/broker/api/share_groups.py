"""Share groups (KIP-932): ShareGroupHeartbeat v1, ShareGroupDescribe v1, DescribeShareGroupOffsets v0 to v1 (lag, KIP-1226),
AlterShareGroupOffsets v0, DeleteShareGroupOffsets v0.

If share groups are off, all of these are refused with UNSUPPORTED_VERSION.
"""

from collections.abc import Iterable
from typing import Protocol, TypeVar

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.words import AclOperation, AclResourceType
from barnabas.broker.api.consumer_groups import HIDDEN_TOPICS
from barnabas.broker.api.group_descriptions import describe_groups
from barnabas.broker.groups.coordinator import GroupCoordinator
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import HandlerResult, serves
from barnabas.broker.server.later import answer_later, requester_of
from barnabas.broker.server.refusal import refusal
from barnabas.wire.messages import alter_share_group_offsets as altering
from barnabas.wire.messages import delete_share_group_offsets as deleting
from barnabas.wire.messages import describe_share_group_offsets as describing
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.share_group_describe import (
    DescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from barnabas.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest


class _NamesTopic(Protocol):
    topic_name: str


T = TypeVar("T", bound=_NamesTopic)


class ShareGroupsApi:
    def __init__(self, context: BrokerContext, coordinator: GroupCoordinator) -> None:
        self._context = context
        self._groups = coordinator.share

    @serves("ShareGroupHeartbeat", refusal())
    def heartbeat(self, call: Call, request: ShareGroupHeartbeatRequest) -> HandlerResult:
        self._context.require_share_groups()
        if not self._context.allows(call, AclOperation.READ, AclResourceType.GROUP, request.group_id):
            raise Refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        for topic in request.subscribed_topic_names or ():
            if not self._context.allows_topic(call, AclOperation.DESCRIBE, topic):
                raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return answer_later(call, request, self._groups.heartbeat(request, requester_of(call)))

    @serves("ShareGroupDescribe", refusal("groups <- group_ids"))
    async def describe(self, call: Call, request: ShareGroupDescribeRequest) -> ApiMessage:
        self._context.require_share_groups()
        groups = await describe_groups(
            self._context,
            call,
            request,
            describe=self._groups.describe,
            topics_of=_topics_of,
            refused=DescribedGroup,
            hidden_topics=HIDDEN_TOPICS,
        )
        return ShareGroupDescribeResponse(groups=groups)

    # -- offsets -------------------------------------------------------------------------------------------------------

    @serves("DescribeShareGroupOffsets", refusal("groups <- groups"))
    async def describe_offsets(self, call: Call, request: describing.DescribeShareGroupOffsetsRequest) -> ApiMessage:
        self._context.require_share_groups()
        once = {each.group_id: each for each in request.groups}
        groups = [await self._describe_offsets(call, each) for each in once.values()]
        return describing.DescribeShareGroupOffsetsResponse(groups=groups)

    async def _describe_offsets(
        self, call: Call, wanted: describing.DescribeShareGroupOffsetsRequestGroup
    ) -> describing.DescribeShareGroupOffsetsResponseGroup:
        answer = describing.DescribeShareGroupOffsetsResponseGroup(group_id=wanted.group_id)
        if not self._context.allows(call, AclOperation.DESCRIBE, AclResourceType.GROUP, wanted.group_id):
            answer.error_code = ErrorCode.GROUP_AUTHORIZATION_FAILED
            return answer
        shown = hidden = None
        if wanted.topics is not None:
            shown, hidden = self._split(call, AclOperation.DESCRIBE, wanted.topics)
        try:
            answer.topics = await self._groups.describe_offsets(wanted.group_id, shown)
        except Refused as refused:
            answer.error_code, answer.error_message = refused.code, refused.message
            return answer
        if wanted.topics is None:
            answer.topics, _ = self._split(call, AclOperation.DESCRIBE, answer.topics)
        for topic in hidden or ():
            partitions = [
                describing.DescribeShareGroupOffsetsResponsePartition(
                    partition_index=number, start_offset=-1, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
                )
                for number in topic.partitions
            ]
            answer.topics.append(
                describing.DescribeShareGroupOffsetsResponseTopic(topic_name=topic.topic_name, partitions=partitions)
            )
        return answer

    @serves("AlterShareGroupOffsets", refusal())
    async def alter_offsets(self, call: Call, request: altering.AlterShareGroupOffsetsRequest) -> ApiMessage:
        self._context.require_share_groups()
        if not self._context.allows(call, AclOperation.READ, AclResourceType.GROUP, request.group_id):
            raise Refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not request.group_id:
            raise Refused(ErrorCode.INVALID_GROUP_ID)
        request.topics, hidden = self._split(call, AclOperation.READ, request.topics)
        response = altering.AlterShareGroupOffsetsResponse(responses=await self._groups.alter_offsets(request))
        for topic in hidden:
            partitions = [
                altering.AlterShareGroupOffsetsResponsePartition(
                    partition_index=each.partition_index, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
                )
                for each in topic.partitions
            ]
            response.responses.append(
                altering.AlterShareGroupOffsetsResponseTopic(topic_name=topic.topic_name, partitions=partitions)
            )
        return response

    @serves("DeleteShareGroupOffsets", refusal())
    async def delete_offsets(self, call: Call, request: deleting.DeleteShareGroupOffsetsRequest) -> ApiMessage:
        self._context.require_share_groups()
        if not self._context.allows(call, AclOperation.DELETE, AclResourceType.GROUP, request.group_id):
            raise Refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not request.group_id:
            raise Refused(ErrorCode.INVALID_GROUP_ID)
        shown, hidden = self._split(call, AclOperation.READ, request.topics)
        names = [each.topic_name for each in shown]
        responses = await self._groups.delete_offsets(request.group_id, names)
        responses += [
            deleting.DeleteShareGroupOffsetsResponseTopic(
                topic_name=each.topic_name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
            )
            for each in hidden
        ]
        return deleting.DeleteShareGroupOffsetsResponse(responses=responses)

    def _split(self, call: Call, operation: AclOperation, topics: Iterable[T]) -> tuple[list[T], list[T]]:
        """Return the topics that the caller may see, and the others."""
        allowed: list[T] = []
        hidden: list[T] = []
        for topic in topics:
            (allowed if self._context.allows_topic(call, operation, topic.topic_name) else hidden).append(topic)
        return allowed, hidden


def _topics_of(group: DescribedGroup) -> Iterable[str]:
    return {each.topic_name for member in group.members for each in member.assignment.topic_partitions}
