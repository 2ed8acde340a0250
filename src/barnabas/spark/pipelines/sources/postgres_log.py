"""Format `barnabas-postgres-log`: the changes of many PostgreSQL tables, through one slot and one publication.

It reads the log as `barnabas-postgres-changes` does for one table. Rows of several tables have no common columns, so a row here
is a change: the table's name, the operation, and the row before and after, as the texts that PostgreSQL prints.

| column | content |
|---|---|
| table | `schema.name` |
| op | r (a row of the snapshot), c, u, d, t (the table was emptied) |
| before, after | `map<string,string>`; before has the key alone, unless the table's REPLICA IDENTITY is FULL |
| unchanged | names of large values that an update left alone: `after` does not have them |
| lsn, commit_lsn | places of the change and of its commit in the log |
| xid, committed | the transaction, and when it was committed |
| number | place of the change among the changes of its transaction |
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import ArrayType, IntegerType, LongType, MapType, StringType, StructType, TimestampType

from barnabas.spark.pipelines.sources.change_rows import lsn_number, lsn_text
from barnabas.spark.pipelines.sources.pgoutput import UNCHANGED, Change, Row, Truncated, changes, commit_end
from barnabas.spark.pipelines.sources.postgres_changes import IDLE_BYTES, ROWS_A_BATCH, checked_end, patiently
from barnabas.spark.pipelines.sources.watched_table import Watched, text_of
from barnabas.spark.pipelines.sources.watched_tables import WatchedTables

if TYPE_CHECKING:
    import pyarrow

_TEXTS: Final = MapType(StringType(), StringType())
SCHEMA: Final = (
    StructType()
    .add("table", StringType())
    .add("op", StringType())
    .add("before", _TEXTS)
    .add("after", _TEXTS)
    .add("unchanged", ArrayType(StringType()))
    .add("lsn", LongType())
    .add("commit_lsn", LongType())
    .add("xid", LongType())
    .add("committed", TimestampType())
    .add("number", IntegerType())
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Offset = dict[str, Any]


class PostgresLogSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "barnabas-postgres-log"

    def schema(self) -> StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> "LogReader":  # noqa: N802
        return LogReader(WatchedTables.parse(self.options))


@dataclass
class LogPart(InputPartition):
    """The snapshot of one table, or the changes of all tables that were committed after `after` up to `upto`."""

    after: int
    upto: int
    #: The table whose snapshot this is; "" for changes.
    table: str


class LogReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An offset is `{"lsn": "0/16B3748", "snapshot": false, "oids": {"public.orders": 16385}}`.

    `snapshot` is true until the snapshots have been read.
    """

    def __init__(self, watched: WatchedTables) -> None:
        self.watched = watched
        self._end: int | None = None
        #: When the slot last moved, on the monotonic clock.
        self._moved_s = time.monotonic()

    def initialOffset(self) -> Offset:  # noqa: N802
        lsn = self.watched.start()
        return _offset(lsn, self.watched.require_same({}), snapshot=self.watched.log.snapshot)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self.watched.log.max_rows
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._end = self.watched.log.end_of_log()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        log, after = self.watched.log, lsn_number(start["lsn"])
        oids = self.watched.require_same(start["oids"])
        if start["snapshot"]:
            return _offset(after, oids, snapshot=False)
        end = checked_end(log, after)
        end = min(end, self._end) if self._end is not None else end
        if end <= after:
            return start
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        found = [commit_end(data) or 0 for data in patiently(lambda: log.peek(end, rows, commits=True))]
        latest = max([after, *found])
        if latest == after and (end - after > IDLE_BYTES or self._is_silent()):
            latest = end  # other tables fill the log: let the server delete it
        if latest == after:
            return start
        self._moved_s = time.monotonic()
        return _offset(latest, oids, snapshot=False)

    def _is_silent(self) -> bool:
        heartbeat_ms = self.watched.heartbeat_ms
        return heartbeat_ms > 0 and (time.monotonic() - self._moved_s) * 1000 >= heartbeat_ms

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        after, upto = lsn_number(start["lsn"]), lsn_number(end["lsn"])
        if start["snapshot"]:
            return [LogPart(after, upto, each.table) for each in self.watched.tables]
        return [LogPart(after, upto, "")]

    def read(self, partition: InputPartition) -> "Iterator[pyarrow.RecordBatch]":
        assert isinstance(partition, LogPart)
        if partition.table:
            [table] = [each for each in self.watched.tables if each.table == partition.table]
            return read_snapshot(table, partition)
        return read_changes(self.watched, partition)

    def commit(self, end: Offset) -> None:
        """Do nothing: the slot moves on when the next batch is planned."""

    def stop(self) -> None:
        """Do nothing: the slot stays, and a query that starts again goes on from it."""


def read_snapshot(table: Watched, part: LogPart) -> "Iterator[pyarrow.RecordBatch]":
    import pyarrow

    columns = [each.name for each in table.read_columns(table.facts())]
    quoted = table.database.quoted
    texts = ", ".join(f"{text_of(quoted(name))} AS {quoted(name)}" for name in columns)
    arrow, now = to_arrow_schema(SCHEMA, timezone="UTC"), datetime.now(UTC)
    for batch in table.printed(f"SELECT {texts} FROM {quoted(table.table)}"):
        rows = [
            {
                "table": table.table,
                "op": "r",
                "after": list(row.items()),
                "lsn": part.after,
                "commit_lsn": part.after,
                "committed": now,
                "number": 0,
            }
            for row in batch.to_pylist()
        ]
        yield pyarrow.RecordBatch.from_pylist(rows, schema=arrow)


def read_changes(watched: WatchedTables, part: LogPart) -> "Iterator[pyarrow.RecordBatch]":
    import pyarrow

    arrow, names = to_arrow_schema(SCHEMA, timezone="UTC"), {each.table for each in watched.tables}
    rows: list[dict[str, object]] = []
    for change in changes(patiently(lambda: watched.log.peek(part.upto))):
        if not part.after < change.commit_lsn <= part.upto:
            continue
        rows.extend(rows_of(change, names))
        if len(rows) >= ROWS_A_BATCH:
            yield pyarrow.RecordBatch.from_pylist(rows, schema=arrow)
            rows = []
    if rows:
        yield pyarrow.RecordBatch.from_pylist(rows, schema=arrow)


def rows_of(change: Change | Truncated, tables: "set[str]") -> Iterator[dict[str, object]]:
    """Yield the rows of a change of these tables."""
    shared: dict[str, object] = {
        "lsn": change.lsn or change.commit_lsn,
        "commit_lsn": change.commit_lsn,
        "xid": change.transaction.xid,
        "committed": _EPOCH + timedelta(microseconds=change.transaction.committed_us),
        "number": change.number,
    }
    if isinstance(change, Truncated):
        yield from ({**shared, "table": each, "op": "t"} for each in change.relations if each in tables)
        return
    if change.relation.name not in tables:
        return
    after = None if change.deleted else change.row
    yield {
        **shared,
        "table": change.relation.name,
        "op": "d" if change.deleted else "c" if change.is_insert else "u",
        "before": _texts(change.old),
        "after": _texts(after),
        "unchanged": [name for name, value in (after or {}).items() if value is UNCHANGED] or None,
    }


def _texts(row: Row | None) -> list[tuple[str, object]] | None:
    return None if row is None else [(name, value) for name, value in row.items() if value is not UNCHANGED]


def _offset(lsn: int, oids: Mapping[str, int], *, snapshot: bool) -> Offset:
    return {"lsn": lsn_text(lsn), "snapshot": snapshot, "oids": dict(oids)}
