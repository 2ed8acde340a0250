"""How the format `barnabas-sql` writes: appends to or upserts into a table of PostgreSQL or SQLite, each batch once.

Executors fill staging tables in bulk. The driver moves their rows into the table and records the batch in the table
`barnabas_sink_progress`, in one transaction; a batch that is recorded there already is left alone. With `mode=upsert` the last
row of a key wins: by `orderBy` where it is given, else by place in the batch. Rows whose
`deleteColumn` is true are deleted by key.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from barnabas.spark.options import check_names
from barnabas.spark.pipelines.database import Database, Dialect, execute, fetch, ingest
from barnabas.spark.pipelines.sinks.exactly_once import ONCE_OPTIONS, Batch, Task
from barnabas.spark.pipelines.sinks.table_schema import Fit, TableMismatch, fit, flag, require_values

if TYPE_CHECKING:
    import pyarrow

_PROGRESS = "barnabas_sink_progress"
_STAGE = "barnabas_stage"
_SEQUENCE = "barnabas_sequence"
#: Rows of one task are numbered from its partition's number times this.
_ROWS_PER_TASK = 1 << 40
#: SQLite takes 500 in a row.
_UNION_MAX = 250

_TYPES: dict[type[DataType], tuple[str, str]] = {
    ByteType: ("smallint", "INTEGER"),
    ShortType: ("smallint", "INTEGER"),
    IntegerType: ("integer", "INTEGER"),
    LongType: ("bigint", "INTEGER"),
    FloatType: ("real", "REAL"),
    DoubleType: ("double precision", "REAL"),
    BooleanType: ("boolean", "BOOLEAN"),
    StringType: ("text", "TEXT"),
    BinaryType: ("bytea", "BLOB"),
    DateType: ("date", "DATE"),
    TimestampType: ("timestamptz", "TIMESTAMP"),
    TimestampNTZType: ("timestamp", "TIMESTAMP"),
    DecimalType: ("numeric", "NUMERIC"),
}


_OPTIONS = ("uri", "table", "mode", "key", "orderBy", "deleteColumn", "createTable", "mergeSchema", *ONCE_OPTIONS)


@dataclass(frozen=True)
class SqlOptions:
    uri: str
    table: str
    upsert: bool
    keys: tuple[str, ...]
    order_by: str | None
    delete_column: str | None
    create: bool
    merge: bool

    @classmethod
    def parse(cls, options: Mapping[str, str], columns: Sequence[str]) -> "SqlOptions":
        check_names(options, _OPTIONS, what="format barnabas-sql for writing", prefixes=())
        for needed in ("uri", "table"):
            if needed not in options:
                raise ValueError(f"barnabas-sql needs the option {needed} to write")
        mode = options.get("mode", "append")
        if mode not in ("append", "upsert"):
            raise ValueError(f"mode {mode!r} of barnabas-sql: append or upsert")
        keys = tuple(each.strip() for each in options.get("key", "").split(",") if each.strip())
        if (mode == "upsert") != bool(keys):
            raise ValueError("mode upsert of barnabas-sql and the option key go together")
        parsed = cls(
            uri=options["uri"],
            table=options["table"],
            upsert=mode == "upsert",
            keys=keys,
            order_by=options.get("orderBy"),
            delete_column=options.get("deleteColumn"),
            create=flag({"createTable": "true", **options}, "createTable"),
            merge=flag(options, "mergeSchema"),
        )
        if parsed.delete_column and not parsed.upsert:
            raise ValueError("deleteColumn of barnabas-sql needs mode upsert: rows are deleted by key")
        named = {*keys, *filter(None, (parsed.order_by, parsed.delete_column))}
        if missing := sorted(named - set(columns)):
            raise ValueError(
                f"barnabas-sql is told of {', '.join(missing)}, which the rows do not have: {list(columns)}"
            )
        return parsed


class SqlTarget:
    def __init__(self, options: Mapping[str, str], schema: StructType, *, replaces: bool = False) -> None:
        self.options = SqlOptions.parse(options, schema.names)
        if replaces and self.options.upsert:
            raise ValueError("mode upsert of barnabas-sql applies changes; it does not overwrite")
        self.replaces = replaces
        self.schema = schema
        self.database = Database(self.options.uri)
        self._column_types()
        with self.database.connect() as connection:
            self.written = self._fit(connection).written
            #: The database's names of the types, with their sizes.
            self.declared = {
                column.name: column.declared for column in self.database.table_columns(connection, self.options.table)
            }

    def stage(self, rows: "Iterator[pyarrow.RecordBatch]", task: Task) -> list[dict[str, object]]:
        import pyarrow

        name = f"{_stage_prefix(task.query_id)}{task.batch_number}_{task.partition}_{task.attempt}"
        first = next((batch for batch in rows if batch.num_rows), None)
        if first is None:
            return []
        wanted = self._staged_schema()
        schema = wanted.append(pyarrow.field(_SEQUENCE, pyarrow.int64()))

        def numbered() -> "Iterator[pyarrow.RecordBatch]":
            number = task.partition * _ROWS_PER_TASK
            for batch in _after(first, rows):
                try:
                    self._check(pyarrow.Table.from_batches([batch]))
                except TableMismatch as error:
                    refused.append(error)
                    raise
                sequence = pyarrow.array(range(number, number + batch.num_rows), pyarrow.int64())
                number += batch.num_rows
                arrays = [_cast(column, field.type) for column, field in zip(batch.columns, wanted, strict=True)]
                yield pyarrow.RecordBatch.from_arrays([*arrays, sequence], schema=schema)

        refused: list[TableMismatch] = []
        with self.database.connect() as connection:
            try:
                ingest(connection, name, pyarrow.RecordBatchReader.from_batches(schema, numbered()))
            except Exception:
                if refused:  # it has come through Arrow and the driver, which wrap it
                    raise refused[0] from None
                raise
            connection.commit()
        return [{"table": name}]

    def _check(self, rows: "pyarrow.Table") -> None:
        import pyarrow.compute as compute

        if self.options.delete_column:
            # Of a row that is deleted only the key is looked at.
            gone = compute.fill_null(rows.column(self.options.delete_column), False)
            keys = StructType([self.written[name] for name in self.options.keys])
            require_values(rows.filter(gone), keys, what=self.what)
            rows = rows.filter(compute.invert(gone))
        require_values(rows, self.written, what=self.what, declared=self.declared)
        if self.database.dialect is Dialect.SQLITE:
            _require_exact(rows, what=self.what)

    @property
    def what(self) -> str:
        return f"table {self.options.table} of {self.database.name}"

    def _staged_schema(self) -> "pyarrow.Schema":
        """What goes to the database; SQLite's driver has no decimals, its columns make numbers of text."""
        import pyarrow

        schema = to_arrow_schema(self.schema, timezone="UTC")
        if self.database.dialect is Dialect.POSTGRESQL:
            return schema
        texts = [
            field.with_type(pyarrow.string()) if pyarrow.types.is_decimal(field.type) else field for field in schema
        ]
        return pyarrow.schema(texts)

    def publish(self, items: Sequence[dict[str, object]], batch: Batch | None) -> None:
        stages = [cast(str, item["table"]) for item in items]
        with self.database.connect() as connection:
            if batch is not None:
                execute(
                    connection,
                    f"CREATE TABLE IF NOT EXISTS {_PROGRESS} (query_id VARCHAR(64) PRIMARY KEY, batch_id BIGINT NOT NULL)",
                )
                connection.commit()  # what follows begins with a write: of two drivers one waits for the other
            if batch is None or self._claim(connection, batch):
                if self.options.create:
                    execute(connection, self._create())
                self._evolve(connection)
                if self.replaces:
                    execute(connection, f"DELETE FROM {self.database.quoted(self.options.table)}")
                for statement in self._moves(stages):
                    execute(connection, statement)
            for stage in self._leftovers(connection, batch) | set(stages):
                execute(connection, f"DROP TABLE IF EXISTS {self.database.quoted(stage)}")
            connection.commit()

    def _evolve(self, connection: Any) -> None:
        found, quoted = self._fit(connection), self.database.quoted
        table = quoted(self.options.table)
        for field in found.added:
            kind = self._column_types()[field.name]
            execute(connection, f"ALTER TABLE {table} ADD COLUMN {quoted(field.name)} {kind}")
        for field in found.widened:
            kind = self._column_types()[field.name]
            execute(connection, f"ALTER TABLE {table} ALTER COLUMN {quoted(field.name)} TYPE {kind}")

    def abandon(self, items: Sequence[dict[str, object]]) -> None:
        """Nobody sees what is staged."""
        self.discard(items)

    def discard(self, items: Sequence[dict[str, object]]) -> None:
        with self.database.connect() as connection:
            for item in items:
                execute(connection, f"DROP TABLE IF EXISTS {self.database.quoted(cast(str, item['table']))}")
            connection.commit()

    def _claim(self, connection: Any, batch: Batch) -> bool:
        """Record the batch; False where it is recorded already, by an earlier driver or by another one just now."""
        query_id, number = self.database.parameter(1, "TEXT"), self.database.parameter(2, "BIGINT")
        claimed = fetch(
            connection,
            f"INSERT INTO {_PROGRESS} (query_id, batch_id) VALUES ({query_id}, {number}) "
            f"ON CONFLICT (query_id) DO UPDATE SET batch_id = EXCLUDED.batch_id "
            f"WHERE {_PROGRESS}.batch_id < EXCLUDED.batch_id RETURNING batch_id",
            [batch.query_id, str(batch.number)],
        )
        return bool(claimed)

    def _leftovers(self, connection: Any, batch: Batch | None) -> set[str]:
        """Staging tables that attempts of this query left when they died: its batches come one after the other."""
        if batch is None:
            return set()
        postgresql = self.database.dialect is Dialect.POSTGRESQL
        listing = "pg_tables" if postgresql else "sqlite_master WHERE type = 'table'"
        name = "tablename" if postgresql else "name"
        rows = fetch(connection, f"SELECT {name} AS name FROM {listing}")
        prefix = _stage_prefix(batch.query_id)
        mine = (row["name"].removeprefix(prefix) for row in rows if row["name"].startswith(prefix))
        # Another driver of the query may be at a later batch already.
        return {prefix + name for name in mine if int(name.partition("_")[0]) <= batch.number}

    def _fit(self, connection: Any) -> Fit:
        """How the rows go into the table as it is now; `TableMismatch` where they do not."""
        what = self.what
        columns = StructType([field for field in self.schema.fields if field.name != self.options.delete_column])
        there = self.database.table_columns(connection, self.options.table)
        if not there:
            if not self.options.create:
                raise TableMismatch(f"{what} does not exist, and createTable is false")
            return Fit(self._with_keys(columns))
        known = []
        for column in there:
            field = columns[column.name] if column.name in columns.names else None
            kind = taken_as(
                column.declared, field.dataType if field is not None else StringType(), self.database.dialect
            )
            # What has a default need not be there.
            known.append(StructField(column.name, kind, column.nullable or (field is None and column.has_default)))
        # SQLite's numbers are wide already.
        can_widen = self.database.dialect is Dialect.POSTGRESQL
        found = fit(columns, StructType(known), what=what, merge=self.options.merge, can_widen=can_widen)
        return replace(found, written=self._with_keys(found.written))

    def _with_keys(self, columns: StructType) -> StructType:
        """Rows are found by their key: it is never null, whatever the table says."""
        return StructType(
            [
                StructField(each.name, each.dataType, each.nullable and each.name not in self.options.keys)
                for each in columns.fields
            ]
        )

    def _create(self) -> str:
        quoted = self.database.quoted
        columns = [f"{quoted(name)} {kind}" for name, kind in self._column_types().items()]
        if self.options.upsert:
            columns.append(f"PRIMARY KEY ({', '.join(map(quoted, self.options.keys))})")
        return f"CREATE TABLE IF NOT EXISTS {quoted(self.options.table)} ({', '.join(columns)})"

    def _column_types(self) -> dict[str, str]:
        """Types of the columns that the table gets."""
        kinds: dict[str, str] = {}
        for field in self.schema.fields:
            pair = _TYPES.get(type(field.dataType))
            if pair is None:
                raise ValueError(
                    f"column {field.name} is {field.dataType.simpleString()}, which barnabas-sql cannot write; "
                    "flatten it, or turn it into text with to_json"
                )
            if field.name != self.options.delete_column:
                kinds[field.name] = pair[0 if self.database.dialect is Dialect.POSTGRESQL else 1]
        return kinds

    def _moves(self, stages: Sequence[str]) -> list[str]:
        """The statements that bring the rows of all stages into the table."""
        quoted = self.database.quoted
        table, columns = quoted(self.options.table), [quoted(name) for name in self._column_types()]
        listed = ", ".join(columns)
        if not stages:
            return []
        staged = _union([f"SELECT * FROM {quoted(stage)}" for stage in stages])
        if not self.options.upsert:
            return [f"INSERT INTO {table} ({listed}) SELECT {listed} FROM ({staged}) AS staged ORDER BY {_SEQUENCE}"]
        keys = ", ".join(map(quoted, self.options.keys))
        ordered = quoted(self.options.order_by) if self.options.order_by else ""
        order = f"{ordered} DESC NULLS LAST, " if ordered else ""
        ranked = f"ROW_NUMBER() OVER (PARTITION BY {keys} ORDER BY {order}{_SEQUENCE} DESC) AS barnabas_rank"
        all_ranked = f"(SELECT staged.*, {ranked} FROM ({staged}) AS staged) AS ranked"
        last = f"(SELECT * FROM {all_ranked} WHERE barnabas_rank = 1) AS last"
        kept, statements = "TRUE", []
        if self.options.delete_column:
            flag = quoted(self.options.delete_column)
            match = " AND ".join(f"{table}.{quoted(key)} = last.{quoted(key)}" for key in self.options.keys)
            gone = f"{flag} IS NOT NULL AND {flag}"
            new = f" AND ({table}.{ordered} IS NULL OR last.{ordered} >= {table}.{ordered})" if ordered else ""
            statements.append(f"DELETE FROM {table} WHERE EXISTS (SELECT 1 FROM {last} WHERE {match} AND {gone}{new})")
            kept = f"NOT ({gone})"
        others = [column for column in columns if column not in {quoted(key) for key in self.options.keys}]
        changes = ", ".join(f"{column} = EXCLUDED.{column}" for column in others)
        # What comes late must not undo what is newer, in whichever batch that came.
        newer = f" WHERE {table}.{ordered} IS NULL OR EXCLUDED.{ordered} >= {table}.{ordered}" if ordered else ""
        action = f"DO UPDATE SET {changes}{newer}" if changes else "DO NOTHING"
        upsert = (
            f"INSERT INTO {table} ({listed}) SELECT {listed} FROM {last} WHERE {kept} ON CONFLICT ({keys}) {action}"
        )
        return [*statements, upsert]


#: What a column of a database holds, by the beginning of its declared type, and what is a value of that as it is.
_HOLDS: tuple[tuple[str, DataType], ...] = (
    ("smallint", ShortType()),
    ("int2", ShortType()),
    ("bigint", LongType()),
    ("int8", LongType()),
    ("int", IntegerType()),
    ("serial", IntegerType()),
    ("bigserial", LongType()),
    ("real", FloatType()),
    ("float", DoubleType()),
    ("double", DoubleType()),
    ("bool", BooleanType()),
    ("text", StringType()),
    ("character", StringType()),
    ("varchar", StringType()),
    ("char", StringType()),
    ("clob", StringType()),
    ("bytea", BinaryType()),
    ("datetime", TimestampNTZType()),
    ("date", DateType()),
    ("timestamp with time zone", TimestampType()),
    ("timestamptz", TimestampType()),
    ("timestamp", TimestampNTZType()),
)


def held_as(declared: str) -> DataType | None:
    """The Spark type that has the values of a column which is declared so; None where there is none."""
    if declared.startswith("interval") or declared.endswith(("[]", "range")):
        return None
    return next((kind for prefix, kind in _HOLDS if declared.startswith(prefix)), None)


def taken_as(declared: str, given: DataType, dialect: Dialect) -> DataType:
    """The Spark type of a column that rows of type `given` go to. Where only the database can tell, `given` itself."""
    name = declared.lower()
    found = held_as(name)
    is_number = isinstance(given, DecimalType | ByteType | ShortType | IntegerType | LongType)
    if name.startswith(("numeric", "decimal")):
        return given if is_number else DecimalType(38, 18)
    if dialect is Dialect.SQLITE:
        # By affinity: its integers have 64 bits, its numbers 8 bytes, its times no zone.
        if isinstance(found, ShortType | IntegerType):
            return LongType()
        if isinstance(found, FloatType):
            return DoubleType()
        if isinstance(found, TimestampNTZType) and isinstance(given, TimestampType):
            return given
    return given if found is None else found


def _cast(column: "pyarrow.Array", kind: "pyarrow.DataType") -> "pyarrow.Array":
    """Decimals as texts without a fraction of zeros: SQLite takes such a number for a whole one, and keeps all its digits."""
    import pyarrow
    import pyarrow.compute as compute

    if not (pyarrow.types.is_decimal(column.type) and pyarrow.types.is_string(kind)):
        return column.cast(kind)
    return compute.replace_substring_regex(column.cast(kind), r"^([^.E]*)\.0+$", r"\1")


def _require_exact(rows: "pyarrow.Table", *, what: str) -> None:
    """SQLite's numbers are whole ones of 64 bits, or floats: of other decimals it would drop digits, and say nothing. It has no
    NaN."""
    import pyarrow
    import pyarrow.compute as compute

    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if pyarrow.types.is_floating(column.type) and compute.any(compute.is_nan(column)).as_py():
            raise TableMismatch(
                f"{what} does not take these rows: column {name} has NaN, of which SQLite makes null. Say so: nullif({name}, "
                "double('NaN'))"
            )
        if not pyarrow.types.is_decimal(column.type):
            continue
        digits = compute.replace_substring_regex(column.cast(pyarrow.string()), r"E.*$|[^0-9]", "")
        # Every number of fifteen digits is one of floats.
        many = compute.greater(compute.utf8_length(compute.utf8_trim(digits, "0")), 15)
        lost = [value for value in column.filter(many).to_pylist() if not _is_exact(value)]
        if lost:
            raise TableMismatch(
                f"{what} does not take these rows: SQLite holds some 15 digits of a decimal, and column {name} has "
                f"{len(lost)} values with more, the first of them {lost[0]}. Cast it to double, or to string"
            )


def _is_exact(value: Decimal) -> bool:
    is_whole = value == value.to_integral_value() and -(1 << 63) <= value < 1 << 63
    return is_whole or Decimal(repr(float(value))) == value


def _union(parts: list[str]) -> str:
    """The rows of all: of very many, in groups."""
    while len(parts) > _UNION_MAX:
        groups = [parts[at : at + _UNION_MAX] for at in range(0, len(parts), _UNION_MAX)]
        parts = [f"SELECT * FROM ({' UNION ALL '.join(group)}) AS part" for group in groups]
    return " UNION ALL ".join(parts)


def _stage_prefix(query_id: str) -> str:
    return f"{_STAGE}_{query_id.replace('-', '')[:20]}_"


def _after(first: "pyarrow.RecordBatch", rest: "Iterator[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
    yield first
    yield from rest
