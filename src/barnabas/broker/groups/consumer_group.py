"""A consumer group (KIP-848): the coordinator assigns partitions to its members, and epochs keep the changes in order.

The group epoch grows when subscriptions or topics change. Each epoch gets a target assignment. Members move towards it one by
one: they revoke partitions that are no longer theirs, and get partitions that are free by then. Members are immutable values.

All of this is hard state: only replay changes it. Pure; owner: the group machine.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import Final

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.groups import records
from barnabas.broker.groups.classic_member import CONSUMER_PROTOCOL_TYPE, Protocol
from barnabas.broker.groups.group import Expiry, GroupType, Topics
from barnabas.broker.groups.records import Partitions
from barnabas.broker.runtime.machine import KeyValue
from barnabas.wire.messages import consumer_group_describe as described
from barnabas.wire.messages import consumer_group_records as modern

#: Sent instead of an epoch by a member that leaves for good, and by a static member that will be back.
LEAVING_EPOCH: Final = -1
LEAVING_STATIC_EPOCH: Final = -2
JOINING_EPOCH: Final = 0
#: From this version of OffsetCommit on, the generation may be a member epoch.
MEMBER_EPOCH_FROM: Final = 9

EMPTY: Partitions = {}


class MemberState(IntEnum):
    """A member's progress towards the target; the numbers are those in the records."""

    STABLE = 0
    #: The member was asked to revoke partitions, and has not confirmed it yet.
    UNREVOKED_PARTITIONS = 1
    #: The member waits for partitions that other members have not revoked yet.
    UNRELEASED_PARTITIONS = 2
    #: The record was written by a version that knows more states than this one.
    UNKNOWN = 127


class ConsumerGroupState(Enum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class ClassicTraits:
    """The data of a member that uses the classic protocol in a consumer group."""

    session_timeout_ms: int
    protocols: tuple[Protocol, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    member_id: str
    #: The member's epoch. The previous one is accepted too, because an answer may have been lost.
    member_epoch: int = 0
    previous_member_epoch: int = -1
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    subscribed_topics: frozenset[str] = frozenset()
    subscribed_regex: str | None = None
    server_assignor: str | None = None
    #: Partitions that the member may consume.
    assigned: Partitions = field(default_factory=dict)
    #: Partitions that the member still holds and has been asked to revoke. Disjoint from `assigned`.
    pending_revocation: Partitions = field(default_factory=dict)
    #: None for a member with the consumer protocol.
    classic: ClassicTraits | None = None

    @property
    def uses_classic_protocol(self) -> bool:
        return self.classic is not None

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.member_epoch == target_epoch

    def metadata_record(self, group_id: str) -> KeyValue:
        classic = None
        if self.classic is not None:
            classic = modern.ClassicMemberMetadata(
                session_timeout_ms=self.classic.session_timeout_ms,
                supported_protocols=[
                    modern.ClassicProtocol(name=each.name, metadata=each.metadata) for each in self.classic.protocols
                ],
            )
        value = modern.ConsumerGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=sorted(self.subscribed_topics),
            subscribed_topic_regex=self.subscribed_regex,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.server_assignor,
            classic_member_metadata=classic,
        )
        return records.member_metadata(group_id, self.member_id, value)

    def assignment_record(self, group_id: str) -> KeyValue:
        return records.current_assignment(
            group_id,
            self.member_id,
            member_epoch=self.member_epoch,
            previous_member_epoch=self.previous_member_epoch,
            state=self.state,
            assigned=self.assigned,
            pending_revocation=self.pending_revocation,
        )

    def with_metadata(self, value: modern.ConsumerGroupMemberMetadataValue) -> "ConsumerMember":
        classic = value.classic_member_metadata
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed_topics=frozenset(value.subscribed_topic_names),
            subscribed_regex=value.subscribed_topic_regex,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=None
            if classic is None
            else ClassicTraits(
                classic.session_timeout_ms,
                tuple(Protocol(each.name, bytes(each.metadata)) for each in classic.supported_protocols),
            ),
        )

    def with_assignment(self, value: modern.ConsumerGroupCurrentMemberAssignmentValue) -> "ConsumerMember":
        known = value.state in (0, 1, 2)
        return replace(
            self,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=MemberState(value.state) if known else MemberState.UNKNOWN,
            assigned=_partitions(value.assigned_partitions),
            pending_revocation=_partitions(value.partitions_pending_revocation),
        )


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic as the group last saw it: a change requires a new assignment."""

    topic_id: bytes
    name: str
    partitions: int


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """The topics that a regular expression matched."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


@dataclass(slots=True, eq=False)
class ConsumerGroup:
    group_id: str
    group_epoch: int = 0
    #: The group epoch of the target assignment; at most `group_epoch`.
    target_epoch: int = -1
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    #: Target assignments by member id.
    target: dict[str, Partitions] = field(default_factory=dict)
    #: Topics by name, of those to which the members subscribe and which exist.
    topics: dict[str, TopicMetadata] = field(default_factory=dict)
    regexes: dict[str, ResolvedRegex] = field(default_factory=dict)
    #: Member ids by (topic id, partition) that they hold. No other member gets a partition before it is revoked.
    owners: dict[tuple[bytes, int], str] = field(default_factory=dict)
    #: Soft state: the version of the cluster's topics that the group has used. 0: it must be checked.
    topics_version: int = 0
    #: Soft state: classic members that were asked to rejoin, and have a time-out for it.
    asked_to_rejoin: set[str] = field(default_factory=set)

    type = GroupType.CONSUMER

    # -- queries -----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.group_epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.target_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def state_name(self) -> str:
        return self.state.value

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def is_disposable(self) -> bool:
        return not self.members

    def require_member(self, member_id: str) -> ConsumerMember:
        member = self.members.get(member_id)
        if member is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}.")
        return member

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        member_id = self.static_members.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def require_static_member(self, instance_id: str, member_id: str) -> ConsumerMember:
        member = self.static_member(instance_id)
        if member is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if member.member_id != member_id:
            raise Refused(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member {member.member_id}.",
            )
        return member

    def topics_of(self, member: ConsumerMember, regexes: Mapping[str, ResolvedRegex] | None = None) -> frozenset[str]:
        """Return the topics that match the member's names and its regular expression."""
        if member.subscribed_regex is None:
            return member.subscribed_topics
        resolved = (self.regexes if regexes is None else regexes).get(member.subscribed_regex)
        return member.subscribed_topics if resolved is None else member.subscribed_topics | resolved.topics

    def is_subscribed_to(self, topic: str) -> bool:
        return any(topic in self.topics_of(member) for member in self.members.values())

    def preferred_assignor(self, members: Iterable[ConsumerMember], default: str) -> str:
        """Return the assignor that most members ask for. Members without a preference do not count."""
        votes = Counter(member.server_assignor for member in members if member.server_assignor is not None)
        return max(votes, key=votes.__getitem__) if votes else default

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Whether another member still holds a partition that this member is to get."""
        for topic_id, numbers in self.target.get(member.member_id, EMPTY).items():
            assigned = member.assigned.get(topic_id, frozenset())
            if any(number not in assigned and (topic_id, number) in self.owners for number in numbers):
                return True
        return False

    def check_offset_commit(
        self, member_id: str, instance_id: str | None, generation: int, *, api_version: int, is_transactional: bool
    ) -> None:
        if generation < 0 and not self.members:
            return  # an administrator, or a consumer without group management
        if is_transactional and generation < 0 and not member_id and instance_id is None:
            return  # transactional producers may leave out the consumer
        member = self.require_member(member_id)
        if not is_transactional and not member.uses_classic_protocol and api_version < MEMBER_EPOCH_FROM:
            raise Refused(ErrorCode.UNSUPPORTED_VERSION, "member epochs need OffsetCommit version 9 or later")
        _check_epoch(generation, member)

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is None and member_epoch < 0:
            return
        _check_epoch(member_epoch, self.require_member(member_id or ""))

    def check_offset_delete(self) -> None:
        """Allow the deletion of offsets: a topic without a subscriber may lose them at any time."""

    def check_delete(self) -> None:
        if self.members:
            raise Refused(ErrorCode.NON_EMPTY_GROUP)

    def expiry(self) -> Expiry | None:
        return Expiry(since_ms=None)

    # -- members that speak the classic protocol -----------------------------------------------------------------------

    def supports_classic(self, protocol_type: str, names: set[str]) -> bool:
        if protocol_type != CONSUMER_PROTOCOL_TYPE or not names:
            return False
        classic = [member.classic for member in self.members.values() if member.classic is not None]
        return any(all(name in (p.name for p in each.protocols) for each in classic) for name in names)

    def all_classic_except(self, member_id: str) -> bool:
        """Whether this is the only member with the consumer protocol."""
        return not self.members[member_id].uses_classic_protocol and all(
            member.uses_classic_protocol for key, member in self.members.items() if key != member_id
        )

    # -- the log -------------------------------------------------------------------------------------------------------

    def tombstones(self) -> list[KeyValue]:
        group_id = self.group_id
        return [
            *(records.current_assignment_tombstone(group_id, member_id) for member_id in self.members),
            *(records.target_assignment_tombstone(group_id, member_id) for member_id in self.members),
            records.target_epoch_tombstone(group_id),
            *(records.member_metadata_tombstone(group_id, member_id) for member_id in self.members),
            *(records.regular_expression_tombstone(group_id, expression) for expression in self.regexes),
            records.partition_metadata_tombstone(group_id),
            records.group_epoch_tombstone(group_id),
        ]

    def birth_records(self) -> list[KeyValue]:
        """Return all records of the group, to write a group that is new in the log."""
        group_id = self.group_id
        return [
            *(member.metadata_record(group_id) for member in self.members.values()),
            records.group_epoch(group_id, self.group_epoch),
            *(
                records.target_assignment(group_id, member_id, self.target.get(member_id, EMPTY))
                for member_id in self.members
            ),
            records.target_epoch(group_id, self.target_epoch),
            *(member.assignment_record(group_id) for member in self.members.values()),
        ]

    def put(self, member: ConsumerMember) -> None:
        """Add or replace a member."""
        self._release(member.member_id)
        former = self.members.get(member.member_id)
        if former is not None and former.instance_id != member.instance_id:
            self._forget_instance(former)
        self.members[member.member_id] = member
        for partitions in (member.assigned, member.pending_revocation):
            for topic_id, numbers in partitions.items():
                for number in numbers:
                    self.owners[topic_id, number] = member.member_id
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id

    def remove(self, member_id: str) -> None:
        self._release(member_id)
        member = self.members.pop(member_id, None)
        self.target.pop(member_id, None)
        self.asked_to_rejoin.discard(member_id)
        if member is not None:
            self._forget_instance(member)

    def _forget_instance(self, member: ConsumerMember) -> None:
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member.member_id:
            del self.static_members[member.instance_id]

    def _release(self, member_id: str) -> None:
        member = self.members.get(member_id)
        if member is None:
            return
        for partitions in (member.assigned, member.pending_revocation):
            for topic_id, numbers in partitions.items():
                for number in numbers:
                    if self.owners.get((topic_id, number)) == member_id:
                        del self.owners[topic_id, number]

    # -- descriptions -------------------------------------------------------------------------------------------------

    def describe(self, topics: Topics, default_assignor: str) -> described.DescribedGroup:
        return described.DescribedGroup(
            group_id=self.group_id,
            group_state=self.state_name(),
            group_epoch=self.group_epoch,
            assignment_epoch=self.target_epoch,
            assignor_name=self.preferred_assignor(self.members.values(), default_assignor),
            members=[
                described.Member(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    rack_id=member.rack_id,
                    member_epoch=member.member_epoch,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    subscribed_topic_names=sorted(member.subscribed_topics),
                    subscribed_topic_regex=member.subscribed_regex,
                    assignment=_described(member.assigned, topics),
                    target_assignment=_described(self.target.get(member.member_id, EMPTY), topics),
                    member_type=0 if member.uses_classic_protocol else 1,
                )
                for member in self.members.values()
            ],
        )

    def validate(self) -> None:
        """Check the invariants, for tests and debugging."""
        held: dict[tuple[bytes, int], str] = {}
        for member in self.members.values():
            for partitions in (member.assigned, member.pending_revocation):
                for topic_id, numbers in partitions.items():
                    assert numbers, "an empty set of partitions is kept"
                    for number in numbers:
                        assert (topic_id, number) not in held, f"{topic_id!r}-{number} has two owners"
                        held[topic_id, number] = member.member_id
            assert member.member_epoch <= self.target_epoch or member.member_epoch <= self.group_epoch
        assert held == self.owners
        assert self.target_epoch <= self.group_epoch
        targeted = Counter((t, n) for each in self.target.values() for t, numbers in each.items() for n in numbers)
        assert all(count == 1 for count in targeted.values()), "two members have the same partition as their target"
        static = {m.instance_id: m.member_id for m in self.members.values() if m.instance_id is not None}
        assert static == self.static_members


def _check_epoch(received: int, member: ConsumerMember) -> None:
    if received != member.member_epoch:
        code = ErrorCode.ILLEGAL_GENERATION if member.uses_classic_protocol else ErrorCode.STALE_MEMBER_EPOCH
        raise Refused(code, f"the request has epoch {received}, but the member has {member.member_epoch}")


def _partitions(listed: Iterable[modern.TopicPartitions]) -> Partitions:
    return {each.topic_id: frozenset(each.partitions) for each in listed if each.partitions}


def _described(partitions: Partitions, topics: Topics) -> described.Assignment:
    named = ((topics.topic_name(topic_id), topic_id, numbers) for topic_id, numbers in partitions.items())
    return described.Assignment(
        topic_partitions=[
            described.TopicPartitions(topic_id=topic_id, topic_name=name, partitions=sorted(numbers))
            for name, topic_id, numbers in named
            if name is not None  # deleted meanwhile
        ]
    )
