"""A log whose beginning is in the tier: where it starts, what leaves the disk, what may be copied, and every crash."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from barnabas.base.config.log_config import CLEANUP_COMPACT, LogConfig
from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.host.disk import Disk
from barnabas.base.ids import LeaderEpoch, Offset
from barnabas.broker.storage import names, producer_snapshot
from barnabas.broker.storage.environment import Done
from barnabas.broker.storage.epoch_cache import EpochEntry
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.log_tier import TierStart, read_kept_epochs
from barnabas.broker.storage.producer_entry import BatchMetadata, ProducerEntry
from tests.manual_time import ManualThreads
from tests.unit.broker.storage.log.crash_support import Crash, CrashingDisk, fuse_under
from tests.unit.broker.storage.log.log_support import NOW_MS, Partition, QuickDisk, batch

CONFIG = LogConfig(
    segment_bytes=1200,
    index_interval_bytes=100,
    segment_index_bytes=1200,
    file_delete_delay_ms=0,
    retention_ms=-1,
    remote_storage_enable=True,
    local_retention_bytes=0,
)


class TieredPartition(Partition):
    """Keeps what a directory's checkpoint files would say."""

    def __init__(self, root: Path, config: LogConfig = CONFIG, *, disk: Disk | None = None) -> None:
        self.saved_start: int | None = None
        self.saved_point = 0
        super().__init__(root, config, disk=disk)
        self.env.is_tiering = True
        self.env.save_bounds = self._save

    def _save(self, log_dir: str, done: Done) -> None:
        self.saved_start = self.log.log_start_offset
        self.saved_point = self.log.recovery_point
        done(None)

    def restarted(self) -> Log:
        """After a crash, with what the checkpoints said then."""
        self.log.abandon()
        return self.open(clean=False, recovery_point=self.saved_point, log_start_offset=self.saved_start)

    def open(
        self, *, clean: bool = True, recovery_point: int | None = None, log_start_offset: int | None = None
    ) -> Log:
        return super().open(clean=clean, recovery_point=recovery_point, log_start_offset=log_start_offset)

    def copied(self, segments: int) -> int:
        """The first segments are in the tier; where they end."""
        end = self.log.segments.base_offsets[segments]
        self.log.highest_copied_offset = end - 1
        return end


@pytest.fixture
def partition(tmp_path: Path) -> TieredPartition:
    made = TieredPartition(tmp_path)
    made.fill(30)
    made.append(b"later", epoch=3)
    made.commit()
    return made


def refused(log: Log, offset: int) -> ErrorCode:
    with pytest.raises(Refused) as refusal:
        log.read(offset, max_bytes=1000, max_offset=log.log_end_offset)
    return refusal.value.code


def test_local_retention_deletes_copied_segments_and_keeps_the_log_start(partition: TieredPartition) -> None:
    end = partition.copied(2)
    assert partition.log.delete_old_segments(NOW_MS) == 2
    log = partition.log
    assert (log.log_start_offset, log.local_log_start_offset) == (0, end)
    assert log.segments.first.base_offset == end
    # The epochs go back to the log start: the tier is read by them.
    assert log.epochs.entries[0] == EpochEntry(LeaderEpoch(0), Offset(0))
    assert refused(log, 0) is ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
    assert refused(log, end - 1) is ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
    assert log.read(end, max_bytes=1000, max_offset=log.log_end_offset).size_bytes > 0
    assert log.earliest_offset().offset == 0
    assert log.earliest_local_offset() == (-1, end, 0)
    assert log.latest_tiered_offset() == (-1, end - 1, 0)


def test_nothing_leaves_the_disk_that_is_not_in_the_tier(partition: TieredPartition) -> None:
    before = partition.log.segments.base_offsets
    assert partition.log.delete_old_segments(NOW_MS + 10**12) == 0
    assert partition.log.segments.base_offsets == before
    assert partition.log.latest_tiered_offset() is None


def test_the_active_segment_stays_also_where_the_tier_has_all_of_it(tmp_path: Path) -> None:
    """Another replica, which led, began its next segment where this log ends. Without a segment, the next append or read
    ended the broker."""
    partition = TieredPartition(tmp_path)
    partition.fill(30)
    partition.commit()
    log, active = partition.log, partition.log.active_segment
    log.highest_copied_offset = log.log_end_offset - 1
    log.delete_old_segments(NOW_MS)
    assert list(log.segments) == [active]
    partition.append(b"next")
    assert log.read(active.base_offset, max_bytes=10_000, max_offset=log.log_end_offset).size_bytes


def test_local_retention_by_age_keeps_young_segments(tmp_path: Path) -> None:
    partition = TieredPartition(tmp_path, replace(CONFIG, local_retention_bytes=-1, local_retention_ms=1000))
    partition.fill(10)
    partition.clock.advance_ms(5000)
    partition.fill(10)
    partition.commit()
    old = [s.base_offset for s in partition.log.segments if s.largest_timestamp < NOW_MS + 1000]
    partition.copied(len(partition.log.segments) - 1)
    assert partition.log.delete_old_segments(NOW_MS + 5000) == len(old)


def test_local_retention_is_the_whole_retention_unless_it_is_set(tmp_path: Path) -> None:
    config = replace(CONFIG, local_retention_bytes=-2, local_retention_ms=-2, retention_ms=1000)
    partition = TieredPartition(tmp_path, config)
    partition.fill(40)
    partition.commit()
    partition.copied(3)
    assert partition.log.delete_old_segments(NOW_MS + 100_000) == 3
    assert partition.log.log_start_offset == 0


def test_where_copying_is_off_retention_is_that_of_any_log(tmp_path: Path) -> None:
    partition = TieredPartition(tmp_path, replace(CONFIG, remote_log_copy_disable=True, retention_bytes=1500))
    partition.fill(40)
    partition.commit()
    assert partition.log.delete_old_segments(NOW_MS) > 1
    assert partition.log.log_start_offset == partition.log.local_log_start_offset > 0


def test_segments_below_the_log_start_go_be_they_copied_or_not(partition: TieredPartition) -> None:
    third = partition.log.segments.base_offsets[2]
    partition.log.maybe_increment_log_start_offset(third + 1)
    assert partition.log.delete_old_segments(NOW_MS) == 2
    assert partition.log.log_start_offset == partition.log.local_log_start_offset == third + 1


@pytest.mark.parametrize(
    "config",
    [replace(CONFIG, remote_storage_enable=False), replace(CONFIG, cleanup_policy=frozenset({CLEANUP_COMPACT}))],
)
def test_a_log_that_is_not_tiered_has_one_start(tmp_path: Path, config: LogConfig) -> None:
    partition = TieredPartition(tmp_path, replace(config, retention_bytes=1500))
    partition.fill(30)
    partition.commit()
    partition.copied(2)
    partition.log.delete_old_segments(NOW_MS)
    log = partition.log
    assert log.log_start_offset == log.local_log_start_offset == log.segments.first.base_offset
    assert log.latest_tiered_offset() is None


def test_tiering_that_is_switched_off_moves_the_log_start_to_the_first_segment(partition: TieredPartition) -> None:
    end = partition.copied(2)
    partition.log.delete_old_segments(NOW_MS)
    partition.log.update_config(replace(CONFIG, remote_storage_enable=False))
    assert partition.log.log_start_offset == 0, "settings that got lost must not cost the history"
    off = replace(CONFIG, remote_storage_enable=False, remote_log_delete_on_disable=True)
    partition.log.update_config(off)
    assert partition.log.log_start_offset == partition.log.local_log_start_offset == end
    assert refused(partition.log, end - 1) is ErrorCode.OFFSET_OUT_OF_RANGE


def test_delete_records_within_the_tier_moves_the_log_start_alone(partition: TieredPartition) -> None:
    end = partition.copied(2)
    partition.log.delete_old_segments(NOW_MS)
    partition.log.maybe_increment_log_start_offset(5)
    assert (partition.log.log_start_offset, partition.log.local_log_start_offset) == (5, end)
    assert refused(partition.log, 4) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert refused(partition.log, 5) is ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
    partition.log.maybe_increment_log_start_offset(end + 3)
    assert partition.log.log_start_offset == partition.log.local_log_start_offset == end + 3


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_finds_the_log_start_below_the_first_segment(partition: TieredPartition, clean: bool) -> None:
    end = partition.copied(2)
    partition.log.delete_old_segments(NOW_MS)
    epochs, log_end = partition.log.epochs.entries, partition.log.log_end_offset
    if clean:
        partition.log.close()
        partition.open(clean=True, log_start_offset=0)
    else:
        partition.restarted()
    log = partition.log
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, end, log_end)
    assert log.epochs.entries == epochs
    # An old checkpoint: what left the disk was replicated.
    log.update_high_watermark(3)
    assert log.high_watermark == end


@pytest.mark.parametrize("left", [None, b"", "before"])
def test_the_epochs_of_what_is_in_the_tier_only_survive_a_power_cut(tmp_path: Path, left: bytes | str | None) -> None:
    """Tier seed 42: their file was not synced. Without them the tier seemed to have nothing of the log, the log start moved on,
    and history was deleted."""
    partition = TieredPartition(tmp_path)
    partition.fill(5, epoch=1)
    partition.log.flusher.flush()
    file = partition.directory / "leader-epoch-checkpoint"
    before = file.read_bytes()
    partition.fill(12, epoch=4)
    partition.fill(12, epoch=6)
    partition.fill(30, epoch=7)
    partition.commit()
    epochs = partition.log.epochs.entries
    end = partition.copied(len(partition.log.segments.base_offsets) - 1)
    assert partition.log.epochs.epoch_at(end) == 7
    partition.log.delete_old_segments(NOW_MS)
    log_end = partition.log.log_end_offset
    partition.append(b"later", epoch=9)
    partition.log.abandon()
    if left is None:
        file.unlink()
    else:
        file.write_bytes(before if isinstance(left, str) else left)
    log = partition.restarted()
    assert (log.log_start_offset, log.local_log_start_offset) == (0, end)
    assert log.epochs.entries == [*epochs, EpochEntry(LeaderEpoch(9), log_end)]


@pytest.mark.parametrize("left", [None, b""])
def test_the_epochs_of_records_that_are_here_survive_a_power_cut_beside_those_in_the_tier(
    tmp_path: Path, left: bytes | None
) -> None:
    """Tier seed 511: their file was lost. The kept epochs of the tier ended before them, and recovery began after them."""
    partition = TieredPartition(tmp_path)
    partition.fill(25, epoch=1)
    partition.commit()
    partition.copied(len(partition.log.segments.base_offsets) - 1)
    partition.log.delete_old_segments(NOW_MS)
    assert partition.log.local_log_start_offset > 0
    partition.fill(20, epoch=4)
    partition.commit()
    partition.log.flusher.flush()
    partition.saved_point = partition.log.recovery_point
    partition.fill(5, epoch=6)
    epochs = partition.log.epochs.entries
    partition.log.abandon()
    file = partition.directory / "leader-epoch-checkpoint"
    if left is None:
        file.unlink()
    else:
        file.write_bytes(left)
    assert [entry.epoch for entry in epochs] == [1, 4, 6]
    assert partition.restarted().epochs.entries == epochs


def files_of(partition: TieredPartition, segments: int) -> dict[str, bytes]:
    """Of the first so many segments, by name."""
    paths = [Path(path) for segment in list(partition.log.segments)[:segments] for path in segment.paths()]
    return {path.name: path.read_bytes() for path in paths if path.exists()}


@pytest.mark.parametrize("log_start", [0, 5])
@pytest.mark.parametrize(("back", "is_torn"), [([0], False), ([0, 1], False), ([1], False), ([2], True)])
def test_copied_segments_that_come_back_without_the_next_one_do_not_hide_it(
    tmp_path: Path, back: list[int], is_torn: bool, log_start: int
) -> None:
    """Tier seed 147, on a file system that keeps any of the names that were not synced."""
    partition = TieredPartition(tmp_path)
    partition.fill(12, epoch=1)
    partition.fill(30, epoch=4)
    partition.commit()
    partition.log.flusher.flush()
    partition.saved_point = partition.log.recovery_point
    partition.log.maybe_increment_log_start_offset(log_start)
    end = partition.copied(3)
    bases = partition.log.segments.base_offsets
    files = files_of(partition, 3)
    assert partition.log.delete_old_segments(NOW_MS) == 3
    partition.timers.advance_ms(1)
    epochs, log_end = partition.log.epochs.entries, partition.log.log_end_offset
    partition.log.abandon()
    for name, data in files.items():
        if bases.index(int(name.split(".")[0])) in back:
            (partition.directory / name).write_bytes(data[:-300] if is_torn and name.endswith(".log") else data)
    log = partition.restarted()
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (log_start, end, log_end)
    assert log.epochs.entries == epochs
    assert refused(log, end - 1) is ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE


def test_copied_segments_that_all_come_back_stay(partition: TieredPartition) -> None:
    partition.copied(3)
    bases, files = partition.log.segments.base_offsets, files_of(partition, 3)
    partition.log.delete_old_segments(NOW_MS)
    partition.timers.advance_ms(1)
    partition.log.abandon()
    for name, data in files.items():
        (partition.directory / name).write_bytes(data)
    assert partition.restarted().segments.base_offsets == bases


@pytest.mark.parametrize("is_epoch_file_lost", [False, True])
def test_records_that_were_written_in_place_of_copied_ones_stay(tmp_path: Path, is_epoch_file_lost: bool) -> None:
    """An unclean election after local retention. The tier has other records at these offsets: a hole among these, as the
    former compaction of a topic leaves them, is no reason to drop what is before it."""
    partition = TieredPartition(tmp_path)
    partition.fill(30, epoch=1)
    partition.commit()
    partition.copied(len(partition.log.segments.base_offsets) - 1)
    partition.log.delete_old_segments(NOW_MS)
    partition.log.truncate_to(3)
    partition.fill(30, epoch=6)
    partition.commit()
    partition.log.flusher.flush()
    bases, gone = partition.log.segments.base_offsets, list(partition.log.segments)[1]
    partition.saved_point = partition.log.recovery_point
    partition.log.abandon()
    for path in gone.paths():
        Path(path).unlink(missing_ok=True)
    if is_epoch_file_lost:
        (partition.directory / "leader-epoch-checkpoint").unlink()
    assert partition.restarted().segments.base_offsets == [bases[0], *bases[2:]]


def test_truncation_below_the_kept_epochs_of_the_tier_counts(tmp_path: Path) -> None:
    """An unclean election: of what the file knows above the cut nothing is the log's any more."""
    partition = TieredPartition(tmp_path)
    partition.fill(5, epoch=1)
    partition.fill(25, epoch=4)
    partition.commit()
    partition.copied(len(partition.log.segments.base_offsets) - 1)
    partition.log.delete_old_segments(NOW_MS)
    partition.log.truncate_to(3)
    partition.append(b"other", epoch=6)
    partition.log.abandon()
    (partition.directory / "leader-epoch-checkpoint").unlink()
    assert partition.restarted().epochs.entries == [
        EpochEntry(LeaderEpoch(1), Offset(0)),
        EpochEntry(LeaderEpoch(6), Offset(3)),
    ]


def test_a_log_start_that_no_checkpoint_knows_is_where_the_epochs_begin(partition: TieredPartition) -> None:
    """For a topic that was tiered late: it began at 7, which only its first segment showed."""
    partition.log.maybe_increment_log_start_offset(7)
    partition.copied(2)
    partition.log.delete_old_segments(NOW_MS)
    partition.log.close()
    assert partition.open(clean=True, log_start_offset=None).log_start_offset == 7


def test_without_tiering_on_the_broker_a_log_begins_with_its_first_segment(partition: TieredPartition) -> None:
    end = partition.copied(2)
    partition.log.delete_old_segments(NOW_MS)
    partition.log.close()
    partition.env.is_tiering = False
    assert partition.open(clean=True, log_start_offset=0).log_start_offset == end


# -- what may be copied


def test_rolled_segments_below_the_last_stable_offset_may_be_copied(partition: TieredPartition) -> None:
    log = partition.log
    bases = log.segments.base_offsets
    found = list(log.copy_candidates(0))
    assert [(each.base_offset, each.end_offset + 1) for each in found] == list(pairwise(bases))
    first = found[0]
    assert Path(first.log_path).stat().st_size == first.size_bytes == log.segments.first.size_bytes
    assert first.max_timestamp == log.segments.first.largest_timestamp
    assert Path(first.offset_index_path).stat().st_size % 8 == 0
    assert Path(first.time_index_path).stat().st_size % 12 == 0
    assert first.txn_index_path is None
    assert first.snapshot_path is not None
    assert Path(first.snapshot_path).exists()
    assert [each.base_offset for each in log.copy_candidates(bases[2] + 1)] == bases[2:-1]
    assert list(log.copy_candidates(bases[-1])) == []


def test_a_segment_that_reaches_the_last_stable_offset_is_not_copied(partition: TieredPartition) -> None:
    log = partition.log
    bases = log.segments.base_offsets
    log.update_high_watermark(bases[2] - 1)
    assert [each.base_offset for each in log.copy_candidates(0)] == bases[:1]


def test_a_copy_knows_the_epochs_of_its_records_and_all_before(tmp_path: Path) -> None:
    partition = TieredPartition(tmp_path)
    partition.fill(5, epoch=1)
    partition.fill(12, epoch=4)
    partition.fill(12, epoch=6)
    partition.commit()
    found = list(partition.log.copy_candidates(0))
    for each in found:
        known = {entry.epoch for entry in each.epochs}
        assert known == {
            partition.log.epochs.epoch_at(offset) for offset in range(each.base_offset, each.end_offset + 1)
        }
        assert each.epochs[0].start_offset == each.base_offset
        assert each.epochs_until_end == [e for e in partition.log.epochs.entries if e.start_offset <= each.end_offset]


def test_a_copy_has_its_aborted_transactions_and_the_producers_as_of_its_end(tmp_path: Path) -> None:
    partition = TieredPartition(tmp_path)
    partition.transact(7, commit=False)
    partition.log.roll(NOW_MS)
    partition.transact(7, sequence=1)
    partition.log.roll(NOW_MS)
    partition.append(b"x")
    partition.commit()
    one, two = partition.log.copy_candidates(0)
    assert one.txn_index_path is not None
    assert two.txn_index_path is None
    assert one.snapshot_path is not None
    assert two.snapshot_path is not None
    assert [entry.last_sequence for entry in producer_snapshot.read(one.snapshot_path)] == [0]
    assert [entry.last_sequence for entry in producer_snapshot.read(two.snapshot_path)] == [1]


# -- truncation, and a replica that begins where the tier ends

START = TierStart(
    offset=1000,
    log_start_offset=400,
    epochs=[EpochEntry(LeaderEpoch(2), Offset(400)), EpochEntry(LeaderEpoch(5), Offset(700))],
    producers=[
        ProducerEntry(
            9,
            producer_epoch=1,
            coordinator_epoch=0,
            last_timestamp=NOW_MS,
            txn_first_offset=None,
            batches=(BatchMetadata(41, Offset(999), 0, NOW_MS),),
        )
    ],
)


def start_from_tier(partition: TieredPartition, *, is_wanted: Callable[[], bool] = lambda: True) -> None:
    errors: list[Exception | None] = []
    partition.log.start_from_tier_then(START, is_wanted=is_wanted, then=errors.append)
    assert errors == [None]


def check_started(log: Log) -> None:
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (400, 1000, 1000)
    assert log.high_watermark == 1000
    assert log.epochs.entries == START.epochs
    entry = log.producers.entry(9)
    assert entry is not None
    assert entry.last_sequence == 41
    assert refused(log, 999) is ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE


def test_a_replica_begins_where_the_tier_ends(partition: TieredPartition) -> None:
    start_from_tier(partition)
    check_started(partition.log)
    check_started(partition.restarted())
    # The producer's next batch follows on what the tier has; one that it has already is a duplicate.
    again = batch([b"dup"], producer_id=9, producer_epoch=1, sequence=41)
    assert partition.log.append_as_leader(again, leader_epoch=5, now_ms=NOW_MS).duplicate
    following = batch([b"next"], producer_id=9, producer_epoch=1, sequence=42)
    assert partition.log.append_as_leader(following, leader_epoch=5, now_ms=NOW_MS).first_offset == 1000


class BusyThreads(QuickDisk):
    """Before the file of the tier's leader epochs gets its name, another thread does what it was asked for."""

    __slots__ = ("others",)

    def __init__(self) -> None:
        self.others = ManualThreads()

    def rename(self, source: str, target: str) -> None:
        if target.endswith(names.TIERED_EPOCHS):
            self.others.run_one()
        super().rename(source, target)


def test_a_replica_begins_where_the_tier_ends_during_local_retention(tmp_path: Path) -> None:
    """Both write the leader epochs of the tier. One took the other's file away, and the directory failed."""
    disk = BusyThreads()
    partition = TieredPartition(tmp_path, disk=disk)
    partition.fill(30)
    partition.commit()
    partition.env.threads = disk.others
    partition.copied(2)
    partition.log.delete_old_segments(NOW_MS)
    errors: list[Exception | None] = []
    partition.log.start_from_tier_then(START, is_wanted=lambda: True, then=errors.append)
    disk.others.run_pending()
    assert (errors, partition.faults) == ([None], [])
    check_started(partition.log)
    assert read_kept_epochs(str(partition.directory), disk) == (START.epochs, 1000)


def test_a_replica_that_leads_by_then_keeps_its_log(partition: TieredPartition) -> None:
    end = partition.log.log_end_offset
    start_from_tier(partition, is_wanted=lambda: False)
    assert partition.log.log_end_offset == end


def test_truncation_below_the_first_segment_keeps_the_records_in_the_tier(partition: TieredPartition) -> None:
    end = partition.copied(2)
    partition.log.delete_old_segments(NOW_MS)
    partition.log.truncate_to(end - 2)
    log = partition.log
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, end - 2, end - 2)
    assert log.epochs.entries == [EpochEntry(LeaderEpoch(0), Offset(0))]
    assert log.highest_copied_offset == end - 3, "the records that replace it are not in the tier"
    # Below the log start nothing is left to begin with.
    log.maybe_increment_log_start_offset(4)
    log.truncate_to(2)
    assert (log.log_start_offset, log.log_end_offset) == (2, 2)


# -- a crash at every step


def crash_at_every_step(
    tmp_path: Path, act: Callable[[TieredPartition], None], check: Callable[[Log, str], None]
) -> int:
    taken = 0
    with fuse_under(tmp_path) as fuse:
        for crash_at in range(1000):
            root = tmp_path / str(crash_at)
            root.mkdir()
            partition = TieredPartition(root, disk=CrashingDisk(fuse))
            partition.fill(30)
            partition.commit()
            fuse.arm(crash_at)
            try:
                act(partition)
                partition.timers.advance_ms(1)
                step = "done"
            except Crash as crash:
                step = str(crash)
            fuse.disarm()
            check(partition.restarted(), step)
            assert not partition.faults
            partition.log.abandon()
            taken += 1
            if step == "done":
                return taken
    raise AssertionError("it never ended")


def test_a_crash_at_any_step_of_local_retention_keeps_the_log_start_and_all_records(tmp_path: Path) -> None:
    def act(partition: TieredPartition) -> None:
        # As of a topic that was tiered late: no checkpoint names it yet.
        assert partition.saved_start is None
        partition.log.maybe_increment_log_start_offset(3)
        partition.copied(3)
        assert partition.log.delete_old_segments(NOW_MS) == 3

    def check(log: Log, step: str) -> None:
        assert log.log_end_offset == 60
        local = log.local_log_start_offset
        # Before its checkpoint a log start may go back; never beyond what is there, nor up to the first segment.
        assert log.log_start_offset in (0, 3) if local <= 3 else log.log_start_offset == 3
        offset = int(local)
        while offset < 60:
            found = log.read(offset, max_bytes=500, max_offset=60)
            assert found.size_bytes
            offset = int(found.upper_offset)
            found.release()

    assert crash_at_every_step(tmp_path, act, check) > 5


def test_a_crash_at_any_step_of_a_start_from_the_tier_leaves_a_whole_log(tmp_path: Path) -> None:
    def check(log: Log, step: str) -> None:
        if log.log_end_offset == 1000:
            check_started(log)
        elif log.local_log_start_offset == 0:
            assert log.log_start_offset == 0  # it has the former records, or some of them: it fetches again
        else:
            # Empty: its next fetch brings it to the tier again. Of its old records nothing is known any more.
            assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (400, 400, 400)
            assert not log.epochs.entries
        assert step != "done" or log.log_end_offset == 1000

    assert crash_at_every_step(tmp_path, start_from_tier, check) > 10


def test_a_start_whose_knowledge_of_the_tier_the_power_took_begins_again(partition: TieredPartition) -> None:
    start_from_tier(partition)
    partition.log.abandon()
    (partition.directory / "leader-epoch-checkpoint").unlink()
    log = partition.restarted()
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (400, 400, 400)


def test_deletion_while_the_log_start_is_saved_does_not_hide_the_first_record(tmp_path: Path) -> None:
    """The kept leader epochs began above the log start on disk: after a restart the first records could not be read."""
    partition = TieredPartition(tmp_path)
    partition.fill(30, epoch=1)
    partition.fill(30, epoch=4)
    partition.commit()
    partition.log.flusher.flush()
    partition.log.maybe_increment_log_start_offset(5)
    partition.copied(3)

    def save(_: str, done: Done) -> None:
        partition.saved_start, partition.saved_point = partition.log.log_start_offset, partition.log.recovery_point
        partition.log.maybe_increment_log_start_offset(8)
        done(None)

    partition.env.save_bounds = save
    partition.log.delete_old_segments(NOW_MS)
    partition.timers.advance_ms(1)
    assert partition.log.local_log_start_offset > 8
    log = partition.restarted()
    assert log.log_start_offset == 8
    assert log.epochs.epoch_at(log.log_start_offset) == 1
