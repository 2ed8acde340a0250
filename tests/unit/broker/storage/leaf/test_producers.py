"""Idempotence, fencing and transactions of a partition's producers: rule by rule."""

import pytest

from barnabas.base.errors import BrokenInvariant, ErrorCode, Refused
from barnabas.base.ids import TopicPartition
from barnabas.broker.storage.producer_append import AppendOrigin
from barnabas.broker.storage.producer_entry import CompletedTxn, ProducerEntry
from barnabas.broker.storage.producer_state import ProducerStateManager
from barnabas.wire.record_batch import BatchHeader, increment_sequence, read_header
from barnabas.wire.records import BatchBuilder, EndTxnMarker, end_txn_marker, read_end_txn_marker

PARTITION = TopicPartition("t", 0)
MAX = 2**31 - 1


class Log:
    """A log of headers over the machine: checks, then applies."""

    def __init__(self, **kwargs: object) -> None:
        self.state = ProducerStateManager(PARTITION, **kwargs)  # type: ignore[arg-type]
        self.end = 0

    def data(
        self, sequence: int, count: int = 1, *, pid: int = 1, epoch: int = 0, txn: bool = False, at_ms: int = 1_000
    ) -> BatchHeader:
        builder = BatchBuilder(
            base_offset=self.end, producer_id=pid, producer_epoch=epoch, base_sequence=sequence, transactional=txn
        )
        for _ in range(count):
            builder.append(b"k", b"v", timestamp=at_ms)
        return read_header(builder.build())

    def append(self, *headers: BatchHeader, origin: AppendOrigin = AppendOrigin.CLIENT, guard: object = None):
        plan = self.state.analyze([(header, None) for header in headers], origin, guard)
        if plan.duplicate is None:
            for append in plan.appends:
                self.state.update(append)
            self.end = headers[-1].next_offset
            self.state.update_map_end_offset(self.end)
        return plan

    def produce(self, sequence: int, count: int = 1, **kwargs):
        return self.append(self.data(sequence, count, **kwargs))

    def end_txn(
        self,
        *,
        commit: bool = True,
        pid: int = 1,
        epoch: int = 0,
        coordinator_epoch: int = 0,
        origin: AppendOrigin = AppendOrigin.COORDINATOR,
    ) -> list[CompletedTxn]:
        data = end_txn_marker(
            commit=commit,
            coordinator_epoch=coordinator_epoch,
            producer_id=pid,
            producer_epoch=epoch,
            timestamp=1_000,
            base_offset=self.end,
        )
        header = read_header(data)
        plan = self.state.analyze([(header, read_end_txn_marker(data, 0, header))], origin)
        for append in plan.appends:
            self.state.update(append)
        for completed in plan.completed:
            self.state.complete_txn(completed)
        self.end = header.next_offset
        self.state.update_map_end_offset(self.end)
        return plan.completed


@pytest.fixture
def log() -> Log:
    return Log()


def refused_with(code: ErrorCode):
    return pytest.raises(Refused, match=code.name)


def test_sequences_go_on_batch_by_batch(log: Log):
    log.produce(0, 3)
    log.produce(3, 2)
    entry = log.state.entry(1)
    assert entry is not None
    assert (entry.first_sequence, entry.last_sequence, entry.last_data_offset) == (0, 4, 4)
    assert log.state.map_end_offset == 5


def test_gap_in_the_sequence_is_out_of_order(log: Log):
    log.produce(0, 3)
    for sequence in (4, 1, MAX):
        with refused_with(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
            log.produce(sequence)


def test_one_of_the_last_five_batches_again_gets_its_offsets_again(log: Log):
    for sequence in range(0, 14, 2):
        log.produce(sequence, 2)
    for sequence in range(4, 14, 2):
        duplicate = log.produce(sequence, 2).duplicate
        assert duplicate is not None
        assert (duplicate.first_offset, duplicate.last_offset) == (sequence, sequence + 1)
        assert (duplicate.first_sequence, duplicate.timestamp) == (sequence, 1_000)
    with refused_with(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        log.produce(2, 2)


def test_batch_that_only_overlaps_an_old_one_is_not_a_duplicate(log: Log):
    log.produce(0, 5)
    with refused_with(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        log.produce(0, 4)


def test_sequence_wraps_to_zero(log: Log):
    log.produce(MAX - 1, 2)
    log.produce(0, 1)
    log.produce(1, 3)
    assert log.state.entry(1).last_sequence == 3


def test_batch_that_crosses_the_wrap_is_found_as_duplicate(log: Log):
    log.produce(MAX, 3)
    assert log.state.entry(1).last_sequence == increment_sequence(MAX, 2) == 1
    assert log.produce(MAX, 3).duplicate.first_sequence == MAX
    log.produce(2)


def test_older_epoch_is_fenced_and_a_newer_one_starts_at_zero(log: Log):
    log.produce(0, 3, epoch=5)
    with refused_with(ErrorCode.INVALID_PRODUCER_EPOCH):
        log.produce(3, epoch=4)
    with refused_with(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        log.produce(3, epoch=6)
    log.produce(0, 2, epoch=6)
    assert log.state.entry(1).producer_epoch == 6
    assert len(log.state.entry(1).batches) == 1


def test_producer_that_is_not_known_may_start_anywhere(log: Log):
    log.produce(77, 2)
    log.produce(79)


def test_follower_accepts_the_leaders_batches_and_warns_of_irregular_ones(log: Log):
    log.produce(0, epoch=5)
    plan = log.append(log.data(9, epoch=4), origin=AppendOrigin.REPLICATION)
    assert "smaller than the last seen epoch 5" in plan.appends[0].warnings[0]
    log.append(log.data(100, epoch=4), origin=AppendOrigin.REPLICATION)


def test_follower_takes_a_plain_batch_inside_a_transaction_that_its_leader_had_forgotten(log: Log):
    """It would never have got past it, and recovery would have cut the leader's own log there."""
    log.produce(0, txn=True)
    plan = log.append(log.data(1), origin=AppendOrigin.REPLICATION)
    assert "Expected transactional write" in plan.appends[0].warnings[0]
    assert log.state.first_unstable_offset == 0
    [completed] = log.end_txn(commit=False)
    assert completed.first_offset == 0


def test_coordinators_batches_need_an_epoch_but_no_sequence(log: Log):
    log.append(log.data(-1, epoch=3), origin=AppendOrigin.COORDINATOR)
    log.append(log.data(-1, epoch=3), origin=AppendOrigin.COORDINATOR)
    with refused_with(ErrorCode.INVALID_PRODUCER_EPOCH):
        log.append(log.data(-1, epoch=2), origin=AppendOrigin.COORDINATOR)


def test_batches_without_a_producer_leave_no_trace(log: Log):
    plan = log.append(log.data(-1, pid=-1, epoch=-1))
    assert plan == ([], [], None)
    assert log.state.is_empty


def test_batches_of_one_append_are_checked_one_after_the_other(log: Log):
    first = log.data(0, 2)
    log.end += 2
    second, gap = log.data(2, 2), log.data(3, 1)
    log.end -= 2
    log.append(first, second)
    assert log.state.entry(1).last_sequence == 3
    with refused_with(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        log.append(first._replace(base_sequence=4), gap)


def test_refused_append_changes_nothing(log: Log):
    log.produce(0, 2)
    before = repr(log.state.producers)
    good = log.data(2)
    bad = good._replace(base_offset=3, base_sequence=9)
    with refused_with(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        log.append(good, bad)
    assert repr(log.state.producers) == before


def test_transaction_is_unstable_until_its_marker_is_below_the_high_watermark(log: Log):
    log.produce(0, 2, pid=9)
    log.produce(0, 3, txn=True)
    assert log.state.first_unstable_offset == 2
    (completed,) = log.end_txn(commit=False)
    assert completed == CompletedTxn(1, 2, 5, True)
    assert log.state.first_unstable_offset == 2
    assert not log.state.on_high_watermark(5)
    assert log.state.first_unstable_offset == 2
    assert log.state.on_high_watermark(6)
    assert log.state.first_unstable_offset is None
    assert not log.state.on_high_watermark(7)


def test_first_unstable_offset_is_the_earliest_of_open_and_unreplicated(log: Log):
    log.produce(0, txn=True, pid=1)
    log.produce(0, txn=True, pid=2)
    log.end_txn(pid=1)
    assert log.state.first_unstable_offset == 0
    log.state.on_high_watermark(3)
    assert log.state.first_unstable_offset == 1
    log.end_txn(pid=2)
    log.produce(1, txn=True, pid=1)
    assert log.state.first_unstable_offset == 1
    log.state.on_high_watermark(log.end)
    assert log.state.first_unstable_offset == 4


def test_transactions_that_one_fetch_brings_together_are_kept_in_the_order_of_the_log(log: Log):
    headers = []
    for sequence, pid in ((0, 1), (0, 2), (1, 1)):
        headers.append(log.data(sequence, pid=pid, txn=True))
        log.end += 1
    marker = EndTxnMarker(True, 0, 0)
    ended = read_header(
        end_txn_marker(commit=True, coordinator_epoch=0, producer_id=1, producer_epoch=0, timestamp=0, base_offset=1)
    )
    # offsets: 0 a transaction of producer 1, 1 its end, 2 one of producer 2, 3 another one of producer 1
    batches = [
        (headers[0], None),
        (ended, marker),
        (headers[1]._replace(base_offset=2), None),
        (headers[2]._replace(base_offset=3), None),
    ]
    plan = log.state.analyze(batches, AppendOrigin.REPLICATION)
    for append in plan.appends:
        log.state.update(append)
    for completed in plan.completed:
        log.state.complete_txn(completed)
    log.state.on_high_watermark(4)
    assert log.state.first_unstable_offset == 2
    assert log.state.last_stable_offset(CompletedTxn(1, 3, 4, True)) == 2


def test_last_stable_offset_for_the_index_looks_past_the_transaction_that_ends(log: Log):
    log.produce(0, txn=True, pid=1)
    log.produce(0, txn=True, pid=2)
    completed = CompletedTxn(1, 0, 2, True)
    assert log.state.last_stable_offset(completed) == 1
    log.end_txn(pid=2)
    assert log.state.last_stable_offset(completed) == 3


def test_marker_without_data_completes_nothing_but_raises_the_epochs(log: Log):
    assert log.end_txn(epoch=3, coordinator_epoch=7) == []
    entry = log.state.entry(1)
    assert (entry.producer_epoch, entry.coordinator_epoch, entry.txn_first_offset) == (3, 7, None)
    with refused_with(ErrorCode.INVALID_PRODUCER_EPOCH):
        log.produce(0, epoch=2)
    log.produce(0, epoch=3)


def test_marker_of_an_old_coordinator_is_fenced(log: Log):
    log.end_txn(coordinator_epoch=7)
    with refused_with(ErrorCode.TRANSACTION_COORDINATOR_FENCED):
        log.end_txn(coordinator_epoch=6)
    log.end_txn(coordinator_epoch=6, origin=AppendOrigin.REPLICATION)
    with refused_with(ErrorCode.INVALID_PRODUCER_EPOCH):
        log.end_txn(epoch=-1, coordinator_epoch=7)


def test_marker_of_a_new_epoch_ends_the_transaction_and_fences_its_producer(log: Log):
    log.produce(0, 2, txn=True)
    assert log.end_txn(commit=False, epoch=1) == [CompletedTxn(1, 0, 2, True)]
    with refused_with(ErrorCode.INVALID_PRODUCER_EPOCH):
        log.produce(2, txn=True)
    log.produce(0, txn=True, epoch=1)


def test_sequences_go_on_after_a_marker_of_the_same_epoch(log: Log):
    log.produce(0, 2, txn=True)
    log.end_txn()
    log.produce(2, 2, txn=True)


def test_plain_batch_inside_a_transaction_is_refused(log: Log):
    log.produce(0, txn=True)
    with refused_with(ErrorCode.INVALID_TXN_STATE):
        log.produce(1)


def test_emptied_control_batch_is_passed_over(log: Log):
    marker = end_txn_marker(commit=True, coordinator_epoch=0, producer_id=1, producer_epoch=0, timestamp=1)
    plan = log.state.analyze([(read_header(marker), None)], AppendOrigin.REPLICATION)
    assert plan.completed == []


def test_transaction_that_was_not_begun_cannot_be_completed(log: Log):
    with pytest.raises(BrokenInvariant, match="was not begun"):
        log.state.complete_txn(CompletedTxn(1, 0, 5, False))


def test_silent_producers_expire_but_not_inside_a_transaction():
    log = Log(producer_id_expiration_ms=100)
    log.produce(0, pid=1, at_ms=1_000)
    log.produce(0, pid=2, at_ms=1_050)
    log.produce(0, pid=3, at_ms=1_000, txn=True)
    assert log.state.remove_expired(1_099) == 0
    assert log.state.remove_expired(1_100) == 1
    assert set(log.state.producers) == {2, 3}
    log.produce(55, pid=1)


def test_snapshot_state_is_loaded_with_its_open_transactions_in_order(log: Log):
    entries = [
        ProducerEntry(1, producer_epoch=0, last_timestamp=500, txn_first_offset=40),
        ProducerEntry(2, producer_epoch=0, last_timestamp=500, txn_first_offset=30),
        ProducerEntry(3, producer_epoch=0, last_timestamp=-(10**9)),
    ]
    log.produce(0, pid=8, txn=True)
    log.state.load(entries, 50, now_ms=1_000)
    assert set(log.state.producers) == {1, 2}
    assert log.state.first_unstable_offset == 30
    assert (log.state.map_end_offset, log.state.snap_offset) == (50, 50)
    assert not log.state.needs_snapshot
    log.end = 50
    assert log.end_txn(pid=2) == [CompletedTxn(2, 30, 50, False)]
    assert log.state.needs_snapshot
    log.state.on_snapshot_taken()
    assert not log.state.needs_snapshot


def test_truncation_forgets_producers_and_transactions(log: Log):
    log.produce(0, txn=True)
    log.state.truncate_fully(17)
    assert log.state.is_empty
    assert log.state.first_unstable_offset is None
    assert log.state.map_end_offset == 17


def test_log_start_passes_over_ended_transactions_and_the_map_end(log: Log):
    log.produce(0, txn=True)
    log.end_txn()
    log.state.on_log_start_offset(10, None)
    assert log.state.first_unstable_offset is None
    assert (log.state.map_end_offset, log.state.snap_offset) == (10, 10)
    log.state.on_log_start_offset(11, 10)
    assert log.state.snap_offset == 10


def test_transaction_begins_only_with_the_guard_of_its_verification():
    log = Log(transaction_verification=True)
    header = log.data(0, txn=True)
    with refused_with(ErrorCode.INVALID_TXN_STATE):
        log.append(header)
    guard = log.state.start_verification(1, 0, 0, now_ms=0).guard
    with refused_with(ErrorCode.INVALID_TXN_STATE):
        log.append(header, guard=object())
    log.append(header, guard=guard)
    assert log.state.has_ongoing_transaction(1, 0)
    assert log.state.verification(1) is None
    log.produce(1, txn=True)
    log.append(log.data(5, pid=7))


def test_guard_is_worthless_once_a_marker_was_written():
    log = Log(transaction_verification=True)
    guard = log.state.start_verification(1, 0, 0, now_ms=0).guard
    log.end_txn(commit=False)
    with refused_with(ErrorCode.INVALID_TXN_STATE):
        log.append(log.data(0, txn=True), guard=guard)
    log.append(log.data(0, txn=True), origin=AppendOrigin.REPLICATION)


def test_lowest_sequence_that_waits_for_verification_goes_first():
    log = Log(transaction_verification=True)
    log.state.start_verification(1, 5, 0, now_ms=0)
    entry = log.state.start_verification(1, 2, 0, now_ms=0)
    with refused_with(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        log.append(log.data(5, txn=True), guard=entry.guard)
    log.append(log.data(2, txn=True), guard=entry.guard)


@pytest.mark.parametrize("fenced_epoch", [0, 2])
def test_question_of_another_epoch_does_not_stop_an_open_transaction(fenced_epoch: int):
    """The coordinator refuses the other one, and its question stays behind: the transaction goes on all the same."""
    log = Log(transaction_verification=True)
    guard = log.state.start_verification(1, 0, 1, now_ms=0).guard
    log.append(log.data(0, 3, epoch=1, txn=True), guard=guard)
    log.state.start_verification(1, 2, fenced_epoch, now_ms=0)
    log.produce(3, epoch=1, txn=True)
    with refused_with(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        log.produce(5, epoch=1, txn=True)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(("sequence", "count"), [(3, 2), (3, 1), (4, 1), (3, 5), (0, 3)])
def test_sequence_of_an_ended_transaction_is_not_confirmed_as_a_duplicate(log: Log, commit, sequence, count):
    """librdkafka gives purged messages' sequences to the next transaction, though they may have been written."""
    log.produce(0, 3, txn=True)
    log.produce(3, 2, txn=True)
    assert log.produce(3, 2, txn=True).duplicate is not None, "within the transaction it is a retry"
    log.end_txn(commit=commit)
    with refused_with(ErrorCode.UNKNOWN_PRODUCER_ID):
        log.produce(sequence, count, txn=True)
    log.end_txn(commit=False)
    log.produce(0, txn=True, epoch=1)


def test_retry_within_a_transaction_is_still_a_duplicate_after_the_one_before_it(log: Log):
    log.produce(0, txn=True)
    log.end_txn()
    log.produce(1, txn=True)
    log.produce(2, txn=True)
    for sequence in (1, 2):
        assert log.produce(sequence, txn=True).duplicate is not None
    with refused_with(ErrorCode.UNKNOWN_PRODUCER_ID):
        log.produce(0, txn=True)
    with refused_with(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        log.produce(4, txn=True)


def test_gap_after_an_ended_transaction_is_out_of_order(log: Log):
    log.produce(0, txn=True)
    log.end_txn()
    with refused_with(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        log.produce(2, txn=True)


def test_sequence_of_an_ended_transaction_is_known_over_a_restart(log: Log):
    for sequence in range(4):
        log.produce(sequence, txn=True)
    log.end_txn(commit=False)
    entry = log.state.entry(1)
    kept = ProducerEntry(1, producer_epoch=0, coordinator_epoch=0, last_timestamp=1_000, batches=[entry.batches[-1]])
    log.state.load([kept], log.end, now_ms=1_000)
    for sequence in (3, 2):
        with refused_with(ErrorCode.UNKNOWN_PRODUCER_ID):
            log.produce(sequence, txn=True)
    log.produce(4, txn=True)


def test_new_epoch_starts_its_verification_again():
    state = ProducerStateManager(PARTITION, producer_id_expiration_ms=100)
    entry = state.start_verification(1, 5, 0, now_ms=0)
    assert state.start_verification(1, 9, 1, now_ms=0) is entry
    assert (entry.lowest_sequence, entry.epoch) == (9, 1)
    state.remove_expired(99)
    assert state.verification(1) is entry
    state.remove_expired(100)
    assert state.verification(1) is None


def test_producer_without_an_id_has_no_state(log: Log):
    append = log.state.prepare(-1, AppendOrigin.REPLICATION)
    with pytest.raises(BrokenInvariant, match="without an id"):
        log.state.update(append)
