"""A compaction worker without a process, for simulations and for brokers in the process of a test: the same job, on the disk,
the clock and the threads of the broker.
"""

import asyncio
from functools import partial

from barnabas.broker.storage.cleaner.compaction import clean_log
from barnabas.broker.storage.cleaner.job import CleanJob, Died, Report, decode_report, encode_report
from barnabas.broker.storage.cleaner.process import Reported
from barnabas.broker.storage.cleaner.source import ReadThrottle
from barnabas.broker.storage.cleaner.worker import run_job
from barnabas.broker.storage.environment import LogEnvironment


class InProcessWorker:
    """A `Worker`. A job runs in one go; its reports come when it has ended, or `Died` where it was killed meanwhile."""

    def __init__(self, env: LogEnvironment) -> None:
        self._env = env
        self._reported: Reported | None = None
        self._killed = False
        self._idle: asyncio.Future[None] | None = None

    def submit(self, job: CleanJob, reported: Reported) -> None:
        assert self._reported is None, "one job at a time"
        self._reported = reported
        self._killed = False
        # As it goes through the pipe of the real one.
        copy = CleanJob.decode(job.encode())
        reports: list[Report] = []
        env = self._env
        clean = partial(clean_log, disk=env.disk, throttle=ReadThrottle(None), clock_s=env.clock.monotonic_s)

        def work() -> None:
            if not self._killed:
                run_job(copy, lambda report: reports.append(decode_report(encode_report(report))), clean=clean)

        def done(error: BaseException | None) -> None:
            if error is not None:
                reports.append(Died(f"{type(error).__name__}: {error}"))
            elif self._killed:
                reports[:] = [Died("killed")]
            self._end(reports)

        env.threads.run(work, done)

    def _end(self, reports: list[Report]) -> None:
        reported, self._reported = self._reported, None
        assert reported is not None
        for report in reports:
            reported(report)
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def kill(self) -> None:
        self._killed = True

    async def close(self) -> None:
        if self._reported is not None:
            self.kill()
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle
