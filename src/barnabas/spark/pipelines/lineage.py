"""Lineage: what each flow reads and writes, as events of OpenLineage, into a file or to a server.

`barnabas.lineage` in the configuration of a project names the place: a path, relative to the project (one JSON document per
line), or the URL that takes events (`http://marquez:5000/api/v1/lineage`). The pipeline does not wait for the server: a thread
sends the events one by one, and logs and drops an event that the server does not take.
"""

import json
import logging
import queue
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from barnabas.client.web import WebFailed, load
from barnabas.spark.pipelines._flows import Flows
from barnabas.spark.pipelines.connector import Sink, Source
from barnabas.spark.pipelines.events import Event, FlowState

SETTING: Final = "barnabas.lineage"
_log: Final = logging.getLogger("barnabas.spark")
_PRODUCER: Final = "urn:barnabas:pipelines"
_SCHEMA: Final = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_ERROR_SCHEMA: Final = "https://openlineage.io/spec/facets/1-0-1/ErrorMessageRunFacet.json#/$defs/ErrorMessageRunFacet"
_STATES: Final = {
    "RUNNING": "START",
    "COMPLETED": "COMPLETE",
    "RETRYING": "FAIL",
    "FAILED": "FAIL",
    "STOPPED": "ABORT",
    "SKIPPED": "ABORT",
}
_PATIENCE_MS: Final = 5_000
_WAITING_MAX: Final = 1000


@dataclass(frozen=True)
class Dataset:
    """A dataset, named by OpenLineage's rules."""

    namespace: str
    name: str


@dataclass(frozen=True)
class FlowLineage:
    inputs: Sequence[Dataset]
    outputs: Sequence[Dataset]


def datasets_of(connector: Source | Sink) -> list[Dataset]:
    """Return the datasets of a connector; a pattern of topics, or a query, is its own name."""
    options = connector.options
    match connector.format:
        case "barnabas":
            names = options.get("subscribe", options.get("subscribePattern", options.get("topic", "")))
            server = options.get("kafka.bootstrap.servers", "").partition(",")[0]
            return [Dataset(f"kafka://{server}", name.strip()) for name in names.split(",") if name.strip()]
        case "barnabas-sql" | "barnabas-postgres-changes":
            return [_of_database(options["uri"], options.get("table", options.get("query", "")))]
        case "barnabas-iceberg":
            return [Dataset(options.get("catalog.warehouse", "iceberg"), options["table"])]
        case _ if "path" in options:
            return [_of_path(options["path"])]
    return []


def lineage_of(
    flows: Flows, sources: Sequence[tuple[str, Source]], sinks: Mapping[str, Sink], table: Callable[[str], Dataset]
) -> dict[str, FlowLineage]:
    """Return the lineage of each flow that writes a table or a sink. Views are replaced by what they read."""

    def inputs(flow: str, seen: frozenset[str]) -> Iterator[Dataset]:
        for name, source in sources:
            if name == flow:
                yield from datasets_of(source)
        for name in sorted(flows.reads.get(flow, ())):
            if name not in flows.views:
                yield table(name)
            elif name not in seen:
                yield from inputs(name, seen | {name})

    return {
        flow: FlowLineage(
            list(dict.fromkeys(inputs(flow, frozenset()))),
            datasets_of(sinks[target]) if target in sinks else [table(target)],
        )
        for flow, target in flows.targets.items()
        if target not in flows.views
    }


def _of_path(path: str) -> Dataset:
    parts = urlsplit(path)
    if parts.scheme and parts.netloc:
        return Dataset(f"{parts.scheme}://{parts.netloc}", parts.path.lstrip("/"))
    return Dataset("file", parts.path)


def _of_database(uri: str, table: str) -> Dataset:
    parts = urlsplit(uri)
    if parts.scheme == "sqlite":
        return Dataset("sqlite", f"{parts.path.removeprefix('/')}.{table}")
    where = f"{parts.hostname or 'localhost'}:{parts.port or 5432}"
    name = table if "." in table else f"public.{table}"
    return Dataset(f"postgres://{where}", f"{parts.path.lstrip('/')}.{name}")


class Lineage:
    """Turns states of flows into events: each attempt of a flow is a run. Owner: the thread that runs the pipeline."""

    def __init__(self, pipeline: str, flows: Mapping[str, FlowLineage], send: Callable[[dict[str, Any]], None]) -> None:
        self._pipeline = pipeline
        self._flows = flows
        self._send = send
        #: The run of each flow that is running.
        self._runs: dict[str, str] = {}

    def take(self, event: Event) -> None:
        if not isinstance(event, FlowState) or event.state not in _STATES:
            return
        name = event.flow.rpartition(".")[2]
        kind = _STATES[event.state]
        if name not in self._flows or (kind == "START") == (name in self._runs):
            return  # already reported, or never begun
        self._emit(name, kind, event.at, event.message)

    def end(self, at: str) -> None:
        """End the runs of flows that are still running."""
        for name in list(self._runs):
            self._emit(name, "ABORT", at, "")

    def _emit(self, name: str, kind: str, at: str, message: str) -> None:
        run_id = self._runs.setdefault(name, str(uuid.uuid4()))
        if kind != "START":
            del self._runs[name]
        facets: dict[str, Any] = {}
        if kind == "FAIL":
            error = {"message": message, "programmingLanguage": "python"}
            facets["errorMessage"] = {"_producer": _PRODUCER, "_schemaURL": _ERROR_SCHEMA, **error}
        flow = self._flows[name]
        self._send(
            {
                "eventType": kind,
                "eventTime": at,
                "producer": _PRODUCER,
                "schemaURL": _SCHEMA,
                "run": {"runId": run_id, "facets": facets},
                "job": {"namespace": self._pipeline, "name": name},
                "inputs": [asdict(each) for each in flow.inputs],
                "outputs": [asdict(each) for each in flow.outputs],
            }
        )


class FileSender:
    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file

    def __call__(self, event: dict[str, Any]) -> None:
        try:
            with open(self._file, "a") as out:
                out.write(json.dumps(event) + "\n")
        except OSError as error:  # no reason to end a pipeline
            _log.warning("[lineage] cannot write an event, so it is left out: %s", error)

    def close(self) -> None:
        """Do nothing: each event is on disk already."""


class HttpSender:
    """Sends events to a server. Owner: the thread that calls it; its own thread sends."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._waiting: queue.Queue[dict[str, Any] | None] = queue.Queue(_WAITING_MAX)
        self._thread = threading.Thread(target=self._work, name="lineage", daemon=True)
        self._thread.start()

    def __call__(self, event: dict[str, Any]) -> None:
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            _log.warning("[lineage] %s is too slow: an event is left out", self._url)

    def close(self) -> None:
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return  # the thread ends with the process
        self._thread.join(_PATIENCE_MS / 1000)

    def _work(self) -> None:
        while (event := self._waiting.get()) is not None:
            headers = {"Content-Type": "application/json"}
            try:
                load(self._url, body=json.dumps(event).encode(), headers=headers, timeout_ms=_PATIENCE_MS)
            except WebFailed as error:
                _log.warning("[lineage] an event is left out: %s", error)


def sender_for(where: str, folder: Path) -> FileSender | HttpSender:
    return HttpSender(where) if where.startswith(("http://", "https://")) else FileSender(folder / where)
