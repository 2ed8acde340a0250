"""Files that several need at once: open until the last of them is done, and no longer."""

import os
from pathlib import Path

import pytest

from barnabas.base.errors import BrokenInvariant
from barnabas.base.host.disk import Disk
from barnabas.broker.storage.file_handle import FileRange, OpenFile, SegmentPool


@pytest.fixture
def opened(tmp_path: Path) -> OpenFile:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    disk = Disk()
    return OpenFile(disk, disk.open(str(path)), str(path))


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_a_file_stays_open_until_its_last_range_is_released(opened: OpenFile) -> None:
    first, second = FileRange(opened, 0, 4), FileRange(opened, 4, 6)
    opened.let_go()
    first.release()
    first.release()
    assert second.read() == b"456789"
    second.release()
    assert not is_open(opened.fd)


def test_a_file_that_its_segment_still_wants_outlives_its_ranges(opened: OpenFile) -> None:
    FileRange(opened, 0, 1).release()
    assert is_open(opened.fd)
    opened.let_go()
    assert not is_open(opened.fd)


def test_a_release_too_many_is_a_bug(opened: OpenFile) -> None:
    opened.pin()
    opened.unpin()
    with pytest.raises(BrokenInvariant):
        opened.unpin()
    opened.let_go()


def test_a_range_past_the_end_reads_what_is_there(opened: OpenFile) -> None:
    file_range = FileRange(opened, 8, 100)
    assert file_range.read() == b"89"
    file_range.release()
    opened.let_go()


class Held:
    def __init__(self, *, pinned: bool = False) -> None:
        self.is_pinned = pinned
        self.released = 0

    def release_files(self) -> None:
        self.released += 1


def test_the_longest_unused_segment_closes_its_files_first() -> None:
    pool = SegmentPool(2)
    a, b, c = Held(), Held(), Held()
    for segment in (a, b, a, c):
        pool.touch(segment)
    assert (a.released, b.released, c.released) == (0, 1, 0)
    assert len(pool) == 2


def test_a_pinned_segment_is_passed_over() -> None:
    pool = SegmentPool(1)
    pinned, other = Held(pinned=True), Held()
    pool.touch(pinned)
    pool.touch(other)
    assert (pinned.released, other.released) == (0, 0)
    last = Held()
    pool.touch(last)
    assert other.released == 1


def test_a_segment_that_became_active_is_not_closed() -> None:
    pool = SegmentPool(1)
    active, other, last = Held(), Held(), Held()
    pool.touch(active)
    pool.forget(active)
    pool.touch(other)
    pool.touch(last)
    assert (active.released, other.released) == (0, 1)
