"""An internal topic that is loaded from a real log: only committed records count."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.host.disk import Disk
from barnabas.broker.runtime.machine import Marker, ReplayedRecord
from barnabas.broker.server.coordinator_log import InternalTopicLog
from tests.support.waiting import eventually
from tests.unit.broker.replication.test_replica_manager import FOLLOWER, ME, World


class Loading:
    """A load in progress, and the offsets that it has replayed."""

    def __init__(self, world: World, pool: ThreadPoolExecutor) -> None:
        self.offsets: list[int] = []
        log = InternalTopicLog("t", world.manager, pool)
        self.task = asyncio.ensure_future(log.load(0, self._replay))

    def _replay(self, entry: ReplayedRecord | Marker, offset: int) -> None:
        self.offsets.append(offset)

    async def until_replayed(self, count: int) -> None:
        await eventually(lambda: len(self.offsets) >= count)
        for _ in range(5):
            await asyncio.sleep(0)


async def test_load_ends_when_everything_that_was_found_is_committed(tmp_path: Path) -> None:
    world = World(tmp_path, replicas=(ME, FOLLOWER), isr=(ME, FOLLOWER))
    world.append_own()
    with ThreadPoolExecutor(1) as pool:
        loading = Loading(world, pool)
        await loading.until_replayed(2)
        assert not loading.task.done(), "the follower does not have it yet"
        world.append_own()  # a marker, say
        world.fetch_as_follower(2)
        await loading.task
    assert loading.offsets == [0, 1, 2, 3]


async def test_load_of_a_partition_whose_leadership_is_lost_meanwhile_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path, replicas=(ME, FOLLOWER), isr=(ME, FOLLOWER))
    world.append_own()
    with ThreadPoolExecutor(1) as pool:
        loading = Loading(world, pool)
        await loading.until_replayed(2)
        world.partition.machine.stop()
        world.manager.hosted.wake_all(world.partition)
        with pytest.raises(Refused) as refusal:
            await loading.task
    assert refusal.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_load_continues_in_the_directory_to_which_the_log_was_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load failed, and the partition's groups had no coordinator until the next election."""
    monkeypatch.setattr("barnabas.broker.server.coordinator_log.LOAD_STEP_BYTES", 100)

    world = World(tmp_path)
    for _ in range(5):
        world.append_own()
    with ThreadPoolExecutor(1) as pool:
        offsets: list[int] = []

        def replay(entry: ReplayedRecord | Marker, offset: int) -> None:
            offsets.append(offset)
            if offset == 3:
                world.move_log()

        await InternalTopicLog("t", world.manager, pool).load(0, replay)
    assert offsets == list(range(10))


class FullProcess(Disk):
    """A process without a descriptor for the next `failures` files."""

    __slots__ = ("failures",)

    def __init__(self) -> None:
        self.failures = 0

    def open(self, path: str, **how: Any) -> int:
        if self.failures:
            self.failures -= 1
            raise OSError(24, "Too many open files")
        return super().open(path, **how)


async def test_load_waits_for_a_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The groups had no coordinator until the next election; there was none, because the disk was healthy."""
    monkeypatch.setattr("barnabas.base.host.descriptors.WAIT_S", 0.001)

    disk = FullProcess()
    world = World(tmp_path, disk=disk)
    for _ in range(3):
        world.append_own()
    world.log.active_segment.release_files()  # as after a start
    disk.failures = 4
    with ThreadPoolExecutor(1) as pool:
        loading = Loading(world, pool)
        await loading.task
    assert disk.failures == 0
    assert loading.offsets == list(range(6))


async def test_load_continues_after_records_that_retention_deletes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With cleanup.policy=compact,delete the groups had no coordinator until the next election."""
    monkeypatch.setattr("barnabas.broker.server.coordinator_log.LOAD_STEP_BYTES", 100)

    world = World(tmp_path)
    for _ in range(5):
        world.append_own()
    with ThreadPoolExecutor(1) as pool:
        offsets: list[int] = []

        def replay(entry: ReplayedRecord | Marker, offset: int) -> None:
            offsets.append(offset)
            if offset == 3:
                world.log.maybe_increment_log_start_offset(8)

        await InternalTopicLog("t", world.manager, pool).load(0, replay)
    assert offsets == [0, 1, 2, 3, 8, 9]
