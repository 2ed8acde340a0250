"""A broker without a free descriptor: whatever a log was about to do is done, left undone, or the fault of its directory."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.base.config.log_config import CLEANUP_COMPACT, LogConfig
from barnabas.base.errors import LogDirFault
from barnabas.base.host import descriptors
from barnabas.base.host.disk import FileMap
from barnabas.broker.storage.log_types import Origin
from barnabas.broker.storage.replacement import create_cleaned, finish_cleaned, open_cleaned
from barnabas.wire.records import end_txn_marker
from tests.manual_time import ManualThreads
from tests.unit.broker.storage.log.log_support import NOW_MS, Partition, QuickDisk, batch, contents


class FullProcess(QuickDisk):
    """Gives out `left` more descriptors, then none; None: as many as are asked for."""

    __slots__ = ("given", "left", "maps")

    def __init__(self) -> None:
        self.left: int | None = None
        self.given: set[int] = set()
        #: Each keeps a descriptor.
        self.maps = 0

    def _take(self) -> None:
        if self.left is not None:
            if self.left == 0:
                raise OSError(24, "Too many open files")
            self.left -= 1

    def open(self, path: str, **how: Any) -> int:
        self._take()
        fd = super().open(path, **how)
        self.given.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self.given.discard(fd)
        super().close(fd)

    def map(self, fd: int, length: int, *, read_only: bool) -> FileMap:
        self._take()
        mapped = super().map(fd, length, read_only=read_only)
        self.maps += 1
        return mapped

    def unmap(self, mapped: FileMap) -> None:
        self.maps -= 1
        super().unmap(mapped)

    def fsync_dir(self, path: str) -> None:
        if self.left == 0:
            self._take()


def lead(partition: Partition) -> None:
    for number in range(20):
        partition.append(b"%d" % number + b"." * 90)


def follow(partition: Partition) -> None:
    end = partition.log.log_end_offset
    sent = b"".join(batch([b"." * 50], base_offset=end + number, leader_epoch=3) for number in range(40))
    partition.log.append_as_follower(bytearray(sent), now_ms=NOW_MS)


def cut(partition: Partition) -> None:
    partition.log.truncate_to(50)


def restart(partition: Partition) -> None:
    partition.log.truncate_fully_and_start_at(100)


def roll(partition: Partition) -> None:
    partition.log.roll(NOW_MS)


@pytest.mark.parametrize("change", [lead, follow, roll, cut, restart])
def test_change_without_a_free_descriptor_is_done_or_left_undone_or_the_fault_of_the_directory(
    tmp_path: Path, change: Callable[[Partition], None]
) -> None:
    for given in range(100):
        disk = FullProcess()
        root = tmp_path / str(given)
        root.mkdir()
        partition = Partition(root, disk=disk)
        partition.fill(40)
        partition.transact(7, commit=False)
        partition.commit()
        log = partition.reopen()
        contents(log)
        disk.left = given
        try:
            change(partition)
            is_done = not partition.faults
        except LogDirFault:
            is_done = False
        disk.left = None
        if all(descriptors.are_exhausted(fault.cause) for fault in partition.faults):
            # The log stays open: its state must be right, and it must go on.
            end = log.log_end_offset
            assert [entry.offset for entry in contents(log)] == list(range(log.log_start_offset, end))
            lead(partition)
            assert [entry.offset for entry in contents(log)][-20:] == list(range(end, end + 20))
        log.abandon()
        assert not disk.given and not disk.maps, "everything that was opened is closed"
        if is_done:
            return
    pytest.fail("no number of descriptors was enough")


def test_index_beside_which_the_other_cannot_be_opened_gives_its_descriptor_back(tmp_path: Path) -> None:
    """Its map was lost, and kept a descriptor, while none was free, for as long as the error object lived."""
    disk = FullProcess()
    partition = Partition(tmp_path, disk=disk)
    partition.fill(40)
    segment = partition.reopen().segments.active
    segment.release_files()
    before, disk.left = disk.maps, 3  # the other one would need a fourth
    with pytest.raises(OSError, match="Too many open files"):
        segment.check_indexes()
    assert disk.maps == before
    disk.left = None
    segment.check_indexes()


class BusyProcess(QuickDisk):
    """Has `free` descriptors; closing a file frees one. None: no limit."""

    __slots__ = ("free",)

    def __init__(self) -> None:
        self.free: int | None = None

    def _take(self) -> None:
        if self.free is not None:
            if self.free == 0:
                raise OSError(24, "Too many open files")
            self.free -= 1

    def _give_back(self) -> None:
        if self.free is not None:
            self.free += 1

    def open(self, path: str, **how: Any) -> int:
        self._take()
        try:
            return super().open(path, **how)
        except OSError:
            self._give_back()
            raise

    def close(self, fd: int) -> None:
        super().close(fd)
        self._give_back()

    def map(self, fd: int, length: int, *, read_only: bool) -> FileMap:
        self._take()
        return super().map(fd, length, read_only=read_only)

    def unmap(self, mapped: FileMap) -> None:
        super().unmap(mapped)
        self._give_back()


@pytest.mark.parametrize("change", [cut, restart])
@pytest.mark.parametrize("is_read", [False, True])
def test_cut_for_which_there_are_too_few_descriptors_is_left_undone(
    tmp_path: Path, change: Callable[[Partition], None], is_read: bool
) -> None:
    """Half-way it is the fault of the directory: all its logs closed because one was cut in a bad moment."""
    undone = 0
    for free in range(20):
        disk = BusyProcess()
        root = tmp_path / str(free)
        root.mkdir()
        partition = Partition(root, disk=disk)
        partition.fill(40)
        partition.transact(7, commit=False)
        partition.commit()
        log = partition.reopen()
        if is_read:
            contents(log)
        end = log.log_end_offset
        disk.free = free
        try:
            change(partition)
        except LogDirFault:
            undone += 1
            assert (log.log_start_offset, log.log_end_offset) == (0, end)
        disk.free = None
        assert all(descriptors.are_exhausted(fault.cause) for fault in partition.faults), free
        start, end = log.log_start_offset, log.log_end_offset
        assert [entry.offset for entry in contents(log)] == list(range(start, end))
        lead(partition)
        assert log.log_end_offset == end + 20
        log.abandon()
    assert 0 < undone < 15


def test_marker_of_an_aborted_transaction_is_written_or_not_and_never_the_fault_of_the_directory(
    tmp_path: Path,
) -> None:
    """The index of aborted transactions needs a descriptor: after the marker was written, all logs beside it had to close."""
    for given in range(10):
        disk = FullProcess()
        root = tmp_path / str(given)
        root.mkdir()
        partition = Partition(root, disk=disk)
        partition.fill(3)
        begin = batch([b"aborted"], producer_id=7, producer_epoch=0, sequence=0, transactional=True)
        partition.log.append_as_leader(begin, leader_epoch=0, now_ms=NOW_MS)
        marker = end_txn_marker(commit=False, coordinator_epoch=0, producer_id=7, producer_epoch=0, timestamp=NOW_MS)
        disk.left = given
        is_done = False
        try:
            partition.log.append_as_leader(bytearray(marker), leader_epoch=0, now_ms=NOW_MS, origin=Origin.COORDINATOR)
            is_done = True
        except LogDirFault:
            assert partition.log.log_end_offset == 7
        disk.left = None
        assert all(descriptors.are_exhausted(fault.cause) for fault in partition.faults)
        if not is_done:
            partition.log.append_as_leader(bytearray(marker), leader_epoch=0, now_ms=NOW_MS, origin=Origin.COORDINATOR)
        partition.commit()
        assert [txn.producer_id for txn in partition.log.aborted_transactions(0, 8)] == [7]
        assert partition.log.last_stable_offset == 8
        partition.log.abandon()
        assert not disk.given
        if is_done:
            return
    pytest.fail("no number of descriptors was enough")


class NoDescriptorForDirectories(QuickDisk):
    """None for the next `times` directories that are to be synced."""

    __slots__ = ("times",)

    def __init__(self) -> None:
        self.times = 0

    def fsync_dir(self, path: str) -> None:
        if self.times:
            self.times -= 1
            raise OSError(24, "Too many open files")
        super().fsync_dir(path)


@pytest.mark.parametrize("synced_before", [0, 1, 2])
def test_cleaned_segments_take_their_places_when_a_descriptor_is_free_again(tmp_path: Path, synced_before: int) -> None:
    """Left half-way, they would have names under which the next cleaning does not find them, and takes the disk for broken."""
    disk = NoDescriptorForDirectories()
    compacted = LogConfig(
        segment_bytes=2000,
        index_interval_bytes=100,
        segment_index_bytes=1200,
        cleanup_policy=frozenset({CLEANUP_COMPACT}),
    )
    partition = Partition(tmp_path, compacted, disk=disk, manual_threads=True)
    assert isinstance(partition.threads, ManualThreads)
    partition.fill(40)
    partition.commit()
    partition.threads.run_pending()
    log, directory = partition.log, str(partition.directory)
    old = list(log.segments)[:2]
    new = create_cleaned(directory, 0, disk=disk, config=compacted, now_ms=NOW_MS)
    [first] = [(position, header) for position, header in old[0].headers(0) if header.base_offset == 0]
    new.append(
        old[0].batch_bytes(first[0], first[1].size_bytes),
        first_offset=first[1].base_offset,
        last_offset=first[1].last_offset,
        max_timestamp=first[1].max_timestamp,
        offset_of_max=first[1].last_offset,
    )
    finish_cleaned(new, disk)
    answers: list[Exception | None] = []
    log.replace_segments_then(
        [open_cleaned(directory, 0, disk=disk, config=compacted)],
        old,
        is_wanted=lambda: True,
        then=answers.append,
    )
    for _ in range(synced_before):
        partition.threads.run_one()
    disk.times = 1
    partition.threads.run_pending()
    assert not answers
    partition.timers.advance_ms(2000)
    partition.threads.run_pending()
    assert answers == [None]
    assert all(descriptors.are_exhausted(fault.cause) for fault in partition.faults)
    assert f"{0:020d}.log" in partition.files()
    assert not [name for name in partition.files() if name.endswith((".swap", ".cleaned"))]
    after = log.segments.at(1).base_offset
    assert [entry.offset for entry in contents(log)] == [0, 1, *range(after, 80)]


def test_leader_epochs_of_a_failed_append_are_unknown_until_it_is_repeated(tmp_path: Path) -> None:
    """The epochs began where the append was repeated: the replica would have reported that earlier epochs lasted until then."""
    disk = FullProcess()
    partition = Partition(tmp_path, disk=disk)
    partition.fill(5, epoch=0)
    partition.fill(5, epoch=1)
    log = partition.log
    before = log.epochs.entries
    sent = b"".join(batch([b"." * 300], base_offset=20 + n, leader_epoch=1 + n // 3) for n in range(6))
    for left in range(20):
        disk.left = left
        try:
            log.append_as_follower(bytearray(sent), now_ms=NOW_MS)
            break
        except LogDirFault:
            assert log.epochs.entries == before
    assert left > 2
    assert [tuple(entry) for entry in log.epochs.entries] == [(0, 0), (1, 10), (2, 23)]


@pytest.mark.parametrize("clean", [True, False])
def test_segment_that_cannot_be_begun_keeps_no_descriptor_and_hides_no_record_from_the_next_start(
    tmp_path: Path, clean: bool
) -> None:
    disk = FullProcess()
    partition = Partition(tmp_path, LogConfig(index_interval_bytes=100), disk=disk)
    partition.fill(3)
    for left in range(20):
        before, segments = set(disk.given), len(partition.log.segments)
        disk.left = left
        try:
            roll(partition)
            break
        except LogDirFault:
            disk.left = None
        if len(partition.log.segments) == segments:
            assert disk.given == before
        partition.fill(3)
    disk.left = None
    assert left > 6
    acknowledged = contents(partition.log)
    assert [entry.offset for entry in acknowledged] == list(range(6 + 6 * left))
    assert contents(partition.reopen() if clean else partition.crash()) == acknowledged


def test_segment_that_could_not_be_ended_takes_records_though_its_indexes_were_not_open_before(tmp_path: Path) -> None:
    """Opening them took back that they were full: one was cut to its entries, and the next entry had no room. Storage seed
    1052."""
    for left in range(30):
        disk = FullProcess()
        root = tmp_path / str(left)
        root.mkdir()
        partition = Partition(root, LogConfig(index_interval_bytes=100), disk=disk)
        partition.append(b"x" * 200)
        disk.left = left
        try:
            roll(partition)
            break
        except LogDirFault:
            disk.left = None
        if not all(descriptors.are_exhausted(fault.cause) for fault in partition.faults):
            continue  # the directory is offline
        partition.fill(3)
        assert [entry.offset for entry in contents(partition.log)] == list(range(partition.log.log_end_offset))
    assert left > 8


def test_restart_of_a_log_is_reported_when_its_bounds_are_on_disk(tmp_path: Path) -> None:
    """Without a descriptor they are written later. When it got an error, a follower continued with a log that had restarted,
    and a kill before the next checkpoint could take its new records."""
    partition = Partition(tmp_path)
    partition.fill(10)
    faults: list[OSError | None] = [OSError(errno.EMFILE, "Too many open files"), None]
    partition.env.save_bounds = lambda path, done: done(faults.pop(0))
    answers: list[Exception | None] = []
    partition.log.restart_then(100, is_wanted=lambda: True, then=answers.append)
    assert partition.log.log_end_offset == 100
    assert not answers
    partition.timers.advance_ms(1000)
    assert answers == [None]
    assert not faults


def test_deleted_segment_leaves_the_disk_when_a_descriptor_is_free_to_sync_its_directory(tmp_path: Path) -> None:
    """Its index of aborted transactions wants that first. It would have stayed until the next start."""
    disk = FullProcess()
    partition = Partition(tmp_path, disk=disk)
    partition.transact(7, commit=False)
    partition.log.roll(NOW_MS)
    partition.append(b"kept")
    partition.commit()
    partition.log.maybe_increment_log_start_offset(2)
    assert partition.log.delete_old_segments(NOW_MS) == 1
    disk.left = 0
    partition.timers.advance_ms(partition.config.file_delete_delay_ms)
    assert [name for name in partition.files() if name.endswith(".deleted")]
    disk.left = None
    partition.timers.advance_ms(2000)
    assert not [name for name in partition.files() if name.endswith(".deleted")]


def test_segment_without_a_producer_snapshot_is_not_created(tmp_path: Path) -> None:
    """A replica that begins after the copy of the segment before knows of producers and open transactions only what the file
    there tells."""
    for given in range(100):
        disk = FullProcess()
        root = tmp_path / str(given)
        root.mkdir()
        partition = Partition(root, disk=disk)
        partition.transact(7)
        disk.left = given
        try:
            partition.log.roll(NOW_MS)
            is_done = True
        except LogDirFault:
            is_done = False
        disk.left = None
        log = partition.log
        assert all(log.snapshot_at(base) is not None for base in log.segments.base_offsets[1:]), given
        log.abandon()
        if is_done:
            return
    pytest.fail("no number of descriptors was enough")
