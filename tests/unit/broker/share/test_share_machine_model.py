"""The share machine beside a naive model, a dict of offsets, under random interleavings."""

from dataclasses import dataclass, replace
from random import Random
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.runtime.share_state import StateBatch
from barnabas.broker.share.acquiring import Wish, acquire
from barnabas.broker.share.machine import ShareMachine
from barnabas.broker.share.records import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    Acknowledgement,
    AcquireMode,
    LogBatch,
    RecordState,
    Run,
    ShareLimits,
    Write,
)

MEMBERS = ("ada", "bob", "eve")
COMPLETE = {RecordState.ACKNOWLEDGED, RecordState.ARCHIVED}
BATCH_SIZE = 3
TARGETS = {
    ACCEPT: RecordState.ACKNOWLEDGED,
    GAP: RecordState.ARCHIVED,
    REJECT: RecordState.ARCHIVED,
    RELEASE: RecordState.AVAILABLE,
}


@dataclass
class Record:
    """One offset of the model."""

    state: RecordState = RecordState.AVAILABLE
    deliveries: int = 0
    member: str = ""
    lock_until_ms: int = 0
    write: Write | None = None

    @property
    def is_available(self) -> bool:
        return self.state is RecordState.AVAILABLE and self.write is None


class Model:
    """Each offset from `start` on that was ever delivered or skipped, by itself."""

    def __init__(self, limits: ShareLimits) -> None:
        self.limits = limits
        self.start = 0
        self.end = 0
        self.log_start = 0
        self.records: dict[int, Record] = {}

    def advance(self) -> None:
        while self.start < self.end:
            record = self.records[self.start]
            if record.write is not None or record.state not in COMPLETE:
                return
            del self.records[self.start]
            self.start += 1

    def give_back(self, record: Record) -> None:
        record.state = RecordState.AVAILABLE
        if record.deliveries >= self.limits.delivery_count_limit:
            record.state = RecordState.ARCHIVING if self.limits.has_dead_letters else RecordState.ARCHIVED
        record.member, record.lock_until_ms = "", 0

    def move_start(self, offset: int) -> None:
        self.log_start = max(self.log_start, offset)
        if offset > self.start:
            self.records = {at: record for at, record in self.records.items() if at >= offset}
            self.start, self.end = offset, max(self.end, offset)
            self.advance()

    def refusal(self, member: str, batches: list[Acknowledgement]) -> ErrorCode | None:
        seen: set[int] = set()
        for first, last, types in batches:
            if last < self.log_start:
                continue
            if max(first, self.log_start) < self.start:
                return ErrorCode.INVALID_RECORD_STATE
            if last >= self.end:
                return ErrorCode.INVALID_REQUEST
            for at in range(max(first, self.start), last + 1):
                record = self.records[at]
                kind = types[at - first] if len(types) > 1 else types[0]
                if record.state is not RecordState.ACQUIRED or record.member != member or at in seen:
                    return ErrorCode.INVALID_RECORD_STATE
                if kind == RENEW and not self.limits.allows_renewal:
                    return ErrorCode.INVALID_RECORD_STATE
                if kind != RENEW:
                    seen.add(at)
        return None

    def acknowledge(self, member: str, batches: list[Acknowledgement], write: Write | None, now_ms: int) -> None:
        for first, last, types in batches:
            for at in range(max(first, self.start), last + 1):
                kind = types[at - first] if len(types) > 1 else types[0]
                record = self.records[at]
                if kind == RENEW:
                    record.lock_until_ms = now_ms + self.limits.lock_ms
                    continue
                record.state = TARGETS[kind]
                if kind == RELEASE and record.deliveries >= self.limits.delivery_count_limit:
                    record.state = RecordState.ARCHIVED
                    kind = REJECT
                if kind == REJECT and self.limits.has_dead_letters:
                    record.state = RecordState.ARCHIVING
                record.write = write


class Play:
    """Random events for both. A step that makes no sense at the moment does nothing."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now_ms = 0
        limits = ShareLimits(delivery_count_limit=4, in_flight_max=12, lock_ms=100)
        self.machine = ShareMachine(0, limits)
        self.model = Model(limits)
        self.log: list[LogBatch] = []
        self.log_end = 0
        self.log_start = 0
        self.writes: list[Write] = []
        #: What the share coordinator would have: the writes that succeeded.
        self.persisted: dict[int, StateBatch] = {}
        self.deliveries: dict[int, int] = {}

    # -- the log ------------------------------------------------------------------------------------------------------

    def produce(self) -> None:
        gap = self.random.choice([0, 0, 0, 0, 1, 4])
        first = self.log_end + gap
        self.log_end = first + self.random.randint(1, 9)
        self.log.append(LogBatch(first, self.log_end - 1, self.random.random() < 0.8))

    def compact(self) -> None:
        if len(self.log) > 1:
            del self.log[self.random.randrange(len(self.log) - 1)]

    def delete_records(self) -> None:
        self.log_start = self.random.randint(self.log_start, self.log_end)
        self.log = [batch for batch in self.log if batch.last >= self.log_start]
        self.machine.move_start(self.log_start)
        self.model.move_start(self.log_start)

    # -- members ------------------------------------------------------------------------------------------------------

    def fetch(self) -> None:
        member, mode = self.random.choice(MEMBERS), self.random.choice(list(AcquireMode))
        records_max = self.random.randint(0, 8)
        from_offset = self.machine.next_offset()
        batches = [batch for batch in self.log if batch.last >= from_offset][: self.random.randint(1, 4)]
        before = {at: replace(record) for at, record in self.model.records.items()}
        old_end = self.model.end
        acquired = acquire(
            self.machine,
            member,
            batches,
            Wish(records_max, BATCH_SIZE, mode),
            from_offset=from_offset,
            now_ms=self.now_ms,
        )
        given = [(at, each.delivery_count) for each in acquired for at in range(each.first, each.last + 1)]
        # Records that are given are deliverable, were free, come in order and once, and count.
        readable = {at for batch in batches if batch.is_deliverable for at in range(batch.first, batch.last + 1)}
        assert [at for at, _ in given] == sorted({at for at, _ in given})
        for at, count in given:
            assert at in readable
            assert at >= old_end or before[at].is_available
            assert count == (before[at].deliveries if at in before else 0) + 1 <= self.model.limits.delivery_count_limit
            self.deliveries[at] = count
        suspicious = [at for at, count in given if count - 1 >= 2]
        assert not suspicious or {count for _, count in given} == {given[0][1]}, "delivered with others"
        assert not any(count == 4 for _, count in given) or len(given) == 1, "the last delivery was not alone"
        if mode is AcquireMode.RECORD_LIMIT:
            assert len(given) <= records_max
        fresh = [at for at, _ in given if at >= old_end]
        if fresh and mode is AcquireMode.RECORD_LIMIT:
            assert fresh[-1] < self.machine.start + self.model.limits.in_flight_max
        self._follow(member, batches, dict(given), from_offset)
        if records_max and batches:
            self._check_progress(given, batches, from_offset, old_end, before)

    def _follow(self, member: str, batches: list[LogBatch], given: dict[int, int], from_offset: int) -> None:
        """The model cannot know how far a fetch got: it takes that from the machine, and checks what was skipped."""
        model = self.model
        readable = {at for batch in batches if batch.is_deliverable for at in range(batch.first, batch.last + 1)}
        for at in range(model.end, self.machine.end):
            assert at in given or at not in readable, f"{at} was skipped"
            model.records[at] = Record(RecordState.AVAILABLE if at in given else RecordState.ARCHIVED)
        model.end = self.machine.end
        for at, count in given.items():
            model.records[at] = Record(RecordState.ACQUIRED, count, member, self.now_ms + model.limits.lock_ms, None)
        actual = {at: run for run in self.machine.runs() for at in range(run.first, run.last + 1)}
        for at, record in model.records.items():
            if record.is_available and from_offset <= at and at in actual and not actual[at].is_available:
                assert at not in readable, f"{at} was skipped"
                record.state = RecordState.ARCHIVED
        for at in range(model.start, self.machine.start):
            if model.records[at].is_available:
                assert at not in readable, f"{at} was skipped"
                model.records[at].state = RecordState.ARCHIVED
        model.advance()

    def _check_progress(
        self,
        given: list[tuple[int, int]],
        batches: list[LogBatch],
        from_offset: int,
        old_end: int,
        before: dict[int, Record],
    ) -> None:
        """A member that asks gets the first readable record that is free."""
        for batch in batches:
            for at in range(max(batch.first, from_offset, self.log_start), batch.last + 1):
                is_free = before[at].is_available if at in before else at >= old_end
                if not (batch.is_deliverable and is_free):
                    continue
                if at < old_end or at < self.model.start + self.model.limits.in_flight_max:
                    assert given and given[0][0] <= at
                return

    def acknowledge(self) -> None:
        """Any member, with anything."""
        random, kinds = self.random, [ACCEPT, ACCEPT, RELEASE, REJECT, RENEW, GAP]
        batches: list[Acknowledgement] = []
        at = random.randint(max(0, self.model.start - 3), self.model.end)
        for _ in range(random.randint(1, 3)):
            last = at + random.randint(0, 4)
            batches.append(Acknowledgement(at, last, random.choices(kinds, k=random.choice([1, last - at + 1]))))
            at = last + 1 + random.randint(0, 2)
        self._acknowledge(random.choice(MEMBERS), batches)

    def _acknowledge(self, member: str, batches: list[Acknowledgement]) -> None:
        refusal = self.model.refusal(member, batches)
        try:
            write = self.machine.acknowledge(member, batches, now_ms=self.now_ms)
        except Refused as refused:
            assert refusal is refused.code
            return
        assert refusal is None
        self.model.acknowledge(member, batches, write, self.now_ms)
        self._begin(write)

    def decide(self) -> None:
        """A well-behaved member decides about some of what it has."""
        records = self.model.records
        held = [(at, record.member) for at, record in records.items() if record.member and record.write is None]
        if held:
            first, member = self.random.choice(held)
            last = first
            while (last + 1, member) in held and self.random.random() < 0.7:
                last += 1
            kinds = [ACCEPT, RELEASE, RELEASE, REJECT, RENEW]
            types = self.random.choices(kinds, k=self.random.choice([1, 1, last - first + 1]))
            self._acknowledge(member, [Acknowledgement(first, last, types)])

    def leave(self) -> None:
        member = self.random.choice(MEMBERS)
        write = self.machine.release(member)
        for record in self.model.records.values():
            if record.state is RecordState.ACQUIRED and record.member == member:
                record.state = RecordState.AVAILABLE
                if record.deliveries >= self.model.limits.delivery_count_limit:
                    has_dead_letters = self.model.limits.has_dead_letters
                    record.state = RecordState.ARCHIVING if has_dead_letters else RecordState.ARCHIVED
                record.write = write
        self._begin(write)

    # -- time, persistence, settings ----------------------------------------------------------------------------------

    def wait(self) -> None:
        self.now_ms += self.random.choice([1, 10, 30, 99, 100])
        due = self.machine.next_deadline_ms()
        held = [record.lock_until_ms for record in self.model.records.values() if record.state is RecordState.ACQUIRED]
        assert not held or (due is not None and due <= min(held)), "a lock has no timer"
        write = self.machine.expire(self.now_ms)
        for record in self.model.records.values():
            if record.state is RecordState.ACQUIRED and record.lock_until_ms <= self.now_ms:
                self.model.give_back(record)
        self.model.advance()
        self._begin(write)

    def _begin(self, write: Write | None) -> None:
        if write is not None:
            assert write.batches
            assert [each.first_offset for each in write.batches] == sorted(each.first_offset for each in write.batches)
            self.writes.append(write)

    def persist(self) -> None:
        if not self.writes:
            return
        succeeds = self.random.random() < 0.7
        write = self.writes.pop(self.random.randrange(len(self.writes)))
        if succeeds:
            for batch in write.batches:
                for at in range(batch.first_offset, batch.last_offset + 1):
                    self.persisted[at] = batch
            self.machine.commit(write)
        else:
            self.machine.roll_back(write, now_ms=self.now_ms)
        for record in self.model.records.values():
            if record.write is not write:
                continue
            record.write = None
            if succeeds:
                record.member, record.lock_until_ms = "", 0
            else:
                record.state = RecordState.ACQUIRED
                if record.lock_until_ms <= self.now_ms:
                    self.model.give_back(record)
        self.model.advance()

    def change_settings(self) -> None:
        has_dead_letters, allows_renewal = self.random.random() < 0.5, self.random.random() < 0.8
        limits = self.model.limits._replace(has_dead_letters=has_dead_letters, allows_renewal=allows_renewal)
        self.model.limits = self.machine.limits = limits

    def bury(self) -> None:
        waiting = self.machine.dead_letters()
        assert [at for run in waiting for at in range(run.first, run.last + 1)] == [
            at
            for at, record in self.model.records.items()
            if record.state is RecordState.ARCHIVING and not record.write
        ]
        if not waiting:
            return
        run = self.random.choice(waiting)
        first, last = run.first, self.random.randint(run.first, run.last)
        self._begin(self.machine.buried(first, last))
        for at in range(first, last + 1):
            self.model.records[at].state = RecordState.ARCHIVED
        self.model.advance()

    def fail_over(self) -> None:
        """Another broker takes over with what is persisted: nothing that was answered is lost, nothing is skipped."""
        self.writes.clear()
        start = self.machine.start
        batches: list[StateBatch] = []
        for at in sorted(self.persisted):
            if at >= start and (not batches or at > batches[-1].last_offset):
                same = self.persisted[at]
                last = at
                while self.persisted.get(last + 1) is same:
                    last += 1
                batches.append(StateBatch(at, last, same.delivery_state, same.delivery_count))
        self.machine = ShareMachine(start, self.model.limits, batches)
        records = {}
        for batch in batches:
            for at in range(batch.first_offset, batch.last_offset + 1):
                records[at] = Record(RecordState(batch.delivery_state), batch.delivery_count)
        self.model.start = start
        self.model.end = max(records, default=start - 1) + 1
        self.model.records = {at: records.get(at, Record()) for at in range(start, self.model.end)}
        self.model.advance()
        self.machine.move_start(self.log_start)

    # -- what must hold -----------------------------------------------------------------------------------------------

    def states_are_those_of_the_model(self) -> None:
        machine, model = self.machine, self.model
        assert (machine.start, machine.end) == (model.start, model.end)
        at, before = machine.start, None
        for run in machine.runs():
            assert run.first == at and run.last >= run.first
            for offset in range(run.first, run.last + 1):
                self._check_record(run, model.records[offset])
            assert before is None or run.write is not None or not run.continues(before), "neighbours were not joined"
            at, before = run.last + 1, run
        assert at == machine.end
        assert machine.complete_count == sum(record.state in COMPLETE for record in model.records.values())
        free = [at for at, record in model.records.items() if record.is_available]
        assert machine.next_offset() == min(free, default=model.end)

    @staticmethod
    def _check_record(run: Run, record: Record) -> None:
        assert run.write is record.write
        if record.write is None and record.state in COMPLETE:
            assert run.state in COMPLETE
            return
        assert run.state is record.state
        assert run.delivery_count == record.deliveries
        if record.state is RecordState.ACQUIRED:
            assert (run.member, run.lock_until_ms) == (record.member, record.lock_until_ms)


WEIGHTS = {
    Play.produce: 4,
    Play.compact: 1,
    Play.delete_records: 1,
    Play.fetch: 10,
    Play.acknowledge: 3,
    Play.decide: 12,
    Play.leave: 1,
    Play.wait: 3,
    Play.persist: 12,
    Play.change_settings: 1,
    Play.bury: 2,
    Play.fail_over: 0.3,
}


@settings(max_examples=150)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 250))
@patch("barnabas.broker.share.machine._LOCKS_SPARE", 0)  # so that few locks are enough to remove those that are over
def test_share_machine_is_the_model_under_random_interleavings(seed: int, steps: int) -> None:
    play = Play(Random(seed))
    for step in play.random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=steps):
        step(play)
        play.states_are_those_of_the_model()
