"""Output mode update into a topic: what an aggregation changed, once, also when its last batch is run again."""

from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import barnabas.spark
from barnabas.spark.pipelines import sinks
from barnabas.testing import Kafka


def _count_words(spark: SparkSession, kafka: Kafka, words: str, counts: str, checkpoint: Path) -> None:
    stream = (
        spark.readStream.format("barnabas")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("subscribe", words)
        .option("startingOffsets", "earliest")
        .load()
    )
    counted = (
        stream.groupBy("value")
        .count()
        .select(f.col("value").alias("key"), f.col("count").cast("string").alias("value"))
    )
    sink = sinks.topic(counts, bootstrap=kafka.bootstrap)
    writer = sink.writer(counted, checkpoint=str(checkpoint), query_name="counts", output_mode="update")
    assert writer.trigger(availableNow=True).start().awaitTermination(300)


def _counts(spark: SparkSession, kafka: Kafka, topic: str) -> list[tuple[str, str]]:
    frame = spark.read.format("barnabas").option("kafka.bootstrap.servers", kafka.bootstrap).option("subscribe", topic)
    rows = frame.option("kafka.isolation.level", "read_committed").load().orderBy("offset").collect()
    return [(row.key.decode(), row.value.decode()) for row in rows]


def _produce(kafka: Kafka, topic: str, *words: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for word in words:
        producer.produce(topic, word)
    assert producer.flush(60) == 0


def test_an_update_is_written_once_even_if_its_batch_runs_twice(
    spark: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    barnabas.spark.register(spark)
    words, counts = kafka.topic("words"), kafka.topic("counts")
    _produce(kafka, words, "ink", "ink", "paper")
    _count_words(spark, kafka, words, counts, tmp_path)
    assert sorted(_counts(spark, kafka, counts)) == [("ink", "2"), ("paper", "1")]

    _produce(kafka, words, "ink")
    _count_words(spark, kafka, words, counts, tmp_path)
    before = _counts(spark, kafka, counts)
    assert before[2:] == [("ink", "3")]

    last = max((tmp_path / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (last, last.with_name(f".{last.name}.crc")):  # as if the driver had died just before
        path.unlink(missing_ok=True)
    _count_words(spark, kafka, words, counts, tmp_path)
    assert _counts(spark, kafka, counts) == before


def test_a_name_outside_of_a_micro_batch_is_refused(spark: SparkSession, kafka: Kafka) -> None:
    barnabas.spark.register(spark)
    topic = kafka.topic("named")
    rows = spark.createDataFrame([("a",)], "value string")
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic, "queryName": "named"}
    with pytest.raises(Exception, match="within foreachBatch"):
        rows.write.format("barnabas").options(**options).mode("append").save()
