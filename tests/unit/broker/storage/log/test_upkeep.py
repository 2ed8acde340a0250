"""Rolling, retention, truncation, flushing, deletion of files, replacement by cleaned segments."""

import struct
from pathlib import Path
from random import Random
from typing import Any

import pytest

from barnabas.base.config.log_config import CLEANUP_COMPACT, CLEANUP_DELETE, LogConfig
from barnabas.base.errors import BrokenInvariant, ErrorCode, LogDirFault, Refused
from barnabas.base.host.disk import Disk
from barnabas.broker.storage.log_types import Origin
from barnabas.broker.storage.replacement import create_cleaned, finish_cleaned, open_cleaned
from barnabas.broker.storage.segment import ROLLED_AGE_MS_MIN
from barnabas.wire.records import end_txn_marker
from tests.manual_time import ManualThreads
from tests.unit.broker.storage.log.log_support import NOW_MS, Partition, batch, contents, replace_segments

HOUR_MS = 3_600_000


def bases(partition: Partition) -> list[int]:
    return [segment.base_offset for segment in partition.log.segments]


# -- roll


def test_a_segment_rolls_when_the_next_batch_would_not_fit(tmp_path: Path) -> None:
    size = len(batch([b"x" * 100], key=b"key"))
    partition = Partition(tmp_path, LogConfig(segment_bytes=3 * size))
    for _ in range(7):
        partition.append(b"x" * 100)
    assert bases(partition) == [0, 3, 6]
    assert [segment.size_bytes for segment in partition.log.segments] == [3 * size, 3 * size, size]


def test_a_segment_rolls_by_the_timestamps_of_its_batches(tmp_path: Path) -> None:
    partition = Partition(tmp_path, LogConfig(segment_ms=HOUR_MS))
    partition.append(timestamp=NOW_MS)
    partition.append(timestamp=NOW_MS + HOUR_MS)
    assert bases(partition) == [0]
    partition.clock.advance_ms(ROLLED_AGE_MS_MIN)
    partition.append(timestamp=NOW_MS + HOUR_MS + 1)
    assert bases(partition) == [0, 2]
    # An old batch rolls at once.
    partition.append(timestamp=NOW_MS - 10 * HOUR_MS)
    assert bases(partition) == [0, 2]
    partition.reopen()
    partition.append(timestamp=NOW_MS + 3 * HOUR_MS)
    assert bases(partition) == [0, 2, 4]


@pytest.mark.parametrize(("policy", "expected"), [(CLEANUP_COMPACT, [0, 2]), (CLEANUP_DELETE, [0])])
def test_a_compacted_topic_closes_its_segment_at_max_compaction_lag_ms(
    tmp_path: Path, policy: str, expected: list[int]
) -> None:
    config = LogConfig(max_compaction_lag_ms=HOUR_MS, cleanup_policy=frozenset({policy}))
    partition = Partition(tmp_path, config)
    for age_ms in (0, HOUR_MS):
        partition.append(timestamp=NOW_MS + age_ms)
    partition.clock.advance_ms(HOUR_MS)
    partition.append(timestamp=NOW_MS + HOUR_MS + 1)
    assert bases(partition) == expected


def test_ever_later_timestamps_do_not_make_a_segment_of_each_batch(tmp_path: Path) -> None:
    partition = Partition(tmp_path, LogConfig(segment_ms=HOUR_MS))
    for number in range(50):
        partition.append(timestamp=NOW_MS + number * 2 * HOUR_MS)
    assert bases(partition) == [0]
    partition.clock.advance_ms(ROLLED_AGE_MS_MIN)
    partition.append(timestamp=NOW_MS + 200 * HOUR_MS)
    assert bases(partition) == [0, 50]


def test_without_timestamps_a_segment_rolls_by_the_clock(tmp_path: Path) -> None:
    partition = Partition(tmp_path, LogConfig(segment_ms=HOUR_MS))
    partition.append(timestamp=-1)
    partition.clock.advance_ms(HOUR_MS)
    partition.append(timestamp=-1)
    assert bases(partition) == [0]
    partition.clock.advance_ms(1)
    partition.append(timestamp=-1)
    assert bases(partition) == [0, 2]


def test_jitter_rolls_earlier_and_is_drawn_per_segment(tmp_path: Path) -> None:
    partition = Partition(tmp_path, LogConfig(segment_ms=HOUR_MS, segment_jitter_ms=HOUR_MS))
    partition.env.random = Random(7)
    partition.append()
    partition.log.roll(NOW_MS)
    jitter_ms = partition.log.active_segment.roll_jitter_ms
    assert 0 < jitter_ms < HOUR_MS
    partition.append(timestamp=NOW_MS)
    partition.append(timestamp=NOW_MS + HOUR_MS - jitter_ms)
    assert len(bases(partition)) == 2
    partition.clock.advance_ms(ROLLED_AGE_MS_MIN)
    partition.append(timestamp=NOW_MS + HOUR_MS - jitter_ms + 1)
    assert len(bases(partition)) == 3


def test_a_full_index_rolls(tmp_path: Path) -> None:
    partition = Partition(tmp_path, LogConfig(index_interval_bytes=1, segment_index_bytes=48))
    for number in range(12):
        partition.append(b"x", timestamp=NOW_MS + number)
    # Four entries fill the time index of 48 bytes but for the slot kept for the roll.
    assert bases(partition) == [0, 4, 8]
    assert [entry.offset for entry in contents(partition.log)] == list(range(12))


@pytest.mark.parametrize("room", [4, 8, 12, 23, 24])
def test_an_index_that_is_too_small_for_an_entry_rolls_too(tmp_path: Path, room: int) -> None:
    partition = Partition(tmp_path, LogConfig(index_interval_bytes=1, segment_index_bytes=room))
    for number in range(12):
        partition.append(b"x", timestamp=NOW_MS + number)
    log = partition.reopen()
    assert [entry.offset for entry in contents(log)] == list(range(12))
    assert [segment.max_timestamp for segment in log.segments][-1] == NOW_MS + 11
    for timestamp in range(NOW_MS, NOW_MS + 12):
        found = log.offset_for_timestamp(timestamp)
        assert found is not None and found.offset == timestamp - NOW_MS


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("is_asked_first", [True, False])
def test_smaller_segment_index_bytes_cost_no_entry_of_the_segment_that_is_active(
    tmp_path: Path, clean: bool, is_asked_first: bool
) -> None:
    partition = Partition(tmp_path, LogConfig(index_interval_bytes=100))
    for number in range(100):
        partition.append(b"x", timestamp=NOW_MS + number)
    partition.config = LogConfig(index_interval_bytes=100, segment_index_bytes=120)
    log = partition.reopen() if clean else partition.crash()
    if is_asked_first:
        # Retention and ListOffsets go by it.
        assert log.active_segment.max_timestamp == NOW_MS + 99
    for number in range(100, 130):
        partition.append(b"x", timestamp=NOW_MS + number)
    assert len(bases(partition)) > 1
    for number in range(130):
        found = log.offset_for_timestamp(NOW_MS + number)
        assert found is not None and found.offset == number
    assert [entry.offset for entry in contents(log)] == list(range(130))


def test_a_full_index_outlives_two_clean_stops(tmp_path: Path) -> None:
    """The first stop leaves it full, the second takes the slot that is kept for the roll."""
    partition = Partition(tmp_path, LogConfig(index_interval_bytes=1, segment_index_bytes=48))
    for number in range(4):
        partition.append(b"x", timestamp=NOW_MS + number)
    for number in range(4, 8):
        partition.reopen()
        partition.append(b"x", timestamp=NOW_MS + number)
    for number in range(8, 12):
        partition.append(b"x", timestamp=NOW_MS + number)
    assert [entry.offset for entry in contents(partition.log)] == list(range(12))
    assert partition.log.segments.first.max_timestamp >= NOW_MS + 4


def test_an_offset_too_far_from_the_base_rolls(tmp_path: Path) -> None:
    partition = Partition(tmp_path)
    partition.log.append_as_follower(batch([b"near"]), now_ms=NOW_MS)
    far = (1 << 31) + 5
    partition.log.append_as_follower(batch([b"far"], base_offset=far, leader_epoch=0), now_ms=NOW_MS)
    assert bases(partition) == [0, far]
    assert [entry.value for entry in contents(partition.log)] == [b"near", b"far"]


def test_a_roll_trims_the_indexes_and_writes_a_snapshot(tmp_path: Path) -> None:
    partition = Partition(tmp_path)
    partition.log.append_as_leader(
        batch([b"x"], producer_id=3, producer_epoch=0, sequence=0), leader_epoch=0, now_ms=NOW_MS
    )
    partition.fill(10)
    active = partition.log.active_segment
    assert (partition.directory / f"{0:020d}.index").stat().st_size == partition.config.segment_index_bytes
    partition.log.roll(NOW_MS)
    assert (partition.directory / f"{0:020d}.index").stat().st_size == active.offset_index.entries * 8
    timestamp, relative = struct.unpack(">qi", (partition.directory / f"{0:020d}.timeindex").read_bytes()[-12:])
    assert (timestamp, relative) == (active.max_timestamp, active.offset_of_max_timestamp)
    assert f"{21:020d}.snapshot" in partition.files()


def test_rolling_an_empty_segment_changes_nothing(tmp_path: Path) -> None:
    partition = Partition(tmp_path)
    partition.log.roll(NOW_MS)
    partition.append()
    partition.log.roll(NOW_MS)
    partition.log.roll(NOW_MS)
    assert bases(partition) == [0, 1]


def test_preallocated_files_shrink_to_their_content(tmp_path: Path) -> None:
    partition = Partition(tmp_path, LogConfig(segment_bytes=4096, preallocate=True))
    path = partition.directory / f"{0:020d}.log"
    assert path.stat().st_size == 4096
    partition.append(b"x")
    partition.log.roll(NOW_MS)
    assert path.stat().st_size == len(batch([b"x"], key=b"key"))
    partition.append(b"y")
    partition.crash()
    assert [entry.value for entry in contents(partition.log)] == [b"x", b"y"]
    partition.append(b"z")
    partition.reopen()
    assert [entry.value for entry in contents(partition.log)] == [b"x", b"y", b"z"]


# -- retention


def test_old_segments_go_by_their_largest_timestamp(tmp_path: Path) -> None:
    partition = Partition(tmp_path, LogConfig(segment_bytes=200, retention_ms=HOUR_MS))
    for hours in (5, 3, 4, 2, 0):
        partition.append(b"x" * 100, timestamp=NOW_MS - hours * HOUR_MS)
    partition.commit()
    assert bases(partition) == [0, 1, 2, 3, 4]
    # Offset 1 is younger than 2, but a segment goes only when all before it do.
    assert partition.log.delete_old_segments(NOW_MS - 2 * HOUR_MS) == 1
    assert partition.log.delete_old_segments(NOW_MS) == 3
    assert bases(partition) == [4]
    assert partition.log.log_start_offset == 4


def test_the_active_segment_goes_too_and_a_new_one_takes_its_place(tmp_path: Path) -> None:
    partition = Partition(tmp_path, LogConfig(retention_ms=HOUR_MS))
    partition.append(b"x", timestamp=NOW_MS)
    partition.commit()
    assert partition.log.delete_old_segments(NOW_MS + 2 * HOUR_MS) == 1
    assert bases(partition) == [1]
    assert (partition.log.log_start_offset, partition.log.log_end_offset) == (1, 1)
    assert partition.log.delete_old_segments(NOW_MS + 9 * HOUR_MS) == 0
    assert partition.append(b"y") == 1


def test_the_log_keeps_at_least_retention_bytes(tmp_path: Path) -> None:
    size = len(batch([b"x" * 100], key=b"key"))
    partition = Partition(tmp_path, LogConfig(segment_bytes=size, retention_bytes=3 * size + 1))
    for _ in range(10):
        partition.append(b"x" * 100)
    partition.commit()
    assert partition.log.delete_old_segments(NOW_MS) == 6
    assert partition.log.size_bytes == 4 * size
    assert partition.log.delete_old_segments(NOW_MS) == 0


def test_nothing_at_or_above_the_high_watermark_is_deleted(tmp_path: Path) -> None:
    partition = Partition(tmp_path, LogConfig(segment_bytes=200, retention_bytes=0))
    for _ in range(6):
        partition.append(b"x" * 100)
    partition.log.update_high_watermark(3)
    assert partition.log.delete_old_segments(NOW_MS) == 3
    assert partition.log.log_start_offset == 3


def test_a_compacted_topic_deletes_only_below_its_start(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=200, retention_ms=1, cleanup_policy=frozenset({CLEANUP_COMPACT}))
    partition = Partition(tmp_path, config)
    for _ in range(4):
        partition.append(b"x" * 100)
    partition.commit()
    assert partition.log.delete_old_segments(NOW_MS + HOUR_MS) == 0
    partition.log.maybe_increment_log_start_offset(2)
    assert partition.log.delete_old_segments(NOW_MS + HOUR_MS) == 2


def test_records_without_timestamps_age_by_their_file(tmp_path: Path) -> None:
    partition = Partition(tmp_path, LogConfig(retention_ms=HOUR_MS))
    partition.append(timestamp=-1)
    partition.commit()
    written_ms = partition.log.active_segment.largest_timestamp
    assert partition.log.delete_old_segments(written_ms + HOUR_MS) == 0
    assert partition.log.delete_old_segments(written_ms + HOUR_MS + 1) == 1


def test_deleted_files_are_renamed_at_once_and_removed_after_the_delay(tmp_path: Path) -> None:
    partition = Partition(tmp_path, LogConfig(segment_bytes=200, retention_bytes=0, file_delete_delay_ms=60_000))
    for _ in range(3):
        partition.append(b"x" * 100)
    partition.commit()
    partition.log.delete_old_segments(NOW_MS)
    assert f"{0:020d}.log.deleted" in partition.files()
    partition.timers.advance_ms(59_999)
    assert f"{0:020d}.log.deleted" in partition.files()
    partition.timers.advance_ms(1)
    assert not [name for name in partition.files() if name.endswith(".deleted")]


def test_the_log_start_never_passes_the_high_watermark(tmp_path: Path) -> None:
    partition = Partition(tmp_path)
    partition.fill(5)
    partition.log.update_high_watermark(4)
    with pytest.raises(Refused) as caught:
        partition.log.maybe_increment_log_start_offset(5)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert partition.log.maybe_increment_log_start_offset(3)
    assert not partition.log.maybe_increment_log_start_offset(2)
    assert partition.log.log_start_offset == 3
    assert partition.log.epochs.entries[0].start_offset == 3


# -- high watermark and truncation


def test_the_high_watermark_stays_within_the_log(tmp_path: Path) -> None:
    partition = Partition(tmp_path)
    partition.fill(5)
    log = partition.log
    assert log.update_high_watermark(99)
    assert log.high_watermark == 10
    assert not log.maybe_increment_high_watermark(4)
    with pytest.raises(BrokenInvariant):
        log.maybe_increment_high_watermark(11)
    log.truncate_to(6)
    assert log.high_watermark == 6


def test_truncation_drops_records_epochs_and_indexes(tmp_path: Path) -> None:
    partition = Partition(tmp_path)
    for epoch in range(4):
        partition.fill(10, epoch=epoch)
    before = contents(partition.log)
    assert partition.log.truncate_to(44)
    assert contents(partition.log) == before[:44]
    assert partition.log.end_offset_for_epoch(2) == (2, 44)
    assert partition.log.end_offset_for_epoch(3) == (-1, -1)
    assert not partition.log.truncate_to(44)
    partition.fill(20, epoch=7)
    assert contents(partition.reopen())[:44] == before[:44]
    assert partition.log.log_end_offset == 84


@pytest.mark.parametrize("kept_above_high_watermark", [0, 1])
def test_the_last_stable_offset_does_not_go_back_by_a_truncation_to_the_high_watermark(
    tmp_path: Path, kept_above_high_watermark: int
) -> None:
    """The usual one after a fail-over. Transactions that were complete and replicated stay so: nothing would say it again
    until the next record, and consumers that read committed records would wait for that."""
    partition = Partition(tmp_path)
    for number in range(3):
        partition.transact(7, sequence=number)
    partition.commit()
    committed = partition.log.high_watermark
    for _ in range(3):
        partition.append(b"not replicated")
    assert partition.log.last_stable_offset == committed == 6
    partition.log.truncate_to(committed + kept_above_high_watermark)
    assert partition.log.high_watermark == committed
    assert partition.log.last_stable_offset == committed


def test_transaction_whose_marker_is_below_the_log_start_is_not_open_after_a_truncation(tmp_path: Path) -> None:
    """DeleteRecords, then a fail-over: what Kafka Streams does all the time. Consumers of committed records waited for ever."""
    partition = Partition(tmp_path)
    log = partition.log
    data = batch([b"x"], producer_id=7, producer_epoch=0, sequence=0, transactional=True)
    log.append_as_leader(data, leader_epoch=0, now_ms=NOW_MS)
    log.roll(NOW_MS)  # its snapshot knows the transaction, and not its end
    marker = end_txn_marker(commit=True, coordinator_epoch=0, producer_id=7, producer_epoch=0, timestamp=NOW_MS)
    log.append_as_leader(bytearray(marker), leader_epoch=0, now_ms=NOW_MS, origin=Origin.COORDINATOR)
    partition.append(b"kept")
    partition.commit()
    log.maybe_increment_log_start_offset(2)
    partition.append(b"not replicated")
    assert log.last_stable_offset == log.high_watermark == 3
    log.truncate_to(3)
    assert log.last_stable_offset == log.high_watermark == 3
    assert log.producers.first_unstable_offset is None
    more = batch([b"x"], producer_id=7, producer_epoch=0, sequence=1, transactional=True)
    assert log.append_as_leader(more, leader_epoch=1, now_ms=NOW_MS).first_offset == 3


def test_truncation_below_the_first_segment_empties_the_log(tmp_path: Path) -> None:
    partition = Partition(tmp_path)
    partition.log.truncate_fully_and_start_at(100)
    partition.fill(2)
    partition.log.truncate_to(50)
    assert (partition.log.log_start_offset, partition.log.log_end_offset) == (50, 50)
    assert partition.append(b"x") == 50


def test_truncation_forgets_an_epoch_that_wrote_nothing(tmp_path: Path) -> None:
    partition = Partition(tmp_path)
    partition.fill(3, epoch=1)
    partition.log.assign_epoch_start(5)
    assert partition.log.latest_epoch == 5
    assert not partition.log.truncate_to(6)
    assert partition.log.latest_epoch == 1


def test_a_truncation_asks_for_a_checkpoint(tmp_path: Path) -> None:
    partition = Partition(tmp_path)
    asked: list[str] = []
    partition.env.on_recovery_point = asked.append
    partition.fill(3)
    partition.log.flusher.flush()
    partition.log.truncate_to(2)
    assert partition.log.recovery_point == 2
    assert asked == [str(tmp_path)]


# -- flush


class CountingDisk(Disk):
    __slots__ = ("fail", "synced")

    def __init__(self) -> None:
        self.synced = 0
        self.fail = False

    def fsync(self, fd: int) -> None:
        if self.fail:
            raise OSError(5, "Input/output error")
        self.synced += 1
        super().fsync(fd)


def test_flush_messages_says_when_a_flush_is_due(tmp_path: Path) -> None:
    partition = Partition(tmp_path, LogConfig(flush_messages=3))
    due = [partition.log.append_as_leader(batch([b"x"]), leader_epoch=0, now_ms=NOW_MS).flush_due for _ in range(3)]
    assert due == [False, False, True]
    partition.log.flusher.flush()
    assert partition.log.recovery_point == 3
    assert not partition.log.append_as_leader(batch([b"x"]), leader_epoch=0, now_ms=NOW_MS).flush_due


def test_appends_that_wait_for_the_disk_share_flushes(tmp_path: Path) -> None:
    disk = CountingDisk()
    partition = Partition(tmp_path, disk=disk, manual_threads=True)
    assert isinstance(partition.threads, ManualThreads)
    answered: list[int] = []
    for number in range(5):
        partition.append(b"x")
        partition.log.flusher.flush_then(number + 1, lambda error, number=number: answered.append(number))
    assert answered == []
    assert len(partition.threads) == 1
    disk.synced = 0
    partition.threads.run_pending()
    assert answered == [0, 1, 2, 3, 4]
    assert partition.log.recovery_point == 5
    files_a_flush = 4
    assert disk.synced <= 2 * files_a_flush + 3
    partition.log.flusher.flush_then(5, lambda error: answered.append(99))
    assert answered[-1] == 99


def test_a_flush_that_fails_is_a_fault_and_moves_nothing(tmp_path: Path) -> None:
    disk = CountingDisk()
    partition = Partition(tmp_path, disk=disk)
    partition.append(b"x")
    disk.fail = True
    with pytest.raises(LogDirFault):
        partition.log.flusher.flush()
    assert partition.log.recovery_point == 0
    errors: list[Exception | None] = []
    partition.log.flusher.flush_then(1, errors.append)
    assert isinstance(errors[0], LogDirFault)


def test_append_in_the_callback_of_a_flush_waits_for_the_next_flush(tmp_path: Path) -> None:
    """As a producer with another request in flight does. Other appends came during the flush."""
    partition = Partition(tmp_path, manual_threads=True)
    assert isinstance(partition.threads, ManualThreads)
    ended: list[str] = []

    def write(name: str, *, again: bool = True) -> None:
        def then(error: Exception | None) -> None:
            assert error is None
            ended.append(name)
            if again:
                write(f"{name} again", again=False)

        partition.append(b"x")
        partition.log.flusher.flush_then(partition.log.log_end_offset, then)

    write("first")
    write("second")
    write("third")
    partition.threads.run_one()
    write("fourth")
    partition.threads.run_pending()
    assert sorted(ended) == sorted(
        f"{name}{end}" for name in ("first", "second", "third", "fourth") for end in ("", " again")
    )
    assert ended[:3] == ["first", "second", "third"]


def test_a_flush_that_fails_when_the_log_has_been_closed_is_not_said_to_have_succeeded(tmp_path: Path) -> None:
    """Another write has found the broken disk first, and has taken the log away."""
    disk = CountingDisk()
    partition = Partition(tmp_path, disk=disk, manual_threads=True)
    assert isinstance(partition.threads, ManualThreads)
    partition.append(b"x")
    errors: list[Exception | None] = []
    partition.log.flusher.flush_then(1, errors.append)
    disk.fail = True
    partition.log.abandon()
    partition.threads.run_pending()
    [error] = errors
    assert isinstance(error, Refused)
    assert error.code is ErrorCode.KAFKA_STORAGE_ERROR


class NotesSynced(Disk):
    """Which files were synced, by their names."""

    __slots__ = ("given", "synced")

    def __init__(self) -> None:
        self.given: dict[int, str] = {}
        self.synced: set[str] = set()

    def open(self, path: str, **how: Any) -> int:
        fd = super().open(path, **how)
        assert fd not in self.given
        self.given[fd] = Path(path).name
        return fd

    def close(self, fd: int) -> None:
        del self.given[fd]
        super().close(fd)

    def fsync(self, fd: int) -> None:
        super().fsync(fd)
        self.synced.add(self.given.get(fd, "a directory"))


def test_a_flush_of_more_segments_than_may_be_open_syncs_all_of_them(tmp_path: Path) -> None:
    """Of a disk that is slow, or after a start that did not know what was on disk."""
    disk = NotesSynced()
    partition = Partition(tmp_path, disk=disk, manual_threads=True, max_open_segments=2)
    assert isinstance(partition.threads, ManualThreads)
    partition.fill(80)
    names = [Path(segment.log_path).name for segment in partition.log.segments]
    assert len(names) > 5
    partition.log.flusher.flush_in_background()
    partition.threads.run_pending()
    assert not partition.faults
    assert partition.log.recovery_point == partition.log.log_end_offset
    assert disk.synced >= set(names)
    assert [entry.offset for entry in contents(partition.log)] == list(range(160))
    partition.log.abandon()
    assert not disk.given


def test_a_truncation_during_a_flush_keeps_the_recovery_point_inside_the_log(tmp_path: Path) -> None:
    partition = Partition(tmp_path)
    partition.fill(5)
    job = partition.log.flusher.begin()
    assert job is not None
    partition.log.truncate_to(4)
    job.run()
    partition.log.flusher.finish(job)
    assert partition.log.recovery_point == 4


def test_records_appended_after_a_truncation_during_a_flush_are_not_flushed(tmp_path: Path) -> None:
    partition = Partition(tmp_path)
    partition.append(b"a", b"b", b"c")
    job = partition.log.flusher.begin()
    assert job is not None
    job.run()
    partition.log.truncate_to(1)
    partition.append(b"not synced", b"not synced either", b"nor this")
    partition.log.flusher.finish(job)
    assert partition.log.recovery_point <= 1
    again = partition.log.flusher.begin()
    assert again is not None
    again.run()
    partition.log.flusher.finish(again)
    assert partition.log.recovery_point == partition.log.log_end_offset


def test_of_two_flushes_at_once_the_first_to_end_has_synced_the_small_files_too(tmp_path: Path) -> None:
    """A leader epoch must be durable before the recovery point passes its records, whichever flush began first."""

    class Watching(Disk):
        __slots__ = ("seen",)

        def __init__(self) -> None:
            self.seen: list[str] = []

        def fsync_path(self, path: str) -> None:
            self.seen.append(Path(path).name)

    disk = Watching()
    partition = Partition(tmp_path, disk=disk)
    partition.append(b"x", epoch=3)
    slow = partition.log.flusher.begin()
    partition.append(b"y", epoch=3)
    quick = partition.log.flusher.begin()
    assert slow is not None
    assert quick is not None
    quick.run()
    assert "leader-epoch-checkpoint" in disk.seen
    partition.log.flusher.finish(quick)
    assert partition.log.recovery_point == 2
    partition.log.assign_epoch_start(4)
    slow.run()
    partition.log.flusher.finish(slow)
    disk.seen.clear()
    partition.append(b"z", epoch=4)
    partition.log.flusher.flush()
    assert "leader-epoch-checkpoint" in disk.seen


def test_a_roll_flushes_the_old_segment_in_the_background(tmp_path: Path) -> None:
    partition = Partition(tmp_path, manual_threads=True)
    assert isinstance(partition.threads, ManualThreads)
    partition.fill(3)
    partition.log.roll(NOW_MS)
    assert partition.log.recovery_point == 0
    partition.threads.run_pending()
    assert partition.log.recovery_point == 6


# -- replacement


def test_cleaned_segments_take_the_place_of_old_ones(tmp_path: Path) -> None:
    config = LogConfig(
        segment_bytes=2000,
        index_interval_bytes=100,
        segment_index_bytes=1200,
        cleanup_policy=frozenset({CLEANUP_COMPACT}),
    )
    partition = Partition(tmp_path, config)
    partition.fill(60)
    partition.commit()
    log = partition.log
    old = list(log.segments)[:3]
    survivors = [entry for entry in contents(log) if entry.offset % 8 < 2]
    new = create_cleaned(str(partition.directory), 0, disk=partition.env.disk, config=partition.config, now_ms=NOW_MS)
    for segment in old:
        for position, header in segment.headers(0):
            if header.base_offset % 8 == 0:
                new.append(
                    segment.batch_bytes(position, header.size_bytes),
                    first_offset=header.base_offset,
                    last_offset=header.last_offset,
                    max_timestamp=header.max_timestamp,
                    offset_of_max=header.last_offset,
                )
    finish_cleaned(new, partition.env.disk)
    after = log.segments.at(3).base_offset
    pinned = log.read(0, max_bytes=100, max_offset=after)
    replace_segments(
        log, [open_cleaned(str(partition.directory), 0, disk=partition.env.disk, config=partition.config)], old
    )
    expected = [entry for entry in survivors if entry.offset < after]
    assert [entry for entry in contents(log) if entry.offset < after] == expected
    assert len(pinned.read()) > 0
    partition.timers.advance_ms(100_000)
    assert not [name for name in partition.files() if name.endswith((".deleted", ".swap", ".cleaned"))]
    assert bases(partition)[:2] == [0, after]
    assert [entry for entry in contents(partition.reopen()) if entry.offset < after] == expected
    assert [entry for entry in contents(partition.crash(recovery_point=0)) if entry.offset < after] == expected


def test_the_active_segment_is_never_replaced(tmp_path: Path) -> None:
    partition = Partition(tmp_path)
    partition.fill(2)
    new = create_cleaned(str(partition.directory), 0, disk=partition.env.disk, config=partition.config, now_ms=NOW_MS)
    finish_cleaned(new, partition.env.disk)
    with pytest.raises(BrokenInvariant):
        replace_segments(partition.log, [new], list(partition.log.segments))
    with pytest.raises(BrokenInvariant):
        replace_segments(partition.log, [partition.log.active_segment], [])
