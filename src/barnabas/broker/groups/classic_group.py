"""A classic group: its members, its state, and its rules.

The log has the hard state: generation, protocol, leader, members and assignments; `load` takes it from a record. Waiting
requests, joining members and a rebalance in progress are soft state: it is lost with the coordinator, and the members' next
requests restore it.

Pure; owner: the group machine.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from barnabas.base.errors import BrokenInvariant, ErrorCode, IllegalTransition, Malformed, Refused
from barnabas.broker.groups import records
from barnabas.broker.groups.classic_member import (
    CONSUMER_PROTOCOL_TYPE,
    NO_MEMBER_ID,
    ClassicMember,
    Protocol,
    subscription_prefix,
)
from barnabas.broker.groups.group import Expiry, GroupType
from barnabas.broker.runtime.machine import Effect, KeyValue, Respond, Ticket
from barnabas.wire.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from barnabas.wire.messages.offsets_topic import GroupMetadataValue, MemberMetadata
from barnabas.wire.messages.sync_group import SyncGroupResponse


class GroupState(Enum):
    """The value is Kafka's name, which tools show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


EMPTY, PREPARING, COMPLETING, STABLE, DEAD = GroupState

#: Every legal transition.
TRANSITIONS: Final[dict[GroupState, frozenset[GroupState]]] = {
    EMPTY: frozenset({PREPARING, DEAD}),
    PREPARING: frozenset({COMPLETING, EMPTY, DEAD}),
    COMPLETING: frozenset({STABLE, PREPARING, DEAD}),
    STABLE: frozenset({PREPARING, DEAD}),
    DEAD: frozenset({DEAD}),
}


class Membership(NamedTuple):
    """The members at one moment, to undo a later change."""

    members: dict[str, ClassicMember]
    leader_id: str | None
    static_members: dict[str, str]
    pending_syncs: set[str]


@dataclass(slots=True, eq=False)
class ClassicGroup:
    group_id: str
    state: GroupState = EMPTY
    previous_state: GroupState = DEAD
    #: None if the record is too old to have it.
    state_timestamp_ms: int | None = None
    protocol_type: str | None = None
    #: Set by each generation that has members.
    protocol: str | None = None
    generation: int = 0
    leader_id: str | None = None
    #: In the order of joining: if the leader leaves, the first remaining member becomes leader.
    members: dict[str, ClassicMember] = field(default_factory=dict)
    #: How many members support each protocol.
    support: Counter[str] = field(default_factory=Counter)
    #: Member ids of static members by `group.instance.id`.
    static_members: dict[str, str] = field(default_factory=dict)
    #: Ids that the coordinator has given out (KIP-394), and with which no member has joined yet.
    pending_joins: set[str] = field(default_factory=set)
    #: Members of the current generation that have not synced yet.
    pending_syncs: set[str] = field(default_factory=set)
    #: None: unknown, because the members' metadata is not that of a consumer.
    subscribed_topics: frozenset[str] | None = None
    #: A member joined during the initial delay, so it is worth waiting for more.
    new_member_added: bool = False
    #: Length of the current initial delay, and how much it may still be extended.
    initial_delay_ms: int = 0
    initial_remaining_ms: int = 0
    #: Number of members whose JoinGroup waits; equal to the number of join tickets.
    awaiting_join: int = 0

    type = GroupType.CLASSIC

    # -- queries -----------------------------------------------------------------------------------------------------

    def is_in(self, *states: GroupState) -> bool:
        return self.state in states

    @property
    def is_empty(self) -> bool:
        return self.state is EMPTY

    @property
    def is_disposable(self) -> bool:
        """Whether the group may be removed when it has no offsets."""
        return self.state is EMPTY and not self.pending_joins

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def can_rebalance(self) -> bool:
        return PREPARING in TRANSITIONS[self.state]

    @property
    def has_all_joined(self) -> bool:
        return len(self.members) == self.awaiting_join and not self.pending_joins

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def state_name(self) -> str:
        return self.state.value

    def is_leader(self, member_id: str) -> bool:
        return self.leader_id == member_id

    def supports(self, protocol_type: str, protocols: Iterable[str]) -> bool:
        """Whether a member with these protocols could join: it must share one protocol with all other members."""
        names = set(protocols)
        if not self.members:
            return bool(protocol_type) and bool(names)
        return self.protocol_type == protocol_type and not names.isdisjoint(self.candidates())

    def candidates(self) -> frozenset[str]:
        """Protocols that every member supports."""
        size = len(self.members)
        return frozenset(name for name, count in self.support.items() if count == size)

    def select_protocol(self) -> str:
        """Each member votes for the first candidate in its list. In a tie the candidate that got its first vote earliest
        wins."""
        candidates = self.candidates()
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote(candidates)
            votes[choice] = votes.get(choice, 0) + 1
        if not votes:
            raise BrokenInvariant(f"group {self.group_id} has no member to choose a protocol")
        return max(votes, key=votes.__getitem__)

    def require_member(self, member_id: str, instance_id: str | None) -> ClassicMember:
        if instance_id is not None:
            owner = self.static_members.get(instance_id)
            if owner is None:
                raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
            if owner != member_id:
                raise Refused(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def is_subscribed_to(self, topic: str) -> bool:
        if self.subscribed_topics is None:
            return self.uses_consumer_protocol
        return topic in self.subscribed_topics

    def check_offset_commit(
        self, member_id: str, instance_id: str | None, generation: int, *, api_version: int, is_transactional: bool
    ) -> None:
        if self.state is DEAD:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if generation < 0 and self.state is EMPTY:
            return  # an administrator, or a consumer without group management
        if generation >= 0 or member_id != NO_MEMBER_ID or instance_id is not None:
            self.require_member(member_id, instance_id)
            if generation != self.generation:
                raise Refused(ErrorCode.ILLEGAL_GENERATION)
        elif not is_transactional:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        if not is_transactional and self.state is COMPLETING:
            # The member knows the new generation, but not its partitions yet: it cannot have processed any of them.
            raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if self.state is DEAD:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND)

    def check_offset_delete(self) -> None:
        if self.state is DEAD:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND)
        if self.state is not EMPTY and not self.uses_consumer_protocol:
            raise Refused(ErrorCode.NON_EMPTY_GROUP)

    def check_delete(self) -> None:
        if self.state is DEAD:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND)
        if self.state is not EMPTY:
            raise Refused(ErrorCode.NON_EMPTY_GROUP)

    def expiry(self) -> Expiry | None:
        """Return when the retention of this group's offsets begins (KIP-211); None while nothing may expire."""
        if self.protocol_type is None:
            return Expiry(since_ms=None)  # a simple consumer: since each commit
        if self.state is EMPTY:
            return Expiry(since_ms=self.state_timestamp_ms)
        if self.uses_consumer_protocol and self.subscribed_topics is not None and self.state is STABLE:
            return Expiry(since_ms=None)
        return None

    # -- changes -------------------------------------------------------------------------------------------------------

    def transition(self, target: GroupState, now_ms: int) -> None:
        if target not in TRANSITIONS[self.state]:
            raise IllegalTransition(f"group {self.group_id} cannot go from {self.state.value} to {target.value}")
        self.previous_state = self.state
        self.state = target
        self.state_timestamp_ms = now_ms

    def add(self, member: ClassicMember, ticket: Ticket | None) -> None:
        if member.instance_id is not None:
            if member.instance_id in self.static_members:
                raise BrokenInvariant(f"group {self.group_id} already has a member {member.instance_id}")
            self.static_members[member.instance_id] = member.member_id
        if not self.members:
            self.protocol_type = member.protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self.support.update(member.names())
        self.pending_joins.discard(member.member_id)
        self.await_join(member, ticket)

    def remove(self, member_id: str) -> None:
        """Remove a member. Does nothing for an unknown id. The caller has answered its waiting requests."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self.support.subtract(member.names())
            if member.join_ticket is not None:
                self.awaiting_join -= 1
            if member.instance_id is not None:
                self.static_members.pop(member.instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_joins.discard(member_id)
        self.pending_syncs.discard(member_id)

    def set_protocols(self, member: ClassicMember, protocols: tuple[Protocol, ...]) -> None:
        self.support.subtract(member.names())
        member.protocols = protocols
        self.support.update(member.names())

    def await_join(self, member: ClassicMember, ticket: Ticket | None) -> None:
        """Set the waiting JoinGroup. The caller has answered the one that it replaces."""
        self.awaiting_join += (ticket is not None) - (member.join_ticket is not None)
        member.join_ticket = ticket

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader has rejoined; False if no member has."""
        if self.leader_id is None:
            return False
        if self.members[self.leader_id].join_ticket is not None:
            return True
        for member in self.members.values():
            if member.join_ticket is not None:
                self.leader_id = member.member_id
                return True
        return False

    def replace_static(self, instance_id: str, new_id: str, effects: list[Effect]) -> ClassicMember:
        """Replace a static member that came back with a new member id. It takes over everything; the old member id is
        fenced."""
        old_id = self.static_members[instance_id]
        old = self.members[old_id]
        self.answer_join(old, JoinGroupResponse(member_id=old_id, error_code=ErrorCode.FENCED_INSTANCE_ID), effects)
        self.answer_sync(old, SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID), effects)
        new = ClassicMember(
            member_id=new_id,
            instance_id=instance_id,
            client_id=old.client_id,
            client_host=old.client_host,
            rebalance_timeout_ms=old.rebalance_timeout_ms,
            session_timeout_ms=old.session_timeout_ms,
            protocol_type=old.protocol_type,
            protocols=old.protocols,
            assignment=old.assignment,
        )
        # The new member keeps its place in the order of joining.
        self.members = {
            new_id if key == old_id else key: new if key == old_id else m for key, m in self.members.items()
        }
        if self.leader_id == old_id:
            self.leader_id = new_id
        self.static_members[instance_id] = new_id
        self.pending_syncs.discard(old_id)
        return new

    def membership(self) -> Membership:
        return Membership(dict(self.members), self.leader_id, dict(self.static_members), set(self.pending_syncs))

    def restore(self, before: Membership) -> None:
        """Restore the membership. The members themselves must not have changed since."""
        self.members, self.leader_id, self.static_members, self.pending_syncs = before
        self.support = self._count_support()

    def _count_support(self) -> Counter[str]:
        return Counter(name for member in self.members.values() for name in member.names())

    def next_generation(self, now_ms: int) -> None:
        self.generation += 1
        if self.members:
            self.protocol = self.select_protocol()
            self.subscribed_topics = self.compute_subscribed_topics()
            self.transition(COMPLETING, now_ms)
        else:
            self.protocol = None
            self.subscribed_topics = self.compute_subscribed_topics()
            self.transition(EMPTY, now_ms)
        self.pending_syncs.clear()

    def compute_subscribed_topics(self) -> frozenset[str] | None:
        if not self.uses_consumer_protocol:
            return None
        if not self.members:
            return frozenset()
        if self.protocol is None:
            return None
        topics: set[str] = set()
        try:
            for member in self.members.values():
                topics.update(subscription_prefix(member.metadata(self.protocol)).topics)
        except Malformed:
            return None
        return frozenset(topics)

    # -- answers -------------------------------------------------------------------------------------------------------

    def answer_join(self, member: ClassicMember, response: JoinGroupResponse, effects: list[Effect]) -> bool:
        if member.join_ticket is None:
            return False
        effects.append(Respond(member.join_ticket, response))
        self.await_join(member, None)
        return True

    def answer_sync(self, member: ClassicMember, response: SyncGroupResponse, effects: list[Effect]) -> bool:
        if member.sync_ticket is None:
            return False
        effects.append(Respond(member.sync_ticket, response))
        member.sync_ticket = None
        return True

    def joined(self, member_id: str) -> JoinGroupResponse:
        """Return the current generation in the form of an answer to a member."""
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            leader=self.leader_id or "",
            member_id=member_id,
        )

    def members_for_leader(self) -> list[JoinGroupResponseMember]:
        assert self.protocol is not None
        return [
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata(self.protocol),
            )
            for member in self.members.values()
        ]

    def tickets(self) -> list[Ticket]:
        """Return all requests that wait for an answer."""
        waiting = [(member.join_ticket, member.sync_ticket) for member in self.members.values()]
        return [ticket for pair in waiting for ticket in pair if ticket is not None]

    # -- the log -------------------------------------------------------------------------------------------------------

    def record(self, assignments: dict[str, bytes]) -> KeyValue:
        """Return the record of the group with these assignments."""
        members = []
        for member in self.members.values():
            assert self.protocol is not None
            members.append(
                MemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata(self.protocol),
                    assignment=assignments[member.member_id],
                )
            )
        value = GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader_id,
            current_state_timestamp=-1 if self.state_timestamp_ms is None else self.state_timestamp_ms,
            members=members,
        )
        return records.group_metadata(self.group_id, value)

    def tombstones(self) -> list[KeyValue]:
        return [records.group_tombstone(self.group_id)]

    def load(self, value: GroupMetadataValue) -> None:
        """Take over the hard state of a record; known members keep their soft state."""
        known = self.members
        self.members = {}
        self.static_members = {}
        for each in value.members:
            chosen = Protocol(value.protocol or "", bytes(each.subscription))
            member = known.get(each.member_id) or ClassicMember(
                member_id=each.member_id,
                instance_id=each.group_instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                rebalance_timeout_ms=0,
                session_timeout_ms=0,
                protocol_type=value.protocol_type,
                protocols=(chosen,),
            )
            if chosen not in member.protocols:
                # The record is from an earlier generation in a log that is being loaded: the member has changed its protocols
                # since.
                member.protocols = (chosen,)
            member.rebalance_timeout_ms = (
                each.session_timeout if each.rebalance_timeout == -1 else each.rebalance_timeout
            )
            member.session_timeout_ms = each.session_timeout
            member.assignment = bytes(each.assignment)
            self.members[each.member_id] = member
            if each.group_instance_id is not None:
                self.static_members[each.group_instance_id] = each.member_id
        state = STABLE if self.members else EMPTY
        if state is not self.state:
            self.previous_state, self.state = self.state, state
        self.protocol_type = value.protocol_type or None
        self.protocol = value.protocol
        self.generation = value.generation
        self.leader_id = value.leader
        self.state_timestamp_ms = None if value.current_state_timestamp == -1 else value.current_state_timestamp
        self.subscribed_topics = self.compute_subscribed_topics()
        self.awaiting_join = sum(member.join_ticket is not None for member in self.members.values())
        self.support = self._count_support()

    def validate(self) -> None:
        """Check the invariants, for tests and debugging."""
        tickets = sum(member.join_ticket is not None for member in self.members.values())
        assert self.awaiting_join == tickets, (self.awaiting_join, tickets)
        names = self._count_support()
        assert +self.support == names, (self.support, names)
        assert self.pending_syncs <= self.members.keys()
        assert self.pending_joins.isdisjoint(self.members)
        assert self.leader_id is None or self.leader_id in self.members
        assert (self.leader_id is None) == (not self.members)
        for instance_id, member_id in self.static_members.items():
            assert self.members[member_id].instance_id == instance_id
        static = sum(member.instance_id is not None for member in self.members.values())
        assert static == len(self.static_members)
        if self.state in (EMPTY, DEAD):
            assert not self.members
        if self.state in (COMPLETING, STABLE):
            assert self.members
            assert self.protocol in self.candidates()
            assert not tickets, "a join cannot wait outside of PreparingRebalance"
        if self.state is not COMPLETING:
            assert not any(member.sync_ticket for member in self.members.values())
