"""`barnabas snapshot`: save and restore the state of a cluster of `barnabas up`."""

import time
from typing import Annotated, Any

import typer

from barnabas.cli._command import UsageError
from barnabas.cli._words import size_text
from barnabas.cli.running import the_cluster
from barnabas.cli.status import Data

_ACTIONS = ("save", "list", "restore", "delete")


def command(
    action: Annotated[str, typer.Argument(metavar="save|list|restore|delete", help="What to do.")],
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of the snapshot; `list` needs none.")] = None,
    data: Data = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Save a local cluster under a name, and bring it back later.

    A snapshot has records, committed offsets, topics, settings, users, ACLs, transactions and schemas. The cluster stands still
    while it is saved. `restore` starts it again on its ports, and its clients reconnect. Later records are gone.
    Snapshots are in the cluster's folder: those of a temporary cluster end with it, those of `up --data DIR` stay.

    Tiered topics and links are refused: what they keep elsewhere would not go back.

    Examples:
      barnabas snapshot save stocked
      barnabas snapshot restore stocked
      barnabas snapshot list
    """
    if action not in _ACTIONS:
        raise UsageError(f"{action!r} is not valid: use {', '.join(_ACTIONS[:-1])} or {_ACTIONS[-1]}")
    if (name is None) != (action == "list"):
        raise UsageError("`list` takes no name" if action == "list" else f"`{action}` needs the name of a snapshot")
    answer = the_cluster(data).ask(do="snapshot", action=action, name=name)
    if json:
        import json as encoder

        typer.echo(encoder.dumps(answer))
        return
    match action:
        case "save":
            typer.echo(
                f"saved {name}: {size_text(answer['size_bytes'])}; the cluster stood still for {answer['still_s']:.2f} s"
            )
        case "restore":
            typer.echo(f"restored {name} in {answer['seconds']:.2f} s")
        case "delete":
            typer.echo(f"deleted {name}")
        case "list":
            typer.echo("\n".join(_rows(answer)) or "no snapshots; `barnabas snapshot save NAME` makes one")


def _rows(snapshots: list[dict[str, Any]]) -> list[str]:
    width = max((len(each["name"]) for each in snapshots), default=0)
    return [
        f"{each['name']:{width}}  {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(each['saved_s']))}  "
        f"{size_text(each['size_bytes']):>9}"
        for each in snapshots
    ]
