"""Reads: bounds, batch boundaries, gaps, timestamps, pinned files."""

import os
import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from barnabas.base.config.log_config import LogConfig
from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.segment import TAIL_MAX, Segment
from barnabas.wire.compression import Codec
from barnabas.wire.record_batch import CRC_AT, MAX_TIMESTAMP_AT, compute_crc, iter_batches
from tests.unit.broker.storage.log.log_support import NOW_MS, Partition, QuickDisk, batch, contents


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return Partition(tmp_path)


def bases(
    log: Log, offset: int, *, max_bytes: int = 1 << 20, max_offset: int | None = None, least: bool = True
) -> list[int]:
    bound = log.log_end_offset if max_offset is None else max_offset
    result = log.read(offset, max_bytes=max_bytes, max_offset=bound, min_one_batch=least)
    return [header.base_offset for _, header in iter_batches(result.read())]


def test_a_read_begins_with_the_batch_that_holds_the_offset(partition: Partition) -> None:
    for _ in range(5):
        partition.append(b"a", b"b", b"c")
    assert bases(partition.log, 4) == [3, 6, 9, 12]
    assert bases(partition.log, 6) == [6, 9, 12]


def test_max_bytes_cuts_between_batches(partition: Partition) -> None:
    for _ in range(6):
        partition.append(b"a" * 30)
    size = len(batch([b"a" * 30], key=b"key"))
    assert bases(partition.log, 1, max_bytes=3 * size) == [1, 2, 3]
    assert bases(partition.log, 1, max_bytes=3 * size - 1) == [1, 2]
    assert bases(partition.log, 1, max_bytes=size) == [1]


def test_the_first_batch_comes_whole_or_not_at_all(partition: Partition) -> None:
    partition.append(b"a" * 300)
    partition.append(b"b")
    assert bases(partition.log, 0, max_bytes=10) == [0]
    assert bases(partition.log, 0, max_bytes=10, least=False) == []
    assert bases(partition.log, 0, max_bytes=0) == [0]


def test_nothing_at_or_above_the_bound_is_read(partition: Partition) -> None:
    for _ in range(40):
        partition.append(b"a" * 40, b"b")
    assert len(partition.log.segments) > 2
    for bound in range(81):
        read = []
        offset = 0
        while offset < bound and (found := bases(partition.log, offset, max_offset=bound)):
            read += found
            offset = found[-1] + 2
        # A bound in the middle of a batch excludes the batch.
        assert read == list(range(0, bound - 1, 2)), bound


def test_a_read_at_the_end_is_empty_and_knows_where_it_stands(partition: Partition) -> None:
    partition.append(b"a")
    result = partition.log.read(1, max_bytes=100, max_offset=1)
    assert result.ranges == []
    assert result.size_bytes == 0
    assert result.start == (1, 0, partition.log.active_segment.size_bytes)
    assert bases(partition.log, 1, max_offset=0) == []


@pytest.mark.parametrize("offset", [-1, 4, 11, 1 << 62])
def test_offsets_outside_the_log_are_out_of_range(partition: Partition, offset: int) -> None:
    partition.fill(5)
    partition.commit()
    partition.log.maybe_increment_log_start_offset(5)
    with pytest.raises(Refused) as caught:
        partition.log.read(offset, max_bytes=100, max_offset=10)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_gaps_that_compaction_left_are_passed_over(tmp_path: Path) -> None:
    """Also where a whole segment has nothing left at the offset: the next one answers."""
    partition = Partition(tmp_path, LogConfig(segment_bytes=300, index_interval_bytes=1))
    for base in (0, 10, 20, 30, 40):
        partition.log.append_as_follower(batch([b"a" * 120], base_offset=base, leader_epoch=0), now_ms=NOW_MS)
    assert len(partition.log.segments) > 2
    assert [bases(partition.log, offset)[0] for offset in range(41)] == [
        0, *[10] * 10, *[20] * 10, *[30] * 10, *[40] * 10
    ]  # fmt: skip
    assert bases(partition.log, 5, max_offset=10) == []
    assert bases(partition.log, 5, max_offset=11) == [10]


def test_upper_offset_bounds_the_records_of_the_read(partition: Partition) -> None:
    for _ in range(30):
        partition.append(b"a" * 60, b"b")
    log = partition.log
    for offset in range(0, 60, 3):
        result = log.read(offset, max_bytes=500, max_offset=50)
        headers = [header for _, header in iter_batches(result.read())]
        if headers:
            assert headers[-1].last_offset < result.upper_offset <= 50


def test_a_range_stays_readable_after_its_segment_is_gone(partition: Partition) -> None:
    partition.fill(30)
    partition.commit()
    result = partition.log.read(0, max_bytes=1 << 20, max_offset=60)
    expected = [header.base_offset for _, header in iter_batches(result.ranges[0].read())]
    partition.log.truncate_fully_and_start_at(500)
    partition.timers.advance_ms(100_000)
    assert not [name for name in partition.files() if name.startswith("0" * 20 + ".log")]
    assert [header.base_offset for _, header in iter_batches(result.ranges[0].read())] == expected
    fd = result.ranges[0].handle.fd
    result.release()
    result.release()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_few_inactive_segments_keep_files_open(tmp_path: Path) -> None:
    def open_files() -> int:
        return sum(str(partition.directory) in os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir())

    partition = Partition(tmp_path, max_open_segments=3)
    partition.fill(200)
    assert len(partition.log.segments) > 10
    assert len(contents(partition.log)) == 400
    assert len(partition.env.pool) <= 3
    assert open_files() <= 3 * 3 + 3
    pinned = [partition.log.read(s.base_offset, max_bytes=10, max_offset=400) for s in partition.log.segments]
    assert all(result.ranges[0].read() for result in pinned)
    for result in pinned:
        result.release()
    assert len(contents(partition.log)) == 400
    partition.log.abandon()
    assert open_files() == 0


# -- timestamps


def test_timestamps_are_found_where_they_go_up_and_down(tmp_path: Path) -> None:
    partition = Partition(tmp_path, LogConfig(segment_bytes=500, index_interval_bytes=1))
    stamps = [100, 300, 200, 50, 400, 400, 350, 900, 10, 500]
    for stamp in stamps:
        partition.append(b"x" * 50, timestamp=stamp)
    assert len(partition.log.segments) > 2
    for target in (0, 10, 100, 101, 300, 301, 400, 401, 900):
        found = partition.log.offset_for_timestamp(target)
        expected = next(offset for offset, stamp in enumerate(stamps) if stamp >= target)
        assert found is not None
        assert (found.offset, found.timestamp, found.leader_epoch) == (expected, stamps[expected], 0), target
    assert partition.log.offset_for_timestamp(901) is None
    newest = partition.log.offset_of_max_timestamp()
    assert newest is not None
    assert (newest.timestamp, newest.offset) == (900, 7)


def test_a_timestamp_inside_a_compressed_batch_is_found(partition: Partition) -> None:
    partition.log.append_as_leader(
        batch([b"a", b"b", b"c", b"d"], timestamp=10, codec=Codec.ZSTD), leader_epoch=4, now_ms=NOW_MS
    )
    found = partition.log.offset_for_timestamp(12)
    assert found is not None
    assert tuple(found) == (12, 2, 4)
    newest = partition.log.offset_of_max_timestamp()
    assert newest is not None
    assert newest.offset == 3


def test_deleted_records_are_not_found_by_timestamp(partition: Partition) -> None:
    for stamp in (10, 20, 30):
        partition.append(b"x", timestamp=stamp)
    partition.commit()
    partition.log.maybe_increment_log_start_offset(1)
    found = partition.log.offset_for_timestamp(0)
    assert found is not None
    assert found.offset == 1
    assert partition.log.earliest_offset().offset == 1
    assert partition.log.earliest_offset().leader_epoch == 0


class CountingDisk(QuickDisk):
    """Counts bytes that are read."""

    __slots__ = ("read_bytes",)

    def __init__(self) -> None:
        self.read_bytes = 0

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        self.read_bytes += size_bytes
        return super().pread(fd, size_bytes, position)

    def preadinto(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        self.read_bytes += len(buffer)
        return super().preadinto(fd, buffer, position)


def test_segment_whose_records_are_all_deleted_is_not_read_for_a_timestamp(tmp_path: Path) -> None:
    """DeleteRecords leaves the active segment where it is. The event loop waits for the look-up."""
    disk = CountingDisk()
    config = LogConfig(segment_bytes=1 << 30, index_interval_bytes=100, segment_index_bytes=1 << 16)
    partition = Partition(tmp_path, config, disk=disk)
    partition.fill(3000)
    partition.commit()
    partition.log.maybe_increment_log_start_offset(partition.log.log_end_offset, "DeleteRecords")
    before = disk.read_bytes
    assert partition.log.offset_for_timestamp(NOW_MS) is None
    assert disk.read_bytes - before < partition.log.size_bytes / 10


def test_with_log_append_time_every_record_has_the_batchs_time(tmp_path: Path) -> None:
    partition = Partition(tmp_path, LogConfig(message_timestamp_type="LogAppendTime"))
    partition.append(b"a", b"b", timestamp=1)
    newest = partition.log.offset_of_max_timestamp()
    assert newest is not None
    assert tuple(newest)[:2] == (NOW_MS, 0)
    assert partition.log.offset_for_timestamp(NOW_MS + 1) is None


def test_an_empty_log_has_no_timestamps(partition: Partition) -> None:
    assert partition.log.offset_of_max_timestamp() is None
    assert partition.log.offset_for_timestamp(0) is None
    assert partition.log.latest_offset() == (-1, 0, None)


# -- a damaged index never yields a wrong record


@pytest.mark.parametrize("kind", ["index", "timeindex"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-5],
        lambda data: bytes(len(data)),
        lambda data: data[::-1],
        lambda data: bytes([byte ^ 0x2A for byte in data]),
        lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
    ],
    ids=["empty", "torn", "zeros", "reversed", "flipped", "half zeros"],
)
def test_a_damaged_index_is_rebuilt_and_every_record_found(tmp_path: Path, kind: str, damage, caplog) -> None:
    partition = Partition(tmp_path, LogConfig(segment_bytes=3000, index_interval_bytes=100, segment_index_bytes=1200))
    partition.fill(60)
    stamps = NOW_MS + 1
    expected = contents(partition.log)
    partition.log.close()
    for path in partition.directory.glob(f"*.{kind}"):
        path.write_bytes(damage(path.read_bytes()))
    log = partition.open(clean=True)
    assert contents(log) == expected
    for offset in range(120):
        assert bases(log, offset)[0] == offset // 2 * 2
    found = log.offset_for_timestamp(stamps)
    assert found is not None
    assert found.offset == 1
    partition.append(b"goes on")
    assert len(contents(partition.reopen())) == 121


def test_index_entries_that_point_into_batches_are_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Ascending and within bounds, so that no check of the index alone can tell."""
    partition = Partition(tmp_path, LogConfig(index_interval_bytes=100, segment_index_bytes=1200))
    partition.fill(40)
    expected = contents(partition.log)
    partition.log.close()
    path = partition.directory / f"{0:020d}.index"
    data = bytearray(path.read_bytes())
    for at in range(4, len(data), 8):
        position = int.from_bytes(data[at : at + 4], "big")
        data[at : at + 4] = (position + 7).to_bytes(4, "big")
    path.write_bytes(data)
    log = partition.open(clean=True)
    for offset in range(79, -1, -1):
        assert bases(log, offset)[0] == offset // 2 * 2
    assert contents(log) == expected
    assert "rebuilding the indexes" in caplog.text


def test_damage_in_the_log_itself_answers_corrupt_message(partition: Partition) -> None:
    partition.fill(10)
    partition.log.roll(NOW_MS)
    path = partition.directory / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 2 :] = b"\xff" * (len(data) - len(data) // 2)
    path.write_bytes(data)
    assert bases(partition.log, 0, max_bytes=200) == [0]
    with pytest.raises(Refused) as caught:
        partition.log.read(18, max_bytes=100, max_offset=20)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_a_new_index_interval_takes_effect(partition: Partition) -> None:
    partition.log.update_config(replace(partition.config, index_interval_bytes=1))
    partition.fill(5)
    assert partition.log.active_segment.offset_index.entries == 4


def promising(data: bytearray, max_timestamp: int) -> bytearray:
    """The header says that a record is as late as that, and none is."""
    struct.pack_into(">q", data, MAX_TIMESTAMP_AT, max_timestamp)
    struct.pack_into(">I", data, CRC_AT, compute_crc(data, 0, len(data) - 12))
    return data


def test_bomb_is_not_inflated_whole_to_find_a_timestamp(tmp_path: Path) -> None:
    partition = Partition(tmp_path, LogConfig())
    bomb = promising(batch([bytes(100_000_000)], codec=Codec.ZSTD), NOW_MS + 1_000)
    partition.log.append_as_leader(bomb, leader_epoch=0, now_ms=NOW_MS)
    tracemalloc.start()
    found = partition.log.offset_for_timestamp(NOW_MS + 500)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found is not None and (found.timestamp, found.offset) == (NOW_MS + 1_000, 0)
    assert peak_bytes < 60_000_000


def test_headers_that_lie_about_timestamps_are_believed_after_a_while(tmp_path: Path) -> None:
    partition = Partition(tmp_path, LogConfig())
    for _ in range(40):
        data = promising(batch([b"x"]), NOW_MS + 1_000)
        partition.log.append_as_leader(data, leader_epoch=0, now_ms=NOW_MS)
    found = partition.log.offset_for_timestamp(NOW_MS + 500)
    assert found is not None and found.offset == 32


def test_timestamp_deep_in_a_large_batch_is_found_exactly(tmp_path: Path) -> None:
    partition = Partition(tmp_path, LogConfig(max_message_bytes=1 << 30))
    partition.log.append_as_leader(batch([b"v"] * 40_000), leader_epoch=0, now_ms=NOW_MS)
    found = partition.log.offset_for_timestamp(NOW_MS + 39_000)
    assert found is not None and found.offset == 39_000


def test_reads_at_the_tail_find_what_the_index_finds(tmp_path: Path) -> None:
    """Whatever the position comes from: the latest appends, or the index."""
    partition = Partition(tmp_path, LogConfig(segment_bytes=1 << 20, index_interval_bytes=100))
    for number in range(30):
        partition.append(*[b"x" * (number * 7 % 50)] * (1 + number % 3))
    log = partition.log
    end = log.log_end_offset
    tail = log.segments.active.tail
    assert len(tail) > 3
    kept = dict(tail)
    for offset in kept:
        for bound in (offset + 1, offset + 2, end - 1, end):
            for max_bytes in (1, 100, 1 << 20):
                tail.update(kept)
                quick = log.read(offset, max_bytes=max_bytes, max_offset=bound)
                tail.clear()
                slow = log.read(offset, max_bytes=max_bytes, max_offset=bound)
                assert quick._replace(ranges=[]) == slow._replace(ranges=[])
                assert quick.read() == slow.read()


def test_a_read_at_the_tail_reads_no_file(partition: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    partition.append(b"a")
    partition.append(b"b")

    def find(segment: Segment, offset: int) -> None:
        raise AssertionError(f"the index was asked for {offset}")

    monkeypatch.setattr(Segment, "find", find)
    assert bases(partition.log, 1) == [1]
    assert bases(partition.log, 0, max_offset=1) == [0]


def test_positions_of_truncated_appends_are_forgotten(partition: Partition) -> None:
    for size in (10, 20, 30):
        partition.append(b"x" * size)
    partition.log.truncate_to(1)
    partition.append(b"a" * 200, b"b" * 200)
    partition.append(b"c")
    assert bases(partition.log, 1) == [1, 3]
    assert bases(partition.log, 2) == [1, 3]
    assert bases(partition.log, 3) == [3]


def test_the_positions_that_a_segment_remembers_are_bounded(tmp_path: Path) -> None:
    partition = Partition(tmp_path, LogConfig(segment_bytes=1 << 20))
    for _ in range(2 * TAIL_MAX + 5):
        partition.append(b"x")
    assert len(partition.log.segments.active.tail) <= TAIL_MAX
    assert bases(partition.log, 2 * TAIL_MAX + 4) == [2 * TAIL_MAX + 4]
