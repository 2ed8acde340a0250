"""Producers that come, go, time out, lose answers and become zombies, with one transactional id and its coordinators.

Invariants, by name:
- one producer is active: of all identities ever given out, at most one may add a partition;
- a fenced producer never adds or ends, from the moment at which a newer one has its answer;
- replay equals live state: a coordinator that has only the log has the state of its predecessor;
- a decision never changes: a committed transaction stays committed, an aborted one aborted;
- markers fence: their epoch is not below any epoch used with their producer id, and above it if ends raise the epoch;
- every question is answered: no operation leaves its caller waiting;
- no client has the last epoch: the coordinator keeps it, so that it can always fence.
"""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from barnabas.base.errors import ErrorCode
from barnabas.broker.transactions.machine import TimeoutKey
from barnabas.broker.transactions.state import LAST_CLIENT_EPOCH, Identity, Transaction, TransactionState
from tests.unit.broker.transactions.txn_harness import A0, A1, B0, TXN, Bench

PARTITIONS = (A0, A1, B0)
CLIENTS = 3


class Client:
    """One process that uses the transactional id, with the answers that it got."""

    def __init__(self) -> None:
        self.identity: Identity | None = None


class TransactionModel(RuleBasedStateMachine):
    @initialize(version=st.sampled_from([0, 2]), epochs_left=st.sampled_from([LAST_CLIENT_EPOCH + 1, 1, 2, 3]))
    def start(self, version: int, epochs_left: int) -> None:
        self.bench = Bench(version=version)
        self.version = version
        self.clients = [Client() for _ in range(CLIENTS)]
        self.given: set[Identity] = set()
        self.fenced: set[Identity] = set()
        self.last: Transaction | None = None
        if epochs_left <= LAST_CLIENT_EPOCH:
            identity = self.bench.init().identity
            txn = self.bench.txn()
            self.bench.put(replace(txn, epoch=LAST_CLIENT_EPOCH - epochs_left))
            assert identity.producer_id == txn.producer_id

    # -- producers

    @rule(
        number=st.integers(0, CLIENTS - 1),
        lost=st.booleans(),
        keep=st.booleans(),
        two_phase=st.booleans(),
        again=st.booleans(),
    )
    def init(self, number: int, lost: bool, keep: bool, two_phase: bool, again: bool) -> None:
        client = self.clients[number]
        expected = client.identity if again else None
        two_phase = two_phase and self.version == self.bench.version == 2
        answer = self.bench.init(expected, two_phase=two_phase, keep=keep and two_phase)
        if expected in self.fenced:
            assert answer.error is not ErrorCode.NONE or answer.identity in self.given, "a zombie came back"
        if answer.error is not ErrorCode.NONE:
            return
        if answer.identity not in self.given:
            self.fenced |= self.given
            self.given.add(answer.identity)
        assert answer.identity not in self.fenced
        if not lost:
            client.identity = answer.identity

    @rule(number=st.integers(0, CLIENTS - 1), partitions=st.sets(st.sampled_from(PARTITIONS)))
    def add(self, number: int, partitions: set[object]) -> None:
        identity = self.clients[number].identity
        if identity is None:
            return
        error = self.bench.add(identity, *sorted(partitions))  # type: ignore[type-var]
        if error is ErrorCode.NONE:
            assert identity not in self.fenced
            assert identity == self.bench.txn().client

    @rule(number=st.integers(0, CLIENTS - 1), commit=st.booleans(), lost=st.booleans())
    def end(self, number: int, commit: bool, lost: bool) -> None:
        client = self.clients[number]
        if client.identity is None:
            return
        answer = self.bench.end(client.identity, commit=commit, version=self.version)
        if answer.error is not ErrorCode.NONE:
            return
        assert client.identity not in self.fenced
        decided = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        done = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
        assert self.bench.txn().state in (decided, done)
        if answer.identity != client.identity:
            self.given.add(answer.identity)
        if not lost:
            client.identity = answer.identity

    # -- the coordinator

    @precondition(lambda self: self.bench.messages)
    @rule()
    def write_markers(self) -> None:
        message = self.bench.messages[-1]
        used = [identity.epoch for identity in self.given if identity.producer_id == message.identity.producer_id]
        if used and message.partitions:
            assert message.identity.epoch >= max(used)
        self.bench.write_markers()

    @precondition(lambda self: TimeoutKey(TXN) in self.bench.timers)
    @rule()
    def time_out(self) -> None:
        self.bench.time_out()

    @rule(delay_ms=st.integers(1, 70_000))
    def wait(self, delay_ms: int) -> None:
        self.bench.now_ms += delay_ms

    @rule(version=st.sampled_from([0, 2]))
    def other_brokers_come_or_go(self, version: int) -> None:
        """The clients continue as they began."""
        self.bench.version = version

    @rule()
    def fail_over(self) -> None:
        self.bench.fail_over()
        decided = [txn for txn in self.bench.machine.transactions.values() if txn.state.is_prepared]
        assert len(self.bench.messages) == len(decided), "a decision was forgotten"

    # -- what always holds

    @invariant()
    def replay_equals_live_state(self) -> None:
        assert self.bench.replayed().transactions == self.bench.machine.transactions

    @invariant()
    def no_client_has_the_last_epoch(self) -> None:
        assert all(identity.epoch <= LAST_CLIENT_EPOCH for identity in self.given)

    @invariant()
    def one_producer_is_active(self) -> None:
        now_ms = self.bench.now_ms
        active = [
            identity
            for identity in self.given
            if self.bench.machine.add_partitions(TXN, identity, [A0], now_ms).response is ErrorCode.NONE
        ]
        assert len(active) <= 1, active

    @invariant()
    def a_decision_never_changes(self) -> None:
        txn = self.bench.machine.get(TXN)
        before, self.last = self.last, txn
        if before is None or txn is None or not before.state.is_prepared:
            return
        if txn.state is before.state:
            assert txn == before
            return
        expected = {
            TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
            TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
        }
        assert txn.state is expected[before.state]

    @invariant()
    def open_transactions_are_watched(self) -> None:
        txn = self.bench.machine.get(TXN)
        if txn is not None and txn.state is TransactionState.ONGOING and not txn.is_two_phase:
            assert TimeoutKey(TXN) in self.bench.timers


TestTransactions = TransactionModel.TestCase
TestTransactions.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
