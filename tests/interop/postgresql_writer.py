"""One batch of the SQL sink in a process of its own, as a driver and its tasks write it; it may die at a step."""

import os
import signal
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import LongType, StringType, StructType

from barnabas.spark.pipelines.sinks.exactly_once import Batch, StreamOptions, Task
from barnabas.spark.pipelines.sinks.sql_table import SqlTarget
from barnabas.spark.pipelines.sources.sql_query import SqlSource

SCHEMA = StructType().add("id", LongType()).add("said", StringType())
TASKS = 2
ROWS_PER_TASK = 5


def plan(checkpoint: Path, query_id: str, batch: int, planned: str = "") -> None:
    """What Spark writes before it runs a batch."""
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "metadata").write_text(f'{{"id":"{query_id}"}}')
    (checkpoint / "offsets" / str(batch)).write_text(planned or f"batch {batch}")


def target_of(options: dict[str, str]) -> SqlTarget:
    target = SqlSource(CaseInsensitiveDict(options)).streamWriter(SCHEMA, False).target
    assert isinstance(target, SqlTarget)
    return target


def write(options: dict[str, str], query_id: str, batch: int, dies_at: str = "") -> list[str]:
    """Returns the steps that it came through."""
    reached: list[str] = []

    def note(step: str) -> None:
        reached.append(step)
        if step == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    target = target_of(options)
    target.reached = note  # type: ignore[method-assign]
    items = []
    for task in range(TASKS):
        first = (batch * TASKS + task) * ROWS_PER_TASK
        rows = [{"id": number, "said": f"row {number}"} for number in range(first, first + ROWS_PER_TASK)]
        data = pa.RecordBatch.from_pylist(rows, schema=pa.schema([("id", pa.int64()), ("said", pa.string())]))
        # Spark counts the attempts of each run from 0.
        items += target.stage(iter([data]), Task(query_id, batch, task, task))
    target.publish(items, Batch(query_id, batch, StreamOptions.parse(options).plan()))
    return reached
