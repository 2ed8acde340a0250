"""The shape that all our sinks share: executors stage, the driver publishes a batch once.

A batch of a stream is known by the query's id, which lives in its checkpoint, and by its number. What is published remembers
the last number of its query in the same atomic step, so that one that comes again after a crash is recognised and left alone.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, cast

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class Batch:
    """One batch of one query."""

    query_id: str
    number: int


@dataclass
class Staged(WriterCommitMessage):
    """What one task has put aside: names of files or tables, and what is to be known about each."""

    query_id: str
    items: list[dict[str, object]]


@dataclass(frozen=True)
class Task:
    """Who is writing."""

    query_id: str
    batch_number: int
    partition: int
    attempt: int


class Target(Protocol):
    """What a sink does; goes to executors by pickle."""

    #: Whether a batch takes the place of all that is there (mode overwrite, output mode complete).
    replaces: bool

    def stage(self, rows: "Iterator[pyarrow.RecordBatch]", task: Task) -> list[dict[str, object]]:
        """Put rows where nobody sees them. On an executor."""
        ...

    def publish(self, items: Sequence[dict[str, object]], batch: Batch | None) -> None:
        """Show them, all at once; not if `batch` has been published before. On the driver. None: a batch write, always new."""
        ...

    def abandon(self, items: Sequence[dict[str, object]]) -> None:
        """The batch failed, perhaps after it was published: throw away what was put aside, unless it is seen."""
        ...


class StreamWriter(DataSourceStreamArrowWriter):
    """Owner: Spark; `write` on executors, the rest on the driver, each in a process of its own."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def write(self, iterator: "Iterator[pyarrow.RecordBatch]") -> Staged:
        context = cast(TaskContext, TaskContext.get())
        query_id = context.getLocalProperty("sql.streaming.queryId") or ""
        number = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        task = Task(query_id, number, context.partitionId(), context.taskAttemptId())
        return Staged(query_id, self.target.stage(iterator, task))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's name)
        staged = _staged(messages)
        items = [item for each in staged for item in each.items]
        if items or (staged and self.target.replaces):
            self.target.publish(items, Batch(staged[0].query_id, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self.target.abandon([item for each in _staged(messages) for item in each.items])


#: For a batch write that is to happen once, such as one within `foreachBatch`: whose it is, and its number.
ONCE_OPTIONS: Final = ("onceName", "onceBatch")


def once_of(options: Mapping[str, str]) -> Batch | None:
    name, number = (options.get(each) for each in ONCE_OPTIONS)
    if (name is None) != (number is None):
        raise ValueError(f"{' and '.join(ONCE_OPTIONS)} go together")
    return None if name is None or number is None else Batch(name, int(number))


class BatchWriter(DataSourceArrowWriter):
    """`batch`: what it is known by, if it is to be published once however often it is written."""

    def __init__(self, target: Target, batch: Batch | None = None) -> None:
        self.target = target
        self.batch = batch
        self.job = uuid.uuid4().hex

    def write(self, iterator: "Iterator[pyarrow.RecordBatch]") -> Staged:
        context = cast(TaskContext, TaskContext.get())
        task = Task(self.job, 0, context.partitionId(), context.taskAttemptId())
        return Staged(self.job, self.target.stage(iterator, task))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        items = [item for each in _staged(messages) for item in each.items]
        if items or self.target.replaces:
            self.target.publish(items, self.batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.target.abandon([item for each in _staged(messages) for item in each.items])


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]
