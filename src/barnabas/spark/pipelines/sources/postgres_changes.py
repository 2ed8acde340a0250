"""Format `barnabas-postgres-changes`: the changes of a PostgreSQL table, from its log, in the order of its commits.

A logical replication slot keeps the log from the stream's position on. It is read with PostgreSQL's own functions
(`pg_logical_slot_peek_binary_changes`), over an ordinary connection and without a plugin: reading does not move the slot. An
offset in the checkpoint is a place in the log (LSN); the slot moves there when Spark plans from it, because all before is done.

First comes a snapshot of the table, then the changes since the slot was created. The slot is created before the snapshot is
read, so no change is missed; changes between the two come twice, which a table of changes can handle (`cdc`). Rows are
those of the table, with `_deleted` and `_sequence`, which is the commit's place in the log and the number of the change in it.
`_unchanged` names the large values that an update left alone: the log does not have them, so they are null in the row.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import DataType, StringType, StructType

from barnabas.spark.pipelines.cdc import DELETED, ERROR, SEQUENCE
from barnabas.spark.pipelines.database import DatabaseError
from barnabas.spark.pipelines.sources.change_rows import (
    ADDED,
    NoSuchValue,
    Shape,
    bad_value,
    error_of,
    has_no_value,
    lsn_number,
    lsn_text,
    refuse,
    rows_of,
    sequence,
    value_of,
)
from barnabas.spark.pipelines.sources.pgoutput import changes, commit_end
from barnabas.spark.pipelines.sources.sql_query import fitted
from barnabas.spark.pipelines.sources.watched_table import Watched, text_of

if TYPE_CHECKING:
    import pyarrow

ROWS_A_BATCH: Final = 8192
#: Bytes of the log after which a stream without changes moves on.
IDLE_BYTES: Final = 16 << 20
#: Pauses before the slot is tried again. It has one reader at a time: an attempt that died may hold it until the server
#: notices.
_BUSY_S: Final = (0.1, 0.2, 0.5, 1, 2, 4, 8, 15)
#: Prefix of columns in a snapshot with the texts of values that Spark does not have.
_BAD: Final = "barnabas_bad_"


class PostgresChangesSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "barnabas-postgres-changes"

    def schema(self) -> StructType:
        return Watched.parse(self.options).schema()

    def streamReader(self, schema: StructType) -> "ChangesReader":  # noqa: N802
        return ChangesReader(Watched.parse(self.options), schema)


@dataclass
class LogRange(InputPartition):
    """The snapshot, or the changes committed after `after` up to `upto`."""

    after: int
    upto: int
    snapshot: bool
    shape: Shape


Offset = dict[str, Any]


class ChangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An offset is `{"lsn": "0/16B3748", "snapshot": false, "oid": 16385}`.

    `snapshot` is true until the snapshot has been read. `oid` is the table's; checkpoints of earlier versions do not have it.
    """

    def __init__(self, watched: Watched, schema: StructType) -> None:
        self.watched = watched
        self.schema = schema
        self._end: int | None = None
        self._shape: Shape | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        lsn = self.watched.start()
        return _offset(lsn, self.watched.require_same(None), snapshot=self.watched.snapshot)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self.watched.max_rows) if self.watched.max_rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._end = self.watched.end_of_log()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        after = lsn_number(start["lsn"])
        oid = self.watched.require_same(start.get("oid"))
        if start["snapshot"]:
            return _offset(after, oid, snapshot=False)
        log = checked_end(self.watched, after)
        end = min(log, self._end) if self._end is not None else log
        if end <= after:
            return start
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        found = [commit_end(data) or 0 for data in patiently(lambda: self.watched.peek(end, rows, commits=True))]
        latest = max([after, *found])
        if latest == after and end - after > IDLE_BYTES:
            latest = end  # other tables fill the log: let the server delete it
        if latest == after:
            return start  # a new offset for the same place would be a batch without rows
        return _offset(latest, oid, snapshot=False)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        if self._shape is None:
            self._shape = self.watched.shape()
        return [LogRange(lsn_number(start["lsn"]), lsn_number(end["lsn"]), bool(start["snapshot"]), self._shape)]

    def read(self, partition: InputPartition) -> "Iterator[pyarrow.RecordBatch]":
        assert isinstance(partition, LogRange)
        if partition.snapshot:
            return read_snapshot(self.watched, self.schema, partition)
        return read_changes(self.watched, self.schema, partition)

    def commit(self, end: Offset) -> None:
        """Do nothing: the slot moves on when the next batch is planned."""

    def stop(self) -> None:
        """Do nothing: the slot stays, and a query that starts again goes on from it."""


def checked_end(watched: Watched, after: int) -> int:
    """Check that the slot and the log are those of a checkpoint that has read up to `after`, and move the slot there. Return
    the end of the log."""
    slot, log = watched.place(), watched.end_of_log()
    if slot > after:
        raise DatabaseError(
            f"slot {watched.slot} is at {lsn_text(slot)}, past {lsn_text(after)} of the checkpoint: another reader uses it, or "
            "it was dropped and created again. Changes between the two are lost. Start again, with a new checkpoint"
        )
    if log < after:
        raise DatabaseError(
            f"the log of {watched.database.name} ends at {lsn_text(log)}, before {lsn_text(after)} of the checkpoint: the "
            "database was restored from an older copy, or a server without its last changes has taken over. The rows of "
            "changes that it lost are in the target, and its next changes would be left out. Start again, with a new "
            "checkpoint and slot"
        )
    if slot < after:
        # Spark plans from the end of a finished batch. It calls `commit` only a batch later; until then a limit would be used
        # up by changes that have been read already.
        patiently(lambda: watched.advance(after))
    return log


def patiently(ask: Callable[[], Iterable[Any]], sleep: Callable[[float], None] = time.sleep) -> list[Any]:
    for pause_s in (*_BUSY_S, None):
        try:
            return list(ask())
        except DatabaseError as error:
            if pause_s is None or "is active for PID" not in str(error):
                raise
            sleep(pause_s)
    raise AssertionError("the loop ends with a return or a raise")


def read_snapshot(watched: Watched, schema: StructType, part: LogRange) -> "Iterator[pyarrow.RecordBatch]":
    import pyarrow

    wanted = to_arrow_schema(schema, timezone="UTC")
    fields = [each for each in schema.fields if each.name not in ADDED]
    rows = pyarrow.schema([wanted.field(each.name) for each in fields])
    columns, texts = [], []
    for number, each in enumerate(fields):
        name = watched.database.quoted(each.name)
        bad = has_no_value(name, each.dataType)
        if bad is not None:
            columns.append(f"CASE WHEN NOT ({bad}) THEN {name} END AS {name}")
            texts.append(f"CASE WHEN {bad} THEN {text_of(name)} END AS {_BAD}{number}")
        else:
            is_text = isinstance(each.dataType, StringType)
            columns.append(f"{text_of(name)} AS {name}" if is_text else name)
    query = f"SELECT {', '.join([*columns, *texts])} FROM {watched.database.quoted(watched.table)}"
    for batch in watched.printed(query):
        fit = fitted(batch.select(range(len(fields))), rows, watched.table)
        added: dict[str, list[object]] = {
            DELETED: [False] * fit.num_rows,
            SEQUENCE: [sequence(part.after, 0)] * fit.num_rows,
            ERROR: _errors(batch, fit, part.shape, schema),
        }
        nothing = [None] * fit.num_rows
        more = [pyarrow.array(added.get(each.name, nothing), each.type) for each in wanted if each.name in ADDED]
        yield pyarrow.RecordBatch.from_arrays([*fit.columns, *more], schema=wanted)


def _errors(batch: "pyarrow.RecordBatch", fit: "pyarrow.RecordBatch", shape: Shape, schema: StructType) -> list[object]:
    """Return the error of each row of a snapshot, or None. Raises if bad values fail the query."""
    problems: dict[int, list[str]] = {}
    for at, name in enumerate(batch.schema.names):
        texts = batch.column(at)
        if at < fit.num_columns or texts.null_count == batch.num_rows:
            continue
        column = schema.fields[int(name.removeprefix(_BAD))]
        for row, text in enumerate(texts.to_pylist()):
            if text is not None:
                given = fit.slice(row, 1).to_pylist()[0] | {column.name: text}
                problem = bad_value(shape, given, column, text, _reason(text, column.dataType))
                if not shape.permissive:
                    raise refuse(problem)
                problems.setdefault(row, []).append(problem)
    return [error_of(problems.get(row, [])) for row in range(batch.num_rows)]


def read_changes(watched: Watched, schema: StructType, part: LogRange) -> "Iterator[pyarrow.RecordBatch]":
    import pyarrow

    wanted = to_arrow_schema(schema, timezone="UTC")
    rows: list[dict[str, object]] = []
    for change in changes(patiently(lambda: watched.peek(part.upto))):
        if not part.after < change.commit_lsn <= part.upto:
            continue
        rows.extend(rows_of(change, part.shape, schema, watched.current))
        if len(rows) >= ROWS_A_BATCH:
            yield pyarrow.RecordBatch.from_pylist(rows, schema=wanted)
            rows = []
    if rows:
        yield pyarrow.RecordBatch.from_pylist(rows, schema=wanted)


def _reason(text: str, kind: DataType) -> str:
    try:
        value_of(text, kind)
    except NoSuchValue as error:
        return str(error)
    return f"is not a {kind.simpleString()}"


def _offset(lsn: int, oid: int, *, snapshot: bool) -> Offset:
    return {"lsn": lsn_text(lsn), "snapshot": snapshot, "oid": oid}
