"""`barnabas pipeline offsets`: how far a flow is, and how to let it read records again without editing its checkpoint."""

import fcntl
import json as json_format
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from barnabas.cli._command import UsageError
from barnabas.cli._needs import need
from barnabas.cli._output import say, say_json
from barnabas.cli._tool import Json, check_action
from barnabas.spark import checkpoint_replan as replanning
from barnabas.spark.checkpoint_files import CheckpointFiles, location_of
from barnabas.spark.checkpoint_replan import Change, View

if TYPE_CHECKING:
    from barnabas.spark.pipelines.project import Project

_ACTIONS: Final = ("show", "set", "rewind")


def command(
    action: Annotated[str, typer.Argument(metavar="|".join(_ACTIONS), help="What to do.")],
    flow: Annotated[
        str | None, typer.Argument(help="The flow, or TARGET/FLOW if several targets have one of that name.")
    ] = None,
    project: Annotated[Path, typer.Argument(help="The project's folder or spec file.")] = Path(),
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Instead of a flow: the checkpointLocation of a query that runs outside of a project."
        ),
    ] = None,
    query_is_stopped: Annotated[
        bool,
        typer.Option(
            "--query-is-stopped",
            help="With --checkpoint, for set and rewind: you have made sure that the query does not run. "
            "For a flow, the command finds that out itself.",
        ),
    ] = False,
    batches: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="rewind: how many committed batches to take back; else 1.")
    ] = None,
    to_batch: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="rewind: the last batch that stays committed.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help='set: where the next batch begins, such as {"orders":{"0":1200}}; other partitions stay.',
        ),
    ] = None,
    source: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="set: which source of a flow that reads several, from 0.")
    ] = None,
    keep_state: Annotated[
        bool, typer.Option("--keep-state", help="set: also if the flow keeps state of the records that it has read.")
    ] = False,
    any_sink: Annotated[
        bool,
        typer.Option(
            "--any-sink",
            help="set, rewind: also if no sink of barnabas remembers batches of the checkpoint. Spark's own sinks of files "
            "and tables leave out batches that are planned again.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="set, rewind: say what would be done, and do nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Show how far a flow of a pipeline has read, or let it read records again.

    A flow keeps its offsets in a checkpoint of Spark's. Do not edit it by hand: a sink that writes each batch exactly once
    refuses a batch that was planned twice. This command gives the checkpoint a new id, so that the sink writes the batches
    that Spark plans again. Records that were written before are then written once more. What the command replaces is kept
    in the folder barnabas/replaced of the checkpoint. It refuses to change anything while the project runs.

    \b
    barnabas pipeline offsets show orders-to-lake
    barnabas pipeline offsets rewind orders-to-lake --batches 2 --dry-run
    barnabas pipeline offsets set orders-to-lake --to '{"orders":{"0":1200}}'
    barnabas pipeline offsets show --checkpoint /state/orders
    """
    check_action(action, _ACTIONS)
    _check_target(action, checkpoint=checkpoint, flow=flow, stopped=query_is_stopped)
    _check_change(action, to=to, batches=batches, to_batch=to_batch)

    def plan(files: CheckpointFiles) -> Change:
        if action == "rewind":
            return replanning.plan_rewind(files, batches=batches, to_batch=to_batch)
        return replanning.plan_set(files, _offsets(to or ""), source=source, keep_state=keep_state)

    def work(files: CheckpointFiles) -> None:
        if action == "show":
            _show(files, json=json)
        else:
            if not any_sink:
                replanning.require_sink(files)
            _change(files, plan(files), dry_run=dry_run, json=json)

    if checkpoint is not None:
        work(CheckpointFiles(location_of(checkpoint)))
        return
    need("spark", "pyspark", "pyarrow", "yaml")
    from barnabas.spark.pipelines.project import load_project

    assert flow is not None, "checked"
    chosen = load_project(project)
    if action == "show":
        work(_checkpoint_of(chosen, flow))
        return
    with _stopped(chosen):
        work(_checkpoint_of(chosen, flow))


def _check_target(action: str, *, checkpoint: str | None, flow: str | None, stopped: bool) -> None:
    if checkpoint is not None and flow is not None:
        raise UsageError("name a flow of a project or give --checkpoint, not both")
    if checkpoint is None and flow is None:
        raise UsageError(f"{action} needs the flow, or --checkpoint PATH of a query outside of a project")
    if stopped and checkpoint is None:
        raise UsageError("--query-is-stopped goes with --checkpoint: of a flow the command finds out whether it runs")
    if action != "show" and checkpoint is not None and not stopped:
        raise UsageError(
            "the command cannot find out whether a query outside of a project runs: stop it, and add --query-is-stopped"
        )


def _check_change(action: str, *, to: str | None, batches: int | None, to_batch: int | None) -> None:
    if (to is not None) != (action == "set"):
        raise UsageError("set needs --to JSON, and no other action takes it")
    if (batches is not None or to_batch is not None) and action != "rewind":
        raise UsageError("--batches and --to-batch are for rewind")
    if batches is not None and to_batch is not None:
        raise UsageError("--batches and --to-batch are two ways to say the same: give one of them")


def _offsets(text: str) -> dict[str, Any]:
    try:
        offsets = json_format.loads(text)
    except ValueError as error:
        raise UsageError(f"--to is not JSON: {error}") from None
    if not isinstance(offsets, dict):
        raise UsageError('--to is not an object of topics, such as {"orders":{"0":1200}}')
    return offsets


def _checkpoint_of(project: "Project", flow: str) -> CheckpointFiles:
    from barnabas.spark.pipelines.checkpoints import checkpoints_of

    found = checkpoints_of(project.storage)
    chosen = [name for name in sorted(found) if flow in (name, name.rpartition("/")[2])]
    if not chosen:
        known = ", ".join(sorted(found)) or "none, because the project has not run yet"
        raise UsageError(f"{project.name} has no checkpoint of a flow {flow}; it has checkpoints of: {known}")
    if len(chosen) > 1:
        raise UsageError(f"several targets have a flow {flow}: give one of {', '.join(chosen)}")
    return found[chosen[0]]


@contextmanager
def _stopped(project: "Project") -> Iterator[None]:
    """Hold the lock that a run of the project holds."""
    project.state.mkdir(parents=True, exist_ok=True)
    lock = os.open(project.state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{project.name} runs: stop it first, and try again") from None
        yield
    finally:
        os.close(lock)


def _show(files: CheckpointFiles, *, json: bool) -> None:
    view = replanning.show(files)
    if json:
        say_json(_document(view))
        return
    say(f"checkpoint {view.location}")
    say(f"query {view.query}, checkpoint id {view.checkpoint or '(none yet: no batch has run with this barnabas)'}")
    if view.committed is None:
        say("no batch is committed")
    else:
        say(f"committed: batch {view.committed}; the oldest batch to go back to is {view.oldest}")
        _say_sources(view.committed_offsets, "the next batch begins at")
    if view.planned is not None:
        say(f"planned and not committed: batch {view.planned}; it runs again at the next start")
        _say_sources(view.planned_offsets, "it ends at")
    if view.has_state:
        say("the query keeps state of the records that it has read")
    if view.repeated.batches:
        say(
            f"came again after a restart and were not written twice: {view.repeated.batches} batches, "
            f"{view.repeated.rows:,} rows; the last one was batch {view.repeated.last_batch}"
        )


def _say_sources(offsets: list[Any], words: str) -> None:
    for number, each in enumerate(offsets):
        say(f"  source {number}: {words} {json_format.dumps(each)}")


def _document(view: View) -> dict[str, Any]:
    return {
        "location": view.location,
        "queryId": view.query,
        "checkpointId": view.checkpoint,
        "oldestBatch": view.oldest,
        "committedBatch": view.committed,
        "plannedBatch": view.planned,
        "committedOffsets": view.committed_offsets,
        "plannedOffsets": view.planned_offsets,
        "hasState": view.has_state,
        "repeated": asdict(view.repeated),
    }


def _change(files: CheckpointFiles, change: Change, *, dry_run: bool, json: bool) -> None:
    kept = None if dry_run else f"{files.location}/{replanning.apply(files, change)}"
    if json:
        removed, written = list(change.removed), sorted(change.written)
        say_json({"done": change.what, "removed": removed, "written": written, "dryRun": dry_run, "replaced": kept})
        return
    say(f"{'would go' if dry_run else 'the query goes'} {change.what}")
    for name in change.removed:
        say(f"  {'would be ' if dry_run else ''}removed: {name}")
    for name in sorted(change.written):
        say(f"  {'would be ' if dry_run else ''}written: {name}")
    if kept is not None:
        say(f"the replaced files are in {kept}")
