"""A share coordinator's machine without a runtime. Every write is committed at once."""

from dataclasses import dataclass, field

from barnabas.base.ids import TopicId
from barnabas.broker.runtime.machine import KeyValue, ReplayedRecord, Result, SendToDriver, SetTimer
from barnabas.broker.runtime.share_state import SharePartitionKey, StateBatch
from barnabas.broker.share_coordinator.machine import Answer, Prune, ShareCoordinatorMachine
from barnabas.broker.share_coordinator.settings import ShareCoordinatorSettings
from barnabas.broker.share_coordinator.state import Change, KeptState

ORDERS, PAYMENTS = TopicId(bytes(15) + b"\x01"), TopicId(bytes(15) + b"\x02")
A0, A1, B0 = SharePartitionKey("g", ORDERS, 0), SharePartitionKey("g", ORDERS, 1), SharePartitionKey("h", PAYMENTS, 0)


def change(
    *batches: StateBatch,
    state_epoch: int = 1,
    leader_epoch: int = 0,
    start_offset: int = -1,
    delivery_complete_count: int = 0,
) -> Change:
    return Change(
        state_epoch=state_epoch,
        leader_epoch=leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=delivery_complete_count,
        batches=batches,
    )


@dataclass
class Bench:
    settings: ShareCoordinatorSettings = field(default_factory=ShareCoordinatorSettings)
    now_ms: int = 1_000_000
    partitions: dict[TopicId, int] = field(default_factory=lambda: {ORDERS: 2, PAYMENTS: 1})
    log: list[KeyValue] = field(default_factory=list)
    #: Offset before which records were deleted.
    log_start: int = 0
    timers: dict[object, int] = field(default_factory=dict)
    machine: ShareCoordinatorMachine = field(init=False)

    def __post_init__(self) -> None:
        self.machine = self.replayed()
        self.run(self.machine.loaded(self.now_ms))

    def replayed(self) -> ShareCoordinatorMachine:
        """Return another machine that has read only the log."""
        machine = ShareCoordinatorMachine(
            settings=lambda: self.settings,
            partition_exists=lambda topic, partition: partition < self.partitions.get(topic, 0),
        )
        for offset in range(self.log_start, len(self.log)):
            machine.replay(ReplayedRecord(self.log[offset], offset, self.now_ms))
        return machine

    def fail_over(self) -> None:
        self.machine = self.replayed()
        self.timers.clear()
        self.run(self.machine.loaded(self.now_ms))

    def run(self, result: Result[Answer] | Result[None], *, log_refuses: bool = False) -> Answer:
        if result.records and log_refuses:
            if result.if_refused is not None:
                self.run(result.if_refused())
            return Answer()
        for record in result.records:
            self.log.append(record)
            self.machine.replay(ReplayedRecord(record, len(self.log) - 1, self.now_ms))
        for effect in result.effects:
            if isinstance(effect, SendToDriver):
                assert isinstance(effect.message, Prune)
                self.log_start = max(self.log_start, effect.message.offset)
            else:
                assert isinstance(effect, SetTimer)
                self.timers[effect.key] = self.now_ms + effect.delay_ms
        return result.response or Answer()

    def fire(self, key: object) -> int:
        """Let a timer fire now. Return the number of records that it wrote."""
        before = len(self.log)
        del self.timers[key]
        self.run(self.machine.timer_fired(key, self.now_ms))  # type: ignore[arg-type]
        return len(self.log) - before

    def state(self, key: SharePartitionKey = A0) -> KeptState:
        return self.machine.states[key]

    # -- operations

    def initialize(self, key: SharePartitionKey = A0, *, state_epoch: int = 1, start_offset: int = 0) -> Answer:
        return self.run(
            self.machine.initialize(key, state_epoch=state_epoch, start_offset=start_offset, now_ms=self.now_ms)
        )

    def read(self, key: SharePartitionKey = A0, *, leader_epoch: int = 0) -> Answer:
        return self.run(self.machine.read(key, leader_epoch=leader_epoch, now_ms=self.now_ms))

    def write(self, wanted: Change, key: SharePartitionKey = A0) -> Answer:
        return self.run(self.machine.write(key, wanted, now_ms=self.now_ms))
