"""How the format `barnabas-sql` writes: appends to or upserts into a table of PostgreSQL or SQLite, each batch once.

Executors fill staging tables in bulk. The driver moves their rows into the table and records the batch in the table
`barnabas_sink_progress`, in one transaction; a batch that is recorded already is not written again. With `mode=upsert` the last
row of a key wins: by `orderBy` if it is set, else by place in the batch. Rows whose
`deleteColumn` is true are deleted by key.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from barnabas.spark.batch_identity import BatchIdentity
from barnabas.spark.options import check_names
from barnabas.spark.pipelines.cdc import UNCHANGED_COLUMNS, has_unchanged
from barnabas.spark.pipelines.database import Column, Database, Dialect, execute, fetch, ingest, is_bad_data
from barnabas.spark.pipelines.sinks.exactly_once import ONCE_OPTIONS, STREAM_OPTIONS, Batch, Standing, Task
from barnabas.spark.pipelines.sinks.sql_moves import SEQUENCE, Moves, marks_of
from barnabas.spark.pipelines.sinks.sql_moves import cast as cast_to
from barnabas.spark.pipelines.sinks.sql_progress import BY_CALLERS_NUMBER, Progress, leftovers, stage_name
from barnabas.spark.pipelines.sinks.sql_types import cast_values, made_as, require_exact, taken_as
from barnabas.spark.pipelines.sinks.table_schema import Fit, TableMismatch, fit, flag, require_values

if TYPE_CHECKING:
    import pyarrow

#: The numbers of a task's rows start at its partition's number times this.
_ROWS_PER_TASK: Final = 1 << 40


_OPTIONS: Final = (
    "uri",
    "table",
    "mode",
    "key",
    "orderBy",
    "deleteColumn",
    "createTable",
    "mergeSchema",
    *STREAM_OPTIONS,
    *ONCE_OPTIONS,
)

#: The steps of a batch, in order. A kill at any of them leaves the table with the whole batch or with none of it
#: (`tests/interop/test_postgresql_kills.py` dies at each).
STEPS: Final = (
    "the staging table is filled",
    "the staging table is committed",
    "the progress table exists",
    "the batch is claimed",
    "the table exists",
    "the table has its columns",
    "the rows are moved",
    "the batch is noted",
    "the staging tables are dropped",
    "the batch is committed",
)


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
            raise ValueError(f"mode={mode!r} of barnabas-sql is not valid: use append or upsert")
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
                f"the options of barnabas-sql name {', '.join(missing)}, which the rows do not have: {list(columns)}"
            )
        return parsed


class SqlTarget:
    def __init__(self, options: Mapping[str, str], schema: StructType, *, replaces: bool = False) -> None:
        self.options = SqlOptions.parse(options, schema.names)
        if replaces and self.options.upsert:
            raise ValueError("mode upsert of barnabas-sql applies changes; it does not overwrite")
        self.replaces = replaces
        self.schema = schema
        #: The column with the names of the columns that a change left alone, whose values the table keeps.
        self.marks = UNCHANGED_COLUMNS if self.options.upsert and has_unchanged(schema) else None
        self.database = Database(self.options.uri)
        self._column_types()
        with self.database.connect() as connection:
            found = self.database.table_columns(connection, self.options.table)
            self.written = self._fit(found).written
            self.table = self.database.qualified(connection, self.options.table)
        #: The database's names of the types, with their sizes.
        self.declared = {each.name: each.kind.declared if each.kind else each.declared for each in found}
        self.columns = {each.name: each for each in found}

    def reached(self, step: str) -> None:
        """Tests stop here, at each of `STEPS`."""

    def stage(self, rows: "Iterator[pyarrow.RecordBatch]", task: Task) -> list[dict[str, object]]:
        import pyarrow

        name = stage_name(task.query_id, task.batch_number, self.table)
        first = next((batch for batch in rows if batch.num_rows), None)
        if first is None:
            return []
        wanted = self._staged_schema()
        schema = wanted.append(pyarrow.field(SEQUENCE, pyarrow.int64()))

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
                columns = self._marked(batch, unchanged)
                arrays = [cast_values(column, field.type) for column, field in zip(columns, wanted, strict=True)]
                yield pyarrow.RecordBatch.from_arrays([*arrays, sequence], schema=schema)

        refused: list[TableMismatch] = []
        unchanged: set[str] = set()
        with self.database.connect() as connection:
            try:
                ingest(connection, name, pyarrow.RecordBatchReader.from_batches(schema, numbered()))
            except Exception:
                if refused:  # Arrow and the driver have wrapped the error
                    raise refused[0] from None
                raise
            self._try_casts(connection, name)
            self.reached("the staging table is filled")
            connection.commit()
        self.reached("the staging table is committed")
        return [{"table": name, "unchanged": sorted(unchanged)}]

    def _marked(self, batch: "pyarrow.RecordBatch", unchanged: set[str]) -> "list[pyarrow.Array]":
        """The columns, with one text for the names of the columns that a change left alone; adds these names to `unchanged`."""
        import pyarrow

        columns: list[pyarrow.Array] = list(batch.columns)
        if self.marks is not None:
            at = self.schema.names.index(self.marks)
            names = columns[at].to_pylist()
            unchanged.update(name for each in names for name in each or ())
            columns[at] = pyarrow.array([marks_of(each) for each in names], pyarrow.string())
        return columns

    def _try_casts(self, connection: Any, stage: str) -> None:
        """Find text that is not a uuid, JSON or value of the enum while the rows are staged, and name its column."""
        for name, cast_name in self._casts().items():
            try:
                fetch(connection, f"SELECT count({cast_to(self.database.quoted(name), cast_name)}) AS n FROM {stage}")
            except Exception as error:
                if not is_bad_data(error):
                    raise
                kind = self.declared[name]
                raise TableMismatch(
                    f"{self.what} does not take these rows: column {name} is {kind}, and a text of the rows is not: {error}"
                ) from None

    def _casts(self) -> dict[str, str]:
        """Return the types of the table that PostgreSQL makes of text only by a cast, by column."""
        kinds = ((field, self.columns.get(field.name)) for field in self.schema.fields)
        return {
            field.name: column.kind.cast_name
            for field, column in kinds
            if column is not None and column.kind is not None and column.kind.needs_cast(field.dataType)
        }

    def _check(self, rows: "pyarrow.Table") -> None:
        import pyarrow.compute as compute

        if self.options.delete_column:
            # A deleted row needs only its key.
            gone = compute.fill_null(rows.column(self.options.delete_column), False)
            keys = StructType([self.written[name] for name in self.options.keys])
            require_values(rows.filter(gone), keys, what=self.what)
            rows = rows.filter(compute.invert(gone))
        require_values(rows, self.written, what=self.what, declared=self.declared)
        if self.database.dialect is Dialect.SQLITE:
            require_exact(rows, what=self.what)

    @property
    def what(self) -> str:
        return f"table {self.options.table} of {self.database.name}"

    def _staged_schema(self) -> "pyarrow.Schema":
        """Return the columns of a staging table. SQLite's driver has no decimals; its columns make numbers of text."""
        import pyarrow

        schema = to_arrow_schema(self.schema, timezone="UTC")
        if self.marks is not None:
            at = schema.get_field_index(self.marks)
            schema = schema.set(at, pyarrow.field(self.marks, pyarrow.string()))
        if self.database.dialect is Dialect.POSTGRESQL:
            return schema
        texts = [
            field.with_type(pyarrow.string()) if pyarrow.types.is_decimal(field.type) else field for field in schema
        ]
        return pyarrow.schema(texts)

    def publish(self, items: Sequence[dict[str, object]], batch: Batch | None) -> None:
        stages = [cast(str, item["table"]) for item in items]
        unchanged = {name for item in items for name in cast("list[str]", item["unchanged"])}
        is_repeated = False
        with self.database.connect() as connection:
            if batch is None:
                self._write(connection, stages, unchanged)
            else:
                progress = Progress(self.database, connection, query_id=batch.query_id, target=f"table {self.table}")
                progress.prepare()  # the next statement writes: of two drivers one waits for the other
                self.reached("the progress table exists")
                planned = self._identity(connection, batch)
                standing = progress.claim(planned, plan=batch.plan or BY_CALLERS_NUMBER, accepted=batch.accepted)
                self.reached("the batch is claimed")
                if standing is Standing.WRITE:
                    self._write(connection, stages, unchanged)
                if standing is not Standing.LEAVE:
                    progress.note(self._identity(connection, batch))
                    self.reached("the batch is noted")
                is_repeated = standing is Standing.LEAVE
            for stage in self._leftovers(connection, batch) | set(stages):
                execute(connection, f"DROP TABLE IF EXISTS {self.database.quoted(stage)}")
            self.reached("the staging tables are dropped")
            connection.commit()
        self.reached("the batch is committed")
        if batch is not None and is_repeated:
            batch.note_repeated(self.what)

    def _write(self, connection: Any, stages: Sequence[str], unchanged: Collection[str]) -> None:
        if self.options.create:
            execute(connection, self._create())
        self.reached("the table exists")
        found = self.database.table_columns(connection, self.options.table)
        self._evolve(connection, self._fit(found))
        self.columns = {each.name: each for each in found}
        self.reached("the table has its columns")
        if self.replaces:
            execute(connection, f"DELETE FROM {self.database.quoted(self.options.table)}")
        for statement in self._moves(stages, unchanged):
            execute(connection, statement)
        self.reached("the rows are moved")

    def _identity(self, connection: Any, batch: Batch) -> BatchIdentity:
        """Return the identity. Its target is the table that has the name now: a table that was created again lacks the
        batch."""
        plan = batch.plan or BY_CALLERS_NUMBER
        return BatchIdentity(
            query=batch.query_id,
            checkpoint=plan.checkpoint,
            batch=batch.number,
            offsets=plan.offsets_of(batch.number),
            target=f"table {self.table}, {self.database.incarnation(connection, self.options.table)}",
        )

    def _evolve(self, connection: Any, found: Fit) -> None:
        quoted = self.database.quoted
        table = quoted(self.options.table)
        for field in found.added:
            kind = self._column_types()[field.name]
            execute(connection, f"ALTER TABLE {table} ADD COLUMN {quoted(field.name)} {kind}")
        for field in found.widened:
            kind = self._column_types()[field.name]
            execute(connection, f"ALTER TABLE {table} ALTER COLUMN {quoted(field.name)} TYPE {kind}")

    def abandon(self, items: Sequence[dict[str, object]]) -> None:
        """Staged rows are not visible to readers."""
        self.discard(items)

    def discard(self, items: Sequence[dict[str, object]]) -> None:
        with self.database.connect() as connection:
            for item in items:
                execute(connection, f"DROP TABLE IF EXISTS {self.database.quoted(cast(str, item['table']))}")
            connection.commit()

    def _leftovers(self, connection: Any, batch: Batch | None) -> set[str]:
        if batch is None:
            return set()
        postgresql = self.database.dialect is Dialect.POSTGRESQL
        listing = "pg_tables" if postgresql else "sqlite_master WHERE type = 'table'"
        rows = fetch(connection, f"SELECT {'tablename' if postgresql else 'name'} AS name FROM {listing}")
        return leftovers((row["name"] for row in rows), batch.query_id, batch.number, self.table)

    def _fit(self, existing: Sequence[Column]) -> Fit:
        """Decide how the rows go into the table as it is now. Raises `TableMismatch` if they do not."""
        what = self.what
        columns = StructType([field for field in self.schema.fields if field.name not in self._not_written])
        if not existing:
            if not self.options.create:
                raise TableMismatch(f"{what} does not exist, and createTable is false")
            return Fit(self._with_keys(columns))
        known, problems = [], []
        for column in existing:
            field = columns[column.name] if column.name in columns.names else None
            if field is None:
                # A column with a default may be missing from the rows.
                kind = taken_as(column, StringType()) or StringType()
                known.append(StructField(column.name, kind, column.nullable or column.has_default))
                continue
            taken = taken_as(column, field.dataType)
            if problem := self._problem(column, field, is_taken=taken is not None):
                problems.append(problem)
            known.append(StructField(column.name, taken or field.dataType, column.nullable))
        if problems:
            raise TableMismatch(f"{what} does not take these rows: {'; '.join(problems)}")
        # SQLite's numbers are wide already.
        can_widen = self.database.dialect is Dialect.POSTGRESQL
        filled_by_database = [each.name for each in existing if each.has_default or each.is_generated]
        merge = self.options.merge
        found = fit(
            columns, StructType(known), what=what, merge=merge, can_widen=can_widen, optional=filled_by_database
        )
        return replace(found, written=self._with_keys(found.written))

    def _problem(self, column: Column, field: StructField, *, is_taken: bool) -> str:
        """Say why the column takes no value of the rows; "" if it may take some."""
        if column.is_generated:
            return f"column {column.name} is generated by the database: leave it out of the rows"
        if column.is_always_identity and self.options.upsert and column.name not in self.options.keys:
            return f"column {column.name} is GENERATED ALWAYS AS IDENTITY, which an upsert cannot set: leave it out of the rows"
        if not is_taken:
            given = field.dataType.simpleString()
            return f"column {column.name} is {column.declared} in the table and {given} in the rows: cast it to string"
        return ""

    def _with_keys(self, columns: StructType) -> StructType:
        """Make the keys not null, whatever the table says: rows are found by their key."""
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
        """Return the types of the columns that the sink adds to the table."""
        return {
            field.name: made_as(field, self.database.dialect)
            for field in self.schema.fields
            if field.name not in self._not_written
        }

    @property
    def _not_written(self) -> set[str | None]:
        """Return the columns of the rows that the table does not get."""
        return {self.options.delete_column, self.marks}

    def _moves(self, stages: Sequence[str], unchanged: Collection[str] = ()) -> list[str]:
        """Return the statements that move the rows of all stages into the table."""
        if not stages:
            return []
        names = tuple(self._column_types())
        moves = Moves(
            self.database.dialect,
            self.database.quoted,
            self.options.table,
            names,
            keys=self.options.keys,
            order_by=self.options.order_by,
            delete_column=self.options.delete_column,
            casts=self._casts(),
            brings_identity=any(name in self.columns and self.columns[name].is_always_identity for name in names),
            unchanged=tuple(sorted(unchanged)),
        )
        return moves.upsert(stages) if self.options.upsert else moves.append(stages)


def _after(first: "pyarrow.RecordBatch", rest: "Iterator[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
    yield first
    yield from rest
