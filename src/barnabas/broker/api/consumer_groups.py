"""The consumer group protocol (KIP-848): ConsumerGroupHeartbeat v0 and v1 (regular expressions, own member ids),
ConsumerGroupDescribe v0 and v1 (member types).

If the protocol is off, heartbeats are refused with UNSUPPORTED_VERSION: the client then reports it, or falls back.
"""

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.words import AclOperation, AclResourceType
from barnabas.broker.groups.coordinator import GroupCoordinator
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import HandlerResult, serves
from barnabas.broker.server.later import answer_later, requester_of
from barnabas.broker.server.refusal import refusal
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from barnabas.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
)


def refuse_describe(request: ConsumerGroupDescribeRequest, code: ErrorCode, message: str | None) -> ApiMessage:
    return ConsumerGroupDescribeResponse(groups=[_undescribed(each, code) for each in request.group_ids])


class ConsumerGroupsApi:
    def __init__(self, context: BrokerContext, coordinator: GroupCoordinator) -> None:
        self._context = context
        self._groups = coordinator

    @serves("ConsumerGroupHeartbeat", refusal())
    def heartbeat(self, call: Call, request: ConsumerGroupHeartbeatRequest) -> HandlerResult:
        if not self._context.allows(call, AclOperation.READ, AclResourceType.GROUP, request.group_id):
            raise Refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        # As in Kafka 4, which finished this protocol; 3.9 has a preview, and checks only the group.
        for topic in request.subscribed_topic_names or ():
            if not self._context.allows_topic(call, AclOperation.DESCRIBE, topic):
                raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

        def may_describe(topic: str) -> bool:
            return self._context.shows(call, AclOperation.DESCRIBE, AclResourceType.TOPIC, topic)

        future = self._groups.consumer_heartbeat(request, requester_of(call), may_describe)
        return answer_later(call, request, future)

    @serves("ConsumerGroupDescribe", refuse_describe)
    async def describe(self, call: Call, request: ConsumerGroupDescribeRequest) -> ApiMessage:
        response = ConsumerGroupDescribeResponse()
        for group_id in dict.fromkeys(request.group_ids):
            if not self._context.allows(call, AclOperation.DESCRIBE, AclResourceType.GROUP, group_id):
                response.groups.append(_undescribed(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED))
                continue
            if not group_id:
                response.groups.append(_undescribed(group_id, ErrorCode.INVALID_GROUP_ID))
                continue
            try:
                group = await self._groups.describe_consumer_group(group_id)
            except Refused as refusal:
                response.groups.append(_undescribed(group_id, refusal.code))
                continue
            if request.include_authorized_operations and not group.error_code:
                group.authorized_operations = self._context.authorized_operations(call, AclResourceType.GROUP, group_id)
            if not all(self._context.allows_topic(call, AclOperation.DESCRIBE, topic) for topic in _topics_of(group)):
                group.error_code, group.error_message = ErrorCode.TOPIC_AUTHORIZATION_FAILED, HIDDEN_TOPICS
                group.members = []
            response.groups.append(group)
        return response


#: Kafka 4's message.
HIDDEN_TOPICS = "The group has described topic(s) that the client is not authorized to describe."


def _topics_of(group: DescribedGroup) -> set[str]:
    """Return the topics that are assigned to its members, now or in the target assignment."""
    return {
        topics.topic_name
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for topics in assignment.topic_partitions
    }


def _undescribed(group_id: str, code: ErrorCode) -> DescribedGroup:
    return DescribedGroup(group_id=group_id, error_code=code)
