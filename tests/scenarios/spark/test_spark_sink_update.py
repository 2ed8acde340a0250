"""Output mode update into a topic: each change of an aggregation once, also if its last batch is run again."""

from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
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


def forget_last_commit(checkpoint: Path) -> None:
    """Make the checkpoint look as if the driver had died just before it noted the last batch."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (last, last.with_name(f".{last.name}.crc")):
        path.unlink(missing_ok=True)


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

    forget_last_commit(tmp_path)
    _count_words(spark, kafka, words, counts, tmp_path)
    assert _counts(spark, kafka, counts) == before


def test_parts_of_a_micro_batch_are_each_in_their_topic_once(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    barnabas.spark.register(spark)
    words, out, other = kafka.topic("mixed", partitions=2), kafka.topic("out"), kafka.topic("other")
    main, rest = (sinks.topic(name, bootstrap=kafka.bootstrap) for name in (out, other))
    refused: list[str] = []

    def write(rows: DataFrame, batch: int) -> None:
        for part in range(2):
            main.write(rows.filter(f"partition = {part}").select("key", "value"), once=("parts", 2 * batch + part))
        rest.write(rows.select("key", "value"), once=("all", batch))
        with pytest.raises(ValueError, match=f"is the name of writes into {out}") as error:
            rest.write(rows.select("key", "value"), once=("parts", 2 * batch + 1))
        refused.append(str(error.value))

    def run() -> None:
        frame = spark.readStream.format("barnabas").option("kafka.bootstrap.servers", kafka.bootstrap)
        stream = frame.option("subscribe", words).option("startingOffsets", "earliest").load()
        writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path))
        assert writer.trigger(availableNow=True).start().awaitTermination(300)

    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for part in range(2):
        producer.produce(words, f"v{part}", key=f"k{part}", partition=part)
    assert producer.flush(60) == 0
    run()
    forget_last_commit(tmp_path)
    run()
    for topic in (out, other):
        assert sorted(_counts(spark, kafka, topic)) == [("k0", "v0"), ("k1", "v1")]
    assert len(refused) == 2


def test_a_name_outside_of_a_micro_batch_is_refused(spark: SparkSession, kafka: Kafka) -> None:
    barnabas.spark.register(spark)
    topic = kafka.topic("named")
    rows = spark.createDataFrame([("a",)], "value string")
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic, "queryName": "named"}
    with pytest.raises(Exception, match="within foreachBatch"):
        rows.write.format("barnabas").options(**options).mode("append").save()
