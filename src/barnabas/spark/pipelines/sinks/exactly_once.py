"""The shape that all our sinks share: executors stage, the driver publishes a batch once.

A batch of a stream is known by the query's id, its number, its checkpoint and the offsets that Spark planned for it
(`batch_identity`). The commit that publishes a batch also remembers these. A batch that comes again after a crash is
recognised and left alone; another batch under the same number is refused, unless the option `acceptReplannedBatch` names it.
Rows of a log may be known by their positions instead (`Span`): the table itself then says where its reader goes on.
"""

import hashlib
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, cast

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from barnabas.base.errors import BarnabasError
from barnabas.spark.batch_identity import UNKNOWN, BatchIdentity, NotTheSameBatch, refusal
from barnabas.spark.checkpoint import (
    BY_CALLER,
    COPIED,
    EDITED,
    MOVED,
    NAMELESS,
    NOTHING,
    Planned,
    note_repeated,
    planned_once,
    read_planned,
)
from barnabas.spark.decision import SKIP
from barnabas.spark.sink_options import accepted_batch

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger(__name__)


class Standing(Enum):
    """What to do with a batch."""

    WRITE = auto()
    #: The table has the batch already.
    LEAVE = auto()
    #: The user wants its rows thrown away, and the table to remember it as written.
    SKIP = auto()


#: Functions that ask a table for its memory under a name: a number to compare, or the text that goes with it.
Known: TypeAlias = Callable[[str], int | None]
Noted: TypeAlias = Callable[[str], str | None]
#: Names of the digests that a table remembers beside the number of a query's last batch.
_CHECKPOINT, _PLAN = "/checkpoint", "/plan"
_DIGEST_BYTES: Final = 7  # an integer of 64 bits with a sign has room for them


@dataclass(frozen=True)
class Batch:
    """One batch of one query."""

    query_id: str
    number: int
    #: The batch as the query's checkpoint describes it; None if the target itself reads the checkpoint.
    plan: Planned | None = None
    #: WRITE or SKIP of `decision` if the user has accepted the batch as it is planned now.
    accepted: str = ""
    rows: int = 0
    #: The checkpoint's location, in which a batch that comes again is counted.
    checkpoint_location: str = ""

    @property
    def marks(self) -> dict[str, int]:
        """Return the numbers that the table remembers of the batch, in the commit that has its rows."""
        marks = {self.query_id: self.number}
        if self.plan is not None and self.plan.checkpoint:
            marks[self.query_id + _CHECKPOINT] = _digest(self.plan.checkpoint)
        if (plan := self._plan_digest()) is not None:
            marks[self.query_id + _PLAN] = plan
        return marks

    def notes(self, target: str) -> dict[str, str]:
        """Return the batch's identity as text for people, by the name of the query."""
        return {} if self.plan is None else {self.query_id: self._identity(self.plan, target).as_text()}

    def standing(self, known: Known, noted: Noted, target: str) -> Standing:
        """Decide what to do with the batch. `known` and `noted` return what the table remembers. Raises `NotTheSameBatch`."""
        last = known(self.query_id)
        if last is None:
            return Standing.WRITE
        if self.plan is None:
            return Standing.WRITE if last < self.number else Standing.LEAVE
        checkpoint = known(self.query_id + _CHECKPOINT)
        if checkpoint in {None if name == NAMELESS else _digest(name) for name in self.plan.replaces}:
            return Standing.WRITE  # the checkpoint was replanned on purpose
        plan = known(self.query_id + _PLAN)
        if last < self.number:
            if checkpoint is None or not self.plan.checkpoint:
                return Standing.WRITE
            if checkpoint == _digest(self.plan.checkpoint) and not self._is_edited(last, plan):
                return Standing.WRITE
        elif self._is_same(checkpoint, plan):
            self.note_repeated(target)
            return Standing.LEAVE
        if self.accepted == SKIP:
            log.warning("%s: acceptReplannedBatch=%d:skip: its %d rows are thrown away", target, self.number, self.rows)
            return Standing.SKIP
        if self.accepted:
            return Standing.WRITE
        edited = EDITED.format(last) if self._is_edited(last, plan) else ""
        raise self._refused(last, noted(self.query_id), target, self.plan.reason or edited)

    def _is_edited(self, last: int, plan: int | None) -> bool:
        """Whether the batch begins where no written batch ended: the checkpoint was edited."""
        assert self.plan is not None
        previous = self.plan.previous_of(self.number)
        if last != self.number - 1 or plan is None or not previous:
            return False
        return plan != _digest(f"{self.plan.checkpoint}\0{previous}")

    def _is_same(self, checkpoint: int | None, plan: int | None) -> bool:
        assert self.plan is not None
        if self.plan.checkpoint == BY_CALLER:
            return checkpoint in (None, _digest(BY_CALLER))
        return plan is not None and plan == self._plan_digest()

    def _plan_digest(self) -> int | None:
        if self.plan is None or UNKNOWN in (self.plan.checkpoint, self.plan.offsets_of(self.number)):
            return None
        return _digest(f"{self.plan.checkpoint}\0{self.plan.offsets_of(self.number)}")

    def _identity(self, plan: Planned, target: str) -> BatchIdentity:
        return BatchIdentity(
            query=self.query_id,
            checkpoint=plan.checkpoint,
            batch=self.number,
            offsets=plan.offsets_of(self.number),
            target=target,
        )

    def note_repeated(self, target: str) -> None:
        """Log that `target` has the batch already, and count its rows in the checkpoint."""
        log.warning(
            "batch %d of query %s came again and %s has it: its %d rows are not written a second time",
            self.number,
            self.query_id,
            target,
            self.rows,
        )
        if self.checkpoint_location:
            note_repeated(self.checkpoint_location, self.number, self.rows)

    def _refused(self, last: int, note: str | None, target: str, reason: str) -> NotTheSameBatch:
        assert self.plan is not None
        planned = self._identity(self.plan, target)
        before = BatchIdentity(query=self.query_id, checkpoint=UNKNOWN, batch=last, offsets=UNKNOWN, target=target)
        if note is not None:
            before = BatchIdentity.of_text(note)
        elif not reason:
            reason = (
                "The table does not say what the batch was, because an older barnabas wrote it or its log is cut off"
            )
        remedy = (
            f"Start the query once with acceptReplannedBatch={self.number}:write to write the batch as it is planned now (rows "
            f"that the table has come twice unless they are merged by key), or with acceptReplannedBatch={self.number}:skip to "
            "throw its rows away. A query that runs from a copy of a checkpoint needs acceptCheckpoint=copied. To replay "
            "records, use `barnabas pipeline offsets rewind` instead of editing a checkpoint"
        )
        return NotTheSameBatch(refusal(before, planned, remedy=remedy, reason=reason))


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:_DIGEST_BYTES], "big")


class Overtaken(BarnabasError):
    """Another writer has moved the table: the writer of these rows has to look again where the table is."""


#: The position in a part of a log that the table does not know.
NOWHERE: Final = -1


@dataclass(frozen=True)
class Span:
    """The rows between two positions of each part of a log. A table takes them only if its own positions are `starts`.

    So if two writers do not know of each other, the table still has each row once, in whatever pieces they read the log.
    """

    starts: Mapping[str, int]
    ends: Mapping[str, int]

    @property
    def marks(self) -> dict[str, int]:
        return dict(self.ends)

    def notes(self, target: str) -> dict[str, str]:
        return {}

    def standing(self, known: Known, noted: Noted, target: str) -> Standing:
        for part, start in self.starts.items():
            found = known(part)
            if (NOWHERE if found is None else found) != start:
                raise Overtaken(f"{part} is at {found} in the table; these rows begin at {start}")
        return Standing.WRITE


#: Identifies rows that a table may have already.
Claim: TypeAlias = Batch | Span


@dataclass
class Staged(WriterCommitMessage):
    """The files or tables that one task has staged: their names, and facts about each."""

    query_id: str
    items: list[dict[str, object]]
    rows: int = 0


@dataclass(frozen=True)
class Task:
    """The task that writes."""

    query_id: str
    batch_number: int
    partition: int
    attempt: int


class Target(Protocol):
    """The part of a sink that depends on the format; goes to executors by pickle. Targets for tables of topics also take a
    `Span`."""

    #: Whether a batch replaces all rows (mode overwrite, output mode complete).
    replaces: bool

    def stage(self, rows: "Iterator[pyarrow.RecordBatch]", task: Task) -> list[dict[str, object]]:
        """Write rows where no reader sees them. On an executor."""
        ...

    def publish(self, items: Sequence[dict[str, object]], batch: Batch | None) -> None:
        """Make the rows visible, all at once, unless `batch` was published before. On the driver. None: a batch write, always
        new."""
        ...

    def abandon(self, items: Sequence[dict[str, object]]) -> None:
        """Discard the staged rows of a batch that failed, unless readers see them: it may have failed after it was
        published."""
        ...


#: Options of a stream that identify its batches. Spark passes on the checkpoint's location.
STREAM_OPTIONS: Final = ("checkpointLocation", "acceptReplannedBatch", "acceptCheckpoint")


@dataclass(frozen=True)
class StreamOptions:
    checkpoint_location: str
    accepted_batch: tuple[int, str] | None
    accepted_checkpoint: str

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "StreamOptions":
        given = {name.lower(): value for name, value in options.items()}
        accepted = given.get("acceptcheckpoint", NOTHING)
        if accepted not in (NOTHING, MOVED, COPIED):
            raise ValueError(f"acceptCheckpoint={accepted!r} is not valid: use {MOVED} or {COPIED}")
        return cls(given.get("checkpointlocation", ""), accepted_batch(given.get("acceptreplannedbatch")), accepted)

    def plan(self) -> Planned:
        if not self.checkpoint_location:
            return Planned(reason="The sink does not know the checkpoint: give the query the option checkpointLocation")
        return read_planned(self.checkpoint_location, accept=self.accepted_checkpoint)

    def accepted(self, number: int) -> str:
        return self.accepted_batch[1] if self.accepted_batch is not None and self.accepted_batch[0] == number else ""


class StreamWriter(DataSourceStreamArrowWriter):
    """Owner: Spark; `write` on executors, the rest on the driver, each in a process of its own."""

    def __init__(self, target: Target, options: StreamOptions | None = None) -> None:
        """Created on the driver for each batch, after Spark has planned it. Without `options` the target knows the plan
        itself."""
        self.target = target
        self.options = options
        self.plan = None if options is None else options.plan()

    def write(self, iterator: "Iterator[pyarrow.RecordBatch]") -> Staged:
        context = cast(TaskContext, TaskContext.get())
        known_as = "" if self.plan is None else self.plan.known_as
        query_id = known_as or context.getLocalProperty("sql.streaming.queryId") or ""
        number = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        task = Task(query_id, number, context.partitionId(), context.taskAttemptId())
        return _staged_by(self.target, iterator, task, query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's name)
        staged = _staged(messages)
        items = [item for each in staged for item in each.items]
        if not items and not (staged and self.target.replaces):
            return
        batch = Batch(staged[0].query_id, batchId)
        if self.options is not None:
            batch = replace(
                batch,
                plan=self.plan,
                accepted=self.options.accepted(batchId),
                rows=sum(each.rows for each in staged),
                checkpoint_location=self.options.checkpoint_location,
            )
        self.target.publish(items, batch)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self.target.abandon([item for each in _staged(messages) for item in each.items])


def _staged_by(target: Target, rows: "Iterator[pyarrow.RecordBatch]", task: Task, query_id: str) -> Staged:
    count = 0

    def counted() -> "Iterator[pyarrow.RecordBatch]":
        nonlocal count
        for batch in rows:
            count += batch.num_rows
            yield batch

    items = target.stage(counted(), task)
    return Staged(query_id, items, count)


#: Options of a batch write that must happen once, such as one within `foreachBatch`: its name, its number, and the origin and
#: location of its checkpoint (`checkpoint.planned_once`).
ONCE_OPTIONS: Final = ("onceName", "onceBatch", "onceOrigin", "onceCheckpoint")


def once_of(options: Mapping[str, str]) -> Batch | None:
    name, number = options.get("onceName"), options.get("onceBatch")
    if (name is None) != (number is None):
        raise ValueError("onceName and onceBatch go together")
    if name is None or number is None:
        return None
    location, stream = options.get("onceCheckpoint", ""), StreamOptions.parse(options)
    plan = planned_once(options.get("onceOrigin", BY_CALLER), location, accept=stream.accepted_checkpoint)
    name = f"{plan.known_as}/{name}" if plan.known_as else name
    return Batch(name, int(number), plan, stream.accepted(int(number)), checkpoint_location=location)


class BatchWriter(DataSourceArrowWriter):
    """`batch`: the name and number under which the table remembers the write; None if each write is new."""

    def __init__(self, target: Target, batch: Batch | None = None) -> None:
        self.target = target
        self.batch = batch
        self.job = uuid.uuid4().hex

    def write(self, iterator: "Iterator[pyarrow.RecordBatch]") -> Staged:
        context = cast(TaskContext, TaskContext.get())
        task = Task(self.job, 0, context.partitionId(), context.taskAttemptId())
        return _staged_by(self.target, iterator, task, self.job)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        staged = _staged(messages)
        items = [item for each in staged for item in each.items]
        if items or self.target.replaces:
            batch = self.batch and replace(self.batch, rows=sum(each.rows for each in staged))
            self.target.publish(items, batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.target.abandon([item for each in _staged(messages) for item in each.items])


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]
