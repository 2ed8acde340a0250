"""A log directory that runs out of space, at every step of what a broker writes: it goes offline, the other directory goes on,
and after space was made and the broker started again every record that was acknowledged is there."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from barnabas.base.errors import LogDirFault, Refused
from barnabas.broker.storage import names
from barnabas.broker.storage.manager import NoLogDirLeft
from tests.unit.broker.storage.manager.manager_support import Broker, FailingDisk, append, tp, values

#: More than a segment has room for, so the log rolls.
RECORDS = 28
STEPS_MAX = 500


class FullDisk(FailingDisk):
    """Takes so many more writes that need space below a folder, and no further one."""

    __slots__ = ("folder", "refused", "room")

    def __init__(self) -> None:
        super().__init__()
        self.folder, self.room = "", STEPS_MAX
        #: The refused operations.
        self.refused: list[str] = []

    def _need(self, what: str, path: str) -> None:
        if not self.folder or not path.startswith(self.folder):
            return
        if self.room == 0:
            self.refused.append(f"{what} {path.rpartition('/')[2]}")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= 1

    def open(self, path: str, **how: Any) -> int:
        if (how.get("create") or how.get("exclusive")) and not Path(path).exists():
            self._need("create", path)
        return super().open(path, **how)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        if position + len(data) > self.length(fd):
            self._need("append to", self.paths[fd])
        return super().pwrite(fd, data, position)

    def reserve(self, fd: int, position: int, size_bytes: int) -> None:
        self._need("reserve in", self.paths[fd])
        super().reserve(fd, position, size_bytes)

    def mkdir(self, path: str) -> None:
        self._need("make", path)
        super().mkdir(path)


def work(broker: Broker, acknowledged: list[list[bytes]]) -> None:
    """Appends to both directories, flushes and checkpoints, until all is done; a directory that is full is left out."""
    for number in range(RECORDS):
        for partition, held in enumerate(acknowledged):
            log = broker.manager.get(tp("t", partition))
            if log is None:
                continue
            value = b"%d " % number * 20
            try:
                append(log, value)
            except (LogDirFault, Refused):
                continue
            held.append(value)
            if number % 7 == 0:
                log.flusher.flush_in_background()
        if number % 10 == 0:
            broker.manager.checkpoint(names.REPLICATION_OFFSET_CHECKPOINT)
            broker.manager.checkpoint(names.RECOVERY_POINT_CHECKPOINT)
        broker.run()


def test_full_disk_at_any_step_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    refused: set[str] = set()
    for step in range(STEPS_MAX):
        roots = (tmp_path / f"{step}a", tmp_path / f"{step}b")
        disk = FullDisk()
        broker = Broker(*roots, disk=disk)
        for partition, root in enumerate(broker.roots):
            broker.manager.prefer_dir(tp("t", partition), root)
            broker.manager.get_or_create(tp("t", partition), topic_id=None)
        disk.folder, disk.room = broker.roots[0], step
        acknowledged: list[list[bytes]] = [[], []]
        work(broker, acknowledged)
        refused.update(disk.refused[:1])
        if disk.refused:
            assert [path for path, _ in broker.failed] == [broker.roots[0]], disk.refused
        assert len(acknowledged[1]) == RECORDS, "the other directory goes on"
        broker.kill()

        again = Broker(*roots)  # space was made
        for partition, held in enumerate(acknowledged):
            log = again.manager.get(tp("t", partition))
            assert log is not None
            # A record that was not acknowledged may be there: it was written whole before something else failed.
            assert values(log)[: len(held)] == held, (step, disk.refused)
            append(log, b"and on")
        again.manager.shutdown()
        if not disk.refused:
            break
    else:
        raise AssertionError("the disk was never large enough")
    # Every kind of file was the one that found the disk full.
    for kind in (".log", ".index", ".timeindex", names.REPLICATION_OFFSET_CHECKPOINT, names.RECOVERY_POINT_CHECKPOINT):
        assert any(kind in each for each in refused), (kind, refused)
    assert any(each.startswith("create") and each.endswith(".log") for each in refused), "a roll"


def test_broker_that_starts_on_a_full_disk_takes_the_directory_offline_and_leaves_its_records(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "a")
    log = broker.manager.get_or_create(tp("t"), topic_id=None)
    append(log, *(b"%d " % number * 20 for number in range(RECORDS)))
    broker.kill()
    disk = FullDisk()
    disk.folder, disk.room = str(tmp_path / "a"), 0
    full = Broker(tmp_path / "a", disk=disk, start=False)
    full.manager.open_dirs(broker_id=1, cluster_id="cluster")
    with pytest.raises(NoLogDirLeft):
        full.manager.load()
    full.kill()
    again = Broker(tmp_path / "a")
    found = again.manager.get(tp("t"))
    assert found is not None and len(values(found)) == RECORDS
    again.manager.shutdown()
