"""One of `log.dirs`: its lock, whose it is, and the small files that say where its logs stood.

Any thread, before the manager starts and after it has ended; in between the manager's event loop hands what is to be
written to threads.
"""

import fcntl
import logging
import os
from collections.abc import Mapping

from barnabas.core.errors import BarnabasError
from barnabas.core.ids import Offset, TopicPartition
from barnabas.storage import meta_properties, names
from barnabas.storage.checkpoints import (
    CheckpointError,
    fsync_dir,
    read_clean_shutdown,
    read_offsets,
    write_clean_shutdown,
    write_offsets,
)
from barnabas.storage.meta_properties import MetaProperties

logger = logging.getLogger(__name__)


class LogDirLocked(BarnabasError):
    """Another broker, perhaps an Apache Kafka, works in the directory."""


class LogDir:
    """`path` is absolute. A directory that is not online is not touched any more."""

    __slots__ = ("_lock_fd", "had_clean_shutdown", "is_loaded", "is_online", "meta", "path", "previous_broker_epoch")

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)  # noqa: PTH100
        self.is_online = True
        self.had_clean_shutdown = False
        #: Every log in it was loaded; only then may a clean shutdown be marked.
        self.is_loaded = False
        #: From the marker of the last clean shutdown; -1 where there is none.
        self.previous_broker_epoch = -1
        self.meta: MetaProperties | None = None
        self._lock_fd: int | None = None

    def __repr__(self) -> str:
        return f"LogDir({self.path!r}, {'online' if self.is_online else 'offline'})"

    def file(self, name: str) -> str:
        return f"{self.path}/{name}"

    # -- whose it is

    def open(self) -> None:
        """Create the directory where it is missing, lock it, and read whose it is. `OSError` where it cannot be used."""
        if not os.path.isdir(self.path):  # noqa: PTH112
            logger.info("log directory %s not found, creating it", self.path)
            os.makedirs(self.path)  # noqa: PTH103
            fsync_dir(os.path.dirname(self.path))  # noqa: PTH120
        os.listdir(self.path)  # noqa: PTH208  # readable?
        self._lock()
        self.meta = meta_properties.read(self.file(names.META_PROPERTIES))

    def _lock(self) -> None:
        fd = os.open(self.file(names.LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # Both kinds: flock keeps out a second broker in this process, lockf (POSIX) one that runs on a JVM.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise LogDirLocked(
                f"cannot lock {self.file(names.LOCK)}: a broker in another process or thread is using this directory"
            ) from None
        self._lock_fd = fd

    def unlock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def write_meta(self, meta: MetaProperties, *, now_ms: int) -> None:
        if meta != self.meta:
            meta_properties.write(self.file(names.META_PROPERTIES), meta, now_ms=now_ms)
            self.meta = meta

    # -- where its logs stood

    def take_clean_shutdown_marker(self) -> None:
        """Read and delete it: a crash while loading must count as one."""
        path = self.file(names.CLEAN_SHUTDOWN)
        epoch = read_clean_shutdown(path)
        self.had_clean_shutdown = epoch is not None
        if epoch is not None:
            self.previous_broker_epoch = epoch
            os.unlink(path)  # noqa: PTH108

    def mark_clean_shutdown(self, broker_epoch: int) -> None:
        write_clean_shutdown(self.file(names.CLEAN_SHUTDOWN), broker_epoch)

    def read_checkpoint(self, name: str) -> dict[TopicPartition, Offset]:
        """Empty where there is none, or none that can be read: recovery then starts from the beginning."""
        try:
            return read_offsets(self.file(name))
        except FileNotFoundError:
            return {}
        except CheckpointError as error:
            logger.warning("ignoring a checkpoint that cannot be read: %s", error)
            return {}

    def write_checkpoint(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        write_offsets(self.file(name), offsets)

    def partition_dirs(self) -> list[str]:
        """Names of the directories in it."""
        with os.scandir(self.path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())

    def space_bytes(self) -> tuple[int, int]:
        """(total, usable) of the volume, for DescribeLogDirs."""
        stat = os.statvfs(self.path)
        return stat.f_frsize * stat.f_blocks, stat.f_frsize * stat.f_bavail
