"""A batch of a sink connector: executors convert and transform its records, then the connector writes them, place by place.

The first step makes of each record what the connector writes (`Landed`): a place (a table, a file, an address), a shape, and
the row. Spark keeps these for the second step, in which the connector writes each place with the shapes that the batch has
for it. Records that cannot be used fail the batch, or are left out and go to the dead-letter topic (`errors.tolerance`).
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from barnabas.spark.connect.conversion import TASK_PUT, Conversion, Failure, RawRecord, context_headers
from barnabas.spark.connect.data import DataError, Record
from barnabas.spark.pipelines.sinks import topic as topic_sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

#: What the first step makes of a record; a record that cannot be used has a stage, and its bytes for the dead letter.
_LANDED: Final = (
    "place string, shape string, row binary, topic string, partition int, offset bigint, stage string, message string, "
    "key binary, value binary, timestamp timestamp, headers array<struct<key: string, value: binary>>"
)
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_ARROW: Final = pa.schema(
    [
        ("place", pa.string()),
        ("shape", pa.string()),
        ("row", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("stage", pa.string()),
        ("message", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("headers", _HEADERS),
    ]
)
_SHOWN: Final = 10


class RecordsRefused(RuntimeError):
    """Records that cannot be used, without `errors.tolerance=all`. The message names the first one."""


class Landed(NamedTuple):
    place: str
    shape: str
    row: bytes


class Sink(Protocol):
    """The part of a connector that writes. Goes to executors."""

    def land(self, record: Record) -> Landed | None:
        """Return what is written of a record; None if nothing is. :raises DataError: if the record cannot be written."""

    def write(self, batch: "SinkBatch") -> None:
        """Write the batch, or again what an interrupted attempt may have written."""


@dataclass(frozen=True)
class Letters:
    """The dead-letter topic, and what is said about records that cannot be used."""

    tolerates: bool
    topic: str = ""
    replicas: int = 3
    with_context: bool = False
    logs: bool = False
    logs_places: bool = False
    bootstrap: str = ""
    #: Settings of the producer, with `kafka.`.
    options: Mapping[str, str] | None = None


@dataclass(frozen=True)
class SinkBatch:
    name: str
    number: int
    #: Shapes of the rows, by place.
    places: Mapping[str, Sequence[str]]
    frame: "DataFrame"

    def landed(self, place: str) -> "DataFrame":
        return self.frame.filter(F.col("stage").isNull() & (F.col("place") == place))

    def name_for(self, place: str) -> str:
        """Return the name by which a place knows this query's batches again (`once=`)."""
        return f"{self.name}:{place}"


@dataclass(frozen=True)
class Batches:
    """Called by Spark with each batch of a sink connector."""

    #: The connector's name.
    connector: str
    #: The name that is new for each checkpoint: the memory of a former one says nothing about this one.
    name: str
    conversion: Conversion
    sink: Sink
    letters: Letters
    #: Most tasks that read at once.
    tasks_max: int = 1

    def __call__(self, rows: "DataFrame", number: int) -> None:
        landing = partial(_land, self.conversion, self.sink, self.connector, self.letters.with_context)
        frame = rows.coalesce(self.tasks_max).mapInArrow(landing, _LANDED).persist()
        try:
            counts = frame.groupBy("place", "shape", "stage").count().collect()
            if failed := sum(each["count"] for each in counts if each["stage"] is not None):
                self._refuse(frame, failed, number)
            places: dict[str, list[str]] = {}
            for each in counts:
                if each["stage"] is None:
                    places.setdefault(each["place"], []).append(each["shape"])
            if places:
                self.sink.write(SinkBatch(self.name, number, places, frame))
        finally:
            frame.unpersist()

    def _refuse(self, frame: "DataFrame", count: int, number: int) -> None:
        """Fail, or log the records and send them to the dead-letter topic."""
        failed = frame.filter(F.col("stage").isNotNull())
        if self.letters.logs or not self.letters.tolerates:
            first = failed.orderBy("topic", "partition", "offset").limit(_SHOWN).collect()
            lines = [self._line(each) for each in first]
            if not self.letters.tolerates:
                raise RecordsRefused(
                    f"connector {self.connector}: {lines[0]} ({count} such records in this batch). errors.tolerance=all "
                    "leaves them out, errors.deadletterqueue.topic.name keeps them"
                )
            for line in lines:
                log.error("[connector %s] %s", self.connector, line)
            if count > len(lines):
                log.error(
                    "[connector %s] %d more records of this batch cannot be used", self.connector, count - len(lines)
                )
        if self.letters.topic:
            letters = failed.select(F.lit(self.letters.topic).alias("topic"), "key", "value", "headers", "timestamp")
            sink = topic_sink(
                self.letters.topic,
                bootstrap=self.letters.bootstrap,
                partitions=1,
                replication_factor=self.letters.replicas,
                options=self.letters.options,
            )
            sink.write(letters.drop("topic"), once=(f"{self.name}:dead-letters", number))

    def _line(self, row: Any) -> str:
        place = f"topic {row['topic']}, partition {row['partition']}, offset {row['offset']}: "
        return (
            f"{place if self.letters.logs_places or not self.letters.tolerates else ''}{row['stage']}: {row['message']}"
        )


def _land(
    conversion: Conversion, sink: Sink, connector: str, with_context: bool, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Convert records. Runs on executors."""
    for batch in batches:
        made = []
        for row in batch.to_pylist():
            raw = _raw(row)
            try:
                record = conversion.read(raw)
                landed = None if record is None else _landed(sink, record)
            except Failure as failure:
                made.append(_letter(raw, failure, connector, with_context))
                continue
            if landed is not None:
                made.append({"place": landed.place, "shape": landed.shape, "row": landed.row, **_place(raw)})
        yield pa.RecordBatch.from_pylist(made, schema=_ARROW)


def _landed(sink: Sink, record: Record) -> Landed | None:
    try:
        return sink.land(record)
    except DataError as error:
        raise Failure(TASK_PUT, error) from error


def _raw(row: Mapping[str, Any]) -> RawRecord:
    moment = row["timestamp"]
    return RawRecord(
        topic=row["topic"],
        key=row["key"],
        value=row["value"],
        headers=[(each["key"], each["value"]) for each in row["headers"] or ()],
        timestamp=None if moment is None else round(moment.timestamp() * 1000),
        partition=row["partition"],
        offset=row["offset"],
    )


def _place(raw: RawRecord) -> dict[str, Any]:
    return {"topic": raw.topic, "partition": raw.partition, "offset": raw.offset}


def _letter(raw: RawRecord, failure: Failure, connector: str, with_context: bool) -> dict[str, Any]:
    headers = context_headers(raw, failure, connector) if with_context else raw.headers
    return {
        **_place(raw),
        "stage": failure.stage,
        "message": str(failure.cause),
        "key": raw.key,
        "value": raw.value,
        "timestamp": None if raw.timestamp is None else raw.timestamp * 1000,
        "headers": [{"key": name, "value": value} for name, value in headers],
    }
