"""Which log, from where to where, and what becomes one segment."""

from dataclasses import replace
from pathlib import Path

import pytest

from barnabas.base.config.log_config import CLEANUP_COMPACT, CLEANUP_DELETE
from barnabas.base.ids import TopicPartition
from barnabas.broker.storage.cleaner.dirty_map import max_keys
from barnabas.broker.storage.cleaner.grouping import GroupMember, group_segments
from barnabas.broker.storage.cleaner.planning import Candidate, DirtyRange, dirty_range, filthiest
from tests.unit.broker.storage.cleaner.cleaner_support import CONFIG, CompactedLog
from tests.unit.broker.storage.log.log_support import NOW_MS

HOUR_MS = 3_600_000


@pytest.fixture
def log(tmp_path: Path) -> CompactedLog:
    """Segments at 0, 2, 4 and the active one at 6, an hour apart."""
    log = CompactedLog(tmp_path)
    for number in range(3):
        log.put((b"a", b"x"), (b"b", b"y"), timestamp=NOW_MS - (3 - number) * HOUR_MS)
        log.roll()
    return log


def size(log: CompactedLog, *bases: int) -> int:
    return sum(segment.size_bytes for segment in log.log.segments if segment.base_offset in bases)


def test_all_but_the_active_segment_is_dirty_at_first(log: CompactedLog) -> None:
    log.put((b"c", b"z"))
    found = dirty_range(log.log, None, NOW_MS)
    assert (found.first_dirty_offset, found.end_offset) == (0, 6)
    assert (found.clean_bytes, found.dirty_bytes) == (0, size(log, 0, 2, 4))
    assert found.ratio == 1.0
    assert not found.checkpoint_reset


def test_log_is_clean_below_its_checkpoint(log: CompactedLog) -> None:
    found = dirty_range(log.log, 4, NOW_MS)
    assert (found.first_dirty_offset, found.end_offset) == (4, 6)
    assert (found.clean_bytes, found.dirty_bytes) == (size(log, 0, 2), size(log, 4))
    assert found.ratio == pytest.approx(1 / 3)


def test_a_clean_log_has_no_dirty_bytes(log: CompactedLog) -> None:
    found = dirty_range(log.log, 6, NOW_MS)
    assert (found.dirty_bytes, found.ratio) == (0, 0.0)


def test_an_empty_log_has_neither(tmp_path: Path) -> None:
    found = dirty_range(CompactedLog(tmp_path).log, None, NOW_MS)
    assert (found.clean_bytes, found.dirty_bytes, found.ratio) == (0, 0, 0.0)


def test_nothing_past_the_high_watermark_is_cleaned(tmp_path: Path) -> None:
    log = CompactedLog(tmp_path)
    log.put((b"a", b"1"), (b"a", b"2"))
    log.roll()
    log.put((b"a", b"3"), (b"a", b"4"))
    log.roll()
    log.log.update_high_watermark(3)
    assert dirty_range(log.log, None, NOW_MS).end_offset == 2


def test_nothing_past_the_recovery_point_is_cleaned(log: CompactedLog) -> None:
    log.log.flusher.recovery_point = 3
    assert dirty_range(log.log, None, NOW_MS).end_offset == 2


def test_a_segment_with_a_record_younger_than_the_minimum_lag_stays(log: CompactedLog) -> None:
    log.log.update_config(replace(CONFIG, min_compaction_lag_ms=2 * HOUR_MS))
    assert dirty_range(log.log, None, NOW_MS).end_offset == 2
    assert dirty_range(log.log, None, NOW_MS + HOUR_MS).end_offset == 4


def test_a_record_older_than_the_maximum_lag_makes_its_log_due(log: CompactedLog) -> None:
    log.log.update_config(replace(CONFIG, max_compaction_lag_ms=2 * HOUR_MS, min_cleanable_dirty_ratio=0.99))
    found = dirty_range(log.log, 4, NOW_MS)
    assert found.overdue_ms == 0
    assert not Candidate(log.log.partition, found, 0.99).may_be_cleaned
    found = dirty_range(log.log, 4, NOW_MS + HOUR_MS + 5)
    assert found.overdue_ms == 4, "the segment's first batch reads as of its last record"
    assert Candidate(log.log.partition, found, 0.99).may_be_cleaned


def test_a_checkpoint_past_the_log_end_makes_everything_dirty(
    log: CompactedLog, caplog: pytest.LogCaptureFixture
) -> None:
    found = dirty_range(log.log, 7, NOW_MS)
    assert (found.first_dirty_offset, found.checkpoint_reset) == (0, True)
    assert "cleaning all of it" in caplog.text


@pytest.mark.parametrize("policy", [{CLEANUP_COMPACT}, {CLEANUP_COMPACT, CLEANUP_DELETE}])
def test_a_checkpoint_below_the_log_start_moves_to_it(
    log: CompactedLog, caplog: pytest.LogCaptureFixture, policy: set[str]
) -> None:
    log.log.update_config(replace(CONFIG, cleanup_policy=frozenset(policy)))
    log.log.maybe_increment_log_start_offset(3)
    found = dirty_range(log.log, 1, NOW_MS)
    assert (found.first_dirty_offset, found.checkpoint_reset) == (3, True)
    assert ("begins at 3" in caplog.text) == (CLEANUP_DELETE not in policy)


def candidate(name: str, clean: int, dirty: int, *, overdue: int = 0, ratio: float = 0.5) -> Candidate:
    return Candidate(TopicPartition(name, 0), DirtyRange(0, 10, clean, dirty, overdue, False), ratio)


def test_the_log_with_the_largest_dirty_part_comes_first() -> None:
    found = filthiest([candidate("a", 40, 60), candidate("b", 10, 90), candidate("c", 50, 50)])
    assert found is not None and found.partition.topic == "b"


def test_a_log_below_its_ratio_is_left_alone_unless_it_is_due() -> None:
    assert filthiest([candidate("a", 50, 50)]) is None
    assert filthiest([candidate("a", 50, 50, overdue=1)]) is not None
    assert filthiest([candidate("a", 50, 0, overdue=1)]) is None


# -- groups


def members(*sizes: int, span: int = 10, index: int = 8) -> list[GroupMember]:
    return [GroupMember(at * span, (at + 1) * span, size, index, index) for at, size in enumerate(sizes)]


def bases(groups: list[list[GroupMember]]) -> list[list[int]]:
    return [[member.base_offset for member in group] for group in groups]


def test_groups_fill_a_segment_by_size() -> None:
    groups = group_segments(members(40, 60, 1, 100, 30), segment_bytes=100, segment_index_bytes=100)
    assert bases(groups) == [[0, 10], [20], [30], [40]]


def test_groups_fill_an_index() -> None:
    groups = group_segments(members(1, 1, 1, 1, index=40), segment_bytes=100, segment_index_bytes=100)
    assert bases(groups) == [[0, 10], [20, 30]]


def test_offsets_of_a_group_fit_the_index_of_its_base() -> None:
    wide = 1 << 30
    groups = group_segments(members(1, 1, 1, 1, span=wide), segment_bytes=100, segment_index_bytes=100)
    assert bases(groups) == [[0, wide], [2 * wide, 3 * wide]]
    groups = group_segments(members(1, 1, 0, 0, span=wide), segment_bytes=100, segment_index_bytes=100)
    assert bases(groups) == [[0, wide, 2 * wide, 3 * wide]], "a segment without a record has no offsets to fit"


def test_no_segments_no_groups() -> None:
    assert group_segments([], segment_bytes=1, segment_index_bytes=1) == []


def test_a_map_of_the_default_size_takes_some_700_000_keys() -> None:
    assert 600_000 < max_keys(96 * 1024 * 1024) < 1_000_000
    assert max_keys(100) == 0
