"""The rules of the share coordinator's machine: fencing, the kept state, and the records that may be deleted."""

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicId
from barnabas.broker.runtime.machine import KeyValue, ReplayedRecord
from barnabas.broker.runtime.share_state import ShareState, ShareStateSummary, StateBatch
from barnabas.broker.share_coordinator import records
from barnabas.broker.share_coordinator.machine import COLD_SNAPSHOTS, PRUNING, RECORDS_AT_ONCE_MAX, REMOVAL
from barnabas.broker.share_coordinator.settings import ShareCoordinatorSettings
from tests.unit.broker.share_coordinator.share_harness import A0, A1, B0, ORDERS, PAYMENTS, Bench, change

ACKED = StateBatch(3, 5, 2, 1)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def types(bench: Bench) -> list[int]:
    """The types of the records in the log."""
    return [record.key[1] for record in bench.log]


def test_initialized_state_is_read_as_it_was_given(bench: Bench) -> None:
    assert bench.initialize(start_offset=7) == (ErrorCode.NONE, None, None)
    answer = bench.read()
    assert answer.state is not None
    assert answer.state.shown() == ShareState(1, 7, ())
    assert answer.state.summary() == ShareStateSummary(1, 0, 7, 0)


def test_without_a_start_offset_the_count_of_complete_deliveries_is_unknown(bench: Bench) -> None:
    bench.initialize(start_offset=-1)
    assert bench.state().summary() == ShareStateSummary(1, 0, -1, -1)


def test_write_adds_to_the_state(bench: Bench) -> None:
    bench.initialize()
    assert bench.write(change(ACKED, delivery_complete_count=3)).error is ErrorCode.NONE
    bench.write(change(StateBatch(6, 6, 2, 1), delivery_complete_count=4))
    assert bench.state().shown() == ShareState(1, 0, (StateBatch(3, 6, 2, 1),))
    assert bench.state().delivery_complete_count == 4
    bench.write(change(start_offset=5))
    assert bench.state().shown() == ShareState(1, 5, (StateBatch(5, 6, 2, 1),))
    assert types(bench) == [records.SNAPSHOT, *[records.UPDATE] * 3]


@pytest.mark.parametrize("operation", ["read", "write"])
def test_uninitialized_share_partition_is_refused(bench: Bench, operation: str) -> None:
    answer = bench.read() if operation == "read" else bench.write(change(ACKED))
    assert answer.error is ErrorCode.INVALID_REQUEST
    assert answer.message is not None
    assert "not initialized" in answer.message
    assert not bench.log


def test_read_of_a_new_leader_fences_the_former_one(bench: Bench) -> None:
    bench.initialize()
    bench.read(leader_epoch=3)
    assert bench.write(change(ACKED, leader_epoch=2)).error is ErrorCode.FENCED_LEADER_EPOCH
    assert bench.read(leader_epoch=2).error is ErrorCode.FENCED_LEADER_EPOCH
    assert bench.write(change(ACKED, leader_epoch=3)).error is ErrorCode.NONE
    bench.fail_over()
    assert bench.write(change(ACKED, leader_epoch=2)).error is ErrorCode.FENCED_LEADER_EPOCH


def test_read_in_a_known_epoch_writes_nothing(bench: Bench) -> None:
    bench.initialize()
    bench.read(leader_epoch=3)
    assert len(bench.log) == 2
    bench.read(leader_epoch=3)
    assert len(bench.log) == 2


def test_write_does_not_announce_a_leader_epoch(bench: Bench) -> None:
    bench.initialize()
    bench.write(change(ACKED, leader_epoch=9))
    assert bench.state().leader_epoch == 0


def test_reset_group_fences_writes_of_its_former_state(bench: Bench) -> None:
    bench.initialize(state_epoch=1)
    bench.write(change(ACKED))
    assert bench.initialize(state_epoch=2, start_offset=100).error is ErrorCode.NONE
    assert bench.write(change(ACKED, state_epoch=1)).error is ErrorCode.FENCED_STATE_EPOCH
    assert bench.initialize(state_epoch=1).error is ErrorCode.FENCED_STATE_EPOCH
    assert bench.state().shown() == ShareState(2, 100, ())


def test_reset_group_still_fences_former_leaders_after_a_fail_over(bench: Bench) -> None:
    bench.initialize(state_epoch=1)
    bench.read(leader_epoch=4)
    bench.initialize(state_epoch=2)
    bench.fire(PRUNING)
    assert bench.log_start == len(bench.log) - 1
    bench.fail_over()
    assert bench.write(change(ACKED, state_epoch=2, leader_epoch=3)).error is ErrorCode.FENCED_LEADER_EPOCH


def test_unknown_partition_is_refused(bench: Bench) -> None:
    bench.initialize(B0)
    unknown = A0._replace(partition=2)
    assert bench.initialize(unknown).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    del bench.partitions[PAYMENTS]
    before = len(bench.log)
    for answer in (
        bench.read(B0),
        bench.write(change(ACKED), B0),
        bench.initialize(B0),
        bench.run(bench.machine.read_summary(B0)),
        bench.run(bench.machine.delete(B0)),
    ):
        assert answer.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert len(bench.log) == before


@pytest.mark.parametrize("batch", [StateBatch(5, 4, 0, 1), StateBatch(-1, 4, 0, 1)])
def test_batch_that_covers_no_offsets_is_refused(bench: Bench, batch: StateBatch) -> None:
    bench.initialize()
    assert bench.write(change(ACKED, batch)).error is ErrorCode.INVALID_REQUEST
    assert bench.state().batches == ()


def test_summary_of_an_uninitialized_share_partition_is_empty(bench: Bench) -> None:
    assert bench.run(bench.machine.read_summary(A0)) == (ErrorCode.NONE, None, None)


def test_deleted_state_is_gone_and_can_be_deleted_again(bench: Bench) -> None:
    bench.initialize()
    bench.run(bench.machine.delete(A0))
    assert not bench.machine.states
    assert bench.log[-1].value is None
    assert bench.run(bench.machine.delete(A0)).error is ErrorCode.NONE
    assert len(bench.log) == 2
    bench.fail_over()
    assert not bench.machine.states


def test_snapshot_follows_a_number_of_updates() -> None:
    bench = Bench(settings=ShareCoordinatorSettings(updates_per_snapshot=2))
    bench.initialize()
    for offset in range(5):
        bench.write(change(StateBatch(offset, offset, 2, 1), start_offset=0))
    assert types(bench) == [0, 1, 1, 0, 1, 1]
    assert bench.state().snapshot_epoch == 1
    assert bench.state().batches == (StateBatch(0, 4, 2, 1),)


def test_without_updates_each_write_is_a_snapshot() -> None:
    bench = Bench(settings=ShareCoordinatorSettings(updates_per_snapshot=0))
    bench.initialize()
    bench.write(change(ACKED))
    assert types(bench) == [0, 0]


def test_records_before_the_oldest_snapshot_are_pruned() -> None:
    bench = Bench(settings=ShareCoordinatorSettings(updates_per_snapshot=1))
    bench.initialize(A0)
    bench.initialize(A1)
    bench.write(change(ACKED), A0)
    bench.write(change(ACKED), A0)  # a snapshot, at offset 3
    bench.fire(PRUNING)
    assert bench.log_start == 1
    bench.write(change(ACKED), A1)
    bench.write(change(ACKED), A1)
    bench.fire(PRUNING)
    assert bench.log_start == 3
    states = dict(bench.machine.states)
    bench.fail_over()
    assert bench.machine.states == states


def test_all_records_are_pruned_when_no_state_is_left(bench: Bench) -> None:
    bench.initialize()
    bench.run(bench.machine.delete(A0))
    bench.fire(PRUNING)
    assert bench.log_start == 2


def test_cold_share_partition_is_written_again_so_that_others_can_be_pruned(bench: Bench) -> None:
    bench.initialize(A0)
    bench.now_ms += 299_000
    bench.initialize(A1)
    bench.now_ms += 1_000
    assert bench.fire(COLD_SNAPSHOTS) == 1
    assert bench.timers[COLD_SNAPSHOTS] == bench.now_ms + 300_000
    assert bench.state(A0).snapshot_offset == 2
    assert (bench.state(A0).created_ms, bench.state(A0).written_ms) == (1_000_000, bench.now_ms)
    bench.fire(PRUNING)
    assert bench.log_start == 1


def test_cluster_without_traffic_writes_no_snapshots(bench: Bench) -> None:
    bench.initialize(A0)
    bench.now_ms += 300_000
    assert bench.fire(COLD_SNAPSHOTS) == 1
    bench.now_ms += 300_000
    assert bench.fire(COLD_SNAPSHOTS) == 0


def test_states_of_a_deleted_topic_are_removed(bench: Bench) -> None:
    for key in (A0, A1, B0):
        bench.initialize(key)
    bench.run(bench.machine.topics_deleted({ORDERS}))
    assert list(bench.machine.states) == [B0]
    bench.fire(REMOVAL)
    assert REMOVAL not in bench.timers


def test_removal_that_the_log_refuses_is_tried_again(bench: Bench) -> None:
    bench.initialize(A0)
    bench.run(bench.machine.topics_deleted({ORDERS}), log_refuses=True)
    assert list(bench.machine.states) == [A0]
    assert bench.fire(REMOVAL) == 1
    assert not bench.machine.states


def test_many_states_are_removed_in_several_appends() -> None:
    bench = Bench(partitions={ORDERS: RECORDS_AT_ONCE_MAX + 1})
    for partition in range(RECORDS_AT_ONCE_MAX + 1):
        bench.initialize(A0._replace(partition=partition))
    result = bench.machine.topics_deleted({ORDERS})
    assert len(result.records) == RECORDS_AT_ONCE_MAX
    bench.run(result)
    assert bench.fire(REMOVAL) == 1
    assert not bench.machine.states


def test_topic_that_was_deleted_while_no_coordinator_served_is_noticed(bench: Bench) -> None:
    bench.initialize(A0)
    bench.initialize(B0)
    bench.partitions.pop(ORDERS)
    bench.fail_over()
    bench.fire(COLD_SNAPSHOTS)
    assert REMOVAL not in bench.timers  # the metadata may be incomplete
    bench.now_ms += 299_999
    bench.fire(COLD_SNAPSHOTS)
    assert REMOVAL not in bench.timers
    bench.now_ms += 1
    bench.fire(COLD_SNAPSHOTS)
    bench.fire(REMOVAL)
    assert list(bench.machine.states) == [B0]


def test_record_of_a_newer_kafka_is_ignored(bench: Bench) -> None:
    bench.machine.replay(ReplayedRecord(KeyValue(b"\x00\x09rest", b"value"), 0, 0))
    assert not bench.machine.states
    assert bench.machine.needed_from == 1


def test_update_without_its_snapshot_is_ignored(bench: Bench) -> None:
    """The log begins after the snapshot; a later one has the whole state."""
    bench.machine.replay(ReplayedRecord(records.update(A0, change(ACKED), snapshot_epoch=0), 5, 0))
    assert not bench.machine.states


def test_topic_id_of_another_topic_is_another_share_partition(bench: Bench) -> None:
    bench.initialize(A0)
    other = A0._replace(topic_id=TopicId(bytes(16)))
    assert bench.read(other).error is ErrorCode.INVALID_REQUEST
