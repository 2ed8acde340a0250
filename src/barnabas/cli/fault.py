"""`barnabas fault`: break a cluster of `barnabas up --faults` on purpose, and repair it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from barnabas.cli._output import say
from barnabas.cli.running import the_cluster
from barnabas.cli.status import DATA
from barnabas.cli.tool import JSON, Argument, Option, Tool, WrongUse, numbers

TOOL = Tool(
    note="See [faults](faults.md).",
    about="""Needs a cluster of `barnabas up --faults`. A fault lasts until it is cleared, or its broker is restarted.

    KIND is one of fail-api, drop-connections, slow-network, slow-disk, fill-disk, fail-log-dir, tear-write, kill, pause,
    cut-off, be-deaf-to, skew-clock, advance-clock, expire-session, move-controller, pause-zookeeper.""",
    arguments=(
        Argument(
            "what", "Kind of the fault to add, or number of the one to clear.", metavar="KIND|N", what="a kind of fault"
        ),
    ),
    options=(
        Option("--broker", "At this broker. Without it some kinds are for all brokers.", int),
        Option("--leader-of", "At the broker that leads this partition now; without a number, 0.", metavar="TOPIC[:N]"),
        Option("--controller", "At the broker that is the controller now.", bool),
        Option("--api", "API whose requests fail, such as Produce; * for all.", metavar="NAME"),
        Option("--error", "Kafka's name of the error to answer.", metavar="NAME"),
        Option("--delay-ms", "Delay of requests, packets or writes.", int, metavar="MS"),
        Option("--drop", "Close the connection before the request is carried out.", bool),
        Option("--lose-answer", "Carry the request out, and close the connection before the answer.", bool),
        Option("--after", "Let so many requests pass first.", int),
        Option("--times", "Hit so many requests, at each broker. Without it: all.", int),
        Option("--client-id", "Only clients whose id starts with this.", metavar="PREFIX"),
        Option("--others", "The brokers that it is cut off from. cut-off without it: all.", numbers, metavar="N,…"),
        Option("--ms", "How far a clock jumps, in milliseconds.", int, metavar="MS"),
        Option("--path", "The log directory that fails; without it, the first."),
        DATA,
        JSON,
    ),
    examples=(
        "barnabas fault add fail-api --api Produce --error NOT_ENOUGH_REPLICAS --times 3",
        "barnabas fault add kill --leader-of orders",
        "barnabas fault list",
        "barnabas fault clear",
    ),
)


@TOOL.action("add", "Begin a fault.", needs=("what",))
def _add(
    what: str,
    broker: int | None,
    leader_of: str | None,
    controller: bool,
    api: str | None,
    error: str | None,
    delay_ms: int | None,
    drop: bool,
    lose_answer: bool,
    after: int | None,
    times: int | None,
    client_id: str | None,
    others: tuple[int, ...] | None,
    ms: int | None,
    path: str | None,
    data: Path | None,
    json: bool,
) -> None:
    given = {
        "kind": what,
        "broker": broker,
        "leader_of": leader_of,
        "controller": controller or None,
        "api": api,
        "error": error,
        "delay_ms": delay_ms,
        "drop": drop or None,
        "lose_answer": lose_answer or None,
        "after": after,
        "times": times,
        "client_id": client_id,
        "others": list(others) if others else None,
        "ms": ms,
        "path": path,
    }
    fault = {name: value for name, value in given.items() if value is not None}
    begun = _ask(data, json, action="add", fault=fault)
    if not json:
        say(f"fault {begun['id']}: {begun['what']}")


@TOOL.action("list", "List the faults, with how often each has fired.")
def _list(data: Path | None, json: bool) -> None:
    found = _ask(data, json, action="list")
    if not json:
        say("\n".join(map(_row, found)) or "no faults; `barnabas fault add KIND` begins one")


@TOOL.action("clear", "End a fault; without a number all of them. Brokers that are down are started.")
def _clear(what: str | None, data: Path | None, json: bool) -> None:
    if what is not None and not what.isdecimal():
        raise WrongUse(f"clear takes the number of a fault, not {what!r}")
    _ask(data, json, action="clear", number=None if what is None else int(what))
    if not json:
        say("all faults have ended; every broker runs" if what is None else f"fault {what} has ended")


def _ask(data: Path | None, json: bool, **command: object) -> Any:
    answer = the_cluster(data).ask(do="fault", **command)
    if json:
        import json as encoder

        say(encoder.dumps(answer))
    return answer


def _row(fault: Mapping[str, Any]) -> str:
    times = f"fired {fault['fired']} time{'s' * (fault['fired'] != 1)}"
    return f"{fault['id']:>4}  {times:<16}  {'holds' if fault['holds'] else 'over ':5}  {fault['what']}"
