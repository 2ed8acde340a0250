"""A broker without a free descriptor: whatever a log was about to do is done, left undone, or the fault of its directory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.storage.log.log_support import NOW_MS, Partition, QuickDisk, batch, contents

from barnabas.core.config.log_config import LogConfig
from barnabas.core.errors import LogDirFault
from barnabas.runtime import descriptors
from barnabas.runtime.disk import FileMap


class FullProcess(QuickDisk):
    """Gives out `left` more descriptors, then none; None: as many as are asked for."""

    __slots__ = ("given", "left")

    def __init__(self) -> None:
        self.left: int | None = None
        self.given: set[int] = set()

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
        return super().map(fd, length, read_only=read_only)


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
            # Nobody closes it: it must be what it says, and go on.
            end = log.log_end_offset
            assert [entry.offset for entry in contents(log)] == list(range(log.log_start_offset, end))
            lead(partition)
            assert [entry.offset for entry in contents(log)][-20:] == list(range(end, end + 20))
        log.abandon()
        assert not disk.given, "everything that was opened is closed"
        if is_done:
            return
    pytest.fail("no number of descriptors was enough")


def test_leader_epochs_of_what_could_not_be_appended_are_not_known_before_it_comes_again(tmp_path: Path) -> None:
    """They began where it came again: the replica would have told others that the epochs before had lasted until then."""
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
