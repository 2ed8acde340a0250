"""The time index: against a list, on disk as Kafka's, damaged, full."""

import os
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from barnabas.base.errors import BrokenInvariant
from barnabas.broker.storage.index_file import CorruptIndex
from barnabas.broker.storage.time_index import NO_TIMESTAMP, TimeIndex, TimestampOffset

BROKER = Path(__file__).parents[4] / "golden" / "kafka-3.9.1" / "broker-0"


class TimeIndexModel(RuleBasedStateMachine):
    base = 1_000

    @initialize()
    def create(self):
        self.directory = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.directory.name, "x.timeindex")
        self.index = TimeIndex(self.path, self.base, max_index_bytes=12 * 300)
        self.model: list[tuple[int, int]] = []

    def last(self) -> tuple[int, int]:
        return self.model[-1] if self.model else (NO_TIMESTAMP, self.base)

    @rule(gaps=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=100))
    def append(self, gaps):
        for time_gap, offset_gap in gaps:
            if self.index.is_full:
                break
            timestamp, offset = self.last()[0] + time_gap, self.last()[1] + offset_gap
            assert self.index.maybe_append(timestamp, offset) == (timestamp > self.last()[0])
            if timestamp > self.last()[0]:
                self.model.append((timestamp, offset))

    @rule(back=st.integers(-5, 500))
    def truncate(self, back):
        offset = self.last()[1] - back
        self.index.truncate_to(offset)
        self.model = [entry for entry in self.model if entry[1] < offset]

    @rule()
    def close_and_go_on(self):
        self.index.close()
        assert os.path.getsize(self.path) == 12 * len(self.model)  # noqa: PTH202
        self.index = TimeIndex(self.path, self.base, max_index_bytes=12 * 300)
        self.index.sanity_check()
        self.index.preallocate()

    @rule(timestamp=st.integers(-5, 5_000))
    def look_up(self, timestamp):
        below = [entry for entry in self.model if entry[0] <= timestamp]
        assert self.index.lookup(timestamp) == (below[-1] if below else (NO_TIMESTAMP, self.base))

    @invariant()
    def same_entries(self):
        assert self.index.entries == len(self.model)
        assert self.index.last_entry == self.last()

    def teardown(self):
        if hasattr(self, "index"):
            self.index.release()
            self.directory.cleanup()


@pytest.mark.parametrize("entries", [1, 63, 64, 65, 128, 1_000])
def test_every_timestamp_is_found_between_all_landmarks(tmp_path, entries: int):
    index = TimeIndex(str(tmp_path / "x.timeindex"), 100)
    for number in range(entries):
        index.maybe_append(3 * number, 100 + number)
    for opened in range(2):
        assert index.lookup(-1) == (NO_TIMESTAMP, 100)
        for number in range(entries):
            for within in range(3):
                assert index.lookup(3 * number + within) == (3 * number, 100 + number), (opened, number)
        index.close()
    index.release()


TestTimeIndexModel = TimeIndexModel.TestCase
TestTimeIndexModel.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


@pytest.fixture
def index(tmp_path):
    index = TimeIndex(str(tmp_path / "x.timeindex"), 100, max_index_bytes=12 * 5)
    yield index
    index.release()


def test_entry_is_twelve_bytes(index: TimeIndex):
    assert index.maybe_append(1_700_000_000_000, 105)
    index.close()
    assert Path(index.path).read_bytes() == struct.pack(">qi", 1_700_000_000_000, 5)


def test_one_slot_is_kept_for_the_roll(index: TimeIndex):
    for number in range(4):
        index.maybe_append(number, 100 + number)
    assert index.is_full
    with pytest.raises(BrokenInvariant, match="full time index"):
        index.maybe_append(10, 110)
    assert index.maybe_append(10, 110, skip_full_check=True)
    assert index.last_entry == TimestampOffset(10, 110)


def test_same_entry_again_changes_nothing_even_when_full(index: TimeIndex):
    for number in range(4):
        index.maybe_append(number, 100 + number)
    assert not index.maybe_append(3, 103)
    assert not index.maybe_append(3, 110)


def test_going_back_is_a_bug(index: TimeIndex):
    index.maybe_append(10, 110)
    with pytest.raises(BrokenInvariant, match="offset 109 is below"):
        index.maybe_append(11, 109)
    with pytest.raises(BrokenInvariant, match="timestamp 9 is below"):
        index.maybe_append(9, 111)


def test_sanity_check_finds_the_zero_tail_that_a_crash_leaves(index: TimeIndex):
    index.maybe_append(10, 110)
    index.release()
    crashed = TimeIndex(index.path, 100, max_index_bytes=60)
    with pytest.raises(CorruptIndex, match="not above the first"):
        crashed.sanity_check()
    crashed.release()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (bytes(13), "not a multiple of 12"),
        (struct.pack(">qi", 5, -1), "below the base offset"),
        (struct.pack(">qiqi", 5, 1, 5, 2), "not above the first"),
        (struct.pack(">qiqi", 5, 3, 6, 2), "not above the first"),
    ],
)
def test_sanity_check_finds_impossible_entries(tmp_path, data: bytes, why: str):
    path = tmp_path / "x.timeindex"
    path.write_bytes(data)
    index = TimeIndex(str(path), 100)
    with pytest.raises(CorruptIndex, match=why):
        index.sanity_check()
    index.release()


def test_kafkas_time_indexes_are_sane_and_written_again_to_the_same_bytes(tmp_path):
    written = 0
    for path in BROKER.glob("*/*.timeindex"):
        theirs = TimeIndex(str(path), int(path.stem), read_only=True)
        theirs.sanity_check()
        ours = TimeIndex(str(tmp_path / f"{path.parent.name}{path.name}"), int(path.stem))
        ours.open()
        for number in range(theirs.entries):
            assert theirs.lookup(theirs.entry(number).timestamp) == theirs.entry(number)
            ours.maybe_append(*theirs.entry(number))
            written += 1
        ours.close()
        assert Path(ours.path).read_bytes() == path.read_bytes()
        theirs.release()
    assert written > 10
