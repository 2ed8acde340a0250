"""Runs seeds from a test or a script: `test`, `run`, `hunt`, and the fewest faults with which a seed still fails."""

import atexit
import functools
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from barnabas.base.host import kernel
from barnabas.testing.simulation.fault_plan import kinds_of
from barnabas.testing.simulation.kept_seeds import KeptSeeds
from barnabas.testing.simulation.running import Report, Scenario
from barnabas.testing.simulation.telling import tell
from barnabas.testing.simulation.worker import Function, Job, read, write

#: Runs that shortening a failing seed may take.
SHRINK_RUNS_MAX = 40
DEFAULT_SEEDS = 100


class Settings:
    """What the command line says; the pytest plugin sets it."""

    #: The only seed to run.
    seed: int | None = None
    #: How many seeds each test runs instead of its own number.
    seeds: int | None = None
    #: How many at a time; None: one for each core.
    jobs: int | None = None
    #: Where failing seeds and their stories are kept; None: nowhere.
    folder: Path | None = None
    shrinks: bool = True


settings = Settings()


class SimulationFailed(AssertionError):
    """A seed has failed. `report` is its run, with the fewest faults that were found to be enough."""

    def __init__(self, text: str, report: Report) -> None:
        super().__init__(text)
        self.report = report


class _Interpreter:
    """The interpreter that simulates, started with the first seed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def _start(self) -> None:
        there_read, here_write = os.pipe()
        here_read, there_write = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "barnabas.testing.simulation.worker", str(there_read), str(there_write)],
            pass_fds=(there_read, there_write),
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
        os.close(there_read)
        os.close(there_write)
        self._out = os.fdopen(here_write, "wb")
        self._in = os.fdopen(here_read, "rb")
        self._owner = os.getpid()
        write(self._out, sys.path)

    def run(self, job: Job) -> Iterator[Report]:
        if self._process is None or self._process.poll() is not None or self._owner != os.getpid():
            self._start()
        is_complete = False
        try:
            write(self._out, job)
            refused = read(self._in)
            if refused is None:
                raise RuntimeError("the interpreter of the simulation ended: its error is on stderr")
            if refused:
                is_complete = True
                raise ImportError(f"the simulation cannot load {job.function.file}:\n{refused}")
            while True:
                report = read(self._in)
                if report is None:
                    is_complete = True
                    return
                yield report
        finally:
            if not is_complete:
                self.close()

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            self._out.close()
            self._in.close()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


_interpreter = _Interpreter()
atexit.register(_interpreter.close)


def _place_of(function: Callable[..., Any]) -> Function:
    function = getattr(function, "simulated", function)
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"a simulated test is a coroutine function: async def, not {function!r}")
    name = function.__qualname__
    if "<locals>" in name:
        raise TypeError(
            f"{name} is defined inside a function: put it at the top level of its module, where another interpreter finds it"
        )
    module = sys.modules[function.__module__]
    file = getattr(module, "__file__", None)
    if file is None:
        raise TypeError(f"{name} is in a module without a file: put it into one")
    return Function(module=function.__module__, file=str(Path(file).resolve()), name=name)


def _scenario(
    *, brokers: int, faults: "str | Sequence[str]", virtual_minutes: float, config: Mapping[str, Any] | None
) -> Scenario:
    kinds_of(faults)
    if brokers < 1:
        raise ValueError(f"a world has at least one broker, not {brokers}")
    if virtual_minutes <= 0:
        raise ValueError(f"virtual_minutes={virtual_minutes} is not positive")
    return Scenario(
        brokers=brokers,
        faults=faults if isinstance(faults, str) else tuple(faults),
        virtual_minutes=virtual_minutes,
        config=dict(config or {}),
    )


def _jobs() -> int:
    if settings.jobs is not None:
        return settings.jobs
    if "PYTEST_XDIST_WORKER" in os.environ:
        return 1
    return kernel.processors()


def hunt(
    function: Callable[..., Any],
    seeds: Iterable[int],
    *,
    brokers: int = 3,
    faults: "str | Sequence[str]" = "all",
    virtual_minutes: float = 1.0,
    config: Mapping[str, Any] | None = None,
    stops: bool = True,
    skipped: Sequence[int] = (),
    **options: Any,
) -> list[Report]:
    """Run these seeds and return their reports in the order of the seeds. `stops`: end after the first that fails."""
    scenario = _scenario(brokers=brokers, faults=faults, virtual_minutes=virtual_minutes, config=config)
    job = Job(
        function=_place_of(function),
        scenario=scenario,
        options=options,
        seeds=list(seeds),
        skipped=tuple(skipped),
        jobs=_jobs(),
        stops=stops,
        cpu_max_s=60 + 60 * virtual_minutes,
    )
    return sorted(_interpreter.run(job), key=lambda report: report.seed)


def run(
    function: Callable[..., Any],
    *,
    seed: int = 0,
    brokers: int = 3,
    faults: "str | Sequence[str]" = "all",
    virtual_minutes: float = 1.0,
    config: Mapping[str, Any] | None = None,
    skipped: Sequence[int] = (),
    **options: Any,
) -> Report:
    """Run one seed of `await function(world, **options)` and return its report, whether it failed or not."""
    [report] = hunt(
        function,
        [seed],
        brokers=brokers,
        faults=faults,
        virtual_minutes=virtual_minutes,
        config=config,
        skipped=skipped,
        **options,
    )
    return report


def shrink(function: Callable[..., Any], report: Report, **how: Any) -> Report:
    """Find the fewest faults with which the seed still fails in the same way: leave out halves, then quarters, then each."""
    best, budget = report, SHRINK_RUNS_MAX
    left = sorted(best.faults)
    size = len(left)
    while size >= 1 and left and budget > 0:
        at = 0
        while at < len(left) and budget > 0:
            without = left[at : at + size]
            budget -= 1
            attempt = run(function, seed=report.seed, skipped=(*best.skipped, *without), **how)
            if attempt.broken == report.broken:
                best = attempt
                left = [each for each in left if each not in without and each in attempt.faults]
            else:
                at += size
        size //= 2
    return best


def test(
    *,
    seeds: "int | Iterable[int]" = DEFAULT_SEEDS,
    brokers: int = 3,
    faults: "str | Sequence[str]" = "all",
    virtual_minutes: float = 1.0,
    config: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Make a test of `async def test_…(world)` that runs in a simulated world for each seed, until one fails.

    `seeds`: how many, from 0, or which. `faults`: a profile (calm, rebalances, leaders, network, disks, clocks, all), or
    several. `virtual_minutes`: how long faults last. `config`: settings of all brokers.
    """
    how: dict[str, Any] = {"brokers": brokers, "faults": faults, "virtual_minutes": virtual_minutes, "config": config}
    _scenario(**how)
    wanted = range(seeds) if isinstance(seeds, int) else list(seeds)

    def decorate(function: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(function)
        def simulated_test(**options: Any) -> None:
            _run_test(function, wanted, how, options)

        _, *others = inspect.signature(function).parameters.values()
        vars(simulated_test)["__signature__"] = inspect.Signature(others)
        del simulated_test.__wrapped__
        vars(simulated_test)["simulated"] = function
        return simulated_test

    return decorate


test.__test__ = False  # type: ignore[attr-defined]  # pytest, this is no test


def _run_test(
    function: Callable[..., Any], wanted: Sequence[int], how: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    place = _place_of(function)
    kept = KeptSeeds(settings.folder, f"{Path(place.file).stem}.{place.name}")
    if settings.seed is not None:
        seeds = [settings.seed]
    else:
        many = wanted if settings.seeds is None else range(settings.seeds)
        seeds = list(dict.fromkeys([*kept.seeds(), *many]))
    reports = hunt(function, seeds, **how, **options)
    broken = [report for report in reports if report.broken]
    if not broken:
        return
    first = min(broken, key=lambda report: seeds.index(report.seed))
    kept.add(first.seed)
    shortest = shrink(function, first, **how, **options) if settings.shrinks else first
    story = kept.keep_story(shortest)
    raise SimulationFailed(tell(place, first, shortest, runs=len(reports), story=story), shortest) from None
