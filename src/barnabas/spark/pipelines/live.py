"""The live view of a running pipeline, and the same table for `status`."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from rich.box import HEAVY_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from barnabas.spark.pipelines.events import FlowStatus, Status

HEADERS: Final = ("flow", "state", "batch", "rows", "rows/s", "batch time", "lag", "kept", "watermark")
_ALWAYS: Final = ("flow", "state")
#: Columns that a narrow terminal does without; `pipeline status --json` has all.
_FIRST_OUT: Final = ("kept", "watermark", "batch time", "rows/s", "batch")
#: Fewest characters in a line of a flow's name.
_FLOW_MIN: Final = 12
EXPECTATION_HEADERS: Final = ("flow", "expectation", "action", "passed", "failed")
_COLOURS: Final = {"RUNNING": "green", "COMPLETED": "cyan", "FAILED": "red", "RETRYING": "yellow", "SKIPPED": "yellow"}


class View:
    """Shows a status whenever it changes. For terminals only: programs use --json, files get one line per event."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=False)

    def __enter__(self) -> "View":
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def show(self, status: Status) -> None:
        self._live.update(render(status, self._console.width))


def render(status: Status, width: int) -> RenderableType:
    heading = Text.assemble(
        (status.pipeline, "bold"),
        f" {status.mode} on {status.master}: ",
        (status.state, _COLOURS.get(status.state, "white")),
    )
    tables = [_flows(status, width)] if status.flows else []
    expected = expectation_rows(status)
    if expected:
        rows_expected = Table(header_style="bold", expand=False)
        for name in EXPECTATION_HEADERS:
            is_number = name in ("passed", "failed")
            rows_expected.add_column(name, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
        for *words, lost in expected:
            rows_expected.add_row(*words, Text(lost, "white" if lost == "0" else "yellow"))
        tables.append(rows_expected)
    failed = [Text(message, "red") for message in status.failures()]
    said = [Text(status.message)] if status.message else []
    return Group(heading, *tables, *failed, *said)


def _flows(status: Status, width: int) -> Table:
    """Show the columns that have something to show and that fit: no word is cut. A long name of a flow takes several lines."""
    known = rows(status)
    columns = {name: [row[place] for row in known] for place, name in enumerate(HEADERS)}
    sizes = {name: max(len(name), *map(len, cells)) for name, cells in columns.items()}
    shown = [name for name in HEADERS if name in _ALWAYS or any(columns[name])]

    def taken(room_each: int) -> int:
        return sum(sizes[name] + room_each for name in shown) - sizes["flow"] + min(sizes["flow"], _FLOW_MIN)

    is_framed = taken(3) < width  # a line and two blanks
    for name in _FIRST_OUT:
        if not is_framed and taken(2) > width and name in shown:
            shown.remove(name)
    table = Table(header_style="bold", expand=False, box=HEAVY_HEAD if is_framed else None, pad_edge=is_framed)
    for name in shown:
        left = name in ("flow", "state", "watermark")
        table.add_column(name, justify="left" if left else "right", no_wrap=name != "flow", overflow="fold")
    for cells_of in zip(*(columns[name] for name in shown), strict=True):
        table.add_row(cells_of[0], Text(cells_of[1], _COLOURS.get(cells_of[1], "white")), *cells_of[2:])
    return table


def rows(status: Status) -> list[Sequence[str]]:
    return [cells(name, flow) for name, flow in sorted(status.flows.items())]


def expectation_rows(status: Status) -> list[Sequence[str]]:
    """Return for each flow and expectation how many rows met it."""
    return [
        (name, expected, str(count["action"]), f"{count['passed']:,}", f"{count['failed']:,}")
        for name, flow in sorted(status.flows.items())
        for expected, count in sorted(flow.expectations.items())
    ]


def cells(name: str, flow: FlowStatus) -> Sequence[str]:
    progress = flow.progress
    if progress is None:
        return (name, flow.state, "", "", "", "", "", "", "")
    return (
        name,
        flow.state,
        str(progress.batch),
        f"{flow.rows_total:,}",
        f"{progress.rows_per_second:,.0f}",
        f"{progress.batch_ms:,} ms",
        "" if progress.lag is None else f"{progress.lag:,}",
        f"{progress.state_rows:,} / {_size(progress.state_bytes)}" if progress.state_rows else "",
        "" if progress.watermark is None else progress.watermark.replace("T", " ").removesuffix(".000Z"),
    )


def _size(size: float) -> str:
    for unit in ("B", "KB", "MB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GB"


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
