"""The classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup and their time-outs, with the rules of Kafka 3.9.

A rebalance: when a member comes, goes or changes, the group enters PreparingRebalance. JoinGroups wait there until every member
has sent one or time is up. Then a new generation begins (CompletingRebalance): every member gets its answer, and the leader
also gets the list of members. The leader's SyncGroup brings the assignments; once they are written, the group is Stable. The
broker never reads what members send to each other, so it need not know whether a rebalance is eager or cooperative.

Pure; owner: the group machine.
"""

from collections.abc import Callable
from typing import Final

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.groups.classic_group import COMPLETING, DEAD, EMPTY, PREPARING, STABLE, ClassicGroup
from barnabas.broker.groups.classic_member import NO_MEMBER_ID, ClassicMember, protocols_of
from barnabas.broker.groups.group import Group, GroupEnvironment, Outcome, Requester
from barnabas.broker.runtime.machine import Result, Ticket
from barnabas.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from barnabas.wire.messages.leave_group import LeaveGroupResponse, MemberIdentity, MemberResponse
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

#: A new member's JoinGroup is given up after this time: sockets of waiting requests are not watched for disconnects.
NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000
#: A member whose connection broke while its JoinGroup waited has this long to send another.
ABANDONED_GRACE_MS: Final = 3_000
#: From this version of JoinGroup on, a member must come with the id that it was given (KIP-394).
KNOWN_MEMBER_ID_FROM: Final = 4
#: From this version on, the answer can ask a leader not to assign partitions (KIP-814).
SKIP_ASSIGNMENT_FROM: Final = 9

HEARTBEAT: Final = "heartbeat"
JOIN: Final = "join"
INITIAL: Final = "initial rebalance"
SYNC: Final = "sync"


class ClassicProtocol:
    """Operations on classic groups of one shard."""

    def __init__(self, groups: dict[str, Group], env: GroupEnvironment) -> None:
        self._groups = groups
        self._env = env

    def find(self, group_id: str) -> ClassicGroup | None:
        group = self._groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def get_or_create(self, group_id: str, now_ms: int) -> ClassicGroup:
        group = self.find(group_id)
        if group is None:
            group = ClassicGroup(group_id, state_timestamp_ms=now_ms)
            self._groups[group_id] = group
        return group

    # -- JoinGroup -----------------------------------------------------------------------------------------------------

    def check_session_timeout(self, session_timeout_ms: int) -> None:
        settings = self._env.settings()
        if not settings.min_session_timeout_ms <= session_timeout_ms <= settings.max_session_timeout_ms:
            raise Refused(ErrorCode.INVALID_SESSION_TIMEOUT)

    def join(
        self, request: JoinGroupRequest, requester: Requester, ticket: Ticket, out: Outcome, now_ms: int
    ) -> Result[JoinGroupResponse]:
        group = self.find(request.group_id)
        if group is None:
            if request.member_id != NO_MEMBER_ID:
                return out.result(_join_error(request.member_id, ErrorCode.UNKNOWN_MEMBER_ID))
            group = self.get_or_create(request.group_id, now_ms)
        if not self._accepts(group, request.member_id):
            return out.result(self._reject_for_size(group, request.member_id, out, now_ms))
        if group.state is DEAD:
            return out.result(_join_error(request.member_id, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        if not group.supports(request.protocol_type, (each.name for each in request.protocols)):
            return out.result(_join_error(request.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        if request.member_id == NO_MEMBER_ID:
            return out.result(self._join_new(group, request, requester, ticket, out, now_ms))
        return out.result(self._join_known(group, request, requester, ticket, out, now_ms))

    def _accepts(self, group: ClassicGroup, member_id: str) -> bool:
        """`group.max.size`."""
        size_max = self._env.settings().max_size
        member = group.members.get(member_id)
        if group.is_in(EMPTY, DEAD):
            return True
        if group.state is PREPARING:
            # Count the members that have rejoined so far. If the limit was lowered, the last ones to rejoin are rejected.
            return (member is not None and member.join_ticket is not None) or group.awaiting_join < size_max
        return member is not None or len(group.members) < size_max

    def _reject_for_size(self, group: ClassicGroup, member_id: str, out: Outcome, now_ms: int) -> JoinGroupResponse:
        if member_id in group.members or member_id in group.pending_joins:
            out.cancel_timer((HEARTBEAT, group.group_id, member_id))
            group.remove(member_id)
            self._complete_if_all_joined(group, out, now_ms)
        return _join_error(NO_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED)

    def _join_new(
        self,
        group: ClassicGroup,
        request: JoinGroupRequest,
        requester: Requester,
        ticket: Ticket,
        out: Outcome,
        now_ms: int,
    ) -> JoinGroupResponse | None:
        instance_id = request.group_instance_id
        new_id = f"{requester.client_id if instance_id is None else instance_id}-{self._env.unique()}"
        if instance_id is not None and instance_id in group.static_members:
            return self._replace_static(group, request, requester, new_id, ticket, out, now_ms)
        if instance_id is None and requester.api_version >= KNOWN_MEMBER_ID_FROM:
            group.pending_joins.add(new_id)
            out.set_timer((HEARTBEAT, group.group_id, new_id), request.session_timeout_ms)
            return _join_error(new_id, ErrorCode.MEMBER_ID_REQUIRED)
        self._add(group, request, requester, new_id, ticket, out, now_ms)
        return None

    def _join_known(
        self,
        group: ClassicGroup,
        request: JoinGroupRequest,
        requester: Requester,
        ticket: Ticket,
        out: Outcome,
        now_ms: int,
    ) -> JoinGroupResponse | None:
        member_id = request.member_id
        if member_id in group.pending_joins:
            if request.group_instance_id is not None:
                # Only dynamic members get an id in advance, so no static member has this one.
                return _join_error(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
            self._add(group, request, requester, member_id, ticket, out, now_ms)
            return None
        try:
            member = group.require_member(member_id, request.group_instance_id)
        except Refused as refusal:
            return _join_error(member_id, refusal.code)
        if group.state is EMPTY:
            return _join_error(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        unchanged = member.protocols == protocols_of(request.protocols)
        if group.state is COMPLETING and unchanged:
            # The response may have been lost: send the generation again.
            response = group.joined(member_id)
            if group.is_leader(member_id):
                response.members = group.members_for_leader()
            return response
        if group.state is STABLE and unchanged and not group.is_leader(member_id):
            return group.joined(member_id)
        # A leader rejoins when it has noticed a reason to rebalance, for example new partitions of a topic.
        self._update(group, member, request, ticket, out)
        self._rebalance_or_complete(group, out, now_ms)
        return None

    def _add(
        self,
        group: ClassicGroup,
        request: JoinGroupRequest,
        requester: Requester,
        member_id: str,
        ticket: Ticket,
        out: Outcome,
        now_ms: int,
    ) -> None:
        member = ClassicMember(
            member_id=member_id,
            instance_id=request.group_instance_id,
            client_id=requester.client_id,
            client_host=requester.client_host,
            rebalance_timeout_ms=_rebalance_timeout_ms(request),
            session_timeout_ms=request.session_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=protocols_of(request.protocols),
            is_new=True,
        )
        if group.state is PREPARING and group.previous_state is EMPTY:
            group.new_member_added = True
        group.add(member, ticket)
        out.set_timer((HEARTBEAT, group.group_id, member_id), NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance_or_complete(group, out, now_ms)

    @staticmethod
    def _update(
        group: ClassicGroup, member: ClassicMember, request: JoinGroupRequest, ticket: Ticket, out: Outcome
    ) -> None:
        # The client sent JoinGroup again while the first one waits. No client reads the first response, but each request gets
        # one.
        group.answer_join(member, _join_error(member.member_id, ErrorCode.REBALANCE_IN_PROGRESS), out.effects)
        group.set_protocols(member, protocols_of(request.protocols))
        member.rebalance_timeout_ms = _rebalance_timeout_ms(request)
        member.session_timeout_ms = request.session_timeout_ms
        group.await_join(member, ticket)

    def _replace_static(
        self,
        group: ClassicGroup,
        request: JoinGroupRequest,
        requester: Requester,
        new_id: str,
        ticket: Ticket,
        out: Outcome,
        now_ms: int,
    ) -> JoinGroupResponse | None:
        """A static member restarted. If its subscription has not changed, the group does not rebalance."""
        assert request.group_instance_id is not None
        before = group.membership()
        old_id = group.static_members[request.group_instance_id]
        out.cancel_timer((HEARTBEAT, group.group_id, old_id))
        member = group.replace_static(request.group_instance_id, new_id, out.effects)
        out.set_timer((HEARTBEAT, group.group_id, new_id), request.session_timeout_ms)
        group.set_protocols(member, protocols_of(request.protocols))
        member.rebalance_timeout_ms = _rebalance_timeout_ms(request)
        member.session_timeout_ms = request.session_timeout_ms
        if group.state is STABLE and group.select_protocol() == group.protocol:

            def take_back() -> Result[None]:
                group.restore(before)
                undone = Outcome()
                self.heard_from(group, group.members[old_id], undone)
                return undone.result()

            out.if_refused = take_back
            out.records.append(group.record({each.member_id: each.assignment for each in group.members.values()}))
            response = group.joined(new_id)
            if requester.api_version >= SKIP_ASSIGNMENT_FROM:
                if group.is_leader(new_id):
                    response.members = group.members_for_leader()
                    response.skip_assignment = True
            else:
                # A leader before v9 would assign again at once. It gets the leader's old id, so it acts as a follower.
                response.leader = before.leader_id or ""
            return response
        group.await_join(member, ticket)
        # In CompletingRebalance the leader may be assigning to the old id already: the group has to start over.
        self._rebalance_or_complete(group, out, now_ms)
        return None

    def join_abandoned(
        self, group: ClassicGroup, is_abandoned: Callable[[Ticket], bool], out: Outcome, now_ms: int
    ) -> None:
        """Handle a client that disconnected while its JoinGroup waited. Kafka does not notice, and assigns partitions to it.

        A new member is removed: it has no partitions, and only a client that will ask again knows its id. A member of an
        earlier generation does not count as joined, and has a little time to connect again, because it still owns its
        partitions.
        """
        for member in group.members.values():
            if member.join_ticket is None or not is_abandoned(member.join_ticket):
                continue
            group.await_join(member, None)
            if member.is_new:
                out.cancel_timer((HEARTBEAT, group.group_id, member.member_id))
                group.remove(member.member_id)
                self._complete_if_all_joined(group, out, now_ms)
            else:
                grace_ms = min(ABANDONED_GRACE_MS, member.session_timeout_ms)
                out.set_timer((HEARTBEAT, group.group_id, member.member_id), grace_ms)
            return

    # -- the rebalance -------------------------------------------------------------------------------------------------

    def _rebalance_or_complete(self, group: ClassicGroup, out: Outcome, now_ms: int) -> None:
        if group.can_rebalance:
            self.prepare_rebalance(group, out, now_ms)
        else:
            self._complete_if_all_joined(group, out, now_ms)

    def prepare_rebalance(self, group: ClassicGroup, out: Outcome, now_ms: int) -> None:
        if group.state is COMPLETING:
            for member in group.members.values():
                member.assignment = b""
                self._answer_sync(group, member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), out)
        self._end_sync_phase(group, out)
        is_initial = group.state is EMPTY
        group.transition(PREPARING, now_ms)
        if is_initial:
            delay_ms = self._env.settings().initial_rebalance_delay_ms
            group.new_member_added = False
            group.initial_delay_ms = delay_ms
            group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            if delay_ms == 0:
                self.complete_join(group, out, now_ms)
            else:
                out.set_timer((INITIAL, group.group_id), delay_ms)
        elif group.has_all_joined:
            self.complete_join(group, out, now_ms)
        else:
            out.set_timer((JOIN, group.group_id), group.rebalance_timeout_ms)

    def _complete_if_all_joined(self, group: ClassicGroup, out: Outcome, now_ms: int) -> None:
        # An initial rebalance ends with its delay, even if every known member has joined before.
        if group.state is PREPARING and group.previous_state is not EMPTY and group.has_all_joined:
            self.complete_join(group, out, now_ms)

    def complete_join(self, group: ClassicGroup, out: Outcome, now_ms: int) -> None:
        """Begin the next generation: all members have joined, or time is up and the others are removed."""
        out.cancel_timer((JOIN, group.group_id))
        out.cancel_timer((INITIAL, group.group_id))
        for member in list(group.members.values()):
            if member.join_ticket is None and member.instance_id is None:
                out.cancel_timer((HEARTBEAT, group.group_id, member.member_id))
                group.remove(member.member_id)
        if not group.elect_joined_leader() and group.members:
            # Only static members remain, and none has rejoined: wait until they rejoin or their sessions end.
            out.set_timer((JOIN, group.group_id), group.rebalance_timeout_ms)
            return
        group.next_generation(now_ms)
        if group.state is EMPTY:
            out.records.append(group.record({}))
            return
        for member in group.members.values():
            response = group.joined(member.member_id)
            if group.is_leader(member.member_id):
                response.members = group.members_for_leader()
            group.answer_join(member, response, out.effects)
            self.heard_from(group, member, out)
            member.is_new = False
            group.pending_syncs.add(member.member_id)
        out.set_timer((SYNC, group.group_id, group.generation), group.rebalance_timeout_ms)

    @staticmethod
    def _end_sync_phase(group: ClassicGroup, out: Outcome) -> None:
        group.pending_syncs.clear()
        out.cancel_timer((SYNC, group.group_id, group.generation))

    # -- SyncGroup -----------------------------------------------------------------------------------------------------

    def sync(
        self, group: ClassicGroup, request: SyncGroupRequest, ticket: Ticket, out: Outcome, now_ms: int
    ) -> Result[SyncGroupResponse]:
        member = _current_member(group, request)
        if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol_name, group.protocol):
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.state is PREPARING:
            raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_syncs.discard(member.member_id)
        if not group.pending_syncs:
            out.cancel_timer((SYNC, group.group_id, group.generation))
        if group.state is STABLE:
            self.heard_from(group, member, out)
            return out.result(_synced(group, member.assignment))
        self._answer_sync(group, member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), out)
        member.sync_ticket = ticket
        if group.is_leader(member.member_id):
            given = {each.member_id: bytes(each.assignment) for each in request.assignments}
            assignments = {member_id: given.get(member_id, b"") for member_id in group.members}
            # The replay of this record makes the group Stable; the answers wait until it is committed.
            out.records.append(group.record(assignments))
            out.if_refused = lambda: self._start_over(group, now_ms)
            self._env.counts.completed_rebalance(1)
            for each in group.members.values():
                self._answer_sync(group, each, _synced(group, assignments[each.member_id]), out)
        return out.result()

    def _start_over(self, group: ClassicGroup, now_ms: int) -> Result[None]:
        """Begin another rebalance: the assignments could not be written, and all members that waited for them got an error."""
        out = Outcome()
        for member in group.members.values():
            # The timer of a member that waited may have fired without effect.
            self.heard_from(group, member, out)
        self.prepare_rebalance(group, out, now_ms)
        return out.result()

    def _answer_sync(
        self, group: ClassicGroup, member: ClassicMember, response: SyncGroupResponse, out: Outcome
    ) -> None:
        if group.answer_sync(member, response, out.effects):
            # Its timer may have fired without effect while it waited.
            self.heard_from(group, member, out)

    # -- Heartbeat and LeaveGroup --------------------------------------------------------------------------------------

    def heartbeat(self, group: ClassicGroup, request: HeartbeatRequest, out: Outcome) -> Result[HeartbeatResponse]:
        member = _current_member(group, request)
        self.heard_from(group, member, out)
        error = ErrorCode.REBALANCE_IN_PROGRESS if group.state is PREPARING else ErrorCode.NONE
        return out.result(HeartbeatResponse(error_code=error))

    @staticmethod
    def heard_from(group: ClassicGroup, member: ClassicMember, out: Outcome) -> None:
        out.set_timer((HEARTBEAT, group.group_id, member.member_id), member.session_timeout_ms)

    def leave(
        self, group: ClassicGroup, leaving: list[MemberIdentity], out: Outcome, now_ms: int
    ) -> Result[LeaveGroupResponse]:
        if group.state is DEAD:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        response = LeaveGroupResponse()
        size_before = len(group.members)
        for each in leaving:
            error = self._leave_one(group, each, out)
            response.members.append(
                MemberResponse(member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=error)
            )
        if group.is_in(STABLE, COMPLETING):
            if len(group.members) < size_before:
                self.prepare_rebalance(group, out, now_ms)
        else:
            self._complete_if_all_joined(group, out, now_ms)
        return out.result(response)

    def _leave_one(self, group: ClassicGroup, identity: MemberIdentity, out: Outcome) -> ErrorCode:
        member_id = identity.member_id
        if member_id == NO_MEMBER_ID:
            # An administrator removes a static member by its name.
            member_id = group.static_members.get(identity.group_instance_id or "", NO_MEMBER_ID)
            if member_id == NO_MEMBER_ID:
                return ErrorCode.UNKNOWN_MEMBER_ID
        if member_id in group.pending_joins:
            group.remove(member_id)
            out.cancel_timer((HEARTBEAT, group.group_id, member_id))
            return ErrorCode.NONE
        try:
            member = group.require_member(member_id, identity.group_instance_id)
        except Refused as refusal:
            return refusal.code
        self._remove(group, member, out)
        return ErrorCode.NONE

    @staticmethod
    def _remove(group: ClassicGroup, member: ClassicMember, out: Outcome) -> None:
        out.cancel_timer((HEARTBEAT, group.group_id, member.member_id))
        group.answer_join(member, _join_error(NO_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID), out.effects)
        group.answer_sync(member, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID), out.effects)
        group.remove(member.member_id)

    # -- time-outs -----------------------------------------------------------------------------------------------------

    def loaded(self, group: ClassicGroup, out: Outcome, now_ms: int) -> None:
        """Start the session time-outs: the group was read from the log, and each member has this time to send a request."""
        for member in group.members.values():
            self.heard_from(group, member, out)
        if len(group.members) > self._env.settings().max_size:
            self.prepare_rebalance(group, out, now_ms)

    def heartbeat_expired(self, group: ClassicGroup, member_id: str, out: Outcome, now_ms: int) -> None:
        if member_id in group.pending_joins:
            group.remove(member_id)
            self._complete_if_all_joined(group, out, now_ms)
            return
        member = group.members.get(member_id)
        if member is None or member.satisfies_heartbeat():
            return
        self._remove(group, member, out)
        if group.is_in(STABLE, COMPLETING):
            self.prepare_rebalance(group, out, now_ms)
        else:
            self._complete_if_all_joined(group, out, now_ms)

    def join_expired(self, group: ClassicGroup, out: Outcome, now_ms: int) -> None:
        if group.state is PREPARING:
            self.complete_join(group, out, now_ms)

    def initial_delay_expired(self, group: ClassicGroup, out: Outcome, now_ms: int) -> None:
        if group.state is not PREPARING:
            return
        if not group.new_member_added or group.initial_remaining_ms == 0:
            self.complete_join(group, out, now_ms)
            return
        group.new_member_added = False
        delay_ms = min(self._env.settings().initial_rebalance_delay_ms, group.initial_remaining_ms)
        group.initial_remaining_ms = max(group.initial_remaining_ms - group.initial_delay_ms, 0)
        group.initial_delay_ms = delay_ms
        out.set_timer((INITIAL, group.group_id), delay_ms)

    def sync_expired(self, group: ClassicGroup, generation: int, out: Outcome, now_ms: int) -> None:
        if generation != group.generation or not group.is_in(COMPLETING, STABLE) or not group.pending_syncs:
            return
        for member_id in list(group.pending_syncs):
            self._remove(group, group.members[member_id], out)
        self.prepare_rebalance(group, out, now_ms)


def _rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    """Return the rebalance time-out; version 0 has none, so use the session time-out."""
    return request.session_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms


def _join_error(member_id: str, code: ErrorCode) -> JoinGroupResponse:
    return JoinGroupResponse(member_id=member_id, error_code=code, protocol_name=None)


def _synced(group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
    return SyncGroupResponse(protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=assignment)


def _differs(requested: str | None, actual: str | None) -> bool:
    return requested is not None and actual is not None and requested != actual


def _current_member(group: ClassicGroup, request: SyncGroupRequest | HeartbeatRequest) -> ClassicMember:
    """Return the member, if the request belongs to the group's current generation."""
    if group.state is DEAD:
        raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    member = group.require_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation:
        raise Refused(ErrorCode.ILLEGAL_GENERATION)
    return member
