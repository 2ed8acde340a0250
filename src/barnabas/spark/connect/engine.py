"""Runs connectors as streaming queries of one Spark. Owner: the thread that made it.

A connector's query has its checkpoint in `STATE/<connector>/<generation>`. A reset begins another generation, so that nothing
that remembers the former one (tables, the log of decisions) takes the new batches for old ones.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from barnabas.spark import WORKER_SETTINGS
from barnabas.spark.connect.connector import Connector, Worker
from barnabas.spark.connect.conversion import Conversion
from barnabas.spark.connect.herder import Running
from barnabas.spark.connect.sink_batch import Batches, Letters
from barnabas.spark.connect.source_flow import Flow, SourcePart, Tolerance, to_topics, topics_of
from barnabas.spark.pipelines.sinks import make_topic
from barnabas.spark.pipelines.sinks import topic as topic_sink
from barnabas.spark.pipelines.sources import topic as topic_source
from barnabas.spark.python_command import set_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: The name of the only flow of a sink.
SINK_FLOW: Final = "sink"
_LOG4J: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yy/MM/dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""


@contextmanager
def spark_of(state: Path, master: str) -> "Iterator[SparkSession]":
    """Start Spark, whose log goes to a file in `state`."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    state.mkdir(parents=True, exist_ok=True)
    set_python(master)
    logging = state / "log4j2.properties"
    logging.write_text(_LOG4J.format(file=state / "spark.log"))
    settings = {
        "spark.master": master,
        "spark.app.name": "barnabas connect",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # Batches of connectors are small, and a shuffle of a batch only counts the tables that it has.
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": f"file://{state / 'warehouse'}",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{logging}",
        # Connectors share the cores: none waits until all tasks of another one are done.
        "spark.scheduler.mode": "FAIR",
        **WORKER_SETTINGS,
    }
    if master.startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    conf = SparkConf(loadDefaults=True).setAll(list(settings.items()))
    with open(state / "spark.log", "ab") as log:
        gateway = launch_gateway(conf=conf, popen_kwargs={"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
    session = SparkSession(SparkContext(conf=conf, gateway=gateway))
    try:
        yield session
    finally:
        session.stop()


@dataclass(frozen=True)
class Query:
    """A running query."""

    query: "StreamingQuery"

    def is_active(self) -> bool:
        return bool(self.query.isActive)

    def failure(self) -> str:
        error = self.query.exception()
        return "" if error is None else first_cause(str(error))

    def stop(self) -> None:
        self.query.stop()


def first_cause(text: str) -> str:
    """Return the line of a Python error within Spark's report, which has the traces of both languages."""
    lines = [line for line in text.splitlines() if line.strip()]
    named = [line for line in lines if line.startswith(("barnabas.", "pyspark.errors.exceptions.captured"))]
    return (named or lines or [text])[-1].strip()


@dataclass(frozen=True)
class SparkEngine:
    """The engine of a `Herder`."""

    spark: "SparkSession"
    worker: Worker
    state: Path
    #: Queries end when everything that is there was read.
    once: bool = False

    def start(self, connector: Connector) -> dict[str, Running]:
        if connector.of.kind == "sink":
            return {SINK_FLOW: Query(self._start_sink(connector, once=self.once))}
        part: SourcePart = connector.of.make(connector)
        return {flow.name: Query(self._start_flow(connector, flow, once=self.once)) for flow in part.flows()}

    def checkpoints(self, name: str) -> dict[str, Path]:
        folder = self.checkpoint(name)
        if (folder / "metadata").exists():
            return {SINK_FLOW: folder}
        return {unquote(each.parent.name): each.parent for each in sorted(folder.glob("*/metadata"))}

    def reset(self, name: str) -> None:
        (self.folder(name) / "generation").unlink(missing_ok=True)

    def folder(self, name: str) -> Path:
        return self.state / quote(name, safe="")

    def generation(self, name: str) -> str:
        """Return the connector's generation; make the first one."""
        file = self.folder(name) / "generation"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(uuid.uuid4().hex[:12])
        return file.read_text()

    def checkpoint(self, name: str) -> Path:
        return self.folder(name) / self.generation(name)

    def _start_sink(self, connector: Connector, *, once: bool) -> "StreamingQuery":
        o = connector.options
        overrides = connector.clients("consumer")
        options = {f"kafka.{name}": value for name, value in (dict(self.worker.client) | overrides).items()}
        starting = options.pop("kafka.auto.offset.reset", "earliest")
        source = topic_source(
            o["topics"] or None,
            bootstrap=self.worker.bootstrap,
            pattern=o["topics.regex"].pattern if o["topics.regex"] is not None else None,
            starting=starting,
            headers=True,
            group=options.pop("kafka.group.id", f"connect-{connector.name}"),
            options=options,
        )
        batches = Batches(
            connector.name,
            f"connect-{connector.name}-{self.generation(connector.name)}",
            conversion_of(connector),
            connector.of.make(connector),
            self.letters(connector),
            tasks_max=o["tasks.max"],
        )
        writer = source.stream(self.spark).writeStream.foreachBatch(batches).queryName(connector.name)
        writer = writer.option("checkpointLocation", str(self.checkpoint(connector.name)))
        return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="0 seconds")).start()

    def _start_flow(self, connector: Connector, flow: Flow, *, once: bool) -> "StreamingQuery":
        o = connector.options
        conversion = conversion_of(connector)
        producer = dict(self.worker.client) | connector.clients("producer")
        options = {f"kafka.{name}": value for name, value in producer.items()}
        if (partitions := o["topic.creation.default.partitions"]) is not None:
            for topic in topics_of(conversion, flow.topics):
                make_topic(
                    topic,
                    {"bootstrap.servers": self.worker.bootstrap, **producer},
                    partitions,
                    o["topic.creation.default.replication.factor"],
                )
        tolerance = Tolerance(connector.name, connector.tolerates, o["errors.log.enable"])
        records = to_topics(flow.source.stream(self.spark), flow.records, conversion, tolerance)
        name = f"{connector.name}:{flow.name}"
        checkpoint = self.checkpoint(connector.name) / quote(flow.name, safe="")
        sink = topic_sink(bootstrap=self.worker.bootstrap, options=options)
        writer = sink.writer(records, checkpoint=str(checkpoint), query_name=name)
        if once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{flow.poll_ms} milliseconds").start()

    def letters(self, connector: Connector) -> Letters:
        o = connector.options
        producer = dict(self.worker.client) | connector.clients("producer")
        return Letters(
            tolerates=connector.tolerates,
            topic=o["errors.deadletterqueue.topic.name"],
            replicas=o["errors.deadletterqueue.topic.replication.factor"],
            with_context=o["errors.deadletterqueue.context.headers.enable"],
            logs=o["errors.log.enable"],
            logs_places=o["errors.log.include.messages"],
            bootstrap=self.worker.bootstrap,
            options={f"kafka.{name}": value for name, value in producer.items()},
        )


def conversion_of(connector: Connector) -> Conversion:
    return Conversion(connector.key_converter, connector.value_converter, connector.header_converter, connector.chain)
