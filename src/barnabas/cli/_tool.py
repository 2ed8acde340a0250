"""Options of the commands that typer still parses."""

from collections.abc import Collection
from typing import Annotated

import typer

from barnabas.base.names import did_you_mean
from barnabas.cli._command import UsageError, warn

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


def warn_without_effect(option: str, value: object | None, why: str) -> None:
    """Warn of an option of Kafka's tool that scripts pass but that cannot change anything here."""
    if value is not None:
        warn(f"{option} has no effect: {why}")


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
