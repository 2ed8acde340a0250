"""`barnabas pipeline offsets`: how far a flow is, and how to let it read records again without editing its checkpoint."""

import fcntl
import json as json_format
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from barnabas.cli._command import UsageError
from barnabas.cli._needs import need
from barnabas.cli._output import say, say_json
from barnabas.cli.tool import JSON, Argument, Option, Tool, at_least_one, excludes, needs
from barnabas.spark import checkpoint_replan as replanning
from barnabas.spark.checkpoint_files import CheckpointFiles, location_of
from barnabas.spark.checkpoint_replan import Change, View

if TYPE_CHECKING:
    from barnabas.spark.pipelines.project import Project


def _offsets(text: str) -> dict[str, Any]:
    try:
        offsets = json_format.loads(text)
    except ValueError as error:
        raise UsageError(f"--to is not JSON: {error}") from None
    if not isinstance(offsets, dict):
        raise UsageError('--to is not an object of topics, such as {"orders":{"0":1200}}')
    return offsets


_ONE_BATCH = "--batches and --to-batch are two ways to say the same: give one of them"
TOOL = Tool(
    note="See [memories](memories.md).",
    about="""A flow keeps its offsets in a checkpoint of Spark's. Do not edit it by hand: a sink that writes each batch
    exactly once refuses a batch that was planned twice. This command gives the checkpoint a new id, so that the sink writes
    the batches that Spark plans again. Records that were written before are then written once more. What the command replaces
    is kept in the folder barnabas/replaced of the checkpoint. It refuses to change anything while the project runs.""",
    arguments=(
        Argument("flow", "The flow, or TARGET/FLOW if several targets have one of that name."),
        Argument("project", "The project's folder or spec file.", Path, default=Path()),
    ),
    options=(
        Option(
            "--checkpoint",
            "Instead of a flow: the checkpointLocation of a query that runs outside of a project.",
            metavar="PATH",
        ),
        Option(
            "--query-is-stopped",
            "With --checkpoint: you have made sure that the query does not run. For a flow, the command finds that out "
            "itself.",
            bool,
        ),
        Option("--batches", "How many committed batches to take back; else 1.", int, least=1),
        Option("--to-batch", "The last batch that stays committed.", int, least=0),
        Option(
            "--to",
            'Where the next batch begins, such as {"orders":{"0":1200}}; other partitions stay.',
            _offsets,
            metavar="JSON",
        ),
        Option("--source", "Which source of a flow that reads several, from 0.", int, least=0),
        Option("--keep-state", "Also if the flow keeps state of the records that it has read.", bool),
        Option(
            "--any-sink",
            "Also if no sink of barnabas remembers batches of the checkpoint. Spark's own sinks of files and tables leave "
            "out batches that are planned again.",
            bool,
        ),
        Option("--dry-run", "Say what would be done, and do nothing.", bool),
        JSON,
    ),
    rules=(excludes("flow", "--checkpoint", says="name a flow of a project or give --checkpoint, not both"),),
    examples=(
        "barnabas pipeline offsets show orders-to-lake",
        "barnabas pipeline offsets rewind orders-to-lake --batches 2 --dry-run",
        """barnabas pipeline offsets set orders-to-lake --to '{"orders":{"0":1200}}'""",
        "barnabas pipeline offsets show --checkpoint /state/orders",
    ),
)
_WHICH = at_least_one(
    "flow", "--checkpoint", says="name the flow, or give --checkpoint PATH of a query outside of a project"
)
_STOPPED = needs(
    "--query-is-stopped",
    "--checkpoint",
    says="--query-is-stopped goes with --checkpoint: of a flow the command finds out whether it runs",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The checkpoint that the words name."""

    flow: str | None
    project: Path
    checkpoint: str | None

    @contextmanager
    def files(self, *, stopped: bool) -> Iterator[CheckpointFiles]:
        """`stopped`: hold the lock that a run of the project holds."""
        if self.checkpoint is not None:
            yield CheckpointFiles(location_of(self.checkpoint))
            return
        need("spark", "pyspark", "pyarrow", "yaml")
        from barnabas.spark.pipelines.project import load_project

        assert self.flow is not None, "a rule asks for it"
        chosen = load_project(self.project)
        with _stopped(chosen) if stopped else nullcontext():
            yield _checkpoint_of(chosen, self.flow)


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """Options of both changes."""

    any_sink: bool
    dry_run: bool
    json: bool

    def change(self, target: Target, is_stopped: bool, plan: Callable[[CheckpointFiles], Change]) -> None:
        if target.checkpoint is not None and not is_stopped:
            raise UsageError(
                "the command cannot find out whether a query outside of a project runs: stop it, and add --query-is-stopped"
            )
        with target.files(stopped=True) as files:
            if not self.any_sink:
                replanning.require_sink(files)
            _change(files, plan(files), dry_run=self.dry_run, json=self.json)


@TOOL.action("show", "Show how far a flow has read.", rules=(_WHICH,))
def _show_offsets(target: Target, json: bool) -> None:
    with target.files(stopped=False) as files:
        _show(files, json=json)


@TOOL.action("set", "Say where the next batch begins.", needs=("--to",), rules=(_STOPPED, _WHICH))
def _set(
    target: Target, query_is_stopped: bool, to: dict[str, Any], source: int | None, keep_state: bool, how: How
) -> None:
    how.change(
        target, query_is_stopped, lambda files: replanning.plan_set(files, to, source=source, keep_state=keep_state)
    )


@TOOL.action(
    "rewind",
    "Take back committed batches.",
    rules=(_STOPPED, excludes("--batches", "--to-batch", says=_ONE_BATCH), _WHICH),
)
def _rewind(target: Target, query_is_stopped: bool, batches: int | None, to_batch: int | None, how: How) -> None:
    how.change(
        target, query_is_stopped, lambda files: replanning.plan_rewind(files, batches=batches, to_batch=to_batch)
    )


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
