"""Spark's official Kafka connector and ours, side by side in one session: same options, same rows, on either kind of broker."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.kafka import ApacheKafka
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import barnabas.spark
from barnabas.cli.local_cluster import LocalCluster
from tests.interop import maven

#: Brokers of two kinds and Spark may share two busy cores; a test that exceeds its limit also ends the session.
pytestmark = pytest.mark.timeout(900)

OFFICIAL, OURS = "kafka", "barnabas"
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


@pytest.fixture(scope="module")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(str(jar) for jar in maven.jars(*maven.SPARK_KAFKA)))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    barnabas.spark.register(session)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def apache_kafka(java: None) -> Iterator[ApacheKafka]:
    with ApacheKafka(brokers=1) as kafka:
        yield kafka


@pytest.fixture(params=["barnabas", "Apache Kafka"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    """Return the address of a broker of either kind."""
    if request.param == "barnabas":
        cluster: LocalCluster = request.getfixturevalue("cluster")
        return cluster.bootstrap
    kafka: ApacheKafka = request.getfixturevalue("apache_kafka")
    return kafka.bootstrap


def create(bootstrap: str, topic: str, partitions: int = 3) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    # The records have timestamps of long ago.
    new = NewTopic(topic, partitions, 1, config={"retention.ms": "-1"})
    admin.create_topics([new])[topic].result(30)


def produce(bootstrap: str, topic: str, codec: str, count: int) -> None:
    """Produce nulls, headers, keys and chosen timestamps, in the given codec."""
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec})
    for number in range(count):
        producer.produce(
            topic,
            None if number % 11 == 0 else f"{codec}-{number}",
            key=None if number % 7 == 0 else f"k{number}",
            headers=[("n", str(number).encode()), ("empty", None)] if number % 5 == 0 else None,
            timestamp=1_700_000_000_000 + number * 1000,
            partition=number % 3,
        )
    assert producer.flush(30) == 0


def read(spark: SparkSession, format: str, bootstrap: str, topic: str, **options: str) -> DataFrame:
    options = {"subscribe": topic, "includeHeaders": "true", **options}
    return spark.read.format(format).option("kafka.bootstrap.servers", bootstrap).options(**options).load()


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    """Return the sorted rows. Spark would read everything twice to sort them."""
    return sorted((tuple(row) for row in frame.select(*COLUMNS).collect()), key=lambda row: (row[2], row[3], row[4]))


READS = (
    {},
    {"startingOffsets": "earliest", "endingOffsets": "latest"},
    {"startingTimestamp": str(1_700_000_000_000 + 100_000)},
    {"startingTimestamp": str(1_700_000_000_000 + 100_000), "endingTimestamp": str(1_700_000_000_000 + 200_000)},
    {"minPartitions": "7"},
    {"kafka.isolation.level": "read_committed"},
)


def test_both_connectors_read_the_same_rows_with_the_same_options(
    spark: SparkSession, bootstrap: str, topic: str
) -> None:
    create(bootstrap, topic)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        produce(bootstrap, topic, codec, 300)
    by_partition = json.dumps({topic: {"0": 10, "1": -2, "2": 50}})
    until = json.dumps({topic: {"0": 20, "1": 90, "2": -1}})
    by_time = json.dumps({topic: {str(n): 1_700_000_050_000 for n in range(3)}})
    cases = [
        *READS,
        {"startingOffsets": by_partition, "endingOffsets": until},
        {"startingOffsetsByTimestamp": by_time},
        {"endingOffsetsByTimestamp": by_time},
    ]
    for options in cases:
        theirs = rows(read(spark, OFFICIAL, bootstrap, topic, **options))
        assert theirs, options
        assert rows(read(spark, OURS, bootstrap, topic, **options)) == theirs, options
    official, ours = (read(spark, format, bootstrap, topic).schema for format in (OFFICIAL, OURS))
    assert [(field.name, field.dataType) for field in ours] == [(field.name, field.dataType) for field in official]


@pytest.mark.parametrize(("writer", "reader"), [(OFFICIAL, OURS), (OURS, OFFICIAL)])
def test_each_connector_reads_records_of_the_other(
    spark: SparkSession, bootstrap: str, topic: str, writer: str, reader: str
) -> None:
    create(bootstrap, topic)
    frame = spark.range(5000).select(
        f.concat(f.lit("key-"), f.col("id")).cast("binary").alias("key"),
        f.when(f.col("id") % 10 != 0, f.col("id").cast("string")).cast("binary").alias("value"),
        f.array(f.struct(f.lit("h").alias("key"), f.lit("v").cast("binary").alias("value"))).alias("headers"),
    )
    options = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "includeHeaders": "true"}
    frame.write.format(writer).options(**options).mode("append").save()
    back = read(spark, reader, bootstrap, topic, **{"kafka.isolation.level": "read_committed"})
    found, wanted = ({row.key: row for row in each.collect()} for each in (back.select(*frame.columns), frame))
    assert found == wanted
    assert len(found) == back.count() == 5000


def test_keys_go_to_the_same_partition_with_either_connector(spark: SparkSession, bootstrap: str, topic: str) -> None:
    placed = {}
    for format in (OFFICIAL, OURS):
        name = f"{topic}-{format}"
        create(bootstrap, name, partitions=7)
        frame = spark.range(2000).select(f.col("id").cast("string").alias("key"), f.lit("v").alias("value"))
        options = {"kafka.bootstrap.servers": bootstrap, "topic": name}
        frame.write.format(format).options(**options).mode("append").save()
        back = read(spark, OURS, bootstrap, name, **{"kafka.isolation.level": "read_committed"})
        placed[format] = {(row.key, row.partition) for row in back.select("key", "partition").collect()}
    assert placed[OURS] == placed[OFFICIAL]
    assert len(placed[OURS]) == 2000


@pytest.mark.parametrize("format", [OFFICIAL, OURS])
def test_a_stream_copies_a_topic_and_resumes_where_it_was(
    spark: SparkSession, bootstrap: str, topic: str, format: str, tmp_path: Path
) -> None:
    copy = f"{topic}-copy"
    create(bootstrap, topic)
    create(bootstrap, copy)
    for total in (300, 600):
        produce(bootstrap, topic, "lz4", 300)
        query = (
            spark.readStream.format(format)
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "100")
            .load()
            .writeStream.format(format)
            .option("kafka.bootstrap.servers", bootstrap)
            .option("topic", copy)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        assert len(query.recentProgress) >= 3
        back = read(spark, OURS, bootstrap, copy, **{"kafka.isolation.level": "read_committed"})
        assert back.count() == total


def test_a_stream_goes_on_with_either_source_on_the_same_checkpoint(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    create(bootstrap, topic)
    for turn, format in enumerate((OFFICIAL, OURS, OFFICIAL), 1):
        produce(bootstrap, topic, "lz4", 30)
        query = (
            spark.readStream.format(format)
            .options(**{"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"})
            .load()
            .select("partition", "offset")
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "rows"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        found = sorted((row.partition, row.offset) for row in spark.read.parquet(str(tmp_path / "rows")).collect())
        assert found == [(part, offset) for part in range(3) for offset in range(10 * turn)], format
