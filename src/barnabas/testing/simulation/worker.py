"""An interpreter that does nothing but simulate: `python -m barnabas.testing.simulation.worker IN OUT`.

The order of sets of strings depends on PYTHONHASHSEED, and what has run before in an interpreter leaves traces. So seeds do
not run in the interpreter of the tests: this one has a fixed hash seed, and each seed runs in a process forked from it after
the application's modules are loaded. The same seed is then the same run, whatever ran before.

Jobs and reports are pickles with their length before them. The end of the input ends everything.
"""

import importlib
import importlib.util
import os
import pickle
import select
import signal
import struct
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, BinaryIO

_LENGTH = struct.Struct("!q")
#: The name under which a script is loaded, so that its `if __name__ == "__main__"` is not true.
SCRIPT = "__simulated_main__"


class RanTooLong(BaseException):
    """The run has used more CPU time than any simulation should: something spins."""


@dataclass(frozen=True, kw_only=True)
class Function:
    """A function by its place, because functions do not travel."""

    module: str
    file: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Job:
    function: Function
    scenario: Any
    options: dict[str, Any] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=list)
    skipped: tuple[int, ...] = ()
    #: How many at a time.
    jobs: int = 1
    #: End after the first seed that fails, and those that run beside it.
    stops: bool = True
    cpu_max_s: float = 120.0


def write(out: BinaryIO, what: object) -> None:
    data = pickle.dumps(what)
    out.write(_LENGTH.pack(len(data)) + data)
    out.flush()


def read(source: BinaryIO) -> Any:
    """Return the next object; None at the end."""
    head = source.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    return pickle.loads(source.read(_LENGTH.unpack(head)[0]))


# -- the application's modules ----------------------------------------------------------------------------------------


def _module(place: Function) -> ModuleType:
    name = SCRIPT if place.module == "__main__" else place.module
    found = sys.modules.get(name)
    if found is None and name != SCRIPT:
        try:
            found = importlib.import_module(name)
        except ImportError as error:
            if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
                raise
    if found is not None and _is_at(found, place.file):
        return found
    spec = importlib.util.spec_from_file_location(name, place.file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{place.file} cannot be loaded as a module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _is_at(module: ModuleType, file: str) -> bool:
    at = getattr(module, "__file__", None)
    return at is not None and Path(at).samefile(file)


def _function(place: Function) -> Any:
    found: Any = _module(place)
    for part in place.name.split("."):
        found = getattr(found, part)
    return getattr(found, "simulated", found)


# -- seeds ------------------------------------------------------------------------------------------------------------


def _too_long(signum: int, frame: FrameType | None) -> None:
    raise RanTooLong("the run has used too much CPU time: something spins without waiting")


def _child(job: Job, main: Any, seed: int, write_fd: int) -> None:
    """Run a seed and write its report. This process ends here."""
    from barnabas.testing.simulation.compiled import compiled
    from barnabas.testing.simulation.running import Report, run_here

    signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, job.cpu_max_s)
    try:
        report = run_here(job.scenario, seed, main, job.options, skipped=job.skipped)
        data = pickle.dumps((report, compiled()))
    except BaseException as error:
        signal.setitimer(signal.ITIMER_PROF, 0)
        report = Report(seed=seed, broken=type(error).__name__, message=str(error), trace=traceback.format_exc())
        data = pickle.dumps((report, []))
    with os.fdopen(write_fd, "wb") as out:
        out.write(data)


class _Seeds:
    """Runs the seeds of a job, several at a time."""

    def __init__(self, job: Job, main: Any, out: BinaryIO, parent_fd: int) -> None:
        self._job = job
        self._main = main
        self._out = out
        self._parent_fd = parent_fd
        self._is_compiled = False
        #: Descriptor of the report -> seed, process id, bytes that have arrived, time of the start.
        self._running: dict[int, tuple[int, int, bytearray, float]] = {}

    def run(self) -> None:
        waiting = list(reversed(self._job.seeds))
        while waiting or self._running:
            while waiting and len(self._running) < self._job.jobs:
                self._start(waiting.pop())
            if self._turn() and self._job.stops:
                waiting.clear()

    def _start(self, seed: int) -> None:
        read_fd, write_fd = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(read_fd)
                _child(self._job, self._main, seed, write_fd)
            finally:
                os._exit(0)
        os.close(write_fd)
        self._running[read_fd] = (seed, child, bytearray(), time.monotonic())

    def _turn(self) -> bool:
        """Wait for something; whether a seed has failed."""
        ready, _, _ = select.select([*self._running, self._parent_fd], [], [], 1.0)
        if self._parent_fd in ready:
            self._end_all()  # the parent speaks only when nothing runs: it is gone
            os._exit(1)
        has_failed = False
        for fd in list(self._running):
            _, child, arrived, began_s = self._running[fd]
            if fd in ready:
                piece = os.read(fd, 1 << 20)
                arrived += piece
                if not piece:
                    has_failed |= self._ended(fd)
            elif time.monotonic() - began_s > 4 * self._job.cpu_max_s:
                os.kill(child, signal.SIGKILL)
        return has_failed

    def _ended(self, fd: int) -> bool:
        from barnabas.testing.simulation.compiled import compile_all
        from barnabas.testing.simulation.running import Report

        seed, child, arrived, _ = self._running.pop(fd)
        os.close(fd)
        _, status = os.waitpid(child, 0)
        if arrived:
            report, messages = pickle.loads(arrived)
            if not self._is_compiled:
                self._is_compiled = True
                compile_all(messages)
        else:
            report = Report(
                seed=seed,
                broken="the process of the run died",
                message=f"status {status}: it waited for something outside of the simulation, or was killed",
            )
        write(self._out, report)
        return bool(report.broken)

    def _end_all(self) -> None:
        for _, child, _, _ in self._running.values():
            os.kill(child, signal.SIGKILL)


def main() -> None:
    from barnabas.testing.simulation import patches, refusals

    in_fd, out_fd = int(sys.argv[1]), int(sys.argv[2])
    with os.fdopen(in_fd, "rb", buffering=0) as source, os.fdopen(out_fd, "wb") as out:
        sys.path[:] = read(source)
        patches.install()
        refusals.install()
        while True:
            job = read(source)
            if job is None:
                return
            try:
                function = _function(job.function)
            except BaseException:
                write(out, traceback.format_exc())
                continue
            refusals.refuse_librdkafka()
            write(out, "")
            import barnabas.testing.simulation.running  # noqa: F401

            _Seeds(job, function, out, in_fd).run()
            write(out, None)


if __name__ == "__main__":
    main()
