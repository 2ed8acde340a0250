"""Groups under random members, time and failovers, with invariants that have names.

Members follow the protocol, but are late, repeat themselves, crash, come back and send wrong epochs. These invariants must
always hold: no ticket is lost, no ticket is answered twice, a stable generation assigns every partition once, member epochs
never go back, and a new coordinator that only replays the log has the state of the old one.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.groups.classic import HEARTBEAT, INITIAL, JOIN, SYNC
from barnabas.broker.groups.classic_group import DEAD, EMPTY, PREPARING, STABLE, ClassicGroup
from barnabas.broker.groups.consumer import REBALANCE, SESSION
from barnabas.broker.groups.consumer_group import ConsumerGroup, MemberState
from barnabas.broker.groups.settings import GroupSettings, MigrationPolicy
from barnabas.broker.runtime.machine import Ticket
from tests.unit.broker.groups.consumer_driver import Client
from tests.unit.broker.groups.group_harness import GROUP, FakeTopics, Harness, subscription

PARTITIONS = 6
#: Protocols of classic members, in order of preference: the group's choice changes as members come and go.
PREFERENCES = (("range", "sticky"), ("sticky", "range"), ("sticky",))


def durable_classic(group: ClassicGroup) -> dict[str, Any]:
    """Return the state in the log, of a group without a rebalance in progress."""
    return {
        "state": group.state,
        "generation": group.generation,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "leader": group.leader_id,
        "static": group.static_members,
        "subscribed_topics": group.subscribed_topics,
        "members": {
            key: (
                m.instance_id,
                m.client_id,
                m.session_timeout_ms,
                m.rebalance_timeout_ms,
                m.assignment,
                m.metadata(group.protocol or ""),
            )
            for key, m in group.members.items()
        },
    }


def durable_consumer(group: ConsumerGroup) -> dict[str, Any]:
    return {
        name: getattr(group, name)
        for name in (
            "group_epoch",
            "target_epoch",
            "members",
            "static_members",
            "target",
            "topics",
            "regexes",
            "owners",
        )
    }


def assert_replay_agrees(h: Harness) -> None:
    live, fresh = h.machine, h.replayed()
    for group_id, group in live.groups.items():
        other = fresh.groups.get(group_id)
        if isinstance(group, ClassicGroup):
            # The machine may know that a group is empty before it can write that; members from the log expire again.
            if group.state is STABLE or (group.state is EMPTY and group.generation > 0 and not h.is_behind):
                assert isinstance(other, ClassicGroup)
                assert durable_classic(other) == durable_classic(group)
        else:
            assert isinstance(group, ConsumerGroup)
            assert isinstance(other, ConsumerGroup)
            assert durable_consumer(other) == durable_consumer(group)
    for group_id in fresh.groups:
        assert group_id in live.groups, f"{group_id} comes back from the dead"


def assert_everybody_is_watched(h: Harness) -> None:
    """A silent member with partitions loses them: a timer runs, or the member waits in a phase that has a timer."""
    for group in h.machine.groups.values():
        group_id = group.group_id
        if isinstance(group, ClassicGroup):
            for member in group.members.values():
                waits = member.join_ticket is not None or member.sync_ticket is not None
                assert waits or (HEARTBEAT, group_id, member.member_id) in h.timers, member
            for member_id in group.pending_joins:
                assert (HEARTBEAT, group_id, member_id) in h.timers
            if group.state is PREPARING:
                assert (JOIN, group_id) in h.timers or (INITIAL, group_id) in h.timers
            if group.pending_syncs:
                assert (SYNC, group_id, group.generation) in h.timers
        else:
            assert isinstance(group, ConsumerGroup)
            for member_id, each in group.members.items():
                assert (SESSION, group_id, member_id) in h.timers
                if each.state is MemberState.UNREVOKED_PARTITIONS and each.member_epoch > 0:
                    assert each.uses_classic_protocol or (REBALANCE, group_id, member_id) in h.timers


class ClassicModel(RuleBasedStateMachine):
    """Classic members, dynamic and static."""

    members = Bundle("members")

    @initialize(delay_ms=st.sampled_from([0, 3_000]), max_size=st.sampled_from([2, 100]))
    def begin(self, delay_ms: int, max_size: int) -> None:
        self.h = Harness(GroupSettings(initial_rebalance_delay_ms=delay_ms, max_size=max_size))
        self.generation: dict[str, int] = {}
        self.instance: dict[str, str | None] = {}
        self.joins: dict[Ticket, str] = {}
        self.top_generation = 0

    def _note_joins(self) -> None:
        for ticket in [each for each in self.joins if each in self.h.answers]:
            answer, member_id = self.h.answers[ticket], self.joins.pop(ticket)
            if isinstance(answer, Refused) or answer.error_code:
                continue
            self.generation[answer.member_id or member_id] = answer.generation_id

    def _join(
        self,
        member_id: str,
        instance_id: str | None,
        topic: str,
        version: int,
        names: tuple[str, ...] = PREFERENCES[0],
    ) -> str:
        ticket = self.h.send_join(
            member_id,
            instance_id=instance_id,
            version=version,
            protocols=[(name, subscription(topic)) for name in names],
            session_timeout_ms=10_000,
            rebalance_timeout_ms=30_000,
        )
        answer = self.h.answers.get(ticket)
        if answer is not None and not isinstance(answer, Refused) and answer.member_id:
            member_id = answer.member_id
        elif ticket in self.h.waiting:
            group = self.h.group()
            member_id = next(m.member_id for m in group.members.values() if m.join_ticket is ticket)
        self.joins[ticket] = member_id
        self.instance[member_id] = instance_id
        self._note_joins()
        return member_id

    @rule(
        target=members,
        instance_id=st.sampled_from([None, None, "i0", "i1"]),
        topic=st.sampled_from("tu"),
        version=st.sampled_from([3, 9]),
        names=st.sampled_from(PREFERENCES),
    )
    def new_member(self, instance_id: str | None, topic: str, version: int, names: tuple[str, ...]) -> Any:
        member_id = self._join("", instance_id, topic, version, names)
        return member_id if member_id else multiple()

    @rule(member_id=members, topic=st.sampled_from("tu"), names=st.sampled_from(PREFERENCES))
    def rejoin(self, member_id: str, topic: str, names: tuple[str, ...]) -> None:
        self._join(member_id, self.instance.get(member_id), topic, 9, names)

    @rule(member_id=members)
    def sync(self, member_id: str) -> None:
        generation = self.generation.get(member_id, 0)
        group = self.h.machine.groups.get(GROUP)
        assignments: dict[str, bytes] = {}
        if isinstance(group, ClassicGroup) and group.members:
            ids = list(group.members)
            for number in range(PARTITIONS):
                owner = ids[number % len(ids)]
                assignments[owner] = assignments.get(owner, b"") + bytes([number])
        self.h.send_sync(member_id, generation, assignments, instance_id=self.instance.get(member_id))

    @rule(member_id=members)
    def heartbeat(self, member_id: str) -> None:
        self.h.heartbeat(member_id, self.generation.get(member_id, 0), instance_id=self.instance.get(member_id))

    @rule(data=st.data())
    def client_disconnects(self, data: st.DataObject) -> None:
        waiting = [each for each in self.joins if each in self.h.waiting]
        if waiting:
            ticket = data.draw(st.sampled_from(waiting))
            self.h.carry_out(self.h.machine.join_abandoned(GROUP, lambda each: each is ticket, self.h.now_ms), None)
            self.h.issued.remove(ticket)
            del self.joins[ticket]
            self._note_joins()

    @rule(member_id=consumes(members))
    def leave(self, member_id: str) -> None:
        try:
            self.h.leave((member_id, self.instance.get(member_id)))
        except Refused as refusal:
            assert refusal.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    @rule(is_lacking=st.booleans())
    def replicas_come_and_go(self, is_lacking: bool) -> None:
        """While too few replicas are in sync, the log refuses records."""
        self.h.refuses = is_lacking

    @rule(delta_ms=st.sampled_from([1, 1_000, 5_000, 11_000, 31_000, 301_000]))
    def time_passes(self, delta_ms: int) -> None:
        self.h.advance(delta_ms)
        self._note_joins()

    @rule()
    def coordinator_moves(self) -> None:
        self.h.fail_over()
        self._note_joins()

    @rule()
    def everybody_plays_along(self) -> None:
        """If all members follow the protocol, a group becomes stable."""
        self.h.refuses = False
        group = self.h.machine.groups.get(GROUP)
        if not isinstance(group, ClassicGroup):
            return
        for _ in range(4):
            self.h.advance(3_000)
            for member in list(group.members.values()):
                if member.join_ticket is None and group.state.value == "PreparingRebalance":
                    self._join(member.member_id, member.instance_id, "t", 9)
            for member_id in list(group.members):
                self.sync(member_id) if self.generation.get(member_id) == group.generation else None
            if group.leader_id is not None:
                self.generation[group.leader_id] = group.generation
                self.sync(group.leader_id)
        # The group is dead: it was empty, and was removed while time passed.
        assert group.state in (STABLE, EMPTY, DEAD) or group.pending_joins or group.awaiting_join

    @invariant()
    def no_ticket_is_lost(self) -> None:
        if not hasattr(self, "h"):
            return
        held = self.h.machine.unloaded()
        assert set(held) == set(self.h.waiting)
        assert len(held) == len(set(held))

    @invariant()
    def groups_are_consistent(self) -> None:
        for group in self._groups():
            group.validate()

    @invariant()
    def every_partition_is_owned_once_in_a_stable_generation(self) -> None:
        for group in self._groups():
            if group.state is STABLE:
                given = b"".join(member.assignment for member in group.members.values())
                assert len(given) == len(set(given))

    @invariant()
    def generations_never_go_back(self) -> None:
        # A rebalance in progress at a fail-over may be repeated with the same number: it was never written.
        if not self._groups():
            self.top_generation = 0  # forgotten, since it was empty and had no offsets
        for group in self._groups():
            if group.state is STABLE:
                assert group.generation >= self.top_generation
                self.top_generation = group.generation

    @invariant()
    def replaying_the_log_gives_the_same_state(self) -> None:
        if hasattr(self, "h"):
            assert_replay_agrees(self.h)

    @invariant()
    def everybody_is_watched(self) -> None:
        if hasattr(self, "h"):
            assert_everybody_is_watched(self.h)

    def _groups(self) -> list[ClassicGroup]:
        if not hasattr(self, "h"):
            return []
        return [group for group in self.h.machine.groups.values() if isinstance(group, ClassicGroup)]


class ConsumerModel(RuleBasedStateMachine):
    """Members with the consumer protocol; partitions, topics and coordinators come and go."""

    clients = Bundle("clients")

    @initialize(policy=st.sampled_from(MigrationPolicy))
    def begin(self, policy: MigrationPolicy) -> None:
        self.h = Harness(
            GroupSettings(initial_rebalance_delay_ms=0, migration_policy=policy), FakeTopics({"t": PARTITIONS, "u": 2})
        )
        self.count = 0
        self.alive: list[Client] = []

    @rule(
        target=clients,
        topics=st.sets(st.sampled_from("tuv"), min_size=1),
        regex=st.sampled_from([None, None, "[tu]"]),
        instance_id=st.sampled_from([None, None, "i0", "i1"]),
        assignor=st.sampled_from([None, "uniform", "range"]),
    )
    def new_client(self, topics: set[str], regex: str | None, instance_id: str | None, assignor: str | None) -> Any:
        self.count += 1
        client = Client(
            self.h,
            f"m{self.count}",
            topics=sorted(topics),
            regex=regex,
            instance_id=instance_id,
            assignor=assignor,
        )
        if client.poll_refused() is not ErrorCode.NONE:
            return multiple()
        self.alive.append(client)
        return client

    @rule(client=clients)
    def poll(self, client: Client) -> None:
        before = client.epoch
        code = client.poll_refused()
        if code is ErrorCode.NONE:
            assert client.epoch >= before, "member epochs never go back"
            if client not in self.alive:
                self.alive.append(client)
            return
        assert code in (
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.FENCED_MEMBER_EPOCH,
            ErrorCode.FENCED_INSTANCE_ID,
            ErrorCode.UNRELEASED_INSTANCE_ID,
            ErrorCode.GROUP_ID_NOT_FOUND,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
        )
        if code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
            return
        client.epoch, client.owned = 0, set()  # gives everything up and starts over
        if client in self.alive:
            self.alive.remove(client)

    @rule(client=clients, topics=st.sets(st.sampled_from("tuv"), min_size=1))
    def subscribe(self, client: Client, topics: set[str]) -> None:
        client.topics = sorted(topics)
        self.poll(client)

    @rule(client=clients, instance_id=st.sampled_from([None, "i0", "i1", "i2"]))
    def comes_back_under_another_name(self, client: Client, instance_id: str | None) -> None:
        client.instance_id, client.epoch, client.owned = instance_id, 0, set()
        self.poll(client)

    @rule(client=clients)
    def answer_is_lost(self, client: Client) -> None:
        """The coordinator moved the member on, but the member missed the answer."""
        epoch, owned = client.epoch, set(client.owned)
        if epoch > 0 and client.poll_refused() is ErrorCode.NONE:
            client.epoch, client.owned = epoch, owned

    @rule(client=consumes(clients), for_good=st.booleans())
    def leave(self, client: Client, for_good: bool) -> None:
        epoch = -1 if for_good or client.instance_id is None else -2
        try:
            client.leave(epoch)
        except Refused as refusal:
            assert refusal.code in (
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.GROUP_ID_NOT_FOUND,
                ErrorCode.FENCED_INSTANCE_ID,
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
            )
        if client in self.alive:
            self.alive.remove(client)

    @rule(is_lacking=st.booleans())
    def replicas_come_and_go(self, is_lacking: bool) -> None:
        self.h.refuses = is_lacking

    @rule(name=st.sampled_from("tuv"), count=st.integers(0, 8))
    def topic_changes(self, name: str, count: int) -> None:
        """Partitions only grow, unless the topic is deleted."""
        if count == 0 or count > self.h.topics.partition_count(name):
            self.h.topics.set(name, count)

    @rule(delta_ms=st.sampled_from([1, 10_000, 46_000, 61_000]))
    def time_passes(self, delta_ms: int) -> None:
        self.h.advance(delta_ms)

    @rule()
    def coordinator_moves(self) -> None:
        self.h.fail_over()

    @rule()
    def classic_member_tries_its_luck(self) -> None:
        self.h.refuses = False
        ticket = self.h.send_join(version=3, protocols=[("range", subscription("t"))])
        if ticket in self.h.waiting or not isinstance(self.h.machine.groups.get(GROUP), ConsumerGroup):
            # It could join because no other member was there: it leaves again, so that the others can join.
            group = self.h.machine.groups[GROUP]
            assert isinstance(group, ClassicGroup)
            self.h.leave(*group.members)

    @rule()
    def everybody_plays_along(self) -> None:
        """If all members follow the protocol, every partition of every subscribed topic ends with exactly one of them."""
        self.h.refuses = False
        group = self._group()
        if group is None:
            return
        present = [each for each in self.alive if each.member_id in group.members]
        for _ in range(12):
            for client in list(present):
                if client.poll_refused() is not ErrorCode.NONE:
                    present.remove(client)
                    client.epoch, client.owned = 0, set()
        self.alive = [each for each in self.alive if each in present]
        if set(group.members) != {each.member_id for each in present} or not present:
            return
        assert group.state_name() == "Stable"
        owned = [place for each in present for place in each.owned]
        wanted = {
            (topic, number)
            for member in group.members.values()
            for topic in group.topics_of(member)
            for number in range(self.h.topics.partition_count(topic))
        }
        assert sorted(owned) == sorted(wanted)

    @invariant()
    def groups_are_consistent(self) -> None:
        group = self._group()
        if group is not None:
            group.validate()

    @invariant()
    def no_partition_is_consumed_by_two(self) -> None:
        """A client that is a valid member holds no partition that the coordinator assigned to another."""
        group = self._group()
        if group is None:
            return
        for client in self.alive:
            member = group.members.get(client.member_id)
            if member is None or member.member_epoch != client.epoch or member.state is MemberState.UNKNOWN:
                continue
            for topic, number in client.owned:
                owner = group.owners.get((FakeTopics.id_of(topic), number))
                assert owner in (None, client.member_id)

    @invariant()
    def replaying_the_log_gives_the_same_state(self) -> None:
        if hasattr(self, "h"):
            assert_replay_agrees(self.h)

    @invariant()
    def everybody_is_watched(self) -> None:
        if hasattr(self, "h"):
            assert_everybody_is_watched(self.h)

    @invariant()
    def no_ticket_is_lost(self) -> None:
        if hasattr(self, "h"):
            assert set(self.h.machine.unloaded()) == set(self.h.waiting)

    def _group(self) -> ConsumerGroup | None:
        group = self.h.machine.groups.get(GROUP) if hasattr(self, "h") else None
        return group if isinstance(group, ConsumerGroup) else None


TestClassicModel = ClassicModel.TestCase
TestClassicModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestConsumerModel = ConsumerModel.TestCase
TestConsumerModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
