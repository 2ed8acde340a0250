"""Connect's JDBC sink: each batch into its tables by the format `barnabas-sql`, each record once."""

import json
import logging
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BooleanType, StringType, StructType

from barnabas.spark.connect.connector import Connector, ConnectorClass
from barnabas.spark.connect.converters.json_converter import json_of_schema, schema_of_json
from barnabas.spark.connect.data import DataError, Record, Schema
from barnabas.spark.connect.jdbc.options import SINK
from barnabas.spark.connect.jdbc.sink_rows import RowMaker
from barnabas.spark.connect.jdbc.sink_tables import add_columns, create_table, merged, row_type, written
from barnabas.spark.connect.jdbc.url import postgresql_uri
from barnabas.spark.connect.options import Problem
from barnabas.spark.connect.sink_batch import Landed, SinkBatch
from barnabas.spark.pipelines.cdc import UNCHANGED_COLUMNS
from barnabas.spark.pipelines.database import Database, DatabaseError, execute
from barnabas.spark.pipelines.sinks import sql

if TYPE_CHECKING:
    pass

log = logging.getLogger(__name__)

_DELETED: Final = "__barnabas_deleted"


@dataclass(frozen=True)
class JdbcSink:
    connector: str
    uri: str
    maker: RowMaker
    upserts: bool
    creates: bool
    evolves: bool
    retries: int
    backoff_s: float

    def land(self, record: Record) -> Landed:
        """Return the row of a record, for the batch's second step."""
        row = self.maker(record)
        shape = {"columns": json_of_schema(row.columns), "keys": row.keys, "deleted": row.is_deleted}
        values = [row.values[each.name] for each in row.columns.fields]
        return Landed(row.table, json.dumps(shape), pickle.dumps(values))

    def write(self, batch: SinkBatch) -> None:
        for table, shapes in batch.places.items():
            self._with_retries(partial(self._write_table, batch, table, [_Shape.of(each) for each in shapes]))

    def _with_retries(self, work: Callable[[], None]) -> None:
        for attempt in range(self.retries + 1):
            try:
                work()
                return
            except Exception as error:
                if attempt == self.retries or not _is_of_database(error):
                    raise
                log.warning(
                    "[connector %s] the database refused, next attempt in %s s: %s",
                    self.connector,
                    self.backoff_s,
                    error,
                )
                time.sleep(self.backoff_s)

    def _write_table(self, batch: SinkBatch, table: str, shapes: "Sequence[_Shape]") -> None:
        written_shapes = [each for each in shapes if not each.is_deleted] or list(shapes)
        columns, keys = merged([each.columns for each in written_shapes]), shapes[0].keys
        rows = self._row_type(table, columns, keys)
        frame = batch.landed(table).select("shape", "row")
        made, by_key = rows, self.upserts or self.maker.deletes
        if by_key:
            # Columns that a record lacks keep their values, and a deleted row has its key alone.
            made = (
                StructType([*rows.fields]).add(_DELETED, BooleanType()).add(UNCHANGED_COLUMNS, ArrayType(StringType()))
            )
        typed = frame.mapInArrow(partial(_typed, made), made)
        sink = sql(
            self.uri,
            table,
            mode="upsert" if by_key else "append",
            key=keys if by_key else (),
            delete_column=_DELETED if by_key else None,
            create=False,
            merge_schema=True,  # columns that the rows lack are null; those that the table lacks were added before
        )
        sink.write(typed, once=(batch.name_for(table), batch.number))

    def _row_type(self, table: str, columns: Schema, keys: Sequence[str]) -> StructType:
        """Make or change the table, if the connector may; return the type of rows for it."""
        database = Database(self.uri)
        with database.connect() as connection:
            found = database.table_columns(connection, table)
            if not found:
                if not self.creates:
                    raise JdbcRefused(f"connector {self.connector}: table {table} is missing, and auto.create is false")
                execute(connection, create_table(database.quoted, table, columns, keys))
            elif lacking := [each.name for each in columns.fields if each.name not in {one.name for one in found}]:
                if not self.evolves:
                    raise JdbcRefused(
                        f"connector {self.connector}: table {table} lacks column {', '.join(lacking)}, and auto.evolve is false"
                    )
                try:
                    for statement in add_columns(database.quoted, table, columns, [each.name for each in found]):
                        execute(connection, statement)
                except DataError as error:
                    raise JdbcRefused(f"connector {self.connector}: {error}") from None
            connection.commit()
            return row_type(columns, database.table_columns(connection, table))


def _is_of_database(error: Exception) -> bool:
    """Whether the database refused, here or in a process of Spark, whose error is a text."""
    return isinstance(error, DatabaseError) or f"{DatabaseError.__name__}: " in str(error)


class JdbcRefused(RuntimeError):
    """A batch that the table cannot hold, whatever is tried again."""


@dataclass(frozen=True)
class _Shape:
    columns: Schema
    keys: tuple[str, ...]
    is_deleted: bool

    @classmethod
    def of(cls, text: str) -> "_Shape":
        shape = json.loads(text)
        return cls(schema_of_json(json.dumps(shape["columns"])), tuple(shape["keys"]), shape["deleted"])


def _typed(kind: StructType, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn landed rows into columns. Runs on executors."""
    schema = to_arrow_schema(kind, timezone="UTC")
    names = [each.name for each in kind.fields if each.name not in (_DELETED, UNCHANGED_COLUMNS)]
    convert = {name: written(kind[name].dataType) for name in names}
    shapes: dict[str, _Shape] = {}
    for batch in batches:
        rows = []
        for text, data in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
            shape = shapes.get(text) or shapes.setdefault(text, _Shape.of(text))
            given = dict(zip((each.name for each in shape.columns.fields), pickle.loads(data), strict=True))
            row = {name: convert[name](value) for name, value in given.items()}
            row |= {_DELETED: shape.is_deleted, UNCHANGED_COLUMNS: [name for name in names if name not in given]}
            rows.append(row)
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


# -- the class --------------------------------------------------------------------------------------------------------


def _check(connector: Connector) -> list[Problem]:
    o = connector.options
    problems = []
    try:
        postgresql_uri(o["connection.url"], None, None)
    except ValueError as error:
        problems.append(Problem("connection.url", str(error)))
    if o["insert.mode"] == "upsert" and o["pk.mode"] == "none":
        problems.append(Problem("pk.mode", "insert.mode=upsert needs a primary key: set pk.mode"))
    if o["delete.enabled"] and o["pk.mode"] != "record_key":
        problems.append(Problem("delete.enabled", "needs pk.mode=record_key: a record to delete has a key alone"))
    if o["delete.enabled"] and o["insert.mode"] != "upsert":
        problems.append(
            Problem("delete.enabled", "needs insert.mode=upsert here: rows that come again would not be inserted")
        )
    if o["pk.mode"] == "kafka" and len(o["pk.fields"]) not in (0, 3):
        problems.append(Problem("pk.fields", "pk.mode=kafka has three columns: topic, partition and offset"))
    return problems


def _make(connector: Connector) -> JdbcSink:
    o = connector.options
    return JdbcSink(
        connector=connector.name,
        uri=postgresql_uri(o["connection.url"], o["connection.user"], o["connection.password"]),
        maker=RowMaker(
            table_format=o["table.name.format"],
            tables=o["topics.to.tables.mapping"],
            normalizes=o["table.name.normalize"],
            pk_mode=o["pk.mode"],
            pk_fields=o["pk.fields"],
            only=o["fields.whitelist"] or o["fields.included"],
            deletes=o["delete.enabled"],
        ),
        upserts=o["insert.mode"] == "upsert",
        creates=o["auto.create"],
        evolves=o["auto.evolve"],
        retries=o["max.retries"],
        backoff_s=o["retry.backoff.ms"] / 1000,
    )


CLASS: Final = ConnectorClass(
    name="io.confluent.connect.jdbc.JdbcSinkConnector",
    aliases=("io.aiven.connect.jdbc.JdbcSinkConnector",),
    kind="sink",
    does="writes records into tables of PostgreSQL, each once",
    rows=SINK,
    check=_check,
    make=_make,
)
