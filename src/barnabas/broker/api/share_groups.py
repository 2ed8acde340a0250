"""Share groups (KIP-932): ShareGroupHeartbeat v1, ShareGroupDescribe v1.

If share groups are off, all of these are refused with UNSUPPORTED_VERSION.
"""

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.words import AclOperation, AclResourceType
from barnabas.broker.api.consumer_groups import HIDDEN_TOPICS
from barnabas.broker.groups.coordinator import GroupCoordinator
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import HandlerResult, serves
from barnabas.broker.server.later import answer_later, requester_of
from barnabas.broker.server.refusal import refusal
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.share_group_describe import (
    DescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from barnabas.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest


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
        response = ShareGroupDescribeResponse()
        for group_id in dict.fromkeys(request.group_ids):
            response.groups.append(await self._describe(call, group_id))
        if request.include_authorized_operations:
            for group in response.groups:
                if not group.error_code:
                    operations = self._context.authorized_operations(call, AclResourceType.GROUP, group.group_id)
                    group.authorized_operations = operations
        return response

    async def _describe(self, call: Call, group_id: str) -> DescribedGroup:
        if not self._context.allows(call, AclOperation.DESCRIBE, AclResourceType.GROUP, group_id):
            return DescribedGroup(group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not group_id:
            return DescribedGroup(group_id=group_id, error_code=ErrorCode.INVALID_GROUP_ID)
        try:
            group = await self._groups.describe(group_id)
        except Refused as refused:
            return DescribedGroup(group_id=group_id, error_code=refused.code)
        assigned = {each.topic_name for member in group.members for each in member.assignment.topic_partitions}
        if not all(self._context.allows_topic(call, AclOperation.DESCRIBE, topic) for topic in assigned):
            return DescribedGroup(
                group_id=group_id, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, error_message=HIDDEN_TOPICS
            )
        return group
