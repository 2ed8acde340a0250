"""Compaction against what it must come to: the last committed value of each key, tombstones as long as they must stay.

Any sequence of plain, idempotent and transactional batches, ends of transactions, rolls, time that passes, and cleanings
(also with a map that is too small). After each cleaning every record that is there must be one that was written, at
its offset; every record that must stay is there, and none that must go; and a consumer that reads committed data, by the
markers and the index of aborted transactions, sees the committed ones.
"""

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from barnabas.broker.storage.cleaner.settings import CleanerSettings
from barnabas.broker.storage.recovery import open_log
from barnabas.wire.compression import Codec
from barnabas.wire.records import ControlType, Record, control_type
from tests.unit.broker.storage.cleaner.cleaner_support import (
    CONFIG,
    DELETE_RETENTION_MS,
    SETTINGS,
    CompactedLog,
    read_batches,
)

pytestmark = pytest.mark.usefixtures("engine")


#: Room for two keys, and pieces of a batch or two: a pass ends early.
TINY = replace(SETTINGS, dedupe_buffer_size=530, io_buffer_size=150)
#: The same for a table of hashes, where the room for two has room for more.
TINIEST = replace(TINY, dedupe_buffer_size=215)

keys = st.sampled_from([b"a", b"b", b"c", b"d", b"a key of more than thirty bytes, known by digest"])
pairs = st.lists(st.tuples(keys, st.one_of(st.none(), st.binary(min_size=1, max_size=90))), min_size=1, max_size=4)
codecs = st.sampled_from([Codec.NONE, Codec.NONE, Codec.GZIP, Codec.ZSTD])
steps = st.one_of(
    st.tuples(st.just("plain"), pairs, codecs),
    st.tuples(st.just("idempotent"), st.sampled_from([1, 2]), pairs, codecs),
    st.tuples(st.just("transactional"), st.sampled_from([11, 12]), pairs, codecs),
    st.tuples(st.just("end"), st.sampled_from([11, 12]), st.booleans()),
    st.tuples(st.just("roll")),
)
waits = st.tuples(st.just("wait"), st.sampled_from([1, DELETE_RETENTION_MS // 2, DELETE_RETENTION_MS]))
cleanings = st.tuples(st.just("clean"), st.sampled_from([SETTINGS, SETTINGS, TINY, TINIEST]), st.booleans())
#: Some writing, some time, a cleaning: several of these, so that each pass meets what the one before it left.
rounds = st.tuples(st.lists(steps, min_size=2, max_size=12), waits, cleanings)


@dataclass
class Written:
    record: Record
    batch: int
    #: None: of no transaction. The number of the transaction otherwise.
    txn: int | None


@dataclass
class Model:
    written: dict[int, Written] = field(default_factory=dict)
    #: Transaction -> committed or not; missing while it is open.
    outcome: dict[int, bool] = field(default_factory=dict)
    open_txns: dict[int, int] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)
    #: Batch -> its delete horizon, once a cleaning has set it.
    horizons: dict[int, int] = field(default_factory=dict)
    present: set[int] = field(default_factory=set)
    txns: int = 0

    def is_aborted(self, offset: int) -> bool:
        txn = self.written[offset].txn
        return txn is not None and self.outcome.get(txn) is False

    def clean(self, *, next_dirty: int, end: int, now_ms: int) -> None:
        """[0, next_dirty) is compacted; up to `end` aborted records go; from there on nothing changes."""
        last: dict[bytes | None, int] = {}
        for offset in sorted(self.present):
            if offset < next_dirty and not self.is_aborted(offset):
                last[self.written[offset].record.key] = offset
        for offset in sorted(self.present):
            if (offset < end and self.is_aborted(offset)) or (
                offset < next_dirty and not self._stays(offset, last, now_ms)
            ):
                self.present.remove(offset)
        for offset in self.present:
            written = self.written[offset]
            if offset < next_dirty and written.record.value is None:
                self.horizons.setdefault(written.batch, now_ms + DELETE_RETENTION_MS)

    def _stays(self, offset: int, last: dict[bytes | None, int], now_ms: int) -> bool:
        written = self.written[offset]
        if last[written.record.key] != offset:
            return False
        horizon = self.horizons.get(written.batch)
        return written.record.value is not None or horizon is None or now_ms < horizon


class Run:
    def __init__(self, root: Path) -> None:
        self.log = CompactedLog(root, replace(CONFIG, segment_bytes=700))
        self.model = Model()

    def put(self, pairs: list[tuple[bytes, bytes | None]], codec: int, producer_id: int, *, txn: bool) -> None:
        model = self.model
        sequence = model.sequences.get(producer_id, 0)
        if txn and producer_id not in model.open_txns:
            model.txns += 1
            model.open_txns[producer_id] = model.txns
        producer = (producer_id, 0, sequence) if producer_id >= 0 else (-1, -1, -1)
        first = self.log.put(*pairs, codec=codec, producer=producer, transactional=txn)
        model.sequences[producer_id] = sequence + len(pairs)
        for record in self.log.batches()[-1].records:
            number = model.open_txns[producer_id] if txn else None
            model.written[record.offset] = Written(record, first, number)
            model.present.add(record.offset)

    def step(self, step: tuple[object, ...]) -> None:
        log, model = self.log, self.model
        match step:
            case ("plain", list() as pairs, int() as codec):
                self.put(pairs, codec, -1, txn=False)
            case ("idempotent", int() as producer_id, list() as pairs, int() as codec):
                self.put(pairs, codec, producer_id, txn=False)
            case ("transactional", int() as producer_id, list() as pairs, int() as codec):
                self.put(pairs, codec, producer_id, txn=True)
            case ("end", int() as producer_id, bool() as commit):
                if producer_id in model.open_txns:
                    model.outcome[model.open_txns.pop(producer_id)] = commit
                    log.end_txn(producer_id, 0, commit=commit)
            case ("roll",):
                log.roll()
            case ("wait", int() as ms):
                log.clock.advance_ms(ms)
            case ("clean", CleanerSettings() as cleaner_settings, bool() as roll):
                if roll:
                    log.roll()
                self.clean(cleaner_settings)

    def clean(self, cleaner_settings: CleanerSettings) -> None:
        log = self.log
        active = log.log.segments.active
        before = Path(active.log_path).read_bytes()
        bases = log.log.segments.base_offsets
        job = log.job()
        done = log.clean(cleaner_settings)
        if done is None or job is None:
            return
        end = min(base for base in bases if base >= done.next_dirty_offset)
        self.model.clean(next_dirty=done.next_dirty_offset, end=end, now_ms=log.clock.now_ms())
        assert log.log.segments.active is active
        assert Path(active.log_path).read_bytes() == before
        assert job.end_offset <= active.base_offset
        assert not [name for name in log.files() if name.endswith((".cleaned", ".swap"))]
        self.check()

    def check(self) -> None:
        model, log = self.model, self.log
        expected = [model.written[offset].record for offset in sorted(model.present)]
        assert log.records() == expected
        self.check_committed()
        self.check_look_ups()

    def check_committed(self) -> None:
        """As a consumer with read_committed sees it, which knows of aborts by the index alone."""
        log, model = self.log, self.model
        stable = log.log.last_stable_offset
        aborted = sorted(log.log.aborted_transactions(0, stable), key=lambda txn: txn.first_offset)
        open_aborts: set[int] = set()
        seen: list[int] = []
        for batch in log.batches():
            header = batch.header
            if header.base_offset >= stable:
                break
            while aborted and aborted[0].first_offset <= header.last_offset:
                open_aborts.add(aborted.pop(0).producer_id)
            if header.is_control:
                if batch.records and control_type(batch.records[0].key) is ControlType.ABORT:
                    open_aborts.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in open_aborts):
                seen += [record.offset for record in batch.records]
        assert seen == sorted(offset for offset in model.present if offset < stable and not model.is_aborted(offset))

    def check_look_ups(self) -> None:
        """Indexes of cleaned segments lead to every record."""
        for record in self.log.records():
            found = self.log.log.read(record.offset, max_bytes=1, max_offset=self.log.log.log_end_offset)
            assert record.offset in [r.offset for b in read_batches(found.read()) for r in b.records]

    def check_recovered(self) -> None:
        """A log read back without snapshots knows every producer as before."""
        log = self.log.log
        before = {
            pid: (entry.producer_epoch, entry.last_sequence, entry.last_data_offset, entry.txn_first_offset)
            for pid, entry in log.producers.producers.items()
        }
        log.abandon()
        for path in self.log.directory.glob("*.snapshot"):
            path.unlink()
        again = open_log(str(self.log.directory), config=self.log.config, env=self.log.env, clean=False)
        after = {
            pid: (entry.producer_epoch, entry.last_sequence, entry.last_data_offset, entry.txn_first_offset)
            for pid, entry in again.producers.producers.items()
        }
        assert after == before
        assert again.log_end_offset == log.log_end_offset
        self.log.log = again
        again.update_high_watermark(again.log_end_offset)
        self.check()
        again.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(rounds, min_size=2, max_size=6))
def test_compaction_keeps_exactly_the_required_records(
    script: list[tuple[list[tuple[object, ...]], tuple[object, ...], tuple[object, ...]]],
) -> None:
    with tempfile.TemporaryDirectory() as root:
        run = Run(Path(root))
        for written, wait, clean in script:
            for step in (*written, wait, clean):
                run.step(step)
        run.log.roll()
        run.clean(SETTINGS)
        run.check()
        run.check_recovered()
