"""Reads the records of a batch in tasks: a task stages plain rows at once, and passes the other records on to Spark.

Spark's own way for a Python source would take every record as a row to the JVM and back. Here a task has its part of the plan,
and of most batches Spark gets one line for each task.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import pyarrow
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from barnabas.spark.offsets import to_json
from barnabas.spark.options import source_options
from barnabas.spark.pipelines.sinks.exactly_once import Task
from barnabas.spark.pipelines.sinks.files import is_enough
from barnabas.spark.reader import BarnabasReader, RangePartition, TierTask
from barnabas.spark.source import SCHEMA_WITH_HEADERS
from barnabas.spark.tables.direct import Direct, DirectReader
from barnabas.spark.tables.names import Check
from barnabas.spark.tables.targets import Target

if TYPE_CHECKING:
    from barnabas.base.ids import TopicPartition

#: A batch with so few records is one task's work.
_ONE_TASK_RECORDS: Final = 20_000
#: A task with fewer records is not worth its cost.
_TASK_RECORDS_MIN: Final = 50_000
#: Column of the last row of a task: the items that it has staged. The other columns of this row are null.
STAGED: Final = "_staged"
#: Column with the reason why a field of a record cannot have a column (`names.Check`).
REFUSED: Final = "_refused"
_COLUMNS: Final = ("key", "value", "partition", "offset", "timestamp", "headers")
_SCHEMA: Final = StructType(
    [
        *(SCHEMA_WITH_HEADERS[name] for name in _COLUMNS),
        StructField(STAGED, StringType()),
        StructField(REFUSED, StringType()),
    ]
)


@dataclass(frozen=True)
class Reading:
    """The tasks of a batch."""

    reader: BarnabasReader
    parts: tuple[InputPartition, ...]
    topic: str

    @property
    def topic_ids(self) -> set[bytes]:
        """Return the ids of the topic when the batch was planned."""
        ranges = [each for part in self.parts if isinstance(part, RangePartition) for each in part.ranges]
        tiered = [each for part in self.parts if isinstance(part, TierTask) for each in part.parts]
        return {each.topic_id for each in (*ranges, *tiered)}


def plan_reading(
    options: dict[str, str],
    topic: str,
    starts: "dict[TopicPartition, int]",
    ends: "dict[TopicPartition, int]",
    *,
    cores: int,
) -> Reading:
    total = sum(ends[each] - starts[each] for each in ends)
    share = max(_TASK_RECORDS_MIN, -(-total // max(1, 2 * cores)))
    planned = source_options(
        options
        | {
            "assign": json.dumps({topic: sorted(each.partition for each in ends)}),
            "startingOffsets": json.dumps(to_json({each: starts[each] for each in ends})),
            "endingOffsets": json.dumps(to_json(ends)),
            "maxRecordsPerPartition": str(share),
        },
        streaming=False,
    )
    reader = BarnabasReader(planned, _COLUMNS)
    parts = tuple(reader.partitions())
    if total <= _ONE_TASK_RECORDS:
        ranges = tuple(each for part in parts if isinstance(part, RangePartition) for each in part.ranges)
        others = tuple(part for part in parts if not isinstance(part, RangePartition))
        parts = (*others, RangePartition(ranges)) if ranges else others
    return Reading(reader, parts, topic)


def records_of(
    spark: SparkSession,
    reading: Reading,
    *,
    direct: Direct | None = None,
    target: Target | None = None,
    job: str = "",
    check: Check | None = None,
) -> DataFrame:
    """Return the records that are not plain, or all records without `direct`; and a row with `STAGED` for each task.

    `check`: look in each of these records for fields that cannot have a column.
    """
    task = ReadTask(reading, direct, target, job, check)
    count = len(reading.parts)
    frame = spark.range(0, count, 1, max(1, count)).mapInArrow(task, _SCHEMA)
    return frame.withColumn("topic", F.lit(reading.topic))


@dataclass(frozen=True)
class ReadTask:
    reading: Reading
    direct: Direct | None
    target: Target | None
    #: Name of the job, which staged files have in their folder's name, if they have a folder.
    job: str
    check: Check | None = None

    def __call__(self, batches: "Iterator[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._read(self.reading.parts[number])

    def _read(self, part: InputPartition) -> "Iterator[pyarrow.RecordBatch]":
        schema = to_arrow_schema(_SCHEMA, timezone="UTC")
        records = self.reading.reader.read(part)
        if self.direct is None or self.target is None:
            for batch in records:
                yield self._row_batch(batch, schema)
            return
        reader, held = DirectReader(self.direct), _Held(self.target, self.job)
        for batch in records:
            rows, rest = reader.split(batch)
            held.add(rows)
            for each in rest:
                if each.num_rows:
                    yield self._row_batch(each, schema)
        held.flush()
        done = {STAGED: [json.dumps({"main": held.staged, "rows": held.rows})]}
        nothing = {name: [None] for name in _COLUMNS}
        yield pyarrow.RecordBatch.from_pydict(nothing | done | {REFUSED: [None]}, schema)

    def _row_batch(self, records: "pyarrow.RecordBatch", schema: "pyarrow.Schema") -> "pyarrow.RecordBatch":
        columns = [records.column(name) for name in _COLUMNS]
        refused = pyarrow.nulls(records.num_rows, pyarrow.string())
        if self.check is not None:
            values = records.column("value").to_pylist()
            refused = pyarrow.array([self.check.reason(each) for each in values], pyarrow.string())
        staged = pyarrow.nulls(records.num_rows, pyarrow.string())
        return pyarrow.RecordBatch.from_arrays([*columns, staged, refused], schema=schema)


class _Held:
    """Rows on their way to the table, held until they are enough for a file."""

    def __init__(self, target: Target, job: str) -> None:
        context = cast(TaskContext, TaskContext.get())
        self._task = Task(job, 0, context.partitionId(), context.taskAttemptId())
        self._target = target
        self._held: list[pyarrow.RecordBatch] = []
        self._waiting = self._waiting_bytes = 0
        self.rows = 0
        self.staged: list[dict[str, object]] = []

    def add(self, rows: "Sequence[pyarrow.RecordBatch]") -> None:
        self._held += rows
        self._waiting += sum(each.num_rows for each in rows)
        self._waiting_bytes += sum(each.nbytes for each in rows)
        if is_enough(self._waiting, self._waiting_bytes):
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            self.staged += self._target.stage(iter(self._held), self._task)
        self.rows += self._waiting
        self._held, self._waiting, self._waiting_bytes = [], 0, 0
