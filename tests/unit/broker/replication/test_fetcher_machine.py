"""The fetcher machine, driven directly: its requests, and its effects for the answers."""

import pytest

from barnabas.base.errors import ErrorCode, IllegalTransition
from barnabas.base.ids import ZERO_TOPIC_ID, TopicId, TopicPartition
from barnabas.broker.replication.fetch_state import TRANSITIONS, Phase
from barnabas.broker.replication.fetch_steps import (
    Append,
    AskEpochEnds,
    AskOffsets,
    AskTierStarts,
    EpochAnswer,
    FetchedPartition,
    GiveUp,
    Idle,
    OffsetsAnswer,
    SendFetch,
    StartFromTier,
    TierAnswer,
    Truncate,
    TruncateFully,
    TruncateTo,
)
from barnabas.broker.replication.fetcher_machine import FIRST_BACKOFF_MS, NEW_SESSION_AFTER_MS, FetcherMachine
from barnabas.broker.storage.epoch_cache import UNDEFINED_END, EpochEnd
from tests.unit.broker.replication.fetch_fakes import FakeReplica, records

A = TopicPartition("orders", 0)
B = TopicPartition("orders", 1)
ID = TopicId(b"o" * 16)
NOW = 1000


def fetcher(*, truncates_on_fetch=True, throttled=frozenset()):
    return FetcherMachine(
        partition_bytes_max=1024,
        backoff_max_ms=200,
        truncates_on_fetch=truncates_on_fetch,
        is_throttled=lambda partition: partition in throttled,
    )


def follow(machine, partition, replica, leader_epoch=5):
    return machine.add(partition, replica, topic_id=ID, leader_epoch=leader_epoch)


def next_plan(machine, now_ms=NOW):
    step = machine.next_step(now_ms)
    assert isinstance(step, SendFetch), step
    return step.plan


def answer(machine, plan, *fetched, error=ErrorCode.NONE, session_id=77, now_ms=NOW):
    return machine.fetched(plan, error_code=error, session_id=session_id, partitions=fetched, now_ms=now_ms)


def carry_out(machine, replicas, effects):
    for effect in effects:
        replica = replicas[effect.partition]
        match effect:
            case Append(_, data, high_watermark, log_start):
                replica.append_follower(data, high_watermark, log_start)
                machine.appended(effect)
            case TruncateTo(_, offset):
                replica.cut(offset)
                machine.truncated(effect)
            case TruncateFully(_, offset):
                replica.restart_at(offset)
                machine.truncated(effect)


# --- the ordinary course ----------------------------------------------------------------------------------------------


def test_follower_fetches_from_its_log_end_with_the_epoch_of_its_last_record():
    machine = fetcher()
    follow(machine, A, FakeReplica(1, 1, 2))
    plan = next_plan(machine)
    assert plan.is_full
    assert plan.has_topic_ids
    entry = plan.to_send[A]
    assert (entry.fetch_offset, entry.last_fetched_epoch, entry.current_leader_epoch) == (3, 2, 5)


def test_records_are_appended_and_the_next_fetch_acknowledges_them():
    machine, replica = fetcher(), FakeReplica(1)
    follow(machine, A, replica)
    plan = next_plan(machine)
    effects = answer(machine, plan, FetchedPartition(A, 0, 4, 0, None, records(5, 5)))
    assert effects == [Append(A, memoryview(records(5, 5)), 4, 0)]
    carry_out(machine, {A: replica}, effects)
    entry = next_plan(machine).to_send[A]
    assert (entry.fetch_offset, entry.last_fetched_epoch) == (3, 5)
    assert machine.state(A).lag == 1


def test_second_request_names_only_what_changed():
    machine, replicas = fetcher(), {A: FakeReplica(1), B: FakeReplica(1)}
    for partition, replica in replicas.items():
        follow(machine, partition, replica)
    plan = next_plan(machine)
    carry_out(machine, replicas, answer(machine, plan, FetchedPartition(A, 0, 2, 0, None, records(5))))
    plan = next_plan(machine)
    assert (plan.session_id, plan.session_epoch) == (77, 1)
    assert list(plan.to_send) == [A]
    answer(machine, plan)
    assert next_plan(machine).to_send == {}


def test_removed_partition_is_forgotten_by_the_session():
    machine = fetcher()
    follow(machine, A, FakeReplica(1))
    follow(machine, B, FakeReplica(1))
    answer(machine, next_plan(machine))
    machine.remove(A)
    plan = next_plan(machine)
    assert [forgotten.partition for forgotten in plan.forgotten] == [A]
    answer(machine, plan)
    machine.remove(B)
    assert next_plan(machine).forgotten[0].partition == B
    assert machine.next_step(NOW) == Idle(None)


def test_topic_that_was_created_again_is_forgotten_by_its_old_id():
    machine = fetcher()
    follow(machine, A, FakeReplica(1))
    answer(machine, next_plan(machine))
    machine.set_topic_id(A, TopicId(b"n" * 16))
    plan = next_plan(machine)
    assert plan.forgotten == ((A, ID),)
    assert plan.to_send[A].topic_id == b"n" * 16


def test_partition_without_topic_id_keeps_the_request_on_names():
    machine = fetcher()
    follow(machine, A, FakeReplica(1))
    machine.add(B, FakeReplica(1), topic_id=ZERO_TOPIC_ID, leader_epoch=5)
    plan = next_plan(machine)
    assert not plan.has_topic_ids
    answer(machine, plan)
    machine.set_topic_id(B, ID)
    assert next_plan(machine).has_topic_ids


@pytest.mark.parametrize(
    ("error", "session"),
    [(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0), (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 77)],
)
def test_lost_session_is_replaced_by_a_new_one(error, session):
    machine = fetcher()
    follow(machine, A, FakeReplica(1))
    answer(machine, next_plan(machine))
    assert answer(machine, next_plan(machine), error=error) == []
    plan = next_plan(machine)
    assert (plan.session_id, plan.session_epoch) == (session, 0)
    assert list(plan.to_send) == [A]


def test_leader_without_room_for_sessions_gets_full_requests():
    machine = fetcher()
    follow(machine, A, FakeReplica(1))
    answer(machine, next_plan(machine), session_id=0)
    plan = next_plan(machine)
    assert plan.is_full
    assert list(plan.to_send) == [A]


def test_moved_log_start_is_sent_to_the_leader():
    machine, replica = fetcher(), FakeReplica(1, 1)
    follow(machine, A, replica)
    answer(machine, next_plan(machine))
    replica.log_start = 1
    replica.epochs_of.pop()
    machine.log_start_moved(A)
    assert next_plan(machine).to_send[A].log_start == 1


# --- truncation -------------------------------------------------------------------------------------------------------


def test_diverging_follower_truncates_to_the_end_of_the_last_common_epoch():
    machine, replica = fetcher(), FakeReplica(1, 1, 2, 2, high_watermark=2)
    follow(machine, A, replica)
    # The leader never saw epoch 2; its epoch 1 ended at 3.
    diverging = FetchedPartition(A, 0, 9, 0, EpochEnd(1, 3))
    effects = answer(machine, next_plan(machine), diverging)
    assert effects == [TruncateTo(A, 2, True)]
    carry_out(machine, {A: replica}, effects)
    assert replica.high_watermark == 2, "nothing else is taken from that answer"
    entry = next_plan(machine).to_send[A]
    assert (entry.fetch_offset, entry.last_fetched_epoch) == (2, 1)


def test_follower_with_more_records_of_the_same_epoch_truncates_to_the_leaders_end():
    machine = fetcher()
    follow(machine, A, FakeReplica(1, 1, 1, 1))
    diverging = FetchedPartition(A, 0, 0, 0, EpochEnd(1, 2))
    assert answer(machine, next_plan(machine), diverging) == [TruncateTo(A, 2, True)]


def test_follower_that_never_had_the_leaders_epoch_truncates_below_it_and_compares_again():
    # KIP-279: our epochs 1, 3; the leader's 1, 2, 4. Its largest epoch <= 3 is 2, which we never had.
    machine, replica = fetcher(), FakeReplica(1, 3, 3)
    follow(machine, A, replica)
    effects = answer(machine, next_plan(machine), FetchedPartition(A, 0, 0, 0, EpochEnd(2, 5)))
    assert effects == [TruncateTo(A, 1, False)]
    carry_out(machine, {A: replica}, effects)
    assert next_plan(machine).to_send[A].last_fetched_epoch == 1


def test_older_leader_is_asked_for_epochs_before_the_first_fetch():
    machine, replica = fetcher(truncates_on_fetch=False), FakeReplica(1, 1, 2, high_watermark=1)
    follow(machine, A, replica)
    step = machine.next_step(NOW)
    assert step == AskEpochEnds({A: (5, 2)})
    effects = machine.epoch_ends(step, {A: EpochAnswer(0, EpochEnd(1, 2))}, NOW)
    assert effects == [TruncateTo(A, 2, True)]
    carry_out(machine, {A: replica}, effects)
    entry = next_plan(machine).to_send[A]
    assert (entry.fetch_offset, entry.last_fetched_epoch) == (2, -1)


def test_older_leader_is_asked_again_after_an_incomplete_truncation():
    machine, replica = fetcher(truncates_on_fetch=False), FakeReplica(1, 3, 3)
    follow(machine, A, replica)
    step = machine.next_step(NOW)
    carry_out(machine, {A: replica}, machine.epoch_ends(step, {A: EpochAnswer(0, EpochEnd(2, 5))}, NOW))
    assert machine.next_step(NOW) == AskEpochEnds({A: (5, 1)})


def test_if_the_leader_does_not_know_the_epoch_only_committed_records_stay():
    machine = fetcher(truncates_on_fetch=False)
    follow(machine, A, FakeReplica(1, 1, 1, high_watermark=2))
    step = machine.next_step(NOW)
    assert machine.epoch_ends(step, {A: EpochAnswer(0, UNDEFINED_END)}, NOW) == [TruncateTo(A, 2, True)]


def test_log_without_epochs_is_truncated_to_its_high_watermark():
    machine, replica = fetcher(), FakeReplica()
    follow(machine, A, replica)
    step = machine.next_step(NOW)
    assert step == Truncate((TruncateTo(A, 0, True),))
    carry_out(machine, {A: replica}, step.effects)
    assert next_plan(machine).to_send[A].fetch_offset == 0


def test_answer_about_epochs_of_an_older_leadership_is_ignored():
    machine, replica = fetcher(truncates_on_fetch=False), FakeReplica(1, 2)
    follow(machine, A, replica)
    step = machine.next_step(NOW)
    follow(machine, A, replica, leader_epoch=6)
    assert machine.epoch_ends(step, {A: EpochAnswer(0, EpochEnd(1, 0))}, NOW) == []
    assert machine.next_step(NOW) == AskEpochEnds({A: (6, 2)})


def test_future_replica_is_truncated_where_the_current_one_was():
    machine, replica = fetcher(), FakeReplica(1, 1, 1)
    follow(machine, A, replica)
    machine.mark_for_truncation(A, 1)
    assert machine.state(A).phase is Phase.TRUNCATING
    assert machine.state(A).fetch_offset == 1


# --- lost places ------------------------------------------------------------------------------------------------------


def out_of_range(replica):
    machine = fetcher()
    follow(machine, A, replica)
    answer(machine, next_plan(machine), FetchedPartition(A, ErrorCode.OFFSET_OUT_OF_RANGE))
    step = machine.next_step(NOW)
    assert step == AskOffsets({A: 5})
    return machine, step


def test_follower_that_was_away_too_long_starts_at_the_leaders_log_start():
    replica = FakeReplica(1, 1)
    machine, step = out_of_range(replica)
    effects = machine.offsets_listed(step, {A: OffsetsAnswer(0, latest=90, earliest=50)}, NOW)
    assert effects == [TruncateFully(A, 50)]
    carry_out(machine, {A: replica}, effects)
    entry = next_plan(machine).to_send[A]
    assert (entry.fetch_offset, entry.last_fetched_epoch, entry.log_start) == (50, -1, 50)


def test_follower_with_more_records_than_an_uncleanly_elected_leader_truncates_to_its_end():
    machine, step = out_of_range(FakeReplica(1, 1, 1))
    assert machine.offsets_listed(step, {A: OffsetsAnswer(0, latest=2, earliest=0)}, NOW) == [TruncateTo(A, 2, True)]


def test_offset_that_the_leader_has_meanwhile_is_fetched_again():
    machine, step = out_of_range(FakeReplica(1, 1))
    assert machine.offsets_listed(step, {A: OffsetsAnswer(0, latest=9, earliest=0)}, NOW) == []
    assert next_plan(machine).to_send == {}, "the session remembers it"
    assert (machine.state(A).fetch_offset, machine.state(A).lag) == (2, 7)


def test_leader_that_does_not_answer_with_its_offsets_is_asked_again_later():
    machine, step = out_of_range(FakeReplica(1))
    assert machine.offsets_listed(step, {A: OffsetsAnswer(ErrorCode.UNKNOWN_LEADER_EPOCH)}, NOW) == []
    assert machine.next_step(NOW).until_ms == NOW + FIRST_BACKOFF_MS
    assert machine.next_step(NOW + FIRST_BACKOFF_MS) == step
    assert isinstance(machine.offsets_listed(step, {A: OffsetsAnswer(ErrorCode.FENCED_LEADER_EPOCH)}, NOW)[0], GiveUp)


# --- the tier --------------------------------------------------------------------------------------------------------


def moved_to_tier(replica):
    machine = fetcher()
    follow(machine, A, replica)
    answer(machine, next_plan(machine), FetchedPartition(A, ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE))
    step = machine.next_step(NOW)
    assert step == AskTierStarts({A: 5})
    return machine, step


def test_follower_whose_offset_is_in_the_tier_begins_where_the_tier_ends():
    replica = FakeReplica(1, 1)
    machine, step = moved_to_tier(replica)
    effects = machine.tier_starts(step, {A: TierAnswer(0, local_start=90, log_start=10, epoch=3)}, NOW)
    assert effects == [StartFromTier(A, 90, 10, 3)]
    replica.restart_at(93)  # where the segment ends that has offset 89
    machine.truncated(effects[0])
    entry = next_plan(machine).to_send[A]
    assert (entry.fetch_offset, entry.log_start) == (93, 93)


def test_leader_that_has_emptied_its_tier_is_followed_from_its_log_start():
    machine, step = moved_to_tier(FakeReplica(1))
    assert machine.tier_starts(step, {A: TierAnswer(0, 90, 90, 3)}, NOW) == [TruncateFully(A, 90)]


def test_failed_start_in_the_tier_and_missing_answer_are_retried():
    machine, step = moved_to_tier(FakeReplica(1))
    assert machine.tier_starts(step, {A: TierAnswer(ErrorCode.UNKNOWN_LEADER_EPOCH)}, NOW) == []
    assert machine.next_step(NOW).until_ms == NOW + FIRST_BACKOFF_MS
    assert machine.next_step(NOW + FIRST_BACKOFF_MS) == step
    (effect,) = machine.tier_starts(step, {A: TierAnswer(0, 90, 10, 3)}, NOW + FIRST_BACKOFF_MS)
    assert machine.failed(effect.partition, is_retriable=True, reason="store away", now_ms=NOW + 100) is None
    assert machine.next_step(NOW + 1000) == step
    assert isinstance(machine.tier_starts(step, {A: TierAnswer(ErrorCode.FENCED_LEADER_EPOCH)}, NOW)[0], GiveUp)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
def test_refused_partition_pauses_longer_each_time_and_the_others_go_on(error):
    machine, replicas = fetcher(), {A: FakeReplica(1), B: FakeReplica(1)}
    for partition, replica in replicas.items():
        follow(machine, partition, replica)
    assert answer(machine, next_plan(machine), FetchedPartition(A, error)) == []
    plan = next_plan(machine)
    assert [forgotten.partition for forgotten in plan.forgotten] == [A]
    answer(machine, plan)
    assert machine.next_step(NOW).until_ms == NOW + FIRST_BACKOFF_MS, "the long poll ends when the pause does"
    plan = next_plan(machine, NOW + FIRST_BACKOFF_MS)
    assert list(plan.to_send) == [A]
    answer(machine, plan, FetchedPartition(A, error), now_ms=NOW + FIRST_BACKOFF_MS)
    assert machine.state(A).delayed_until_ms == NOW + 3 * FIRST_BACKOFF_MS
    for _ in range(8):
        later = machine.state(A).delayed_until_ms
        answer(machine, next_plan(machine, later), FetchedPartition(A, error), now_ms=later)
    assert machine.state(A).backoff_ms == 200


def test_fenced_follower_waits_for_the_controller():
    machine, replica = fetcher(), FakeReplica(1)
    follow(machine, A, replica)
    (effect,) = answer(machine, next_plan(machine), FetchedPartition(A, ErrorCode.FENCED_LEADER_EPOCH))
    assert isinstance(effect, GiveUp)
    assert machine.state(A) is None
    assert follow(machine, A, replica, leader_epoch=6)
    assert next_plan(machine).to_send[A].current_leader_epoch == 6


def test_broken_connection_pauses_everything_and_begins_a_new_session():
    machine = fetcher()
    follow(machine, A, FakeReplica(1))
    answer(machine, next_plan(machine))
    next_plan(machine)
    machine.fetch_failed(NOW)
    assert machine.next_step(NOW) == Idle(NOW + FIRST_BACKOFF_MS)
    plan = next_plan(machine, NOW + FIRST_BACKOFF_MS)
    assert (plan.session_id, plan.session_epoch) == (77, 0)


def test_answer_for_a_partition_that_moved_meanwhile_is_dropped():
    machine, replica = fetcher(), FakeReplica(1)
    follow(machine, A, replica)
    plan = next_plan(machine)
    follow(machine, A, replica, leader_epoch=6)
    assert answer(machine, plan, FetchedPartition(A, 0, 1, 0, None, records(5))) == []
    plan = next_plan(machine)
    machine.remove(A)
    assert answer(machine, plan, FetchedPartition(A, 0, 1, 0, None, records(5))) == []


def test_session_continues_after_an_interrupted_request_and_is_renewed_later():
    """The lost answer may have had high watermarks: the leader sends them again then."""
    machine, replica = fetcher(), FakeReplica(1)
    follow(machine, A, replica)
    carry_out(machine, {A: replica}, answer(machine, next_plan(machine), FetchedPartition(A, 0, 1, 0)))
    polled = next_plan(machine)
    assert (polled.session_id, polled.session_epoch) == (77, 1)
    machine.fetch_abandoned(polled, NOW)
    follow(machine, B, FakeReplica(1))
    plan = next_plan(machine)
    assert (plan.session_id, plan.session_epoch, list(plan.to_send)) == (77, 2, [B])
    answer(machine, plan)
    step = machine.next_step(NOW + 1)
    assert isinstance(step, SendFetch) and not step.plan.is_full
    assert step.until_ms == NOW + NEW_SESSION_AFTER_MS, "no poll is longer than that"
    answer(machine, step.plan)
    plan = next_plan(machine, NOW + NEW_SESSION_AFTER_MS)
    assert plan.is_full and set(plan.to_send) == {A, B}
    answer(machine, plan, session_id=78)
    assert not next_plan(machine, NOW + 2 * NEW_SESSION_AFTER_MS).is_full, "once is enough"


def test_interrupted_request_for_a_new_session_is_repeated():
    machine = fetcher()
    follow(machine, A, FakeReplica(1))
    machine.fetch_abandoned(next_plan(machine), NOW)
    follow(machine, B, FakeReplica(1))
    plan = next_plan(machine)
    assert plan.is_full and set(plan.to_send) == {A, B}


def test_leader_that_did_not_get_the_interrupted_request_refuses_the_next():
    machine = fetcher()
    follow(machine, A, FakeReplica(1))
    answer(machine, next_plan(machine))
    machine.fetch_abandoned(next_plan(machine), NOW)
    assert answer(machine, next_plan(machine), error=ErrorCode.INVALID_FETCH_SESSION_EPOCH) == []
    assert next_plan(machine).is_full


def test_errors_of_an_old_epoch_do_not_renew_the_session():
    """A leader that answers with an error sends everything once the error is over."""
    machine, replica = fetcher(), FakeReplica(1)
    follow(machine, A, replica)
    answer(machine, next_plan(machine))
    polled = next_plan(machine)
    follow(machine, A, replica, leader_epoch=6)
    assert answer(machine, polled, FetchedPartition(A, ErrorCode.FENCED_LEADER_EPOCH)) == []
    plan = next_plan(machine, NOW + NEW_SESSION_AFTER_MS)
    assert not plan.is_full and plan.to_send[A].current_leader_epoch == 6


def test_answers_that_are_late_for_their_epoch_are_sent_again_in_a_new_session():
    machine, replica = fetcher(), FakeReplica(1)
    follow(machine, A, replica)
    answer(machine, next_plan(machine))
    polled = next_plan(machine)
    follow(machine, A, replica, leader_epoch=6)
    assert answer(machine, polled, FetchedPartition(A, 0, 1, 0)) == []
    assert not next_plan(machine).is_full
    assert next_plan(machine, NOW + NEW_SESSION_AFTER_MS).is_full


def test_leader_that_refuses_a_whole_request_is_not_asked_again_at_once():
    machine = fetcher()
    follow(machine, A, FakeReplica(1))
    assert answer(machine, next_plan(machine), error=ErrorCode.UNKNOWN_SERVER_ERROR) == []
    assert machine.next_step(NOW) == Idle(NOW + FIRST_BACKOFF_MS)
    later = NOW + FIRST_BACKOFF_MS
    assert answer(machine, next_plan(machine, later), error=ErrorCode.UNKNOWN_SERVER_ERROR, now_ms=later) == []
    assert machine.next_step(later) == Idle(later + 2 * FIRST_BACKOFF_MS)


def test_answers_missed_by_a_partition_that_was_briefly_removed_are_sent_again_in_a_new_session():
    machine, replica, other = fetcher(), FakeReplica(1), FakeReplica(1)
    follow(machine, A, replica)
    follow(machine, B, other)
    answer(machine, next_plan(machine))
    polled = next_plan(machine)
    machine.remove(A)
    assert answer(machine, polled, FetchedPartition(A, 0, 1, 0)) == []
    follow(machine, A, replica)  # before the leader learned that the partition was removed
    answer(machine, next_plan(machine))
    assert next_plan(machine, NOW + NEW_SESSION_AFTER_MS).is_full


def test_answers_for_a_removed_partition_do_not_renew_the_session():
    machine, replica = fetcher(), FakeReplica(1)
    follow(machine, A, replica)
    follow(machine, B, FakeReplica(1))
    answer(machine, next_plan(machine))
    polled = next_plan(machine)
    machine.remove(A)
    assert answer(machine, polled, FetchedPartition(A, 0, 1, 0)) == []
    answer(machine, next_plan(machine))
    follow(machine, A, replica)
    answer(machine, next_plan(machine))
    assert not next_plan(machine, NOW + NEW_SESSION_AFTER_MS).is_full


def test_adding_a_partition_twice_in_the_same_epoch_changes_nothing():
    machine, replica = fetcher(), FakeReplica(1)
    assert follow(machine, A, replica)
    assert not follow(machine, A, replica)


def test_corrupt_bytes_are_fetched_again_but_a_failed_disk_ends_the_fetching():
    machine = fetcher()
    follow(machine, A, FakeReplica(1))
    assert machine.failed(A, is_retriable=True, reason="checksum", now_ms=NOW) is None
    assert machine.state(A).delayed_until_ms == NOW + FIRST_BACKOFF_MS
    assert machine.failed(A, is_retriable=False, reason="disk", now_ms=NOW) == GiveUp(A, "disk")
    assert machine.state(A) is None


def test_throttled_partition_is_left_out_until_the_quota_allows_it_but_not_if_in_sync():
    throttled = {A}
    machine, replica = fetcher(throttled=throttled), FakeReplica(1)
    follow(machine, A, replica)
    assert machine.next_step(NOW) == Idle(NOW + 200)
    throttled.clear()
    carry_out(machine, {A: replica}, answer(machine, next_plan(machine), FetchedPartition(A, 0, 1, 0)))
    throttled.add(A)
    assert next_plan(machine).forgotten == (), "it is in sync"
    carry_out(machine, {A: replica}, answer(machine, next_plan(machine), FetchedPartition(A, 0, 9, 0)))
    assert machine.state(A).lag == 8
    assert next_plan(machine).forgotten[0].partition == A


def test_leader_that_turns_out_to_be_old_makes_partitions_truncate_first():
    machine = fetcher()
    follow(machine, A, FakeReplica(1, 2))
    machine.set_truncates_on_fetch(False)
    assert isinstance(machine.next_step(NOW), AskEpochEnds)


def test_every_step_that_the_table_lacks_is_refused():
    events = {event for _, event in TRANSITIONS}
    for phase in Phase:
        for event in events:
            machine = fetcher()
            follow(machine, A, FakeReplica(1))
            machine.state(A).phase = phase
            if (phase, event) in TRANSITIONS:
                machine.state(A).step(event)
            else:
                with pytest.raises(IllegalTransition):
                    machine.state(A).step(event)
