"""The Spark pipeline of the demo: orders in; enriched orders, dead letters, window totals and a Delta table out.

A program of its own, as a pipeline is: `python examples/demo/pipeline.py --bootstrap HOST:PORT --folder DIR`. It prints one
line of JSON for each micro-batch, and stops when its standard input ends. No JAR, no connector to install.
"""

import argparse
import json
import os
import sys
import threading
from collections import Counter
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

import barnabas.spark
from barnabas.spark.pipelines import sinks
from barnabas.spark.report import PipelineReporter

ORDERS, CUSTOMERS = "orders", "customers"
ENRICHED, TOTALS, DEAD = "orders-enriched", "order-totals", "orders-dead"
QUERIES = ("enriched", "totals", "table")
FAILURES_MAX = 10
ORDER_SCHEMA = "order BIGINT, customer INT, product STRING, amount DOUBLE"
CUSTOMER_SCHEMA = "name STRING, country STRING"


class Pipeline:
    """Three queries on one stream of orders, by name."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._folder = folder

    def start(self, name: str) -> StreamingQuery:
        """From its checkpoint, where it has one: then nothing is done twice."""
        orders = self._orders()
        good, bad = orders.where("order IS NOT NULL"), orders.where("order IS NULL")
        topics = sinks.topic(bootstrap=self._bootstrap)
        if name == "enriched":
            return self._to(topics, self._enriched(good).unionByName(self._dead_letters(bad)), name)
        if name == "totals":
            return self._to(topics, self._totals(good), name, mode="update")
        return self._to(sinks.delta(str(self._folder / "orders")), orders.drop("key", "value"), name)

    def _orders(self) -> DataFrame:
        """What was sent, and what it says; what says nothing has no order number."""
        stream = (
            self._spark.readStream.format("barnabas")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("subscribe", ORDERS)
            .option("startingOffsets", "earliest")
            .option("kafka.group.id", "pipeline")
            .load()
        )
        text = f.col("value").cast("string")
        parsed = stream.withColumn("text", text).withColumn("parsed", f.from_json(text, ORDER_SCHEMA))
        return parsed.select("key", "value", "partition", "offset", "timestamp", "text", "parsed.*")

    def _customers(self) -> DataFrame:
        """The compacted topic as a table: the last value of each key."""
        table = (
            self._spark.read.format("barnabas")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("subscribe", CUSTOMERS)
            .load()
        )
        last = table.groupBy(f.col("key").cast("string").cast("int").alias("customer")).agg(
            f.max_by("value", "offset").cast("string").alias("value")
        )
        return last.select("customer", f.from_json("value", CUSTOMER_SCHEMA).alias("who")).select("customer", "who.*")

    def _enriched(self, good: DataFrame) -> DataFrame:
        joined = good.join(f.broadcast(self._customers()), "customer", "left")
        value = f.to_json(f.struct("order", "product", "amount", "name", "country"))
        return joined.select(f.lit(ENRICHED).alias("topic"), "key", value.cast("binary").alias("value"))

    def _dead_letters(self, bad: DataFrame) -> DataFrame:
        return bad.select(f.lit(DEAD).alias("topic"), "key", "value")

    def _totals(self, good: DataFrame) -> DataFrame:
        totals = (
            good.withWatermark("timestamp", "1 minute")
            .groupBy(f.window("timestamp", "5 seconds"), "product")
            .agg(f.count("*").alias("orders"), f.round(f.sum("amount"), 2).alias("amount"))
        )
        start = f.date_format("window.start", "HH:mm:ss").alias("at")
        return totals.select(
            f.lit(TOTALS).alias("topic"),
            f.concat_ws(" ", start, "product").alias("key"),
            f.to_json(f.struct(start, "product", "orders", "amount")).alias("value"),
        )

    def _to(self, sink: sinks.Sink, frame: DataFrame, name: str, *, mode: str = "append") -> StreamingQuery:
        checkpoint = str(self._folder / "checkpoints" / name)
        writer = sink.writer(frame, checkpoint=checkpoint, query_name=name, output_mode=mode)
        return writer.trigger(processingTime="1 second").start()


class Progress(StreamingQueryListener):
    """A line for each micro-batch, for the demo's view."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        _say({"query": event.name, "state": "started"})

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        _say(
            {
                "query": progress.name,
                "batch": progress.batchId,
                "rows": progress.numInputRows,
                "rows_per_second": progress.processedRowsPerSecond,
                "batch_ms": progress.durationMs.get("triggerExecution", 0),
                "ends": json.loads(progress.sources[0].endOffset or "{}") if progress.sources else {},
            }
        )

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing came: nothing to say."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """The main loop sees it, too."""


def _say(line: dict[str, object]) -> None:
    print(json.dumps(line), flush=True)


def session(folder: Path) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("demo")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.authenticate.socketTimeout", "60s")  # a small machine starts many workers at once here
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def keep_running(pipeline: Pipeline, over: threading.Event) -> bool:
    """Until it is over. A query that fails is started again, as operators of a cluster would; not for ever.

    Spark gives a Python worker ten seconds to come up, and a busy machine may not have them.
    """
    queries: dict[str, StreamingQuery] = {}
    failures: Counter[str] = Counter()
    while not over.wait(0.2):
        for name in QUERIES:
            error: Exception | None = None
            try:
                if name not in queries:
                    queries[name] = pipeline.start(name)
                error = queries[name].exception()
            except PySparkException as failure:
                error = failure
            if error is not None:
                queries.pop(name, None)
                failures[name] += 1
                _say({"query": name, "state": f"failed {failures[name]} times: {error}"})
                if failures[name] > FAILURES_MAX:
                    _say({"query": name, "error": str(error)})
                    return False
    for query in queries.values():
        query.stop()
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--folder", required=True, type=Path)
    options = parser.parse_args()
    spark = session(options.folder)
    barnabas.spark.register(spark)
    spark.streams.addListener(Progress())
    spark.streams.addListener(PipelineReporter(options.bootstrap, pipeline="demo", dead_letters=[DEAD]))
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    is_good = keep_running(Pipeline(spark, options.bootstrap, options.folder), over)
    if not is_good:
        return 1
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
