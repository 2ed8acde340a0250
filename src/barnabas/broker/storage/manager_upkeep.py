"""What the log manager does from time to time: checkpoints, flushes, retention, expiry of producers.

Owner: the event loop. A pass over many logs is cut into slices, so that requests get their turn in between; what is
written to disk is a snapshot taken on the loop and written on a thread.
"""

import errno
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from barnabas.base.errors import LogDirFault, Malformed
from barnabas.base.ids import TopicPartition
from barnabas.broker.runtime.timers import Timer
from barnabas.broker.storage import names
from barnabas.broker.storage.environment import Done, LogEnvironment
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.log_dir import LogDir

logger = logging.getLogger(__name__)

#: Logs looked at before others get their turn on the loop, and logs of which a file is written.
_SLICE: Final = 32
WRITTEN_SLICE: Final = 4
#: A checkpoint that has not changed is written again after this: it shows that the disk still takes writes.
UNCHANGED_WRITTEN_S: Final = 60.0
#: Settings speak of "never" as the largest number there is; a timer cannot.
_NEVER_MS: Final = 1 << 53

Offsets = dict[TopicPartition, int]
_OFFSET_OF: Final[dict[str, Callable[[Log], int]]] = {
    names.RECOVERY_POINT_CHECKPOINT: lambda log: log.recovery_point,
    names.REPLICATION_OFFSET_CHECKPOINT: lambda log: log.high_watermark,
    names.LOG_START_OFFSET_CHECKPOINT: lambda log: log.log_start_offset,
}


def checkpoint_offsets(name: str, logs: Iterable[Log]) -> Offsets:
    """What one checkpoint file of a directory should say of its logs."""
    offset_of = _OFFSET_OF[name]
    if name == names.LOG_START_OFFSET_CHECKPOINT:
        # Kafka leaves out what the name of the first segment tells. But of a log that begins in the tier no segment tells; and
        # a power cut may bring a deleted segment back, on a file system that does not keep the order of names.
        return {log.partition: log.log_start_offset for log in logs if log.is_tiered or log.log_start_offset > 0}
    return {log.partition: offset_of(log) for log in logs}


class Checkpointer:
    """Writes the checkpoint files of the directories. One write of a file at a time; who asks meanwhile gets one more."""

    def __init__(
        self, env: LogEnvironment, logs_in: Callable[[LogDir], list[Log]], on_fault: Callable[[LogDirFault], None]
    ) -> None:
        self._env = env
        self._logs_in = logs_in
        self._on_fault = on_fault
        #: File -> whether it is to be written again once the write under way has ended.
        self._writing: dict[str, bool] = {}
        #: File -> who wants to know when it has been written with the offsets of now.
        self._waiting: dict[str, list[Done]] = {}
        #: File -> what it says, and when it was written.
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
            self._tell(waiting, OSError(errno.EIO, f"{log_dir.path} is offline"))
            return
        offsets = checkpoint_offsets(name, self._logs_in(log_dir))
        now_s = self._env.clock.monotonic_s()
        written, written_s = self._written.get(path, (None, 0.0))
        if not waiting and offsets == written and now_s - written_s < UNCHANGED_WRITTEN_S:
            return  # an idle broker with thousands of logs has nothing to do
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
            self._tell(waiting, error)

        self._env.threads.run(lambda: log_dir.write_checkpoint(name, offsets), done)

    def _tell(self, waiting: list[Done], error: BaseException | None) -> None:
        for then in waiting:
            then(error)


class Periodic:
    """A task that runs again and again, `period_ms` after it has ended, until `stop`."""

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
        """A step may be a generator: each `yield` lets others have the loop."""
        yield from self._step() or ()

    def _continue(self, slices: Iterator[None]) -> None:
        if self._stopped:
            return
        try:
            next(slices)
        except StopIteration:
            self.start()
        except BaseException:
            self.start()  # a bug in one pass ends that pass, and not the last one that there was
            raise
        else:
            self._timer = self._env.timers.call_later(0, lambda: self._continue(slices))


def sliced(logs: list[Log], work: Callable[[Log], object], *, at_once: int = _SLICE) -> Iterator[None]:
    """`work` on every log that is still open, `at_once` between two `yield`. A failed directory or a damaged log does not end
    the pass."""
    for count, log in enumerate(logs, start=1):
        if not log.is_closed:
            try:
                work(log)
            except (LogDirFault, Malformed) as fault:
                # The log has reported a fault to the manager; the other directories go on, and so do the other logs.
                logger.error("upkeep of %s stopped: %s", log.partition, fault)
        if count % at_once == 0:
            yield
