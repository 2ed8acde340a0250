"""`barnabas brokers`: what each broker has; adding brokers, replacing one, and taking one out of service for good."""

from collections.abc import Sequence
from typing import Final

from barnabas.cli import _moving, _replacing
from barnabas.cli._balance import propose
from barnabas.cli._command import UsageError
from barnabas.cli._output import say, say_json
from barnabas.cli._words import size_text
from barnabas.cli.rebalance import EXECUTION, finish, show
from barnabas.cli.tool import CONNECTION, JSON, Argument, Option, Tool
from barnabas.client.asynchronous import AsyncClient

TIMEOUT: Final = Option(
    "--timeout",
    "replace, add: fail after this time without an end; none: wait.",
    int,
    metavar="SECONDS",
    least=1,
    name="timeout_s",
)
TOOL = Tool(
    note="See [below](#rebalance-and-drain).",
    about="""`drain 3` says where the replicas and leaders of broker 3 would go, by racks, then by size. With --execute they
    go. Interrupted, run it again. Then stop the broker: until then it may get replicas of new topics.
    `replace 3` waits for a broker 3 that is started with empty log.dirs, until it has copied everything.
    `add 4` waits for broker 4, then rebalances.""",
    arguments=(Argument("brokers", "The brokers.", int, metavar="ID", many=True, what="the ids of brokers"),),
    options=(*CONNECTION, *EXECUTION, TIMEOUT, JSON),
    examples=(
        "barnabas brokers list",
        "barnabas brokers drain 3 --execute",
        "barnabas brokers replace 3 --throttle 50000000",
        "barnabas brokers add 4 5 --execute",
    ),
)


@TOOL.action("list", "Show what each broker has.")
async def _list(cluster: AsyncClient, json: bool) -> None:
    view = await _moving.look(cluster, measure_s=0)
    loads = _moving.loads(view)
    if json:
        say_json(
            [
                {
                    "id": broker,
                    "rack": view.racks.get(broker),
                    "replicas": load[0],
                    "leaders": load[1],
                    "bytes": load[2],
                }
                for broker, load in loads.items()
            ]
        )
        return
    say("broker  rack        replicas  leaders  bytes")
    for broker, load in loads.items():
        rack = view.racks.get(broker) or "-" if broker in view.racks else "down"
        say(f"{broker:<6}  {rack:<10}  {load[0]:<8}  {load[1]:<7}  {size_text(load[2])}")


@TOOL.action("drain", "Move everything off brokers.", needs=("brokers",))
async def _drain(
    cluster: AsyncClient, brokers: Sequence[int], execute: bool, throttle: int, batch: int, json: bool
) -> None:
    view = await _moving.look(cluster, measure_s=0)
    known = view.racks.keys() | {broker for each in view.partitions.values() for broker in each.replicas}
    unknown = sorted(set(brokers) - known)
    if unknown:
        raise UsageError(f"there is no broker {unknown[0]}")
    proposal = propose(view.partitions, view.racks, drain=brokers, only_drain=True)
    show(view, proposal, json=json)
    await finish(cluster, view, proposal, execute=execute, throttle=throttle, batch=batch, quiet=json)
    if not json and (execute or not proposal.targets):
        say(f"nothing is left on {', '.join(map(str, brokers))}: it can be stopped")


@TOOL.action(
    "replace", "Wait until a broker that was started with empty disks has copied everything.", needs=("brokers",)
)
async def _replace(cluster: AsyncClient, brokers: Sequence[int], throttle: int, timeout_s: int | None) -> None:
    if len(brokers) > 1:
        raise UsageError("replace one broker after the other: each needs the replicas of the others")
    await _replacing.replace(cluster, brokers[0], bytes_per_s=throttle, timeout_s=timeout_s)


@TOOL.action("add", "Wait for new brokers, and move replicas to them.", needs=("brokers",))
async def _add(
    cluster: AsyncClient,
    brokers: Sequence[int],
    execute: bool,
    throttle: int,
    batch: int,
    timeout_s: int | None,
    json: bool,
) -> None:
    await _replacing.wait_for_brokers(cluster, brokers, timeout_s=timeout_s, quiet=json)
    view = await _moving.look(cluster, measure_s=0)
    proposal = propose(view.partitions, view.racks)
    show(view, proposal, json=json)
    await finish(cluster, view, proposal, execute=execute, throttle=throttle, batch=batch, quiet=json)
