"""Making a log durable, in three steps so that the event loop never waits for the disk.

`LogFlusher.begin` runs on the loop, lists what to sync and pins it; `FlushJob.run` syncs, on any thread; `LogFlusher.finish`
runs on the loop and moves the recovery point. The thread touches only what cannot change: pinned descriptors and plain paths.
"""

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from barnabas.base.errors import LogDirFault
from barnabas.base.host.disk import Disk
from barnabas.base.ids import Offset
from barnabas.broker.storage.file_handle import OpenFile
from barnabas.broker.storage.log_state import LogState

logger = logging.getLogger(__name__)


class FlushWaiter(NamedTuple):
    """A caller that must not answer before everything below `up_to` is durable."""

    up_to: int
    #: Called on the event loop, with the error where the flush failed.
    then: Callable[[Exception | None], None]


class UnsyncedFiles:
    """Files that were written without fsync; the next flush syncs them.

    A file stays listed until a flush that included it has ended. If two flushes run at once, the one that ends first must not
    move the recovery point past files that only the other one syncs. Owner: the log.
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
        """Remove the files that were pending at this generation: they are durable."""
        self._paths = {path: written for path, written in self._paths.items() if written > generation}

    def moved_to(self, directory: str) -> None:
        """Follow a rename of the directory: a flush that is running looks for the files under their former names."""
        self._generation += 1
        self._paths = {f"{directory}/{path.rpartition('/')[2]}": self._generation for path in self._paths}


class FlushJob:
    """Owner: the caller of `LogFlusher.begin`. `run` may be called once, on any thread."""

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
        #: Pinned by `LogFlusher.begin`.
        self.files = files
        #: Indexes, snapshots, epochs, and logs of inactive segments. If one was deleted since, its sync is skipped.
        self._paths = paths
        #: Synced as well, if new files are in it.
        self.directory = directory
        #: Everything below is durable once `run` has returned.
        self.up_to = Offset(up_to)
        #: Generation of the `UnsyncedFiles` among `paths`.
        self.generation = generation

    def run(self) -> None:
        for opened in self.files:
            self._disk.fsync(opened.fd)
        for path in self._paths:
            self._disk.fsync_path(path)
        if self.directory is not None:
            self._disk.fsync_dir(self.directory)

    def release(self) -> None:
        """Unpin the files. Event loop only; `LogFlusher.finish` calls it."""
        files, self.files = self.files, []
        for opened in files:
            opened.unpin()


class LogFlusher:
    """Knows how far a log is durable, and flushes it. Owner: the log; only `FlushJob.run` may run on another thread.

    Promise: a crash loses nothing below `recovery_point`. For that, callers report every file that is written without a sync
    (`unsynced`) and every truncation (`cut_to`, `restart_at`). A log start that moves up is not covered: a crash may undo it.
    """

    __slots__ = ("_log", "_running", "_waiters", "due_up_to", "last_flush_ms", "recovery_point", "unsynced")

    def __init__(self, log: LogState, *, recovery_point: int, unsynced: UnsyncedFiles) -> None:
        self._log = log
        #: Everything below is on disk.
        self.recovery_point = recovery_point
        #: An append reached `flush.messages` at this log end. Until everything below is on disk, a leader commits only what is.
        self.due_up_to = 0
        self.last_flush_ms = log.env.clock.now_ms()
        self.unsynced = unsynced
        #: Jobs that have begun and not finished.
        self._running: dict[FlushJob, None] = {}
        #: Callers that share the next flush while one runs for others; None while no flush runs.
        self._waiters: list[FlushWaiter] | None = None

    def is_due(self) -> bool:
        """Whether an append has reached `flush.messages`: its caller must flush."""
        log = self._log
        if log.log_end_offset - self.recovery_point < log.config.flush_messages:
            return False
        self.due_up_to = log.log_end_offset
        return True

    def begin(self, up_to: int | None = None, *, force: bool = False) -> FlushJob | None:
        """Return a job that makes everything below `up_to` (the log end) durable; None if there is nothing to sync.

        `force` includes files that hold no record yet, for a clean shutdown. Run the job on a thread, then `finish`.
        """
        log = self._log
        end = log.log_end_offset
        offset = end if up_to is None else min(up_to, end)
        if log.is_closed:
            return None
        if offset <= self.recovery_point and not (force and (self.unsynced or log.epochs.dirty)):
            return None
        try:
            log.epochs.flush()
        except OSError as error:
            log.fault(error)
        generation, unsynced = self.unsynced.pending()
        files: list[OpenFile] = []
        paths: list[str] = []
        for segment in log.segments.overlapping(self.recovery_point, offset + 1 if force else offset):
            log_path, *index_paths = segment.paths()
            # The thread opens the files that are not open, one at a time. There may be more of them than the pool keeps open:
            # opening one here would close another one, which this job needs.
            opened = segment.pin_if_open()
            if opened is None:
                paths.append(log_path)
            else:
                files.append(opened)
            paths += index_paths
        job = FlushJob(
            self._log.env.disk,
            files=files,
            paths=paths + unsynced,
            directory=log.directory if unsynced else None,
            up_to=offset,
            generation=generation,
        )
        self._running[job] = None
        return job

    def finish(self, job: FlushJob, error: BaseException | None = None) -> None:
        """End a job that has run: release its pins, and move the recovery point or fail the directory."""
        job.release()
        self._running.pop(job, None)
        if isinstance(error, OSError):
            if not self._log.is_closed:
                self._log.fault(error)
            return
        if error is not None:
            raise error
        self.unsynced.synced(job.generation)
        self.recovery_point = max(self.recovery_point, job.up_to)
        self.last_flush_ms = self._log.env.clock.now_ms()

    def flush(self) -> None:
        """Run all three steps at once: for tools, tests and threads that own the log."""
        job = self.begin(force=True)
        if job is None:
            return
        try:
            job.run()
        except OSError as error:
            self.finish(job, error)
        else:
            self.finish(job)

    def flush_then(self, up_to: int, then: Callable[[Exception | None], None]) -> None:
        """Make everything below `up_to` durable, then call `then` on the event loop, with the fault if that failed.

        For `flush.messages=1`, `then` acknowledges the append. One flush runs at a time; callers that come meanwhile share the
        next one, so that many small appends cost few disk writes.
        """
        if up_to <= self.recovery_point:
            then(None)
        elif self._waiters is not None:
            self._waiters.append(FlushWaiter(up_to, then))
        else:
            self._start([FlushWaiter(up_to, then)])

    def _start(self, waiters: list[FlushWaiter]) -> None:
        try:
            job = self.begin(max(waiter.up_to for waiter in waiters))
        except LogDirFault as fault:
            self._notify(waiters, fault)
            return
        if job is None:
            # The log was closed, or truncated below the offsets that they wait for.
            self._notify(waiters, self._log.storage_error() if self._log.is_closed else None)
            return
        self._waiters = []

        def done(error: BaseException | None) -> None:
            fault: Exception | None = None
            try:
                self.finish(job, error)
                if error is not None:
                    fault = self._log.storage_error()  # another failure has closed the log before
            except LogDirFault as failed:
                fault = failed
            try:
                # A waiter may append again at once; it then waits with the late callers.
                self._notify(waiters, fault)
            finally:
                late, self._waiters = self._waiters or [], None
                if late:
                    self._start(late)

        self._log.env.threads.run(job.run, done)

    def _notify(self, waiters: list[FlushWaiter], error: Exception | None) -> None:
        for waiter in waiters:
            waiter.then(error)

    def flush_in_background(self, up_to: int | None = None) -> None:
        """Flush without a caller that waits: after a roll, and for `flush.ms`."""

        def then(error: Exception | None) -> None:
            if error is not None:
                # The environment has the fault already; there is no caller to raise it to.
                logger.error("[partition %s] the flush failed: %s", self._log.partition, error)

        self.flush_then(self._log.log_end_offset if up_to is None else up_to, then)

    def moved_to(self, directory: str) -> None:
        """Follow a rename of the partition's directory. A job that is running may not find all its files."""
        self.unsynced.moved_to(directory)
        for job in self._running:
            job.up_to = min(job.up_to, Offset(self.recovery_point))

    def cut_to(self, offset: int) -> None:
        """Follow a truncation of the log to `offset`; the log may grow again."""
        self.recovery_point = min(self.recovery_point, offset)
        self.due_up_to = min(self.due_up_to, offset)
        for job in self._running:
            # Its sync still covers the records below; records that replace the truncated ones come too late for it.
            job.up_to = min(job.up_to, Offset(offset))

    def restart_at(self, offset: int) -> None:
        """Follow a restart: the log was emptied, and continues at `offset`."""
        self.cut_to(offset)
        self.recovery_point = offset
