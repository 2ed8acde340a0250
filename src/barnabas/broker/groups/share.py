"""The protocol of share groups (KIP-932): members join, stay and leave by one request, ShareGroupHeartbeat.

As for consumer groups, a heartbeat updates the member and perhaps the group epoch, computes a target assignment for a new
epoch, and moves the member to it. In addition the share coordinators must have a state of each share partition before a member
gets it: the heartbeat notes the missing ones and asks the driver to create them, and the driver reports what was created.

Pure; owner: the group machine.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.groups import records
from barnabas.broker.groups.assignors.simple import assign_simple
from barnabas.broker.groups.assignors.spec import MemberSpec
from barnabas.broker.groups.consumer_group import EMPTY, JOINING_EPOCH, LEAVING_EPOCH, TopicMetadata
from barnabas.broker.groups.group import Group, GroupEnvironment, Outcome, Requester, refuse_blank
from barnabas.broker.groups.records import Partitions
from barnabas.broker.groups.share_group import ShareGroup, ShareMember
from barnabas.broker.groups.share_topics import StatePartitions
from barnabas.broker.groups.subscriptions import metadata_hash_of, topics_named
from barnabas.broker.runtime.machine import Result, SendToDriver
from barnabas.wire.messages.share_group_describe import DescribedGroup
from barnabas.wire.messages.share_group_heartbeat import (
    Assignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)

#: Removes a member whose session has ended, by (group id, member id).
SHARE_SESSION: Final = "share session"
#: As a start offset: the leader of the partition applies `share.auto.offset.reset`.
CHOSEN_BY_LEADER: Final = -1
#: Members choose their own ids. Kafka's bound, the length of a UUID as text.
MEMBER_ID_CHARACTERS_MAX: Final = 36


@dataclass(frozen=True, slots=True)
class CreateShareStates:
    """A message to the driver: have the share coordinators create these states, and report what came of it."""

    group_id: str
    state_epoch: int
    #: Start offsets by topic id and partition.
    starts: Mapping[tuple[bytes, int], int]


class ShareProtocol:
    """Operations on share groups of one shard."""

    def __init__(self, groups: dict[str, Group], env: GroupEnvironment) -> None:
        self._groups = groups
        self._env = env
        #: Soft state: when the driver was last asked for states of a topic, by group id and topic id.
        self._asked_ms: dict[tuple[str, bytes], int] = {}

    def find(self, group_id: str) -> ShareGroup | None:
        group = self._groups.get(group_id)
        return group if isinstance(group, ShareGroup) else None

    def require(self, group_id: str) -> ShareGroup:
        group = self.find(group_id)
        if group is None:
            known = f"Group {group_id} is not a share group." if group_id in self._groups else None
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, known or f"Group {group_id} not found.")
        return group

    # -- the request ---------------------------------------------------------------------------------------------------

    def heartbeat(
        self, request: ShareGroupHeartbeatRequest, requester: Requester, now_ms: int
    ) -> Result[ShareGroupHeartbeatResponse]:
        _check(request)
        out = Outcome()
        if request.member_epoch == LEAVING_EPOCH:
            group = self.require(request.group_id)
            self._remove(group, group.require_member(request.member_id), out)
            return out.result(
                ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
            )
        is_joining = request.member_epoch == JOINING_EPOCH
        if is_joining and request.group_id not in self._groups:
            group = ShareGroup(request.group_id)
        else:
            group = self.require(request.group_id)
        self._check_size(group, request.member_id)
        member = self._member_for(group, request)
        updated = replace(
            member,
            rack_id=member.rack_id if request.rack_id is None else request.rack_id,
            client_id=requester.client_id,
            client_host=requester.client_host,
            subscribed_topics=(
                member.subscribed_topics
                if request.subscribed_topic_names is None
                else frozenset(request.subscribed_topic_names)
            ),
        )
        moved = self._advance(group, member, updated, out, now_ms)
        config = self._env.group_config(group.group_id)
        out.set_timer((SHARE_SESSION, group.group_id, member.member_id), config.share_session_timeout_ms)
        response = ShareGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=moved.member_epoch,
            heartbeat_interval_ms=config.share_heartbeat_interval_ms,
        )
        # A member that sends its previous epoch has missed an answer, and perhaps its assignment.
        has_missed_answer = request.member_epoch != member.member_epoch
        if request.subscribed_topic_names is not None or has_missed_answer or moved.assigned != member.assigned:
            response.assignment = _response_assignment(moved.assigned)
        return out.result(response)

    def _check_size(self, group: ShareGroup, member_id: str) -> None:
        size_max = self._env.settings().share_max_size
        if len(group.members) >= size_max and member_id not in group.members:
            raise Refused(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The share group has reached its maximum capacity of {size_max} members.",
            )

    @staticmethod
    def _member_for(group: ShareGroup, request: ShareGroupHeartbeatRequest) -> ShareMember:
        received = request.member_epoch
        if received == JOINING_EPOCH:
            member = group.members.get(request.member_id)
            if member is None:
                return ShareMember(member_id=request.member_id)
            # The member starts over, for example because a response was lost. It keeps its partitions.
            return replace(member, member_epoch=JOINING_EPOCH, previous_member_epoch=JOINING_EPOCH)
        member = group.require_member(request.member_id)
        if received in (member.member_epoch, member.previous_member_epoch):
            return member
        relation = "greater" if received > member.member_epoch else "smaller"
        raise Refused(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The share group member has a {relation} member epoch ({received}) than the one known by the group "
            f"coordinator ({member.member_epoch}). The member must abandon all its partitions and rejoin.",
        )

    # -- the steps -----------------------------------------------------------------------------------------------------

    def _advance(
        self, group: ShareGroup, member: ShareMember, updated: ShareMember, out: Outcome, now_ms: int
    ) -> ShareMember:
        """Write the changed member, update the group epoch and the target if needed, and move the member to it.

        Returns the member after this.
        """
        topics = self._env.topics
        if updated != group.members.get(updated.member_id):
            out.records.append(updated.metadata_record(group.group_id))
        members = {**group.members, updated.member_id: updated}
        existing = topics_named(group.subscribed_topics(members.values()), topics)
        has_changed = updated.subscribed_topics != member.subscribed_topics or group.awaits_assignment(topics)
        epoch, target_epoch = group.group_epoch, group.target_epoch
        metadata_hash = group.metadata_hash
        if has_changed or group.topics_version != topics.version:
            metadata_hash = metadata_hash_of(existing)
            if has_changed or metadata_hash != group.metadata_hash:
                epoch += 1
                self._env.counts.share_group_rebalance(1)
                out.records.append(group.epoch_record(epoch, metadata_hash))
            else:
                group.topics_version = topics.version
        target = group.target.get(updated.member_id, EMPTY)
        if epoch > target_epoch:
            targets = _compute_target(group, members, existing)
            for member_id, partitions in targets.items():
                if group.target.get(member_id) != partitions:
                    out.records.append(records.share_target_assignment(group.group_id, member_id, partitions))
            out.records.append(records.share_target_epoch(group.group_id, epoch))
            target, target_epoch = targets[updated.member_id], epoch
        moved = updated.moved(target_epoch, target)
        if moved != updated:
            out.records.append(moved.assignment_record(group.group_id))
        self._create_states(group, existing, epoch, out, now_ms)
        return moved

    def _create_states(
        self, group: ShareGroup, existing: Mapping[str, TopicMetadata], epoch: int, out: Outcome, now_ms: int
    ) -> None:
        """Have states created for the partitions of subscribed topics that have none yet.

        A group that knows the topic reads a new partition from its first record on (KAFKA-20742): with `latest` it would lose
        the records that were produced before the coordinator noticed the partition.
        """
        retry_ms = self._env.settings().share_initialize_retry_ms
        missing: dict[bytes, StatePartitions] = {}
        for name, topic in existing.items():
            present = group.states.initialized_partitions(topic.topic_id)
            if len(present) >= topic.partitions:
                continue
            asked_ms = self._asked_ms.get((group.group_id, topic.topic_id))
            if asked_ms is not None and now_ms - asked_ms < retry_ms:
                present = group.states.known_partitions(topic.topic_id)
            if absent := frozenset(range(topic.partitions)) - present:
                missing[topic.topic_id] = StatePartitions(name, absent)
        if not missing:
            return
        out.records.append(group.states.begin(missing).record(group.group_id))
        self.note_asked(group.group_id, missing, now_ms)
        starts = {
            (topic_id, number): CHOSEN_BY_LEADER if topic_id not in group.states.initialized else 0
            for topic_id, each in missing.items()
            for number in each.partitions
        }
        out.effects.append(SendToDriver(CreateShareStates(group.group_id, epoch, starts)))

    def note_asked(self, group_id: str, topic_ids: Iterable[bytes], now_ms: int) -> None:
        """The driver asks for states of these topics: heartbeats need not do so before the retry interval has passed."""
        for topic_id in topic_ids:
            self._asked_ms[group_id, topic_id] = now_ms

    # -- leaving -------------------------------------------------------------------------------------------------------

    def _remove(self, group: ShareGroup, member: ShareMember, out: Outcome) -> None:
        group_id, member_id = group.group_id, member.member_id
        out.records += [
            records.share_current_assignment_tombstone(group_id, member_id),
            records.share_target_assignment_tombstone(group_id, member_id),
            records.share_member_metadata_tombstone(group_id, member_id),
        ]
        staying = [each for each in group.members.values() if each is not member]
        metadata_hash = metadata_hash_of(topics_named(group.subscribed_topics(staying), self._env.topics))
        self._env.counts.share_group_rebalance(1)
        out.records.append(group.epoch_record(group.group_epoch + 1, metadata_hash))
        out.cancel_timer((SHARE_SESSION, group_id, member_id))

    def session_expired(self, group: ShareGroup, member_id: object, out: Outcome) -> None:
        member = group.members.get(str(member_id))
        if member is not None:
            self._remove(group, member, out)

    def loaded(self, group: ShareGroup, out: Outcome) -> None:
        timeout_ms = self._env.group_config(group.group_id).share_session_timeout_ms
        for member_id in group.members:
            out.set_timer((SHARE_SESSION, group.group_id, member_id), timeout_ms)

    # -- states of share partitions -------------------------------------------------------------------------------------

    def states_created(self, group_id: str, created: Partitions, failed: Partitions) -> Result[None]:
        """Note the answers of the share coordinators. Members get the partitions with their next heartbeats."""
        for topic_id in (*created, *failed):
            self._asked_ms.pop((group_id, topic_id), None)
        out = Outcome()
        group = self.find(group_id)
        if group is not None:
            states = group.states.created(created).failed(failed)
            if states != group.states:
                out.records.append(states.record(group_id))
        return out.result()

    def states_deleted(self, group_id: str, topic_ids: Collection[bytes]) -> Result[bool]:
        """The share coordinators have deleted all states of the group for these topics. True if the group still exists."""
        out = Outcome()
        group = self.find(group_id)
        if group is not None:
            deleting = {topic_id: name for topic_id, name in group.states.deleting.items() if topic_id not in topic_ids}
            out.records.append(replace(group.states, deleting=deleting).record(group_id))
        return out.result(group is not None)

    def forget_topics(self, topic_ids: Collection[bytes], out: Outcome) -> None:
        """Topics were deleted, and the share coordinators remove their states themselves."""
        for group in self._groups.values():
            if isinstance(group, ShareGroup) and not group.states.topic_ids.isdisjoint(topic_ids):
                out.records.append(group.states.forget(topic_ids).record(group.group_id))

    # -- descriptions --------------------------------------------------------------------------------------------------

    def describe(self, group_id: str) -> DescribedGroup:
        try:
            return self.require(group_id).describe(self._env.topics)
        except Refused as refusal:
            return DescribedGroup(group_id=group_id, error_code=refusal.code, error_message=refusal.message)


def _check(request: ShareGroupHeartbeatRequest) -> None:
    if not request.member_id.strip() or len(request.member_id) > MEMBER_ID_CHARACTERS_MAX:
        raise Refused(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")
    refuse_blank(request.group_id, "GroupId")
    refuse_blank(request.rack_id, "RackId")
    if request.member_epoch == JOINING_EPOCH and not request.subscribed_topic_names:
        raise Refused(ErrorCode.INVALID_REQUEST, "SubscribedTopicNames must be set in first request.")
    if request.member_epoch < LEAVING_EPOCH:
        raise Refused(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")


def _compute_target(
    group: ShareGroup, members: Mapping[str, ShareMember], existing: Mapping[str, TopicMetadata]
) -> dict[str, Partitions]:
    """Assign the partitions that have a state. Members keep former partitions if possible."""
    specs = {
        member_id: MemberSpec(
            instance_id=None,
            rack_id=member.rack_id,
            topics=frozenset(existing[name].topic_id for name in member.subscribed_topics if name in existing),
            current=group.target.get(member_id, EMPTY),
        )
        for member_id, member in members.items()
    }
    assignable = {
        topic.topic_id: group.states.initialized_partitions(topic.topic_id) & frozenset(range(topic.partitions))
        for topic in existing.values()
    }
    return assign_simple(specs, assignable)


def _response_assignment(assigned: Partitions) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, partitions=sorted(numbers)) for topic_id, numbers in assigned.items()
        ]
    )
