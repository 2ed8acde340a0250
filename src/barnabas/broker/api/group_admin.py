"""Group administration: DescribeGroups v0 to v6 (authorized operations KIP-430, not found KIP-1043), ListGroups v0 to v5
(state filter KIP-518, type filter KIP-848), DeleteGroups v0 to v3 (error messages, KIP-1331).
"""

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.words import AclOperation, AclResourceType
from barnabas.broker.groups.coordinator import GroupCoordinator
from barnabas.broker.security.authorizer import CLUSTER_NAME
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import serves
from barnabas.broker.server.refusal import refusal
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from barnabas.wire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from barnabas.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse


def refuse_describe(request: DescribeGroupsRequest, code: ErrorCode, message: str | None) -> ApiMessage:
    return DescribeGroupsResponse(groups=[_undescribed(each, code) for each in request.groups])


class GroupAdminApi:
    def __init__(self, context: BrokerContext, coordinator: GroupCoordinator) -> None:
        self._context = context
        self._groups = coordinator

    @serves("DescribeGroups", refuse_describe)
    async def describe(self, call: Call, request: DescribeGroupsRequest) -> ApiMessage:
        response = DescribeGroupsResponse()
        for group_id in dict.fromkeys(request.groups):
            if not self._context.allows(call, AclOperation.DESCRIBE, AclResourceType.GROUP, group_id):
                response.groups.append(_undescribed(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED))
                continue
            try:
                group = await self._groups.describe(group_id, api_version=call.api_version)
            except Refused as refusal:
                response.groups.append(_undescribed(group_id, refusal.code))
                continue
            if request.include_authorized_operations and not group.error_code:
                group.authorized_operations = self._context.authorized_operations(call, AclResourceType.GROUP, group_id)
            response.groups.append(group)
        return response

    @serves("ListGroups", refusal())
    async def list_groups(self, call: Call, request: ListGroupsRequest) -> ApiMessage:
        groups = await self._groups.list_groups(request)
        if not self._context.shows(call, AclOperation.DESCRIBE, AclResourceType.CLUSTER, CLUSTER_NAME):
            groups = [
                group
                for group in groups
                if self._context.shows(call, AclOperation.DESCRIBE, AclResourceType.GROUP, group.group_id)
            ]
        return ListGroupsResponse(groups=groups)

    @serves("DeleteGroups", refusal("results <- groups_names"))
    async def delete(self, call: Call, request: DeleteGroupsRequest) -> ApiMessage:
        allowed: list[str] = []
        refused: list[DeletableGroupResult] = []
        for group_id in dict.fromkeys(request.groups_names):
            if self._context.allows(call, AclOperation.DELETE, AclResourceType.GROUP, group_id):
                allowed.append(group_id)
            else:
                code = ErrorCode.GROUP_AUTHORIZATION_FAILED
                refused.append(DeletableGroupResult(group_id=group_id, error_code=code))
        return DeleteGroupsResponse(results=await self._groups.delete_groups(allowed) + refused)


def _undescribed(group_id: str, code: ErrorCode) -> DescribedGroup:
    return DescribedGroup(group_id=group_id, error_code=code)
