"""Reports of streaming queries, which the console's page of pipelines reads."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession

import barnabas.spark
from barnabas.base.topics import PIPELINES_TOPIC
from barnabas.spark.checkpoint import note_repeated
from barnabas.spark.pipelines import connector, sinks, sources, status
from barnabas.spark.pipelines.events import FlowState, Progress, RunState
from barnabas.spark.pipelines.reporting import RunReporter
from barnabas.spark.report import PipelineReporter
from barnabas.spark.reports import Reports, ReportWriter
from barnabas.testing import Kafka

DEADLINE_S = 60.0


def reports(bootstrap: str) -> list[dict[str, Any]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reports", "enable.partition.eof": True})
    consumer.assign([TopicPartition(PIPELINES_TOPIC, 0, 0)])
    found: list[dict[str, Any]] = []
    while True:
        message = consumer.poll(DEADLINE_S)
        assert message is not None, "the end of the topic did not come"
        if message.error() is not None:
            break
        found.append(json.loads(message.value() or b""))
    consumer.close()
    return found


def test_query_reports_its_batches_and_its_end(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.topic("reported")
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(7):
        producer.produce(topic, str(number))
    assert producer.flush(DEADLINE_S) == 0
    barnabas.spark.register(spark)
    note_repeated(str(tmp_path / "checkpoint"), 3, 12)  # as a sink does
    reporter = PipelineReporter(kafka.bootstrap, pipeline="shop", dead_letters=["dead"])
    spark.streams.addListener(reporter)
    try:
        stream = (
            spark.readStream.format("barnabas")
            .option("kafka.bootstrap.servers", kafka.bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
        )
        query = (
            stream.writeStream.format("noop")
            .queryName("counted")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
        # Spark tells listeners a moment later than it tells others.
        spark._jsparkSession.sparkContext().listenerBus().waitUntilEmpty()  # type: ignore[attr-defined]
    finally:
        spark.streams.removeListener(reporter)
    reporter.close()
    own = [each for each in reports(kafka.bootstrap) if each["query"] == "counted"]
    assert own[0]["state"] == "running"
    last = own[-1]
    assert (last["pipeline"], last["state"], last["error"], last["dead_letters"]) == ("shop", "ended", None, ["dead"])
    assert (last["topics"], last["progress"]["lag"], last["progress"]["repeated_rows"]) == ([topic], 0, 12)


def test_reports_to_an_unreachable_cluster_do_not_hold_up_queries(caplog: pytest.LogCaptureFixture) -> None:
    writer = ReportWriter("127.0.0.1:1")
    writer.write(b"key", b"{}", now_ms=0)
    writer.write(b"key", b"{}", now_ms=0)
    writer.close()
    assert [record.message.split(":")[0] for record in caplog.records if record.name == "barnabas.spark"] == [
        "cannot report the progress of a query, reports pause for 30 s"
    ]


def test_run_of_a_pipeline_reports_as_other_queries_do(kafka: Kafka) -> None:
    name = kafka.name("run")
    with connector.defining(name):
        sources.topic("orders", bootstrap=kafka.bootstrap)
        sinks.topic("clean", bootstrap=kafka.bootstrap)
        connector.note_dead_letters("letters")
    reporter = RunReporter(name, {})
    reporter.take(FlowState("", "waiting", "QUEUED", "Flow waiting is QUEUED."))
    for flow in ("done", "broken", "cut"):
        reporter.take(batch(flow, 1))
        reporter.take(FlowState("", flow, "RUNNING", f"Flow {flow} is RUNNING."))
    reporter.take(FlowState("", "done", "COMPLETED", "Flow done has COMPLETED."))
    reporter.take(FlowState("", "broken", "RETRYING", "Flow broken failed: no more\n\tat org.apache"))
    reporter.take(RunState("", "COMPLETED", "Run is COMPLETED."))
    reporter.close()
    last = {each["query"]: each for each in reports(kafka.bootstrap) if each["pipeline"] == name}
    assert {query: each["state"] for query, each in last.items()} == {
        "done": "ended",
        "broken": "failed",
        "cut": "ended",
    }
    assert last["broken"]["error"] == "Flow broken failed: no more"
    assert (last["done"]["topics"], last["done"]["dead_letters"]) == (["orders"], ["letters"])
    assert last["done"]["progress"]["batch"] == 1


def test_flow_without_rows_reports_that_it_is_idle_every_ten_seconds(kafka: Kafka) -> None:
    name, times_s = kafka.name("rest"), [1_000.0]
    own = Reports(kafka.bootstrap, pipeline=name, clock=lambda: times_s[-1])
    own.progressed("flow", batch("flow", 1))
    for now_s in (1_005.0, 1_011.0, 1_012.0, 1_022.0):
        times_s.append(now_s)
        own.rests("flow")
    own.close()
    found = [each["at_ms"] for each in reports(kafka.bootstrap) if each["pipeline"] == name]
    assert found == [1_000_000, 1_011_000, 1_022_000]


def batch(flow: str, number: int) -> Progress:
    return Progress("", flow, number, 5, 50.0, 100, 0, 0, 0, None, topics=("orders",))


def test_status_shows_whether_a_group_has_committed_nothing_or_read_everything(kafka: Kafka) -> None:
    topic, group = kafka.topic("lagging"), kafka.name("group")
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(5):
        producer.produce(topic, str(number), partition=0)
    assert producer.flush(DEADLINE_S) == 0

    def lag() -> tuple[int | None, str]:
        found = asyncio.run(status.group_lag(kafka.bootstrap, group, {}))
        return found.lag, found.error

    assert lag() == (None, "nothing is committed yet")
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    for offset, behind in ((2, 3), (5, 0)):
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
        assert lag() == (behind, "")
    consumer.close()
