"""The sink in real Spark: batch and streaming writes, options, refusals, and exactly once while drivers and tasks die."""

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from pyspark import TaskContext, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from barnabas.spark import sink
from barnabas.spark.transactions import ALL_ENDED, DECIDED, HALF_ENDED, READY
from barnabas.testing import Kafka

cloudpickle.register_pickle_by_value(sys.modules[__name__])

FORMAT = "barnabas-sink-under-test"


class DyingStreamWriter(sink.StreamWriter):
    """A writer whose process is killed once, at the point that a file names."""

    def __init__(self, parent: sink.StreamWriter, plan: str) -> None:
        super().__init__(parent._options)
        self._plan = plan

    def reached(self, point: str) -> None:
        self._die_if(point)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> sink.Written:
        written = super().write(iterator)
        context = TaskContext.get()
        if context is not None and context.partitionId() == 1 and written.records:
            self._die_if("task")
        return written

    def _die_if(self, point: str) -> None:
        plan = Path(self._plan)
        if self._plan and plan.exists() and plan.read_text() == point:
            plan.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


class SinkUnderTest(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> sink.BatchWriter:
        return sink.batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> sink.StreamWriter:
        return DyingStreamWriter(sink.stream_writer(self.options, schema, overwrite), self.options.get("__plan", ""))


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(SinkUnderTest)
    return spark


def read(kafka: Kafka, topic: str) -> list[Message]:
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    found, at_end = [], set()
    try:
        partitions = consumer.list_topics(topic).topics[topic].partitions
        consumer.assign([TopicPartition(topic, index, 0) for index in partitions])
        while len(at_end) < len(partitions):
            message = consumer.poll(60)
            assert message is not None
            if message.error() is not None:
                at_end.add(message.partition())
            else:
                found.append(message)
    finally:
        consumer.close()
    return found


def save(frame: DataFrame, kafka: Kafka, **options: str) -> None:
    writer = frame.write.format(FORMAT).mode("append").option("kafka.bootstrap.servers", kafka.bootstrap)
    writer.options(**options).save()


def test_every_column_and_compression_reach_the_topics(session: SparkSession, kafka: Kafka) -> None:
    one, two = kafka.topic("one", partitions=3), kafka.topic("two", partitions=4)
    frame = session.range(2000).selectExpr(
        "cast(id as string) key",
        "cast(concat('value-', id) as binary) value",
        "case when id % 3 = 0 then array(named_struct('key', 'n', 'value', cast(cast(id as string) as binary))) end headers",
        f"case when id % 2 = 0 then '{one}' else '{two}' end topic",
        "case when id % 5 = 0 then 2 end partition",
        "case when id % 7 = 0 then timestamp_millis(1700000000000 + id) end timestamp",
        "'ignored' as offset",
    )
    save(frame.repartition(3), kafka, **{"kafka.compression.type": "zstd", "kafka.batch.size": "4000"})
    messages = [*read(kafka, one), *read(kafka, two)]
    assert Counter(message.value().decode() for message in messages) == Counter(f"value-{n}" for n in range(2000))
    for message in messages:
        number = int(message.key())
        assert message.topic() == (two if number % 2 else one)
        if number % 5 == 0:
            assert message.partition() == 2
        assert message.headers() == ([("n", str(number).encode())] if number % 3 == 0 else None)
        if number % 7 == 0:
            assert message.timestamp()[1] == 1_700_000_000_000 + number


def test_at_least_once_batch_write_with_the_topic_option(session: SparkSession, kafka: Kafka) -> None:
    topic = kafka.topic(partitions=2)
    frame = session.range(500).selectExpr("cast(id as string) value", "'no such topic' as topic")
    save(frame, kafka, topic=topic, deliveryGuarantee="at-least-once", **{"kafka.acks": "1"})
    assert Counter(int(message.value()) for message in read(kafka, topic)) == Counter(range(500))


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        (["id key"], {}, "Required attribute 'value' not found"),
        (["cast(id as string) value"], {"topic": ""}, "topic option required when no 'topic' attribute is present"),
        (["id value"], {}, "value attribute type must be a string or binary, not bigint"),
        (["'v' value", "'x' headers"], {}, "headers attribute type must be an ARRAY"),
        (["'v' value"], {"deliveryGuarantee": "hopefully"}, "use exactly-once or at-least-once"),
        (["'v' value"], {"kafka.acks": "1"}, "needs kafka.acks=all"),
        (["'v' value"], {"kafka.value.serializer": "x"}, "'kafka.value.serializer' is not supported"),
        (["'v' value"], {"kafka.compression.type": "rar"}, "compression 'rar' is not valid"),
        (["'v' value"], {"mode": "overwrite"}, "Save mode overwrite is not allowed"),
    ],
)
def test_invalid_options_and_columns_are_refused_before_a_row_is_written(
    session: SparkSession, kafka: Kafka, columns: list[str], options: dict[str, str], words: str
) -> None:
    writer = session.range(1).selectExpr(*columns).write.format(FORMAT).mode(options.pop("mode", "append"))
    settings = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": "t"} | options
    if not settings["topic"]:
        del settings["topic"]
    with pytest.raises(PySparkException, match=words):
        writer.options(**settings).save()


def test_a_row_that_is_refused_leaves_nothing_of_the_batch_write(session: SparkSession, kafka: Kafka) -> None:
    topic = kafka.topic(partitions=2)
    frame = session.range(0, 1000, 1, 2).selectExpr("cast(id as string) value", "cast(id div 999 * 9 as int) partition")
    with pytest.raises(PySparkException, match="partition 9 is not one of topic"):
        save(frame, kafka, topic=topic)
    assert read(kafka, topic) == []


def start(session: SparkSession, kafka: Kafka, folder: Path, topic: str, **options: str) -> Any:
    """Start a query from files to a topic: each file is a batch of two tasks."""
    rows = (
        session.readStream.schema("value string")
        .option("maxFilesPerTrigger", 1)
        .text(str(folder / "in"))
        .repartition(2)
    )
    writer = rows.writeStream.format(FORMAT).trigger(availableNow=True)
    settings = {
        "kafka.bootstrap.servers": kafka.bootstrap,
        "topic": topic,
        "checkpointLocation": str(folder / "checkpoint"),
        "__plan": str(folder / "plan"),
        "decisionsTopic": kafka.name("decisions"),
    }
    return writer.options(**(settings | options)).start()


def test_a_stream_is_written_once_when_drivers_and_tasks_die(
    session: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    """The driver dies at each of its points, then a task after it has written; the query is started again each time."""
    topic = kafka.topic(partitions=3)
    (tmp_path / "in").mkdir()
    points = [READY, DECIDED, HALF_ENDED, ALL_ENDED, "task"]
    for number, point in enumerate(points):
        (tmp_path / "in" / f"{number}.txt").write_text("".join(f"{number}-{row}\n" for row in range(100)))
        (tmp_path / "plan").write_text(point)
        with pytest.raises(PySparkException):
            start(session, kafka, tmp_path, topic).awaitTermination(300)
        assert not (tmp_path / "plan").exists(), point
    start(session, kafka, tmp_path, topic).awaitTermination(300)
    seen = Counter(message.value().decode() for message in read(kafka, topic))
    assert seen == Counter(f"{number}-{row}" for number in range(len(points)) for row in range(100))


def test_a_stream_may_be_written_at_least_once(session: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.topic()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.txt").write_text("".join(f"{row}\n" for row in range(100)))
    start(session, kafka, tmp_path, topic, deliveryGuarantee="at-least-once").awaitTermination(300)
    assert Counter(int(message.value()) for message in read(kafka, topic)) == Counter(range(100))
