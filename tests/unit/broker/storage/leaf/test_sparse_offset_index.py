"""The offset index: against a dict, on disk as Kafka's, damaged, full."""

import os
import struct
import tempfile
import timeit
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from barnabas.base.errors import BrokenInvariant
from barnabas.broker.storage.index_file import CorruptIndex
from barnabas.broker.storage.offset_index import OffsetIndex, OffsetPosition
from barnabas.wire.record_batch import iter_batches

BROKER = Path(__file__).parents[4] / "golden" / "kafka-3.9.1" / "broker-0"


@pytest.fixture
def index(tmp_path):
    index = OffsetIndex(str(tmp_path / "00000000000000000100.index"), 100, max_index_bytes=8 * 50)
    yield index
    index.release()


class OffsetIndexModel(RuleBasedStateMachine):
    """Whatever is appended, truncated, closed and opened again: a look-up is a look-up in a dict."""

    base = 1_000

    @initialize()
    def create(self):
        self.directory = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.directory.name, "x.index")
        self.index = OffsetIndex(self.path, self.base, max_index_bytes=8 * 2_000)
        self.model: dict[int, int] = {}

    @rule(count=st.integers(1, 700), offset_gap=st.integers(1, 1_000), position_gap=st.integers(0, 5_000))
    def append(self, count, offset_gap, position_gap):
        for _ in range(count):
            if self.index.is_full:
                break
            offset = max(self.last_offset + offset_gap, self.base)
            position = self.model.get(self.last_offset, 0) + position_gap
            self.index.append(offset, position)
            self.model[offset] = position

    @property
    def last_offset(self) -> int:
        return next(reversed(self.model), self.base - 1)

    @rule(back=st.integers(-5, 20_000))
    def truncate(self, back):
        offset = max(self.model, default=self.base) - back
        self.index.truncate_to(offset)
        self.model = {known: position for known, position in self.model.items() if known < offset}

    @rule()
    def close_and_go_on(self):
        self.index.close()
        assert os.path.getsize(self.path) == 8 * len(self.model)  # noqa: PTH202
        self.index = OffsetIndex(self.path, self.base, max_index_bytes=8 * 2_000)
        self.index.sanity_check()
        self.index.preallocate()

    @rule()
    def reset(self):
        self.index.reset()
        self.model = {}

    @rule(offset=st.integers(-10, 2_000_000))
    def look_up(self, offset):
        target = self.base + offset
        below = [known for known in self.model if known <= target]
        expected = (max(below), self.model[max(below)]) if below else (self.base, 0)
        assert self.index.lookup(target) == expected
        assert self.index.lookup_position(target) == expected[1]

    @rule(position=st.integers(0, 100_000))
    def look_up_by_position(self, position):
        assert self.index.floor_position(position) == max((p for p in self.model.values() if p <= position), default=0)

    @invariant()
    def same_entries(self):
        assert self.index.entries == len(self.model)
        assert self.index.last_offset == max(self.model, default=self.base)
        assert self.index.size_bytes == 8 * len(self.model)

    def teardown(self):
        if hasattr(self, "index"):
            self.index.release()
            self.directory.cleanup()


@pytest.mark.parametrize("entries", [1, 63, 64, 65, 128, 1_000])
def test_every_offset_is_found_between_all_landmarks(tmp_path, entries: int):
    index = OffsetIndex(str(tmp_path / "x.index"), 100)
    for number in range(entries):
        index.append(100 + 3 * number, 10 * number)
    for opened in range(2):
        for number in range(entries):
            for within in range(3):
                found = index.lookup(100 + 3 * number + within)
                assert found == (100 + 3 * number, 10 * number), (opened, number)
        index.close()
    index.release()


TestOffsetIndexModel = OffsetIndexModel.TestCase
TestOffsetIndexModel.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


def test_file_is_preallocated_while_active_and_trimmed_at_close(index: OffsetIndex):
    index.append(105, 4_096)
    assert os.path.getsize(index.path) == 400  # noqa: PTH202
    index.append(110, 8_192)
    index.close()
    assert Path(index.path).read_bytes() == struct.pack(">iiii", 5, 4_096, 10, 8_192)
    assert not index.is_open


def test_closed_index_opens_itself_for_the_next_look_up(index: OffsetIndex):
    index.append(105, 4_096)
    index.close()
    assert index.lookup(200) == OffsetPosition(105, 4_096)
    assert index.is_open


def test_nothing_is_opened_until_something_is_asked(tmp_path):
    OffsetIndex(str(tmp_path / "none.index"), 0)
    assert list(tmp_path.iterdir()) == []


def test_open_index_holds_no_descriptor_but_the_maps_own(index: OffsetIndex):
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    index.open()
    during = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    assert during <= before + 1
    index.close()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_offsets_must_ascend_and_fit(index: OffsetIndex):
    index.append(105, 0)
    for offset in (105, 104):
        with pytest.raises(BrokenInvariant, match="not above the last one"):
            index.append(offset, 10)
    with pytest.raises(BrokenInvariant, match="does not fit"):
        index.append(100 + 2**31, 10)
    assert index.entries == 1


def test_full_index_refuses_one_more(index: OffsetIndex):
    for number in range(50):
        assert not index.is_full
        index.append(100 + number, number)
    assert index.is_full
    with pytest.raises(BrokenInvariant, match="past the end"):
        index.append(500, 500)


def test_disk_full_is_an_error_and_not_a_dead_process(index: OffsetIndex, monkeypatch):
    def no_space(fd: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(OSError, match="No space left"):
        index.append(105, 0)
    assert index.entries == 0
    monkeypatch.undo()
    index.append(105, 0)
    assert index.entries == 1


def test_sanity_check_finds_the_zero_tail_that_a_crash_leaves(index: OffsetIndex):
    index.append(105, 10)
    index.append(107, 20)
    index.release()
    crashed = OffsetIndex(index.path, 100, max_index_bytes=400)
    with pytest.raises(CorruptIndex, match="is not above the first"):
        crashed.sanity_check()
    crashed.reset()
    crashed.append(105, 10)
    crashed.close()
    crashed.sanity_check()
    crashed.release()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"123456789", "not a multiple of 8"),
        (struct.pack(">ii", -5, 0), "below the base offset"),
        (struct.pack(">ii", 5, -1), "negative position"),
        (struct.pack(">iiii", 5, 0, 5, 10), "not above the first"),
        (struct.pack(">iiii", 5, 10, 6, 0), "not above the first"),
    ],
)
def test_sanity_check_finds_impossible_entries(tmp_path, data: bytes, why: str):
    path = tmp_path / "x.index"
    path.write_bytes(data)
    index = OffsetIndex(str(path), 100)
    with pytest.raises(CorruptIndex, match=why):
        index.sanity_check()
    index.reset()
    assert index.entries == 0
    index.release()


def test_empty_index_is_sane_and_answers_the_base(tmp_path):
    path = tmp_path / "x.index"
    path.write_bytes(b"")
    index = OffsetIndex(str(path), 100)
    index.sanity_check()
    assert index.lookup(1_000) == (100, 0)
    assert index.entries == 0
    assert index.is_full
    index.preallocate()
    assert not index.is_full
    index.release()


def test_truncated_entries_do_not_come_back(index: OffsetIndex):
    for number in range(10):
        index.append(100 + number, number)
    index.truncate_to(105)
    index.trim_to_valid_size()
    index.preallocate()
    assert Path(index.path).read_bytes()[40:] == bytes(400 - 40)
    index.truncate()
    assert index.entries == 0


def test_the_map_outlives_a_rename_of_its_directory(index: OffsetIndex, tmp_path):
    index.append(105, 1)
    index.update_parent_dir(str(tmp_path / "moved"))
    assert index.path == str(tmp_path / "moved" / Path(index.path).name)
    assert index.lookup(106) == (105, 1)


@pytest.mark.parametrize(
    "ask",
    ["last_offset", "entries", "length_bytes", "size_bytes"],
)
def test_every_question_opens_a_closed_index(index: OffsetIndex, ask: str):
    index.append(105, 7)
    index.close()
    answers = {"last_offset": 105, "entries": 1, "length_bytes": 8, "size_bytes": 8}
    assert getattr(index, ask) == answers[ask]
    index.close()
    assert index.floor_position(9) == 7
    index.close()
    index.preallocate()
    assert not index.is_full
    assert index.path in repr(index)


def test_reading_a_file_that_is_not_there_creates_none(tmp_path):
    index = OffsetIndex(str(tmp_path / "x.index"), 0, read_only=True)
    with pytest.raises(FileNotFoundError):
        index.open()
    assert list(tmp_path.iterdir()) == []


def test_entry_out_of_range_is_an_index_error(index: OffsetIndex):
    with pytest.raises(IndexError):
        index.entry(0)


@pytest.mark.parametrize("path", sorted(BROKER.glob("*/*.index")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_kafkas_index_points_at_the_batch_that_ends_with_the_offset(path: Path):
    index = OffsetIndex(str(path), int(path.stem), read_only=True)
    index.sanity_check()
    data = path.with_suffix(".log").read_bytes()
    ends = {position: header.last_offset for position, header in iter_batches(data)}
    for number in range(index.entries):
        entry = index.entry(number)
        assert ends[entry.position] == entry.offset
        assert index.lookup(entry.offset) == entry
    index.release()


def test_kafkas_index_is_written_again_to_the_same_bytes(tmp_path):
    written = 0
    for path in BROKER.glob("*/*.index"):
        theirs = OffsetIndex(str(path), int(path.stem), read_only=True)
        ours = OffsetIndex(str(tmp_path / f"{path.parent.name}{path.name}"), int(path.stem))
        ours.open()
        for number in range(theirs.entries):
            ours.append(*theirs.entry(number))
            written += 1
        ours.close()
        assert Path(ours.path).read_bytes() == path.read_bytes()
        theirs.release()
    assert written


def test_look_up_is_quick(tmp_path):
    index = OffsetIndex(str(tmp_path / "x.index"), 0)
    for number in range(20_000):
        index.append(number * 7, number * 4_096)
    best = min(timeit.repeat(lambda: index.lookup_position(77_777), number=1_000, repeat=7)) / 1_000
    index.release()
    assert best < 10e-6  # 1.2 us on a quiet machine; generous, since this one may be busy
