"""The replication machine, driven directly: no log, no wire, no clock."""

import ast
from pathlib import Path

import pytest

import barnabas.broker.replication as replication_package
from barnabas.base.errors import ErrorCode, IllegalTransition, Refused
from barnabas.broker.replication.machine import PartitionMachine
from barnabas.broker.replication.state import TRANSITIONS, IsrChange, IsrMember, PartitionLeadership, Role

LAG_MS = 10_000
NOW = 1_000_000


def state(leader=1, leader_epoch=5, isr=(1, 2, 3), partition_epoch=10, replicas=(1, 2, 3), **more):
    return PartitionLeadership(
        leader=leader, leader_epoch=leader_epoch, isr=isr, partition_epoch=partition_epoch, replicas=replicas, **more
    )


def machine(**more):
    return PartitionMachine(local_broker=1, replica_lag_time_max_ms=LAG_MS, **more)


def leader(*, log_end=0, isr=(1, 2, 3), min_insync_replicas=1, replicas=(1, 2, 3), **more):
    led = machine(min_insync_replicas=min_insync_replicas, **more)
    led.become_leader(state(isr=isr, replicas=replicas), log_end=log_end, now_ms=NOW)
    return led


def fetch(led, broker, offset, *, log_end, now_ms=NOW, broker_epoch=-1, log_start=0):
    return led.record_follower_fetch(
        broker,
        fetch_offset=offset,
        follower_log_start=log_start,
        broker_epoch=broker_epoch,
        log_end=log_end,
        now_ms=now_ms,
    )


# --- high watermark ---------------------------------------------------------------------------------------------------


def test_high_watermark_is_the_log_end_of_the_slowest_in_sync_replica():
    led = leader()
    assert not led.record_append(10, NOW)
    assert not fetch(led, 2, 10, log_end=10).hw_moved
    assert fetch(led, 3, 7, log_end=10).hw_moved
    assert led.high_watermark == 7


def test_leader_alone_in_the_isr_commits_at_once():
    led = leader(isr=(1,))
    assert led.record_append(3, NOW)
    assert led.high_watermark == 3


def test_high_watermark_never_goes_back_when_a_follower_does():
    led = leader()
    led.record_append(10, NOW)
    fetch(led, 2, 10, log_end=10)
    fetch(led, 3, 10, log_end=10)
    assert not fetch(led, 3, 4, log_end=10).hw_moved
    assert led.high_watermark == 10


def test_replica_outside_the_isr_does_not_hold_the_high_watermark_back():
    led = leader(isr=(1, 2))
    led.record_append(10, NOW)
    assert fetch(led, 2, 10, log_end=10).hw_moved
    assert led.high_watermark == 10


def test_high_watermark_waits_for_a_returning_follower_that_is_nearly_caught_up():
    led = leader(isr=(1,), log_end=10)
    assert led.high_watermark == 10
    # 3 has all records, and would join if the proposal for 2 were not pending.
    assert fetch(led, 2, 10, log_end=10).propose is not None
    fetch(led, 3, 10, log_end=10)
    led.record_append(20, NOW + 1)
    fetch(led, 2, 20, log_end=20, now_ms=NOW + 2)
    assert led.high_watermark == 10, "3 is caught up, though not in the ISR"
    led.tick(NOW + LAG_MS + 1, 20)
    assert led.high_watermark == 20, "3 has been silent for too long to be waited for"


def test_high_watermark_stays_while_too_few_replicas_are_in_sync():
    led = leader(isr=(1,), min_insync_replicas=2)
    assert not led.record_append(5, NOW)
    assert led.is_under_min_isr
    assert led.high_watermark == 0
    assert led.check_append(required_acks=-1) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert led.check_append(required_acks=1) is ErrorCode.NONE
    assert led.set_min_insync_replicas(1, log_end=5, now_ms=NOW)
    assert led.high_watermark == 5


def test_min_insync_replicas_is_never_more_than_there_are_replicas():
    led = leader(isr=(1,), replicas=(1,), min_insync_replicas=3)
    assert led.effective_min_isr == 1
    assert led.record_append(1, NOW)


def test_follower_adopts_the_leaders_high_watermark_up_to_its_own_log_end():
    follower = machine()
    follower.become_follower(state(leader=2))
    assert follower.record_follower_append(log_start=0, log_end=5, leader_high_watermark=8)
    assert follower.high_watermark == 5
    assert not follower.record_follower_append(log_start=0, log_end=6, leader_high_watermark=3)
    assert follower.high_watermark == 5, "a lagging leader does not lower the high watermark"


def test_end_offset_is_unknown_until_the_new_leaders_high_watermark_has_caught_up():
    led = machine(high_watermark=4)
    led.become_leader(state(), log_end=9, now_ms=NOW)
    assert led.high_watermark_lags
    fetch(led, 2, 9, log_end=9)
    fetch(led, 3, 9, log_end=9)
    assert not led.high_watermark_lags


def test_produce_waits_for_the_high_watermark_and_fails_if_the_isr_shrinks():
    led = leader(min_insync_replicas=2)
    led.record_append(1, NOW)
    assert led.check_replicated(1, 1) is None
    fetch(led, 2, 1, log_end=1)
    fetch(led, 3, 1, log_end=1)
    assert led.check_replicated(1, 1) is ErrorCode.NONE
    proposal = led.tick(NOW + LAG_MS + 1, 2).propose
    led.isr_accepted(
        proposal, isr=frozenset({1}), leader_epoch=5, partition_epoch=11, log_end=2, now_ms=NOW + LAG_MS + 1
    )
    assert led.check_replicated(1, 1) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    led.become_follower(state(leader=2, leader_epoch=6, partition_epoch=12))
    assert led.check_replicated(1, 1) is ErrorCode.NOT_LEADER_OR_FOLLOWER


# --- ISR --------------------------------------------------------------------------------------------------------------


def test_follower_silent_past_lag_limit_leaves_isr():
    led = leader()
    led.record_append(1, NOW)
    fetch(led, 2, 1, log_end=1, now_ms=NOW + LAG_MS)
    assert led.tick(NOW + LAG_MS, 1).propose is None
    proposal = led.tick(NOW + LAG_MS + 1, 1).propose
    assert proposal.change is IsrChange.SHRINK
    assert proposal.broker_ids == {1, 2}
    assert proposal.partition_epoch == 10


def test_silent_follower_that_has_everything_stays_in_the_isr():
    led = leader()
    fetch(led, 2, 0, log_end=0)
    fetch(led, 3, 0, log_end=0)
    assert led.tick(NOW + 10 * LAG_MS, 0).propose is None


def test_follower_that_keeps_up_one_fetch_behind_stays_in_the_isr():
    led = leader()
    for step in range(1, 20):
        now_ms = NOW + step * 2000
        # Each time the follower has what the leader had at its previous fetch, never what the leader has now.
        fetch(led, 2, (step - 1) * 10, log_end=step * 10, now_ms=now_ms)
        fetch(led, 3, step * 10, log_end=step * 10, now_ms=now_ms)
        assert led.tick(now_ms, step * 10).propose is None


def test_shrink_counts_only_when_the_controller_agrees():
    led = leader()
    led.record_append(5, NOW)
    fetch(led, 2, 5, log_end=5)
    late = NOW + LAG_MS + 1
    fetch(led, 2, 5, log_end=5, now_ms=late)
    proposal = led.tick(late, 5).propose
    assert led.high_watermark == 0
    assert led.maximal_isr == {1, 2, 3}
    settled = led.isr_accepted(
        proposal, isr=frozenset({1, 2}), leader_epoch=5, partition_epoch=11, log_end=5, now_ms=late
    )
    assert settled.hw_moved
    assert led.high_watermark == 5
    assert led.isr == {1, 2}
    assert led.partition_epoch == 11
    assert led.pending is None


def test_expansion_counts_before_the_controller_agrees():
    led = leader(isr=(1,), log_end=10)
    proposal = fetch(led, 2, 10, log_end=10).propose
    assert proposal.change is IsrChange.EXPAND
    assert led.isr == {1}
    assert led.maximal_isr == {1, 2}
    assert not led.record_append(11, NOW), "2 must have it first"
    assert fetch(led, 2, 11, log_end=11).hw_moved


def test_follower_must_reach_the_start_of_the_epoch_before_it_joins():
    led = machine(high_watermark=3)
    led.become_leader(state(isr=(1, 3)), log_end=8, now_ms=NOW)
    assert fetch(led, 2, 5, log_end=8).propose is None, "between 3 and 8 an earlier leader may have committed"
    assert fetch(led, 2, 8, log_end=8).propose is not None


def test_dead_broker_is_not_proposed():
    led = leader(isr=(1,), is_eligible=lambda broker, epoch: broker != 2)
    assert fetch(led, 2, 0, log_end=0).propose is None
    assert fetch(led, 3, 0, log_end=0).propose is not None


def test_proposal_has_the_broker_epochs_of_the_followers_fetches():
    led = leader(isr=(1, 2))
    fetch(led, 2, 0, log_end=0, broker_epoch=70)
    proposal = fetch(led, 3, 0, log_end=0, broker_epoch=80).propose
    assert proposal.isr == (IsrMember(1, -1), IsrMember(2, 70), IsrMember(3, 80))


def test_fetch_of_a_brokers_former_life_is_refused():
    led = leader()
    fetch(led, 2, 0, log_end=0, broker_epoch=70)
    with pytest.raises(Refused) as refused:
        fetch(led, 2, 9, log_end=9, broker_epoch=60)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert led.follower(2).log_end == 0


def test_fetch_of_a_broker_that_is_not_a_replica_is_refused():
    led = leader()
    assert led.check_follower(9, 5) is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert led.check_follower(9, -1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    with pytest.raises(Refused):
        fetch(led, 9, 0, log_end=0)


def test_one_proposal_at_a_time():
    led = leader(isr=(1,))
    assert fetch(led, 2, 0, log_end=0).propose is not None
    assert fetch(led, 3, 0, log_end=0).propose is None
    assert led.tick(NOW + 2 * LAG_MS, 1).propose is None


@pytest.mark.parametrize("error", [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA])
def test_proposal_that_was_certainly_not_applied_is_withdrawn(error):
    led = leader(isr=(1,))
    proposal = fetch(led, 2, 0, log_end=0).propose
    assert led.isr_rejected(proposal, error).retry is None
    assert led.pending is None
    assert led.maximal_isr == {1}
    led.validate(log_start=0, log_end=0)


@pytest.mark.parametrize("error", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.INVALID_UPDATE_VERSION])
def test_outdated_leader_waits_for_the_controllers_next_request(error):
    led = leader(isr=(1,))
    proposal = fetch(led, 2, 0, log_end=0).propose
    assert led.isr_rejected(proposal, error).retry is None
    assert led.pending is proposal
    assert led.maximal_isr == {1, 2}
    led.become_leader(state(leader_epoch=6, isr=(1,), partition_epoch=12), log_end=0, now_ms=NOW)
    assert led.pending is None


@pytest.mark.parametrize("error", [ErrorCode.NETWORK_EXCEPTION, ErrorCode.NOT_CONTROLLER])
def test_proposal_without_a_clear_answer_is_sent_again(error):
    led = leader(isr=(1,))
    proposal = fetch(led, 2, 0, log_end=0).propose
    assert led.isr_rejected(proposal, error).retry is proposal


def test_late_answer_to_an_old_proposal_is_ignored():
    led = leader(isr=(1,))
    proposal = fetch(led, 2, 0, log_end=0).propose
    led.become_leader(state(leader_epoch=6, isr=(1,), partition_epoch=12), log_end=0, now_ms=NOW)
    settled = led.isr_accepted(
        proposal, isr=frozenset({1, 2}), leader_epoch=5, partition_epoch=11, log_end=0, now_ms=NOW
    )
    assert not settled.applied
    assert not led.isr_rejected(proposal, ErrorCode.NETWORK_EXCEPTION).applied
    assert led.isr == {1}


def test_low_watermark_is_the_smallest_start_of_the_live_replicas():
    alive = {2, 3}
    led = leader(is_eligible=lambda broker, epoch: broker in alive)
    assert fetch(led, 2, 5, log_end=5, log_start=4).log_start_moved
    fetch(led, 3, 5, log_end=5, log_start=2)
    assert led.low_watermark(5) == 2
    alive.discard(3)
    assert led.low_watermark(5) == 4


# --- roles and epochs -------------------------------------------------------------------------------------------------


def test_new_leadership_knows_nothing_of_its_followers():
    led = leader()
    fetch(led, 2, 0, log_end=0, broker_epoch=70)
    led.become_follower(state(leader=2, leader_epoch=6, partition_epoch=11))
    assert led.followers == ()
    started = led.become_leader(state(leader_epoch=7, partition_epoch=12), log_end=4, now_ms=NOW)
    assert started.is_new_leader
    assert started.is_new_epoch
    assert started.epoch_start == 4
    assert led.follower(2).log_end == -1
    assert led.follower(2).broker_epoch == -1


def test_re_elected_leader_keeps_its_followers_positions():
    led = leader()
    led.record_append(4, NOW)
    fetch(led, 2, 4, log_end=4)
    started = led.become_leader(state(leader_epoch=6, isr=(1, 2), partition_epoch=11), log_end=4, now_ms=NOW)
    assert not started.is_new_leader
    assert started.is_new_epoch
    assert started.hw_moved
    assert led.high_watermark == 4


def test_leader_that_missed_an_epoch_forgets_its_followers_log_ends():
    """Another broker led in between, unknown to this one, and may have made the followers truncate: their log ends may be
    wrong."""
    led = leader()
    led.record_append(4, NOW)
    fetch(led, 2, 4, log_end=4)
    fetch(led, 3, 2, log_end=4)
    assert led.high_watermark == 2
    started = led.become_leader(state(leader_epoch=7, isr=(1, 2), partition_epoch=12), log_end=4, now_ms=NOW)
    assert (started.is_new_leader, started.is_new_epoch, started.hw_moved) == (False, True, False)
    assert led.high_watermark == 2, "a record that only this broker has is not acknowledged"
    fetch(led, 2, 2, log_end=4)
    assert led.high_watermark == 2
    fetch(led, 2, 4, log_end=4)
    assert led.high_watermark == 4


def test_older_state_changes_nothing():
    led = leader()
    assert not led.become_leader(state(partition_epoch=9), log_end=0, now_ms=NOW).applied
    assert not led.become_follower(state(leader=2, partition_epoch=9)).applied
    assert led.role is Role.LEADER


def test_leader_epochs_of_clients_are_checked():
    led = leader()
    assert led.check_leader_epoch(-1) is ErrorCode.NONE
    assert led.check_leader_epoch(5) is ErrorCode.NONE
    assert led.check_leader_epoch(4) is ErrorCode.FENCED_LEADER_EPOCH
    assert led.check_leader_epoch(6) is ErrorCode.UNKNOWN_LEADER_EPOCH
    led.become_follower(state(leader=2, leader_epoch=6, partition_epoch=11))
    assert led.check_leader_epoch(6) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert led.check_leader_epoch(6, require_leader=False) is ErrorCode.NONE
    led.stop()
    assert led.check_leader_epoch(-1, require_leader=False) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    led.go_offline()
    assert led.check_leader_epoch(-1) is ErrorCode.KAFKA_STORAGE_ERROR


def test_every_transition_that_the_table_lacks_is_refused():
    events = {
        "become_leader": lambda m: m.become_leader(state(leader_epoch=9, partition_epoch=20), log_end=0, now_ms=NOW),
        "become_follower": lambda m: m.become_follower(state(leader=2, leader_epoch=9, partition_epoch=20)),
        "go_offline": PartitionMachine.go_offline,
        "stop": PartitionMachine.stop,
    }
    ways = {
        Role.IDLE: lambda m: None,
        Role.LEADER: lambda m: m.become_leader(state(), log_end=0, now_ms=NOW),
        Role.FOLLOWER: lambda m: m.become_follower(state(leader=2)),
        Role.OFFLINE: PartitionMachine.go_offline,
    }
    for role, way in ways.items():
        for event, act in events.items():
            subject = machine()
            way(subject)
            if (role, event) in TRANSITIONS:
                act(subject)
                assert subject.role is TRANSITIONS[role, event]
                subject.validate(log_start=0, log_end=0)
            else:
                with pytest.raises(IllegalTransition):
                    act(subject)
                assert subject.role is role


def test_broker_cannot_lead_what_the_controller_gave_to_another():
    with pytest.raises(IllegalTransition):
        machine().become_leader(state(leader=2), log_end=0, now_ms=NOW)
    with pytest.raises(IllegalTransition):
        machine().become_follower(state(leader=1))


def test_replicas_that_a_reassignment_adds_do_not_count_as_missing():
    led = machine()
    led.become_leader(
        state(isr=(1, 2), replicas=(1, 2, 3), adding_replicas=(3,), removing_replicas=(2,)), log_end=0, now_ms=NOW
    )
    assert led.is_reassigning
    assert led.replication_factor == 2
    assert not led.is_under_replicated


def test_machines_import_no_io():
    forbidden = {"asyncio", "os", "socket", "time", "random", "threading", "kazoo"}
    folder = Path(replication_package.__file__).parent
    pure = ("machine", "fetcher_machine", "follower_session", "state", "control", "read_replica")
    for name in pure:
        tree = ast.parse((folder / f"{name}.py").read_text())
        imported = {
            alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
        }
        imported |= {(node.module or "").split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not imported & forbidden, name
