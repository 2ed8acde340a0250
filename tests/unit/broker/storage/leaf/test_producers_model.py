"""Producer state against a reference that keeps every batch ever written and decides from the rules alone."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import TopicPartition
from barnabas.broker.storage import producer_snapshot
from barnabas.broker.storage.producer_append import AppendOrigin
from barnabas.broker.storage.producer_state import ProducerStateManager
from barnabas.wire.record_batch import BatchHeader
from barnabas.wire.records import EndTxnMarker

PIDS = st.integers(0, 2)
MODULUS = 2**31
#: Sequences start near the wrap, so that it is met.
START = MODULUS - 6


class Reference:
    """One producer, with all it ever wrote: (epoch, first sequence, count, first offset)."""

    def __init__(self) -> None:
        self.epoch: int | None = None
        self.coordinator_epoch = -1
        self.batches: list[tuple[int, int, int, int]] = []
        self.open_since: int | None = None
        self.restored = False

    def verdict(self, epoch: int, sequence: int, count: int, txn: bool) -> ErrorCode | int | None:
        """An error code, the first offset of the batch that it repeats, or None: append."""
        if self.epoch is None:
            return None
        mine = [batch for batch in self.batches if batch[0] == self.epoch]
        if epoch == self.epoch:
            for _, first, size, offset in mine[-5:]:
                if (first, size) == (sequence, count):
                    return ErrorCode.UNKNOWN_PRODUCER_ID if txn and self.has_ended(offset) else offset
            # A batch from before a restart: its offset is unknown, but it was written.
            if self.restored and 0 < len(mine) < 5 and sequence + count <= mine[0][1] < sequence + MODULUS // 2:
                return ErrorCode.UNKNOWN_PRODUCER_ID if txn and self.has_ended(mine[0][3] - 1) else -1
        if epoch < self.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if epoch > self.epoch or not mine:
            expected = 0
        else:
            expected = (mine[-1][1] + mine[-1][2]) % MODULUS
        if sequence != expected:
            is_behind = (sequence - expected) % MODULUS >= MODULUS // 2
            if txn and epoch == self.epoch and mine and is_behind and self.has_ended(mine[-1][3]):
                return ErrorCode.UNKNOWN_PRODUCER_ID
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if self.open_since is not None and not txn:
            return ErrorCode.INVALID_TXN_STATE
        return None

    def has_ended(self, offset: int) -> bool:
        """Whether what this producer wrote there is of no open transaction."""
        return self.open_since is None or offset < self.open_since


class ProducersModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = ProducerStateManager(TopicPartition("t", 0), producer_id_expiration_ms=10**15)
        self.model: dict[int, Reference] = {}
        self.unreplicated: list[tuple[int, int]] = []
        self.end = 0
        self.high_watermark = 0

    def header(self, pid: int, epoch: int, sequence: int, count: int, attributes: int) -> BatchHeader:
        return BatchHeader(
            self.end, 49, 0, 2, 0, attributes, count - 1, 0, self.end, pid, epoch, sequence, count
        )  # fmt: skip

    @rule(
        pid=PIDS,
        epoch_step=st.sampled_from([0, 0, 0, 0, 1, -1]),
        sequence_step=st.sampled_from([0, 0, 0, 0, 0, 1, -1, -2, -3, -9]),
        count=st.integers(1, 4),
        txn=st.booleans(),
    )
    def client_writes(self, pid, epoch_step, sequence_step, count, txn):
        reference = self.model.setdefault(pid, Reference())
        epoch = max(0, (reference.epoch or 0) + epoch_step)
        mine = [batch for batch in reference.batches if batch[0] == epoch]
        following = (mine[-1][1] + mine[-1][2]) % MODULUS if mine else 0 if reference.epoch is not None else START
        self.write(pid, epoch, (following + sequence_step) % MODULUS, count, txn)

    @rule(pid=PIDS, batches=st.integers(2, 7), count=st.integers(1, 3), txn=st.booleans())
    def client_writes_a_lot(self, pid, batches, count, txn):
        for _ in range(batches):
            self.client_writes(pid, 0, 0, count, txn or self.model.setdefault(pid, Reference()).open_since is not None)

    @rule(pid=PIDS, back=st.integers(1, 7), txn=st.booleans())
    def client_writes_again(self, pid, back, txn):
        reference = self.model.get(pid)
        if reference is not None and len(reference.batches) >= back:
            epoch, sequence, count, _ = reference.batches[-back]
            self.write(pid, epoch, sequence, count, txn)

    def write(self, pid: int, epoch: int, sequence: int, count: int, txn: bool) -> None:
        reference = self.model.setdefault(pid, Reference())
        expected = reference.verdict(epoch, sequence, count, txn)
        header = self.header(pid, epoch, sequence, count, 0x10 if txn else 0)
        before = producer_snapshot.encode(self.state.snapshot_entries())
        try:
            plan = self.state.analyze([(header, None)], AppendOrigin.CLIENT)
        except Refused as refusal:
            assert refusal.code is expected
            assert producer_snapshot.encode(self.state.snapshot_entries()) == before
            return
        assert producer_snapshot.encode(self.state.snapshot_entries()) == before
        if plan.duplicate is not None:
            assert plan.duplicate.first_offset == expected
            return
        assert expected is None
        for append in plan.appends:
            self.state.update(append)
        reference.epoch = epoch
        reference.batches.append((epoch, sequence, count, self.end))
        if txn and reference.open_since is None:
            reference.open_since = self.end
        self.end += count
        self.state.update_map_end_offset(self.end)

    @rule(pid=PIDS, epoch_step=st.sampled_from([0, 0, 1, -1]), coordinator_step=st.sampled_from([0, 0, 1, -1]))
    def coordinator_ends(self, pid, epoch_step, coordinator_step):
        reference = self.model.setdefault(pid, Reference())
        epoch = max(0, (reference.epoch or 0) + epoch_step)
        coordinator_epoch = reference.coordinator_epoch + coordinator_step
        header = self.header(pid, epoch, -1, 1, 0x30)
        marker = EndTxnMarker(True, coordinator_epoch, self.end)
        try:
            plan = self.state.analyze([(header, marker)], AppendOrigin.COORDINATOR)
        except Refused as refusal:
            fenced = reference.epoch is not None and epoch < reference.epoch
            assert fenced or coordinator_epoch < reference.coordinator_epoch
            code = ErrorCode.INVALID_PRODUCER_EPOCH if fenced else ErrorCode.TRANSACTION_COORDINATOR_FENCED
            assert refusal.code is code
            return
        for append in plan.appends:
            self.state.update(append)
        for completed in plan.completed:
            assert completed.first_offset == reference.open_since
            self.state.complete_txn(completed)
        if reference.open_since is not None:
            assert plan.completed
            self.unreplicated.append((reference.open_since, self.end))
        reference.epoch, reference.coordinator_epoch, reference.open_since = epoch, coordinator_epoch, None
        self.end += 1
        self.state.update_map_end_offset(self.end)

    @rule(
        batches=st.lists(st.tuples(PIDS, st.integers(1, 3), st.sampled_from(["data", "txn", "txn", "end"])), max_size=8)
    )
    def leader_sends(self, batches):
        """Send the leader's batches in one fetch: many batches, of many producers, with markers between them."""
        fetched = []
        ended = []
        for pid, count, kind in batches:
            reference = self.model.setdefault(pid, Reference())
            epoch = reference.epoch or 0
            if kind == "end":
                coordinator_epoch = max(0, reference.coordinator_epoch)
                fetched.append((self.header(pid, epoch, -1, 1, 0x30), EndTxnMarker(True, coordinator_epoch, self.end)))
                if reference.open_since is not None:
                    ended.append((reference.open_since, self.end))
                reference.epoch, reference.coordinator_epoch, reference.open_since = epoch, coordinator_epoch, None
                self.end += 1
                continue
            mine = [batch for batch in reference.batches if batch[0] == epoch]
            sequence = (mine[-1][1] + mine[-1][2]) % MODULUS if mine else 0
            txn = kind == "txn" or reference.open_since is not None
            fetched.append((self.header(pid, epoch, sequence, count, 0x10 if txn else 0), None))
            reference.epoch = epoch
            reference.batches.append((epoch, sequence, count, self.end))
            if txn and reference.open_since is None:
                reference.open_since = self.end
            self.end += count
        plan = self.state.analyze(fetched, AppendOrigin.REPLICATION)
        for append in plan.appends:
            self.state.update(append)
        assert [(done.first_offset, done.last_offset) for done in plan.completed] == ended
        for completed in plan.completed:
            self.state.complete_txn(completed)
        self.unreplicated += ended
        self.state.update_map_end_offset(self.end)

    @rule(step=st.integers(0, 10))
    def followers_fetch(self, step):
        self.high_watermark = min(self.end, self.high_watermark + step)
        self.state.on_high_watermark(self.high_watermark)
        self.unreplicated = [(first, last) for first, last in self.unreplicated if last >= self.high_watermark]

    @rule(past=st.integers(0, 1))
    def followers_fetch_up_to_a_marker(self, past):
        if self.unreplicated:
            self.followers_fetch(max(0, self.unreplicated[0][1] + past - self.high_watermark))

    @rule()
    def restart_from_a_snapshot(self):
        data = producer_snapshot.encode(self.state.snapshot_entries())
        self.state.load(producer_snapshot.decode(data), self.end, now_ms=0)
        assert producer_snapshot.encode(self.state.snapshot_entries()) == data
        # A snapshot holds the last batch of a producer only, and ended transactions count as replicated.
        self.unreplicated = []
        for reference in self.model.values():
            current = [batch for batch in reference.batches if batch[0] == reference.epoch]
            reference.batches = current[-1:]
            reference.restored = True

    @invariant()
    def first_unstable_offset_is_the_earliest_that_is_open_or_not_replicated(self):
        open_since = [r.open_since for r in self.model.values() if r.open_since is not None]
        unstable = [*open_since, *(first for first, _ in self.unreplicated)]
        assert self.state.first_unstable_offset == min(unstable, default=None)


TestProducersModel = ProducersModel.TestCase
TestProducersModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
