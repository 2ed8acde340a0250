"""The shape that all our sinks share: executors stage, the driver publishes a batch once.

A batch of a stream is known by the query's id, which lives in its checkpoint, and by its number. What is published remembers
the last number of its query in the same atomic step, so that one that comes again after a crash is recognised and left alone.
Rows of a log may be known by their positions instead (`Span`): the table itself then says where its reader goes on.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, cast

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from barnabas.base.errors import BarnabasError

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class Batch:
    """One batch of one query."""

    query_id: str
    number: int

    @property
    def marks(self) -> dict[str, int]:
        """What the table remembers of it, in the commit that has its rows."""
        return {self.query_id: self.number}

    def is_new(self, known: "Callable[[str], int | None]") -> bool:
        """`known`: what the table remembers under a name."""
        last = known(self.query_id)
        return last is None or last < self.number


class Overtaken(BarnabasError):
    """Somebody else has moved the table meanwhile: whoever staged these rows has to look again where it is."""


#: Of a position that a table does not know, or no longer.
NOWHERE: Final = -1


@dataclass(frozen=True)
class Span:
    """The rows between two positions of each part of a log. A table takes them only where it stands at `starts`.

    So the rows of two writers that do not know of each other are in it once, in whatever pieces they read them.
    """

    starts: Mapping[str, int]
    ends: Mapping[str, int]

    @property
    def marks(self) -> dict[str, int]:
        return dict(self.ends)

    def is_new(self, known: "Callable[[str], int | None]") -> bool:
        for part, start in self.starts.items():
            found = known(part)
            if (NOWHERE if found is None else found) != start:
                raise Overtaken(f"{part} is at {found} in the table; these rows begin at {start}")
        return True


#: By what a table tells rows that it has from those that are new.
Claim: TypeAlias = Batch | Span


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
    """What a sink does; goes to executors by pickle. Some also take a `Span`, as tables of topics do."""

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
