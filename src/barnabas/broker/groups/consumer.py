"""The consumer protocol (KIP-848): members join, stay, move and leave by one request, ConsumerGroupHeartbeat.

A heartbeat brings the member's changes, and its answer has the coordinator's. Handling it has up to three steps: update the
member, and the group epoch with it; compute a target assignment for a new epoch; move the member one step towards it. Every
change is written to the log, and replay applies it.

Pure; owner: the group machine.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.groups import migration, records
from barnabas.broker.groups.classic import HEARTBEAT
from barnabas.broker.groups.classic_group import ClassicGroup
from barnabas.broker.groups.consumer_group import (
    EMPTY,
    JOINING_EPOCH,
    LEAVING_EPOCH,
    LEAVING_STATIC_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
)
from barnabas.broker.groups.group import Group, GroupEnvironment, Outcome, Requester, refuse_blank
from barnabas.broker.groups.reconciliation import reconcile
from barnabas.broker.groups.records import Partitions
from barnabas.broker.groups.subscriptions import (
    MayDescribe,
    check_regex,
    existing_topics,
    refresh_regexes,
    topics_record,
)
from barnabas.broker.groups.target import compute_target, target_before, write_target
from barnabas.broker.runtime.machine import Result
from barnabas.wire.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    RequestTopicPartitions,
    ResponseTopicPartitions,
)

#: From this version on, members choose their own ids (KIP-1082).
OWN_MEMBER_ID_FROM: Final = 1

SESSION: Final = "session"
REBALANCE: Final = "rebalance"
MEMBER_JOIN: Final = "member join"
MEMBER_SYNC: Final = "member sync"
#: Time-outs that remove a member, by (group id, member id).
MEMBER_TIMERS: Final = (SESSION, REBALANCE, MEMBER_JOIN, MEMBER_SYNC)
#: Fires when a group has just become classic, by (group id).
DOWNGRADED: Final = "downgraded"


class ConsumerProtocol:
    """Operations on consumer groups of one shard."""

    def __init__(self, groups: dict[str, Group], env: GroupEnvironment) -> None:
        self._groups = groups
        self._env = env

    def find(self, group_id: str) -> ConsumerGroup | None:
        group = self._groups.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    # -- the request ---------------------------------------------------------------------------------------------------

    def heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        requester: Requester,
        may_describe: MayDescribe,
        out: Outcome,
        now_ms: int,
    ) -> Result[ConsumerGroupHeartbeatResponse]:
        self._check(request, requester)
        if request.member_epoch in (LEAVING_EPOCH, LEAVING_STATIC_EPOCH):
            return out.result(self._leave(request, out, now_ms))
        is_joining = request.member_epoch == JOINING_EPOCH
        former = self._groups.get(request.group_id)
        group = self._group_for(request.group_id, out, is_joining=is_joining)
        member_id = request.member_id or self._env.unique()
        self.check_size(group, member_id)
        owned = None if request.topic_partitions is None else _owned(request.topic_partitions)
        member = self._member_for(group, request, member_id, owned, out)
        updated = replace(
            member,
            instance_id=_unless_none(request.instance_id, member.instance_id),
            rack_id=_unless_none(request.rack_id, member.rack_id),
            client_id=requester.client_id,
            client_host=requester.client_host,
            rebalance_timeout_ms=(
                member.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
            ),
            server_assignor=_unless_none(request.server_assignor, member.server_assignor),
            subscribed_topics=(
                member.subscribed_topics
                if request.subscribed_topic_names is None
                else frozenset(request.subscribed_topic_names)
            ),
            # An empty expression ends the subscription by regular expression.
            subscribed_regex=_unless_none(request.subscribed_topic_regex, member.subscribed_regex) or None,
            classic=None,
        )
        moved = self.advance(group, member, updated, owned, may_describe, out, now_ms)
        if isinstance(former, ClassicGroup):
            out.then = lambda: self._leave_classic_behind(former, group)
        config = self._env.group_config(group.group_id)
        out.set_timer((SESSION, group.group_id, member_id), config.consumer_session_timeout_ms)
        response = ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=moved.member_epoch,
            heartbeat_interval_ms=config.consumer_heartbeat_interval_ms,
        )
        is_full = is_joining or (
            request.rebalance_timeout_ms != -1
            and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
            and owned is not None
        )
        # Send the assignment to a member that owns other partitions than it was assigned: it may have missed the answer, and
        # librdkafka sends no full request after a time-out. Repeat it to a member that must revoke partitions until it reports
        # its partitions: other members wait for them.
        is_out_of_step = (
            owned != moved.assigned if owned is not None else moved.state is MemberState.UNREVOKED_PARTITIONS
        )
        if is_full or is_out_of_step or moved.assigned != member.assigned:
            response.assignment = _response_assignment(moved.assigned)
        return out.result(response)

    def _check(self, request: ConsumerGroupHeartbeatRequest, requester: Requester) -> None:
        if not self._env.consumer_protocol_enabled():
            raise Refused(
                ErrorCode.UNSUPPORTED_VERSION,
                "The consumer group protocol is not enabled, or not every broker of the cluster knows it.",
            )
        refuse_blank(request.group_id, "GroupId")
        refuse_blank(request.instance_id, "InstanceId")
        refuse_blank(request.rack_id, "RackId")
        epoch = request.member_epoch
        if epoch < LEAVING_STATIC_EPOCH:
            raise Refused(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")
        if epoch != JOINING_EPOCH or requester.api_version >= OWN_MEMBER_ID_FROM:
            refuse_blank(request.member_id, "MemberId")
        if epoch == LEAVING_STATIC_EPOCH and request.instance_id is None:
            raise Refused(ErrorCode.INVALID_REQUEST, "InstanceId can't be null.")
        if epoch == JOINING_EPOCH:
            if request.rebalance_timeout_ms == -1:
                raise Refused(ErrorCode.INVALID_REQUEST, "RebalanceTimeoutMs must be provided in first request.")
            if request.topic_partitions is None or request.topic_partitions:
                raise Refused(ErrorCode.INVALID_REQUEST, "TopicPartitions must be empty when (re-)joining.")
            # Kafka 4 accepts members without a topic: the Java client joins like this while its pattern matches no topic.
            if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
                raise Refused(
                    ErrorCode.INVALID_REQUEST,
                    "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
                )
        if request.subscribed_topic_regex:
            check_regex(request.subscribed_topic_regex)
        assignors = self._env.settings().consumer_assignors
        if request.server_assignor is not None and request.server_assignor not in assignors:
            raise Refused(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"ServerAssignor {request.server_assignor} is not supported. "
                f"Supported assignors: {', '.join(assignors)}.",
            )

    def _group_for(self, group_id: str, out: Outcome, *, is_joining: bool) -> ConsumerGroup:
        """Return the group. A member that joins may create it, or convert a classic group if the policy allows that."""
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        if not is_joining:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
        if group is None:
            return ConsumerGroup(group_id)
        settings = self._env.settings()
        if not isinstance(group, ClassicGroup) or not (group.is_empty or migration.may_upgrade(group, settings)):
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        converted = migration.to_consumer(group, self._env.topics)
        out.records.extend(group.tombstones())
        if converted.members:
            out.records.extend(converted.birth_records())
        return converted

    @staticmethod
    def _leave_classic_behind(former: ClassicGroup, group: ConsumerGroup) -> Result[None]:
        """The upgrade is in the log: waiting members must join again, and all get the timers of a consumer group."""
        out = Outcome()
        migration.send_back_to_join(former, out)
        for member_id in (*former.members, *former.pending_joins):
            out.cancel_timer((HEARTBEAT, former.group_id, member_id))
        for member in group.members.values():
            assert member.classic is not None
            out.set_timer((SESSION, group.group_id, member.member_id), member.classic.session_timeout_ms)
        return out.result()

    def check_size(self, group: ConsumerGroup, member_id: str) -> None:
        size_max = self._env.settings().consumer_max_size
        if len(group.members) >= size_max and member_id not in group.members:
            raise Refused(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {size_max} members.",
            )

    def _member_for(
        self,
        group: ConsumerGroup,
        request: ConsumerGroupHeartbeatRequest,
        member_id: str,
        owned: Partitions | None,
        out: Outcome,
    ) -> ConsumerMember:
        is_joining = request.member_epoch == JOINING_EPOCH
        if request.instance_id is None:
            member = group.members.get(member_id)
            if member is None:
                if not is_joining:
                    group.require_member(member_id)
                return ConsumerMember(member_id=member_id)
        elif is_joining:
            existing = group.static_member(request.instance_id)
            if existing is None:
                return group.members.get(member_id) or ConsumerMember(member_id=member_id)
            return self.replace_static(group, existing, member_id, out, uses_classic_protocol=False)
        else:
            member = group.require_static_member(request.instance_id, member_id)
        if not is_joining:
            _check_member_epoch(member, request.member_epoch, owned)
        elif member.member_epoch > 0:
            # The member starts over, for example because a response was lost. It keeps its partitions.
            return replace(member, member_epoch=JOINING_EPOCH, previous_member_epoch=JOINING_EPOCH)
        return member

    def replace_static(
        self,
        group: ConsumerGroup,
        existing: ConsumerMember,
        member_id: str,
        out: Outcome,
        *,
        uses_classic_protocol: bool,
    ) -> ConsumerMember:
        """Let a static member, back with a new member id or its old one, take over the partitions of the old member."""
        if (
            not uses_classic_protocol
            and not existing.uses_classic_protocol
            and existing.member_epoch != LEAVING_STATIC_EPOCH
        ):
            raise Refused(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {existing.instance_id} cannot join the group because the "
                f"instance id is owned by {existing.member_id} member.",
            )
        group_id = group.group_id
        new = replace(existing, member_id=member_id, member_epoch=JOINING_EPOCH, previous_member_epoch=JOINING_EPOCH)
        self._remove_records(group_id, existing.member_id, out)
        self.cancel_timers(group_id, existing.member_id, out)
        out.records += [
            new.metadata_record(group_id),
            records.target_assignment(group_id, member_id, group.target.get(existing.member_id, EMPTY)),
            new.assignment_record(group_id),
        ]
        return new

    # -- the three steps -----------------------------------------------------------------------------------------------

    def advance(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        updated: ConsumerMember,
        owned: Partitions | None,
        may_describe: MayDescribe,
        out: Outcome,
        now_ms: int,
    ) -> ConsumerMember:
        """Write the changed member, update the group epoch and the target if needed, and move the member one step.

        Returns the member after this.
        """
        topics = self._env.topics
        epoch = group.group_epoch
        has_changed = (
            not group.members  # the first member begins an epoch, even if it subscribes to no topic yet
            or updated.subscribed_topics != member.subscribed_topics
            or updated.subscribed_regex != member.subscribed_regex
        )
        if updated != member:
            out.records.append(updated.metadata_record(group.group_id))
        members = self._members_after(group, updated)
        # A member that has taken over a static member's place leaves its own place, so others get its partitions.
        has_changed = has_changed or len(members) < len(group.members)
        regexes, existing = group.regexes, group.topics
        if has_changed or group.topics_version != topics.version:
            before = len(out.records)
            regexes = refresh_regexes(group, members.values(), topics, may_describe, out, now_ms)
            existing = existing_topics(group, members.values(), regexes, topics)
            if existing != group.topics:
                out.records.append(records.partition_metadata(group.group_id, topics_record(existing)))
            if has_changed or len(out.records) > before:
                epoch += 1
                self._env.counts.consumer_group_rebalance(1)
                out.records.append(records.group_epoch(group.group_id, epoch))
            else:
                group.topics_version = topics.version
        if epoch > group.target_epoch:
            default = self._env.settings().consumer_assignors[0]
            targets = compute_target(
                group,
                members,
                assignor=group.preferred_assignor(members.values(), default),
                regexes=regexes,
                existing=existing,
                topics=topics,
            )
            write_target(group, members, targets, epoch, out)
            target, target_epoch = targets[updated.member_id], epoch
        else:
            target_epoch = group.target_epoch
            target = target_before(group, updated) or EMPTY
        moved = reconcile(
            updated,
            target_epoch=target_epoch,
            target=target,
            owned=owned,
            is_held=lambda topic_id, number: (topic_id, number) in group.owners,
        )
        if moved != updated:
            out.records.append(moved.assignment_record(group.group_id))
            if not moved.uses_classic_protocol:
                self._watch_revocation(group.group_id, moved, out)
        return moved

    @staticmethod
    def _members_after(group: ConsumerGroup, updated: ConsumerMember) -> dict[str, ConsumerMember]:
        members = dict(group.members)
        former_id = group.static_members.get(updated.instance_id or "")
        if former_id is not None and former_id != updated.member_id:
            members.pop(former_id, None)
        members[updated.member_id] = updated
        return members

    @staticmethod
    def _watch_revocation(group_id: str, member: ConsumerMember, out: Outcome) -> None:
        """Limit the time in which the member must revoke partitions: its own rebalance time-out."""
        key = (REBALANCE, group_id, member.member_id)
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            out.set_timer(key, member.rebalance_timeout_ms)
        else:
            out.cancel_timer(key)

    # -- leaving -------------------------------------------------------------------------------------------------------

    def _leave(
        self, request: ConsumerGroupHeartbeatRequest, out: Outcome, now_ms: int
    ) -> ConsumerGroupHeartbeatResponse:
        group = self.find(request.group_id)
        if group is None:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {request.group_id} not found.")
        response = ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
        if request.instance_id is None:
            self.fence(group, group.require_member(request.member_id), out, now_ms)
            return response
        member = group.require_static_member(request.instance_id, request.member_id)
        if request.member_epoch == LEAVING_EPOCH:
            self.fence(group, member, out, now_ms)
        else:
            # The static member keeps its partitions until its session ends.
            gone = replace(member, member_epoch=LEAVING_STATIC_EPOCH, pending_revocation={})
            out.records.append(gone.assignment_record(group.group_id))
        return response

    def fence(self, group: ConsumerGroup, member: ConsumerMember, out: Outcome, now_ms: int) -> None:
        """Remove a member. If it was the last one with the consumer protocol, the group may become classic (downgrade)."""
        if migration.may_downgrade(group, member.member_id, self._env.settings(), is_replaced=False):
            self.downgrade(group, member.member_id, None, out, now_ms)
            out.set_timer((DOWNGRADED, group.group_id), 0)
            return
        self.remove(group, [member], out)

    def remove(self, group: ConsumerGroup, leaving: Iterable[ConsumerMember], out: Outcome) -> None:
        gone = {member.member_id for member in leaving}
        for member_id in gone:
            self._remove_records(group.group_id, member_id, out)
            self.cancel_timers(group.group_id, member_id, out)
        staying = [member for member in group.members.values() if member.member_id not in gone]
        used = {member.subscribed_regex for member in staying}
        regexes = {expression: each for expression, each in group.regexes.items() if expression in used}
        out.records.extend(
            records.regular_expression_tombstone(group.group_id, expression)
            for expression in group.regexes
            if expression not in used
        )
        existing = existing_topics(group, staying, regexes, self._env.topics)
        if existing != group.topics:
            out.records.append(records.partition_metadata(group.group_id, topics_record(existing)))
        self._env.counts.consumer_group_rebalance(1)
        out.records.append(records.group_epoch(group.group_id, group.group_epoch + 1))

    @staticmethod
    def _remove_records(group_id: str, member_id: str, out: Outcome) -> None:
        out.records += [
            records.current_assignment_tombstone(group_id, member_id),
            records.target_assignment_tombstone(group_id, member_id),
            records.member_metadata_tombstone(group_id, member_id),
        ]

    @staticmethod
    def cancel_timers(group_id: str, member_id: str, out: Outcome) -> None:
        for what in MEMBER_TIMERS:
            out.cancel_timer((what, group_id, member_id))

    def downgrade(
        self, group: ConsumerGroup, leaving_id: str, joining: ConsumerMember | None, out: Outcome, now_ms: int
    ) -> None:
        """Write the group as a classic one, without the member that leaves or with the one that takes its place."""
        classic, assignments = migration.to_classic(group, leaving_id, joining, self._env.topics, now_ms)
        if joining is not None:
            self._remove_records(group.group_id, joining.member_id, out)
        out.records.extend(group.tombstones())
        out.records.append(classic.record(assignments))
        for member_id in group.members:
            self.cancel_timers(group.group_id, member_id, out)
        for member in classic.members.values():
            out.set_timer((HEARTBEAT, group.group_id, member.member_id), member.session_timeout_ms)

    # -- time-outs -----------------------------------------------------------------------------------------------------

    def loaded(self, group: ConsumerGroup, out: Outcome) -> None:
        for member in group.members.values():
            timeout_ms = self._env.group_config(group.group_id).consumer_session_timeout_ms
            if member.classic is not None:
                timeout_ms = member.classic.session_timeout_ms
            out.set_timer((SESSION, group.group_id, member.member_id), timeout_ms)
            if member.state is MemberState.UNREVOKED_PARTITIONS:
                out.set_timer((REBALANCE, group.group_id, member.member_id), member.rebalance_timeout_ms)

    def timer_fired(self, what: object, group: ConsumerGroup, member_id: str, out: Outcome, now_ms: int) -> None:
        member = group.members.get(member_id)
        if member is None:
            return
        if what == REBALANCE and (member.state is not MemberState.UNREVOKED_PARTITIONS or member.member_epoch < 0):
            return
        self.fence(group, member, out, now_ms)


def _check_member_epoch(member: ConsumerMember, received: int, owned: Partitions | None) -> None:
    if received == member.member_epoch:
        return
    if received == member.previous_member_epoch and owned is not None and _is_subset(owned, member.assigned):
        return  # the answer with the new epoch was lost
    relation = "greater" if received > member.member_epoch else "smaller"
    raise Refused(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {relation} member epoch ({received}) than the one known by the group "
        f"coordinator ({member.member_epoch}). The member must abandon all its partitions and rejoin.",
    )


def _is_subset(owned: Partitions, assigned: Partitions) -> bool:
    return all(numbers <= assigned.get(topic_id, frozenset()) for topic_id, numbers in owned.items())


def _owned(listed: Iterable[RequestTopicPartitions]) -> Partitions:
    return {each.topic_id: frozenset(each.partitions) for each in listed if each.partitions}


def _response_assignment(assigned: Partitions) -> Assignment:
    return Assignment(
        topic_partitions=[
            ResponseTopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
            for topic_id, numbers in assigned.items()
        ]
    )


def _unless_none(value: str | None, otherwise: str | None) -> str | None:
    return otherwise if value is None else value
