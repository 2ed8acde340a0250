"""The broker's side of the compaction worker: a child process, started for the first job, ended when idle.

Owner: the event loop. Reports arrive through the loop's reader of the worker's pipe; threads start the worker, write to it and
reap it, because that may block. The kernel ends the worker with the broker (`base.host.parent`).
"""

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from barnabas.base.host import parent
from barnabas.broker.runtime.timers import Timer
from barnabas.broker.storage.cleaner.job import CleanJob, Died, GroupCleaned, Report, decode_report
from barnabas.broker.storage.cleaner.worker import LENGTH, frame
from barnabas.broker.storage.environment import LogEnvironment

logger = logging.getLogger(__name__)

WORKER_COMMAND: Final = (sys.executable, "-P", "-m", "barnabas.broker.storage.cleaner.worker")
#: Longer than `log.cleaner.backoff.ms`, so that a broker with steady work keeps its worker.
IDLE_S: Final = 30.0
_READ_BYTES: Final = 1 << 16

Reported = Callable[[Report], None]


class Worker(Protocol):
    """Does one job at a time. Reports come on the event loop; the last one is `Finished`, `Failed` or `Died`."""

    def submit(self, job: CleanJob, reported: Reported) -> None: ...

    def kill(self) -> None:
        """Kill the current job: `Died` follows, once nothing is written any more."""
        ...

    async def close(self) -> None:
        """End the worker, and kill its current job."""
        ...


class ProcessWorker:
    """A `Worker` in a separate process."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        env: LogEnvironment,
        *,
        command: Sequence[str] = WORKER_COMMAND,
        idle_s: float = IDLE_S,
    ) -> None:
        self._loop = loop
        self._env = env
        self._command = command
        self._idle_s = idle_s
        self._process: subprocess.Popen[bytes] | None = None
        self._received = bytearray()
        self._reported: Reported | None = None
        self._idle_timer: Timer | None = None
        self._gone: asyncio.Future[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process id; None while there is no process."""
        return None if self._process is None else self._process.pid

    # -- jobs

    def submit(self, job: CleanJob, reported: Reported) -> None:
        assert self._reported is None, "one job at a time"
        self._stop_idling()
        self._reported = reported
        if self._process is None or self._process.stdin is None or self._process.stdin.closed:
            # Closed: the idle worker was asked to end and has not ended yet. It may: a new one takes the job.
            self._forget_process()
            try:
                self._start()
            except OSError as error:
                self._process = None
                failure = Died(f"cannot start the compaction worker: {error}", was_running=False)
                self._loop.call_soon(self._end_job, failure)
                return
        process = self._process
        assert process is not None
        stdin = process.stdin
        assert stdin is not None
        message = frame(job.encode())
        # With many producers the message is larger than a pipe's buffer: the loop must not wait for it.
        self._env.threads.run(lambda: _write_all(stdin.fileno(), message), self._written)

    def _written(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, OSError):
            raise error
        # A broken pipe means that the worker has died; the end of its output reports that.

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    # -- the process

    def _start(self) -> None:
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, parent.ENVIRONMENT_VARIABLE: "1"},
        )
        assert process.stdout is not None
        self._process = process
        self._gone = self._loop.create_future()
        self._received.clear()
        os.set_blocking(process.stdout.fileno(), False)
        self._loop.add_reader(process.stdout.fileno(), self._on_readable, process)
        logger.info("[log cleaner] compaction worker %d started", process.pid)

    def _on_readable(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        try:
            data = os.read(process.stdout.fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._on_end(process)
            return
        received = self._received
        received += data
        while len(received) >= LENGTH.size:
            (size,) = LENGTH.unpack_from(received)
            if len(received) < LENGTH.size + size:
                break
            message = bytes(received[LENGTH.size : LENGTH.size + size])
            del received[: LENGTH.size + size]
            self._on_report(decode_report(message))

    def _on_report(self, report: Report) -> None:
        if self._reported is None:
            return
        if isinstance(report, GroupCleaned):
            self._reported(report)
            return
        self._idle_timer = self._env.timers.call_later(self._idle_s, self._let_end)
        self._end_job(report)  # may submit the next job, which ends the idle time

    def _end_job(self, report: Report) -> None:
        reported, self._reported = self._reported, None
        if reported is not None:
            reported(report)

    def _on_end(self, process: subprocess.Popen[bytes]) -> None:
        """Reap the worker on a thread: its output has ended, so it is ending or dead."""
        assert process.stdout is not None
        self._loop.remove_reader(process.stdout.fileno())
        gone = self._gone if self._process is process else None

        def reaped(error: BaseException | None) -> None:
            if error is not None:
                raise error
            _close(process)
            logger.info("[log cleaner] compaction worker %d has ended with status %s", process.pid, process.returncode)
            if gone is not None and not gone.done():
                gone.set_result(None)
            # Checked now, not when its output ended: a job that came in between went to a new worker.
            if self._process is process:
                self._process = None
                self._stop_idling()
                self._end_job(Died(f"worker {process.pid} has ended with status {process.returncode}"))

        self._env.threads.run(lambda: _reap(process), reaped)

    def _forget_process(self) -> None:
        """Detach from the process: it is still reaped, and has no job."""
        self._process = None

    # -- idleness, the end

    def _stop_idling(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def _let_end(self) -> None:
        self._idle_timer = None
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    async def close(self) -> None:
        self._stop_idling()
        if self._process is None or self._gone is None:
            return
        gone = self._gone
        if self._reported is not None:
            self.kill()
        else:
            self._let_end()
        await gone


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _reap(process: subprocess.Popen[bytes]) -> None:
    process.wait()


def _close(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
