"""Share partitions over many leaders, resets, deletions, fail-overs and prunings of the coordinator's log.

Invariants, by name:
- replay equals live state: a coordinator that has only the records that were not pruned has the state of its predecessor;
- deliveries do not go back: an acknowledged record stays acknowledged until the group is reset or the start passes it;
- fencing: no write of an older leader or of a former state is accepted;
- pruning is safe and works: no needed record is deleted, and after a cold pass of all, only snapshots and updates remain.
"""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from barnabas.base.errors import ErrorCode
from barnabas.broker.runtime.share_state import SharePartitionKey, StateBatch
from barnabas.broker.share_coordinator.machine import COLD_SNAPSHOTS, PRUNING, REMOVAL
from barnabas.broker.share_coordinator.settings import ShareCoordinatorSettings
from tests.unit.broker.share_coordinator.share_harness import A0, A1, B0, Bench, change

KEYS = st.sampled_from([A0, A1, B0])
BATCHES = st.lists(
    st.builds(
        lambda first, length, state, count: StateBatch(first, first + length, state, count),
        st.integers(0, 12),
        st.integers(0, 5),
        st.sampled_from([0, 2, 4]),
        st.integers(1, 3),
    ),
    max_size=3,
)


class Expected:
    """The state of one share partition, offset by offset."""

    def __init__(self, state_epoch: int, leader_epoch: int, start_offset: int) -> None:
        self.state_epoch = state_epoch
        self.leader_epoch = leader_epoch
        self.start_offset = start_offset
        self.deliveries: dict[int, tuple[int, int]] = {}


class ShareModel(RuleBasedStateMachine):
    @initialize(updates=st.integers(0, 3))
    def start(self, updates: int) -> None:
        self.bench = Bench(settings=ShareCoordinatorSettings(updates_per_snapshot=updates))
        self.expected: dict[SharePartitionKey, Expected] = {}

    @rule(key=KEYS, state_epoch=st.integers(0, 4), start_offset=st.integers(-1, 12))
    def initialize_state(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        known = self.expected.get(key)
        error = self.bench.initialize(key, state_epoch=state_epoch, start_offset=start_offset).error
        if known is not None and state_epoch < known.state_epoch:
            assert error is ErrorCode.FENCED_STATE_EPOCH
            return
        assert error is ErrorCode.NONE
        self.expected[key] = Expected(state_epoch, 0 if known is None else known.leader_epoch, start_offset)

    @rule(key=KEYS, leader_epoch=st.integers(0, 4))
    def read(self, key: SharePartitionKey, leader_epoch: int) -> None:
        known = self.expected.get(key)
        answer = self.bench.read(key, leader_epoch=leader_epoch)
        if known is None:
            assert answer.error is ErrorCode.INVALID_REQUEST
        elif leader_epoch < known.leader_epoch:
            assert answer.error is ErrorCode.FENCED_LEADER_EPOCH
        else:
            assert answer.error is ErrorCode.NONE
            known.leader_epoch = leader_epoch

    @rule(
        key=KEYS,
        state_epoch=st.integers(0, 4),
        leader_epoch=st.integers(0, 4),
        start_offset=st.integers(-1, 12),
        batches=BATCHES,
    )
    def write(
        self, key: SharePartitionKey, state_epoch: int, leader_epoch: int, start_offset: int, batches: list[StateBatch]
    ) -> None:
        known = self.expected.get(key)
        wanted = change(*batches, state_epoch=state_epoch, leader_epoch=leader_epoch, start_offset=start_offset)
        error = self.bench.write(wanted, key).error
        if known is None:
            assert error is ErrorCode.INVALID_REQUEST
        elif leader_epoch < known.leader_epoch:
            assert error is ErrorCode.FENCED_LEADER_EPOCH
        elif state_epoch < known.state_epoch:
            assert error is ErrorCode.FENCED_STATE_EPOCH
        else:
            assert error is ErrorCode.NONE
            if start_offset != -1:
                known.start_offset = start_offset
            for batch in batches:
                for offset in range(batch.first_offset, batch.last_offset + 1):
                    delivery = (batch.delivery_count, batch.delivery_state)
                    # An update is cut at its own start, a state at its own.
                    known.deliveries[offset] = max(known.deliveries.get(offset, delivery), delivery)
            for offset in [offset for offset in known.deliveries if offset < known.start_offset]:
                del known.deliveries[offset]

    @rule(key=KEYS)
    def delete(self, key: SharePartitionKey) -> None:
        assert self.bench.run(self.bench.machine.delete(key)).error is ErrorCode.NONE
        self.expected.pop(key, None)

    @rule()
    def topic_deleted_and_made_again(self) -> None:
        self.bench.run(self.bench.machine.topics_deleted({A0.topic_id}))
        self.bench.fire(REMOVAL) if REMOVAL in self.bench.timers else None
        for key in (A0, A1):
            self.expected.pop(key, None)

    @rule()
    def prune(self) -> None:
        self.bench.fire(PRUNING)

    @rule(passes=st.integers(1, 2))
    def time_passes(self, passes: int) -> None:
        for _ in range(passes):
            self.bench.now_ms += self.bench.settings.cold_snapshot_interval_ms
            self.bench.fire(COLD_SNAPSHOTS)

    @rule()
    def fail_over(self) -> None:
        self.bench.fail_over()

    @invariant()
    def state_is_expected(self) -> None:
        if not hasattr(self, "bench"):
            return
        states = self.bench.machine.states
        assert set(states) == set(self.expected)
        for key, state in states.items():
            known = self.expected[key]
            assert (state.state_epoch, state.leader_epoch, state.start_offset) == (
                known.state_epoch,
                known.leader_epoch,
                known.start_offset,
            )
            found = {
                offset: (batch.delivery_count, batch.delivery_state)
                for batch in state.batches
                for offset in range(batch.first_offset, batch.last_offset + 1)
            }
            assert found == known.deliveries

    @invariant()
    def replay_of_what_is_left_equals_live_state(self) -> None:
        if hasattr(self, "bench"):
            live, replayed = self.bench.machine, self.bench.replayed()
            assert replayed.states == live.states
            assert replayed.needed_from == live.needed_from or not live.states
            assert all(replace(state) == state for state in live.states.values())


TestShareModel = ShareModel.TestCase
TestShareModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
