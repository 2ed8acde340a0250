"""`barnabas rebalance`: spread replicas and leaders over the brokers, by size, traffic, number and rack."""

from pathlib import Path
from typing import Final

from barnabas.cli import _moving
from barnabas.cli import _reassign_plan as plan
from barnabas.cli._balance import Proposal, propose
from barnabas.cli._command import UsageError
from barnabas.cli._json_files import read_json
from barnabas.cli._output import say, say_json
from barnabas.cli.tool import CONNECTION, JSON, Option, Tool
from barnabas.client.asynchronous import AsyncClient

EXECUTION: Final = (
    Option("--execute", "Carry it out; without it, only say what would be done.", bool),
    Option("--throttle", "Bytes/s that moves may use; none: no limit.", int, metavar="BYTES", default=-1),
    Option("--batch", "Partitions that move at the same time.", int, least=1, default=10),
)
TOOL = Tool(
    note="See [below](#rebalance-and-drain).",
    about="""Proposes moves by bytes, traffic, number of replicas and racks, and says what each broker would have. --execute
    carries them out in batches. Interrupted, run it again: it waits for moves in progress and continues. The plan is in the
    format of reassign-partitions.""",
    options=(
        *CONNECTION,
        *EXECUTION,
        Option("--max-moves", "Move at most this many replicas to even out load.", int),
        Option(
            "--measure", "How long to look at how fast partitions grow.", float, metavar="SECONDS", least=0, default=3.0
        ),
        Option(
            "--plan",
            "Write the plan to this file; with --execute, carry out the plan that it has.",
            Path,
            metavar="FILE",
            name="plan_file",
        ),
        Option("--stop", "Cancel the moves in progress, and remove limits.", bool),
        JSON,
    ),
    examples=("barnabas rebalance", "barnabas rebalance --execute --throttle 50000000", "barnabas rebalance --stop"),
)


@TOOL.main
async def _rebalance(
    cluster: AsyncClient,
    execute: bool,
    throttle: int,
    batch: int,
    max_moves: int | None,
    measure: float,
    plan_file: Path | None,
    stop: bool,
    json: bool,
) -> None:
    if stop:
        if execute:
            raise UsageError("give --stop or --execute, not both")
        cancelled = await _moving.stop(cluster)
        say(f"moves that were cancelled: {cancelled}; these partitions have their former replicas")
        return
    view = await _moving.look(cluster, measure_s=measure)
    proposal = _kept(plan_file) if execute and plan_file is not None else None
    if proposal is None:
        proposal = propose(view.partitions, view.racks, moves_max=max_moves)
        show(view, proposal, json=json)
        if plan_file is not None and proposal.targets:
            _keep(proposal, plan_file)
    await finish(cluster, view, proposal, execute=execute, throttle=throttle, batch=batch, quiet=json)


def _kept(file: Path) -> Proposal | None:
    """Return the plan in the file, or None if there is no such file."""
    if not file.exists():
        return None
    kept = plan.parse_assignment(read_json(str(file), option="--plan"))
    say(f"carrying out the plan in {file}")
    return Proposal({where: tuple(replicas) for where, replicas in kept.partitions.items()})


def _keep(proposal: Proposal, file: Path) -> None:
    file.write_text(plan.to_json(proposal.targets) + "\n")


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
