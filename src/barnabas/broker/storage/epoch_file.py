"""The file that holds the leader epochs of a log."""

from collections.abc import Sequence

from barnabas.base.host.disk import Disk
from barnabas.broker.storage import names
from barnabas.broker.storage.checkpoints import write_epochs
from barnabas.broker.storage.epoch_cache import EpochEntry
from barnabas.broker.storage.log_flush import UnsyncedFiles


class EpochFile:
    """The store of a `LeaderEpochCache`.

    The log writes it when it is flushed, rolled or truncated, without fsync: the loop must not wait. The flush syncs the file
    before the recovery point passes the records of these epochs. Recovery reads the epochs of later records from the log.
    """

    __slots__ = ("_disk", "directory", "unsynced")

    def __init__(self, directory: str, disk: Disk) -> None:
        self._disk = disk
        self.directory = directory
        #: The log's own list; `write` adds the file to it.
        self.unsynced = UnsyncedFiles()

    @property
    def path(self) -> str:
        return f"{self.directory}/{names.LEADER_EPOCH_CHECKPOINT}"

    def write(self, entries: Sequence[EpochEntry]) -> None:
        write_epochs(self.path, entries, sync=False, disk=self._disk)
        self.unsynced.add(self.path)
