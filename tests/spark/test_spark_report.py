"""Reports of streaming queries: what the console's page of pipelines reads."""

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession

import barnabas.spark
from barnabas.core.topics import PIPELINES_TOPIC
from barnabas.spark.report import PipelineReporter, ReportWriter
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
    assert (last["topics"], last["progress"]["lag"]) == ([topic], 0)


def test_cluster_that_is_away_holds_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    writer = ReportWriter("127.0.0.1:1")
    writer.write(b"key", b"{}", now_ms=0)
    writer.write(b"key", b"{}", now_ms=0)
    writer.close()
    assert [record.message.split(":")[0] for record in caplog.records if record.name == "barnabas.spark"] == [
        "the progress of a query was not reported"
    ]
