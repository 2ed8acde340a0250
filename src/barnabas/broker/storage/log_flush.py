"""Making a log durable, in three steps so that the event loop never waits for the disk.

`LogFlusher.begin` on the loop says what to sync and pins it; `FlushJob.run` syncs, on any thread; `LogFlusher.finish` on
the loop moves the recovery point. What the thread touches cannot change: pinned descriptors and plain paths.
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
        """A flush that is under way looks for them under their former names."""
        self._generation += 1
        self._paths = {f"{directory}/{path.rpartition('/')[2]}": self._generation for path in self._paths}


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
        #: Pinned by whoever made the job.
        self.files = files
        #: Indexes, snapshots, epochs, and logs of inactive segments: gone without harm if they were deleted meanwhile.
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
        """Event loop only; `LogFlusher.finish` does it."""
        files, self.files = self.files, []
        for opened in files:
            opened.unpin()


class LogFlusher:
    """How far a log is durable, and making it so. Owner: the log; `FlushJob.run` alone may be on another thread.

    Promise: a crash takes nothing below `recovery_point`. For that, callers report every file that is written without a
    sync (`unsynced`), and of every cut (`cut_to`, `restart_at`). A log start that moves on does not count: a crash may take
    it back.
    """

    __slots__ = ("_log", "_running", "_waiters", "due_up_to", "last_flush_ms", "recovery_point", "unsynced")

    def __init__(self, log: LogState, *, recovery_point: int, unsynced: UnsyncedFiles) -> None:
        self._log = log
        #: Everything below is on disk.
        self.recovery_point = recovery_point
        #: `flush.messages` was reached there: until everything below is on disk, a leader commits only what is.
        self.due_up_to = 0
        self.last_flush_ms = log.env.clock.now_ms()
        self.unsynced = unsynced
        #: Begun and not finished.
        self._running: dict[FlushJob, None] = {}
        #: Who shares the next flush, while one is under way for others; None while none is.
        self._waiters: list[FlushWaiter] | None = None

    def is_due(self) -> bool:
        """Whether an append has reached `flush.messages`: its caller has to see to the flush."""
        log = self._log
        if log.log_end_offset - self.recovery_point < log.config.flush_messages:
            return False
        self.due_up_to = log.log_end_offset
        return True

    def begin(self, up_to: int | None = None, *, force: bool = False) -> FlushJob | None:
        """What must be synced for everything below `up_to` (the log end) to be durable; None where nothing must.

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
            # What is not open is opened on the thread, one after the other. There may be more of them than the pool lets be
            # open: opening one more here would close another one, which this job counts on.
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
        """The job has run: release what it pinned; the recovery point moves, or the directory fails."""
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
        """All three steps at once: for tools, tests and threads that own the log."""
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
        """Have everything below `up_to` durable, then call `then` on the event loop, with the fault where it failed.

        For `flush.messages=1`: an append is acknowledged in `then`. One flush runs at a time; who comes meanwhile
        shares the next one, so that many small appends cost few disk writes.
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
            self._tell(waiters, fault)
            return
        if job is None:
            # Closed, or truncated below what they wait for.
            self._tell(waiters, self._log.storage_error() if self._log.is_closed else None)
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
                # Who is told may append again at once, and waits with those who came late.
                self._tell(waiters, fault)
            finally:
                late, self._waiters = self._waiters or [], None
                if late:
                    self._start(late)

        self._log.env.threads.run(job.run, done)

    def _tell(self, waiters: list[FlushWaiter], error: Exception | None) -> None:
        for waiter in waiters:
            waiter.then(error)

    def flush_in_background(self, up_to: int | None = None) -> None:
        """No caller waits for it: after a roll, and by `flush.ms`."""

        def then(error: Exception | None) -> None:
            if error is not None:
                # The environment has got the fault; there is no caller to raise it to.
                logger.error("flush of %s failed: %s", self._log.partition, error)

        self.flush_then(self._log.log_end_offset if up_to is None else up_to, then)

    def moved_to(self, directory: str) -> None:
        """The partition's directory was renamed. What is under way does not find all that it has to sync."""
        self.unsynced.moved_to(directory)
        for job in self._running:
            job.up_to = min(job.up_to, Offset(self.recovery_point))

    def cut_to(self, offset: int) -> None:
        """The log was cut there, and may grow again."""
        self.recovery_point = min(self.recovery_point, offset)
        self.due_up_to = min(self.due_up_to, offset)
        for job in self._running:
            # What is left below will be durable; what comes in its place has been written too late to be synced.
            job.up_to = min(job.up_to, Offset(offset))

    def restart_at(self, offset: int) -> None:
        """The log was emptied, and goes on from there."""
        self.cut_to(offset)
        self.recovery_point = offset
