"""`cleaner-offset-checkpoint`: the offset below which each compacted log is clean, one file in each log directory.

Owner: the event loop; files are written on threads, one write of a file at a time.
"""

import asyncio
import logging

from barnabas.base.errors import LogDirFault
from barnabas.base.ids import TopicPartition
from barnabas.broker.storage import names
from barnabas.broker.storage.environment import LogEnvironment
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.log_dir import LogDir
from barnabas.broker.storage.manager import LogManager

logger = logging.getLogger(__name__)


class CleanerCheckpoints:
    """First dirty offsets by partition, of the logs that the manager has now."""

    def __init__(self, manager: LogManager, env: LogEnvironment) -> None:
        self._manager = manager
        self._env = env
        self._offsets: dict[TopicPartition, int] = {}
        #: The directory whose file names the partition.
        self._dirs: dict[TopicPartition, str] = {}
        #: Log directory -> whether its file must be written again after the present write.
        self._writing: dict[str, bool] = {}
        #: Partition directories with swapped segments: they must be synced before a checkpoint calls them clean.
        self._unsynced: dict[str, set[str]] = {}
        self._idle: asyncio.Future[None] | None = None

    def load(self) -> None:
        """Read the files. Any thread, before the cleaner starts."""
        for log_dir in self._manager.live_dirs:
            for partition, offset in log_dir.read_checkpoint(names.CLEANER_OFFSET_CHECKPOINT).items():
                log = self._manager.get(partition)
                if log is not None and log.log_dir == log_dir.path:
                    self._offsets[partition] = offset
                    self._dirs[partition] = log_dir.path

    def get(self, partition: TopicPartition) -> int | None:
        return self._offsets.get(partition)

    def set(self, log: Log, offset: int, *, swapped: bool = False) -> None:
        """Record that `log` is clean below `offset`. `swapped`: its directory must be synced first."""
        if swapped:
            self._unsynced.setdefault(log.log_dir, set()).add(log.directory)
        before = self._dirs.get(log.partition)
        self._offsets[log.partition] = offset
        self._dirs[log.partition] = log.log_dir
        if before is not None and before != log.log_dir:
            self._request(before)
        self._request(log.log_dir)

    def truncate(self, log: Log, offset: int) -> None:
        """Lower the checkpoint: the log was truncated at `offset`."""
        if self._offsets.get(log.partition, 0) > offset:
            self.set(log, offset)

    def follow(self, log: Log) -> None:
        """Move the checkpoint to the log's present directory, if the log has moved."""
        if self._dirs.get(log.partition, log.log_dir) != log.log_dir:
            self.set(log, self._offsets[log.partition])

    def drop(self, partition: TopicPartition) -> None:
        """Forget the checkpoint: the log is gone, and one of the same name would be another."""
        self._offsets.pop(partition, None)
        directory = self._dirs.pop(partition, None)
        if directory is not None:
            self._request(directory)

    # -- files

    def _request(self, path: str) -> None:
        if path in self._writing:
            self._writing[path] = True
            return
        log_dir = next((live for live in self._manager.live_dirs if live.path == path), None)
        if log_dir is None:
            return
        self._writing[path] = False
        self._write(log_dir)

    def _write(self, log_dir: LogDir) -> None:
        path = log_dir.path
        offsets = {partition: self._offsets[partition] for partition, where in self._dirs.items() if where == path}
        swapped = self._unsynced.pop(path, set())
        disk = self._env.disk

        def work() -> None:
            for directory in swapped:
                disk.fsync_dir(directory)
            log_dir.write_checkpoint(names.CLEANER_OFFSET_CHECKPOINT, offsets)

        def done(error: BaseException | None) -> None:
            again = self._writing.pop(path)
            if isinstance(error, OSError):
                self._manager.handle_fault(LogDirFault(path, error))
            elif error is not None:
                raise error
            elif again:
                self._request(path)
            if not self._writing and self._idle is not None and not self._idle.done():
                self._idle.set_result(None)

        self._env.threads.run(work, done)

    async def written(self) -> None:
        """Wait until every requested write has ended."""
        if self._writing:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle
