"""Tiered storage: history read through a broker, what copying costs those who produce, and Spark beside the broker.

The store is a directory in which every request takes 20 ms more. The first two are compared with a topic of the same broker
that is not tiered. Spark reads the same rows straight from the store and through the broker. Rounds alternate. The broker's
cache is smaller than the history, as it is where history is long: what is read again comes from the store again.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.broker import Broker
from barnabas.cli.local_cluster import LocalCluster
from barnabas.client.admin.partitions import list_offsets
from barnabas.client.blocking import BlockingClient, drive
from barnabas.client.config import client_config
from barnabas.core.ids import TopicPartition
from barnabas.core.words import EARLIEST_LOCAL
from barnabas.server.platform import Platform
from barnabas.tiered.store import open_store
from bench.broker import Load, Target, measure_consume, measure_produce
from bench.memory import touched_memory
from bench.report import Row, write_report
from bench.slow_store import DELAY_S, Slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOAD = Load("1 KB", 1000, 500_000, "1")
PATIENCE_S = 240.0
SEGMENT = {"segment.bytes": str(32 << 20), "retention.ms": "-1"}


def _tier(directory: str) -> dict[str, str]:
    return {"remote.log.storage.system.enable": "true", "barnabas.remote.storage.url": f"file://{directory}/tier"}


def serve(zookeeper: str, directory: str) -> None:
    """In a process of its own: a broker, which prints its port."""
    import uvloop

    properties = {
        "zookeeper.connect": zookeeper,
        "broker.id": "7",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": f"{directory}/logs",
        **_tier(directory),
        "remote.log.manager.task.interval.ms": "500",
        "barnabas.remote.chunk.cache.bytes": str(128 << 20),
        "rlmm.config.remote.log.metadata.topic.num.partitions": "3",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "log.retention.check.interval.ms": "500",
        "log.initial.task.delay.ms": "500",
        "log.segment.delete.delay.ms": "0",
    }
    platform = Platform(open_store=lambda url, settings: Slow(open_store(url, settings)))
    broker = Broker(properties, platform=platform)
    uvloop.run(broker.run(lambda ready: print(ready.ports["PLAINTEXT"], flush=True)))


@contextmanager
def running() -> Iterator[Target]:
    with tempfile.TemporaryDirectory() as directory, LocalCluster(brokers=1, config=_tier(directory)) as cluster:
        command = [sys.executable, "-m", "bench.tiered", "--serve", cluster.zookeeper_connect, directory]
        with (Path(directory) / "broker.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline())
            yield Target("tiered", f"127.0.0.1:{port}", [process.pid])
        finally:
            process.terminate()
            process.wait(60)
            process.stdout.close()


def create(target: Target, topic: str, settings: Mapping[str, str]) -> None:
    """On the broker with the store."""
    admin = AdminClient(target.settings)
    new = NewTopic(topic, 1, replica_assignment=[[7]], config={**SEGMENT, **settings})
    admin.create_topics([new])[topic].result(30)
    time.sleep(0.5)


def wait_until_copied(target: Target, topic: str, count: int) -> None:
    """History is in the store only, but for the last segment."""
    last_segment = 40 * (1 << 20) // LOAD.size_bytes
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        if local_start(target, topic) >= max(1, count - last_segment):
            return
        time.sleep(0.2)
    raise TimeoutError(f"{topic} is not in the tier after {PATIENCE_S} s")


def local_start(target: Target, topic: str) -> int:
    """What is below is in the store only."""
    partition = TopicPartition(topic, 0)
    with BlockingClient(client_config(target.bootstrap)) as client:
        return drive(list_offsets(client.core, {partition: EARLIEST_LOCAL}))[partition].offset


def one_round(target: Target, number: int, load: Load, results: dict[str, list[float]]) -> None:
    tiered, plain = f"tiered-{number}", f"plain-{number}"
    create(target, tiered, {"remote.storage.enable": "true", "local.retention.bytes": "1"})
    create(target, plain, {})
    for topic, name in ((tiered, "tiered"), (plain, "plain"))[:: 1 if number % 2 else -1]:
        for measure, value in measure_produce(target, topic, load).items():
            results.setdefault(f"{name} produce {measure}", []).append(value)
    wait_until_copied(target, tiered, load.count)
    for topic, name in ((tiered, "tiered"), (plain, "plain")):
        for measure, value in measure_consume(target, topic, load).items():
            results.setdefault(f"{name} consume {measure}", []).append(value)


# -- Spark --------------------------------------------------------------------------------------------------------------------


@contextmanager
def spark_session() -> Iterator["SparkSession"]:
    """Its workers wait for the store as the broker does."""
    from pyspark.sql import SparkSession

    import barnabas.spark

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.python.daemon.module": "bench.slow_workers",
        "spark.python.unix.domain.socket.enabled": "true",
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    barnabas.spark.register(spark)
    try:
        yield spark
    finally:
        spark.stop()


def broker_cpu_s(target: Target) -> float:
    """Of the process: with threads that have ended, as those that ask the store do."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in target.pids)


def read_by_spark(spark: "SparkSession", target: Target, topic: str, count: int, way: str) -> tuple[float, float]:
    """Seconds, and those of the broker's CPU, for the rows of history that only the store has."""
    reader = spark.read.format("barnabas").option("kafka.bootstrap.servers", target.bootstrap)
    frame = (
        reader.option("subscribe", topic)
        .option("endingOffsets", json.dumps({topic: {"0": count}}))
        .option("tierReads", way)
        .schema("offset bigint, value binary")
        .load()
    )
    cpu_s, began_s = broker_cpu_s(target), time.monotonic()
    found = frame.selectExpr("count(*)", "sum(offset)", "sum(length(value))").first()
    took_s, used_s = time.monotonic() - began_s, broker_cpu_s(target) - cpu_s
    wanted = (count, count * (count - 1) // 2, count * LOAD.size_bytes)
    assert found is not None, topic
    assert tuple(found) == wanted, f"{way}: {found}, not {wanted}"
    return took_s, used_s


def spark_rounds(rounds: int, load: Load) -> dict[str, list[float]]:
    results: dict[str, list[float]] = {}
    with touched_memory(), running() as target, spark_session() as spark:
        create(target, "spark", {"remote.storage.enable": "true", "local.retention.bytes": "1"})
        measure_produce(target, "spark", load)
        wait_until_copied(target, "spark", load.count)
        count = local_start(target, "spark")
        gigabytes = count * load.size_bytes / 1e9
        for number in range(rounds + 1):
            for way in ("direct", "never")[:: 1 if number % 2 else -1]:
                took_s, used_s = read_by_spark(spark, target, "spark", count, way)
                if number:  # the first warms up
                    results.setdefault(f"{way} MB/s", []).append(gigabytes * 1000 / took_s)
                    results.setdefault(f"{way} broker CPU s/GB", []).append(used_s / gigabytes)
    return results


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=LOAD.count)
    parser.add_argument("--spark", action="store_true", help="Spark straight from the store beside the broker")
    parser.add_argument("--no-report", action="store_true", help="print only")
    parser.add_argument("--serve", nargs=2, metavar=("ZOOKEEPER", "DIRECTORY"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.serve is not None:
        serve(*given.serve)
        return
    load = Load(LOAD.name, LOAD.size_bytes, given.records, LOAD.acks)
    if given.spark:
        report(given, *spark_rows(given.rounds, load))
        return
    results: dict[str, list[float]] = {}
    with touched_memory(), running() as target:
        for number in range(given.rounds):
            one_round(target, number, load, results)
    rows = [
        Row(what, statistics.median(results[f"tiered {what}"]), statistics.median(results[f"plain {what}"]))
        for what in ("produce MB/s", "produce CPU s/GB", "consume MB/s", "consume CPU s/GB")
    ]
    title = f"Tiered storage: a store with {DELAY_S * 1000:.0f} ms a request; one partition"
    report(given, "tiered", title, rows, results, "not tiered")


def spark_rows(rounds: int, load: Load) -> tuple[str, str, list[Row], dict[str, list[float]], str]:
    results = spark_rounds(rounds, load)
    rows = [
        Row(f"Spark {what}", *(statistics.median(results[f"{way} {what}"]) for way in ("direct", "never")))
        for what in ("MB/s", "broker CPU s/GB")
    ]
    title = f"Spark straight from a store with {DELAY_S * 1000:.0f} ms a request, and through the broker, local[2]"
    return "tiered_spark", title, rows, results, "through the broker"


def report(
    given: argparse.Namespace, name: str, title: str, rows: list[Row], raw: dict[str, list[float]], rival: str
) -> None:
    if given.no_report:
        print(*(f"{row.name}: {row.ours:.2f}, {rival} {row.theirs:.2f}" for row in rows), sep="\n")
        return
    write_report(name, title, rows, rounds=given.rounds, raw=raw, rival=rival)


if __name__ == "__main__":
    main()
