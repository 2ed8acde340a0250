"""The log against a list of batches: appends, rolls, truncations, deletions, clean stops and crashes in any order."""

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from barnabas.base.config.log_config import LogConfig
from barnabas.wire.record_batch import iter_batches
from tests.unit.broker.storage.log.log_support import NOW_MS, Entry, Partition, batch, contents, epoch_at


class Stored(NamedTuple):
    first: int
    last: int
    epoch: int
    timestamp: int
    values: tuple[bytes, ...]


class LogModel(RuleBasedStateMachine):
    """Batches in `self.batches`, offsets without a hole; `start` may lie inside the first."""

    @initialize(
        segment_bytes=st.sampled_from([400, 1500, 100_000]),
        interval_bytes=st.sampled_from([1, 100, 4096]),
        preallocate=st.booleans(),
        max_open=st.sampled_from([1, 3, 100]),
    )
    def begin(self, segment_bytes: int, interval_bytes: int, preallocate: bool, max_open: int) -> None:
        self.root = Path(tempfile.mkdtemp())
        config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval_bytes,
            segment_index_bytes=600,
            preallocate=preallocate,
            retention_ms=-1,
            file_delete_delay_ms=10,
        )
        self.partition = Partition(self.root, config, max_open_segments=max_open)
        self.batches: list[Stored] = []
        self.start = 0
        self.end = 0
        self.high_watermark = 0
        self.epoch = 0
        self.number = 0

    def teardown(self) -> None:
        if hasattr(self, "partition"):
            self.partition.log.abandon()
            shutil.rmtree(self.root)

    # -- what can happen

    @rule(count=st.integers(1, 4), size=st.integers(0, 60), back_ms=st.integers(0, 500))
    def append(self, count: int, size: int, back_ms: int) -> None:
        self.number += 1
        values = tuple(b"%d.%d." % (self.number, i) + b"x" * size for i in range(count))
        timestamp = NOW_MS + self.number * 100 - back_ms
        info = self.partition.log.append_as_leader(
            batch(values, timestamp=timestamp), leader_epoch=self.epoch, now_ms=NOW_MS
        )
        assert (info.first_offset, info.last_offset) == (self.end, self.end + count - 1)
        self._store(values, timestamp)

    @rule(counts=st.lists(st.integers(1, 3), min_size=1, max_size=4))
    def append_as_follower(self, counts: list[int]) -> None:
        data = bytearray()
        for count in counts:
            self.number += 1
            values = tuple(b"f%d.%d" % (self.number, i) for i in range(count))
            timestamp = NOW_MS + self.number * 100
            data += batch(values, timestamp=timestamp, base_offset=self.end, leader_epoch=self.epoch)
            self._store(values, timestamp)
        torn = batch([b"torn"], base_offset=self.end)[:70]
        info = self.partition.log.append_as_follower(data + torn, now_ms=NOW_MS)
        assert info is not None
        assert info.last_offset == self.end - 1

    def _store(self, values: tuple[bytes, ...], timestamp: int) -> None:
        self.batches.append(Stored(self.end, self.end + len(values) - 1, self.epoch, timestamp, values))
        self.end += len(values)

    @rule()
    def new_leader(self) -> None:
        self.epoch += 1

    @rule()
    def roll(self) -> None:
        self.partition.log.roll(NOW_MS)

    @rule(share=st.floats(0, 1))
    def replicate(self, share: float) -> None:
        self.high_watermark = max(self.high_watermark, round(self.end * share))
        self.partition.log.update_high_watermark(self.high_watermark)
        self.high_watermark = self.partition.log.high_watermark

    @rule(place=st.floats(0, 1))
    def truncate(self, place: float) -> None:
        """To a batch boundary, as leader epochs give it."""
        boundaries = [stored.first for stored in self.batches if stored.first >= self.start] or [self.end]
        offset = boundaries[int(place * (len(boundaries) - 1))]
        self.partition.log.truncate_to(offset)
        self.batches = [stored for stored in self.batches if stored.first < offset]
        self.end = offset
        self.high_watermark = min(self.high_watermark, offset)

    @rule(ahead=st.integers(0, 20))
    def restart(self, ahead: int) -> None:
        self.end = self.start = self.high_watermark = self.end + ahead
        self.partition.log.truncate_fully_and_start_at(self.end)
        self.batches = []

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        offset = self.start + round((self.high_watermark - self.start) * share)
        self.partition.log.maybe_increment_log_start_offset(offset)
        self.start = max(self.start, offset)
        self.partition.log.delete_old_segments(NOW_MS)
        self.batches = [stored for stored in self.batches if stored.last >= self.start]

    @rule()
    def time_passes(self) -> None:
        self.partition.timers.advance_ms(20)

    @rule()
    def flush(self) -> None:
        self.partition.log.flusher.flush()
        assert self.partition.log.recovery_point == self.end

    @rule()
    def stop_and_start(self) -> None:
        self.partition.reopen()
        self._watermark_from_checkpoint()

    @rule()
    def crash_and_recover(self) -> None:
        self.partition.crash()
        self._watermark_from_checkpoint()

    def _watermark_from_checkpoint(self) -> None:
        self.partition.log.update_high_watermark(self.high_watermark)
        self.high_watermark = self.partition.log.high_watermark

    # -- what can be asked

    @precondition(lambda self: self.end > self.start)
    @rule(place=st.floats(0, 1), max_bytes=st.integers(0, 1000), bound=st.floats(0, 1))
    def read(self, place: float, max_bytes: int, bound: float) -> None:
        offset = self.start + int((self.end - self.start) * place)
        max_offset = offset + round((self.end - offset) * bound)
        result = self.partition.log.read(offset, max_bytes=max_bytes, max_offset=max_offset)
        data = result.read()
        headers = [header for _, header in iter_batches(data)]
        wanted = [s for s in self.batches if s.last >= offset and s.last < max_offset]
        assert [h.base_offset for h in headers] == [s.first for s in wanted[: len(headers)]]
        assert bool(headers) == bool(wanted)
        assert len(data) <= max_bytes or len(headers) == 1
        assert all(h.last_offset < result.upper_offset for h in headers)

    @rule(ms=st.integers(-200, 5000))
    def look_up_a_timestamp(self, ms: int) -> None:
        target = NOW_MS + ms
        records = [
            (stored.timestamp + i, stored.first + i)
            for stored in self.batches
            for i in range(len(stored.values))
            if stored.first + i >= self.start
        ]
        expected = next((record for record in records if record[0] >= target), None)
        found = self.partition.log.offset_for_timestamp(target)
        assert (found and (found.timestamp, found.offset)) == expected

    # -- what holds always

    @invariant()
    def offsets_are_those_of_the_model(self) -> None:
        if not hasattr(self, "partition"):
            return
        log = self.partition.log
        assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
        assert log.log_start_offset <= log.last_stable_offset <= log.high_watermark <= log.log_end_offset
        assert 0 <= log.recovery_point <= log.log_end_offset
        assert log.size_bytes == sum(segment.size_bytes for segment in log.segments)
        assert not self.partition.faults

    @invariant()
    def every_record_is_there(self) -> None:
        if not hasattr(self, "partition"):
            return
        expected = [
            Entry(stored.first + i, value, stored.epoch)
            for stored in self.batches
            for i, value in enumerate(stored.values)
            if stored.first + i >= self.start
        ]
        assert contents(self.partition.log) == expected
        for entry in expected:
            assert epoch_at(self.partition.log, entry.offset) == entry.epoch


LogModel.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestLogModel = LogModel.TestCase
