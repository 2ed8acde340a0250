"""The classic group protocol: JoinGroup v0 to v9 (known member id KIP-394, static members KIP-345, skipped assignment KIP-814,
reasons KIP-800), SyncGroup v0 to v5 (KIP-559), Heartbeat v0 to v4, LeaveGroup v0 to v5 (batched, KIP-345).
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
from barnabas.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from barnabas.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

#: From this version of JoinGroup on, "no protocol" is null and not the empty string.
NULL_PROTOCOL_FROM = 7
#: From this version of SyncGroup on, protocol type and name are required (KIP-559).
PROTOCOL_MANDATORY_FROM = 5
#: From this version of LeaveGroup on, a request contains several members.
BATCHED_LEAVE_FROM = 3


def refuse_join(request: JoinGroupRequest, code: ErrorCode, message: str | None) -> ApiMessage:
    return JoinGroupResponse(error_code=code, member_id=request.member_id, protocol_name="")


class GroupsApi:
    def __init__(self, context: BrokerContext, coordinator: GroupCoordinator) -> None:
        self._context = context
        self._groups = coordinator

    def _require_read(self, call: Call, group_id: str) -> None:
        if not self._context.allows(call, AclOperation.READ, AclResourceType.GROUP, group_id):
            raise Refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)

    @serves("JoinGroup", refuse_join)
    def join(self, call: Call, request: JoinGroupRequest) -> HandlerResult:
        self._require_read(call, request.group_id)

        def finish(response: JoinGroupResponse) -> JoinGroupResponse:
            if response.protocol_name is None and call.api_version < NULL_PROTOCOL_FROM:
                response.protocol_name = ""
            return response

        future = self._groups.join(request, requester_of(call))
        call.on_abandoned = lambda: self._groups.join_abandoned(request.group_id, future)
        return answer_later(call, request, future, finish)

    @serves("SyncGroup", refusal())
    def sync(self, call: Call, request: SyncGroupRequest) -> HandlerResult:
        if call.api_version >= PROTOCOL_MANDATORY_FROM and None in (request.protocol_type, request.protocol_name):
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        self._require_read(call, request.group_id)
        try:
            return answer_later(call, request, self._groups.sync(request))
        except Refused as refusal:
            if refusal.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                # The rebalance is lost: its members join again. The Java client does not expect the other code here, and gives
                # up.
                return SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
            raise

    @serves("Heartbeat", refusal())
    def heartbeat(self, call: Call, request: HeartbeatRequest) -> HandlerResult:
        self._require_read(call, request.group_id)
        try:
            return answer_later(call, request, self._groups.heartbeat(request))
        except Refused as refusal:
            if refusal.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                # The member learns its state once the group is loaded; it has made no mistake.
                return HeartbeatResponse()
            raise

    @serves("LeaveGroup", refusal())
    def leave(self, call: Call, request: LeaveGroupRequest) -> HandlerResult:
        self._require_read(call, request.group_id)
        if call.api_version < BATCHED_LEAVE_FROM:
            request.members = [MemberIdentity(member_id=request.member_id)]

        def finish(response: LeaveGroupResponse) -> LeaveGroupResponse:
            if call.api_version < BATCHED_LEAVE_FROM and not response.error_code and response.members:
                response.error_code = response.members[0].error_code
            return response

        try:
            return answer_later(call, request, self._groups.leave(request), finish)
        except Refused as refusal:
            if refusal.code is not ErrorCode.UNKNOWN_MEMBER_ID:
                raise
            # There is no such group: each member gets that error.
            members = [
                MemberResponse(
                    member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=refusal.code
                )
                for member in request.members
            ]
            return finish(LeaveGroupResponse(members=members))
