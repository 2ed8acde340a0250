"""Change data capture: a topic of changes keeps a table equal to its source.

First a stream of changes is brought into one form: the table's columns, `_deleted`, and `_sequence`, by which changes of a key
are ordered. Then a sink applies them, each batch once:

    changes = debezium(decode(records, Json(debezium_schema("id long, name string"), envelope=True), mode="FAIL"))
    upsert_into_delta("/lake/customers", keys=["id"]).writer(changes, checkpoint="/state/customers").start()

A change that is older than the table's row of its key is ignored, so changes may come late and more than once. The table keeps
`_sequence` for that: the place of a change in the log of its database if Debezium gives it, else its time; then its offset.
A time is right if one clock gives it to all changes of a key (Debezium's, a single producer's, the broker's with
`message.timestamp.type=LogAppendTime`). Offsets alone
(`sequence="offset"`) are right while a topic gets no more partitions.

A record that `decode` could not read (mode PERMISSIVE) is neither a tombstone nor a delete. It fails the query, unless it was
taken out before: `filter("error is null")`.

A row that was deleted for good is forgotten with its sequence. If changes may overtake one another, `deletes="soft"` keeps
the row, marked `_deleted`.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final, Literal, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, AtomicType, LongType, StringType, StructField, StructType

from barnabas.spark.pipelines import sinks
from barnabas.spark.pipelines._errors import ERROR_TYPE, place_of
from barnabas.spark.pipelines._fields import TransformError, column, column_type, fields_of, read, resolve
from barnabas.spark.pipelines._schema import columns_of, parse_type, schema_of
from barnabas.spark.pipelines.connector import Sink, registering, text_options

DELETED: Final = "_deleted"
SEQUENCE: Final = "_sequence"
#: The column with the names of columns whose values an update left alone, so that the change does not have them: a table keeps
#: its own.
UNCHANGED_COLUMNS: Final = "_unchanged"
#: The error of a row that `sources.changes` read with mode=PERMISSIVE: `struct<class, message>`, null for a good row.
ERROR: Final = "_error"
_ERROR: Final = "error"
Deletes: TypeAlias = Literal["hard", "soft"]

#: Debezium's operations: create, update, read (while it takes its first snapshot), delete.
_SNAPSHOT: Final = "r"
_UPSERTS: Final = ("c", "u", _SNAPSHOT)
_DELETE: Final = "d"

#: Debezium's fields for the place of a change in the log of its database, by database.
_POSITIONS: Final[Mapping[str, str]] = {
    "postgresql": "lsn long, ts_ms long",
    "mysql": "file string, pos long, row int, ts_ms long",
}


def debezium_schema(row: StructType | str, *, source: Literal["postgresql", "mysql"] | None = None) -> StructType:
    """Return the schema of the envelope around rows of this schema, as far as it is used here. With `source`, it also has the
    change's place in the log of that database, by which `debezium` then orders.
    """
    kind = row if isinstance(row, StructType) else parse_type(row)
    if not isinstance(kind, StructType):
        raise TransformError(f"debezium_schema: {kind.simpleString()} is not the schema of a row")
    envelope = StructType(
        [
            StructField("before", kind),
            StructField("after", kind),
            StructField("op", StringType()),
            StructField("ts_ms", LongType()),
        ]
    )
    return envelope if source is None else envelope.add("source", parse_type(_POSITIONS[source]))


def debezium(df: DataFrame, *, of: str = "data", sequence: str | Column | None = None) -> DataFrame:
    """Changes out of Debezium's envelope in the struct column `of`.

    `sequence`: a column, or a path in the envelope (`source.version`). By default changes are ordered by their place in the log
    of the database if the envelope has it (`source.lsn`; `source.file`, `.pos` and `.row`), else by its `ts_ms`; then by
    offset. A row of a snapshot without a place comes before all changes; a change without one fails the query. The tombstone
    after a delete repeats the delete and is left out. An operation that does not change a row (a truncate) fails the
    query, with topic, partition and offset.
    """
    envelope = fields_of(df, of, "debezium")
    for needed in ("before", "after", "op"):
        if needed not in envelope.names:
            raise TransformError(
                f"debezium: {of!r} has no {needed!r}: is it Debezium's envelope? It has {envelope.names}"
            )
    row = envelope["after"].dataType
    if not isinstance(row, StructType):
        raise TransformError(f"debezium: 'after' is {row.simpleString()}, not a row")
    op = read(of, ("op",))
    message = F.concat(
        place_of(df), F.lit("operation "), F.coalesce(op, F.lit("null")), F.lit(" is no change of a row")
    )
    deleted = (
        F.when(op.isin(*_UPSERTS), F.lit(False)).when(op == _DELETE, F.lit(True)).otherwise(F.raise_error(message))
    )
    after, before = read(of, ("after",)), read(of, ("before",))
    present = df.filter(column(of).isNotNull())
    if (problem := _problem(df)) is not None:
        present = df.filter(column(of).isNotNull() | problem.isNotNull())
        deleted = F.when(problem.isNotNull(), F.raise_error(problem)).otherwise(deleted)
    when = read(of, ("ts_ms",)) if "ts_ms" in envelope.names else None
    in_log = _in_log(df, envelope, of)
    if sequence is not None:
        order = _sequence(df, envelope, of, sequence)
    elif in_log is not None:
        order = in_log
    else:
        order = _in_time(df, when, "debezium")
    current = F.when(op == _DELETE, before).otherwise(after)
    fields = [current.getField(name).alias(name) for name in row.names]
    return present.select(*fields, deleted.cast("boolean").alias(DELETED), order.alias(SEQUENCE))


def keyed(
    df: DataFrame, *, keys: Sequence[str], of: str = "data", key: str = "key", sequence: str | Column | None = None
) -> DataFrame:
    """Return the changes of a compacted topic, in which a record is a row and a tombstone deletes the row of its key.

    `of` is the decoded value, `key` the decoded key: a struct with the fields `keys`, or the one key itself. `sequence`: a
    column, or a path in the value, which a tombstone does not have; by default the record's time, then its offset.
    """
    row = fields_of(df, of, "keyed")
    key_type = column_type(df, key, "keyed")
    if not isinstance(key_type, StructType) and len(keys) != 1:
        raise TransformError(
            f"keyed: column {key!r} is {key_type.simpleString()}, which has one value for {list(keys)}"
        )
    for name in keys:
        resolve(row, name, "keyed")
        if isinstance(key_type, StructType):
            resolve(key_type, name, "keyed")

    def value(field: StructField) -> Column:
        mine = read(of, (field.name,))
        if field.name not in keys:
            return mine
        of_key = read(key, (field.name,)) if isinstance(key_type, StructType) else column(key)
        return F.coalesce(mine, of_key.cast("string").cast(field.dataType))

    fields = [value(field).alias(field.name) for field in row.fields]
    order = _in_time(df, None, "keyed") if sequence is None else _sequence(df, row, of, sequence)
    deleted = column(of).isNull()
    if (problem := _problem(df)) is not None:
        deleted = F.when(problem.isNotNull(), F.raise_error(problem)).otherwise(deleted)
    return df.select(*fields, deleted.cast("boolean").alias(DELETED), order.alias(SEQUENCE))


def _problem(df: DataFrame) -> Column | None:
    """Return the error of a record that `decode` could not read. Such a record has no data, but is no tombstone."""
    schema = schema_of(df)
    kind = schema[_ERROR].dataType if _ERROR in schema.names else None
    is_error = isinstance(kind, StructType) and kind.names == ERROR_TYPE.names
    return column(_ERROR).getField("message") if is_error else None


def _in_time(df: DataFrame, when_ms: Column | None, caller: str) -> Column:
    """Return the order by time, then by offset, as one text of digits that every table can compare.

    Not by offset alone: when a topic gets more partitions, a key may go to another one, where offsets are lower, and every
    later change would seem old.
    """
    names = columns_of(df)
    if "offset" not in names or ("timestamp" not in names and when_ms is None):
        raise TransformError(
            f"{caller}: changes need an order: keep the columns timestamp and offset, or name one by sequence="
        )
    stamps = [] if when_ms is None else [when_ms]
    stamps += [F.unix_millis(column("timestamp"))] if "timestamp" in names else []
    time_ms = F.greatest(F.coalesce(*stamps, F.lit(0)), F.lit(0).cast("long"))
    return F.format_string("%015d%019d", time_ms, column("offset"))


def _in_log(df: DataFrame, envelope: StructType, of: str) -> Column | None:
    """Return the order by the place in the log of the database: right whatever topics, partitions and clocks do. None without a
    place.

    Its first letter makes it newer than every time: a table that was ordered by time goes on with it.
    """
    source = envelope["source"].dataType if "source" in envelope.names else None
    if not isinstance(source, StructType):
        return None
    zero = F.lit(0).cast("long")
    offset = column("offset") if "offset" in columns_of(df) else zero

    def number(name: str) -> Column:
        return read(of, ("source", name)).cast("long") if name in source.names else zero

    if "lsn" in source.names:
        form, places = "L%020d%019d", [number("lsn")]
    elif {"file", "pos"} <= set(source.names):
        file = F.regexp_extract(read(of, ("source", "file")), r"(\d+)$", 1).try_cast("long")
        form, places = "L%010d%019d%010d%019d", [file, number("pos"), F.coalesce(number("row"), zero)]
    else:
        return None
    known = F.format_string(form, *places, offset)
    first = F.format_string(form, *(zero for _ in places), offset)
    message = F.concat(place_of(df), F.lit(f"a change without its place in the log: {of}.source has none"))
    has_place = reduce(lambda one, other: one & other, (each.isNotNull() for each in places))
    return F.when(has_place, known).when(read(of, ("op",)) == _SNAPSHOT, first).otherwise(F.raise_error(message))


def _sequence(df: DataFrame, fields: StructType, of: str, sequence: str | Column) -> Column:
    """Return the order by a column; a null fails the query: such a change is neither older nor newer, and would be ignored."""
    if not isinstance(sequence, str):
        order = sequence
    elif sequence in columns_of(df):
        order = column(sequence)
    else:
        order = read(of, resolve(fields, sequence, "sequence"))
    said = sequence if isinstance(sequence, str) else "the sequence"
    message = F.concat(place_of(df), F.lit(f"a change without its place in the order: {said} is null"))
    return F.when(order.isNotNull(), order).otherwise(F.raise_error(message))


def upsert_into_delta(
    path: str, *, keys: Sequence[str], deletes: Deletes = "hard", storage: Mapping[str, str] | None = None
) -> Sink:
    """Return a sink that applies changes to a Delta table at this folder or URI, which the first batch makes."""
    options = text_options(path=path, key=list(keys), deletes=_checked(deletes))
    options |= {f"storage.{name}": value for name, value in (storage or {}).items()}
    return Sink(
        "barnabas-delta-upsert", options, registering("barnabas.spark.pipelines.delta_upsert", "DeltaUpsertSource")
    )


def upsert_into_sql(
    uri: str,
    table: str,
    *,
    keys: Sequence[str],
    deletes: Deletes = "hard",
    options: Mapping[str, str] | None = None,
) -> Sink:
    """Return a sink that applies changes to a table of PostgreSQL or SQLite, which the first batch makes.

    `options`: any other of `sinks.sql`.
    """
    delete_column = DELETED if _checked(deletes) == "hard" else None
    return sinks.sql(
        uri, table, mode="upsert", key=keys, order_by=SEQUENCE, delete_column=delete_column, options=options
    )


def _checked(deletes: Deletes) -> Deletes:
    if deletes not in ("hard", "soft"):
        raise ValueError(f"deletes={deletes!r} is not valid: use hard or soft")
    return deletes


def has_unchanged(schema: StructType) -> bool:
    """Whether rows of this schema name the columns that a change left alone."""
    kind = schema[UNCHANGED_COLUMNS].dataType if UNCHANGED_COLUMNS in schema.names else None
    return isinstance(kind, ArrayType) and isinstance(kind.elementType, StringType)


def check_changes(schema: StructType, keys: Sequence[str]) -> None:
    """Raise `ValueError` unless rows of this schema are changes of a table with these keys."""
    if not keys:
        raise ValueError("changes are applied by key: the option key names its columns")
    needed = (*keys, DELETED, SEQUENCE)
    if ERROR in schema.names:
        raise ValueError(
            f"rows have {ERROR}: split the bad ones off within foreachBatch, with dead_letter.split(rows, error='{ERROR}'), "
            "and apply the good ones"
        )
    if missing := [name for name in needed if name not in schema.names]:
        raise ValueError(f"rows lack {', '.join(missing)}: bring them into form with cdc.debezium or cdc.keyed")
    kind = schema[SEQUENCE].dataType
    if not isinstance(kind, AtomicType):
        raise ValueError(f"{SEQUENCE} is {kind.simpleString()}, and rows cannot be ordered by this type")
