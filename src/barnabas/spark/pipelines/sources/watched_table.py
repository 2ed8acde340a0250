"""The PostgreSQL table whose changes are read: its options, its description by the server, its publication and its slot."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import StringType, StructField, StructType

from barnabas.spark.options import check_names
from barnabas.spark.pipelines.database import Column, Database, DatabaseError, Dialect, batches, execute, fetch
from barnabas.spark.pipelines.sinks.table_schema import columns_named
from barnabas.spark.pipelines.sources.change_rows import ADDED, Shape, lsn_number, lsn_text, schema_of_changes
from barnabas.spark.pipelines.sources.pgoutput import Message, Row

if TYPE_CHECKING:
    import pyarrow

_OPTIONS: Final = (
    "uri",
    "table",
    "slot",
    "publication",
    "snapshot",
    "maxRowsPerTrigger",
    "columns",
    "exclude",
    "mode",
    "replicaIdentity",
)
_MODES: Final = ("FAIL", "PERMISSIVE")
_NAME: Final = re.compile(r"[a-z0-9_]{1,63}")
#: Settings for the form in which values are printed, whatever the server's default is.
_OUTPUT: Final = (
    "datestyle TO 'ISO'",
    "intervalstyle TO 'postgres'",
    "timezone TO 'UTC'",
    "bytea_output TO 'hex'",
    "extra_float_digits TO 1",
)


@dataclass(frozen=True)
class Facts:
    """The server's description of a table."""

    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    #: `pg_class.relreplident`: d (the primary key), i (an index), f (the whole row), n (nothing).
    identity: str
    #: The columns of the index, if an index is the identity.
    index_key: tuple[str, ...]
    is_partitioned: bool

    @property
    def log_key(self) -> tuple[str, ...]:
        """Return the columns by which the log identifies the row of an UPDATE or DELETE; none if it cannot."""
        match self.identity:
            case "d":
                return self.primary_key
            case "i":
                return self.index_key
            case "f":
                whole = tuple(each.name for each in self.columns if not each.is_generated)
                return self.primary_key or whole
            case _:
                return ()


@dataclass(frozen=True)
class Watched:
    """The table that is read, and the options."""

    database: Database
    table: str
    slot: str
    publication: str
    snapshot: bool
    max_rows: int | None
    #: The columns to read; all of them if this is empty.
    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    permissive: bool = False
    #: The user agrees that PostgreSQL logs whole rows of a table that has no key.
    identity_full: bool = False

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
            raise ValueError(f"snapshot is {snapshot!r}: use true or false")
        mode = options.get("mode", "FAIL").upper()
        if mode not in _MODES:
            raise ValueError(f"mode {mode!r} of barnabas-postgres-changes: use {' or '.join(_MODES)}")
        identity = options.get("replicaIdentity", "").lower()
        if identity not in ("", "full"):
            raise ValueError(f"replicaIdentity is {identity!r}: the only value is full")
        if "columns" in options and "exclude" in options:
            raise ValueError("columns and exclude of barnabas-postgres-changes do not go together: use one of them")
        rows = options.get("maxRowsPerTrigger")
        return cls(
            database=database,
            table=table if "." in table else f"public.{table}",
            slot=slot,
            publication=options.get("publication", default),
            snapshot=snapshot == "true",
            max_rows=int(rows) if rows is not None else None,
            only=tuple(columns_named(options.get("columns", ""))),
            exclude=tuple(columns_named(options.get("exclude", ""))),
            permissive=mode == "PERMISSIVE",
            identity_full=identity == "full",
        )

    # -- the table ------------------------------------------------------------------------------------------------------

    def schema(self) -> StructType:
        columns = self.read_columns(self.facts())
        fields = [StructField(each.name, each.kind.read_as() if each.kind else StringType()) for each in columns]
        return schema_of_changes(fields, permissive=self.permissive)

    def shape(self) -> Shape:
        facts = self.facts()
        read = {each.name for each in self.read_columns(facts)}
        return Shape(
            table=self.table,
            keys=tuple(name for name in facts.log_key if name in read),
            left_out=frozenset(each.name for each in facts.columns if each.name not in read),
            only_listed=bool(self.only),
            permissive=self.permissive,
        )

    def read_columns(self, facts: Facts) -> list[Column]:
        """Return the columns to read. A generated column is not read: the log does not have its values."""
        known = {each.name: each for each in facts.columns}
        if unknown := sorted({*self.only, *self.exclude} - set(known)):
            raise DatabaseError(f"{self.table} has no column {', '.join(unknown)}; it has {', '.join(known)}")
        if computed := [name for name in self.only if known[name].is_generated]:
            raise DatabaseError(
                f"{self.table}: column {', '.join(computed)} is generated, and PostgreSQL does not log generated columns: "
                "compute it from the others"
            )
        if taken := sorted(set(known) & set(ADDED) - set(self.exclude)):
            raise DatabaseError(f"{self.table} has a column {', '.join(taken)}, a name of barnabas: exclude={taken[0]}")
        read = [
            each
            for each in facts.columns
            if not each.is_generated and each.name not in self.exclude and (not self.only or each.name in self.only)
        ]
        names = {each.name for each in read}
        if facts.identity != "f" or facts.primary_key:
            lacking = [name for name in facts.log_key if name not in names]
            if lacking:
                is_computed = any(known[name].is_generated for name in lacking)
                why = "is generated, so the log does not have it" if is_computed else "cannot be left out"
                raise DatabaseError(f"{self.table}: column {', '.join(lacking)} of the key {why}")
        return read

    def facts(self) -> Facts:
        with self.database.connect() as connection:
            return self.facts_of(connection)

    def facts_of(self, connection: Any) -> Facts:
        columns = self.database.table_columns(connection, self.table)
        if not columns:
            raise DatabaseError(f"{self.database.name}: there is no table {self.table}")
        schema, _, name = self.table.rpartition(".")
        where = f"n.nspname = {self.database.parameter(1, 'TEXT')} AND c.relname = {self.database.parameter(2, 'TEXT')}"
        [table] = fetch(
            connection,
            "SELECT c.relkind = 'p' AS is_partitioned, c.relreplident::text AS identity FROM pg_class c "
            f"JOIN pg_namespace n ON n.oid = c.relnamespace WHERE {where}",
            [schema, name],
        )
        keys = fetch(
            connection,
            "SELECT a.attname AS name, i.indisprimary AS is_primary, i.indisreplident AS is_identity FROM pg_index i "
            "JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace "
            "JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY(i.indkey[0:i.indnkeyatts - 1]) "
            f"WHERE (i.indisprimary OR i.indisreplident) AND {where} ORDER BY a.attnum",
            [schema, name],
        )
        return Facts(
            tuple(columns),
            primary_key=tuple(row["name"] for row in keys if row["is_primary"]),
            identity=table["identity"],
            index_key=tuple(row["name"] for row in keys if row["is_identity"]),
            is_partitioned=table["is_partitioned"],
        )

    def current(self, key: Mapping[str, str]) -> Row | None:
        """Return the current row of a key, in the texts of the log; None if it is gone."""
        quoted = self.database.quoted
        columns = {each.name: each for each in self.read_columns(self.facts())}
        texts = ", ".join(f"{text_of(quoted(name))} AS {quoted(name)}" for name in columns)
        kinds = {name: columns[name].kind for name in key}
        where = " AND ".join(
            f"{quoted(name)} = CAST(${number} AS {kind.cast_name})"
            for number, (name, kind) in enumerate(kinds.items(), 1)
            if kind is not None
        )
        query = f"SELECT {texts} FROM {quoted(self.table)} WHERE {where}"
        rows = [row for batch in self.printed(query, list(key.values())) for row in batch.to_pylist()]
        return rows[0] if rows else None

    # -- the publication and the slot -----------------------------------------------------------------------------------

    def start(self) -> int:
        """Create publication and slot, unless they exist; return where the slot begins."""
        text = self.database.parameter
        with self.database.connect() as connection:
            facts = self.facts_of(connection)
            self.read_columns(facts)
            found = fetch(
                connection,
                "SELECT to_jsonb(p) ->> 'pubviaroot' AS via_root FROM pg_publication p "
                f"WHERE pubname = {text(1, 'TEXT')}",
                [self.publication],
            )
            if not found:
                self._publish(connection, facts)
            elif facts.is_partitioned and found[0]["via_root"] != "true":
                raise DatabaseError(
                    f"{self.database.name}: publication {self.publication} publishes the partitions of {self.table} under "
                    f"their own names: ALTER PUBLICATION {self.publication} SET (publish_via_partition_root = true)"
                )
            self.require_published(connection)
            connection.commit()
        return self.make_slot()

    def require_same(self, oid: int | None) -> int:
        """Check that the publication still publishes this very table. Return its oid.

        A table that was renamed takes its place in the publication with it. Another table that gets the name is not published:
        its changes would be missing without a word.
        """
        with self.database.connect() as connection:
            found = self.require_published(connection)
        if oid not in (None, found):
            raise DatabaseError(
                f"{self.database.name}: {self.table} is another table than before: it was dropped or renamed, and created "
                "again. Changes between the two are lost. Start again, with a new checkpoint and slot"
            )
        return found

    def _publish(self, connection: Any, facts: Facts) -> None:
        """Publish the table. From then on PostgreSQL refuses every UPDATE and DELETE of a row that its log cannot identify."""
        table = self.database.quoted(self.table)
        self.identify_rows(connection, facts)
        option = " WITH (publish_via_partition_root = true)" if facts.is_partitioned else ""
        execute(connection, f"CREATE PUBLICATION {name_of(self.publication)} FOR TABLE {table}{option}")

    def identify_rows(self, connection: Any, facts: Facts) -> None:
        """Let the log identify the table's rows. :raises DatabaseError: if it does not, and the user has not agreed to that."""
        if not facts.log_key:
            self._require_choice(facts)
            execute(connection, f"ALTER TABLE {self.database.quoted(self.table)} REPLICA IDENTITY FULL")

    def _require_choice(self, facts: Facts) -> None:
        problem = (
            f"{self.database.name}: {self.table} has no primary key and no other replica identity. If it were published, "
            "PostgreSQL would refuse every UPDATE and DELETE of it from then on, also the application's own. Nothing was "
            "created. "
        )
        if facts.is_partitioned:
            raise DatabaseError(
                f"{problem}Give it a primary key: REPLICA IDENTITY FULL would not reach partitions that are added later"
            )
        if not self.identity_full:
            raise DatabaseError(
                f'{problem}Give it a primary key; or start with replicaIdentity=full (replica_identity="full"), which sets '
                "REPLICA IDENTITY FULL: PostgreSQL then logs the whole old row with each UPDATE and DELETE"
            )

    def require_published(self, connection: Any) -> int:
        """Return the table's oid. Raises if the publication leaves out the table, its columns, or a kind of change."""
        schema, _, name = self.table.rpartition(".")
        text = self.database.parameter
        found = fetch(
            connection,
            "SELECT c.oid::bigint AS oid, p.pubinsert, p.pubupdate, p.pubdelete, to_jsonb(t) ->> 'attnames' AS columns "
            "FROM pg_publication p JOIN pg_publication_tables t ON t.pubname = p.pubname "
            "JOIN pg_namespace n ON n.nspname = t.schemaname "
            "JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename "
            f"WHERE p.pubname = {text(1, 'TEXT')} AND t.schemaname = {text(2, 'TEXT')} AND t.tablename = {text(3, 'TEXT')}",
            [self.publication, schema, name],
        )
        if not found:
            raise DatabaseError(
                f"{self.database.name}: publication {self.publication} does not have table {self.table}: "
                f"ALTER PUBLICATION {self.publication} ADD TABLE {self.table}. If the table was dropped or renamed, and "
                "created again, its changes since then are lost: start again, with a new checkpoint and slot"
            )
        [table] = found
        if missing := [kind for kind in ("insert", "update", "delete") if not table[f"pub{kind}"]]:
            raise DatabaseError(
                f"{self.database.name}: publication {self.publication} does not publish {', '.join(missing)}: changes would be "
                f"missing. ALTER PUBLICATION {self.publication} SET (publish = 'insert, update, delete, truncate'), and start "
                "again, with a new checkpoint and slot"
            )
        if table["columns"] is not None:
            self._require_columns(connection, json.loads(table["columns"]))
        return int(table["oid"])

    def _require_columns(self, connection: Any, published: Sequence[str]) -> None:
        read = [each.name for each in self.read_columns(self.facts_of(connection))]
        if lacking := [name for name in read if name not in published]:
            raise DatabaseError(
                f"{self.database.name}: publication {self.publication} leaves out column {', '.join(lacking)} of {self.table}, "
                f"which would be null in every change: exclude={','.join(lacking)}, or publish the whole table"
            )

    def make_slot(self) -> int:
        text = self.database.parameter
        with self.database.connect() as connection:
            slots = fetch(
                connection,
                "SELECT confirmed_flush_lsn::text AS lsn, plugin FROM pg_replication_slots "
                f"WHERE slot_name = {text(1, 'TEXT')}",
                [self.slot],
            )
            if not slots:
                slots = fetch(
                    connection,
                    "SELECT lsn::text AS lsn, 'pgoutput' AS plugin "
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
        """Return the slot's position."""
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
        """Yield the messages after the slot up to a place, or until `rows` have come and their transaction is complete.

        `commits`: only messages that end a transaction.
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
        given = [self.slot, lsn_text(upto), name_of(self.publication)]
        query = f"SELECT data, (lsn - '0/0')::bigint AS lsn FROM pg_logical_slot_peek_binary_changes({arguments})"
        query += " WHERE get_byte(data, 0) = ascii('C')" if commits else ""
        for batch in self.printed(query, given):
            yield from map(Message, batch.column(0).to_pylist(), batch.column(1).to_pylist())

    def printed(self, query: str, given: Sequence[object] = ()) -> "Iterator[pyarrow.RecordBatch]":
        """Yield the rows of a query, with values printed in the same form for all queries."""
        with self.database.connect() as connection:
            for setting in _OUTPUT:
                execute(connection, f"SET {setting}")
            yield from batches(connection, query, given)

    def advance(self, lsn: int) -> list[object]:
        """Let the server delete its log before this place. Returns an empty list, because `patiently` wants a list."""
        where = f"{self.database.parameter(1, 'NAME')}, {self.database.parameter(2, 'PG_LSN')}"
        with self.database.connect() as connection:
            fetch(connection, f"SELECT 1 AS n FROM pg_replication_slot_advance({where})", [self.slot, lsn_text(lsn)])
            connection.commit()
        return []


def text_of(column: str) -> str:
    """Return the value as PostgreSQL prints and logs it. A cast would drop the blanks of `char(n)` and give an `inet` its
    mask."""
    return f"CASE WHEN {column} IS NOT NULL THEN format('%s', {column}) END"


def name_of(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'
