"""A share group under random members, topics, time, failing share coordinators and failovers.

These invariants must always hold: no member has a partition without a state, member epochs never go back, every member is
watched, and a new coordinator that only replays the log has the state of the old one. Once nothing changes any more, every
partition has the number of members that the simple assignor promises.
"""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.groups.settings import GroupSettings
from barnabas.broker.groups.share import SHARE_SESSION
from barnabas.broker.groups.share_group import ShareGroup
from tests.unit.broker.groups.group_harness import GROUP, FakeTopics, Harness
from tests.unit.broker.groups.share_driver import ShareClient, answer_share_coordinators, settle

TOPICS = ("t", "u", "v")
SIZE_MAX = 6


def durable(group: ShareGroup) -> dict[str, object]:
    return {
        name: getattr(group, name)
        for name in ("group_epoch", "target_epoch", "metadata_hash", "members", "target", "states")
    }


class ShareModel(RuleBasedStateMachine):
    clients = Bundle("clients")

    @initialize()
    def begin(self) -> None:
        self.h = Harness(GroupSettings(share_max_size=SIZE_MAX), FakeTopics({"t": 3, "u": 1}))
        self.joined = 0
        self.epochs: dict[str, int] = {}

    def poll(self, client: ShareClient) -> ErrorCode:
        code = client.poll_refused()
        if code is ErrorCode.NONE:
            assert client.epoch >= self.epochs.get(client.member_id, 0), "the member epoch went back"
            self.epochs[client.member_id] = client.epoch
        elif code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND):
            client.epoch, client.owned, client.is_full = 0, set(), True
        return code

    @rule(target=clients, topics=st.sets(st.sampled_from(TOPICS), min_size=1))
    def join(self, topics: set[str]) -> ShareClient:
        self.joined += 1
        client = ShareClient(self.h, f"m{self.joined}", topics=sorted(topics))
        code = self.poll(client)
        assert code in (ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED) or self.h.refuses
        return client

    @rule(client=clients)
    def heartbeat(self, client: ShareClient) -> None:
        self.poll(client)

    @rule(client=clients, topics=st.sets(st.sampled_from(TOPICS), min_size=1))
    def subscribe(self, client: ShareClient, topics: set[str]) -> None:
        client.subscribe(*sorted(topics))
        self.poll(client)

    @rule(client=clients)
    def lose_an_answer(self, client: ShareClient) -> None:
        epoch, owned = client.epoch, client.owned
        if epoch > 0 and self.poll(client) is ErrorCode.NONE:
            client.epoch, client.owned = epoch, owned

    @rule(client=clients)
    def send_a_wrong_epoch(self, client: ShareClient) -> None:
        if client.epoch:
            client.epoch += 1_000
            assert self.poll(client) is not ErrorCode.NONE

    @rule(client=consumes(clients))
    def leave(self, client: ShareClient) -> None:
        try:
            client.leave()
        except Refused as refusal:
            assert refusal.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND) or self.h.refuses

    @rule(client=clients)
    def restart(self, client: ShareClient) -> None:
        client.epoch, client.owned, client.is_full = 0, set(), True
        self.poll(client)

    @rule(topic=st.sampled_from(TOPICS), more=st.integers(1, 3))
    def add_partitions(self, topic: str, more: int) -> None:
        self.h.topics.set(topic, min(6, self.h.topics.partition_count(topic) + more))

    @rule(topic=st.sampled_from(TOPICS))
    def delete_topic(self, topic: str) -> None:
        self.h.topics.set(topic, 0)
        self.h.carry_out(self.h.machine.topics_deleted({topic}, {FakeTopics.id_of(topic)}), None)

    @rule(failing=st.sets(st.tuples(st.sampled_from(TOPICS), st.integers(0, 5)), max_size=3))
    def share_coordinators_answer(self, failing: set[tuple[str, int]]) -> None:
        answer_share_coordinators(self.h, *failing)

    @rule(delta_ms=st.sampled_from([5_000, 30_000, 46_000]))
    def let_time_pass(self, delta_ms: int) -> None:
        self.h.advance(delta_ms)

    @rule(is_refusing=st.booleans())
    def log_refuses(self, is_refusing: bool) -> None:
        self.h.refuses = is_refusing

    @rule()
    def fail_over(self) -> None:
        self.h.refuses = False
        self.h.sent.clear()
        self.h.fail_over()

    @rule()
    def delete_group(self) -> None:
        if not self.h.refuses:
            self.h.ask(lambda machine: machine.delete_groups([GROUP]))
            if GROUP not in self.h.machine.groups:
                self.epochs.clear()

    @rule(clients=st.lists(clients, unique_by=id, min_size=1))
    def calm_down(self, clients: list[ShareClient]) -> None:
        """Only these members stay; then every partition has as many members as it should."""
        self.h.refuses = False
        self.h.advance(60_000)  # all sessions end
        for client in clients:
            client.epoch, client.owned, client.is_full = 0, set(), True
        settle(*clients[:SIZE_MAX], rounds=5)
        present = clients[:SIZE_MAX]
        for client in present:
            self.epochs[client.member_id] = client.epoch
        assert len({client.epoch for client in present}) == 1, "the group does not settle"
        if len({tuple(client.topics) for client in present}) == 1:
            places = [(t, n) for t in present[0].topics for n in range(self.h.topics.partition_count(t))]
            shared = Counter(place for client in present for place in client.owned)
            expected = {place: -(-len(present) // len(places)) for place in places}
            assert shared == expected
        for client in present:
            for topic in client.topics:
                assert bool(client.numbers(topic)) or self.h.topics.partition_count(topic) < len(present)

    # -- invariants ----------------------------------------------------------------------------------------------------

    @invariant()
    def members_have_only_partitions_with_a_state(self) -> None:
        for group in self.h.machine.groups.values():
            assert isinstance(group, ShareGroup)
            group.validate()
            for targets in group.target.values():
                for topic_id, numbers in targets.items():
                    # The targets of a deleted topic go with the next heartbeat.
                    assert numbers <= group.states.initialized_partitions(topic_id) or (
                        group.topics_version != self.h.topics.version
                    )

    @invariant()
    def every_member_is_watched(self) -> None:
        for group in self.h.machine.groups.values():
            for member_id in group.members:
                assert (SHARE_SESSION, group.group_id, member_id) in self.h.timers

    @invariant()
    def next_coordinator_would_have_the_same_state(self) -> None:
        fresh = self.h.replayed()
        assert set(fresh.groups) == set(self.h.machine.groups)
        for group_id, group in self.h.machine.groups.items():
            other = fresh.groups[group_id]
            assert durable(other) == durable(group)


TestShareModel = ShareModel.TestCase
TestShareModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
