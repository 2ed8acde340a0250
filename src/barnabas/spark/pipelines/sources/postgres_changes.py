"""Format `barnabas-postgres-changes`: the changes of a PostgreSQL table, from its log, in the order of its commits.

A logical replication slot keeps the log from where the stream is. It is read with PostgreSQL's own functions
(`pg_logical_slot_peek_binary_changes`), over an ordinary connection and without a plugin: reading does not move the slot. An
offset in the checkpoint is a place in the log (LSN); the slot moves on when Spark plans from there, as all before is done.

First comes a snapshot of the table, then what was changed since the slot was made. The slot is made before the snapshot is
read, so nothing is missed; what happened between the two is told again, and a table of changes takes that (`cdc`). Rows are
those of the table, with `_deleted` and `_sequence`, which is the commit's place in the log and the number of the change in it.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from barnabas.spark.options import check_names
from barnabas.spark.pipelines.cdc import DELETED, SEQUENCE
from barnabas.spark.pipelines.database import Database, DatabaseError, Dialect, batches, execute, fetch
from barnabas.spark.pipelines.sinks.sql_table import held_as
from barnabas.spark.pipelines.sources.pgoutput import UNCHANGED, Change, Row, Truncated, changes, commit_end
from barnabas.spark.pipelines.sources.sql_query import decimal_type, fitted

if TYPE_CHECKING:
    import pyarrow

_OPTIONS: Final = ("uri", "table", "slot", "publication", "snapshot", "maxRowsPerTrigger")
_NAME: Final = re.compile(r"[a-z0-9_]{1,63}")
_ROWS_A_BATCH: Final = 8192
#: A stream without changes moves on in the log this often.
_IDLE_BYTES: Final = 16 << 20
#: How values are printed, whatever the server's default is.
_OUTPUT: Final = ("datestyle TO 'ISO'", "bytea_output TO 'hex'", "extra_float_digits TO 1")
#: A slot has one reader at a time: an attempt that died may hold it until the server notices.
_BUSY_S: Final = (0.1, 0.2, 0.5, 1, 2, 4, 8, 15)


@dataclass(frozen=True)
class Watched:
    """What is read, and how."""

    database: Database
    table: str
    slot: str
    publication: str
    snapshot: bool
    max_rows: int | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "Watched":
        check_names(options, _OPTIONS, what="format barnabas-postgres-changes", prefixes=())
        for needed in ("uri", "table"):
            if needed not in options:
                raise ValueError(f"barnabas-postgres-changes needs the option {needed}")
        database = Database(options["uri"])
        if database.dialect is not Dialect.POSTGRESQL:
            raise ValueError(f"{database.name}: only PostgreSQL has a log of changes to read")
        table = options["table"]
        default = "barnabas_" + re.sub(r"[^a-z0-9]", "_", table.lower())
        slot = options.get("slot", default)
        if not _NAME.fullmatch(slot):
            raise ValueError(f"slot {slot!r}: PostgreSQL wants up to 63 of a to z, 0 to 9 and _")
        snapshot = options.get("snapshot", "true").lower()
        if snapshot not in ("true", "false"):
            raise ValueError(f"snapshot is {snapshot!r}: neither true nor false")
        rows = options.get("maxRowsPerTrigger")
        return cls(
            database=database,
            table=table if "." in table else f"public.{table}",
            slot=slot,
            publication=options.get("publication", default),
            snapshot=snapshot == "true",
            max_rows=int(rows) if rows is not None else None,
        )

    def schema(self) -> StructType:
        made = StructType()
        with self.database.connect() as connection:
            for each in self.database.table_columns(connection, self.table):
                made.add(each.name, spark_type(each.declared))
        if not made.fields:
            raise DatabaseError(f"{self.database.name}: there is no table {self.table}")
        return made.add(DELETED, BooleanType()).add(SEQUENCE, StringType())

    def keys(self) -> list[str]:
        """The columns of the primary key."""
        schema, _, name = self.table.rpartition(".")
        with self.database.connect() as connection:
            rows = fetch(
                connection,
                "SELECT a.attname AS name FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid "
                "JOIN pg_namespace n ON n.oid = c.relnamespace "
                "JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY(i.indkey) "
                f"WHERE i.indisprimary AND n.nspname = {self.database.parameter(1, 'TEXT')} "
                f"AND c.relname = {self.database.parameter(2, 'TEXT')}",
                [schema, name],
            )
        return [row["name"] for row in rows]

    def start(self) -> int:
        """Make publication and slot, unless they are there; returns where the slot begins."""
        text, quoted = self.database.parameter, self.database.quoted
        with self.database.connect() as connection:
            there = fetch(
                connection, f"SELECT 1 AS n FROM pg_publication WHERE pubname = {text(1, 'TEXT')}", [self.publication]
            )
            if not there:
                table = quoted(self.table)
                execute(connection, f"CREATE PUBLICATION {_name(self.publication)} FOR TABLE {table}")
            schema, _, name = self.table.rpartition(".")
            where = f"pubname = {text(1, 'TEXT')} AND schemaname = {text(2, 'TEXT')} AND tablename = {text(3, 'TEXT')}"
            query = f"SELECT 1 AS n FROM pg_publication_tables WHERE {where}"
            if not fetch(connection, query, [self.publication, schema, name]):
                raise DatabaseError(
                    f"{self.database.name}: publication {self.publication} does not have table {self.table}: "
                    f"ALTER PUBLICATION {self.publication} ADD TABLE {self.table}"
                )
            connection.commit()
        with self.database.connect() as connection:
            slots = fetch(
                connection,
                "SELECT confirmed_flush_lsn::text AS lsn, plugin, wal_status FROM pg_replication_slots "
                f"WHERE slot_name = {text(1, 'TEXT')}",
                [self.slot],
            )
            if not slots:
                slots = fetch(
                    connection,
                    "SELECT lsn::text AS lsn, 'pgoutput' AS plugin, '' AS wal_status "
                    f"FROM pg_create_logical_replication_slot({text(1, 'NAME')}, 'pgoutput')",
                    [self.slot],
                )
            connection.commit()
        [slot] = slots
        if slot["plugin"] != "pgoutput":
            raise DatabaseError(f"{self.database.name}: slot {self.slot} is of plugin {slot['plugin']}, not pgoutput")
        return lsn_number(slot["lsn"])

    def end_of_log(self) -> int:
        with self.database.connect() as connection:
            [row] = fetch(connection, "SELECT pg_current_wal_flush_lsn()::text AS lsn")
        return lsn_number(row["lsn"])

    def place(self) -> int:
        """Where the slot is."""
        with self.database.connect() as connection:
            where = f"WHERE slot_name = {self.database.parameter(1, 'TEXT')}"
            query = f"SELECT confirmed_flush_lsn::text AS lsn FROM pg_replication_slots {where}"
            rows = fetch(connection, query, [self.slot])
        if not rows:
            raise DatabaseError(
                f"{self.database.name}: slot {self.slot} is gone, and with it what changed since the checkpoint: "
                "start again, with a new checkpoint"
            )
        return lsn_number(rows[0]["lsn"])

    def peek(self, upto: int, rows: int | None = None, *, commits: bool = False) -> Iterator[bytes]:
        """The messages behind the slot up to a place, or until so many have come and their transaction is complete.

        `commits`: only those that end a transaction.
        """
        arguments = ", ".join(
            (
                self.database.parameter(1, "NAME"),
                self.database.parameter(2, "PG_LSN"),
                "NULL" if rows is None else str(rows),
                "'proto_version', '1', 'publication_names'",
                self.database.parameter(3, "TEXT"),
            )
        )
        given = [self.slot, lsn_text(upto), _name(self.publication)]
        query = f"SELECT data FROM pg_logical_slot_peek_binary_changes({arguments})"
        query += " WHERE get_byte(data, 0) = ascii('C')" if commits else ""
        for batch in self.printed(query, given):
            yield from batch.column(0).to_pylist()

    def printed(self, query: str, given: Sequence[object] = ()) -> "Iterator[pyarrow.RecordBatch]":
        """The rows of a query, with values printed alike in all of them."""
        with self.database.connect() as connection:
            for setting in _OUTPUT:
                execute(connection, f"SET {setting}")
            yield from batches(connection, query, given)

    def advance(self, lsn: int) -> list[object]:
        """What lies before need not be kept any more. Returns nothing of interest."""
        where = f"{self.database.parameter(1, 'NAME')}, {self.database.parameter(2, 'PG_LSN')}"
        with self.database.connect() as connection:
            fetch(connection, f"SELECT 1 AS n FROM pg_replication_slot_advance({where})", [self.slot, lsn_text(lsn)])
            connection.commit()
        return []


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
    """The snapshot, or what was committed behind `after` up to `upto`."""

    after: int
    upto: int
    snapshot: bool = False
    keys: list[str] = field(default_factory=list)


Offset = dict[str, Any]


class ChangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An offset is `{"lsn": "0/16B3748", "snapshot": false}`; `snapshot` while that is still to be read."""

    def __init__(self, watched: Watched, schema: StructType) -> None:
        self.watched = watched
        self.schema = schema
        self._end: int | None = None
        self._keys: list[str] | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        return _offset(self.watched.start(), snapshot=self.watched.snapshot)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self.watched.max_rows) if self.watched.max_rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._end = self.watched.end_of_log()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        after = lsn_number(start["lsn"])
        if start["snapshot"]:
            return _offset(after, snapshot=False)
        slot, log = self.watched.place(), self.watched.end_of_log()
        if slot > after:
            raise DatabaseError(
                f"slot {self.watched.slot} is at {lsn_text(slot)}, past {start['lsn']} of the checkpoint: somebody else reads "
                "it or made it anew, and what changed between the two is gone. Start again, with a new checkpoint"
            )
        if slot < after:
            # Spark plans from where a batch has ended for good. It says so itself only a batch later, until when a limit would
            # be used up by what has been read already.
            patiently(lambda: self.watched.advance(after))
        end = min(log, self._end) if self._end is not None else log
        if end <= after:
            return start
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        found = [commit_end(data) or 0 for data in patiently(lambda: self.watched.peek(end, rows, commits=True))]
        latest = max([after, *found])
        if latest == after and end - after > _IDLE_BYTES:
            latest = end  # other tables fill the log: let the server forget it
        return _offset(latest, snapshot=False)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        if self._keys is None:
            self._keys = self.watched.keys()
        return [LogRange(lsn_number(start["lsn"]), lsn_number(end["lsn"]), bool(start["snapshot"]), self._keys)]

    def read(self, partition: InputPartition) -> "Iterator[pyarrow.RecordBatch]":
        assert isinstance(partition, LogRange)
        if partition.snapshot:
            return read_snapshot(self.watched, self.schema, partition.after)
        return read_changes(self.watched, self.schema, partition)

    def commit(self, end: Offset) -> None:
        """The slot moves on when the next batch is planned."""

    def stop(self) -> None:
        """The slot stays: a query that starts again goes on from it."""


def patiently(ask: Callable[[], Iterable[Any]], sleep: Callable[[float], None] = time.sleep) -> list[Any]:
    for pause_s in (*_BUSY_S, None):
        try:
            return list(ask())
        except DatabaseError as error:
            if pause_s is None or "is active for PID" not in str(error):
                raise
            sleep(pause_s)
    raise AssertionError("the last pause is none")


def read_snapshot(watched: Watched, schema: StructType, lsn: int) -> "Iterator[pyarrow.RecordBatch]":
    import pyarrow

    wanted = to_arrow_schema(schema, timezone="UTC")
    rows = pyarrow.schema(list(wanted)[:-2])
    names = [(watched.database.quoted(each.name), isinstance(each.dataType, StringType)) for each in schema.fields[:-2]]
    columns = ", ".join(f"{_text_of(name)} AS {name}" if is_text else name for name, is_text in names)
    for batch in watched.printed(f"SELECT {columns} FROM {watched.database.quoted(watched.table)}"):
        fit = fitted(batch, rows, watched.table)
        more = [
            pyarrow.array([False] * fit.num_rows),
            pyarrow.array([sequence(lsn, 0)] * fit.num_rows, pyarrow.string()),
        ]
        yield pyarrow.RecordBatch.from_arrays([*fit.columns, *more], schema=wanted)


def _text_of(column: str) -> str:
    """As PostgreSQL prints it, and as the log has it. A cast drops the blanks of `char(n)` and gives an `inet` its mask."""
    return f"CASE WHEN {column} IS NOT NULL THEN format('%s', {column}) END"


def read_changes(watched: Watched, schema: StructType, part: LogRange) -> "Iterator[pyarrow.RecordBatch]":
    import pyarrow

    wanted = to_arrow_schema(schema, timezone="UTC")
    rows: list[dict[str, object]] = []
    for change in changes(patiently(lambda: watched.peek(part.upto))):
        if not part.after < change.commit_lsn <= part.upto:
            continue
        rows.extend(rows_of(change, watched.table, schema, part.keys))
        if len(rows) >= _ROWS_A_BATCH:
            yield pyarrow.RecordBatch.from_pylist(rows, schema=wanted)
            rows = []
    if rows:
        yield pyarrow.RecordBatch.from_pylist(rows, schema=wanted)


def rows_of(
    change: Change | Truncated, table: str, schema: StructType, keys: Sequence[str]
) -> Iterator[dict[str, object]]:
    """What a change means for a table of changes: its row, and, where it gave a row another key, that the old one is gone."""
    if isinstance(change, Truncated):
        if table in change.relations:
            raise DatabaseError(
                f"{table} was truncated at {lsn_text(change.commit_lsn)}, which is no change of a row: empty what is made of "
                "it and start again, with a new checkpoint and slot"
            )
        return
    if change.relation.name != table:
        return
    if new := sorted(set(change.relation.columns) - set(schema.names)):
        raise DatabaseError(f"{table} has a column {', '.join(new)} that the query does not know: start the run again")
    order = sequence(change.commit_lsn, 2 * change.number + 1)
    moved = (
        change.old is not None
        and not change.deleted
        and any(change.old[key] is not None and change.old[key] != change.row[key] for key in keys)
    )
    if moved and change.old is not None:
        gone = {name: value if name in keys else None for name, value in change.old.items()}
        yield parsed(gone, table, schema) | {DELETED: True, SEQUENCE: sequence(change.commit_lsn, 2 * change.number)}
    yield parsed(change.row, table, schema) | {DELETED: change.deleted, SEQUENCE: order}


def parsed(row: Row, table: str, schema: StructType) -> dict[str, object]:
    found: dict[str, object] = {}
    for each in schema.fields:
        value = row.get(each.name)
        if value is UNCHANGED:
            raise DatabaseError(
                f"{table}, column {each.name}: an update did not touch this large value, so the log does not have it: "
                f"ALTER TABLE {table} REPLICA IDENTITY FULL makes PostgreSQL write it"
            )
        if value is None:
            found[each.name] = None
            continue
        try:
            found[each.name] = _PARSERS[type(each.dataType)](str(value))
        except (ValueError, KeyError, ArithmeticError) as error:
            kind = each.dataType.simpleString()
            raise DatabaseError(f"{table}, column {each.name}: {value!r} is not a {kind}: {error}") from error
    return found


def _boolean(text: str) -> bool:
    return {"t": True, "f": False}[text]


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("\\x"))


_PARSERS: Final[Mapping[type[DataType], Callable[[str], object]]] = {
    BooleanType: _boolean,
    ShortType: int,
    IntegerType: int,
    LongType: int,
    FloatType: float,
    DoubleType: float,
    DecimalType: Decimal,
    StringType: str,
    BinaryType: _bytes,
    DateType: date.fromisoformat,
    TimestampType: datetime.fromisoformat,
    TimestampNTZType: datetime.fromisoformat,
}


def spark_type(declared: str) -> DataType:
    """Of a column that PostgreSQL declares so; what Spark has no type for is text, as PostgreSQL prints it."""
    return decimal_type(declared) or held_as(declared) or StringType()


def sequence(lsn: int, number: int) -> str:
    """A text that every table can compare: the commit, then the change in it. As in `cdc`, the letter is newer than a time."""
    return f"L{lsn:020}{number:012}"


def _name(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


def lsn_number(text: str) -> int:
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


def lsn_text(number: int) -> str:
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"


def _offset(lsn: int, *, snapshot: bool) -> Offset:
    return {"lsn": lsn_text(lsn), "snapshot": snapshot}
