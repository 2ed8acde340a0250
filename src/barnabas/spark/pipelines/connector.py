"""Connectors: a format and its options, for plain structured streaming and for `pyspark.pipelines` alike.

orders = sources.topic("orders", bootstrap="localhost:9092").stream()
sinks.delta("/lake/orders").create("lake")                                  # in a pipeline: @dp.append_flow(target="lake")
sinks.delta("/lake/orders").writer(orders, checkpoint="/state/o").start()   # without one
"""

import importlib
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from barnabas.spark.checkpoint import BY_CALLER, BY_CHECKPOINT, NOT_KNOWN
from barnabas.spark.pipelines._flows import active_flow
from barnabas.spark.python_command import early_python

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

#: Makes a format known to a session; may be called again.
Register: TypeAlias = "Callable[[SparkSession], None]"


_FORMATS: Final = (
    ("barnabas.spark.pipelines.sinks.delta_table", "DeltaSource"),
    ("barnabas.spark.pipelines.delta_upsert", "DeltaUpsertSource"),
    ("barnabas.spark.pipelines.sinks.iceberg_table", "IcebergSource"),
    ("barnabas.spark.pipelines.sources.sql_query", "SqlSource"),
    ("barnabas.spark.pipelines.sources.postgres_changes", "PostgresChangesSource"),
    ("barnabas.spark.pipelines.sources.postgres_log", "PostgresLogSource"),
    ("barnabas.spark.pipelines.sources.generator", "SyntheticSource"),
)
#: The module that Spark Connect runs for a function of `foreachBatch`.
_CONNECT_BATCHES: Final = "pyspark.sql.connect.streaming.worker.foreach_batch_worker"
#: Formats that each session knows.
_registered: "WeakKeyDictionary[SparkSession, set[str]]" = WeakKeyDictionary()
#: Actions before the pipeline that is being defined runs for the first time, such as creating a topic.
_before_run: list[Callable[[], None]] = []
#: Consumer groups that show the progress of the pipeline that is being defined: (bootstrap servers, group).
_groups: list[tuple[str, str]] = []
#: Clusters that the pipeline that is being defined reads or writes, by their bootstrap servers.
_clusters: list[str] = []
#: Dead-letter topics of the pipeline that is being defined.
_dead_letters: list[str] = []
#: Sinks of the pipeline that is being defined, by name.
_sinks: "dict[str, Sink]" = {}
#: Sources of the flows of the pipeline that is being defined: (flow, source, whether the flow reads it as a stream).
_sources: "list[tuple[str, Source, bool]]" = []
_pipeline: str | None = None
#: The topic that a query's name of `once` stands for: (bootstrap servers, query, name) to topic. The decision log of a cluster
#: has one record for a query and a name, whatever the topic. Tables remember names for each table.
_once_topics: dict[tuple[str, str, str], str | None] = {}
#: Settings of Kafka clients, without `kafka.`, of every topic of the pipeline that is being defined, unless it says otherwise.
_client_settings: dict[str, str] = {}


@contextmanager
def defining(pipeline: str, client_settings: Mapping[str, str] | None = None) -> Iterator[None]:
    """Define a pipeline within this block; the lists of actions, groups and topics begin empty."""
    global _pipeline
    _before_run.clear()
    _groups.clear()
    _clusters.clear()
    _dead_letters.clear()
    _sinks.clear()
    _sources.clear()
    _client_settings.update(client_settings or {})
    _pipeline = pipeline
    try:
        yield
    finally:
        _pipeline = None
        _client_settings.clear()


def pipeline_name() -> str | None:
    """Return the pipeline that is being defined, if one is."""
    return _pipeline


def topic_options(bootstrap: str) -> dict[str, str]:
    """Return the options of every topic of this cluster: the project's settings and the bootstrap servers."""
    if _pipeline is not None and bootstrap not in _clusters:
        _clusters.append(bootstrap)
    return {f"kafka.{name}": value for name, value in _client_settings.items()} | {"kafka.bootstrap.servers": bootstrap}


def before_run(action: Callable[[], None]) -> None:
    """Do this when the pipeline starts; not when it is only validated."""
    _before_run.append(action)


def note_group(bootstrap: str, group: str) -> None:
    if (bootstrap, group) not in _groups:
        _groups.append((bootstrap, group))


def groups() -> list[tuple[str, str]]:
    return list(_groups)


def streams() -> list[tuple[str, Mapping[str, str]]]:
    """Return the streams of topics: the flow, and the options of the source."""
    return [(flow, source.options) for flow, source, is_stream in _sources if is_stream and source.format == "barnabas"]


def sources() -> "list[tuple[str, Source]]":
    return [(flow, source) for flow, source, _ in _sources]


def clusters() -> list[str]:
    return list(_clusters)


def note_dead_letters(topic: str) -> None:
    if _pipeline is not None and topic not in _dead_letters:
        _dead_letters.append(topic)


def dead_letters() -> list[str]:
    return list(_dead_letters)


def sinks() -> "dict[str, Sink]":
    return dict(_sinks)


def prepare() -> None:
    while _before_run:
        _before_run.pop(0)()


@dataclass(frozen=True)
class Source:
    """A source of rows: `stream` for a flow that goes on, `batch` for all rows that it has now."""

    format: str
    options: Mapping[str, str]
    schema: "StructType | str | None" = None
    register: "Register | None" = field(default=None, repr=False)

    def stream(self, spark: "SparkSession | None" = None) -> "DataFrame":
        session = self._session(spark)
        self._note(is_stream=True)
        reader = session.readStream.format(self.format).options(**self.options)
        return (reader.schema(self.schema) if self.schema is not None else reader).load()

    def batch(self, spark: "SparkSession | None" = None) -> "DataFrame":
        session = self._session(spark)
        self._note(is_stream=False)
        reader = session.read.format(self.format).options(**self.options)
        return (reader.schema(self.schema) if self.schema is not None else reader).load()

    def _note(self, *, is_stream: bool) -> None:
        if (flow := active_flow()) is not None:
            _sources.append((flow, self, is_stream))

    def _session(self, spark: "SparkSession | None") -> "SparkSession":
        session = spark or active_session()
        if self.register is not None:
            self.register(session)
        return session


@dataclass(frozen=True)
class Sink:
    """A sink for rows."""

    format: str
    options: Mapping[str, str]
    register: "Register | None" = field(default=None, repr=False)
    #: Columns by which Spark itself divides the rows into folders.
    partition_by: tuple[str, ...] = ()
    #: Called before the first writer starts.
    prepare: Callable[[], None] | None = field(default=None, repr=False)

    def create(self, name: str) -> None:
        """Define the sink under this name in the pipeline that is being read; flows name it as their target."""
        from pyspark import pipelines as dp

        if self.partition_by:
            raise ValueError("a sink of a pipeline cannot have folders per value: use @dp.table(partition_cols=…)")
        if self.register is not None:
            self.register(active_session())
        if self.prepare is not None:
            before_run(self.prepare)
        if pipeline_name() is not None:
            _sinks[name] = self
        dp.create_sink(name, self.format, dict(self.options))

    def _make_ready(self, spark: "SparkSession") -> None:
        if self.register is not None:
            self.register(spark)
        if self.prepare is not None:
            self.prepare()

    def writer(
        self, frame: "DataFrame", *, checkpoint: str, query_name: str | None = None, output_mode: str = "append"
    ) -> "DataStreamWriter":
        """Return a writer of this stream. The caller sets a trigger and starts it."""
        self._make_ready(frame.sparkSession)
        if output_mode == "update" and self.format == "barnabas":
            return self._updating(frame, checkpoint, query_name or "update")
        writer = frame.writeStream.format(self.format).options(**self.options)
        writer = writer.outputMode(output_mode).option("checkpointLocation", checkpoint)
        writer = writer.partitionBy(*self.partition_by) if self.partition_by else writer
        return writer.queryName(query_name) if query_name is not None else writer

    def _updating(self, frame: "DataFrame", checkpoint: str, query_name: str) -> "DataStreamWriter":
        """Write each micro-batch by a batch write: Spark does not let a sink in Python have output mode update."""
        from barnabas.spark.sink_options import BATCH_ID, RUN_ID

        known_by = {"queryName": query_name, "checkpointLocation": checkpoint, RUN_ID: uuid.uuid4().hex}
        options = {**self.options, **known_by}

        def append(rows: "DataFrame", batch: int) -> None:
            rows.write.format("barnabas").options(**options, **{BATCH_ID: str(batch)}).mode("append").save()

        writer = frame.writeStream.foreachBatch(append).outputMode("update").queryName(query_name)
        return writer.option("checkpointLocation", checkpoint)

    def write(
        self,
        frame: "DataFrame",
        *,
        mode: str = "append",
        once: tuple[str, int] | None = None,
        checkpoint: str | None = None,
    ) -> None:
        """Write a batch: all of it or nothing.

        `once`: a name and a number. A batch of this name that is written again, or after one of a higher number, is left alone,
        with a line in the log. So several sinks within `foreachBatch` have each batch once:
        `sink.write(rows, once=("orders-to-lake", batch_id))`. Two topics of one cluster need two names.

        Within `foreachBatch` the batch is known by its query's checkpoint and planned offsets as well: another batch under the
        same number is refused. Spark Connect does not say where the checkpoint is: give it as `checkpoint`.
        """
        self._make_ready(frame.sparkSession)
        if once is not None:
            self._require_name_of_its_own(once[0], frame.sparkSession)
        origin = origin_of(frame.sparkSession, checkpoint)
        options = {**self.options, **(self._once(*once, origin) if once is not None else {})}
        writer = frame.write.format(self.format).options(**options).mode(mode)
        (writer.partitionBy(*self.partition_by) if self.partition_by else writer).save()

    def _once(self, name: str, number: int, origin: "Origin") -> dict[str, str]:
        if self.format == "barnabas":
            from barnabas.spark.sink_options import BATCH_ID, ONCE, ONCE_CHECKPOINT, RUN_ID

            known_by = {"queryName": name, "checkpointLocation": f"once:{name}"}
            known_by |= {ONCE: origin.kind, ONCE_CHECKPOINT: origin.checkpoint}
            return known_by | {BATCH_ID: str(number), RUN_ID: uuid.uuid4().hex}
        if not self.format.startswith("barnabas-"):
            raise ValueError(
                f"format {self.format} cannot recognise a batch that comes again: write into a table or a topic"
            )
        return {
            "onceName": name,
            "onceBatch": str(number),
            "onceOrigin": origin.kind,
            "onceCheckpoint": origin.checkpoint,
        }

    def _require_name_of_its_own(self, name: str, spark: "SparkSession") -> None:
        """Refuse a name that the query uses for another topic: the sink would leave the second write out as a repeated one."""
        if self.format != "barnabas":
            return
        topic = self.options.get("topic")
        other = _once_topics.setdefault((self.options["kafka.bootstrap.servers"], query_of(spark), name), topic)
        if other != topic:
            raise ValueError(
                f"once={name!r} is the name of writes into {other or 'topics'}. Give writes into {topic or 'topics'} another "
                "name, or the sink takes them for the same write and leaves them out"
            )


class Origin(NamedTuple):
    """The query around a write with `once=`, if there is one."""

    #: BY_CALLER, BY_CHECKPOINT or NOT_KNOWN.
    kind: str
    checkpoint: str = ""


def origin_of(spark: "SparkSession", checkpoint: str | None) -> Origin:
    """Find the query around a write. `checkpoint`: the query's checkpoint as the caller gives it."""
    if checkpoint is not None:
        return Origin(BY_CHECKPOINT, checkpoint)
    if query := query_of(spark):
        around = checkpoint_of_query(spark, query)
        return Origin(NOT_KNOWN) if around is None else Origin(BY_CHECKPOINT, around)
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    # Spark Connect calls the function of `foreachBatch` in a process of its own.
    return Origin(NOT_KNOWN if main is not None and main.name == _CONNECT_BATCHES else BY_CALLER)


def checkpoint_of_query(spark: "SparkSession", query: str) -> str | None:
    """Return the checkpoint of a running query; None over Spark Connect, and if no such query runs."""
    session, jvm = getattr(spark, "_jsparkSession", None), getattr(spark, "_jvm", None)
    if session is None or jvm is None:
        return None
    found = session.sharedState().activeStreamingQueries().get(jvm.java.util.UUID.fromString(query))
    return None if found is None else str(found.resolvedCheckpointRoot())


def query_of(spark: "SparkSession") -> str:
    """Return the id of the query whose `foreachBatch` this thread is in; "" without one, and over Spark Connect."""
    context = getattr(spark, "_sc", None)
    return "" if context is None else context.getLocalProperty("sql.streaming.queryId") or ""


def active_session() -> "SparkSession":
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is None:
        raise RuntimeError("there is no active Spark session: start one first, or pass spark=")
    return session


def registering(module: str, name: str) -> Register:
    """Return a `Register` for the data source class `name` of `module`, which it imports when it is called."""
    return partial(_register, module, name)


def _register(module: str, name: str, spark: "SparkSession") -> None:
    from pyspark.errors import AnalysisException

    source = getattr(importlib.import_module(module), name)
    if _has(spark, source.name()):
        return
    try:
        with early_python(spark):
            spark.dataSource.register(source)
    except AnalysisException as error:
        # A session that was made from a session with this source has it from the start, and may not replace it.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    _registered.setdefault(spark, set()).add(source.name())


def _has(spark: "SparkSession", name: str) -> bool:
    """Ask the session whether it knows the format; over Spark Connect, which cannot be asked, look in our own list."""
    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        return name in _registered.get(spark, ())
    return bool(session.sessionState().dataSourceManager().dataSourceExists(name))


def register_topics(spark: "SparkSession") -> None:
    known = _registered.setdefault(spark, set())
    if "topics" not in known:
        importlib.import_module("barnabas.spark").register(spark)
        known.add("topics")


def register_all(spark: "SparkSession") -> None:
    """Register all our formats: `pyspark.pipelines` lets no function of a flow do that, so it is done before they are
    called."""
    register_topics(spark)
    for module, name in _FORMATS:
        _register(module, name, spark)


def text_options(**options: object) -> dict[str, str]:
    """Return options as Spark wants them: strings, without those that were not given."""
    return {name: _text(value) for name, value in options.items() if value is not None}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(str(each) for each in value)
    return str(value)
