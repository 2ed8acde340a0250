"""A batch of one transaction never lands in the next one, and no batch begins a transaction that never ends (KIP-890).

A producer, its coordinator and one partition. All messages between them are delayed, doubled and reordered: batches in flight,
verifications that were confirmed long before the append, ends whose answer was lost.
"""

from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.storage.producer_append import AppendOrigin
from barnabas.broker.storage.producer_state import EndTxnMarker, ProducerStateManager
from barnabas.broker.transactions.state import Identity, TransactionState
from barnabas.wire.record_batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, BatchHeader
from tests.unit.broker.transactions.txn_harness import A0, TXN, Bench


class Batch(NamedTuple):
    #: The producer's transaction in which the batch was sent.
    transaction: int
    identity: Identity
    sequence: int


class Verified(NamedTuple):
    batch: Batch
    guard: object


def header(identity: Identity, offset: int, sequence: int, *, control: bool = False) -> BatchHeader:
    flags = TRANSACTIONAL_FLAG | (CONTROL_FLAG if control else 0)
    return BatchHeader(offset, 61, 0, 2, 0, flags, 0, 0, 0, identity.producer_id, identity.epoch, sequence, 1)


class Partition:
    """A leader: the producer state of a log, and the transactions of its batches."""

    def __init__(self) -> None:
        self.producers = ProducerStateManager(A0, transaction_verification=True)
        self.end = 0
        #: Transactions of the batches since the last marker.
        self.open: set[int] = set()

    def append(self, batch: Batch, guard: object | None) -> None:
        placed = header(batch.identity, self.end, batch.sequence)
        plan = self.producers.analyze([(placed, None)], AppendOrigin.CLIENT, guard)
        if plan.duplicate is not None:
            return
        for each in plan.appends:
            self.producers.update(each)
        self.end += 1
        self.open.add(batch.transaction)

    def mark(self, identity: Identity, *, commit: bool) -> None:
        placed = header(identity, self.end, -1, control=True)
        marker = EndTxnMarker(commit, 0, 0)
        plan = self.producers.analyze([(placed, marker)], AppendOrigin.COORDINATOR)
        for each in plan.appends:
            self.producers.update(each)
        for each in plan.completed:
            self.producers.complete_txn(each)
        self.end += 1
        self.open.clear()


class Network(RuleBasedStateMachine):
    version = 2

    @initialize()
    def start(self) -> None:
        self.bench = Bench(version=self.version)
        self.partition = Partition()
        self.client = self.bench.init().identity
        self.transaction = 0
        self.sequence = 0
        self.in_flight: list[Batch] = []
        self.verified: list[Verified] = []

    # -- the producer

    @rule()
    def send(self) -> None:
        adds_itself = self.version < 2 and self.bench.txn().state is not TransactionState.ONGOING
        if adds_itself and self.bench.add(self.client, A0) is not ErrorCode.NONE:
            return
        self.in_flight.append(Batch(self.transaction, self.client, self.sequence))
        self.sequence += 1

    @rule(commit=st.booleans())
    def end(self, commit: bool) -> None:
        answer = self.bench.end(self.client, commit=commit, version=self.version)
        if answer.error is not ErrorCode.NONE:
            return
        self.transaction += 1
        if answer.identity != self.client:
            self.client, self.sequence = answer.identity, 0

    @rule()
    def restart(self) -> None:
        answer = self.bench.init()
        if answer.error is ErrorCode.NONE:
            self.transaction += 1
            self.client, self.sequence = answer.identity, 0

    # -- the network and the leader

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), twice=st.booleans())
    def arrive(self, data: st.DataObject, twice: bool) -> None:
        batch = data.draw(st.sampled_from(self.in_flight))
        if not twice:
            self.in_flight.remove(batch)
        producers = self.partition.producers
        if producers.has_ongoing_transaction(*batch.identity):
            self._append(batch, None)
            return
        entry = producers.start_verification(batch.identity.producer_id, batch.sequence, batch.identity.epoch, 0)
        if self.version >= 2:
            error = self.bench.add(batch.identity, A0, client_version=2)
        else:
            error = self.bench.machine.verify_partitions(TXN, batch.identity, [A0])[A0]
        if error is ErrorCode.NONE:
            self.verified.append(Verified(batch, entry.guard))

    @precondition(lambda self: self.verified)
    @rule(data=st.data())
    def append_verified(self, data: st.DataObject) -> None:
        verified = data.draw(st.sampled_from(self.verified))
        self.verified.remove(verified)
        self._append(verified.batch, verified.guard)

    def _append(self, batch: Batch, guard: object | None) -> None:
        try:
            self.partition.append(batch, guard)
        except Refused as refusal:
            assert refusal.code in (
                ErrorCode.INVALID_PRODUCER_EPOCH,
                ErrorCode.INVALID_TXN_STATE,
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                ErrorCode.UNKNOWN_PRODUCER_ID,
            )

    # -- the coordinator

    @precondition(lambda self: self.bench.messages)
    @rule()
    def write_markers(self) -> None:
        message = self.bench.messages[-1]
        if A0 in message.partitions:
            self.partition.mark(message.identity, commit=message.is_commit)
        self.bench.write_markers()

    @rule()
    def time_out(self) -> None:
        if self.bench.timers and self.bench.txn().state is TransactionState.ONGOING:
            self.bench.time_out()

    @rule(version=st.sampled_from([0, 2]))
    def other_brokers_come_or_go(self, version: int) -> None:
        """Change the cluster's version; the client continues as it began."""
        self.bench.version = version

    @rule()
    def fail_over(self) -> None:
        self.bench.fail_over()

    # -- what always holds

    @invariant()
    def nothing_hangs(self) -> None:
        """The coordinator will end every transaction that is open in the partition."""
        if self.partition.open:
            txn = self.bench.txn()
            assert txn.state is TransactionState.ONGOING or txn.state.is_prepared
            assert A0 in txn.partitions


class RaisedEpochs(Network):
    """With `transaction.version` 2."""

    @invariant()
    def a_transaction_holds_its_own_batches_only(self) -> None:
        assert len(self.partition.open) <= 1, self.partition.open


class VerifiedOnly(Network):
    """With `transaction.version` 0 and verification: late batches may join the next transaction, but never hang."""

    version = 0


_SETTINGS = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRaisedEpochs = RaisedEpochs.TestCase
TestRaisedEpochs.settings = _SETTINGS
TestVerifiedOnly = VerifiedOnly.TestCase
TestVerifiedOnly.settings = _SETTINGS
