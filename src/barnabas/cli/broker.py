"""`barnabas broker`: one broker in the foreground."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer


def command(
    properties: Annotated[Path, typer.Argument(metavar="FILE.properties", help="Kafka's server.properties.")],
    override: Annotated[
        list[str] | None, typer.Option("--override", metavar="K=V", help="A setting that wins over the file's.")
    ] = None,
) -> None:
    """Run one broker.

    Prints `ready broker=ID …` when clients can connect. SIGTERM or Ctrl-C stops it cleanly.
    """
    _run(str(properties), override or [])


def main(arguments: list[str]) -> None:
    """The same without typer: `FILE [--override k=v]…`."""
    file, overrides = "", []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--override":
            overrides.append(next(rest, ""))
        elif argument.startswith("--override="):
            overrides.append(argument.removeprefix("--override="))
        elif argument.startswith("-") or file:
            sys.stderr.write(f"error: {argument!r} is not understood; see barnabas broker --help\n")
            sys.exit(2)
        else:
            file = argument
    if not file:
        sys.stderr.write("error: a properties file is needed: barnabas broker FILE.properties\n")
        sys.exit(2)
    from barnabas.core.errors import BarnabasError

    try:
        _run(file, overrides)
    except BarnabasError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)


def _run(file: str, overrides: list[str]) -> None:
    from barnabas.core.config import properties
    from barnabas.core.log_format import log_to
    from barnabas.process import run_broker

    settings = properties.load(file, overrides)
    log_to(sys.stderr, level=logging.INFO)
    code = run_broker(settings)
    if code:
        sys.exit(code)
