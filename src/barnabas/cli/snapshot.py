"""`barnabas snapshot`: save and restore the state of a cluster of `barnabas up`."""

import time
from pathlib import Path
from typing import Any

from barnabas.cli._output import say
from barnabas.cli._words import size_text
from barnabas.cli.running import the_cluster
from barnabas.cli.status import DATA
from barnabas.cli.tool import JSON, Argument, Tool

TOOL = Tool(
    note="See [below](#a-cluster-in-the-background).",
    about="""A snapshot has records, committed offsets, topics, settings, users, ACLs, transactions and schemas. The cluster
    stands still while it is saved. Snapshots are in the cluster's folder: those of a temporary cluster end with it, those of
    `up --data DIR` stay.

    Tiered topics and links are refused: what they keep elsewhere would not go back.""",
    arguments=(Argument("name", "Name of the snapshot.", what="the name of a snapshot"),),
    options=(DATA, JSON),
    examples=("barnabas snapshot save stocked", "barnabas snapshot restore stocked", "barnabas snapshot list"),
)


@TOOL.action("save", "Save the cluster under a name.", needs=("name",))
def _save(name: str, data: Path | None, json: bool) -> None:
    saved = _ask("save", name, data, json)
    if not json:
        size, still_s = size_text(saved["size_bytes"]), saved["still_s"]
        say(f"saved {name}: {size}; the cluster stood still for {still_s:.2f} s")


@TOOL.action("list", "List the snapshots.")
def _list(data: Path | None, json: bool) -> None:
    found = _ask("list", None, data, json)
    if not json:
        say("\n".join(_rows(found)) or "no snapshots; `barnabas snapshot save NAME` makes one")


@TOOL.action(
    "restore",
    "Bring the cluster back to that moment, on its ports; clients reconnect, and later records are gone.",
    needs=("name",),
)
def _restore(name: str, data: Path | None, json: bool) -> None:
    restored = _ask("restore", name, data, json)
    if not json:
        say(f"restored {name} in {restored['seconds']:.2f} s")


@TOOL.action("delete", "Delete a snapshot.", needs=("name",))
def _delete(name: str, data: Path | None, json: bool) -> None:
    _ask("delete", name, data, json)
    if not json:
        say(f"deleted {name}")


def _ask(action: str, name: str | None, data: Path | None, json: bool) -> Any:
    answer = the_cluster(data).ask(do="snapshot", action=action, name=name)
    if json:
        import json as encoder

        say(encoder.dumps(answer))
    return answer


def _rows(snapshots: list[dict[str, Any]]) -> list[str]:
    width = max((len(each["name"]) for each in snapshots), default=0)
    return [
        f"{each['name']:{width}}  {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(each['saved_s']))}  "
        f"{size_text(each['size_bytes']):>9}"
        for each in snapshots
    ]
