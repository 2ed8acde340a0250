"""One driver of two: a query for each kind of sink, all from one topic. The first of the two stops in the middle of a batch.

`python -m tests.scenarios.spark.two_drivers SETTINGS` with the settings as JSON. `test_spark_two_drivers.py` runs it twice
with the same checkpoints, in processes of their own. While a file `hold` is in its folder and no file `go`, each query of the
driver stops after it has checked whether its batch is new and before it publishes it, like a driver that was taken for dead.
"""

import json
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, WriterCommitMessage

from barnabas.spark import sink
from barnabas.spark.pipelines import cdc, sinks, sources
from barnabas.spark.pipelines.connector import Sink, register_all
from barnabas.spark.pipelines.delta_upsert import DeltaUpsertSource
from barnabas.spark.pipelines.sinks.delta_table import DeltaSource
from barnabas.spark.pipelines.sinks.exactly_once import StreamWriter
from barnabas.spark.pipelines.sinks.iceberg_table import IcebergSource
from barnabas.spark.pipelines.sources.sql_query import SqlSource
from barnabas.spark.source import BarnabasDataSource
from barnabas.spark.transactions import READY
from tests.soak.spark_chain_driver import session_of, supervise
from tests.spark_python import spark_environment

INPUT, OUTPUT = "numbers", "copies"
#: Rows of a micro-batch.
ROWS = 20
#: How long a query may take to its first batch before the next one starts.
START_S = 60
#: Where targets of tables stop. A database would make the new driver wait for the transaction of the old one.
HELD_IN = {DeltaSource: "_publish", DeltaUpsertSource: "_publish", IcebergSource: "_evolve", SqlSource: "publish"}


def catalog_in(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


def sinks_in(folder: Path, bootstrap: str) -> dict[str, Sink]:
    return {
        "topic": sinks.topic(OUTPUT, bootstrap=bootstrap),
        "delta": sinks.delta(f"{folder}/delta"),
        "delta upserts": cdc.upsert_into_delta(f"{folder}/upserted", keys=["number"]),
        "iceberg": sinks.iceberg("a.b", catalog=catalog_in(folder)),
        "sqlite": sinks.sql(f"sqlite:///{folder}/database", "copies"),
        "parquet": sinks.parquet(f"{folder}/parquet"),
    }


def checkpoint_of(folder: Path, name: str) -> Path:
    return folder / "checkpoints" / name.replace(" ", "-")


def batches_in(checkpoint: Path) -> set[int]:
    """Return the batches that Spark has noted as done."""
    return {int(each.name) for each in checkpoint.glob("commits/*") if each.name.isdigit()}


def held_at(folder: Path, form: str) -> Path:
    """Return the file that exists when the query with a sink of this format has stopped."""
    return folder / f"{form}.held"


def wait_for_go(folder: Path, form: str) -> None:
    if (folder / "hold").exists() and not (folder / "go").exists():
        held_at(folder, form).touch()
        while not (folder / "go").exists():
            time.sleep(0.1)


def held_table(source: type[DataSource], method: str, folder: Path) -> type[DataSource]:
    """Make the driver of this format stop at this method of its target."""

    class Writer(StreamWriter):
        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
            original = getattr(self.target, method)

            def later(*given: object) -> object:
                wait_for_go(folder, source.name())
                return original(*given)

            setattr(self.target, method, later)
            super().commit(messages, batchId)

    class Held(source):  # type: ignore[misc, valid-type]
        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return Writer(super().streamWriter(schema, overwrite).target)

    return Held


def held_topics(folder: Path) -> type[DataSource]:
    class Writer(sink.StreamWriter):
        def reached(self, point: str) -> None:
            if point == READY:
                wait_for_go(folder, "barnabas")

    class Held(BarnabasDataSource):
        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return Writer(sink.stream_writer(self.options, schema, overwrite)._options)

    return Held


def held_rows(folder: Path, rows: Iterator[Any]) -> Iterator[Any]:
    """Make a task stop: Spark writes Parquet itself, so there is no method of ours to stop at."""
    for batch in rows:
        wait_for_go(folder, "parquet")
        yield batch


def register(spark: SparkSession, folder: Path) -> None:
    register_all(spark)
    spark.dataSource.register(held_topics(folder))
    for source, method in HELD_IN.items():
        spark.dataSource.register(held_table(source, method, folder))


def rows_for(spark: SparkSession, name: str, settings: dict[str, str]) -> DataFrame:
    folder, options = Path(settings["folder"]), {"maxOffsetsPerTrigger": str(ROWS)}
    read = sources.topic(INPUT, bootstrap=settings["bootstrap"], starting="earliest", options=options).stream(spark)
    rows = read.selectExpr("cast(cast(value as string) as bigint) number", "offset")
    if name == "topic":
        return rows.selectExpr("cast(number as string) value")
    if name == "delta upserts":
        return rows.selectExpr("number", "false _deleted", "offset _sequence")
    rows = rows.select("number")
    if name == "parquet" and settings["holds"]:
        rows = rows.mapInArrow(partial(held_rows, folder), "number long")
    return rows


def drive(settings: dict[str, str]) -> None:
    """Run all queries: those of the old driver until each has ended, those of the new one until the process is killed."""
    folder, is_old = Path(settings["folder"]), settings["holds"] != ""
    spark = session_of(settings, spark_environment(folder))
    if is_old:
        register(spark, folder)

    def start(name: str, into: Sink) -> Any:
        checkpoint = checkpoint_of(folder, name)
        writer = into.writer(rows_for(spark, name, settings), checkpoint=str(checkpoint), query_name=name)
        before = batches_in(checkpoint)
        query = writer.trigger(processingTime="200 milliseconds").start()
        # One after the other: Spark gives a Python process ten seconds to start. Each finds a batch to be done.
        deadline = time.monotonic() + START_S
        while query.isActive and batches_in(checkpoint) == before and time.monotonic() < deadline:
            time.sleep(0.1)
        return query

    def tell(error: Exception) -> None:
        print(f"ended: {error}", flush=True)

    starts = [partial(start, name, into) for name, into in sinks_in(folder, settings["bootstrap"]).items()]
    if is_old:
        supervise(starts, failed=tell)
        print("all ended", flush=True)
    else:
        supervise(starts)


if __name__ == "__main__":
    drive(json.loads(sys.argv[1]))
