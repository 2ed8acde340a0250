"""Spark over history: straight from the store, through the broker, and what Spark itself costs.

The floor is a source with ready rows: it only costs Arrow over a socket, and the JVM's conversion to rows. No Spark source in
Python can cost less. CPU per GB is reported by process, because on a shared machine it varies least.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import barnabas.spark
from bench.broker import Load, Target, measure_produce
from bench.memory import touched_memory
from bench.report import Row
from bench.slow_store import DELAY_S
from bench.tiered import broker_cpu_s, create, local_start, running, wait_until_copied

SCHEMA = "offset bigint, value binary"
PARTS = ("Python workers", "JVM", "broker")
#: Rows in a batch of the floor, and the number of tasks that send them.
_BATCH_ROWS = 1000
_TASKS = 4


class Ready(DataSource):
    """A source whose rows are ready."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _ReadyReader(int(self.options["batches"]), int(self.options["size"]))


class _ReadyReader(DataSourceReader):
    def __init__(self, batches: int, size_bytes: int) -> None:
        self._batches, self._size_bytes = batches, size_bytes

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(_TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        values = pa.array([bytes(self._size_bytes)] * _BATCH_ROWS)
        batch = pa.RecordBatch.from_arrays([pa.array(range(_BATCH_ROWS)), values], names=["offset", "value"])
        for _ in range(partition.value, self._batches, _TASKS):
            yield batch


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """Configure Spark's workers to wait for the store as the broker does."""
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
    spark.dataSource.register(Ready)
    try:
        yield spark
    finally:
        spark.stop()


def cpu_s(target: Target) -> list[float]:
    """Return the CPU times of `PARTS` so far."""
    [jvm] = [each for each in psutil.Process().children() if each.name() == "java"]
    workers = sum(sum(each.cpu_times()) for each in jvm.children(recursive=True))  # with those that have ended
    return [workers, sum(jvm.cpu_times()[:2]), broker_cpu_s(target)]


def measure(frame: DataFrame, target: Target, wanted: tuple[int, int], gigabytes: float) -> dict[str, float]:
    """Read every row. `wanted` is the number of rows, and the bytes of their values."""
    before, began_s = cpu_s(target), time.monotonic()
    found = frame.selectExpr("count(*)", "sum(length(value))", "sum(offset)").first()
    took_s, after = time.monotonic() - began_s, cpu_s(target)
    assert found is not None and tuple(found)[:2] == wanted, f"{found}, not {wanted}"
    used = {part: (b - a) / gigabytes for part, a, b in zip(PARTS, before, after, strict=True)}
    return {"MB/s": gigabytes * 1000 / took_s, "all": sum(used.values()), **used}


def spark_rounds(rounds: int, load: Load) -> dict[str, list[float]]:
    results: dict[str, list[float]] = {}
    with touched_memory(), running() as target, spark_session() as spark:
        create(target, "spark", {"remote.storage.enable": "true", "local.retention.bytes": "1"})
        measure_produce(target, "spark", load)
        wait_until_copied(target, "spark", load.count)
        # Whole batches of the floor, all of them only in the store.
        count = local_start(target, "spark") // _BATCH_ROWS * _BATCH_ROWS
        reader = spark.read.format("barnabas").option("kafka.bootstrap.servers", target.bootstrap)
        topic = reader.option("subscribe", "spark").option("endingOffsets", json.dumps({"spark": {"0": count}}))
        ready = spark.read.format("ready").option("batches", count // _BATCH_ROWS).option("size", load.size_bytes)
        wanted, gigabytes = (count, count * load.size_bytes), count * load.size_bytes / 1e9
        ways = {
            "direct": topic.option("tierReads", "direct").schema(SCHEMA).load(),
            "never": topic.option("tierReads", "never").schema(SCHEMA).load(),
            "floor": ready.schema(SCHEMA).load(),
        }
        for number in range(rounds + 1):
            for way in list(ways)[:: 1 if number % 2 else -1]:
                for what, value in measure(ways[way], target, wanted, gigabytes).items():
                    if number:  # the first warms up
                        results.setdefault(f"{way} {what}", []).append(value)
    return results


def spark_rows(rounds: int, load: Load) -> tuple[str, str, list[Row], dict[str, list[float]], str]:
    results = spark_rounds(rounds, load)
    rows = []
    for what in ("MB/s", "all", *PARTS):
        direct, never, floor = (statistics.median(results[f"{way} {what}"]) for way in ("direct", "never", "floor"))
        name = what if what == "MB/s" else f"CPU s/GB, {what}"
        rows.append(Row(f"Spark {name}", direct, never, floor))
    title = f"Spark straight from a store with {DELAY_S * 1000:.0f} ms a request, and through the broker, local[2]"
    return "tiered_spark", title, rows, results, "through the broker"
