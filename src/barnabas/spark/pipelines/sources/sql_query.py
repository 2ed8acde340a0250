"""Format `barnabas-sql`: reads a table or a query of PostgreSQL or SQLite, once or as it grows; `sinks.sql` is its other side.

A stream follows `cursor` columns, like the incrementing and timestamp modes of Kafka Connect's JDBC source: its offset in the
checkpoint is the last cursor that it has read, and a batch has the rows after it. Rows must not appear
before a cursor that has been read: a transaction that takes a number and commits late does that, so prefer (updated_at, id)
with `delayMs` if writers overlap.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from barnabas.spark.options import check_names
from barnabas.spark.pipelines.database import Database, DatabaseError, Dialect, fetch
from barnabas.spark.pipelines.postgres_types import PostgresType
from barnabas.spark.pipelines.sinks.exactly_once import BatchWriter, StreamOptions, StreamWriter, once_of
from barnabas.spark.pipelines.sinks.sql_table import SqlTarget

if TYPE_CHECKING:
    import pyarrow

_OPTIONS = ("uri", "table", "query", "cursor", "maxRowsPerTrigger", "delayMs")
#: PostgreSQL's types that are one character or bit long without a length, and their names for any length.
_ANY_LENGTH = {"character": "bpchar", "bit": "bit varying"}
#: Key in Arrow's metadata with PostgreSQL's name of a column's type.
_KIND = b"POSTGRESQL:type"
#: PostgreSQL's first day, 4714-11-24 BC, in days since 1970.
_DAY_MIN = -2_440_588
_DAY_US = 86_400_000_000


@dataclass(frozen=True)
class SqlQuery:
    """A query, and how a stream follows it."""

    database: Database
    #: A table's name, for messages, or the query.
    what: str
    query: str
    cursor: tuple[str, ...] = ()
    max_rows: int | None = None
    delay_ms: int = 0

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SqlQuery":
        check_names(options, _OPTIONS, what="format barnabas-sql for reading", prefixes=())
        if "uri" not in options:
            raise ValueError("barnabas-sql needs the option uri")
        if ("table" in options) == ("query" in options):
            raise ValueError("barnabas-sql needs either table or query")
        database = Database(options["uri"])
        table = options.get("table")
        return cls(
            database=database,
            what=table or options["query"],
            query=f"SELECT * FROM {database.quoted(table)}" if table else options["query"],
            cursor=tuple(each.strip() for each in options.get("cursor", "").split(",") if each.strip()),
            max_rows=int(options["maxRowsPerTrigger"]) if "maxRowsPerTrigger" in options else None,
            delay_ms=int(options.get("delayMs", "0")),
        )

    def schema(self) -> StructType:
        with self.database.connect() as connection:
            if self.database.dialect is Dialect.SQLITE:
                columns = self.database.columns_of(connection, self.query)
                return StructType([StructField(each.name, sqlite_type(each.declared)) for each in columns])
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT * FROM ({self.query}) AS q LIMIT 0")
                found = cursor.fetch_arrow_table().schema
            kinds = {each.name: each.kind for each in self.database.columns_of(connection, self.query)}
            return StructType(
                [StructField(each.name, read_as(each, kinds[each.name]), each.nullable) for each in found]
            )


class SqlSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "barnabas-sql"

    def schema(self) -> StructType:
        return SqlQuery.parse(self.options).schema()

    def reader(self, schema: StructType) -> "SqlReader":
        return SqlReader(SqlQuery.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> "SqlStreamReader":  # noqa: N802
        query = SqlQuery.parse(self.options)
        if not query.cursor:
            raise ValueError("a stream from barnabas-sql needs the option cursor: columns that grow, such as id")
        if missing := sorted(set(query.cursor) - set(schema.names)):
            raise ValueError(f"cursor names {', '.join(missing)}, which {query.what} does not have: {schema.names}")
        first = schema[query.cursor[0]]
        if query.delay_ms and isinstance(first.dataType, NumericType):
            kind = first.dataType.simpleString()
            raise ValueError(f"delayMs needs a time as the first column of the cursor; {first.name} is {kind}")
        return SqlStreamReader(query, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        return StreamWriter(self._target(schema, overwrite), StreamOptions.parse(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(self._target(schema, overwrite), once_of(self.options))

    def _target(self, schema: StructType, overwrite: bool) -> SqlTarget:
        return SqlTarget(self.options, schema, replaces=overwrite)


@dataclass
class SqlRange(InputPartition):
    """Rows after `after` up to `upto`; an empty one is no bound."""

    after: dict[str, list[str]] = field(default_factory=dict)
    upto: dict[str, list[str]] = field(default_factory=dict)


class SqlReader(DataSourceReader):
    def __init__(self, query: SqlQuery, schema: StructType) -> None:
        self.query = query
        self.schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [SqlRange()]

    def read(self, partition: InputPartition) -> "Iterator[pyarrow.RecordBatch]":
        assert isinstance(partition, SqlRange)
        return read_range(self.query, self.schema, partition)


class SqlStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An offset is `{}` before the first row, then `{"cursor": [text, …], "types": [name, …]}`."""

    def __init__(self, query: SqlQuery, schema: StructType) -> None:
        self.query = query
        self.schema = schema
        self._end: dict[str, list[str]] | None = None

    def initialOffset(self) -> dict[str, list[str]]:  # noqa: N802
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self.query.max_rows) if self.query.max_rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._end = self._last({}, {}, None)

    def latestOffset(self, start: dict[str, list[str]], limit: ReadLimit) -> dict[str, list[str]]:  # noqa: N802
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._last(start, self._end or {}, rows) if self._end != {} else start

    def partitions(self, start: dict[str, list[str]], end: dict[str, list[str]]) -> Sequence[InputPartition]:
        return [SqlRange(start, end)]

    def read(self, partition: InputPartition) -> "Iterator[pyarrow.RecordBatch]":
        assert isinstance(partition, SqlRange)
        return read_range(self.query, self.schema, partition)

    def commit(self, end: dict[str, list[str]]) -> None:
        """Nothing to release: the database keeps no state for us."""

    def stop(self) -> None:
        """Nothing is open between calls."""

    def _last(self, start: dict[str, list[str]], end: dict[str, list[str]], rows: int | None) -> dict[str, list[str]]:
        """Return the cursor of the last row to read: of all rows up to `end`, or of the first `rows`."""
        database, columns = self.query.database, [self.query.database.quoted(each) for each in self.query.cursor]
        texts = ", ".join(f"CAST({column} AS TEXT) AS c{n}" for n, column in enumerate(columns))
        types = ", ".join(f"{database.type_of(column)} AS t{n}" for n, column in enumerate(columns))
        where, parameters = bounds(self.query, start, end)
        direction = "DESC" if rows is None else "ASC"
        order = ", ".join(f"{column} {direction}" for column in columns)
        inner = f"SELECT * FROM ({self.query.query}) AS q WHERE {where} ORDER BY {order}"
        if rows is not None:
            backwards = ", ".join(f"{column} DESC" for column in columns)
            inner = f"SELECT * FROM ({inner} LIMIT {rows}) AS first ORDER BY {backwards}"
        with database.connect() as connection:
            found = fetch(connection, f"SELECT {texts}, {types} FROM ({inner} LIMIT 1) AS last", parameters)
        if not found:
            return start
        count = range(len(columns))
        return {"cursor": [found[0][f"c{n}"] for n in count], "types": [found[0][f"t{n}"] for n in count]}


def bounds(query: SqlQuery, after: dict[str, list[str]], upto: dict[str, list[str]]) -> tuple[str, list[object]]:
    """Return the condition of a range, and its parameters."""
    columns = [query.database.quoted(each) for each in query.cursor]
    conditions = [f"{column} IS NOT NULL" for column in columns]
    parameters: list[object] = []
    for offset, sign in ((after, ">"), (upto, "<=")):
        if offset:
            first = len(parameters) + 1
            kinds = [_ANY_LENGTH.get(kind, kind) for kind in offset["types"]]
            marks = [query.database.parameter(first + n, kind) for n, kind in enumerate(kinds)]
            conditions.append(f"({', '.join(columns)}) {sign} ({', '.join(marks)})")
            parameters += [_bound(query, *each) for each in zip(offset["cursor"], offset["types"], strict=True)]
    if query.delay_ms and query.database.dialect is Dialect.POSTGRESQL:
        conditions.append(f"{columns[0]} <= now() - interval '{query.delay_ms} milliseconds'")
    elif query.delay_ms:
        # Compare as times, not as texts: some writers put a T between day and hour. A text that is not a time does not wait.
        young = f"julianday({columns[0]}) > julianday('now', '-{query.delay_ms / 1000} seconds')"
        conditions.append(f"NOT coalesce({young}, FALSE)")
    return " AND ".join(conditions) or "TRUE", parameters


def _bound(query: SqlQuery, text: str, kind: str) -> object:
    """Return a parameter. Versions of SQLite do not all make the same float of a text."""
    return float(text) if query.database.dialect is Dialect.SQLITE and kind == "real" else text


def read_range(query: SqlQuery, schema: StructType, part: SqlRange) -> "Iterator[pyarrow.RecordBatch]":
    """Yield the rows of a range, in order of the cursor, with the types that Spark wants."""
    wanted = to_arrow_schema(schema, timezone="UTC")
    columns = ", ".join(_column(query.database, each) for each in schema.fields)
    where, parameters = bounds(query, part.after, part.upto) if query.cursor else ("TRUE", [])
    order = ", ".join(f"q.{query.database.quoted(each)}" for each in query.cursor)
    text = f"SELECT {columns} FROM ({query.query}) AS q WHERE {where}" + (f" ORDER BY {order}" if order else "")
    for batch in query.database.rows(text, parameters):
        yield fitted(batch, wanted, query.what)


def _column(database: Database, column: StructField) -> str:
    """Return the expression of a column; a text is as PostgreSQL prints it, whatever type the column has there."""
    name = database.quoted(column.name)
    if database.dialect is Dialect.SQLITE or not isinstance(column.dataType, StringType):
        return name
    return f"CASE WHEN {name} IS NOT NULL THEN format('%s', {name}) END AS {name}"


def fitted(batch: "pyarrow.RecordBatch", wanted: "pyarrow.Schema", what: str) -> "pyarrow.RecordBatch":
    """Return the batch with exactly the types that Spark expects."""
    import pyarrow

    arrays = []
    for column, given, target in zip(batch.columns, batch.schema, wanted, strict=True):
        if (given.metadata or {}).get(_KIND) == b"money":
            raise DatabaseError(
                f"{what}, column {target.name}: money comes without its point, as a number of cents: read a query (query=) "
                f"with {target.name}::numeric"
            )
        storage = column.storage if isinstance(column, pyarrow.ExtensionArray) else column
        if pyarrow.types.is_integer(storage.type) and pyarrow.types.is_temporal(target.type):
            # The unit and the epoch of the number are unknown. Arrow would take it for microseconds.
            raise DatabaseError(
                f"{what}, column {target.name}: a number and not a time: read it as bigint (schema=) and convert it"
            )
        if _has_infinity(storage):
            raise DatabaseError(
                f"{what}, column {target.name}: Spark has no infinite time: read a query (query=) with "
                f"nullif({target.name}, 'infinity')"
            )
        try:
            arrays.append(storage.cast(target.type))
        except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
            raise DatabaseError(f"{what}, column {target.name}: not a {target.type}: {error}") from error
    return pyarrow.RecordBatch.from_arrays(arrays, schema=wanted)


def _has_infinity(column: "pyarrow.Array") -> bool:
    """Whether a time is infinite. Arrow's driver counts from 1970 on: the ends of PostgreSQL's range wrap round."""
    import pyarrow
    import pyarrow.compute as compute

    if pyarrow.types.is_date32(column.type):
        least = compute.min(column.view(pyarrow.int32())).as_py()
    elif pyarrow.types.is_timestamp(column.type) and column.type.unit == "us":
        least = compute.min(column.view(pyarrow.int64())).as_py()
        least = least if least is None else least // _DAY_US
    else:
        return False
    return least is not None and least < _DAY_MIN


def read_as(given: "pyarrow.Field", kind: PostgresType | None) -> DataType:
    """Return Spark's type of a column that Arrow's driver gives as `given`. The driver gives numerics as text, types that it
    does not know (ranges, composites) as bytes, and a uuid as sixteen bytes. They are read as text, as PostgreSQL prints them.
    """
    import pyarrow

    held = kind.held_as() if kind is not None else None
    if isinstance(held, DecimalType):
        return held
    element = given.type.value_type if pyarrow.types.is_list(given.type) else given.type
    if held is None and (isinstance(element, pyarrow.BaseExtensionType) or pyarrow.types.is_interval(element)):
        return StringType()
    return from_arrow_type(given.type)


def sqlite_type(declared: str) -> DataType:
    """Return Spark's type for a declared type of SQLite: by affinity, and by names with a usual meaning."""
    if "BOOL" in declared:
        return BooleanType()
    if "INT" in declared:
        return LongType()
    if any(word in declared for word in ("REAL", "FLOA", "DOUB", "NUMERIC", "DECIMAL")):
        return DoubleType()
    if "BLOB" in declared:
        return BinaryType()
    if "TIMESTAMP" in declared or "DATETIME" in declared:
        return TimestampNTZType()
    if declared == "DATE":
        return DateType()
    return StringType()
