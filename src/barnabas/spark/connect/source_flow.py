"""A flow of a source connector: rows of a stream become Connect's records, and those become records of topics.

One query of Spark carries each flow, and the topic sink writes each batch once.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from barnabas.spark.connect.conversion import Conversion, Failure, RawRecord
from barnabas.spark.connect.data import DataError, Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from barnabas.spark.pipelines.connector import Source

log = logging.getLogger(__name__)

_TO_TOPICS: Final = "topic string, key binary, value binary, headers array<struct<key: string, value: binary>>"
_ARROW: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


class RecordRefused(RuntimeError):
    """A record of a source that cannot be written, without `errors.tolerance=all`."""


class RecordMaker(Protocol):
    """Makes records of a row of the stream. Goes to executors."""

    def __call__(self, row: Mapping[str, Any]) -> Iterator[Record]:
        """:raises DataError: if the row cannot become a record."""


@dataclass(frozen=True)
class Flow:
    #: Part of the name of its checkpoint: stays the same when the connector's other flows change.
    name: str
    source: "Source"
    records: RecordMaker
    #: Least time between two looks at the source.
    poll_ms: int
    #: Topics that it writes before transforms, to be made if the connector says so.
    topics: tuple[str, ...] = ()


class SourcePart(Protocol):
    """The part of a connector that reads."""

    def flows(self) -> list[Flow]:
        """Ask the source what there is to read."""


@dataclass(frozen=True)
class Tolerance:
    connector: str
    tolerates: bool
    logs: bool


def to_topics(rows: "DataFrame", records: RecordMaker, conversion: Conversion, tolerance: Tolerance) -> "DataFrame":
    return rows.mapInArrow(partial(_written, records, conversion, tolerance), _TO_TOPICS)


def _written(
    records: RecordMaker, conversion: Conversion, tolerance: Tolerance, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs on executors."""
    for batch in batches:
        made: list[dict[str, Any]] = []
        for row in batch.to_pylist():
            _use(partial(_add, records, conversion, row, made), tolerance)
        yield pa.RecordBatch.from_pylist(made, schema=_ARROW)


def _add(records: RecordMaker, conversion: Conversion, row: Mapping[str, Any], made: list[dict[str, Any]]) -> None:
    for record in records(row):
        raw = conversion.write(record)
        if raw is not None:
            made.append(_row(raw))


def _use(work: Callable[[], None], tolerance: Tolerance) -> None:
    try:
        work()
    except (Failure, DataError) as error:
        if not tolerance.tolerates:
            raise RecordRefused(
                f"connector {tolerance.connector}: {error}. errors.tolerance=all leaves such records out"
            ) from error
        if tolerance.logs:
            log.error("[connector %s] a record was left out: %s", tolerance.connector, error)


def _row(raw: RawRecord) -> dict[str, Any]:
    headers = [{"key": name, "value": value} for name, value in raw.headers]
    return {"topic": raw.topic, "key": raw.key, "value": raw.value, "headers": headers}


def topics_of(conversion: Conversion, topics: tuple[str, ...]) -> tuple[str, ...]:
    """Return the topics after the transforms, as far as they depend on the topic's name alone."""

    def routed(topic: str) -> str:
        try:
            changed = conversion.chain(Record(topic))
        except DataError:
            return topic
        return topic if changed is None else changed.topic

    return tuple(dict.fromkeys(map(routed, topics)))
