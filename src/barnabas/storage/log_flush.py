"""Making a log durable, in three steps so that the event loop never waits for the disk.

`Log.begin_flush` on the loop says what to sync and pins it; `FlushJob.run` syncs, on any thread; `Log.finish_flush` on
the loop moves the recovery point. What the thread touches cannot change: pinned descriptors and plain paths.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from barnabas.core.ids import Offset
from barnabas.runtime.disk import Disk
from barnabas.storage.file_handle import OpenFile


class FlushWaiter(NamedTuple):
    """Somebody who must not answer before everything below `up_to` is durable."""

    up_to: int
    #: Called on the event loop, with the error where the flush failed.
    then: Callable[[Exception | None], None]


class UnsyncedFiles:
    """Small files and new files that were written without fsync: the next flush makes up for it.

    A file stays listed until a flush that saw it has ended: of two that run at once, the one that ends first must not
    move the recovery point past what only the other one syncs. Owner: the log.
    """

    __slots__ = ("_generation", "_paths")

    def __init__(self) -> None:
        #: Counts writes, so that a file that is written again while it is being synced stays listed.
        self._generation = 0
        self._paths: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._paths)

    def add(self, path: str) -> None:
        self._generation += 1
        self._paths[path] = self._generation

    def pending(self) -> tuple[int, list[str]]:
        return self._generation, list(self._paths)

    def synced(self, generation: int) -> None:
        """Everything that `pending` said, when it gave this generation, is durable."""
        self._paths = {path: written for path, written in self._paths.items() if written > generation}

    def moved_to(self, directory: str) -> None:
        self._paths = {f"{directory}/{path.rpartition('/')[2]}": written for path, written in self._paths.items()}


class FlushJob:
    """Owner: whoever began it. `run` may be called on any thread, once."""

    __slots__ = ("_disk", "_paths", "directory", "files", "generation", "up_to")

    def __init__(
        self,
        disk: Disk,
        *,
        files: list[OpenFile],
        paths: list[str],
        directory: str | None,
        up_to: int,
        generation: int,
    ) -> None:
        self._disk: Final = disk
        for opened in files:
            opened.pin()
        self.files = files
        #: Indexes, snapshots, epochs: small, and gone without harm if they were deleted meanwhile.
        self._paths = paths
        #: Synced too where files in it are new.
        self.directory = directory
        #: Everything below is durable once `run` has returned.
        self.up_to = Offset(up_to)
        #: Of the `UnsyncedFiles` that are among `paths`.
        self.generation = generation

    def run(self) -> None:
        for opened in self.files:
            self._disk.fsync(opened.fd)
        for path in self._paths:
            self._disk.fsync_path(path)
        if self.directory is not None:
            self._disk.fsync_dir(self.directory)

    def release(self) -> None:
        """Event loop only; `Log.finish_flush` does it."""
        files, self.files = self.files, []
        for opened in files:
            opened.unpin()
