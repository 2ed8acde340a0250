"""Damaged indexes of an inactive segment are rebuilt on a thread, and the log goes on meanwhile."""

import asyncio
from pathlib import Path

import pytest

from barnabas.base.errors import ErrorCode, LogDirFault, Refused
from barnabas.base.host.disk import TMP_SUFFIX
from barnabas.broker.replication.log_waits import read_log
from barnabas.broker.storage.index_build import IndexBuilder
from barnabas.broker.storage.index_repair import IndexRepairs
from barnabas.broker.storage.index_under_repair import IndexUnderRepair
from barnabas.broker.storage.segment import Segment
from tests.manual_time import ManualThreads
from tests.unit.broker.storage.log.log_support import NOW_MS, Partition, contents

FIRST = f"{0:020d}"


@pytest.fixture
def damaged(tmp_path: Path) -> Partition:
    """Two segments and more; the indexes of the first are damaged, which has not been noticed yet."""
    partition = Partition(tmp_path, manual_threads=True)
    partition.fill(40)
    threads = partition.threads
    assert isinstance(threads, ManualThreads)
    threads.run_pending()
    partition.commit()
    partition.log.close()
    (partition.directory / f"{FIRST}.index").write_bytes(b"\xff" * 13)
    (partition.directory / f"{FIRST}.timeindex").write_bytes(b"")
    partition.env.pool.repair = IndexRepairs(partition.env).begin
    partition.open(clean=True)
    partition.commit()
    return partition


def run_threads(partition: Partition) -> None:
    assert isinstance(partition.threads, ManualThreads)
    partition.threads.run_pending()


def test_read_is_refused_until_the_thread_has_rebuilt_the_indexes(damaged: Partition) -> None:
    log = damaged.log
    for _ in range(2):
        with pytest.raises(Refused) as caught:
            log.read(0, max_bytes=100, max_offset=10)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert len(damaged.threads) == 1  # type: ignore[arg-type]
    end = log.log_end_offset
    later = log.read(end - 1, max_bytes=100, max_offset=end)
    assert later.size_bytes
    later.release()
    damaged.append(b"the log goes on")
    run_threads(damaged)
    assert [entry.offset for entry in contents(log)] == list(range(end + 1))
    assert (damaged.directory / f"{FIRST}.index").stat().st_size % 8 == 0
    assert not [name for name in damaged.files() if name.endswith(TMP_SUFFIX)]


@pytest.mark.parametrize("offset", [1 << 62, 0])
def test_repair_ends_at_a_batch_whose_offset_is_damaged(damaged: Partition, offset: int) -> None:
    """No CRC covers it. No index can hold it, either, which was taken for a bug, and stopped the broker."""
    positions = [position for position, _ in damaged.log.segments.first.headers(0)]
    path = damaged.directory / f"{FIRST}.log"
    data = bytearray(path.read_bytes())
    data[positions[-2] : positions[-2] + 8] = offset.to_bytes(8, "big")
    path.write_bytes(data)
    with pytest.raises(Refused):
        damaged.log.read(0, max_bytes=100, max_offset=10)
    run_threads(damaged)
    found = damaged.log.read(0, max_bytes=100, max_offset=10)
    assert found.size_bytes
    found.release()


def test_repair_that_could_not_begin_begins_with_the_next_read(damaged: Partition) -> None:
    """There was no descriptor free for the log. The segment counted as under repair for ever: no read succeeded, and parts that
    waited for the end of the repair, a loading coordinator or a move, never continued."""
    repair = damaged.env.pool.repair
    assert repair is not None

    def fail(segment: Segment, why: str) -> None:
        raise OSError(24, "Too many open files")

    damaged.env.pool.repair = fail
    with pytest.raises(LogDirFault):
        damaged.log.read(0, max_bytes=100, max_offset=10)
    damaged.env.pool.repair = repair
    with pytest.raises(IndexUnderRepair):
        damaged.log.read(0, max_bytes=100, max_offset=10)
    run_threads(damaged)
    assert len(contents(damaged.log)) == damaged.log.log_end_offset


def test_timestamps_are_found_after_the_repair(damaged: Partition) -> None:
    with pytest.raises(Refused):
        damaged.log.offset_for_timestamp(NOW_MS)
    run_threads(damaged)
    found = damaged.log.offset_for_timestamp(NOW_MS)
    assert found is not None and found.offset == 0


def test_retention_waits_for_the_repair(damaged: Partition) -> None:
    now_ms = NOW_MS + damaged.config.retention_ms + 1_000_000
    assert damaged.log.delete_old_segments(now_ms) == 0
    run_threads(damaged)
    assert damaged.log.delete_old_segments(now_ms) > 1


def test_cut_waits_for_the_repair(damaged: Partition) -> None:
    outcomes: list[Exception | None] = []
    damaged.log.truncate_then(3, is_wanted=lambda: True, then=outcomes.append)
    assert isinstance(outcomes.pop(), Refused) and damaged.log.log_end_offset > 3
    run_threads(damaged)
    damaged.log.truncate_then(4, is_wanted=lambda: True, then=outcomes.append)
    run_threads(damaged)
    assert outcomes == [None] and damaged.log.log_end_offset == 4


def test_segment_deleted_during_the_repair_leaves_no_index_behind(damaged: Partition) -> None:
    with pytest.raises(Refused):
        damaged.log.read(0, max_bytes=100, max_offset=10)
    second = damaged.log.segments.base_offsets[1]
    damaged.log.maybe_increment_log_start_offset(second)
    assert damaged.log.delete_old_segments(NOW_MS) == 1
    damaged.timers.advance_ms(damaged.config.file_delete_delay_ms)
    run_threads(damaged)
    assert not [name for name in damaged.files() if name.startswith(FIRST)]
    assert not damaged.faults


def test_crash_during_the_repair_leaves_a_log_that_loads(damaged: Partition) -> None:
    with pytest.raises(Refused):
        damaged.log.read(0, max_bytes=100, max_offset=10)
    (damaged.directory / f"{FIRST}.index{TMP_SUFFIX}").write_bytes(b"half of an index")
    end = damaged.log.log_end_offset
    damaged.crash()
    assert len(contents(damaged.log)) == end
    assert not [name for name in damaged.files() if name.endswith(TMP_SUFFIX)]


async def test_coordinator_that_loads_waits_for_the_repair(damaged: Partition) -> None:
    """Else a group would have no coordinator because an index is damaged."""

    end = damaged.log.log_end_offset
    reading = asyncio.ensure_future(read_log(damaged.log, 0, max_bytes=100, max_offset=end))
    await asyncio.sleep(0)
    assert not reading.done()
    run_threads(damaged)
    found = await reading
    assert found.size_bytes and found.start.offset == 0
    found.release()


async def test_wait_for_a_repair_ends_where_the_repair_fails(
    damaged: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(IndexBuilder, "add_all", fail)
    reading = asyncio.ensure_future(read_log(damaged.log, 0, max_bytes=100, max_offset=10))
    while not reading.done():
        await asyncio.sleep(0)
        run_threads(damaged)
    with pytest.raises(Refused):
        await reading
    assert damaged.faults
