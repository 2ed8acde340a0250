"""One run of one seed, in an interpreter that does nothing else (`worker`)."""

import asyncio
import gc
import io
import linecache
import logging
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from barnabas.testing.simulation import patches
from barnabas.testing.simulation.app_world import World
from barnabas.testing.simulation.fault_plan import Faults, plan
from barnabas.testing.simulation.guests import Guest, current
from barnabas.testing.simulation.world import Violation
from barnabas.testing.simulation.world import World as Engine

#: A test may take so long beyond its `virtual_minutes`, for `calm` and for what it reads in the end.
MORE_S = 900.0
_SLICE_S = 0.25
_LOCALS_MAX = 12
_VALUE_CHARACTERS = 160

Main = Callable[..., Coroutine[Any, Any, Any]]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What all seeds of a test have in common."""

    brokers: int = 3
    faults: str | tuple[str, ...] = "all"
    virtual_minutes: float = 1.0
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class Report:
    """The outcome of one run."""

    seed: int
    #: The kind of the failure: the name of an exception, or what of the simulation was broken; empty if all is well.
    broken: str = ""
    message: str = ""
    trace: str = ""
    result: Any = None
    #: (virtual second, subject, what)
    story: list[tuple[float, str, str]] = field(default_factory=list)
    #: Number of a fault -> what it did.
    faults: dict[int, str] = field(default_factory=dict)
    #: Numbers of faults that were left out.
    skipped: tuple[int, ...] = ()
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    digest: str = ""


class _Notes(logging.Handler):
    def __init__(self, engine: Engine) -> None:
        super().__init__(logging.INFO)
        self._engine = engine

    def emit(self, record: logging.LogRecord) -> None:
        subject = getattr(asyncio._get_running_loop(), "name", "") or getattr(current(), "name", "") or "world"
        try:
            text = record.getMessage()
        except (TypeError, ValueError):
            text = str(record.msg)
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]!r}"
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        self._engine.note(subject, f"{level}{text}")


class _Printed(io.TextIOBase):
    """What applications print becomes part of the story."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._begun = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        guest = current()
        for line in lines:
            self._engine.note("world" if guest is None else guest.name, f"prints: {line}")
        return len(text)


class Run:
    """A world of one seed, with the test in it."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        main: Main,
        options: Mapping[str, Any],
        *,
        skipped: Sequence[int] = (),
    ) -> None:
        self._began_s = time.process_time()
        self._scenario = scenario
        self.engine = Engine(seed)
        patches.begin(self.engine)
        self.world = World(
            self.engine,
            brokers=scenario.brokers,
            virtual_minutes=scenario.virtual_minutes,
            config=scenario.config,
        )
        planned = plan(seed, scenario.faults, scenario.virtual_minutes * 60)
        self.faults = Faults(self.world, planned, frozenset(skipped))
        self.world._on_calm.append(self.faults.end)
        self._skipped = tuple(skipped)
        self.test = Guest(self.engine, self.world.network, "test", main, (self.world,), dict(options), restart=False)

    def run(self) -> Report:
        notes = _Notes(self.engine)
        root = logging.getLogger()
        root.addHandler(notes)
        if root.level > logging.INFO:
            root.setLevel(logging.INFO)
        stdout, sys.stdout = sys.stdout, _Printed(self.engine)
        report = Report(seed=self.engine.seed, skipped=self._skipped)
        try:
            self._live(report)
        finally:
            sys.stdout = stdout
            root.removeHandler(notes)
        engine = self.engine
        report.story = [(when_s - engine.began_s, subject, what) for when_s, subject, what in engine.story]
        report.faults = dict(self.faults.happened)
        report.virtual_s = engine.now_s - engine.began_s
        report.cpu_s = time.process_time() - self._began_s
        report.digest = engine.digest()
        return report

    def _live(self, report: Report) -> None:
        engine, test = self.engine, self.test
        self.world.servers.start()
        self.faults.begin()
        test.start()
        end_s = engine.now_s + self._scenario.virtual_minutes * 60 + MORE_S
        try:
            while test.loop is not None and engine.now_s < end_s:
                engine.run_until(engine.now_s + _SLICE_S)
        except Violation as broken:
            report.broken, report.message = broken.name, broken.detail
            cause = engine.failure
            report.trace = "" if cause is None else _trace(cause)
            return
        if test.crashes:
            error = test.crashes[-1][1]
            report.broken, report.message = type(error).__name__, str(error)
            report.trace = _trace(error)
        elif not test.has_returned:
            report.broken = "the test does not end"
            report.message = (
                f"after {engine.now_s - engine.began_s:.0f} virtual seconds it still waits:\n{_where(test)}"
            )
        else:
            report.result = test.result


def _where(guest: Guest) -> str:
    """Say where the tasks of a process wait."""
    if guest.loop is None:
        return "it does not run"
    text = io.StringIO()
    for task in guest.loop.tasks:
        if not task.done():
            task.print_stack(limit=4, file=text)
    return text.getvalue()


def _trace(error: BaseException) -> str:
    """Return the traceback without what the simulation adds, and the variables of the last frame of the user."""
    lines = traceback.format_exception(error)
    frame = None
    for each, _ in traceback.walk_tb(error.__traceback__):
        if "/barnabas/testing/simulation/" not in each.f_code.co_filename:
            frame = each
    if frame is None or not isinstance(error, AssertionError):
        return "".join(lines)
    linecache.checkcache(frame.f_code.co_filename)
    values = [f"    {name} = {_short(value)}" for name, value in frame.f_locals.items() if not name.startswith("__")]
    return "".join(lines) + "with\n" + "\n".join(values[:_LOCALS_MAX]) + "\n"


def _short(value: object) -> str:
    try:
        text = repr(value)
    except Exception as failed:
        return f"<{type(value).__name__}, whose repr fails: {failed!r}>"
    return text if len(text) <= _VALUE_CHARACTERS else f"{text[:_VALUE_CHARACTERS]}… ({len(text)} characters)"


def run_here(
    scenario: Scenario, seed: int, main: Main, options: Mapping[str, Any], *, skipped: Sequence[int] = ()
) -> Report:
    """Run one seed in this process, which must not do anything else afterwards."""
    gc.disable()
    return Run(scenario, seed, main, options, skipped=skipped).run()
