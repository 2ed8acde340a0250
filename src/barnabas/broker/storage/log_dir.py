"""One of `log.dirs`: its lock, its owner, and the small files with the checkpoints of its logs.

Any thread, before the manager starts and after it has ended; in between the manager's event loop hands writes to threads.
"""

import logging
import os
from collections.abc import Mapping

from barnabas.base.errors import BarnabasError
from barnabas.base.host.disk import REAL_DISK, Disk
from barnabas.base.ids import Offset, TopicPartition
from barnabas.broker.storage import meta_properties, names
from barnabas.broker.storage.checkpoints import (
    CheckpointError,
    read_clean_shutdown,
    read_offsets,
    write_clean_shutdown,
    write_offsets,
)
from barnabas.broker.storage.meta_properties import MetaProperties

logger = logging.getLogger(__name__)


class LogDirLocked(BarnabasError):
    """Another broker, perhaps Apache Kafka, uses the directory."""


class LogDir:
    """`path` is absolute. No code touches a directory that is not online."""

    __slots__ = (
        "_disk",
        "_lock_fd",
        "had_clean_shutdown",
        "is_loaded",
        "is_online",
        "meta",
        "path",
        "previous_broker_epoch",
    )

    def __init__(self, path: str, *, disk: Disk = REAL_DISK) -> None:
        self._disk = disk
        self.path = os.path.abspath(path)  # noqa: PTH100
        self.is_online = True
        self.had_clean_shutdown = False
        #: Whether every log in it was loaded; only then may a clean shutdown be marked.
        self.is_loaded = False
        #: Epoch in the marker of the last clean shutdown; -1 if there is none.
        self.previous_broker_epoch = -1
        self.meta: MetaProperties | None = None
        self._lock_fd: int | None = None

    def __repr__(self) -> str:
        return f"LogDir({self.path!r}, {'online' if self.is_online else 'offline'})"

    def file(self, name: str) -> str:
        return f"{self.path}/{name}"

    # -- its owner

    def open(self) -> None:
        """Create the directory if it is missing, lock it, and read its owner. `OSError` if it cannot be used."""
        if not self._disk.is_dir(self.path):
            logger.info("log directory %s not found, creating it", self.path)
            self._disk.makedirs(self.path)
            self._disk.fsync_dir(os.path.dirname(self.path))  # noqa: PTH120
        self._disk.listdir(self.path)  # readable?
        self._lock()
        self.meta = meta_properties.read(self.file(names.META_PROPERTIES), disk=self._disk)

    def _lock(self) -> None:
        try:
            self._lock_fd = self._disk.lock(self.file(names.LOCK))
        except BlockingIOError:
            raise LogDirLocked(
                f"cannot lock {self.file(names.LOCK)}: a broker in another process or thread is using this directory"
            ) from None

    def unlock(self) -> None:
        if self._lock_fd is not None:
            self._disk.close(self._lock_fd)
            self._lock_fd = None

    def write_meta(self, meta: MetaProperties, *, now_ms: int) -> None:
        if meta != self.meta:
            meta_properties.write(self.file(names.META_PROPERTIES), meta, now_ms=now_ms, disk=self._disk)
            self.meta = meta

    # -- checkpoints

    def take_clean_shutdown_marker(self) -> None:
        """Read and delete the marker: a crash while loading must not count as a clean shutdown."""
        path = self.file(names.CLEAN_SHUTDOWN)
        epoch = read_clean_shutdown(path, disk=self._disk)
        self.had_clean_shutdown = epoch is not None
        if epoch is not None:
            self.previous_broker_epoch = epoch
            self._disk.unlink(path)
            # A power cut must not bring the marker back: logs that were written to since would count as complete.
            self._disk.fsync_dir(self.path)

    def mark_clean_shutdown(self, broker_epoch: int) -> None:
        write_clean_shutdown(self.file(names.CLEAN_SHUTDOWN), broker_epoch, disk=self._disk)

    def find_checkpoint(self, name: str) -> dict[TopicPartition, Offset] | None:
        """Return the offsets of a checkpoint; None if it does not exist or cannot be read."""
        try:
            return read_offsets(self.file(name), disk=self._disk)
        except FileNotFoundError:
            return None
        except CheckpointError as error:
            logger.warning(
                "[log directory %s] ignoring an unreadable checkpoint, recovery takes longer: %s", self.path, error
            )
            return None

    def read_checkpoint(self, name: str) -> dict[TopicPartition, Offset]:
        """Return the offsets of a checkpoint; empty if it does not exist or cannot be read."""
        return self.find_checkpoint(name) or {}

    def write_checkpoint(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        write_offsets(self.file(name), offsets, disk=self._disk)

    def partition_dirs(self) -> list[str]:
        """Return the names of its directories, except the tier's cache, which is not a partition."""
        return [name for name in self._disk.subdirs(self.path) if name != names.REMOTE_CACHE_DIR]

    def space_bytes(self) -> tuple[int, int]:
        """(total, usable) of the volume, for DescribeLogDirs."""
        return self._disk.space_bytes(self.path)
