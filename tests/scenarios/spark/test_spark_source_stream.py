"""Format `barnabas` in streaming queries: triggers, restarts, new partitions, lost data, and the group that shows its lag."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import barnabas.spark
from barnabas.base.errors import ErrorCode
from barnabas.client.errors import BrokerRefused
from barnabas.spark.progress import ProgressListener
from barnabas.testing import Kafka

WAIT_S = 300


class Stream:
    """A query of one topic into files, run again and again over one checkpoint."""

    def __init__(self, spark: SparkSession, kafka: Kafka, folder: Path) -> None:
        self._spark, self._kafka, self._folder = spark, kafka, folder
        barnabas.spark.register(spark)

    def run(self, *, once: bool = False, **options: object) -> StreamingQuery:
        """Run the query until all present records are read."""
        reader = self._spark.readStream.format("barnabas").option("kafka.bootstrap.servers", self._kafka.bootstrap)
        for name, value in options.items():
            reader = reader.option(name, str(value))
        writer = reader.load().writeStream.format("parquet").option("checkpointLocation", f"{self._folder}/checkpoint")
        trigger: Mapping[str, bool] = {"once": True} if once else {"availableNow": True}
        query = writer.option("path", f"{self._folder}/rows").trigger(**trigger).start()
        assert query.awaitTermination(WAIT_S)
        return query

    def files(self) -> int:
        return len(list(self._folder.glob("rows/*.parquet")))

    def rows(self) -> list[tuple[int, int]]:
        """Return (partition, offset) of all rows ever written."""
        frame = self._spark.read.parquet(f"{self._folder}/rows").select("partition", "offset")
        return sorted((row.partition, row.offset) for row in frame.collect())


@pytest.fixture
def stream(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> Stream:
    return Stream(spark, kafka, tmp_path)


def produce(kafka: Kafka, topic: str, count: int, *, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for index in range(count):
        producer.produce(topic, value=f"{index}", partition=partition)
    assert producer.flush(60) == 0


def committed(kafka: Kafka, group: str, topic: str, partitions: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    try:
        found = consumer.committed([KafkaTopicPartition(topic, index) for index in range(partitions)], timeout=60)
        return [entry.offset for entry in found]
    finally:
        consumer.close()


def create_once_gone(kafka: Kafka, topic: str) -> None:
    """Create the topic. The name of a deleted topic is free a moment later."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        try:
            kafka.cluster.create_topic(topic)
            return
        except BrokerRefused as refused:
            if refused.code is not ErrorCode.TOPIC_ALREADY_EXISTS or time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)


def everything(*counts: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition, count in enumerate(counts) for offset in range(count)]


@pytest.mark.parametrize("by_tasks", [False, True], ids=["on the driver", "by tasks"])
def test_a_query_reads_in_limited_steps_goes_on_after_restarts_and_finds_new_partitions(
    stream: Stream, kafka: Kafka, by_tasks: bool
):
    topic, group = kafka.topic("steps", partitions=2), kafka.name("group")
    produce(kafka, topic, 30, partition=0)
    produce(kafka, topic, 10, partition=1)
    options = {
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": 20,
        "minOffsetsPerTrigger": 20,  # never waited for: the records of an AvailableNow run do not increase
        "kafka.group.id": group,
        **({"driverReadMaxRecords": 0} if by_tasks else {}),
    }
    query = stream.run(**options)
    reports = query.recentProgress
    assert [report.numInputRows for report in reports] == [20, 20]
    assert json.loads(reports[0].sources[0].endOffset) == {topic: {"0": 15, "1": 5}}
    assert json.loads(reports[0].sources[0].latestOffset) == {topic: {"0": 30, "1": 10}}
    assert stream.rows() == everything(30, 10)
    # A file for each task of both steps.
    assert stream.files() == (4 if by_tasks else 2)
    assert committed(kafka, group, topic, 2) == [30, 10]

    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(60)
    produce(kafka, topic, 5, partition=0)
    produce(kafka, topic, 7, partition=2)
    stream.run(**options)
    assert stream.rows() == everything(35, 10, 7)
    assert committed(kafka, group, topic, 3) == [35, 10, 7]
    # Nothing new: nothing is read twice.
    assert [report.numInputRows for report in stream.run(**options).recentProgress if report.numInputRows] == []
    assert stream.rows() == everything(35, 10, 7)


def test_lost_records_end_a_query_with_their_place_or_are_skipped(stream: Stream, kafka: Kafka):
    topic = kafka.topic("lost")
    produce(kafka, topic, 10)
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    stream.run(**options)
    produce(kafka, topic, 10)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    (future,) = admin.delete_records([KafkaTopicPartition(topic, 0, 15)]).values()
    future.result(60)
    with pytest.raises(StreamingQueryException, match=f"Cannot fetch offset 10 of {topic}-0.*failOnDataLoss"):
        stream.run(**options)
    stream.run(**options, failOnDataLoss="false")
    assert stream.rows() == [(0, offset) for offset in [*range(10), *range(15, 20)]]


def test_a_running_query_notices_a_topic_that_was_created_again(stream: Stream, kafka: Kafka):
    topic, stays = kafka.topic("again"), kafka.topic("stays")
    produce(kafka, topic, 10)
    produce(kafka, stays, 1)
    options = {
        "subscribe": f"{topic},{stays}",
        "startingOffsets": "earliest",
        "fetchOffset.retryIntervalMs": 1,
        "kafka.default.api.timeout.ms": 5000,
    }
    stream.run(**options)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_topics([topic])[topic].result(60)
    create_once_gone(kafka, topic)
    produce(kafka, topic, 4)
    with pytest.raises(StreamingQueryException, match=f"Partition {topic}-0's offset was changed from 10 to 4"):
        stream.run(**options)
    stream.run(**options, failOnDataLoss="false")
    produce(kafka, topic, 2)
    stream.run(**options)
    assert len(stream.rows()) == 10 + 1 + 2


@pytest.fixture
def listening(spark: SparkSession) -> Iterator[Callable[[ProgressListener], None]]:
    added: list[ProgressListener] = []

    def add(listener: ProgressListener) -> None:
        spark.streams.addListener(listener)
        added.append(listener)

    yield add
    for listener in added:
        spark.streams.removeListener(listener)


def test_a_listener_commits_the_last_batch_where_nothing_follows_it(
    stream: Stream, kafka: Kafka, listening: Callable[[ProgressListener], None]
):
    topic = kafka.topic("last", partitions=2)
    produce(kafka, topic, 4, partition=1)
    options: dict[str, str] = {
        "kafka.bootstrap.servers": kafka.bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "groupIdPrefix": kafka.name("prefix"),
    }
    listener = ProgressListener(options)
    listening(listener)
    stream.run(**options, once=True)
    listener.wait_for_end(WAIT_S)
    assert committed(kafka, listener.group, topic, 2) == [0, 4]
    assert listener.group.startswith(options["groupIdPrefix"])


def test_options_of_the_other_kind_of_query_are_refused(stream: Stream, kafka: Kafka):
    topic = kafka.topic("kinds")
    with pytest.raises(StreamingQueryException, match="ending offset not valid in streaming queries"):
        stream.run(subscribe=topic, endingOffsets="latest")


def test_a_topic_that_is_not_there_ends_a_query_with_its_name(stream: Stream, kafka: Kafka):
    missing = kafka.name("missing")
    with pytest.raises(StreamingQueryException, match=f"topic {missing} does not exist: UNKNOWN_TOPIC_OR_PARTITION"):
        stream.run(subscribe=missing, startingOffsets="earliest")


def test_a_frame_that_outlives_its_batch_has_every_partition_though_spark_dropped_the_rows(
    spark: SparkSession, kafka: Kafka, tmp_path: Path
):
    """With the next batch Spark drops the rows that the driver has read: later reads of the frame use a task."""
    barnabas.spark.register(spark)
    topic = kafka.topic("kept", partitions=3)
    for partition in range(3):
        produce(kafka, topic, 10, partition=partition)
    reader = spark.readStream.format("barnabas").option("kafka.bootstrap.servers", kafka.bootstrap)
    frame = reader.options(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="15").load()
    kept: list[DataFrame] = []
    writer = frame.writeStream.foreachBatch(lambda batch, _: kept.append(batch))
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(WAIT_S)
    rows = [[(row.partition, row.offset) for row in batch.collect()] for batch in kept]
    assert [len(each) for each in rows] == [15, 15]
    assert sorted(row for each in rows for row in each) == everything(10, 10, 10)
