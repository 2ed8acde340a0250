"""`barnabas broker`: one broker in the foreground."""

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

    Prints `ready broker=ID listeners=NAME:PORT,…` when clients can connect. SIGTERM or Ctrl-C stops it cleanly.
    """
    from barnabas.cli._serve import broker
    from barnabas.core.config import properties as files
    from barnabas.runtime.parent import die_with_parent

    die_with_parent()
    settings = files.load(str(properties), override or ())

    def ready(facts: dict[str, object]) -> None:
        ports = facts["ports"]
        assert isinstance(ports, dict)
        listeners = ",".join(f"{name}:{port}" for name, port in ports.items())
        sys.stdout.write(f"ready broker={facts['broker_id']} listeners={listeners}\n")
        sys.stdout.flush()

    broker(settings, ready)
