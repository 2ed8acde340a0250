"""A transaction machine without a runtime, and an internal topic in memory whose commits are triggered by the test."""

import itertools
from dataclasses import dataclass, field

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.broker.runtime.machine import CancelTimer, KeyValue, ReplayedRecord, Result, SendToDriver, SetTimer
from barnabas.broker.transactions.ending import EndAnswer
from barnabas.broker.transactions.initializing import InitAnswer, InitRequest
from barnabas.broker.transactions.machine import SendMarkers, TimeoutKey, TransactionMachine
from barnabas.broker.transactions.records import TAGGED_VALUE, encode_transaction
from barnabas.broker.transactions.settings import TransactionSettings
from barnabas.broker.transactions.state import Identity, Transaction

A0 = TopicPartition("a", 0)
A1 = TopicPartition("a", 1)
B0 = TopicPartition("b", 0)
TXN = "pay"


@dataclass
class Bench:
    """One machine, its log, its clock, and its effects. Every write is committed at once."""

    version: int = 2
    settings: TransactionSettings = field(default_factory=lambda: TransactionSettings(two_phase_commit_enable=True))
    now_ms: int = 1_000_000
    machine: TransactionMachine = field(init=False)
    log: list[KeyValue] = field(default_factory=list)
    messages: list[SendMarkers] = field(default_factory=list)
    timers: dict[object, int] = field(default_factory=dict)
    ids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1000))
    has_ids: bool = True

    def __post_init__(self) -> None:
        self.machine = self.make()

    def make(self) -> TransactionMachine:
        return TransactionMachine(settings=lambda: self.settings, transaction_version=lambda: self.version)

    def take_id(self) -> int | None:
        return next(self.ids) if self.has_ids else None

    def run(self, result: Result[object]) -> object:
        for record in result.records:
            self.log.append(record)
            self.machine.replay(ReplayedRecord(record, len(self.log) - 1, self.now_ms))
        for effect in result.effects:
            if isinstance(effect, SendToDriver):
                assert isinstance(effect.message, SendMarkers)
                self.messages.append(effect.message)
            elif isinstance(effect, SetTimer):
                self.timers[effect.key] = self.now_ms + effect.delay_ms
            elif isinstance(effect, CancelTimer):
                self.timers.pop(effect.key, None)
        return result.response

    def replayed(self) -> TransactionMachine:
        """Return another machine that has read only the log."""
        other = self.make()
        for offset, record in enumerate(self.log):
            other.replay(ReplayedRecord(record, offset, self.now_ms))
        return other

    def fail_over(self) -> None:
        self.machine = self.replayed()
        self.messages.clear()
        self.timers.clear()
        self.run(self.machine.loaded(self.now_ms))

    # -- operations

    def init(
        self,
        expected: Identity | None = None,
        *,
        timeout_ms: int = 60_000,
        two_phase: bool = False,
        keep: bool = False,
        transactional_id: str = TXN,
    ) -> InitAnswer:
        request = InitRequest(transactional_id, timeout_ms, expected, two_phase, keep)
        answer = self.run(self.machine.init_producer_id(request, self.take_id, self.now_ms))
        assert isinstance(answer, InitAnswer)
        return answer

    def add(
        self, identity: Identity, *partitions: TopicPartition, transactional_id: str = TXN, client_version: int = 0
    ) -> ErrorCode:
        result = self.machine.add_partitions(
            transactional_id, identity, partitions, self.now_ms, client_version=client_version
        )
        answer = self.run(result)
        assert isinstance(answer, ErrorCode)
        return answer

    def end(
        self, identity: Identity, *, commit: bool = True, version: int = 2, transactional_id: str = TXN
    ) -> EndAnswer:
        answer = self.run(
            self.machine.end(
                transactional_id, identity, self.take_id, self.now_ms, commit=commit, client_version=version
            )
        )
        assert isinstance(answer, EndAnswer)
        return answer

    def write_markers(self) -> SendMarkers:
        """Carry out the last decision."""
        message = self.messages.pop()
        answer = self.run(self.machine.complete(message.transactional_id, message.identity, self.now_ms))
        assert answer is ErrorCode.NONE
        return message

    def fire(self, key: object) -> None:
        self.timers.pop(key, None)
        self.run(self.machine.timer_fired(key, self.now_ms))  # type: ignore[arg-type]

    def time_out(self, transactional_id: str = TXN) -> None:
        key = TimeoutKey(transactional_id)
        self.now_ms = max(self.now_ms, self.timers[key])
        self.fire(key)

    def txn(self, transactional_id: str = TXN) -> Transaction:
        txn = self.machine.get(transactional_id)
        assert txn is not None
        return txn

    def put(self, txn: Transaction) -> None:
        """Put a record into the log."""
        self.run(Result(records=[encode_transaction(txn, TAGGED_VALUE)]))
