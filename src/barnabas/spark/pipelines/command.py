"""The work behind `barnabas pipeline`; the command line itself is `barnabas.cli.pipeline`, which needs no Spark."""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from rich.console import Console

from barnabas.base.errors import BarnabasError
from barnabas.client.config import load_properties
from barnabas.spark.pipelines import connector, live, project, session, status
from barnabas.spark.pipelines.events import Event, FlowState, Progress, RunState, Status, as_json
from barnabas.spark.pipelines.failures import PipelineFailed
from barnabas.spark.pipelines.reporting import RunReporter
from barnabas.spark.pipelines.runner import Runner, RunOptions

#: The progress file is written at most this often, and at each change of a state.
_SAVE_S = 1.0


def init(folder: Path, *, bootstrap: str) -> None:
    for file in project.create_project(folder, bootstrap=bootstrap):
        sys.stdout.write(f"{file}\n")
    sys.stdout.write(f"Run it with: barnabas pipeline run {folder}\n")


def validate(place: Path, *, master: str) -> None:
    """Do a dry run: read and resolve everything, start and create nothing."""
    chosen = project.load_project(place)
    flows: list[str] = []

    def take(event: Event) -> None:
        if isinstance(event, FlowState) and event.flow not in flows:
            flows.append(event.flow)

    if sys.stderr.isatty():
        sys.stderr.write("starting Spark …\n")
    with session.start(chosen, master) as spark:
        Runner(chosen, spark, take).run(RunOptions(dry=True))
    names = ", ".join(str(file.relative_to(chosen.folder)) for file in chosen.files())
    sys.stdout.write(f"{chosen.name} is valid: {names}\n")


def run(place: Path, options: RunOptions, *, master: str, as_json_lines: bool, with_reports: bool = True) -> None:
    """Run the project. `with_reports`: the console shows its flows."""
    chosen = project.load_project(place)
    known = status.load(chosen.progress_file)
    if known is not None and status.is_running(known):
        raise PipelineFailed(f"{chosen.name} is running already, as process {known.pid}")
    mode = "continuous" if options.continuous else "once"
    began = live.now()
    first = Status(chosen.name, mode, master, _own_pid(), began, began, message="starting Spark …")
    if known is not None:
        first.remember(known)
    report = Report(first, chosen.progress_file, as_json_lines=as_json_lines)
    reporter = RunReporter(chosen.name, chosen.client_settings()) if with_reports else None

    def take(event: Event) -> None:
        report.take(event)
        if reporter is not None:
            reporter.take(event)

    def rests(flow: str) -> None:
        if reporter is not None:
            reporter.rests(flow)

    with report.shown(), _signals() as on_signal:
        try:
            with session.start(chosen, master) as spark:
                runner = Runner(chosen, spark, take, rests)
                on_signal(runner.stop if options.continuous else _interrupt)
                runner.run(options)
        except BarnabasError as error:
            # The reason of a flow's failure is shown with the flow.
            said = "Run has FAILED." if report.status.failures() else str(error)
            take(RunState(live.now(), "FAILED", said))
            raise
        except KeyboardInterrupt:
            take(RunState(live.now(), "STOPPED", "Run has been stopped."))
            raise
        finally:
            if reporter is not None:
                reporter.close()


class Report:
    """Keeps the status, saves it, and shows it: as a table on a terminal, else one line per event."""

    def __init__(self, first: Status, file: Path, *, as_json_lines: bool) -> None:
        self.status = first
        self._file = file
        self._as_json = as_json_lines
        self._view: live.View | None = None
        self._saved_s = 0.0

    @contextmanager
    def shown(self) -> Iterator[None]:
        status.save(self._file, self.status)
        console = Console()
        if self._as_json or not console.is_terminal:
            yield
            return
        with live.View(console) as self._view:
            self._view.show(self.status)
            yield

    def take(self, event: Event) -> None:
        self.status.take(event)
        self.status.groups = connector.groups()
        if not isinstance(event, Progress) or time.monotonic() - self._saved_s > _SAVE_S:
            status.save(self._file, self.status)
            self._saved_s = time.monotonic()
        if self._view is not None:
            self._view.show(self.status)
        else:
            sys.stdout.write((as_json(event) if self._as_json else _line(event)) + "\n")
            sys.stdout.flush()


def show_status(place: Path, *, as_json_document: bool, command_config: str | None = None) -> None:
    """Show the last status. `command_config`: settings for a secured cluster, instead of those of the spec."""
    chosen = project.load_project(place)
    known = status.load(chosen.progress_file)
    if known is None:
        raise project.ProjectError(f"{chosen.name} has not run yet; `barnabas pipeline run {place}` runs it")
    if known.state in ("STARTING", "RUNNING") and not status.is_running(known):
        known.state, known.message = "KILLED", f"process {known.pid} is gone; a run goes on from the checkpoints"
    settings = load_properties(command_config) if command_config else chosen.client_settings()
    lags = [asyncio.run(status.group_lag(bootstrap, group, settings)) for bootstrap, group in known.groups if group]
    if as_json_document:
        document = known.to_json() | {"groups": [asdict(each) for each in lags]}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return
    console = Console()
    if console.is_terminal:
        console.print(live.render(known, console.width))
    else:
        sys.stdout.write(f"{known.pipeline} {known.mode} on {known.master}: {known.state} {known.updated}\n")
        for row in (live.HEADERS, *live.rows(known)):
            sys.stdout.write("\t".join(row) + "\n")
        expected = live.expectation_rows(known)
        for row in (live.EXPECTATION_HEADERS, *expected) if expected else ():
            sys.stdout.write("\t".join(row) + "\n")
    for message in (*known.failures(), known.message):
        if message and not console.is_terminal:
            sys.stdout.write(message + "\n")
    for lag in lags:
        behind = f"{lag.lag:,} behind" if lag.lag is not None else lag.error
        sys.stdout.write(f"consumer group {lag.group} at {lag.bootstrap}: {behind}\n")


def _line(event: Event) -> str:
    if not isinstance(event, Progress):
        return f"{event.at} {event.message}"
    lag = "" if event.lag is None else f", lag {event.lag:,}"
    speed = f"{event.rows_per_second:,.0f} rows/s"
    again = f", {event.repeated_rows:,} rows came again and were not written twice" if event.repeated_rows else ""
    return f"{event.at} Flow {event.flow} batch {event.batch}: {event.rows:,} rows in {event.batch_ms} ms, {speed}{lag}{again}"


def _own_pid() -> int:
    import os

    return os.getpid()


def _interrupt() -> None:
    raise KeyboardInterrupt


@contextmanager
def _signals() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Let Ctrl-C and SIGTERM call the action that was set last; a second signal does not wait for it."""
    action: list[Callable[[], None]] = [_interrupt]

    def handle(number: int, frame: FrameType | None) -> None:
        for each, before in previous.items():
            signal.signal(each, signal.default_int_handler if each == signal.SIGINT else before)
        action[0]()

    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in previous:
        signal.signal(number, handle)

    def set_action(chosen: Callable[[], None]) -> None:
        action[0] = chosen
        for number in previous:  # set it again: Spark takes SIGINT for itself when it starts
            signal.signal(number, handle)

    try:
        yield set_action
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
