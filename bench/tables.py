"""Topics into tables: `barnabas tables` beside the official connector with a hand-written `foreachBatch`, from one broker.

Both read the same topic of JSON in the same Spark session (`local[2]`), rounds interleaved. The hand-written query knows its
columns, parses with `from_json`, and appends each batch with `deltalake` or `pyiceberg`, as users without a JAR for the lake
do.
Ours looks for new fields in every record, keeps keys, headers and places, and separates records that do not fit. Freshness is
the time from a record's timestamp until the table has it, at a steady rate.
"""

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy
from confluent_kafka import Producer
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyiceberg.catalog import load_catalog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from barnabas.cli.local_cluster import LocalCluster
from barnabas.client.config import client_config
from barnabas.spark.tables.catalogue import Catalogue
from barnabas.spark.tables.definition import Definition, checked
from barnabas.spark.tables.filling import Cluster, fill
from barnabas.spark.tables.places import place_of
from barnabas.spark.tables.runner import Runner, RunOptions
from bench.broker import Target, create_topic
from bench.report import Row, write_report
from bench.spark import session

PARTITIONS = 4
COLUMNS = "id bigint, item string, price double, at string, paid boolean"


def record(number: int) -> bytes:
    row = {
        "id": number,
        "item": f"item-{number % 1000}",
        "price": number / 4,
        "at": "2026-11-16T00:00:00Z",
        "paid": True,
    }
    return json.dumps(row).encode()


def produce(bootstrap: str, topic: str, count: int, *, per_second: int = 0) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 500_000})
    began_s = time.monotonic()
    for number in range(count):
        if per_second and number % 1000 == 0:
            time.sleep(max(0.0, number / per_second - (time.monotonic() - began_s)))
        while True:
            try:
                producer.produce(topic, record(number), key=str(number), partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush(120)


def define(bootstrap: str, topic: str, kind: str, url: Path) -> Definition:
    with Catalogue(client_config(bootstrap)) as catalogue:
        topic_id = catalogue.topic_id(topic)
    return checked(Definition(name=url.name, topic=topic, topic_id=topic_id, format=kind, url=str(url)))


def ours(spark: SparkSession, bootstrap: str, table: Definition, batch: int) -> float:
    cluster = Cluster({"bootstrap.servers": bootstrap})
    began_s = time.monotonic()
    while fill(spark, table, cluster, records_max=batch).rows:
        pass
    return time.monotonic() - began_s


def by_hand(spark: SparkSession, bootstrap: str, topic: str, kind: str, folder: Path, batch: int) -> float:
    """The query as the documents of Spark and of the two libraries show it."""
    write: Callable[[DataFrame, int], None]
    if kind == "delta":

        def write(rows: DataFrame, number: int) -> None:
            done = CommitProperties(app_transactions=[Transaction("by-hand", number)])
            write_deltalake(str(folder), rows.toArrow(), mode="append", commit_properties=done)
    else:
        folder.mkdir()
        catalog = load_catalog(
            "by-hand", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}"
        )
        catalog.create_namespace("bench")

        def write(rows: DataFrame, number: int) -> None:
            arrow = rows.toArrow()
            catalog.create_table_if_not_exists("bench.orders", arrow.schema).append(arrow)

    stream = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", batch)
        .load()
    )
    rows = stream.select(F.from_json(F.col("value").cast("string"), COLUMNS).alias("row"), "partition", "offset")
    writer = rows.select("row.*", "partition", "offset").writeStream.foreachBatch(write).trigger(availableNow=True)
    began_s = time.monotonic()
    writer.option("checkpointLocation", f"{folder}-checkpoint").start().awaitTermination()
    return time.monotonic() - began_s


def freshness(
    spark: SparkSession, bootstrap: str, folder: Path, *, per_second: int, seconds: int, interval_s: float
) -> float:
    """Return the 99th percentile of the seconds from a record's timestamp until the table has it."""
    topic = f"fresh-{interval_s:.0f}"
    create_topic(Target("barnabas", bootstrap, []), topic, partitions=PARTITIONS)
    table = define(bootstrap, topic, "delta", folder / topic)
    with Catalogue(client_config(bootstrap)) as catalogue:
        catalogue.define(table)
    options = RunOptions(interval_s=interval_s, names=(table.name,))
    runner = Runner(spark, {"bootstrap.servers": bootstrap}, options, tell=lambda _: None)
    run = threading.Thread(target=runner.run)
    #: When each partition reached an offset.
    seen: dict[int, list[tuple[int, float]]] = {partition: [] for partition in range(PARTITIONS)}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            place = place_of(table)
            for partition, marks in seen.items():
                at = place.known(table.mark(partition))
                if at is not None and (not marks or marks[-1][0] < at):
                    marks.append((at, time.time()))

    watcher = threading.Thread(target=watch)
    produce(bootstrap, topic, PARTITIONS)
    run.start()
    watcher.start()
    count = per_second * seconds
    produce(bootstrap, topic, count, per_second=per_second)
    while sum(marks[-1][0] for marks in seen.values() if marks) < count + PARTITIONS:
        time.sleep(0.2)
    over.set()
    watcher.join()
    runner.stop()
    run.join()
    rows = DeltaTable(table.url.removeprefix("file://")).to_pyarrow_table(
        columns=["_partition", "_offset", "_timestamp"]
    )
    ages = []
    for partition, marks in seen.items():
        mine = rows.filter(numpy.asarray(rows["_partition"]) == partition)
        times_s = numpy.asarray(mine["_timestamp"].cast("int64")) / 1e6
        ends = numpy.searchsorted([at for at, _ in marks], numpy.asarray(mine["_offset"]), side="right")
        ages.append(numpy.asarray([at_s for _, at_s in marks])[ends] - times_s)
    return float(numpy.percentile(numpy.concatenate(ages), 99))


def run(rounds: int, count: int, per_second: int, seconds: int) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(LocalCluster(brokers=1, port=0))
        spark = session(str(folder))
        stack.callback(spark.stop)
        create_topic(Target("barnabas", cluster.bootstrap, []), "orders", partitions=PARTITIONS)
        produce(cluster.bootstrap, "orders", count)
        found: dict[str, dict[str, list[float]]] = {}
        for number in range(rounds + 1):
            for kind in ("delta", "iceberg"):
                table = define(cluster.bootstrap, "orders", kind, folder / f"{kind}-{number}")
                mine_s = ours(spark, cluster.bootstrap, table, count)
                hand = folder / f"{kind}-hand-{number}"
                hand_s = by_hand(spark, cluster.bootstrap, "orders", kind, hand, count)
                if number:  # the first warms up
                    each = found.setdefault(kind, {"barnabas": [], "official": []})
                    each["barnabas"].append(count / mine_s / 1000)
                    each["official"].append(count / hand_s / 1000)
        fresh = {
            interval_s: freshness(
                spark, cluster.bootstrap, folder, per_second=per_second, seconds=seconds, interval_s=interval_s
            )
            for interval_s in ((10.0, 1.0) if seconds else ())
        }
    for interval_s, age_s in fresh.items():
        print(f"freshness, --interval {interval_s:g}, {per_second:,} records/s: p99 {age_s:.1f} s")
    rows = [
        Row(f"k rows/s into {kind}", *(statistics.median(each[name]) for name in ("barnabas", "official")))
        for kind, each in found.items()
    ]
    raw = {"rows": found, "freshness_p99_s": {str(key): age_s for key, age_s in fresh.items()}, "rate": per_second}
    title = f"Topics into tables, local[2], {count / 1e6:g} million records of JSON"
    write_report("tables", title, rows, rounds=rounds, raw=raw, rival="official")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench tables")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rate", type=int, default=50_000, help="records a second, for freshness")
    parser.add_argument("--seconds", type=int, default=30, help="of freshness; 0 leaves it out")
    given = parser.parse_args(arguments)
    run(given.rounds, given.records, given.rate, given.seconds)
