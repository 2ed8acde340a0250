"""Shared by the tools: options, a connection to the cluster, and ways to print.

If stdout is a file or a pipe, a tool prints what Kafka's tool prints, to the byte where scripts may depend on it. On a
terminal, tables get a frame. `--json` prints one JSON document.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import stat
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, TypeVar

import typer

from barnabas.base.names import did_you_mean
from barnabas.cli._command import UsageError, complain, printable
from barnabas.client import names
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import ClientConfig, client_config, load_properties

__all__ = [
    "Bootstrap",
    "CommandConfig",
    "Json",
    "UsageError",
    "check_action",
    "commas",
    "exactly_one",
    "matches",
    "options",
    "pairs",
    "parse_number",
    "run",
    "say",
    "say_fields",
    "say_json",
    "table",
    "write",
]

T = TypeVar("T")

_SETUP = "socket.connection.setup.timeout.ms"
#: Indent of the continuation lines of a folded row.
_FOLD = "    "

Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        metavar="HOST:PORT[,…]",
        envvar="BARNABAS_BOOTSTRAP_SERVER",
        help="REQUIRED: the brokers to connect to first.",
    ),
]
CommandConfig = Annotated[
    str | None,
    typer.Option("--command-config", metavar="FILE", help="Properties file with settings of the client."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def options(
    bootstrap: str | None,
    command_config: str | None = None,
    properties: Mapping[str, str] | None = None,
    *,
    known: Collection[str] = names.CONNECTION,
) -> ClientConfig:
    """Return the client's settings: the file's, overridden by `properties`, overridden by the command line.

    Settings without effect are reported on stderr, because a misspelt one may matter.
    """
    settings = (load_properties(command_config) if command_config else {}) | dict(properties or {})
    if bootstrap is None and "bootstrap.servers" not in settings:
        raise UsageError("--bootstrap-server must be specified, for example --bootstrap-server localhost:9092")
    for notice in names.notices(settings, known):
        warn(notice)
    # A person waits: report an unreachable broker after seconds.
    return client_config(bootstrap, {_SETUP: "5000"} | settings, client_id="barnabas-tool")


def warn(message: str) -> None:
    complain(f"warning: {message}")


def warn_without_effect(option: str, value: object | None, why: str) -> None:
    """Warn of an option of Kafka's tool that scripts pass but that cannot change anything here."""
    if value is not None:
        warn(f"{option} has no effect: {why}")


def warn_of_unknown(settings: Iterable[str], *, of_topic: bool) -> None:
    """Warn of settings of topics or brokers that look misspelt. The cluster decides, because it may be newer than this tool."""
    from barnabas.base.config.catalog import BROKER_SETTINGS, TOPIC_SETTINGS, broker_setting

    for name in settings:
        is_known = name in TOPIC_SETTINGS if of_topic else broker_setting(name) is not None
        meant = "" if is_known else did_you_mean(name, TOPIC_SETTINGS if of_topic else BROKER_SETTINGS)
        if meant:
            warn(f"{name} is not a known setting of a {'topic' if of_topic else 'broker'}{meant}")


def run(config: ClientConfig, body: Callable[[AsyncClient], Awaitable[T]], *, fast: bool = False) -> T:
    """Run `body` with a client, and close the client. `fast`: on uvloop, for tools that move data."""

    is_terminated = has_lost_reader = False

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None

        def end() -> None:
            nonlocal is_terminated
            is_terminated = True
            task.cancel()

        def lose_reader() -> None:
            nonlocal has_lost_reader
            has_lost_reader = True
            asyncio.get_running_loop().remove_reader(_stdout_pipe())
            task.cancel()

        if (pipe := _stdout_pipe()) >= 0:
            # `| head -1`: a consumer that waits for records would never write again, so it would not notice the closed pipe.
            asyncio.get_running_loop().add_reader(pipe, lose_reader)
        # Like Ctrl-C: the member leaves its group, and typed records are sent.
        if threading.current_thread() is threading.main_thread():  # Python handles signals only there
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
        async with AsyncClient(config) as cluster:
            cluster.tell = warn
            return await body(cluster)

    try:
        if fast:
            import uvloop

            return uvloop.run(main())
        return asyncio.run(main())
    except asyncio.CancelledError:
        if is_terminated:
            raise SystemExit(128 + signal.SIGTERM) from None
        if has_lost_reader:
            raise BrokenPipeError from None
        raise
    finally:
        if not has_lost_reader:
            sys.stdout.flush()


def _stdout_pipe() -> int:
    """Return the descriptor of standard output if it is a pipe, whose reader may close it; else -1."""
    try:
        descriptor = sys.stdout.fileno()
        return descriptor if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else -1
    except (OSError, ValueError):
        return -1


def say(line: str = "") -> None:
    write(line + "\n")


def write(text: str) -> None:
    """To standard output: as it is in a file or a pipe, without control characters on a terminal."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)


def say_fields(line: str) -> None:
    """Print tab-separated fields as Kafka does.

    A line that does not fit the terminal is folded between fields, and fields without a value are left out.
    """
    columns = shutil.get_terminal_size().columns
    if not sys.stdout.isatty() or len(line.expandtabs()) <= columns:
        say(line)
        return
    indent = "  " * (len(line) - len(line.lstrip("\t")))
    folded = indent
    for field in (field.strip() for field in line.split("\t")):
        if not field or field.endswith(":"):
            continue
        if folded.strip() and len(folded) + len(field) > columns:
            say(folded.rstrip())
            folded = indent + _FOLD
        folded += field + "  "
    say(folded.rstrip())


def say_json(document: object) -> None:
    say(json.dumps(document, indent=2, ensure_ascii=False))


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], plain: Callable[[], None] | None = None) -> None:
    """On a terminal, print a table that fits its width: framed if there is room, else unframed and folded between columns.
    Elsewhere call `plain()`, or print columns as wide as their widest cell. No cell is ever cut."""
    if plain is not None and not sys.stdout.isatty():
        plain()
        return
    rows = [tuple(_cell(text) for text in row) for row in rows]
    if not sys.stdout.isatty():
        widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
        for row in (tuple(headers), *rows):
            say(" ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    from rich.cells import cell_len

    columns = shutil.get_terminal_size().columns
    widths = [max(map(cell_len, column)) for column in zip(headers, *rows, strict=True)]
    # Each column needs a blank on both sides and a line; the last column has one more line.
    if 1 + sum(3 + width for width in widths) > columns:
        for row in (tuple(headers), *rows):
            padded = [cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
            for line in _folded(padded, widths, columns):
                say(line)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    framed = Table(header_style="bold")
    for header in headers:
        framed.add_column(header, no_wrap=True)
    for row in rows:
        framed.add_row(*(Text(cell) for cell in row))
    Console(width=columns).print(framed)


def _cell(text: str) -> str:
    """Format a cell on one line: a line end in a name would look like another row."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def _folded(cells: Sequence[str], widths: Sequence[int], columns: int) -> list[str]:
    """Fold one row. All rows fold at the same columns, so that the columns stay aligned."""
    lines, used = [""], 0
    for cell, width in zip(cells, widths, strict=True):
        if used and used + 1 + width > columns:
            lines.append(_FOLD)
            used = len(_FOLD)
        elif used:
            lines[-1] += " "
            used += 1
        lines[-1] += cell
        used += width
    return [line.rstrip() for line in lines]


def check_action(action: str, known: Collection[str]) -> None:
    if action not in known:
        raise UsageError(f"{action!r} is not an action{did_you_mean(action, known)}; use one of {', '.join(known)}")


def exactly_one(what: str, **given: bool) -> str:
    """Return the name of the single given action."""
    chosen = [name for name, wanted in given.items() if wanted]
    if len(chosen) != 1:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"{what} must include exactly one action: {names}")
    return chosen[0]


def matches(pattern: str, name: str) -> bool:
    """Match Kafka's include list: a regular expression for whole names, in which a comma means "or"."""
    expression = re.sub(r"^[\"']+|[\"']+$", "", pattern.strip().replace(",", "|").replace(" ", ""))
    try:
        return re.fullmatch(expression, name) is not None
    except re.error as error:
        raise UsageError(f"{expression} is an invalid regex: {error}") from None


def pairs(items: Iterable[str], *, option: str) -> dict[str, str]:
    """Parse `key=value` arguments."""
    found: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{option} {item}: it must be in the format key=value")
        found[key.strip()] = value.strip()
    return found


def commas(items: Iterable[object]) -> str:
    return ",".join(map(str, items))


def parse_number(text: str, *, what: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{what}: {text!r} is not a number") from None
