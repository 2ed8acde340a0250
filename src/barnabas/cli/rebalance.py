"""`barnabas rebalance`: spread replicas and leaders over the brokers, by size, traffic, number and rack."""

from pathlib import Path
from typing import Annotated

import typer

from barnabas.cli import _moving
from barnabas.cli import _reassign_plan as plan
from barnabas.cli._balance import Proposal, propose
from barnabas.cli._command import UsageError
from barnabas.cli._connection import options, run
from barnabas.cli._json_files import read_json
from barnabas.cli._output import say, say_json
from barnabas.cli._tool import Bootstrap, CommandConfig, Json
from barnabas.client.asynchronous import AsyncClient

Throttle = Annotated[
    int, typer.Option("--throttle", metavar="BYTES", help="Bytes/s that moves may use; none: no limit.")
]
Batch = Annotated[int, typer.Option("--batch", help="Partitions that move at the same time.")]
Execute = Annotated[bool, typer.Option("--execute", help="Carry it out; without it, only say what would be done.")]


def command(
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
    execute: Execute = False,
    throttle: Throttle = -1,
    batch: Batch = 10,
    max_moves: Annotated[
        int | None, typer.Option("--max-moves", metavar="N", help="Move at most this many replicas to even out load.")
    ] = None,
    measure: Annotated[
        float, typer.Option("--measure", metavar="SECONDS", help="How long to look at how fast partitions grow.")
    ] = 3.0,
    plan_file: Annotated[
        Path | None,
        typer.Option(
            "--plan",
            metavar="FILE",
            help="Write the plan to this file; with --execute, carry out the plan that it has.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Spread replicas and leaders evenly over the brokers.

    Proposes moves by bytes, traffic, number of replicas and racks, and says what each broker would have. `--execute` carries
    them out in batches. Interrupted, run it again: it waits for moves in progress and continues. The plan is in the format of
    `reassign-partitions`.
    """
    if batch < 1:
        raise UsageError("--batch must be at least 1")

    async def body(cluster: AsyncClient) -> None:
        view = await _moving.look(cluster, measure_s=max(0.0, measure))
        if execute and plan_file is not None and plan_file.exists():
            kept = plan.parse_assignment(read_json(str(plan_file), option="--plan"))
            proposal = Proposal({where: tuple(replicas) for where, replicas in kept.partitions.items()})
            say(f"carrying out the plan in {plan_file}")
        else:
            proposal = propose(view.partitions, view.racks, moves_max=max_moves)
            show(view, proposal, json=json)
            if plan_file is not None and proposal.targets:
                plan_file.write_text(plan.to_json(proposal.targets) + "\n")
        await finish(cluster, view, proposal, execute=execute, throttle=throttle, batch=batch, quiet=json)

    run(options(bootstrap_server, command_config), body)


def show(view: _moving.View, proposal: Proposal, *, json: bool) -> None:
    if json:
        targets = [
            {"topic": where.topic, "partition": where.partition, "replicas": list(replicas)}
            for where, replicas in sorted(proposal.targets.items())
        ]
        say_json({"moves": proposal.moves, "bytes": proposal.bytes, "leaders": proposal.leaders, "partitions": targets})
    else:
        _moving.preview(view, proposal)


async def finish(
    cluster: AsyncClient,
    view: _moving.View,
    proposal: Proposal,
    *,
    execute: bool,
    throttle: int,
    batch: int,
    quiet: bool,
) -> None:
    if execute:
        await _moving.carry_out(cluster, view, proposal.targets, bytes_per_s=throttle, batch=batch)
    elif proposal.targets and not quiet:
        say("nothing was changed; --execute carries it out")
