"""Members of a consumer group that speak the classic protocol, as they do while a group changes from one to the other.

For these members the member epoch is the generation, and the coordinator is the leader. JoinGroup answers at once, SyncGroup
with the partitions that the reconciliation has assigned so far, and Heartbeat answers REBALANCE_IN_PROGRESS when the member
should join again. Pure.
"""

from dataclasses import replace

from barnabas.base.errors import ErrorCode, Malformed, Refused
from barnabas.broker.groups import migration
from barnabas.broker.groups.classic import KNOWN_MEMBER_ID_FROM
from barnabas.broker.groups.classic_member import CONSUMER_PROTOCOL_TYPE, NO_MEMBER_ID, protocols_of
from barnabas.broker.groups.consumer import MEMBER_JOIN, MEMBER_SYNC, SESSION, ConsumerProtocol
from barnabas.broker.groups.consumer_group import ClassicTraits, ConsumerGroup, ConsumerMember, MemberState
from barnabas.broker.groups.group import GroupEnvironment, Outcome, Requester
from barnabas.broker.runtime.machine import Result
from barnabas.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from barnabas.wire.messages.leave_group import LeaveGroupResponse, MemberIdentity, MemberResponse
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse


class ClassicMembers:
    """The classic protocol's operations on consumer groups that have members."""

    def __init__(self, consumer: ConsumerProtocol, env: GroupEnvironment) -> None:
        self._consumer = consumer
        self._env = env

    def join(
        self, group: ConsumerGroup, request: JoinGroupRequest, requester: Requester, out: Outcome, now_ms: int
    ) -> Result[JoinGroupResponse]:
        is_unknown = request.member_id == NO_MEMBER_ID
        member_id = self._env.unique() if is_unknown else request.member_id
        self._consumer.check_size(group, member_id)
        protocols = protocols_of(request.protocols)
        if not group.supports_classic(request.protocol_type, {each.name for each in protocols}):
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if is_unknown and request.group_instance_id is None and requester.api_version >= KNOWN_MEMBER_ID_FROM:
            required = ErrorCode.MEMBER_ID_REQUIRED
            return out.result(JoinGroupResponse(member_id=member_id, error_code=required, protocol_name=None))
        try:
            subscription = migration.read_subscription(protocols[0].metadata)
        except Malformed as error:
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from error
        former_id = group.static_members.get(request.group_instance_id or "")
        member = self._member_for(group, request, member_id, out, is_unknown=is_unknown)
        rebalance_timeout_ms = request.rebalance_timeout_ms
        if rebalance_timeout_ms == -1:
            rebalance_timeout_ms = request.session_timeout_ms
        updated = replace(
            member,
            instance_id=request.group_instance_id or member.instance_id,
            rack_id=subscription.rack_id or member.rack_id,
            client_id=requester.client_id,
            client_host=requester.client_host,
            rebalance_timeout_ms=rebalance_timeout_ms,
            subscribed_topics=frozenset(subscription.topics),
            subscribed_regex=None,
            server_assignor=None,
            classic=ClassicTraits(request.session_timeout_ms, protocols),
        )
        owned = migration.by_topic_id(subscription.owned_partitions, self._env.topics)
        moved = self._consumer.advance(group, member, updated, owned, lambda topic: True, out, now_ms)
        out.cancel_timer((MEMBER_JOIN, group.group_id, member_id))
        group.asked_to_rejoin.discard(member_id)
        settings = self._env.settings()
        if former_id is not None and migration.may_downgrade(group, former_id, settings, is_replaced=True):
            self._consumer.downgrade(group, former_id, moved, out, now_ms)
        else:
            out.set_timer((SESSION, group.group_id, member_id), request.session_timeout_ms)
            out.set_timer((MEMBER_SYNC, group.group_id, member_id), rebalance_timeout_ms)
        return out.result(
            JoinGroupResponse(
                member_id=member_id,
                generation_id=moved.member_epoch,
                protocol_type=CONSUMER_PROTOCOL_TYPE,
                protocol_name=protocols[0].name,
            )
        )

    def _member_for(
        self, group: ConsumerGroup, request: JoinGroupRequest, member_id: str, out: Outcome, *, is_unknown: bool
    ) -> ConsumerMember:
        if request.group_instance_id is None:
            return group.members.get(member_id) or ConsumerMember(member_id=member_id)
        if not is_unknown:
            return group.require_static_member(request.group_instance_id, member_id)
        existing = group.static_member(request.group_instance_id)
        if existing is None:
            return ConsumerMember(member_id=member_id)
        return self._consumer.replace_static(group, existing, member_id, out, uses_classic_protocol=True)

    def sync(self, group: ConsumerGroup, request: SyncGroupRequest, out: Outcome) -> Result[SyncGroupResponse]:
        member, traits = self._require(group, request.member_id, request.group_instance_id)
        if request.generation_id != member.member_epoch:
            raise Refused(ErrorCode.ILLEGAL_GENERATION)
        protocol = traits.protocols[0]
        if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (
            None,
            protocol.name,
        ):
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.group_epoch > member.member_epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._ask_to_rejoin(group, member, out)
            return out.result(SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        out.cancel_timer((MEMBER_SYNC, group.group_id, member.member_id))
        out.set_timer((SESSION, group.group_id, member.member_id), traits.session_timeout_ms)
        version = migration.subscription_version(protocol.metadata)
        return out.result(
            SyncGroupResponse(
                protocol_type=CONSUMER_PROTOCOL_TYPE,
                protocol_name=protocol.name,
                assignment=migration.write_assignment(member.assigned, self._env.topics, version),
            )
        )

    def heartbeat(self, group: ConsumerGroup, request: HeartbeatRequest, out: Outcome) -> Result[HeartbeatResponse]:
        member, traits = self._require(group, request.member_id, request.group_instance_id)
        if request.generation_id != member.member_epoch:
            raise Refused(ErrorCode.ILLEGAL_GENERATION)
        out.set_timer((SESSION, group.group_id, member.member_id), traits.session_timeout_ms)
        has_to_rejoin = (
            member.member_epoch < group.group_epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(member))
        )
        if has_to_rejoin:
            self._ask_to_rejoin(group, member, out)
        error = ErrorCode.REBALANCE_IN_PROGRESS if has_to_rejoin else ErrorCode.NONE
        return out.result(HeartbeatResponse(error_code=error))

    @staticmethod
    def _ask_to_rejoin(group: ConsumerGroup, member: ConsumerMember, out: Outcome) -> None:
        """Ask the member to rejoin. The time-out starts with the first heartbeat that gets this answer."""
        if member.member_id not in group.asked_to_rejoin:
            group.asked_to_rejoin.add(member.member_id)
            out.set_timer((MEMBER_JOIN, group.group_id, member.member_id), member.rebalance_timeout_ms)

    def leave(self, group: ConsumerGroup, leaving: list[MemberIdentity], out: Outcome) -> Result[LeaveGroupResponse]:
        response = LeaveGroupResponse()
        gone: dict[str, ConsumerMember] = {}
        for each in leaving:
            answer = MemberResponse(member_id=each.member_id, group_instance_id=each.group_instance_id)
            response.members.append(answer)
            try:
                member_id = each.member_id
                if member_id == NO_MEMBER_ID and each.group_instance_id is not None:
                    # An administrator removes a static member by its instance id.
                    member_id = group.static_members.get(each.group_instance_id, NO_MEMBER_ID)
                member, _ = self._require(group, member_id, each.group_instance_id)
                if member.member_id in gone:
                    raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
                gone[member.member_id] = member
            except Refused as refusal:
                answer.error_code = refusal.code
        if gone:
            self._consumer.remove(group, gone.values(), out)
        return out.result(response)

    @staticmethod
    def _require(group: ConsumerGroup, member_id: str, instance_id: str | None) -> tuple[ConsumerMember, ClassicTraits]:
        if instance_id is None:
            member = group.require_member(member_id)
        else:
            member = group.require_static_member(instance_id, member_id)
        if member.classic is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} does not use the classic protocol.")
        return member, member.classic
