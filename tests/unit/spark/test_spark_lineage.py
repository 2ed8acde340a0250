"""Lineage of flows: the names of their datasets, and events when they start and end."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from barnabas.spark.pipelines import cdc, sinks, sources
from barnabas.spark.pipelines._flows import Flows
from barnabas.spark.pipelines.connector import Sink
from barnabas.spark.pipelines.events import FlowState, RunState
from barnabas.spark.pipelines.lineage import (
    Dataset,
    FileSender,
    FlowLineage,
    HttpSender,
    Lineage,
    datasets_of,
    lineage_of,
    sender_for,
)


@pytest.mark.parametrize(
    ("sink", "dataset"),
    [
        (sinks.topic("orders", bootstrap="b1:1,b2:2"), Dataset("kafka://b1:1", "orders")),
        (sinks.delta("/lake/orders"), Dataset("file", "/lake/orders")),
        (sinks.delta("s3://bucket/lake/orders"), Dataset("s3://bucket", "lake/orders")),
        (cdc.upsert_into_delta("file:///lake/x", keys=["id"]), Dataset("file", "/lake/x")),
        (sinks.parquet("/out"), Dataset("file", "/out")),
        (sinks.sql("postgresql://me:secret@db/shop", "orders"), Dataset("postgres://db:5432", "shop.public.orders")),
        (sinks.sql("postgresql://db:7/shop", "s.orders"), Dataset("postgres://db:7", "shop.s.orders")),
        (sinks.sql("sqlite:////data/shop.db", "orders"), Dataset("sqlite", "/data/shop.db.orders")),
        (sinks.iceberg("a.b", catalog={"warehouse": "s3://w"}), Dataset("s3://w", "a.b")),
    ],
)
def test_a_sink_has_the_name_that_openlineage_gives_it(sink: Sink, dataset: Dataset) -> None:
    assert datasets_of(sink) == [dataset]


def test_sources_are_named_as_sinks_are() -> None:
    two = sources.topic(["a", "b"], bootstrap="b:1")
    assert datasets_of(two) == [Dataset("kafka://b:1", "a"), Dataset("kafka://b:1", "b")]
    assert datasets_of(sources.topic(pattern="o.*", bootstrap="b:1")) == [Dataset("kafka://b:1", "o.*")]
    assert datasets_of(sinks.topic(bootstrap="b:1")) == [], "its rows name their topics"
    shop = Dataset("postgres://db:5432", "shop.public.orders")
    assert datasets_of(sources.changes("postgresql://db/shop", "orders")) == [shop]
    assert datasets_of(sources.table("postgresql://db/shop", "orders")) == [shop]
    assert datasets_of(sources.files("s3://in/orders", format="json")) == [Dataset("s3://in", "orders")]
    assert datasets_of(sources.synthetic()) == []


def test_lineage_replaces_views_by_their_inputs_and_has_tables_and_sinks_as_outputs() -> None:
    flows = Flows(
        reads={"keep": {"view", "names"}, "view": {"inner"}, "inner": {"view"}, "orders": set()},
        targets={"keep": "lake", "view": "view", "inner": "inner", "orders": "orders"},
        views={"view", "inner"},
    )
    read = [("inner", sources.topic("t", bootstrap="b:1")), ("orders", sources.topic("o", bootstrap="b:1"))]
    found = lineage_of(flows, read, {"lake": sinks.delta("/lake")}, lambda name: Dataset("spark", name))
    assert found == {
        "keep": FlowLineage([Dataset("spark", "names"), Dataset("kafka://b:1", "t")], [Dataset("file", "/lake")]),
        "orders": FlowLineage([Dataset("kafka://b:1", "o")], [Dataset("spark", "orders")]),
    }


def test_each_attempt_of_a_flow_is_a_run_with_its_inputs_outputs_and_cause() -> None:
    sent: list[dict[str, Any]] = []
    flow = FlowLineage([Dataset("kafka://b:1", "orders")], [Dataset("file", "/lake")])
    lineage = Lineage("shop", {"keep": flow}, sent.append)
    for state in ("QUEUED", "RUNNING", "RUNNING", "RETRYING", "RUNNING", "COMPLETED", "COMPLETED"):
        lineage.take(FlowState("t", "db.keep", state, f"it is {state}"))
    lineage.take(FlowState("t", "unknown", "RUNNING", ""))
    lineage.take(RunState("t", "COMPLETED", ""))
    assert [each["eventType"] for each in sent] == ["START", "FAIL", "START", "COMPLETE"]
    runs = [each["run"]["runId"] for each in sent]
    assert runs[0] == runs[1] != runs[2] == runs[3]
    assert sent[1]["run"]["facets"]["errorMessage"]["message"] == "it is RETRYING"
    assert sent[0]["job"] == {"namespace": "shop", "name": "keep"}
    assert sent[0]["inputs"] == [{"namespace": "kafka://b:1", "name": "orders"}]
    assert sent[0]["outputs"] == [{"namespace": "file", "name": "/lake"}]
    lineage.take(FlowState("t", "keep", "RUNNING", ""))
    lineage.end("later")
    lineage.end("later")
    assert [(each["eventType"], each["eventTime"]) for each in sent[4:]] == [("START", "t"), ("ABORT", "later")]


def test_events_go_to_a_file_a_line_each(tmp_path: Path) -> None:
    send = sender_for("state/lineage.jsonl", tmp_path)
    assert isinstance(send, FileSender)
    send({"a": 1})
    send({"a": 2})
    send.close()
    assert [json.loads(line) for line in (tmp_path / "state/lineage.jsonl").read_text().splitlines()] == [
        {"a": 1},
        {"a": 2},
    ]


def test_events_go_to_a_server_and_a_refusal_does_not_hold_up_the_pipeline() -> None:
    got: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            got.append(event)
            self.send_response(500 if event["n"] == 1 else 201)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        send = sender_for(f"http://127.0.0.1:{server.server_port}/api/v1/lineage", Path())
        assert isinstance(send, HttpSender)
        for number in (1, 2):
            send({"n": number})
        send._waiting.put(None)
        send._thread.join(60)
        server.shutdown()
        thread.join()
    assert got == [{"n": 1}, {"n": 2}]
    away = HttpSender(f"http://127.0.0.1:{server.server_port}/")
    away({"n": 3})
    away.close()
