"""Pipelines beside hand-written Spark jobs: decoding, tables, many partitions.

Both read the same topics of one broker of ours, in the same Spark session (`local[2]`), rounds interleaved. Spark alone is its
official connector with `from_json` and `from_avro` (JARs), and a hand-written `foreachBatch` that appends to a Delta table.
"""

import argparse
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import fastavro
from confluent_kafka import Producer
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import barnabas.spark
from barnabas.cli.local_cluster import LocalCluster
from barnabas.spark.pipelines import sinks
from barnabas.spark.pipelines.codecs import Avro, Json, decode
from bench.broker import Target, create_topic
from bench.report import Row, write_report
from bench.spark import session

PARTITIONS = 4
MANY = 1000
FIELDS = 10
SCHEMA = ", ".join(f"f{n} {'string' if n % 2 else 'long'}" for n in range(FIELDS))
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": f"f{n}", "type": ["null", "string" if n % 2 else "long"]} for n in range(FIELDS)],
}
#: Read every field, so that Spark can skip none.
TOTALS = [f"sum(data.f{n})" if n % 2 == 0 else f"sum(length(data.f{n}))" for n in range(FIELDS)]
_numbers = count()


def row(number: int) -> dict[str, object]:
    return {f"f{n}": f"text {number % 1000} of {n}" if n % 2 else number * n for n in range(FIELDS)}


def as_avro(number: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, AVRO, row(number))
    return out.getvalue()


def fill(target: Target, topic: str, records: int, value: Callable[[int], bytes], *, partitions: int) -> None:
    print(f"filling topic {topic} of {partitions:,} partitions", flush=True)
    create_topic(target, topic, partitions=partitions)
    producer = Producer({"bootstrap.servers": target.bootstrap, "linger.ms": 50, "batch.size": 200_000})
    values = [value(number) for number in range(1000)]
    for number in range(records):
        while True:
            try:
                producer.produce(topic, values[number % 1000], partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.01)
    assert producer.flush(300) == 0


def source(spark: SparkSession, name: str, bootstrap: str, topic: str) -> DataFrame:
    return spark.read.format(name).option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()


def timed(frame: DataFrame) -> float:
    began = time.monotonic()
    found = frame.selectExpr("count(data)", *TOTALS).first()
    assert found is not None and found[0] > 0
    return time.monotonic() - began


def ours_json(records: DataFrame) -> DataFrame:
    return decode(records, Json(SCHEMA), mode="DROP")


def spark_json(records: DataFrame) -> DataFrame:
    return records.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("data")).filter("data is not null")


def ours_avro(records: DataFrame) -> DataFrame:
    return decode(records, Avro(AVRO), mode="DROP")


def spark_avro(records: DataFrame) -> DataFrame:
    from pyspark.sql.avro.functions import from_avro

    read = from_avro("value", json.dumps(AVRO), {"mode": "PERMISSIVE"})
    return records.select(read.alias("data")).filter("data is not null")


def followed(spark: SparkSession, name: str, bootstrap: str, topic: str) -> DataFrame:
    reader = spark.readStream.format(name).option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    return reader.option("startingOffsets", "earliest").load()


def to_delta(spark: SparkSession, bootstrap: str, folder: str, records: int) -> float:
    """Write a topic of JSON to a table, once: ours."""
    place = f"{folder}/ours-{next(_numbers)}"
    rows = ours_json(followed(spark, "barnabas", bootstrap, "json")).select("data.*")
    writer = sinks.delta(f"{place}/table").writer(rows, checkpoint=f"{place}/checkpoint")
    return finished(writer, f"{place}/table", records)


def by_hand(spark: SparkSession, bootstrap: str, folder: str, records: int) -> float:
    place = f"{folder}/hand-{next(_numbers)}"

    def append(rows: DataFrame, batch: int) -> None:
        write_deltalake(f"{place}/table", rows.toArrow(), mode="append")

    rows = spark_json(followed(spark, "kafka", bootstrap, "json")).select("data.*")
    writer = rows.writeStream.foreachBatch(append).option("checkpointLocation", f"{place}/checkpoint")
    return finished(writer, f"{place}/table", records)


def finished(writer: Any, table: str, records: int) -> float:
    began = time.monotonic()
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    took = time.monotonic() - began
    assert DeltaTable(table).count() == records
    return took


def drained(spark: SparkSession, name: str, bootstrap: str, topic: str, records: int) -> float:
    began = time.monotonic()
    found = source(spark, name, bootstrap, topic).selectExpr("count(*)", "sum(length(value))").first()
    assert found is not None and found[0] == records, found
    return time.monotonic() - began


def run(rounds: int, records: int, *, many: int = MANY) -> None:
    results: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        cluster = stack.enter_context(LocalCluster(brokers=1, data=Path(folder) / "ours"))
        target = Target("barnabas", cluster.bootstrap, [cluster.pid(1)])
        for topic, value, partitions in (
            ("json", lambda number: json.dumps(row(number)).encode(), PARTITIONS),
            ("avro", as_avro, PARTITIONS),
            ("one", as_avro, 1),
            ("many", as_avro, many),
        ):
            fill(target, topic, records, value, partitions=partitions)
        spark = session(folder)
        stack.callback(spark.stop)
        barnabas.spark.register(spark)
        server, formats = cluster.bootstrap, {"barnabas": "barnabas", "Spark alone": "kafka"}
        measures: dict[str, dict[str, Callable[[], float]]] = {
            "JSON decoded, k records/s": {
                "barnabas": lambda: timed(ours_json(source(spark, "barnabas", server, "json"))),
                "Spark alone": lambda: timed(spark_json(source(spark, "kafka", server, "json"))),
            },
            "Avro decoded, k records/s": {
                "barnabas": lambda: timed(ours_avro(source(spark, "barnabas", server, "avro"))),
                "Spark alone": lambda: timed(spark_avro(source(spark, "kafka", server, "avro"))),
            },
            "JSON to Delta, once, k records/s": {
                "barnabas": lambda: to_delta(spark, server, folder, records),
                "Spark alone": lambda: by_hand(spark, server, folder, records),
            },
            "one partition read, k records/s": {
                name: lambda each=each: drained(spark, each, server, "one", records) for name, each in formats.items()
            },
            f"{many:,} partitions read, k records/s": {
                name: lambda each=each: drained(spark, each, server, "many", records) for name, each in formats.items()
            },
        }
        for number in range(-1, rounds):
            for what, by in measures.items():
                for name, measure in by.items():
                    rate = records / measure() / 1000
                    if number >= 0:
                        results.setdefault(what, {}).setdefault(name, []).append(rate)
                    print(f"{name:12} {what}: {rate:.1f}{'' if number >= 0 else ' (to warm up)'}", flush=True)
    rows = [
        Row(what, statistics.median(by["barnabas"]), statistics.median(by["Spark alone"]))
        for what, by in results.items()
    ]
    title = f"Pipelines on Spark, local[2], records of {FIELDS} fields, {records:,} of them"
    write_report("pipelines", title, rows, rounds=rounds, raw=results, rival="Spark alone")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--partitions", type=int, default=MANY, help="of the topic with many")
    chosen = parser.parse_args(arguments)
    run(chosen.rounds, chosen.records, many=chosen.partitions)


if __name__ == "__main__":
    main()
