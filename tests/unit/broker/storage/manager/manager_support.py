"""A log manager over folders of the test, its clock, timers and threads in the test's hands."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from barnabas.base.config.log_config import LogConfig
from barnabas.base.host.disk import Disk
from barnabas.base.ids import TopicPartition
from barnabas.broker.storage.environment import LogEnvironment
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.manager import LogManager
from barnabas.broker.storage.manager_settings import ManagerSettings
from barnabas.wire.record_batch import check_crc, iter_batches
from barnabas.wire.records import BatchBuilder, iter_records
from tests.manual_time import ManualClock, ManualThreads, ManualTimers

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=100, segment_index_bytes=1200)


def has_no_descriptor(*arguments: object, **options: object) -> NoReturn:
    """In place of a function that opens a file."""
    raise OSError(errno.EMFILE, "Too many open files")


class FailingDisk(Disk):
    """Fails every write, creation, rename and sync below the given folders."""

    __slots__ = ("bad", "has_descriptors", "paths")

    def __init__(self) -> None:
        self.bad: set[str] = set()
        self.has_descriptors = True
        self.paths: dict[int, str] = {}

    def _check(self, path: str) -> None:
        if any(path.startswith(bad) for bad in self.bad):
            raise OSError(5, "Input/output error")

    def open(self, path: str, **how: Any) -> int:
        self._check(path)
        if not self.has_descriptors:
            has_no_descriptor()
        fd = super().open(path, **how)
        self.paths[fd] = path
        return fd

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        self._check(self.paths[fd])
        return super().pwrite(fd, data, position)

    def listdir(self, path: str) -> list[str]:
        self._check(path)
        return super().listdir(path)

    def mkdir(self, path: str) -> None:
        self._check(path)
        super().mkdir(path)

    def rmtree(self, path: str) -> None:
        if not self.has_descriptors:
            has_no_descriptor()
        super().rmtree(path)

    def rename(self, source: str, target: str) -> None:
        self._check(source)
        super().rename(source, target)

    def fsync(self, fd: int) -> None:
        self._check(self.paths.get(fd, ""))


class Broker:
    """The parts of a broker that the manager needs."""

    def __init__(
        self,
        *roots: Path,
        config_of: Callable[[str], LogConfig] = lambda topic: CONFIG,
        settings: ManagerSettings | None = None,
        start: bool = True,
        broker_id: int = 1,
        cluster_id: str | None = "cluster",
        disk: Disk | None = None,
        is_tiering: bool = False,
    ) -> None:
        self.roots = [str(root) for root in roots]
        self.clock = ManualClock(NOW_MS)
        self.timers = ManualTimers(self.clock)
        self.threads = ManualThreads()
        self.disk: Any = disk or FailingDisk()
        self.failed: list[tuple[str, list[TopicPartition]]] = []
        self.env = LogEnvironment(
            disk=self.disk, clock=self.clock, timers=self.timers, threads=self.threads, is_tiering=is_tiering
        )
        self.manager = LogManager(
            self.roots,
            env=self.env,
            settings=settings or ManagerSettings(),
            config_of=config_of,
            on_dir_failed=lambda path, partitions: self.failed.append((path, partitions)),
        )
        if start:
            self.manager.open_dirs(broker_id=broker_id, cluster_id=cluster_id)
            self.manager.load()
            self.manager.start()

    def run(self, ms: int = 0) -> None:
        """Time passes, and what threads were asked for is done."""
        self.timers.advance_ms(ms)
        self.threads.run_pending()

    def kill(self) -> None:
        """The process dies; only its locks and descriptors go with it."""
        self.manager.stop()
        for log in self.manager.all_logs():
            log.abandon()
        for log_dir in self.manager.dirs:
            log_dir.unlock()


def tp(topic: str, partition: int = 0) -> TopicPartition:
    return TopicPartition(topic, partition)


def append(log: Log, *values: bytes, epoch: int = 0) -> None:
    for value in values:
        builder = BatchBuilder()
        builder.append(b"key", value, timestamp=NOW_MS)
        log.append_as_leader(bytearray(builder.build()), leader_epoch=epoch, now_ms=NOW_MS)


def values(log: Log) -> list[bytes | None]:
    """Every value of the log, every CRC checked."""
    found: list[bytes | None] = []
    offset = int(log.log_start_offset)
    while offset < log.log_end_offset:
        data = log.read(offset, max_bytes=1 << 20, max_offset=log.log_end_offset).read()
        if not data:
            break
        for position, header in iter_batches(data):
            check_crc(data, position, header)
            found += [record.value for record in iter_records(data, position, header)]
            offset = header.next_offset
    return found
