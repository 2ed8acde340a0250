"""The state of a share partition, event by event."""

import pytest

from barnabas.base.errors import BrokenInvariant, ErrorCode, Refused
from barnabas.base.ids import Offset, ProducerId
from barnabas.broker.runtime.share_state import StateBatch
from barnabas.broker.share.acquiring import Wish, acquire, deliverable
from barnabas.broker.share.machine import ShareMachine
from barnabas.broker.share.records import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    Acknowledgement,
    Acquired,
    AcquireMode,
    Event,
    IllegalTransition,
    LogBatch,
    RecordState,
    Run,
    ShareLimits,
)
from barnabas.broker.storage.txn_index import AbortedTxn
from barnabas.wire.record_batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, BatchHeader

LIMITS = ShareLimits(delivery_count_limit=5, in_flight_max=100, lock_ms=1_000)
ALL = Wish(500, 500)


def machine_of(*batches: StateBatch, start: int = 0, limits: ShareLimits = LIMITS) -> ShareMachine:
    return ShareMachine(start, limits, batches)


def give(
    machine: ShareMachine, *batches: tuple[int, int], member: str = "ada", wish: Wish = ALL, now_ms: int = 0
) -> list[Acquired]:
    log = [LogBatch(first, last) for first, last in batches]
    return acquire(machine, member, log, wish, from_offset=machine.next_offset(), now_ms=now_ms)


def decide(machine: ShareMachine, first: int, last: int, *types: int, member: str = "ada", now_ms: int = 0) -> None:
    write = machine.acknowledge(member, [Acknowledgement(first, last, types)], now_ms=now_ms)
    if write is not None:
        machine.commit(write)


def shown(machine: ShareMachine) -> list[str]:
    return [f"{run.first}-{run.last} {run.state.name} {run.delivery_count}" for run in machine.runs()]


def refusal(machine: ShareMachine, first: int, last: int, *types: int, member: str = "ada") -> ErrorCode:
    with pytest.raises(Refused) as caught:
        machine.acknowledge(member, [Acknowledgement(first, last, types)], now_ms=0)
    return caught.value.code


def test_accepted_records_move_the_start_only_when_that_is_persisted() -> None:
    machine = machine_of()
    assert give(machine, (0, 9)) == [(0, 9, 1)]
    write = machine.acknowledge("ada", [Acknowledgement(0, 4, [ACCEPT])], now_ms=0)
    assert write is not None and write.batches == [StateBatch(0, 4, 2, 1)]
    assert machine.start == 0 and machine.complete_count == 5
    machine.commit(write)
    assert (machine.start, machine.complete_count, shown(machine)) == (5, 0, ["5-9 ACQUIRED 1"])


def test_records_are_one_run_until_a_decision_tells_them_apart() -> None:
    machine = machine_of()
    give(machine, (0, 99))
    assert machine.run_count == 1
    decide(machine, 40, 42, RELEASE, ACCEPT, RELEASE)
    assert shown(machine) == [
        "0-39 ACQUIRED 1",
        "40-40 AVAILABLE 1",
        "41-41 ACKNOWLEDGED 1",
        "42-42 AVAILABLE 1",
        "43-99 ACQUIRED 1",
    ]
    decide(machine, 0, 39, ACCEPT)
    decide(machine, 43, 99, RELEASE)
    assert shown(machine) == ["40-40 AVAILABLE 1", "41-41 ACKNOWLEDGED 1", "42-99 AVAILABLE 1"]
    assert give(machine, (40, 99), member="bob") == [(40, 40, 2), (42, 99, 2)]


@pytest.mark.parametrize("kind", [ACCEPT, RELEASE, REJECT, RENEW, GAP])
def test_acknowledgement_is_refused_unless_the_member_has_the_record(kind: int) -> None:
    machine = machine_of()
    give(machine, (0, 4))
    assert refusal(machine, 0, 4, kind, member="bob") is ErrorCode.INVALID_RECORD_STATE
    decide(machine, 2, 2, RELEASE)
    assert refusal(machine, 0, 4, kind) is ErrorCode.INVALID_RECORD_STATE
    assert refusal(machine, 2, 2, kind) is ErrorCode.INVALID_RECORD_STATE
    assert refusal(machine, 3, 5, kind) is ErrorCode.INVALID_REQUEST
    assert shown(machine) == ["0-1 ACQUIRED 1", "2-2 AVAILABLE 1", "3-4 ACQUIRED 1"]


def test_record_whose_decision_is_being_persisted_can_be_neither_acknowledged_nor_acquired() -> None:
    machine = machine_of()
    give(machine, (0, 4))
    write = machine.acknowledge("ada", [Acknowledgement(0, 4, [RELEASE])], now_ms=0)
    assert write is not None
    assert refusal(machine, 0, 0, ACCEPT) is ErrorCode.INVALID_RECORD_STATE
    assert machine.next_offset() == 5
    machine.commit(write)
    assert machine.next_offset() == 0


def test_refused_request_leaves_no_decision_behind() -> None:
    machine = machine_of()
    give(machine, (0, 9))
    decide(machine, 8, 8, ACCEPT)
    both = [Acknowledgement(0, 3, [ACCEPT]), Acknowledgement(4, 9, [RENEW])]
    with pytest.raises(Refused):
        machine.acknowledge("ada", both, now_ms=500)
    assert shown(machine)[0] == "0-7 ACQUIRED 1"
    assert all(run.lock_until_ms in (0, 1_000) for run in machine.runs()), "a refused request renewed a lock"


@pytest.mark.parametrize(
    ("first", "last", "types"), [(0, 4, []), (0, 4, [1, 1]), (4, 3, [1]), (0, 4, [5]), (0, 4, [1, 1, 1, 1, -1])]
)
def test_malformed_acknowledgement_is_refused(first: int, last: int, types: list[int]) -> None:
    machine = machine_of()
    give(machine, (0, 4))
    assert refusal(machine, first, last, *types) is ErrorCode.INVALID_REQUEST


def test_decision_that_cannot_be_persisted_gives_the_records_back_to_their_member() -> None:
    machine = machine_of()
    give(machine, (0, 4))
    write = machine.acknowledge("ada", [Acknowledgement(0, 4, [ACCEPT, RELEASE, REJECT, GAP, ACCEPT])], now_ms=0)
    assert write is not None
    machine.roll_back(write, now_ms=10)
    assert shown(machine) == ["0-4 ACQUIRED 1"] and machine.complete_count == 0
    decide(machine, 0, 4, ACCEPT)
    assert machine.start == 5


def test_lock_that_times_out_while_the_decision_is_persisted_ends_if_that_fails() -> None:
    machine = machine_of()
    give(machine, (0, 4))
    write = machine.acknowledge("ada", [Acknowledgement(0, 4, [ACCEPT])], now_ms=999)
    assert write is not None
    assert machine.expire(1_000) is None
    machine.roll_back(write, now_ms=1_001)
    assert shown(machine) == ["0-4 AVAILABLE 1"]


def test_lock_times_out_and_a_renewed_one_later() -> None:
    machine = machine_of()
    give(machine, (0, 9))
    assert machine.acknowledge("ada", [Acknowledgement(0, 3, [RENEW])], now_ms=400) is None
    assert machine.next_deadline_ms() == 1_000
    assert machine.expire(999) is None
    write = machine.expire(1_000)
    assert write is not None and write.batches == [StateBatch(4, 9, 0, 1)]
    assert shown(machine) == ["0-3 ACQUIRED 1", "4-9 AVAILABLE 1"]
    assert machine.next_deadline_ms() == 1_400
    assert machine.expire(1_400) is not None and shown(machine) == ["0-9 AVAILABLE 1"]


def test_renewal_is_refused_in_a_group_that_forbids_it() -> None:
    machine = machine_of(limits=LIMITS._replace(allows_renewal=False))
    give(machine, (0, 9))
    assert refusal(machine, 0, 9, RENEW) is ErrorCode.INVALID_RECORD_STATE


def test_member_that_leaves_gives_back_only_its_own_records() -> None:
    machine = machine_of()
    give(machine, (0, 4))
    give(machine, (5, 9), member="bob")
    write = machine.release("ada")
    assert write is not None and write.batches == [StateBatch(0, 4, 0, 1)]
    machine.commit(write)
    assert shown(machine) == ["0-4 AVAILABLE 1", "5-9 ACQUIRED 1"]
    assert machine.release("ada") is None


def test_poisonous_record_is_set_apart_and_given_up_and_the_others_are_not() -> None:
    machine = machine_of()
    machine.limits = LIMITS._replace(in_flight_max=1_000)
    deliveries = []
    while machine.start < 500:
        [*acquired] = give(machine, (machine.next_offset(), 499))
        for first, last, count in acquired:
            deliveries.append((last - first + 1, count))
            decide(machine, first, last, RELEASE if first <= 77 <= last else ACCEPT)
    assert machine.start == 500
    assert max(count for _, count in deliveries) == 5
    assert deliveries[:4] == [(500, 1), (500, 2), (500, 3), (250, 4)]
    # The records of the half with the poisonous one come alone, at their last delivery.
    assert deliveries[4:254] == [(1, 5)] * 250
    assert [size for size, _ in deliveries[254:]] == [125, 62, 31, 16, 8, 4, 2, 1, 1]


def test_records_that_failed_often_are_set_apart_across_batches_of_the_log() -> None:
    machine = machine_of(StateBatch(0, 19, 0, 3), StateBatch(20, 29, 0, 2))
    log = [(at, at) for at in range(30)]
    assert give(machine, *log) == [(0, 9, 4)]
    assert give(machine, *log) == [(10, 14, 4)]
    decide(machine, 0, 1, RELEASE)
    assert give(machine, *log) == [(0, 0, 5)]


def test_record_limit_gives_no_record_more_and_batch_optimized_whole_batches() -> None:
    limited = machine_of()
    assert give(limited, (0, 9), (10, 19), wish=Wish(12, 500, AcquireMode.RECORD_LIMIT)) == [(0, 11, 1)]
    assert limited.end == 12
    whole = machine_of()
    assert give(whole, (0, 9), (10, 19), (20, 29), wish=Wish(12, 500)) == [(0, 19, 1)]


def test_acquired_records_are_announced_in_ranges_of_the_batch_size() -> None:
    machine = machine_of()
    batches = [(at, at + 9) for at in range(0, 60, 10)]
    assert give(machine, *batches, wish=Wish(500, 20)) == [(0, 19, 1), (20, 39, 1), (40, 59, 1)]


def test_no_more_records_are_in_flight_than_may_be_but_what_was_given_back_is_given_again() -> None:
    machine = machine_of(limits=LIMITS._replace(in_flight_max=10))
    assert give(machine, (0, 4), (5, 14), (15, 19)) == [(0, 14, 1)]
    assert not machine.can_acquire()
    decide(machine, 3, 3, RELEASE)
    assert machine.can_acquire()
    assert give(machine, (0, 4), (5, 14), (15, 19), member="bob") == [(3, 3, 2)]
    decide(machine, 0, 2, ACCEPT)
    decide(machine, 4, 9, ACCEPT)
    assert not machine.can_acquire(), "the record 3 holds back the start"
    decide(machine, 3, 3, ACCEPT, member="bob")
    assert machine.start == 10 and machine.can_acquire()


def test_offsets_without_records_are_skipped_and_complete() -> None:
    machine = machine_of()
    log = [LogBatch(5, 9), LogBatch(10, 10, is_deliverable=False), LogBatch(20, 24)]
    acquired = acquire(machine, "ada", log, ALL, from_offset=0, now_ms=0)
    assert acquired == [Acquired(5, 9, 1), Acquired(20, 24, 1)]
    assert (machine.start, machine.complete_count) == (5, 10)
    decide(machine, 5, 9, ACCEPT)
    assert machine.start == 20


def test_gap_cannot_begin_past_the_end() -> None:
    with pytest.raises(BrokenInvariant):
        machine_of().remove(3, 5)


def test_compaction_below_the_end_removes_what_is_available() -> None:
    machine = machine_of()
    give(machine, (0, 9))
    decide(machine, 0, 9, RELEASE)
    assert give(machine, (8, 9)) == [(8, 9, 2)]
    assert machine.start == 8


def test_log_start_that_moves_takes_the_records_with_it() -> None:
    machine = machine_of()
    give(machine, (0, 9), (10, 19))
    decide(machine, 12, 14, ACCEPT)
    machine.move_start(12)
    assert (machine.start, machine.complete_count, shown(machine)) == (15, 0, ["15-19 ACQUIRED 1"])
    with pytest.raises(Refused, match="INVALID_RECORD_STATE: The delivery of the records below 15 is complete"):
        decide(machine, 12, 16, ACCEPT)
    decide(machine, 0, 11, ACCEPT)
    decide(machine, 15, 16, ACCEPT)
    assert machine.start == 17, "acknowledgements below the log start do nothing, the others count"
    machine.move_start(100)
    assert (machine.start, machine.end, machine.run_count) == (100, 100, 0)
    machine.move_start(50)
    assert machine.start == 100


def test_acknowledgement_across_the_log_start_counts_for_the_records_that_are_left() -> None:
    machine = machine_of()
    give(machine, (0, 9))
    machine.move_start(4)
    decide(machine, 0, 9, ACCEPT)
    assert (machine.start, machine.end) == (10, 10)


def test_late_acknowledgement_of_a_record_that_was_given_up_is_refused() -> None:
    """Its member would believe that it had accepted the record; a new leader could still deliver it once more."""
    machine = machine_of(limits=LIMITS._replace(delivery_count_limit=1))
    give(machine, (0, 0))
    assert machine.expire(LIMITS.lock_ms) is not None
    assert machine.start == 1
    assert refusal(machine, 0, 0, ACCEPT) is ErrorCode.INVALID_RECORD_STATE


def test_write_of_records_that_the_log_start_has_passed_can_end() -> None:
    machine = machine_of()
    give(machine, (0, 9))
    write = machine.acknowledge("ada", [Acknowledgement(0, 4, [ACCEPT])], now_ms=0)
    assert write is not None
    machine.move_start(7)
    machine.commit(write)
    assert shown(machine) == ["7-9 ACQUIRED 1"]
    late = machine.acknowledge("ada", [Acknowledgement(7, 7, [ACCEPT])], now_ms=0)
    assert late is not None
    machine.move_start(8)
    machine.roll_back(late, now_ms=0)
    assert shown(machine) == ["8-9 ACQUIRED 1"]


def test_persisted_state_is_taken_over_and_its_gaps_are_delivered() -> None:
    machine = machine_of(StateBatch(0, 9, 2, 1), StateBatch(12, 14, 0, 3), StateBatch(20, 24, 4, 5), start=5)
    assert shown(machine) == ["10-11 AVAILABLE 0", "12-14 AVAILABLE 3", "15-19 AVAILABLE 0", "20-24 ARCHIVED 5"]
    assert (machine.start, machine.end, machine.complete_count, machine.next_offset()) == (10, 25, 5, 10)


@pytest.mark.parametrize(
    "batches",
    [
        [StateBatch(5, 4, 0, 1)],
        [StateBatch(0, 4, 0, 1), StateBatch(4, 6, 0, 1)],
        [StateBatch(0, 4, 1, 1)],
        [StateBatch(0, 4, 9, 1)],
    ],
)
def test_damaged_state_is_refused(batches: list[StateBatch]) -> None:
    with pytest.raises(Refused, match="damaged"):
        machine_of(*batches)


def test_dead_letter_holds_back_the_start_until_it_is_copied() -> None:
    machine = machine_of(limits=LIMITS._replace(has_dead_letters=True, delivery_count_limit=2))
    give(machine, (0, 2))
    decide(machine, 0, 2, REJECT, RELEASE, ACCEPT)
    assert give(machine, (0, 2)) == [(1, 1, 2)]
    assert machine.expire(1_000) is not None
    assert [(run.first, run.last) for run in machine.dead_letters()] == [(0, 0), (1, 1)]
    assert machine.start == 0
    assert machine.buried(0, 5) is not None
    assert machine.start == 3


def test_transition_that_the_table_does_not_have_raises() -> None:
    run = Run(0, 4, RecordState.ACKNOWLEDGED)
    with pytest.raises(IllegalTransition, match="release is not possible for Run"):
        run.follow(Event.RELEASE)
    with pytest.raises(IllegalTransition):
        run.follow(Event.UNDO)


def header(
    first: int, last: int, producer: int = -1, *, transactional: bool = False, control: bool = False
) -> BatchHeader:
    flags = TRANSACTIONAL_FLAG * transactional | CONTROL_FLAG * control
    return BatchHeader(Offset(first), 100, 0, 2, 0, flags, last - first, 0, 0, producer, 0, 0, last - first + 1)


def test_batches_of_aborted_transactions_and_markers_are_not_delivered() -> None:
    log = [
        header(0, 4, 7, transactional=True),
        header(5, 9),
        header(10, 14, 8, transactional=True),
        header(15, 15, 7, transactional=True, control=True),
        header(16, 19, 7, transactional=True),
        header(20, 20, 8, transactional=True, control=True),
    ]
    aborted = [AbortedTxn(ProducerId(7), Offset(0), Offset(15), Offset(0))]
    read = [(batch.first, batch.is_deliverable) for batch in deliverable(log, aborted)]
    assert read == [(0, False), (5, True), (10, True), (15, False), (16, True), (20, False)]
    assert [batch.is_deliverable for batch in deliverable(log, None)] == [True, True, True, False, True, False]
