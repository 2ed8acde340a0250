"""Spark through barnabas beside Spark's official Kafka connector on Apache Kafka, in one run on the same machine.

Each stack has its own broker: format `barnabas` uses one broker of ours, format `kafka` one broker of Apache Kafka 3.9.1, in
the same Spark session (`local[2]`), rounds interleaved. "Cold" is a fresh Spark process with its first job, without the JVM's
start.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from tests.interop.maven import SPARK_AVRO, SPARK_KAFKA, jars

import barnabas.spark
from barnabas.cli.local_cluster import LocalCluster
from bench.broker import Target, create_topic
from bench.kafka import ApacheKafka
from bench.limits import machine_limits
from bench.report import Row, announce, write_report

PARTITIONS = 4
VALUE_BYTES = 200
#: Records/s of a quiet stream and of a busy one.
STREAMS = (10_000, 100_000)
LARGE = "large"
LARGE_BYTES = 1_000_000


@dataclass(frozen=True)
class Stack:
    """A connector with its broker."""

    name: str
    format: str
    target: Target
    #: Where the broker keeps its segments, for the connector that can read them.
    log_dir: Path | None = None

    @property
    def bootstrap(self) -> str:
        return self.target.bootstrap


@dataclass(frozen=True)
class Counts:
    read: int
    write: int
    #: Number of values of 1 MB.
    large: int


def session(folder: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(str(jar) for jar in jars(*SPARK_KAFKA, *SPARK_AVRO)))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", "2")
        # As docs/spark.md advises and `barnabas pipeline` does: Spark ends workers that were idle for a minute, which happens
        # during the other connector's turn. The official connector uses no Python.
        .config(map=dict(barnabas.spark.WORKER_SETTINGS))
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    barnabas.spark.register(spark)
    return spark


def fill(stack: Stack, topic: str, count: int, value_bytes: int = VALUE_BYTES) -> None:
    create_topic(stack.target, topic, partitions=PARTITIONS)
    producer = Producer(
        {"bootstrap.servers": stack.bootstrap, "linger.ms": 20, "batch.size": 500_000, "message.max.bytes": 2_000_000,
         "queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 500_000}
    )  # fmt: skip
    values = [os.urandom(value_bytes // 2) + b"x" * (value_bytes - value_bytes // 2) for _ in range(64)]
    for number in range(count):
        while True:
            try:
                producer.produce(topic, values[number & 63], key=b"%d" % number, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.01)
        if number & 0x3FFF == 0:
            producer.poll(0)
    assert producer.flush(120) == 0


def source(spark: SparkSession, stack: Stack, topic: str) -> DataFrame:
    return (
        spark.read.format(stack.format)
        .option("kafka.bootstrap.servers", stack.bootstrap)
        .option("subscribe", topic)
        .load()
    )


def drain(frame: DataFrame, count: int, value_bytes: int = VALUE_BYTES) -> float:
    """Return the seconds to bring every row and its value into Spark."""
    began = time.monotonic()
    found = frame.selectExpr("count(*) as rows", "sum(length(value)) as bytes").first()
    took = time.monotonic() - began
    assert found is not None and (found["rows"], found["bytes"]) == (count, count * value_bytes), found
    return took


def save(frame: DataFrame, stack: Stack, topic: str, **options: str) -> float:
    create_topic(stack.target, topic, partitions=PARTITIONS)
    began = time.monotonic()
    (
        frame.write.format(stack.format)
        .option("kafka.bootstrap.servers", stack.bootstrap)
        .option("topic", topic)
        .options(**options)
        .mode("append")
        .save()
    )
    return time.monotonic() - began


def micro_batches(spark: SparkSession, stack: Stack, topic: str, *, per_second: int, seconds: float) -> float:
    """Return the median time of a micro-batch in ms while a producer writes `per_second` records."""
    create_topic(stack.target, topic, partitions=PARTITIONS)
    stop = threading.Event()

    def produce() -> None:
        producer = Producer(
            {"bootstrap.servers": stack.bootstrap, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
        )
        began, sent = time.monotonic(), 0
        while not stop.wait(0.01):
            due = int((time.monotonic() - began) * per_second)
            while sent < due:
                producer.produce(topic, b"x" * VALUE_BYTES, partition=sent % PARTITIONS)
                sent += 1
            producer.poll(0)
        producer.flush(30)

    feeder = threading.Thread(target=produce)
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            spark.readStream.format(stack.format)
            .option("kafka.bootstrap.servers", stack.bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .start()
        )
        feeder.start()
        try:
            query.awaitTermination(seconds)
            if (error := query.exception()) is not None:
                raise error
            progress = query.recentProgress
        finally:
            stop.set()
            feeder.join()
            query.stop()
    full = [p["durationMs"]["triggerExecution"] for p in progress if p["numInputRows"] > 0]
    return statistics.median(full[len(full) // 4 :])


def measures(spark: SparkSession, stack: Stack, topic: str, counts: Counts, number: int) -> Iterator[tuple[str, float]]:
    def rate(count: int, took: float) -> float:
        return count / took / 1000

    # Warm up: the other connector's turn took a minute and more, and has displaced the caches.
    drain(source(spark, stack, topic), counts.read)
    took = drain(source(spark, stack, topic), counts.read)
    yield "read through the broker, k records/s", rate(counts.read, took)
    yield "read through the broker, MB/s", counts.read * VALUE_BYTES / took / 1e6
    rows = spark.range(counts.write).selectExpr(
        "cast(cast(id as string) as binary) as key", f"cast(repeat('v', {VALUE_BYTES}) as binary) as value"
    )
    # Likewise: the first write of a turn is a third slower.
    save(rows, stack, f"{topic}-warm-{number}")
    if stack.log_dir is not None:
        segments = spark.read.format("barnabas-log").option("subscribe", topic).load(str(stack.log_dir))
        took = drain(segments, counts.read)
        yield "read segments, k records/s", rate(counts.read, took)
        took = save(rows, stack, f"{topic}-alo-{number}", deliveryGuarantee="at-least-once")
        yield "write at least once, k records/s", rate(counts.write, took)
        yield "write exactly once, k records/s", rate(counts.write, save(rows, stack, f"{topic}-eos-{number}"))
    else:
        yield "write at least once, k records/s", rate(counts.write, save(rows, stack, f"{topic}-alo-{number}"))
    copied = source(spark, stack, topic).select("key", "value")
    yield "topic to topic, k records/s", rate(counts.read, save(copied, stack, f"{topic}-copy-{number}"))
    large = source(spark, stack, LARGE)
    yield "read values of 1 MB, MB/s", counts.large * LARGE_BYTES / drain(large, counts.large, LARGE_BYTES) / 1e6
    for each in STREAMS:
        took = micro_batches(spark, stack, f"{topic}-stream-{each}-{number}", per_second=each, seconds=8)
        yield f"micro-batch at {each:,} records/s, ms", took


def cold(stack: Stack, topic: str, count: int) -> float:
    """Measure the first read of a fresh Spark process."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.spark", "--cold", stack.format, stack.bootstrap, topic, str(count)],
        stdout=subprocess.PIPE, text=True, check=True, timeout=300,
    )  # fmt: skip
    return float(done.stdout.split()[-1])


def run_cold(arguments: list[str]) -> None:
    name, bootstrap, topic, count = arguments
    with tempfile.TemporaryDirectory() as folder:
        spark = session(folder)
        spark.range(1).count()
        print(drain(source(spark, Stack(name, name, Target(name, bootstrap, [])), topic), int(count)))
        spark.stop()


#: Rows without a counterpart in the official connector are compared with its most similar row.
AGAINST = {
    "read segments, k records/s": "read through the broker, k records/s",
    "write exactly once, k records/s": "write at least once, k records/s",
}


def run(rounds: int, counts: Counts) -> None:
    announce("spark", rounds, round_s=50 + counts.read / 1.6e5 + counts.write / 3e5, setup_s=110)
    limits = machine_limits()
    results: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        ours = stack.enter_context(LocalCluster(brokers=1, data=Path(folder) / "ours"))
        kafka = stack.enter_context(ApacheKafka(brokers=1))
        stacks = (
            Stack("barnabas", "barnabas", Target("barnabas", ours.bootstrap, [ours.pid(1)]), ours.log_dir(1)),
            Stack("official", "kafka", Target("Apache Kafka", kafka.bootstrap, [kafka.pid(1)])),
        )
        for each in stacks:
            fill(each, "records", counts.read)
            fill(each, LARGE, counts.large, LARGE_BYTES)
        for each in stacks:
            took = cold(each, "records", counts.read)
            results.setdefault("cold read, k records/s", {})[each.name] = [counts.read / took / 1000]
        spark = session(folder)
        stack.callback(spark.stop)
        for number in range(-1, rounds):
            for each in stacks:
                for name, value in measures(spark, each, "records", counts, number):
                    if number >= 0:
                        results.setdefault(name, {}).setdefault(each.name, []).append(value)
                    print(f"{each.name:10} {name}: {value:.1f}")
    rows = [
        Row(name, statistics.median(by["barnabas"]), statistics.median(results[AGAINST.get(name, name)]["official"]))
        for name, by in results.items()
    ]
    title = f"Spark, local[2], {VALUE_BYTES} B values, {counts.read / 1e6:g} million records"
    write_report("spark", title, rows, rounds=rounds, raw=results, rival="official", limits=limits)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--records", type=int, default=4_000_000, help="records to read, and to copy from topic to topic"
    )
    parser.add_argument("--write", type=int, default=1_500_000, help="records to write")
    parser.add_argument("--large", type=int, default=400, help="records of 1 MB to read")
    parser.add_argument("--cold", nargs=4, metavar=("FORMAT", "BOOTSTRAP", "TOPIC", "COUNT"), help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.cold:
        run_cold(chosen.cold)
    else:
        run(chosen.rounds, Counts(chosen.records, chosen.write, chosen.large))


if __name__ == "__main__":
    main()
