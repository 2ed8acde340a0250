"""The Spark process of `tests.soak.spark_chain`: two queries, and a sink that can die and be slow where its settings say.

`python -m tests.soak.spark_chain_driver SETTINGS` with the settings as JSON: a separate process that can be killed.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil

#: Spark's error after ten seconds without a connection of the Python worker; no setting changes the time.
_TOO_SLOW = "Python worker failed to connect back"
FIRST, SECOND = "chain-in", "chain-out"
APP_ID = "spark-chain"
MORTAL, WATCHED = "barnabas-mortal", "barnabas-watched"
#: Three JVMs share the machine with three brokers: they start sooner without the optimizing compiler.
_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
#: How long the first attempt at one partition waits, in turn by batch: until another attempt has won, not at all, perhaps.
DAWDLES_S = (60.0, 0.0, 3.0, 0.0)


def drive(settings: dict[str, str]) -> None:
    """Run both queries until the process is killed; with `drain`, until all records have gone through."""
    import barnabas.spark

    spark = session_of(settings)
    barnabas.spark.register(spark)
    spark.dataSource.register(_mortal_sink())
    spark.dataSource.register(_watched_source(Path(settings["folder"], "reads")))
    starts = [partial(_into_topic, spark, settings), partial(_into_delta, spark, settings)]
    if settings["drain"]:
        for start in starts:
            supervise([start])
    else:
        supervise(starts, lambda: Path(settings["folder"], "started").write_text(str(os.getpid())))


def _fail(error: Exception) -> None:
    raise error


def supervise(
    starts: Sequence[Callable[[], Any]],
    started: Callable[[], object] = lambda: None,
    failed: Callable[[Exception], None] = _fail,
) -> None:
    """Run queries until all have ended, and restart one whose Python process started too slowly for Spark."""
    queries = [start() for start in starts]
    started()
    while queries:
        time.sleep(0.2)
        for query, start in zip(list(queries), list(starts), strict=True):
            if query.isActive:
                continue
            error = query.exception()
            if error is not None and _TOO_SLOW in str(error):
                queries[queries.index(query)] = start()
                continue
            if error is not None:
                failed(error)
            queries, starts = [q for q in queries if q is not query], [s for s in starts if s is not start]


def home_of_its_own(home: Path) -> Path:
    """Return a copy of Spark's home in which executors may leave their logs."""
    import pyspark

    if not home.exists():
        home.mkdir()
        for entry in Path(pyspark.__file__).parent.iterdir():
            (home / entry.name).symlink_to(entry)
    return home


def session_of(settings: dict[str, str], environment: Mapping[str, str] | None = None) -> Any:
    """Create the Spark session of this process. `environment`: environment variables for it beyond the Python to use."""
    from pyspark.sql import SparkSession

    folder = settings["folder"]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    os.environ.update(environment or dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable))
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SPARK_HOME"] = str(home_of_its_own(Path(folder, "home")))
    Path(folder, "events").mkdir(exist_ok=True)
    builder = (
        SparkSession.builder.master(settings["master"])
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", _JAVA)
        .config("spark.executor.extraJavaOptions", _JAVA)
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        .config("spark.task.maxFailures", "8")
        .config("spark.python.authenticate.socketTimeout", "120s")
    )
    if settings["speculation"]:
        builder = (
            builder.config("spark.speculation", "true")
            .config("spark.speculation.interval", "50ms")
            .config("spark.speculation.multiplier", "1.1")
            .config("spark.speculation.quantile", "0.3")
            .config("spark.speculation.minTaskRuntime", "100ms")
            # The harness counts the scheduler's attempts there.
            .config("spark.eventLog.enabled", "true")
            .config("spark.eventLog.dir", f"file://{folder}/events")
            .config("spark.eventLog.compress", "false")
            .config("spark.eventLog.rolling.enabled", "false")
            .config("spark.eventLog.logBlockUpdates.enabled", "false")
        )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _mortal_sink() -> type:
    """Return a sink whose driver dies at the point of its commit that the file `plan` names, and whose tasks may be slow."""
    from pyspark import TaskContext

    from barnabas.spark import sink
    from barnabas.spark.source import BarnabasDataSource

    class Writer(sink.StreamWriter):
        plan = ""
        driver = 0
        dawdle = False

        def write(self, iterator: Any) -> Any:
            written = super().write(iterator)
            context = TaskContext.get()
            assert context is not None
            # The rows are in an open transaction now. Spark kills the attempt that loses.
            if self.dawdle and context.attemptNumber() == 0 and context.partitionId() == 0:
                time.sleep(DAWDLES_S[written.batch.batch % len(DAWDLES_S)])
            return written

        def reached(self, point: str) -> None:
            plan = Path(self.plan)
            if plan.exists() and plan.read_text() == point:
                plan.unlink()
                kill_family(self.driver)

    class MortalSink(BarnabasDataSource):
        @classmethod
        def name(cls) -> str:
            return MORTAL

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            writer = Writer(sink.stream_writer(self.options, schema, overwrite)._options)
            writer.plan, writer.driver = self.options["__plan"], int(self.options["__driver"])
            writer.dawdle = self.options["__dawdle"] == "yes"
            return writer

    return MortalSink


def _watched_source(log: Path) -> type:
    """Return a source that logs the reader of each micro-batch: the driver, which planned it, or tasks."""
    from barnabas.spark.driver_reads import DriverReads
    from barnabas.spark.source import BarnabasDataSource

    class Reads(DriverReads):
        def read(self, ranges: Any) -> Any:
            rows = super().read(ranges)
            with log.open("a") as lines:
                lines.write("read by tasks\n" if rows is None else "read on the driver\n")
            return rows

    class WatchedSource(BarnabasDataSource):
        @classmethod
        def name(cls) -> str:
            return WATCHED

        def streamReader(self, schema: Any) -> Any:
            reader: Any = super().streamReader(schema)
            reader._driver_reads = Reads(reader._options, reader._columns)
            return reader

    return WatchedSource


def kill_family(pid: int) -> None:
    """Kill a process and all that it has started, at once, as when a machine dies. The caller may be one of them."""
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in sorted(family, key=lambda member: member.pid == os.getpid()):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def _read(spark: Any, settings: dict[str, str], topic: str, *, by_tasks: bool) -> Any:
    """Read a topic. All micro-batches are small enough for the driver to read, unless tasks are to read them."""
    return (
        spark.readStream.format(WATCHED)
        .option("kafka.bootstrap.servers", settings["bootstrap"])
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .option("maxOffsetsPerTrigger", settings["rows"])
        .option("driverReadMaxRecords", "0" if by_tasks else settings["rows"])
        .load()
    )


def _trigger(settings: dict[str, str]) -> dict[str, Any]:
    return {"availableNow": True} if settings["drain"] else {"processingTime": "200 milliseconds"}


def _into_topic(spark: Any, settings: dict[str, str]) -> Any:
    return (
        _read(spark, settings, FIRST, by_tasks=True)
        .selectExpr("key", "concat('n', cast(value as string)) value")
        .writeStream.format(MORTAL)
        .option("__plan", f"{settings['folder']}/plan")
        .option("__driver", str(os.getpid()))
        .option("__dawdle", settings["speculation"])
        .option("kafka.bootstrap.servers", settings["bootstrap"])
        .option("topic", SECOND)
        .option("checkpointLocation", f"{settings['folder']}/checkpoint-topic")
        .option("kafka.transaction.timeout.ms", "120000")
        .trigger(**_trigger(settings))
        .start()
    )


def _into_delta(spark: Any, settings: dict[str, str]) -> Any:
    table = f"{settings['folder']}/table"

    def write(rows: Any, batch: int) -> None:
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

        # The table has the batch id with its rows, so that no batch is written twice.
        if DeltaTable.is_deltatable(table):
            known = DeltaTable(table).transaction_version(APP_ID)
            if known is not None and known >= batch:
                return
        write_deltalake(
            table,
            rows.selectExpr("cast(substr(cast(value as string), 2) as bigint) number").toArrow(),
            mode="append",
            commit_properties=CommitProperties(app_transactions=[Transaction(app_id=APP_ID, version=batch)]),
        )

    return (
        _read(spark, settings, SECOND, by_tasks=False)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", f"{settings['folder']}/checkpoint-delta")
        .trigger(**_trigger(settings))
        .start()
    )


if __name__ == "__main__":
    drive(json.loads(sys.argv[1]))
