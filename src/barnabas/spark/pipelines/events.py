"""Events of a running pipeline: states of flows, progress of their batches. Pure: no Spark, no clock, no I/O."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias

from barnabas.spark.pipelines.expectation_counts import counts

_MESSAGE = re.compile(r"(Flow|Run) ?(\S*?) (?:(?:is|has) ([A-Z]+)|(SKIPPED) due to)")


@dataclass(frozen=True)
class FlowState:
    """A flow has a new state: QUEUED, STARTING, RUNNING, COMPLETED, FAILED, RETRYING, SKIPPED, …"""

    at: str
    flow: str
    state: str
    message: str


@dataclass(frozen=True)
class RunState:
    at: str
    state: str
    message: str


@dataclass(frozen=True)
class Progress:
    """One micro-batch of one flow."""

    at: str
    flow: str
    batch: int
    rows: int
    rows_per_second: float
    batch_ms: int
    #: Records that its topics have beyond the end of this batch; None if no source counts them.
    lag: int | None
    state_rows: int
    state_bytes: int
    watermark: str | None
    #: By dataset and name: the action, and how many rows `passed` and `failed`.
    expectations: Mapping[str, Mapping[str, str | int]] = field(default_factory=dict)
    #: Topics that the flow reads.
    topics: Sequence[str] = field(default_factory=list)
    #: Rows of batches that came again after a restart and were not written twice, since the checkpoint was made.
    repeated_rows: int = 0


Event: TypeAlias = FlowState | RunState | Progress


def as_json(event: Event) -> str:
    """Return one line for programs."""
    kind = {FlowState: "flow", RunState: "run", Progress: "progress"}[type(event)]
    return json.dumps({"event": kind} | asdict(event))


def parse_message(at: str, message: str) -> Event | None:
    """Return the event of one of Spark's messages; None for a message without a state."""
    found = _MESSAGE.match(message)
    if found is None:
        return None
    kind, name, said, skipped = found.groups()
    state = said or skipped
    return FlowState(at, short_name(name), state, message) if kind == "Flow" else RunState(at, state, message)


def short_name(name: str) -> str:
    """Return the name without quotes, which some of Spark's messages have, and without the default catalog and database."""
    return name.replace("`", "").strip("'").removeprefix("spark_catalog.").removeprefix("default.")


def parse_progress(document: Mapping[str, Any]) -> Progress:
    """Make an event of the JSON of a `StreamingQueryProgress`."""
    states = document.get("stateOperators") or []
    return Progress(
        at=str(document["timestamp"]),
        flow=short_name(str(document.get("name") or document["id"])),
        batch=int(document["batchId"]),
        rows=int(document.get("numInputRows") or sum(source.get("numInputRows", 0) for source in document["sources"])),
        rows_per_second=float(document.get("processedRowsPerSecond") or 0.0),
        batch_ms=int(document.get("batchDuration") or document.get("durationMs", {}).get("triggerExecution", 0)),
        lag=lag_of(document.get("sources") or []),
        state_rows=sum(int(state.get("numRowsTotal", 0)) for state in states),
        state_bytes=sum(int(state.get("memoryUsedBytes", 0)) for state in states),
        watermark=(document.get("eventTime") or {}).get("watermark"),
        expectations={
            f"{each.dataset}.{each.name}": {"action": each.action, "passed": each.passed, "failed": each.failed}
            for each in counts(document.get("observedMetrics") or {})
        },
        topics=topics_of(document.get("sources") or []),
    )


def topics_of(sources: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the topics of the sources whose offsets are topics and partitions."""
    found = (_partitions(source.get("endOffset")) or {} for source in sources)
    return sorted({topic for partitions in found for topic, _ in partitions})


def lag_of(sources: Sequence[Mapping[str, Any]]) -> int | None:
    """Sum latest minus end over the partitions of those sources whose offsets are topics and partitions."""
    total: int | None = None
    for source in sources:
        end, latest = _partitions(source.get("endOffset")), _partitions(source.get("latestOffset"))
        if end is not None and latest is not None:
            total = (total or 0) + sum(max(0, offset - end.get(key, 0)) for key, offset in latest.items())
    return total


def _partitions(offsets: object) -> dict[tuple[str, str], int] | None:
    """Parse `{"topic": {"0": 17}}`, given as text or as an object; None for other offsets."""
    if isinstance(offsets, str):
        try:
            offsets = json.loads(offsets)
        except ValueError:
            return None
    if not isinstance(offsets, dict) or not all(isinstance(each, dict) for each in offsets.values()):
        return None
    flat = {(topic, part): at for topic, parts in offsets.items() for part, at in parts.items()}
    return flat if all(isinstance(at, int) for at in flat.values()) else None


@dataclass
class FlowStatus:
    """The last known state and progress of a flow."""

    state: str = "QUEUED"
    message: str = ""
    rows_total: int = 0
    progress: Progress | None = None
    #: Like those of a progress, summed over the batches of this run.
    expectations: dict[str, dict[str, str | int]] = field(default_factory=dict)
    #: The last batch in the sums: Spark may report one again.
    expectations_batch: int = -1
    #: The figures come from an earlier run: in this run the flow had no batch yet.
    is_earlier: bool = False

    def count(self, progress: Progress) -> None:
        if not progress.expectations or progress.batch <= self.expectations_batch:
            return
        self.expectations_batch = progress.batch
        for name, one in progress.expectations.items():
            total = self.expectations.setdefault(name, {"action": one["action"], "passed": 0, "failed": 0})
            for which in ("passed", "failed"):
                total[which] = int(total[which]) + int(one[which])


@dataclass
class Status:
    """The last known status of a pipeline. Only `take` changes it."""

    pipeline: str
    mode: str
    master: str
    pid: int
    started: str
    updated: str
    state: str = "STARTING"
    message: str = ""
    flows: dict[str, FlowStatus] = field(default_factory=dict)
    #: The consumer groups that show the progress: (bootstrap servers, group).
    groups: list[tuple[str, str]] = field(default_factory=list)

    def take(self, event: Event) -> None:
        self.updated = event.at
        if isinstance(event, RunState):
            self.state, self.message = event.state, event.message
            return
        flow = self.flows.setdefault(event.flow, FlowStatus())
        if isinstance(event, FlowState):
            flow.state, flow.message = event.state, event.message
        else:
            if flow.is_earlier:
                # The sums begin again, and after a full refresh the numbers of batches do, too.
                flow = self.flows[event.flow] = FlowStatus(flow.state, flow.message)
            # A report may come after the flow has failed; an event says when it starts again.
            flow.state = "RUNNING" if flow.state in ("QUEUED", "STARTING") else flow.state
            flow.progress = event
            flow.rows_total += event.rows
            flow.count(event)

    def remember(self, before: "Status") -> None:
        """Take over the figures of an earlier run, to show until a flow has newer ones: a flow may have no batch in this
        run."""
        self.flows = {
            name: replace(each, state="QUEUED", message="", is_earlier=True) for name, each in before.flows.items()
        }

    def failures(self) -> list[str]:
        """Return a sentence with the reason for each flow that failed or waits to be started again."""
        return [flow.message for flow in self.flows.values() if flow.state in ("FAILED", "RETRYING") and flow.message]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Status":
        status = cls(**{name: document[name] for name in ("pipeline", "mode", "master", "pid", "started", "updated")})
        status.state, status.message = document["state"], document["message"]
        status.groups = [(bootstrap, group) for bootstrap, group in document["groups"]]
        for name, each in document["flows"].items():
            progress = Progress(**each["progress"]) if each["progress"] else None
            status.flows[name] = FlowStatus(**(each | {"progress": progress}))
        return status
