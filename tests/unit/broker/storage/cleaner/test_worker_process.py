"""The worker as a process: started for a job, killed in the middle of one, ended when idle, gone with its parent."""

import asyncio
import contextlib
import io
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from barnabas.broker.runtime.threads import LoopThreads
from barnabas.broker.storage.cleaner import process
from barnabas.broker.storage.cleaner.job import (
    CleanJob,
    CleanStats,
    Died,
    Failed,
    Finished,
    GroupCleaned,
    Report,
    decode_report,
    encode_report,
)
from barnabas.broker.storage.cleaner.process import ProcessWorker
from barnabas.broker.storage.cleaner.source import ReadThrottle
from barnabas.broker.storage.cleaner.worker import LENGTH, frame, serve
from barnabas.broker.storage.environment import LogEnvironment
from tests.unit.broker.storage.cleaner.cleaner_support import SETTINGS, CompactedLog

WAIT_S = 60


@pytest.fixture
def log(tmp_path: Path) -> CompactedLog:
    log = CompactedLog(tmp_path)
    for number in range(200):
        log.put((b"k%d" % (number % 7), b"%d" % number))
    log.roll()
    return log


def job_of(log: CompactedLog, *, bytes_per_second: float | None = None) -> CleanJob:
    job = log.job(replace(SETTINGS, io_max_bytes_per_second=bytes_per_second, io_buffer_size=200))
    assert job is not None
    return job


class Reports:
    """The reports of a worker, and a wait for its last one."""

    def __init__(self) -> None:
        self.all: list[Report] = []
        self._ended = asyncio.Event()

    def __call__(self, report: Report) -> None:
        self.all.append(report)
        if not isinstance(report, GroupCleaned):
            self._ended.set()

    async def last(self) -> Report:
        await asyncio.wait_for(self._ended.wait(), WAIT_S)
        return self.all[-1]


def with_worker(test: Callable[[ProcessWorker], Awaitable[None]], *, idle_s: float = WAIT_S, **kwargs: object) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(2) as pool:
            threads = LoopThreads(loop, pool)
            worker = ProcessWorker(
                loop,
                LogEnvironment(threads=threads, timers=loop),
                idle_s=idle_s,
                **kwargs,  # type: ignore[arg-type]
            )
            try:
                await test(worker)
            finally:
                await worker.close()
                await threads.drain()
            assert worker.pid is None

    asyncio.run(run())


def test_a_process_is_started_for_a_job_and_serves_the_next(log: CompactedLog) -> None:
    async def test(worker: ProcessWorker) -> None:
        assert worker.pid is None
        reports = Reports()
        worker.submit(job_of(log), reports)
        pid = worker.pid
        assert pid is not None
        assert isinstance(await reports.last(), Finished)
        for report in reports.all:
            log.take(report)
        log.put((b"k1", b"new"))
        log.roll()
        again = Reports()
        worker.submit(job_of(log), again)
        assert isinstance(await again.last(), Finished)
        assert worker.pid == pid
        for report in again.all:
            log.take(report)

    with_worker(test)
    assert log.values() == {b"k%d" % key: [b"%d" % (196 + key)] for key in (0, 2, 3)} | {
        b"k%d" % key: [b"%d" % (189 + key)] for key in (4, 5, 6)
    } | {b"k1": [b"new"]}


def test_a_killed_worker_is_reported_and_replaced(log: CompactedLog) -> None:
    async def test(worker: ProcessWorker) -> None:
        reports = Reports()
        worker.submit(job_of(log, bytes_per_second=2000), reports)
        pid = worker.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        last = await reports.last()
        assert isinstance(last, Died) and str(pid) in last.message
        again = Reports()
        worker.submit(job_of(log), again)
        assert isinstance(await again.last(), Finished)
        assert worker.pid != pid

    with_worker(test)


def test_kill_ends_a_slow_job_in_the_middle(log: CompactedLog) -> None:
    async def test(worker: ProcessWorker) -> None:
        reports = Reports()
        job = job_of(log, bytes_per_second=30_000)
        worker.submit(job, reports)
        # Far enough to have written something: it can be seen in the directory.
        for _ in range(WAIT_S * 100):
            if any(name.endswith(".cleaned") for name in log.files()):
                break
            await asyncio.sleep(0.01)
        worker.kill()
        assert isinstance(await reports.last(), Died)
        assert any(name.endswith(".cleaned") for name in log.files())
        assert not any(isinstance(report, Finished) for report in reports.all)

    with_worker(test)
    before = log.records()
    log.crash()
    log.commit()
    assert log.records() == before
    assert not any(name.endswith(".cleaned") for name in log.files())


def test_an_idle_worker_ends_and_the_next_job_has_a_new_one(log: CompactedLog) -> None:
    async def test(worker: ProcessWorker) -> None:
        reports = Reports()
        worker.submit(job_of(log), reports)
        await reports.last()
        for _ in range(WAIT_S * 100):
            if worker.pid is None:
                break
            await asyncio.sleep(0.01)
        assert worker.pid is None
        again = Reports()
        worker.submit(job_of(log), again)
        assert isinstance(await again.last(), Finished)

    with_worker(test, idle_s=0.0)


def test_job_that_comes_while_an_idle_worker_is_reaped_does_not_die_with_it(
    log: CompactedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    reaping, may_end = threading.Event(), threading.Event()

    def reap(ended: subprocess.Popen[bytes]) -> None:
        reaping.set()
        assert may_end.wait(WAIT_S)
        ended.wait()

    async def test(worker: ProcessWorker) -> None:
        first = Reports()
        worker.submit(job_of(log), first)
        await first.last()
        assert await asyncio.to_thread(reaping.wait, WAIT_S)
        second = Reports()
        worker.submit(job_of(log), second)
        may_end.set()
        assert isinstance(await second.last(), Finished)

    monkeypatch.setattr(process, "_reap", reap)
    with_worker(test, idle_s=0.0)


def test_a_worker_that_cannot_be_started_is_a_dead_one(log: CompactedLog) -> None:
    async def test(worker: ProcessWorker) -> None:
        reports = Reports()
        worker.submit(job_of(log), reports)
        last = await reports.last()
        assert isinstance(last, Died) and "cannot start" in last.message and not last.was_running

    with_worker(test, command=["/nonexistent/python"])


def test_damage_of_a_log_is_reported_and_the_worker_lives_on(log: CompactedLog) -> None:
    job = job_of(log)
    broken = replace(job, segments=(job.segments[0]._replace(size_bytes=job.segments[0].size_bytes + 5),))
    missing = replace(job, directory=job.directory + "-gone")
    jobs = io.BytesIO(frame(broken.encode()) + frame(missing.encode()) + frame(job.encode()))
    out = io.BytesIO()
    serve(jobs, out)
    found = []
    data = out.getvalue()
    while data:
        (size,) = LENGTH.unpack_from(data)
        found.append(decode_report(data[4 : 4 + size]))
        data = data[4 + size :]
    assert isinstance(found[0], Failed) and found[0].errno == 0
    assert isinstance(found[1], Failed) and found[1].errno == 2
    assert isinstance(found[-1], Finished)


def test_a_torn_job_ends_the_worker() -> None:
    out = io.BytesIO()
    serve(io.BytesIO(b"\0\0\0\x09{}"), out)
    assert out.getvalue() == b""


@pytest.mark.parametrize(
    "report", [GroupCleaned(5, (5, 9)), Finished(77, CleanStats(bytes_read=3, total_s=0.5)), Failed("broken", 5)]
)
def test_reports_survive_the_pipe(report: Report) -> None:
    assert decode_report(encode_report(report)) == report


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PR_SET_PDEATHSIG is Linux's")
def test_the_worker_dies_with_its_parent(log: CompactedLog, tmp_path: Path) -> None:
    """A parent that is killed in the middle of a job leaves no process behind."""
    job = tmp_path / "job"
    job.write_bytes(frame(job_of(log, bytes_per_second=1000).encode()))
    script = (
        "import os, subprocess, sys\n"
        "from barnabas.base.host import parent\n"
        "from barnabas.broker.storage.cleaner.process import WORKER_COMMAND\n"
        "env = {**os.environ, parent.ENVIRONMENT_VARIABLE: '1'}\n"
        "child = subprocess.Popen(WORKER_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)\n"
        f"child.stdin.write(open({str(job)!r}, 'rb').read()); child.stdin.flush()\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        fd = os.pidfd_open(pid)
        with contextlib.closing(os.fdopen(fd)):
            parent.kill()
            ready, _, _ = select.select([fd], [], [], WAIT_S)
            assert ready, "the worker outlived its parent"


def test_throttle_sleeps_for_the_bytes_and_saves_no_time_up() -> None:
    now, slept = [0.0], []

    def sleep_s(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    throttle = ReadThrottle(100.0, now_s=lambda: now[0], sleep_s=sleep_s)
    throttle.spent(50)
    throttle.spent(100)
    now[0] += 10
    throttle.spent(200)
    assert slept == [0.5, 1.0, 2.0]
    unlimited = ReadThrottle(None, now_s=lambda: now[0], sleep_s=sleep_s)
    unlimited.spent(10**12)
    assert len(slept) == 3
