"""A streams group under random members, topics, standbys, time, failing creations and failovers.

These invariants must always hold: an active task runs at one member, no process has a task twice, member epochs never go back,
every member is watched, and a new coordinator that only replays the log has the state of the old one. What clients run never
overlaps either, although they give up tasks late. Once nothing changes any more, every task runs.
"""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from barnabas.base.config.group_config import GroupConfig
from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.groups.settings import GroupSettings
from barnabas.broker.groups.streams import STREAMS_REBALANCE, STREAMS_SESSION
from barnabas.broker.groups.streams_group import StreamsGroup, TaskState
from tests.unit.broker.groups.group_harness import GROUP, FakeTopics, Harness
from tests.unit.broker.groups.streams_driver import AT_ONCE, StreamsClient, Task, answer_controller, settle

TOPICS = ("t", "r", "c")
SIZE_MAX = 5


def durable(group: StreamsGroup) -> dict[str, object]:
    names = (
        *("group_epoch", "target_epoch", "target_timestamp_ms", "metadata_hash", "validated_topology_epoch"),
        *("assignment_settings", "topology", "members", "target", "active_owners", "copy_owners", "readers"),
    )
    return {name: getattr(group, name) for name in names}


class StreamsModel(RuleBasedStateMachine):
    clients = Bundle("clients")

    @initialize(target=clients)
    def begin(self) -> MultipleResults[StreamsClient]:
        self.h = Harness(GroupSettings(streams_max_size=SIZE_MAX), FakeTopics({"t": 3, "r": 3, "c": 3}))
        self.h.group_configs[GROUP] = AT_ONCE
        self.joined = 0
        self.epochs: dict[str, int] = {}
        #: Clients that have not left, and run what the coordinator gave them until they hear of something else.
        self.alive: dict[str, StreamsClient] = {}
        present = [self.join(process) for process in "ppq"]
        settle(*present)
        for client in present:
            self.epochs[client.member_id] = client.epoch
        return multiple(*present)

    def poll(self, client: StreamsClient) -> ErrorCode:
        code = client.poll_refused()
        if code is ErrorCode.NONE:
            assert client.epoch >= self.epochs.get(client.member_id, 0), "the member epoch went back"
            self.epochs[client.member_id] = client.epoch
        elif code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND):
            client.restart()
        elif code is ErrorCode.INVALID_REQUEST:
            client.restart()  # it has tasks of topics that have fewer partitions now
        return code

    @rule(target=clients, process=st.sampled_from("pqr"))
    def new_client(self, process: str) -> StreamsClient:
        return self.join(process)

    def join(self, process: str) -> StreamsClient:
        self.joined += 1
        client = StreamsClient(self.h, f"m{self.joined}", process)
        self.alive[client.member_id] = client
        code = self.poll(client)
        assert code in (ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED) or self.h.refuses
        return client

    @rule(client=clients)
    def heartbeat(self, client: StreamsClient) -> None:
        self.poll(client)

    @rule(some=st.lists(clients, unique_by=id, min_size=1, max_size=SIZE_MAX), rounds=st.integers(1, 3))
    def heartbeats(self, some: list[StreamsClient], rounds: int) -> None:
        """Without these, random steps hardly ever lead to a group that has all topics and moves tasks."""
        for _ in range(rounds):
            for client in some:
                self.poll(client)

    def a_holder(self, at: int) -> StreamsClient | None:
        """Return one of the clients that have active tasks."""
        holders = [client for client in self.alive.values() if client.active]
        return holders[at % len(holders)] if holders else None

    @rule(at=st.integers(0, SIZE_MAX), is_stuck=st.booleans())
    def keep_tasks(self, at: int, is_stuck: bool) -> None:
        client = self.a_holder(at)
        if client is None:
            return
        client.is_stuck = is_stuck
        group = self.h.machine.groups.get(client.group_id)
        held = group.members.get(client.member_id) if isinstance(group, StreamsGroup) else None
        if not is_stuck and held is not None and client.epoch:
            client.active &= {tuple(task) for task in held.assigned.active}
            client.standby &= {tuple(task) for task in held.assigned.standby}

    @rule(at=st.integers(0, SIZE_MAX))
    def lose_an_answer(self, at: int) -> None:
        client = self.a_holder(at)
        if client is None:
            return
        former = client.epoch, set(client.active), set(client.standby)
        if client.epoch > 0 and self.poll(client) is ErrorCode.NONE:
            client.epoch, client.active, client.standby = former

    @rule(client=clients)
    def send_a_wrong_epoch(self, client: StreamsClient) -> None:
        if client.epoch:
            client.epoch += 1_000
            assert self.poll(client) is not ErrorCode.NONE

    @rule(client=consumes(clients))
    def leave(self, client: StreamsClient) -> None:
        try:
            client.leave()
        except Refused as refusal:
            assert refusal.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND) or self.h.refuses
        client.restart()
        del self.alive[client.member_id]

    @rule(client=clients)
    def restart(self, client: StreamsClient) -> None:
        client.restart()
        self.poll(client)

    @rule(topic=st.sampled_from(TOPICS), count=st.sampled_from([3, 3, 3, 0, 4]))
    def change_topic(self, topic: str, count: int) -> None:
        self.h.topics.set(topic, count)

    @rule(failing=st.sets(st.sampled_from(TOPICS)))
    def controller_answers(self, failing: set[str]) -> None:
        answer_controller(self.h, **dict.fromkeys(failing, "no"))

    @rule(
        standbys=st.integers(0, 2), delay_ms=st.sampled_from([0, 0, 3_000]), interval_ms=st.sampled_from([0, 0, 1_000])
    )
    def configure(self, standbys: int, delay_ms: int, interval_ms: int) -> None:
        self.h.group_configs[GROUP] = GroupConfig(
            streams_num_standby_replicas=standbys,
            streams_initial_rebalance_delay_ms=delay_ms,
            streams_assignment_interval_ms=interval_ms,
        )

    @rule(delta_ms=st.sampled_from([1_000, 1_000, 5_000, 5_000, 30_000, 46_000, 61_000]))
    def let_time_pass(self, delta_ms: int) -> None:
        self.h.advance(delta_ms)

    @rule(is_refusing=st.sampled_from([False, False, True]))
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

    @rule(clients=st.lists(clients, unique_by=id, min_size=1, max_size=SIZE_MAX))
    def calm_down(self, clients: list[StreamsClient]) -> None:
        """Only these members stay; then every task runs once, and as many standbys as there is room for."""
        self.h.refuses = False
        self.h.advance(61_000)  # all sessions end
        self.h.sent.clear()
        for name, count in {"t": 3, "r": 0, "c": 0}.items():
            self.h.topics.set(name, count)
        for client in clients:
            client.restart()
            client.is_stuck = False
        settle(*clients, rounds=1)
        self.h.advance(20_000)  # errors of creations are forgotten, and a delay is over
        for _ in range(7):
            settle(*clients, rounds=1)
            self.h.advance(1_000)
        for client in clients:
            self.epochs[client.member_id] = client.epoch
        assert len({client.epoch for client in clients}) == 1, "the group does not settle"
        everything = {(subtopology, number): 1 for subtopology in "01" for number in range(3)}
        assert Counter(task for client in clients for task in client.active) == everything
        standbys = self.h.group_configs.get(GROUP, GroupConfig()).streams_num_standby_replicas
        room = min(standbys, len({client.process_id for client in clients}) - 1)
        copies = Counter(task for client in clients for task in client.standby)
        assert copies == {("1", number): room for number in range(3) if room}
        assert self.group().state_name() == "Stable"

    def group(self) -> StreamsGroup:
        group = self.h.machine.groups[GROUP]
        assert isinstance(group, StreamsGroup)
        return group

    # -- invariants ----------------------------------------------------------------------------------------------------

    @invariant()
    def tasks_have_one_place(self) -> None:
        for group in self.h.machine.groups.values():
            assert isinstance(group, StreamsGroup)
            group.validate()

    @invariant()
    def clients_that_the_coordinator_knows_run_no_task_twice(self) -> None:
        if GROUP not in self.h.machine.groups:
            return
        running: Counter[Task] = Counter()
        for member_id in self.group().members:
            client = self.alive.get(member_id)
            if client is not None:
                running.update(client.active)
        assert all(count == 1 for count in running.values())

    @invariant()
    def every_member_is_watched(self) -> None:
        for group in self.h.machine.groups.values():
            assert isinstance(group, StreamsGroup)
            for member_id, member in group.members.items():
                assert (STREAMS_SESSION, group.group_id, member_id) in self.h.timers
                is_revoking = member.state is TaskState.UNREVOKED_TASKS
                assert ((STREAMS_REBALANCE, group.group_id, member_id) in self.h.timers) == is_revoking

    @invariant()
    def next_coordinator_would_have_the_same_state(self) -> None:
        fresh = self.h.replayed()
        assert set(fresh.groups) == set(self.h.machine.groups)
        for group_id, group in self.h.machine.groups.items():
            other = fresh.groups[group_id]
            assert isinstance(other, StreamsGroup) and isinstance(group, StreamsGroup)
            assert durable(other) == durable(group)


TestStreamsModel = StreamsModel.TestCase
TestStreamsModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
