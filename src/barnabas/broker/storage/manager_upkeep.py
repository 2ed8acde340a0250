"""The log manager's periodic work: checkpoints, flushes, retention, expiry of producers.

Owner: the event loop. A pass over many logs is cut into slices, so that requests run in between. The loop takes a snapshot of
the data, and a thread writes it to disk.
"""

import errno
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from barnabas.base.errors import LogDirFault, Malformed
from barnabas.base.host import descriptors
from barnabas.base.ids import TopicPartition
from barnabas.broker.runtime.timers import Timer
from barnabas.broker.storage import names
from barnabas.broker.storage.environment import Done, LogEnvironment
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.log_dir import LogDir

logger = logging.getLogger(__name__)

#: Logs handled before the loop gets its turn; _WRITTEN_SLICE if each of them writes a file.
_SLICE: Final = 32
_WRITTEN_SLICE: Final = 4
#: An unchanged checkpoint is written again after this time: that shows that the disk still takes writes.
UNCHANGED_WRITTEN_S: Final = 60.0
#: The largest number means "never" in settings; a timer cannot wait so long.
_NEVER_MS: Final = 1 << 53

Offsets = dict[TopicPartition, int]
_OFFSET_OF: Final[dict[str, Callable[[Log], int]]] = {
    names.RECOVERY_POINT_CHECKPOINT: lambda log: log.recovery_point,
    names.LOG_START_OFFSET_CHECKPOINT: lambda log: log.log_start_offset,
    names.REPLICATION_OFFSET_CHECKPOINT: lambda log: log.high_watermark,
}
#: The checkpoint files of a log directory.
CHECKPOINTS: Final = tuple(_OFFSET_OF)


def checkpoint_offsets(name: str, logs: Iterable[Log]) -> Offsets:
    """Return the offsets that one checkpoint file of a directory should contain."""
    offset_of = _OFFSET_OF[name]
    if name == names.LOG_START_OFFSET_CHECKPOINT:
        # Kafka leaves out starts that equal the first segment's name. But a log that begins in the tier has no such segment,
        # and if the file system does not keep the order of renames, a power cut may bring a deleted segment back.
        return {log.partition: log.log_start_offset for log in logs if log.is_tiered or log.log_start_offset > 0}
    return {log.partition: offset_of(log) for log in logs}


class Checkpointer:
    """Writes the checkpoint files of the directories. One write of a file at a time; requests meanwhile share one more."""

    def __init__(
        self, env: LogEnvironment, logs_in: Callable[[LogDir], list[Log]], on_fault: Callable[[LogDirFault], None]
    ) -> None:
        self._env = env
        self._logs_in = logs_in
        self._on_fault = on_fault
        #: File -> whether to write it again once the write in progress has ended.
        self._writing: dict[str, bool] = {}
        #: File -> callbacks for when it has been written with the present offsets.
        self._waiting: dict[str, list[Done]] = {}
        #: File -> its content, and when it was written.
        self._written: dict[str, tuple[Offsets, float]] = {}

    def request(self, log_dir: LogDir, name: str, then: Done | None = None) -> None:
        """Write the file soon, with the offsets of now or later; then call `then`, on the event loop."""
        path = log_dir.file(name)
        if then is not None:
            self._waiting.setdefault(path, []).append(then)
        if path in self._writing:
            self._writing[path] = True
            return
        waiting = self._waiting.pop(path, [])
        if not log_dir.is_online:
            self._notify(waiting, OSError(errno.EIO, f"{log_dir.path} is offline"))
            return
        offsets = checkpoint_offsets(name, self._logs_in(log_dir))
        now_s = self._env.clock.monotonic_s()
        written, written_s = self._written.get(path, (None, 0.0))
        if not waiting and offsets == written and now_s - written_s < UNCHANGED_WRITTEN_S:
            return  # an idle broker with thousands of logs writes nothing
        self._written.pop(path, None)
        self._writing[path] = False

        def done(error: BaseException | None) -> None:
            again = self._writing.pop(path)
            if error is None:
                self._written[path] = (offsets, now_s)
            if isinstance(error, OSError):
                self._on_fault(LogDirFault(log_dir.path, error))
            elif error is not None:
                raise error
            if again:
                self.request(log_dir, name)
            self._notify(waiting, error)

        self._env.threads.run(lambda: log_dir.write_checkpoint(name, offsets), done)

    def write(self, log_dir: LogDir, files: Sequence[str], done: Done) -> None:
        """Write these files of a directory, one after the other, then call `done`."""
        name, *rest = files

        def then(error: BaseException | None) -> None:
            if error is not None or not rest:
                done(error)
            else:
                self.write(log_dir, rest, done)

        self.request(log_dir, name, then)

    def when_written(self, log_dirs: Sequence[LogDir], files: Sequence[str], then: Callable[[], None]) -> None:
        """Write these files of every directory, then call `then`. Tries again if there is no free descriptor."""
        remaining = len(log_dirs)
        if not remaining:
            then()

        def save(log_dir: LogDir) -> None:
            self.write(log_dir, files, lambda error: saved(log_dir, error))

        def saved(log_dir: LogDir, error: BaseException | None) -> None:
            nonlocal remaining
            if isinstance(error, OSError) and descriptors.are_exhausted(error):
                self._env.timers.call_later(descriptors.WAIT_S, lambda: save(log_dir))
                return
            # A failed directory, which has been reported, takes no log before the next start, which checks it again.
            remaining -= 1
            if not remaining:
                then()

        for log_dir in log_dirs:
            save(log_dir)

    def _notify(self, waiting: list[Done], error: BaseException | None) -> None:
        for then in waiting:
            then(error)


class Periodic:
    """A task that repeats `period_ms` after each run has ended, until `stop`."""

    def __init__(self, env: LogEnvironment, period_ms: int, step: Callable[[], Iterator[None] | None]) -> None:
        self._env = env
        self._period_ms = period_ms
        self._step = step
        self._timer: Timer | None = None
        self._stopped = False

    def start(self, delay_ms: int | None = None) -> None:
        wait_ms = self._period_ms if delay_ms is None else delay_ms
        if self._period_ms < _NEVER_MS and not self._stopped:
            self._timer = self._env.timers.call_later(wait_ms / 1000, self._run)

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _run(self) -> None:
        self._continue(self._slices())

    def _slices(self) -> Iterator[None]:
        """Run the step. A step may be a generator: each `yield` gives the loop its turn."""
        yield from self._step() or ()

    def _continue(self, slices: Iterator[None]) -> None:
        if self._stopped:
            return
        try:
            next(slices)
        except StopIteration:
            self.start()
        except BaseException:
            self.start()  # a bug ends this pass only, the next one still runs
            raise
        else:
            self._timer = self._env.timers.call_later(0, lambda: self._continue(slices))


def sliced(logs: list[Log], work: Callable[[Log], object], *, at_once: int = _SLICE) -> Iterator[None]:
    """Call `work` on every open log, `at_once` logs between two `yield`. A failed directory or a damaged log does not end
    the pass."""
    for count, log in enumerate(logs, start=1):
        if not log.is_closed:
            try:
                work(log)
            except (LogDirFault, Malformed) as fault:
                # The log has reported the fault to the manager; the other directories and logs go on.
                logger.error("[partition %s] the periodic work on its log failed: %s", log.partition, fault)
        if count % at_once == 0:
            yield


def retention_pass(
    logs: list[Log], *, now_ms: int, is_being_cleaned: Callable[[TopicPartition], bool]
) -> Iterator[None]:
    def retain(log: Log) -> None:
        # The cleaner handles compacted logs, also if it deletes by age. A worker may still read a log that was compacted
        # until now: skip it in this pass. A file missing under the worker would look like a failed disk.
        if not log.config.is_compacted and not is_being_cleaned(log.partition):
            log.delete_old_segments(now_ms)

    return sliced(logs, retain)


def flush_pass(logs: list[Log], *, now_ms: int) -> Iterator[None]:
    def flush(log: Log) -> None:
        if log.unflushed_messages and now_ms - log.last_flush_ms >= log.config.flush_ms:
            log.flusher.flush_in_background()

    return sliced(logs, flush)


def epochs_pass(logs: list[Log]) -> Iterator[None]:
    return sliced([log for log in logs if log.epochs.dirty], Log.write_epochs, at_once=_WRITTEN_SLICE)


def expiration_pass(logs: list[Log], *, now_ms: int) -> Iterator[None]:
    return sliced(logs, lambda log: log.expire_producers(now_ms))
