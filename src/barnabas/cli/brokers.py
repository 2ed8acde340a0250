"""`barnabas brokers`: what each broker has, and taking one out of service for good."""

from enum import StrEnum
from typing import Annotated

import typer

from barnabas.cli import _moving
from barnabas.cli._balance import propose
from barnabas.cli._command import UsageError
from barnabas.cli._connection import options, run
from barnabas.cli._output import say, say_json
from barnabas.cli._tool import Bootstrap, CommandConfig, Json
from barnabas.cli._words import size_text
from barnabas.cli.rebalance import Batch, Execute, Throttle, finish, show
from barnabas.client.asynchronous import AsyncClient


class Action(StrEnum):
    LIST = "list"
    DRAIN = "drain"


def command(
    action: Annotated[
        Action, typer.Argument(help="list shows what each broker has; drain moves everything off brokers.")
    ],
    brokers: Annotated[list[int] | None, typer.Argument(metavar="ID", help="The brokers to drain.")] = None,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
    execute: Execute = False,
    throttle: Throttle = -1,
    batch: Batch = 10,
    json: Json = False,
) -> None:
    """Show brokers, or move everything off one before it is stopped for good.

    `drain 3` says where the replicas and leaders of broker 3 would go, by racks, then by size. With `--execute` they go.
    Interrupted, run it again. Then stop the broker: until then it may get replicas of new topics.
    """
    if (action is Action.DRAIN) != bool(brokers):
        raise UsageError("brokers drain needs the ids of brokers, brokers list needs none")
    if batch < 1:
        raise UsageError("--batch must be at least 1")
    leaving = brokers or []

    async def body(cluster: AsyncClient) -> None:
        view = await _moving.look(cluster, measure_s=0)
        if action is Action.LIST:
            _list(view, json=json)
            return
        known = view.racks.keys() | {broker for each in view.partitions.values() for broker in each.replicas}
        unknown = sorted(set(leaving) - known)
        if unknown:
            raise UsageError(f"there is no broker {unknown[0]}")
        proposal = propose(view.partitions, view.racks, drain=leaving, only_drain=True)
        show(view, proposal, json=json)
        await finish(cluster, view, proposal, execute=execute, throttle=throttle, batch=batch, quiet=json)
        if not json and (execute or not proposal.targets):
            say(f"nothing is left on {', '.join(map(str, leaving))}: it can be stopped")

    run(options(bootstrap_server, command_config), body)


def _list(view: _moving.View, *, json: bool) -> None:
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
