"""The number of rows that came again and were not written twice, from the checkpoint of a flow to the line of a run."""

import json
from pathlib import Path
from typing import Any

from barnabas.spark import checkpoint
from barnabas.spark.pipelines import command, events
from barnabas.spark.pipelines._flows import Flows
from barnabas.spark.pipelines.events import Event, Progress
from barnabas.spark.pipelines.project import create_project, load_project
from barnabas.spark.pipelines.runner import Runner


def progress(flow: str) -> dict[str, Any]:
    return {"id": flow, "name": flow, "timestamp": "t", "batchId": 7, "numInputRows": 5, "sources": []}


def test_a_run_shows_the_rows_that_came_again_in_each_flow(tmp_path: Path) -> None:
    create_project(tmp_path / "shop", bootstrap="127.0.0.1:1")
    project = load_project(tmp_path / "shop")
    events_seen: list[Event] = []
    runner = Runner(project, None, events_seen.append)  # type: ignore[arg-type]  # no query is started
    runner._flows = Flows(targets={"keep": "lake", "other": "topic"})
    start = Path(project.storage.removeprefix("file://")) / "_checkpoints" / "lake" / "keep" / "0"
    start.mkdir(parents=True)
    checkpoint.note_repeated(str(start), 3, 40)
    checkpoint.note_repeated(str(start), 5, 2)
    for flow in ("keep", "other"):
        runner._take_progress(json.dumps(progress(flow)))
    keep, other = events_seen
    assert isinstance(keep, Progress) and isinstance(other, Progress)
    assert (keep.repeated_rows, other.repeated_rows) == (42, 0)
    assert command._line(keep).endswith(", 42 rows came again and were not written twice")
    assert "came again" not in command._line(other)
    assert json.loads(events.as_json(keep))["repeated_rows"] == 42
    (start / checkpoint.REPEATED_FILE).write_text("{")
    runner._take_progress(json.dumps(progress("keep")))
    assert isinstance(events_seen[-1], Progress) and events_seen[-1].repeated_rows == 0, (
        "the run goes on, with a warning"
    )
