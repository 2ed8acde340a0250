"""A share group (KIP-932): the coordinator assigns partitions to its members, and several members may have the same one.

As in a consumer group, the group epoch grows when subscriptions or topics change, and each epoch gets a target assignment. A
member moves to its target at once, because no other member has to give up anything first. Members are immutable values.

All of this is hard state, unless a field says otherwise: only replay changes it. Pure; owner: the group machine.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NoReturn

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.groups import records
from barnabas.broker.groups.consumer_group import EMPTY
from barnabas.broker.groups.group import Expiry, GroupType, Topics
from barnabas.broker.groups.records import Partitions
from barnabas.broker.groups.share_topics import NO_STATES, StateTopics
from barnabas.broker.runtime.machine import KeyValue
from barnabas.wire.messages import share_group_describe as described
from barnabas.wire.messages import share_group_records as written

SIMPLE: Final = "simple"


class ShareGroupState(Enum):
    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareMember:
    member_id: str
    #: The member's epoch. The previous one is accepted too, because an answer may have been lost.
    member_epoch: int = 0
    previous_member_epoch: int = -1
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topics: frozenset[str] = frozenset()
    #: Partitions that the member may fetch.
    assigned: Partitions = field(default_factory=dict)

    def moved(self, epoch: int, target: Partitions) -> "ShareMember":
        """Return the member with its target of this epoch."""
        if self.member_epoch == epoch:
            return self
        return replace(self, member_epoch=epoch, previous_member_epoch=self.member_epoch, assigned=target)

    def metadata_record(self, group_id: str) -> KeyValue:
        value = written.ShareGroupMemberMetadataValue(
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=sorted(self.subscribed_topics),
        )
        return records.share_member_metadata(group_id, self.member_id, value)

    def assignment_record(self, group_id: str) -> KeyValue:
        return records.share_current_assignment(
            group_id,
            self.member_id,
            member_epoch=self.member_epoch,
            previous_member_epoch=self.previous_member_epoch,
            assigned=self.assigned,
        )

    def with_metadata(self, value: written.ShareGroupMemberMetadataValue) -> "ShareMember":
        return replace(
            self,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed_topics=frozenset(value.subscribed_topic_names),
        )

    def with_assignment(self, value: written.ShareGroupCurrentMemberAssignmentValue) -> "ShareMember":
        return replace(
            self,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            assigned=_partitions(value.assigned_partitions),
        )


@dataclass(slots=True, eq=False)
class ShareGroup:
    group_id: str
    group_epoch: int = 0
    #: The group epoch of the target assignment; at most `group_epoch`.
    target_epoch: int = -1
    #: Stands for the subscribed topics, as they were when the group epoch last changed.
    metadata_hash: int = 0
    members: dict[str, ShareMember] = field(default_factory=dict)
    #: Target assignments by member id.
    target: dict[str, Partitions] = field(default_factory=dict)
    #: The states of the group's share partitions. They outlive the members.
    states: StateTopics = NO_STATES
    #: Soft state: the version of the cluster's topics that the group has used. 0: it must be checked.
    topics_version: int = 0
    #: Soft state: states all of whose partitions are assigned, so that not every heartbeat compares them.
    assigned_states: StateTopics | None = None

    type = GroupType.SHARE

    # -- queries -----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ShareGroupState:
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    def state_name(self) -> str:
        return self.state.value

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def is_disposable(self) -> bool:
        """A share group stays until it is deleted: its progress is at the share coordinators."""
        return False

    def require_member(self, member_id: str) -> ShareMember:
        member = self.members.get(member_id)
        if member is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}.")
        return member

    def is_subscribed_to(self, topic: str) -> bool:
        return any(topic in member.subscribed_topics for member in self.members.values())

    def subscribed_topics(self, members: Iterable[ShareMember]) -> frozenset[str]:
        return frozenset(topic for member in members for topic in member.subscribed_topics)

    def awaits_assignment(self, topics: Topics) -> bool:
        """Whether a subscribed topic has other partitions with a state than those that are assigned."""
        if self.states is self.assigned_states:
            return False
        assigned: dict[bytes, set[int]] = {}
        for partitions in self.target.values():
            for topic_id, numbers in partitions.items():
                assigned.setdefault(topic_id, set()).update(numbers)
        names = self.subscribed_topics(self.members.values())
        if any(
            assigned.get(topic_id, frozenset()) != numbers
            for topic_id, (topic, numbers) in self.states.initialized.items()
            if topic in names and topics.topic_id(topic) == topic_id
        ):
            return True
        self.assigned_states = self.states
        return False

    # -- requests of other protocols -----------------------------------------------------------------------------------

    def check_offset_commit(
        self, member_id: str, instance_id: str | None, generation: int, *, api_version: int, is_transactional: bool
    ) -> None:
        self._refuse_offsets()

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        self._refuse_offsets()

    def check_offset_delete(self) -> None:
        self._refuse_offsets()

    def _refuse_offsets(self) -> NoReturn:
        raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is not a consumer group.")

    def check_delete(self) -> None:
        if self.members:
            raise Refused(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")

    def expiry(self) -> Expiry | None:
        return None

    # -- the log -------------------------------------------------------------------------------------------------------

    def epoch_record(self, epoch: int, metadata_hash: int) -> KeyValue:
        return records.share_group_epoch(self.group_id, epoch, metadata_hash=metadata_hash)

    def tombstones(self) -> list[KeyValue]:
        group_id = self.group_id
        return [
            *(records.share_current_assignment_tombstone(group_id, member_id) for member_id in self.members),
            *(records.share_target_assignment_tombstone(group_id, member_id) for member_id in self.members),
            records.share_target_epoch_tombstone(group_id),
            *(records.share_member_metadata_tombstone(group_id, member_id) for member_id in self.members),
            records.share_state_topics_tombstone(group_id),
            records.share_group_epoch_tombstone(group_id),
        ]

    def remove(self, member_id: str) -> None:
        self.members.pop(member_id, None)
        self.target.pop(member_id, None)

    # -- descriptions -------------------------------------------------------------------------------------------------

    def describe(self, topics: Topics) -> described.DescribedGroup:
        return described.DescribedGroup(
            group_id=self.group_id,
            group_state=self.state_name(),
            group_epoch=self.group_epoch,
            assignment_epoch=self.target_epoch,
            assignor_name=SIMPLE,
            members=[
                described.Member(
                    member_id=member.member_id,
                    rack_id=member.rack_id,
                    member_epoch=member.member_epoch,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    subscribed_topic_names=sorted(member.subscribed_topics),
                    assignment=_described(member.assigned, topics),
                )
                for member in self.members.values()
            ],
        )

    def validate(self) -> None:
        """Check the invariants, for tests and debugging."""
        assert self.target_epoch <= self.group_epoch
        for member in self.members.values():
            assert member.member_epoch <= self.group_epoch
            for numbers in member.assigned.values():
                assert numbers, "an empty set of partitions is kept"
        for member_id in self.target:
            assert member_id in self.members, "a member that left has a target"
        assert not set(self.states.deleting) & {*self.states.initializing, *self.states.initialized}


def _partitions(listed: Iterable[written.TopicPartitions]) -> Partitions:
    return {each.topic_id: frozenset(each.partitions) for each in listed if each.partitions} or EMPTY


def _described(partitions: Partitions, topics: Topics) -> described.Assignment:
    named = ((topics.topic_name(topic_id), topic_id, numbers) for topic_id, numbers in partitions.items())
    return described.Assignment(
        topic_partitions=[
            described.TopicPartitions(topic_id=topic_id, topic_name=name, partitions=sorted(numbers))
            for name, topic_id, numbers in named
            if name is not None  # deleted meanwhile
        ]
    )
