"""A log is truncated in one step; a thread reads the files that are needed before it, and nothing else does."""

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from barnabas.base.config.log_config import LogConfig
from barnabas.base.errors import ErrorCode, LogDirFault, Refused
from barnabas.broker.runtime.threads import LoopThreads
from tests.manual_time import ManualThreads
from tests.unit.broker.storage.log.log_support import NOW_MS, Partition, QuickDisk, batch, contents

PRODUCER = 7


def idempotent(partition: Partition, batches: int, *, first_sequence: int = 0, timestamp: int = NOW_MS) -> None:
    for sequence in range(first_sequence, first_sequence + batches):
        partition.log.append_as_leader(
            batch([b"x" * 100], producer_id=PRODUCER, producer_epoch=0, sequence=sequence, timestamp=timestamp),
            leader_epoch=0,
            now_ms=NOW_MS,
        )


def last_sequence(partition: Partition) -> int:
    entry = partition.log.producers.entry(PRODUCER)
    return -1 if entry is None else entry.last_sequence


class Cut:
    """A truncation that was asked for; `ended` is what was heard of its end."""

    def __init__(self, partition: Partition, offset: int, is_wanted: Callable[[], bool] = lambda: True) -> None:
        self.ended: list[Exception | None] = []
        partition.log.truncate_then(offset, is_wanted=is_wanted, then=self.ended.append)


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return Partition(tmp_path, manual_threads=True)


def threads(partition: Partition) -> ManualThreads:
    assert isinstance(partition.env.threads, ManualThreads)
    return partition.env.threads


def test_log_is_unchanged_until_all_files_are_read(partition: Partition) -> None:
    idempotent(partition, 50)
    partition.commit()
    before = contents(partition.log)
    cut = Cut(partition, 20)
    assert not cut.ended
    assert contents(partition.log) == before
    assert (partition.log.high_watermark, last_sequence(partition)) == (50, 49)
    threads(partition).run_pending()
    assert cut.ended == [None]
    assert contents(partition.log) == before[:20]
    assert (partition.log.high_watermark, last_sequence(partition)) == (20, 19)


def test_log_stays_whole_where_the_cut_is_not_wanted_any_more(partition: Partition) -> None:
    """The replica has become leader while its follower's cut was being prepared."""
    idempotent(partition, 50)
    before = contents(partition.log)
    cut = Cut(partition, 20, is_wanted=lambda: False)
    threads(partition).run_pending()
    assert cut.ended == [None]
    assert contents(partition.log) == before
    assert last_sequence(partition) == 49


def test_log_that_grew_meanwhile_is_not_cut(partition: Partition) -> None:
    idempotent(partition, 10)
    cut = Cut(partition, 5)
    idempotent(partition, 1, first_sequence=10)
    threads(partition).run_pending()
    [error] = cut.ended
    assert isinstance(error, Refused)
    assert partition.log.log_end_offset == 11


def test_prepared_truncation_is_dropped_if_the_log_was_cut_and_has_grown_again(
    partition: Partition,
) -> None:
    """Producers would have been as they were in other records."""
    idempotent(partition, 10)
    cut = Cut(partition, 8)
    partition.log.truncate_to(5)
    for _ in range(5):
        partition.append(b"x" * 100, epoch=1)
    threads(partition).run_pending()
    [error] = cut.ended
    assert isinstance(error, Refused)
    assert (partition.log.log_end_offset, last_sequence(partition)) == (10, 4)


def test_log_that_was_closed_meanwhile_is_left_alone(partition: Partition) -> None:
    idempotent(partition, 10)
    cut = Cut(partition, 5)
    partition.log.abandon()
    threads(partition).run_pending()
    [error] = cut.ended
    assert isinstance(error, Refused)
    assert error.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_snapshot_that_cannot_be_read_is_dropped_for_the_one_before(partition: Partition) -> None:
    idempotent(partition, 40)
    snapshots = sorted(partition.directory.glob("*.snapshot"))
    assert len(snapshots) >= 2
    snapshots[-1].write_bytes(b"\x00\x01garbage that is long enough")
    cut = Cut(partition, 39)
    threads(partition).run_pending()
    assert cut.ended == [None]
    assert last_sequence(partition) == 38


def test_cut_reads_more_segments_than_may_be_open(tmp_path: Path) -> None:
    """Those of which no snapshot of the producers is left."""
    partition = Partition(tmp_path, manual_threads=True, max_open_segments=2)
    idempotent(partition, 80)
    threads(partition).run_pending()
    segments = len(partition.log.segments)
    assert segments > 4
    snapshots = partition.log.snapshots
    for offset in list(snapshots.offsets):
        snapshots.remove(offset)
    cut = Cut(partition, 75)
    threads(partition).run_pending()
    assert cut.ended == [None]
    assert not partition.faults
    assert last_sequence(partition) == 74
    entry = partition.log.producers.entry(PRODUCER)
    assert entry is not None
    assert [each.last_sequence for each in entry.batches] == [70, 71, 72, 73, 74]
    assert len(contents(partition.log)) == 75


def test_records_that_replaced_a_part_of_an_answer_are_not_sent(tmp_path: Path) -> None:
    """It could fit on the log of a follower that asked for what was there before."""
    partition = Partition(tmp_path)
    for _ in range(10):
        partition.append(b"old")
    log = partition.log
    [stays] = log.read(0, max_bytes=100, max_offset=1).ranges
    [cut] = log.read(5, max_bytes=10_000, max_offset=10).ranges
    log.truncate_to(3)
    for _ in range(7):
        partition.append(b"new", epoch=1)
    [new] = log.read(5, max_bytes=10_000, max_offset=10).ranges
    here, there = socket.socketpair()
    with here, there:
        assert (cut.position, cut.size_bytes) == (new.position, new.size_bytes)
        with pytest.raises(OSError, match="was cut"):
            cut.send_to(here, cut.position, cut.size_bytes)
        with pytest.raises(OSError, match="was cut"):
            cut.read_at(cut.position, cut.size_bytes)
        with pytest.raises(OSError, match="was cut"):
            cut.read_now(bytearray(cut.size_bytes))
        for each in (stays, new):
            data = each.read_at(each.position, each.size_bytes)
            assert each.send_to(here, each.position, each.size_bytes) == each.size_bytes
            assert there.recv(10_000) == data
    assert b"new" in new.read()
    for each in (stays, cut, new):
        each.release()
    assert [entry.value for entry in contents(log)] == [b"old"] * 3 + [b"new"] * 7


def test_disk_that_fails_while_it_is_read_is_a_fault(tmp_path: Path) -> None:
    class BrokenDisk(QuickDisk):
        __slots__ = ("broken",)

        def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
            if getattr(self, "broken", False):
                raise OSError(5, "Input/output error")
            return super().pread(fd, size_bytes, position)

    disk = BrokenDisk()
    partition = Partition(tmp_path, disk=disk, manual_threads=True)
    idempotent(partition, 10)
    cut = Cut(partition, 5)
    disk.broken = True
    threads(partition).run_pending()
    [error] = cut.ended
    assert isinstance(error, LogDirFault)
    assert partition.faults == [error]


class WatchedDisk(QuickDisk):
    """Counts what each thread reads."""

    __slots__ = ("read_bytes",)

    def __init__(self) -> None:
        self.read_bytes: dict[int, int] = {}

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        data = super().pread(fd, size_bytes, position)
        thread = threading.get_ident()
        self.read_bytes[thread] = self.read_bytes.get(thread, 0) + len(data)
        return data


@pytest.mark.parametrize("has_producers", [True, False])
async def test_event_loop_reads_no_segment_for_a_cut(tmp_path: Path, has_producers: bool) -> None:
    """A segment may hold a gigabyte. Timestamps that do not ascend leave the time index of no use, too."""

    disk = WatchedDisk()
    partition = Partition(tmp_path, LogConfig(segment_bytes=1 << 30, index_interval_bytes=4096), disk=disk)
    if has_producers:
        idempotent(partition, 3000)
    else:
        for number in range(3000):
            partition.append(b"x" * 100, timestamp=NOW_MS - number)
    size = partition.log.size_bytes
    disk.read_bytes.clear()
    with ThreadPoolExecutor(1) as pool:
        partition.env.threads = LoopThreads(asyncio.get_running_loop(), pool)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        partition.log.truncate_then(2990, is_wanted=lambda: True, then=lambda error: done.set_result(None))
        await done
    assert partition.log.log_end_offset == 2990
    on_loop = disk.read_bytes.pop(threading.get_ident())
    assert on_loop < 20_000
    assert sum(disk.read_bytes.values()) > size * 0.9
    assert partition.log.offset_of_max_timestamp() == (NOW_MS, 0, 0)
