"""Two databases behind one small interface: PostgreSQL and SQLite, both through Arrow's ADBC drivers.

The rows of SQLite are an exception: Python's own module reads them. Arrow's driver takes the types of the first 1,024 rows for
those of all rows: a column that begins with nulls would be one of integers, and the first text in it an error.

A URI says which: `postgresql://user:password@host:port/name`, or `sqlite:///path` (four slashes for an absolute one).
"""

import importlib
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from barnabas.spark.pipelines.postgres_types import PostgresType

if TYPE_CHECKING:
    import pyarrow

_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_ (),\[\]]*")
#: How long SQLite waits for another writer.
_BUSY_S = 60
_SQLITE_ROWS = 8192


class Dialect(Enum):
    POSTGRESQL = "postgresql"
    SQLITE = "sqlite"


class DatabaseError(RuntimeError):
    """The database refused. The message names the database without a password, and the statement."""


class Column(NamedTuple):
    name: str
    #: The database's own name of the type; in SQLite the declared one, which may be empty.
    declared: str
    nullable: bool = True
    #: True also for an identity column.
    has_default: bool = False
    #: The database computes its values and accepts none.
    is_generated: bool = False
    #: GENERATED ALWAYS AS IDENTITY: an INSERT that gives a value must say OVERRIDING SYSTEM VALUE.
    is_always_identity: bool = False
    #: PostgreSQL's type; for a domain the type beneath it. None in SQLite.
    kind: PostgresType | None = None


class Database:
    """How to reach one database. Holds no connection, so that it can go to an executor."""

    def __init__(self, uri: str) -> None:
        scheme, colon, rest = uri.partition(":")
        if colon and scheme in ("postgresql", "postgres"):
            self.dialect = Dialect.POSTGRESQL
            self._target = uri
        elif colon and scheme == "sqlite":
            self.dialect = Dialect.SQLITE
            self._target = str(Path(rest.removeprefix("///")).absolute())
        else:
            raise DatabaseError(f"{scheme}: only postgresql://… and sqlite:///… are known")
        #: The URI for messages, without its password, which may also be an option (`?password=…`).
        self.name = re.sub(r"://[^@/]*@", "://", uri)
        if self.dialect is Dialect.POSTGRESQL:
            self.name = self.name.partition("?")[0]

    @contextmanager
    def connect(self) -> Iterator[Any]:
        """Open a connection in a transaction of its own, which is rolled back unless the caller commits it."""
        driver = _driver(self.dialect)
        try:
            with driver.connect(self._target) as connection:
                if self.dialect is Dialect.SQLITE:
                    execute(connection, f"PRAGMA busy_timeout = {_BUSY_S * 1000}")
                else:
                    # The server sends texts in the encoding of the database, and Arrow takes them for UTF-8.
                    execute(connection, "SET client_encoding TO 'UTF8'")
                connection.commit()
                yield connection
        except driver.Error as error:
            raise DatabaseError(f"{self.name}: {error}") from error

    def rows(self, query: str, parameters: Sequence[object] = ()) -> "Iterator[pyarrow.RecordBatch]":
        """Yield the rows of a query that may have many, in the types of their values."""
        if self.dialect is Dialect.SQLITE:
            yield from self._sqlite_rows(query, parameters)
            return
        with self.connect() as connection:
            yield from batches(connection, query, parameters)

    def _sqlite_rows(self, query: str, parameters: Sequence[object]) -> "Iterator[pyarrow.RecordBatch]":
        import pyarrow

        try:
            with closing(sqlite3.connect(self._target, timeout=_BUSY_S)) as connection:
                cursor = connection.execute(query, list(parameters))
                names = [each[0] for each in cursor.description]
                while found := cursor.fetchmany(_SQLITE_ROWS):
                    columns = [_array(values) for values in zip(*found, strict=True)]
                    yield pyarrow.RecordBatch.from_arrays(columns, names=names)
        except sqlite3.Error as error:
            raise DatabaseError(f"{self.name}: {error}") from error

    def quoted(self, identifier: str) -> str:
        """Quote an identifier; one with a dot is a table of a schema."""
        return ".".join('"' + part.replace('"', '""') + '"' for part in identifier.split("."))

    def qualified(self, connection: Any, table: str) -> str:
        """Return the table's name with its schema: one name for one table, whether it exists or not."""
        if "." in table:
            return table
        if self.dialect is Dialect.SQLITE:
            return f"main.{table}"
        name = self.parameter(1, "TEXT")
        [row] = fetch(
            connection,
            "SELECT coalesce((SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            f"WHERE c.relname = {name} AND pg_table_is_visible(c.oid) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')), "
            "current_schema()) AS schema",
            [table],
        )
        return f"{row['schema']}.{table}"

    def incarnation(self, connection: Any, table: str) -> str:
        """Return a text that tells a table from a later one of the same name; SQLite only says whether there is one."""
        if self.dialect is Dialect.SQLITE:
            return "which exists" if self.table_columns(connection, table) else "which does not exist"
        place = self.parameter(1, "TEXT")
        [row] = fetch(connection, f"SELECT to_regclass({place})::oid::bigint AS oid", [self.quoted(table)])
        return "which does not exist" if row["oid"] is None else f"oid {row['oid']}"

    def parameter(self, number: int, type_name: str) -> str:
        """Return the placeholder of a parameter (from 1) that is bound as text and cast to `type_name`."""
        if not _TYPE.fullmatch(type_name):
            raise DatabaseError(f"{type_name!r} is not the name of a type")
        mark = f"${number}" if self.dialect is Dialect.POSTGRESQL else "?"
        return f"CAST({mark} AS {type_name})"

    def type_of(self, expression: str) -> str:
        return f"pg_typeof({expression})::text" if self.dialect is Dialect.POSTGRESQL else f"typeof({expression})"

    def columns_of(self, connection: Any, query: str) -> list[Column]:
        """Return the columns of a query, with their declared types."""
        execute(connection, f"CREATE TEMP VIEW barnabas_shape AS {query}")
        if self.dialect is Dialect.POSTGRESQL:
            try:
                return self.table_columns(connection, "barnabas_shape")
            finally:
                execute(connection, "DROP VIEW pg_temp.barnabas_shape")
        try:
            rows = fetch(connection, "PRAGMA temp.table_info('barnabas_shape')")
        finally:
            execute(connection, "DROP VIEW temp.barnabas_shape")
        return [Column(row["name"], (row["type"] or "").upper()) for row in rows]

    def table_columns(self, connection: Any, table: str) -> list[Column]:
        """Return the columns of a table; an empty list if there is no such table."""
        schema, _, name = table.rpartition(".")
        if self.dialect is Dialect.SQLITE:
            where = f"{self.quoted(schema)}." if schema else ""
            # An INTEGER PRIMARY KEY is the row's number, which is never null, and which SQLite makes if it is missing.
            rows = fetch(connection, f"PRAGMA {where}table_info({self.quoted(name)})")
            return [
                Column(row["name"], row["type"] or "", not row["notnull"], row["dflt_value"] is not None)
                for row in rows
            ]
        place = f"n.nspname = {self.parameter(2, 'TEXT')}" if schema else "pg_table_is_visible(c.oid)"
        query = _COLUMNS.format(name=self.parameter(1, "TEXT"), place=place)
        return [_column(row) for row in fetch(connection, query, [name, schema] if schema else [name])]


#: Resolves a domain to the type beneath it, whose size is in the domain and not in the column.
_COLUMNS = """
WITH RECURSIVE columns AS (
  SELECT a.* FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relname = {name} AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND {place} AND a.attnum > 0 AND NOT a.attisdropped
), typed AS (
  SELECT attnum, atttypid AS oid, atttypmod AS typmod FROM columns
  UNION ALL
  SELECT typed.attnum, d.typbasetype, d.typtypmod FROM typed JOIN pg_type d ON d.oid = typed.oid WHERE d.typtype = 'd'
)
SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS declared, a.attnotnull AS needed,
  (a.atthasdef AND a.attgenerated = '' OR a.attidentity <> '') AS has_default, a.attgenerated <> '' AS is_generated,
  a.attidentity = 'a' AS is_always_identity,
  t.oid::bigint AS oid, typed.typmod, tn.nspname AS type_schema, t.typname AS type_name,
  format_type(t.oid, typed.typmod) AS type_declared, t.typcategory::text AS category,
  e.oid::bigint AS element_oid, en.nspname AS element_schema, e.typname AS element_name,
  format_type(e.oid, typed.typmod) AS element_declared, e.typcategory::text AS element_category
FROM columns a JOIN typed ON typed.attnum = a.attnum
JOIN pg_type t ON t.oid = typed.oid AND t.typtype <> 'd' JOIN pg_namespace tn ON tn.oid = t.typnamespace
LEFT JOIN pg_type e ON t.typcategory = 'A' AND e.oid = t.typelem LEFT JOIN pg_namespace en ON en.oid = e.typnamespace
ORDER BY a.attnum
"""


def _column(row: dict[str, Any]) -> Column:
    element = None
    if row["element_oid"] is not None:
        parts = (row["element_schema"], row["element_name"], row["element_declared"], row["element_category"])
        element = PostgresType(row["element_oid"], row["typmod"], *parts)
    kind = PostgresType(
        row["oid"], row["typmod"], row["type_schema"], row["type_name"], row["type_declared"], row["category"], element
    )
    return Column(
        row["name"],
        row["declared"],
        nullable=not row["needed"],
        has_default=row["has_default"],
        is_generated=row["is_generated"],
        is_always_identity=row["is_always_identity"],
        kind=kind,
    )


def _array(values: Sequence[object]) -> "pyarrow.Array":
    """Make an array of the values of a SQLite column: numbers, texts or bytes. Values of several kinds all become texts."""
    import pyarrow

    try:
        return pyarrow.array(values)
    except pyarrow.ArrowInvalid:
        return pyarrow.array([None if value is None else _text(value) for value in values], pyarrow.string())


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def execute(connection: Any, statement: str, parameters: Sequence[object] = ()) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters=list(parameters) or None)


def fetch(connection: Any, query: str, parameters: Sequence[object] = ()) -> list[dict[str, Any]]:
    """All rows of a small result."""
    with connection.cursor() as cursor:
        cursor.execute(query, parameters=list(parameters) or None)
        rows: list[dict[str, Any]] = cursor.fetch_arrow_table().to_pylist()
        return rows


def batches(connection: Any, query: str, parameters: Sequence[object] = ()) -> "Iterator[pyarrow.RecordBatch]":
    with connection.cursor() as cursor:
        cursor.execute(query, parameters=list(parameters) or None)
        yield from cursor.fetch_record_batch()


def ingest(connection: Any, table: str, rows: "pyarrow.RecordBatchReader") -> None:
    """Create `table` and fill it, in bulk."""
    with connection.cursor() as cursor:
        cursor.adbc_ingest(table, rows, mode="create")


def is_bad_data(error: Exception) -> bool:
    """Whether PostgreSQL says that a value is not one of its type, or that a domain refuses it (SQLSTATE classes 22 and 23)."""
    return (getattr(error, "sqlstate", None) or "").startswith(("22", "23"))


def _driver(dialect: Dialect) -> ModuleType:
    return importlib.import_module(f"adbc_driver_{dialect.value}.dbapi")
