"""`barnabas broker`: one broker in the foreground."""

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

_NO_FILE = "a properties file is needed: barnabas broker FILE.properties, or --environment"


def command(
    properties: Annotated[
        Path | None, typer.Argument(metavar="FILE.properties", help="Kafka's server.properties.")
    ] = None,
    environment: Annotated[
        bool,
        typer.Option(
            "--environment",
            help="Read settings from KAFKA_… variables, too, as the image apache/kafka does: KAFKA_LOG_DIRS is log.dirs. "
            "They win over the file's, and the file may be left out.",
        ),
    ] = False,
    override: Annotated[
        list[str] | None, typer.Option("--override", metavar="K=V", help="A setting that wins over the file's.")
    ] = None,
) -> None:
    """Run one broker.

    Prints `ready broker=ID …` when clients can connect. SIGTERM or Ctrl-C stops it cleanly.
    """
    from barnabas.cli._command import UsageError

    if properties is None and not environment:
        raise UsageError(_NO_FILE)
    _run(str(properties) if properties else None, override or [], with_environment=environment)


def main(arguments: list[str]) -> None:
    """Run without typer: `[FILE] [--environment] [--override k=v]…`."""
    file, overrides, with_environment = None, [], False
    rest = iter(arguments)
    for argument in rest:
        if argument == "--override":
            overrides.append(next(rest, ""))
        elif argument.startswith("--override="):
            overrides.append(argument.removeprefix("--override="))
        elif argument == "--environment":
            with_environment = True
        elif argument.startswith("-") or file:
            sys.stderr.write(f"error: {argument!r} is not understood; see barnabas broker --help\n")
            sys.exit(2)
        else:
            file = argument
    if not file and not with_environment:
        sys.stderr.write(f"error: {_NO_FILE}\n")
        sys.exit(2)
    from barnabas.base.errors import BarnabasError

    try:
        _run(file, overrides, with_environment=with_environment)
    except BarnabasError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)


def _run(file: str | None, overrides: list[str], *, with_environment: bool) -> None:
    from barnabas.base.config import properties
    from barnabas.base.log_format import log_to
    from barnabas.broker.process import run_broker

    settings = {
        **properties.of_opentelemetry(os.environ),
        **properties.load(file, overrides, with_environment=with_environment),
    }
    log_to(sys.stderr, level=logging.INFO)
    code = run_broker(settings)
    if code:
        sys.exit(code)
