"""The rules of a transactional id, one by one."""

from dataclasses import replace

import pytest

from barnabas.base.errors import BrokenInvariant, ErrorCode
from barnabas.broker.transactions.machine import EXPIRY, ListFilter, TimeoutKey
from barnabas.broker.transactions.settings import TransactionSettings
from barnabas.broker.transactions.state import (
    LAST_CLIENT_EPOCH,
    NO_IDENTITY,
    NO_TIMEOUT_MS,
    TRANSITIONS,
    Identity,
    Transaction,
    TransactionState,
)
from tests.unit.broker.transactions.txn_harness import A0, A1, B0, TXN, Bench

S = TransactionState


def ready(bench: Bench) -> Identity:
    answer = bench.init()
    assert answer.error is ErrorCode.NONE
    return answer.identity


def in_state(state: TransactionState, version: int) -> tuple[Bench, Identity]:
    """Return a bench whose transactional id is in `state`, and the identity of its client."""
    bench = Bench(version=version)
    client = ready(bench)
    if state is S.EMPTY:
        return bench, client
    assert bench.add(client, A0) is ErrorCode.NONE
    if state is S.ONGOING:
        return bench, client
    commit = state in (S.PREPARE_COMMIT, S.COMPLETE_COMMIT)
    client = bench.end(client, commit=commit, version=version).identity
    if state.is_complete:
        bench.write_markers()
    assert bench.txn().state is state
    return bench, client


# -- InitProducerId


def test_the_first_producer_gets_a_fresh_id_and_epoch_0() -> None:
    bench = Bench()
    assert ready(bench) == (1000, 0)
    assert bench.txn().state is S.EMPTY


def test_each_new_producer_raises_the_epoch_and_keeps_the_id() -> None:
    bench = Bench()
    first, second = ready(bench), ready(bench)
    assert second == (first.producer_id, first.epoch + 1)
    assert bench.add(first, A0) is ErrorCode.PRODUCER_FENCED
    assert bench.add(second, A0) is ErrorCode.NONE


def test_a_producer_id_whose_epochs_are_used_up_is_replaced() -> None:
    bench = Bench()
    ready(bench)
    bench.put(replace(bench.txn(), epoch=LAST_CLIENT_EPOCH))
    assert ready(bench) == (1001, 0)
    assert bench.txn().previous_producer_id == 1000


def test_no_fresh_id_at_hand_is_a_reason_to_try_again() -> None:
    bench = Bench(has_ids=False)
    assert bench.init().error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert bench.log == []


@pytest.mark.parametrize("timeout_ms", [0, -1, 15 * 60 * 1000 + 1])
def test_a_timeout_out_of_range_is_refused(timeout_ms: int) -> None:
    assert Bench().init(timeout_ms=timeout_ms).error is ErrorCode.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize("version", [0, 2])
def test_a_new_producer_aborts_the_open_transaction_and_asks_again(version: int) -> None:
    bench = Bench(version=version)
    old = ready(bench)
    bench.add(old, A0)
    assert bench.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert bench.txn().state is S.PREPARE_ABORT
    assert bench.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    markers = bench.write_markers()
    assert not markers.is_commit
    assert markers.identity == (old.producer_id, old.epoch + 1), "the markers fence the old producer's late batches"
    assert ready(bench) == (old.producer_id, old.epoch + 2)
    assert bench.end(old, version=version).error is ErrorCode.PRODUCER_FENCED


def test_kip_360_a_client_that_sends_its_epoch_continues_with_the_next() -> None:
    bench = Bench()
    client = ready(bench)
    assert bench.init(client).identity == (client.producer_id, client.epoch + 1)


def test_kip_360_a_retry_gets_the_same_answer() -> None:
    bench = Bench()
    client = ready(bench)
    first = bench.init(client)
    assert bench.init(client) == first


def test_kip_360_a_fenced_client_gets_producer_fenced() -> None:
    bench = Bench()
    old = ready(bench)
    ready(bench)
    assert bench.init(old).error is ErrorCode.PRODUCER_FENCED


def test_kip_360_a_retry_is_no_longer_one_after_another_producer_came() -> None:
    bench = Bench()
    old = ready(bench)
    bench.init(old)
    ready(bench)
    assert bench.init(old).error is ErrorCode.PRODUCER_FENCED


def test_kip_360_a_fenced_client_does_not_abort_the_transaction_of_its_successor() -> None:
    bench = Bench()
    old = ready(bench)
    bench.add(ready(bench), A0)
    assert bench.init(old).error is ErrorCode.PRODUCER_FENCED
    assert bench.txn().state is S.ONGOING


def test_kip_360_epochs_used_up_lead_to_a_new_id_and_a_retry_to_the_same() -> None:
    bench = Bench()
    ready(bench)
    bench.put(replace(bench.txn(), epoch=LAST_CLIENT_EPOCH))
    last = Identity(1000, LAST_CLIENT_EPOCH)
    first = bench.init(last)
    assert first.identity == (1001, 0)
    assert bench.init(last) == first


def test_kip_360_a_client_of_another_id_is_fenced() -> None:
    bench = Bench()
    ready(bench)
    assert bench.init(Identity(5, 0)).error is ErrorCode.PRODUCER_FENCED


# -- AddPartitionsToTxn


def test_the_first_partition_begins_the_transaction_and_its_time() -> None:
    bench = Bench()
    client = ready(bench)
    bench.now_ms += 5
    bench.add(client, A0)
    assert bench.txn().start_ms == bench.now_ms
    assert bench.timers[TimeoutKey(TXN)] == bench.now_ms + 60_000
    bench.now_ms += 5
    bench.add(client, B0, A1)
    assert bench.txn().start_ms == bench.now_ms - 5
    assert bench.txn().partitions == (A0, A1, B0)


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_an_empty_list_of_partitions_begins_a_transaction_that_can_be_ended(
    state: TransactionState, version: int
) -> None:
    bench, client = in_state(state, version)
    assert bench.add(client) is ErrorCode.NONE
    assert (bench.txn().state, bench.txn().partitions) == (S.ONGOING, ())
    assert bench.end(client, version=version).error is ErrorCode.NONE
    assert bench.write_markers().partitions == ()
    assert bench.txn().state is S.COMPLETE_COMMIT


def test_a_transaction_without_partitions_times_out_like_any_other() -> None:
    bench, client = in_state(S.EMPTY, 2)
    bench.add(client)
    bench.fail_over()
    bench.time_out()
    bench.write_markers()
    assert bench.txn().state is S.COMPLETE_ABORT


def test_a_partition_that_is_in_the_transaction_is_not_written_again() -> None:
    bench = Bench()
    client = ready(bench)
    bench.add(client, A0, A1)
    written = len(bench.log)
    assert bench.add(client, A1) is ErrorCode.NONE
    assert len(bench.log) == written


@pytest.mark.parametrize(
    ("state", "version", "expected"),
    [
        (S.EMPTY, 0, ErrorCode.NONE),
        (S.ONGOING, 0, ErrorCode.NONE),
        (S.PREPARE_COMMIT, 0, ErrorCode.CONCURRENT_TRANSACTIONS),
        (S.PREPARE_ABORT, 0, ErrorCode.CONCURRENT_TRANSACTIONS),
        (S.COMPLETE_COMMIT, 0, ErrorCode.NONE),
        (S.COMPLETE_ABORT, 0, ErrorCode.NONE),
        (S.PREPARE_COMMIT, 2, ErrorCode.CONCURRENT_TRANSACTIONS),
        (S.PREPARE_ABORT, 2, ErrorCode.CONCURRENT_TRANSACTIONS),
        (S.COMPLETE_COMMIT, 2, ErrorCode.NONE),
    ],
)
def test_when_a_partition_may_be_added(state: TransactionState, version: int, expected: ErrorCode) -> None:
    bench, client = in_state(state, version)
    assert bench.add(client, B0) is expected


@pytest.mark.parametrize("state", [S.EMPTY, S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT, S.COMPLETE_COMMIT])
@pytest.mark.parametrize("version", [0, 2])
def test_producer_that_is_not_current_cannot_add_partitions(state: TransactionState, version: int) -> None:
    bench, client = in_state(state, version)
    before = bench.txn()
    assert bench.add(Identity(client.producer_id + 1, 0), B0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert bench.add(Identity(client.producer_id, client.epoch + 1), B0) is ErrorCode.PRODUCER_FENCED
    assert bench.add(Identity(client.producer_id, client.epoch - 2), B0) is ErrorCode.PRODUCER_FENCED
    assert bench.txn() == before


def test_an_unknown_transactional_id_has_no_producer() -> None:
    bench = Bench()
    assert bench.add(Identity(1, 0), A0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert bench.end(Identity(1, 0)).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_verification_reports_which_partitions_are_in_the_transaction() -> None:
    bench = Bench()
    client = ready(bench)
    bench.add(client, A0)
    verify = bench.machine.verify_partitions
    assert verify(TXN, client, [A0, B0]) == {A0: ErrorCode.NONE, B0: ErrorCode.TRANSACTION_ABORTABLE}
    assert verify(TXN, Identity(1, 0), [A0]) == {A0: ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert verify("other", client, [A0]) == {A0: ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert verify(TXN, Identity(client.producer_id, 9), [A0]) == {A0: ErrorCode.PRODUCER_FENCED}
    after = bench.end(client).identity
    assert verify(TXN, after, [A0]) == {A0: ErrorCode.CONCURRENT_TRANSACTIONS}
    bench.write_markers()
    assert verify(TXN, after, [A0]) == {A0: ErrorCode.TRANSACTION_ABORTABLE}
    assert verify(TXN, client, [A0]) == {A0: ErrorCode.PRODUCER_FENCED}


# -- EndTxn


@pytest.mark.parametrize(
    ("state", "commit", "expected"),
    [
        (S.EMPTY, True, ErrorCode.INVALID_TXN_STATE),
        (S.EMPTY, False, ErrorCode.INVALID_TXN_STATE),
        (S.ONGOING, True, ErrorCode.NONE),
        (S.ONGOING, False, ErrorCode.NONE),
        (S.PREPARE_COMMIT, True, ErrorCode.CONCURRENT_TRANSACTIONS),
        (S.PREPARE_COMMIT, False, ErrorCode.INVALID_TXN_STATE),
        (S.PREPARE_ABORT, True, ErrorCode.INVALID_TXN_STATE),
        (S.PREPARE_ABORT, False, ErrorCode.CONCURRENT_TRANSACTIONS),
        (S.COMPLETE_COMMIT, True, ErrorCode.NONE),
        (S.COMPLETE_COMMIT, False, ErrorCode.INVALID_TXN_STATE),
        (S.COMPLETE_ABORT, True, ErrorCode.INVALID_TXN_STATE),
        (S.COMPLETE_ABORT, False, ErrorCode.NONE),
    ],
)
def test_ends_of_clients_that_keep_their_epoch(state: TransactionState, commit: bool, expected: ErrorCode) -> None:
    bench, client = in_state(state, 0)
    assert bench.end(client, commit=commit, version=0).error is expected
    assert bench.txn().epoch == client.epoch


@pytest.mark.parametrize(
    ("state", "behind", "commit", "expected"),
    [
        # The client is the current one.
        (S.EMPTY, 0, True, ErrorCode.INVALID_TXN_STATE),
        (S.EMPTY, 0, False, ErrorCode.NONE),
        (S.ONGOING, 0, True, ErrorCode.NONE),
        (S.ONGOING, 0, False, ErrorCode.NONE),
        (S.PREPARE_COMMIT, 0, True, ErrorCode.CONCURRENT_TRANSACTIONS),
        (S.PREPARE_COMMIT, 0, False, ErrorCode.CONCURRENT_TRANSACTIONS),
        (S.COMPLETE_COMMIT, 0, True, ErrorCode.INVALID_TXN_STATE),
        (S.COMPLETE_COMMIT, 0, False, ErrorCode.NONE),
        (S.COMPLETE_ABORT, 0, True, ErrorCode.INVALID_TXN_STATE),
        (S.COMPLETE_ABORT, 0, False, ErrorCode.NONE),
        # The client got no answer to the end of this transaction.
        (S.PREPARE_COMMIT, 1, True, ErrorCode.CONCURRENT_TRANSACTIONS),
        (S.PREPARE_COMMIT, 1, False, ErrorCode.INVALID_TXN_STATE),
        (S.PREPARE_ABORT, 1, True, ErrorCode.INVALID_TXN_STATE),
        (S.PREPARE_ABORT, 1, False, ErrorCode.CONCURRENT_TRANSACTIONS),
        (S.COMPLETE_COMMIT, 1, True, ErrorCode.NONE),
        (S.COMPLETE_COMMIT, 1, False, ErrorCode.INVALID_TXN_STATE),
        (S.COMPLETE_ABORT, 1, True, ErrorCode.INVALID_TXN_STATE),
        (S.COMPLETE_ABORT, 1, False, ErrorCode.NONE),
        # The client is a zombie.
        (S.EMPTY, 1, False, ErrorCode.PRODUCER_FENCED),
        (S.ONGOING, 1, True, ErrorCode.PRODUCER_FENCED),
        (S.PREPARE_COMMIT, 2, True, ErrorCode.PRODUCER_FENCED),
        (S.COMPLETE_COMMIT, 2, True, ErrorCode.PRODUCER_FENCED),
    ],
)
def test_ends_of_clients_whose_every_end_raises_the_epoch(
    state: TransactionState, behind: int, commit: bool, expected: ErrorCode
) -> None:
    bench, client = in_state(state, 2)
    asking = Identity(client.producer_id, client.epoch - behind)
    answer = bench.end(asking, commit=commit)
    assert answer.error is expected
    if expected is ErrorCode.NONE:
        assert answer.identity == bench.txn().successor
    else:
        assert answer.identity == NO_IDENTITY


def test_an_end_that_uses_up_the_epochs_gives_a_new_id_once_the_markers_are_written() -> None:
    bench = Bench()
    ready(bench)
    bench.put(replace(bench.txn(), epoch=LAST_CLIENT_EPOCH))
    client = Identity(1000, LAST_CLIENT_EPOCH)
    bench.add(client, A0)
    assert bench.end(client).identity == (1001, 0)
    assert bench.messages[-1].identity == (1000, LAST_CLIENT_EPOCH + 1)
    assert bench.add(Identity(1001, 0), A0) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert bench.end(client).error is ErrorCode.CONCURRENT_TRANSACTIONS
    bench.write_markers()
    assert bench.txn().identity == (1001, 0)
    assert bench.end(client).identity == (1001, 0), "a retry across the change of id"
    assert bench.add(Identity(1001, 0), A0) is ErrorCode.NONE
    assert bench.end(client).error is not ErrorCode.NONE


def at_epoch(epoch: int, state: TransactionState = S.ONGOING) -> tuple[Bench, Identity]:
    bench, client = in_state(state, 2)
    bench.put(replace(bench.txn(), epoch=epoch))
    return bench, Identity(client.producer_id, epoch)


def test_a_client_whose_last_epoch_was_fenced_goes_on_with_a_fresh_id() -> None:
    bench, client = at_epoch(LAST_CLIENT_EPOCH)
    bench.time_out()
    bench.write_markers()
    assert bench.end(client, commit=True).error is ErrorCode.INVALID_TXN_STATE
    answer = bench.end(client, commit=False)
    assert answer == (ErrorCode.NONE, (1001, 0))
    bench.write_markers()
    assert bench.end(client, commit=False) == answer, "a retry"
    bench.fail_over()
    assert bench.add(answer.identity, A0) is ErrorCode.NONE
    assert bench.end(answer.identity).identity == (1001, 1)


@pytest.mark.parametrize("commit", [True, False])
def test_a_client_that_was_handed_the_last_epoch_ends_its_transaction(commit: bool) -> None:
    bench, client = at_epoch(LAST_CLIENT_EPOCH + 1)
    assert bench.end(client, commit=commit) == (ErrorCode.NONE, (1001, 0))
    message = bench.write_markers()
    assert (message.identity, message.client_version) == (client, 0), (
        "the marker's epoch is not above the epoch of the records"
    )
    assert bench.add(client, A0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("fence", ["time-out", "new producer"])
def test_a_transaction_with_the_last_epoch_is_fenced(fence: str) -> None:
    bench, client = at_epoch(LAST_CLIENT_EPOCH + 1)
    if fence == "time-out":
        bench.time_out()
    else:
        assert bench.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    bench.fail_over()
    message = bench.write_markers()
    assert (message.identity, message.client_version) == (client, 0)
    assert bench.txn().state is S.COMPLETE_ABORT
    assert bench.init().identity == (1001, 0)


def test_a_client_that_began_before_the_cluster_stepped_back_ends_with_a_raised_epoch() -> None:
    bench, client = in_state(S.ONGOING, 2)
    bench.version = 0
    answer = bench.end(client, version=2)
    assert answer == (ErrorCode.NONE, (client.producer_id, client.epoch + 1))
    bench.fail_over()
    message = bench.write_markers()
    assert (message.identity, message.client_version) == (answer.identity, 2)
    assert bench.end(client, version=2) == answer, "a retry"
    assert bench.add(answer.identity, A0) is ErrorCode.NONE


def test_a_mixed_cluster_writes_what_3_9_writes() -> None:
    bench = Bench(version=0)
    client = ready(bench)
    bench.add(client, A0)
    assert bench.end(client, version=0).identity == client
    bench.write_markers()
    assert all(value[:2] == b"\x00\x00" for _, value in bench.log if value is not None)


def test_the_next_transaction_of_a_bumping_client_goes_on_with_the_raised_epoch() -> None:
    bench = Bench()
    client = ready(bench)
    for turn in range(3):
        assert bench.add(client, A0) is ErrorCode.NONE
        client = bench.end(client).identity
        assert client == (1000, turn + 1)
        assert bench.write_markers().identity == client


# -- time


@pytest.mark.parametrize("version", [0, 2])
def test_a_transaction_that_outlives_its_timeout_is_aborted_and_its_producer_fenced(version: int) -> None:
    bench = Bench(version=version)
    client = ready(bench)
    bench.add(client, A0)
    bench.time_out()
    assert bench.txn().state is S.PREPARE_ABORT
    assert bench.txn().epoch == client.epoch + 1
    assert bench.end(client, version=version).error is not ErrorCode.NONE, "it cannot be committed any more"
    bench.write_markers()
    assert bench.add(client, A0) is ErrorCode.PRODUCER_FENCED


def test_a_timer_of_an_earlier_transaction_does_not_end_the_next() -> None:
    bench = Bench()
    client = ready(bench)
    bench.add(client, A0)
    client = bench.end(client).identity
    bench.write_markers()
    bench.now_ms += 59_999
    bench.add(client, A0)
    bench.now_ms += 1
    bench.fire(TimeoutKey(TXN))
    assert bench.txn().state is S.ONGOING
    assert bench.timers[TimeoutKey(TXN)] == bench.now_ms - 1 + 60_000


def test_idle_transactional_ids_expire_with_a_tombstone_and_busy_ones_do_not() -> None:
    bench = Bench(settings=TransactionSettings(transactional_id_expiration_ms=1000, expired_cleanup_interval_ms=100))
    for name in ("idle", "done", "open", "decided"):
        bench.init(transactional_id=name, timeout_ms=10_000)
    for name in ("done", "open", "decided"):
        identity = bench.txn(name).identity
        bench.add(identity, A0, transactional_id=name)
        if name != "open":
            bench.end(identity, transactional_id=name)
            if name == "done":
                bench.write_markers()
    bench.now_ms += 1000
    bench.fire(EXPIRY)
    assert set(bench.machine.transactions) == {"open", "decided"}
    assert bench.log[-1].value is None
    assert bench.timers[EXPIRY] == bench.now_ms + 100
    assert bench.add(Identity(1000, 0), A0, transactional_id="idle") is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_many_expired_ids_go_in_several_appends() -> None:
    bench = Bench(settings=TransactionSettings(transactional_id_expiration_ms=1000))
    for number in range(2500):
        bench.init(transactional_id=f"t{number}")
    bench.now_ms += 1000
    for left in (1500, 500, 0):
        bench.fire(EXPIRY)
        assert len(bench.machine.transactions) == left


# -- failover


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_a_new_coordinator_sends_the_markers_of_what_was_decided(version: int, commit: bool) -> None:
    bench = Bench(version=version)
    client = ready(bench)
    bench.add(client, A0, B0)
    bench.end(client, commit=commit, version=version)
    decided = bench.messages[-1]
    bench.fail_over()
    assert bench.messages == [decided]
    bench.write_markers()
    assert bench.txn().state is (S.COMPLETE_COMMIT if commit else S.COMPLETE_ABORT)


def test_a_new_coordinator_watches_the_open_transactions() -> None:
    bench = Bench()
    client = ready(bench)
    bench.add(client, A0)
    bench.now_ms += 59_000
    bench.fail_over()
    assert bench.timers[TimeoutKey(TXN)] == bench.now_ms + 1000
    assert EXPIRY in bench.timers


def test_a_transaction_begun_by_a_clock_that_was_ahead_still_times_out() -> None:
    bench = Bench()
    client = ready(bench)
    bench.now_ms += 3_600_000
    bench.add(client, A0)
    bench.now_ms -= 3_600_000
    bench.fail_over()
    assert bench.timers[TimeoutKey(TXN)] == bench.now_ms + 60_000
    bench.time_out()
    assert bench.txn().state is S.PREPARE_ABORT


def test_a_transaction_times_out_although_the_clock_is_set_back() -> None:
    bench = Bench()
    client = ready(bench)
    bench.add(client, A0)
    bench.now_ms -= 3_600_000 - 60_000
    bench.fire(TimeoutKey(TXN))
    assert bench.txn().state is S.PREPARE_ABORT


def test_completion_is_accepted_once_and_only_for_its_own_decision() -> None:
    bench = Bench()
    client = ready(bench)
    bench.add(client, A0)
    bench.end(client)
    message = bench.write_markers()
    written = len(bench.log)
    again = bench.machine.complete(message.transactional_id, message.identity, bench.now_ms)
    assert again.response is ErrorCode.INVALID_TXN_STATE
    assert again.records == []
    assert len(bench.log) == written


# -- two-phase commit (KIP-939)


def test_two_phase_commit_has_to_be_enabled_on_brokers_that_all_know_it() -> None:
    off = Bench(settings=TransactionSettings())
    assert off.init(two_phase=True).error is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    mixed = Bench(version=0)
    assert mixed.init(two_phase=True).error is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_prepared_transaction_never_times_out() -> None:
    bench = Bench()
    client = bench.init(two_phase=True).identity
    bench.add(client, A0)
    assert TimeoutKey(TXN) not in bench.timers
    bench.now_ms += NO_TIMEOUT_MS
    bench.fire(TimeoutKey(TXN))
    bench.fire(EXPIRY)
    assert bench.txn().state is S.ONGOING
    bench.fail_over()
    assert TimeoutKey(TXN) not in bench.timers


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("crashes", [1, 3])
def test_a_restarted_client_keeps_the_prepared_transaction_and_ends_it(commit: bool, crashes: int) -> None:
    bench = Bench()
    old = bench.init(two_phase=True).identity
    bench.add(old, A0)
    answer = None
    for _ in range(crashes):
        answer = bench.init(two_phase=True, keep=True)
        assert answer.ongoing == old
        bench.fail_over()
    assert answer is not None
    client = answer.identity
    assert client == (old.producer_id, old.epoch + crashes)
    assert bench.end(old, commit=True).error is ErrorCode.PRODUCER_FENCED
    assert bench.add(client, B0) is ErrorCode.INVALID_TXN_STATE
    assert bench.end(client, commit=commit).identity == (client.producer_id, client.epoch + 1)
    markers = bench.write_markers()
    assert markers.is_commit is commit
    assert markers.identity.producer_id == old.producer_id
    assert markers.identity.epoch > client.epoch
    assert bench.txn().client == (client.producer_id, client.epoch + 1)


def test_epochs_used_up_while_a_transaction_is_kept() -> None:
    bench = Bench()
    bench.init(two_phase=True)
    bench.put(replace(bench.txn(), epoch=LAST_CLIENT_EPOCH))
    old = Identity(1000, LAST_CLIENT_EPOCH)
    bench.add(old, A0)
    answer = bench.init(two_phase=True, keep=True)
    assert answer.identity == (1001, 0)
    assert answer.ongoing == old
    bench.fail_over()
    assert bench.end(answer.identity).identity == (1001, 1)
    assert bench.end(answer.identity).error is ErrorCode.CONCURRENT_TRANSACTIONS, "a retry before the markers"
    assert bench.write_markers().identity == (1000, LAST_CLIENT_EPOCH + 1)
    assert bench.txn().identity == (1001, 1)
    assert bench.end(answer.identity).identity == (1001, 1), "a retry after them"


def test_epochs_used_up_by_the_end_of_a_kept_transaction() -> None:
    bench = Bench()
    bench.init(two_phase=True)
    bench.put(replace(bench.txn(), epoch=LAST_CLIENT_EPOCH - 1))
    bench.add(Identity(1000, LAST_CLIENT_EPOCH - 1), A0)
    client = bench.init(two_phase=True, keep=True).identity
    assert client == (1000, LAST_CLIENT_EPOCH)
    assert bench.end(client).identity == (1001, 0)
    assert bench.write_markers().identity == (1000, LAST_CLIENT_EPOCH + 1)
    assert bench.txn().identity == (1001, 0)


def test_a_new_producer_that_does_not_keep_it_aborts_a_prepared_transaction() -> None:
    bench = Bench()
    old = bench.init(two_phase=True).identity
    bench.add(old, A0)
    kept = bench.init(two_phase=True, keep=True).identity
    assert bench.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    markers = bench.write_markers()
    assert not markers.is_commit
    assert markers.identity > kept
    assert bench.end(kept).error is not ErrorCode.NONE


# -- looking


def test_transactions_are_listed_by_state_producer_duration_and_name() -> None:
    bench = Bench()
    for name in ("a", "b"):
        bench.init(transactional_id=name)
    bench.add(bench.txn("a").identity, A0, transactional_id="a")
    bench.now_ms += 100

    def names(wanted: ListFilter) -> list[str]:
        return [txn.transactional_id for txn in bench.machine.select(wanted, bench.now_ms)]

    assert names(ListFilter()) == ["a", "b"]
    assert names(ListFilter(states=frozenset({S.ONGOING}))) == ["a"]
    assert names(ListFilter(states=frozenset())) == []
    assert names(ListFilter(producer_ids=frozenset({1001}))) == ["b"]
    assert names(ListFilter(frozenset({S.ONGOING}), duration_ms=99)) == ["a"]
    assert names(ListFilter(frozenset({S.ONGOING}), duration_ms=100)) == []
    assert names(ListFilter(matches=lambda text: text == "b")) == ["b"]


# -- the table


def test_the_table_has_every_state_and_decisions_never_change() -> None:
    assert set(TRANSITIONS) == set(S)
    assert TRANSITIONS[S.PREPARE_COMMIT] == {S.COMPLETE_COMMIT}
    assert TRANSITIONS[S.PREPARE_ABORT] == {S.COMPLETE_ABORT}


def test_a_transition_that_is_not_in_the_table_is_a_bug() -> None:
    txn = Transaction(transactional_id="t", producer_id=1, epoch=0, timeout_ms=1, update_ms=0)
    with pytest.raises(BrokenInvariant, match="Empty cannot become CompleteCommit"):
        txn.to(S.COMPLETE_COMMIT, now_ms=0)
    with pytest.raises(BrokenInvariant, match="ongoing, but began at -1"):
        txn.to(S.ONGOING, now_ms=0)


def test_names_of_states_are_kafkas() -> None:
    assert [state.kafka_name for state in S] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]
