"""Makes rows of records: the value's columns, those beside them, and the reason if a record does not fit."""

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    AtomicType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from barnabas.spark.pipelines._errors import ERROR_DDL, place_of
from barnabas.spark.pipelines._fields import column
from barnabas.spark.pipelines.cdc import DELETED
from barnabas.spark.pipelines.codecs import Json, Registered, SchemaRegistry, decode
from barnabas.spark.pipelines.sinks.files import DAY_MAX, DAY_MIN, TIME_MAX_US, TIME_MIN_US
from barnabas.spark.pipelines.sinks.iceberg_table import partition_of
from barnabas.spark.tables import inference
from barnabas.spark.tables.definition import HEADERS, KEY, OFFSET, PARTITION, TIMESTAMP, BadDefinition, Definition
from barnabas.spark.tables.direct import Direct, is_plain
from barnabas.spark.tables.names import Rules
from barnabas.spark.tables.reading import REFUSED, STAGED

#: Columns with the reason of an error, the value as it came, and `reading.STAGED`. No table has columns with NUL in the name.
REASON: Final = "\0reason"
RAW: Final = "\0raw"
PUT_ASIDE: Final = "\0staged"
_SEEN: Final = "seen"
_UNSEEN: Final = "unseen"
_OBJECT: Final = "_object"
_VALUE: Final = "value"
_DELETE: Final = "d"
_OPERATIONS: Final = ("c", "u", "r", _DELETE)

_BESIDE: Final = StructType(
    [
        StructField(KEY, BinaryType()),
        StructField(
            HEADERS, ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
        ),
        StructField(PARTITION, IntegerType()),
        StructField(OFFSET, LongType()),
        StructField(TIMESTAMP, TimestampType()),
    ]
)
#: The columns beside the value, and the record's columns that they come from.
_SOURCES: Final = {
    KEY: "key",
    HEADERS: "headers",
    PARTITION: "partition",
    OFFSET: "offset",
    TIMESTAMP: "timestamp",
}
_RAW_VALUE: Final = StructType([StructField(_VALUE, BinaryType())])
#: Columns of the table of errors.
ERROR_COLUMNS: Final = StructType(
    [StructField("value", BinaryType()), StructField("reason", StringType()), *_BESIDE.fields]
)


@dataclass(frozen=True)
class Rows:
    """`frame` has the columns of the table, `REASON`, `RAW` and `PUT_ASIDE`.

    In the frame they are named `c0`, `c1` and so on: Spark takes a name with a dot for a path, and finds `id` when it is
    asked for `ID`. `names` has the real ones.
    """

    frame: DataFrame
    names: tuple[str, ...]
    #: The columns of the table; for an upsert also `DELETED`.
    columns: StructType
    #: The description of the JSON, available once the frame has been computed.
    observed: Observation | None = None

    def seen(self) -> StructType:
        return inference.row_type(self.observed.get.get(_SEEN)) if self.observed is not None else StructType()

    def unseen(self) -> int:
        """Return the number of objects that `seen` does not describe."""
        return int(self.observed.get.get(_UNSEEN) or 0) if self.observed is not None else 0


def columns_beside(value: StructType) -> StructType:
    return StructType([*value.fields, *_BESIDE.fields])


def row_columns(table: Definition, value: StructType) -> StructType:
    """Return the columns of rows on their way to the table: those of an upsert have a column that says whether they delete."""
    changes = [StructField(DELETED, BooleanType())] if table.mode == "upsert" else []
    return StructType([*columns_beside(value).fields, *changes])


def rules_of(table: Definition) -> Rules:
    """Return the rules for the names of columns that come from JSON."""
    reserved = (*_BESIDE.names, *((DELETED,) if table.mode == "upsert" else ()))
    return Rules(reserved=tuple(reserved), dots_are_paths=table.format == "iceberg")


def direct_of(table: Definition, known: StructType) -> Direct | None:
    """Return how plain records become rows in the task that reads them; None if no record does."""
    is_json = table.schema == "json" and table.envelope == "none" and is_plain(known)
    if not is_json and table.schema != "raw":
        return None
    is_upsert = table.mode == "upsert"
    if is_upsert and not set(table.keys) <= set(columns_beside(known).names):
        return None
    return Direct(
        json=known if is_json else None,
        beside=tuple(_SOURCES.items()),
        required=table.keys if is_upsert else (),
        deleted=DELETED if is_upsert else None,
    )


def value_of(table: Definition, known: StructType) -> StructType:
    """Return the value's columns of rows that are read directly."""
    inference.check_names(known, rules_of(table).reserved)
    return _RAW_VALUE if table.schema == "raw" else known


def value_columns(table: StructType | None) -> StructType:
    """Return the columns of an existing table that come from the value."""
    fields = [] if table is None else table.fields
    return StructType([StructField(each.name, each.dataType) for each in fields if each.name not in _BESIDE.names])


def columns_needed(table: Definition) -> set[str]:
    """Return the columns without which the table cannot be made."""
    return {*(partition_of(each)[0] for each in table.partition_by), *(table.key if table.mode == "upsert" else ())}


def columns_kept(table: Definition, existing: StructType) -> StructType:
    """Return the columns that a table keeps when it is emptied: those that it has whatever its records are."""
    partitions = {partition_of(each)[0] for each in table.partition_by}
    names = {*_BESIDE.names, *partitions, *(ERROR_COLUMNS.names if table.schema == "raw" else ())}
    return StructType([each for each in existing.fields if each.name in names])


def registered(table: Definition) -> Registered:
    settings = dict(table.registry)
    return Registered(SchemaRegistry.from_config(settings), table.subject or f"{table.topic}-value")


def look(records: DataFrame, table: Definition) -> StructType:
    """Return the row that the JSON of these records shows, for a table without columns.

    Looks at all of them: the first ones may come from one partition, and differ from the others.
    """
    objects = inference.objects_in(column("value").cast("string"), fields_max=rules_of(table).fields_max)
    [found] = records.select(inference.seen_in(objects)).collect()
    return seen_row(inference.row_type(found[0]), table)


def seen_row(seen: StructType, table: Definition) -> StructType:
    """Return the row within the description: that of Debezium's envelope, if there is one."""
    if table.envelope != "debezium":
        return seen
    inner = seen["payload"].dataType if "payload" in seen.names else seen
    row = StructType()
    for name in ("after", "before"):
        part = inner[name].dataType if isinstance(inner, StructType) and name in inner.names else None
        row = inference.joined(row, part) if isinstance(part, StructType) else row
    return row


def to_rows(records: DataFrame, table: Definition, known: StructType) -> Rows:
    """`known`: the value's columns that the table has, or is to have. Those of a registry's schema are added to them."""
    if table.schema == "raw":
        none = F.lit(None).cast(ERROR_DDL)
        whole = records.select("*", F.struct(column("value")).alias("data"), none.alias("error"))
        return _finished(whole, table, _RAW_VALUE)
    if table.schema == "json":
        observed = Observation()
        objects = inference.objects_in(column("value").cast("string"), fields_max=rules_of(table).fields_max)
        whole = decode(records.withColumn(_OBJECT, objects), Json(_asked(known, table)))
        unseen = F.count_if(column(_OBJECT).isNull() & column("data").isNotNull() & column(REFUSED).isNull())
        whole = whole.observe(observed, inference.seen_in(column(_OBJECT)).alias(_SEEN), unseen.alias(_UNSEEN))
        if table.envelope == "debezium":
            whole = whole.withColumn("data", F.coalesce(column("data").getField("payload"), _outer(column("data"))))
        return _finished(whole, table, known, observed)
    return _of_registry(records, table, known)


def _asked(known: StructType, table: Definition) -> StructType:
    """Return the type as which JSON is read. Connect's converter may put an envelope around Debezium's."""
    if table.envelope != "debezium":
        return known
    envelope = _envelope(known)
    return StructType([*envelope.fields, StructField("payload", envelope)])


def _envelope(row: StructType) -> StructType:
    return StructType(
        [StructField("before", row), StructField("after", row), StructField("op", StringType())]
    )  # fmt: skip


def _outer(data: Column) -> Column:
    inner = [data.getField(name).alias(name) for name in ("before", "after", "op")]
    return F.when(data.isNotNull(), F.struct(*inner))


def _of_registry(records: DataFrame, table: Definition, known: StructType) -> Rows:
    whole = decode(records, registered(table))
    kind = whole.schema["data"].dataType
    if not isinstance(kind, StructType):
        whole = whole.withColumn("data", F.when(column("data").isNotNull(), F.struct(column("data").alias(_VALUE))))
        kind = StructType([StructField(_VALUE, kind)])
    row: DataType = kind
    if table.envelope == "debezium":
        row = kind["after"].dataType if "after" in kind.names else StructType()
    # deltalake cannot widen a column of a Delta table later.
    wide = inference.loose(row, widest=table.format == "delta")
    assert isinstance(wide, StructType)
    value = _grown(known, wide)
    if table.envelope == "debezium":
        before = kind["before"].dataType if "before" in kind.names else row
        inner = [
            inference.conformed(column("data").getField(name), given, value).alias(name)
            for name, given in (("before", before), ("after", row))
        ]
        both = F.struct(*inner, column("data").getField("op").alias("op"))
        whole = whole.withColumn("data", F.when(column("data").isNotNull(), both))
    else:
        whole = whole.withColumn("data", inference.conformed(column("data"), kind, value))
    return _finished(whole, table, value)


def _grown(known: StructType, wanted: StructType) -> StructType:
    """Return the table's columns in the types that the schema has now, with the columns that only the table has."""
    fields = []
    for each in known.fields:
        if each.name not in wanted.names:
            fields.append(each)
            continue
        kind = wanted[each.name].dataType
        both = isinstance(each.dataType, StructType) and isinstance(kind, StructType)
        fields.append(StructField(each.name, _grown(each.dataType, kind) if both else kind))  # type: ignore[arg-type]
    known_names = set(known.names)
    return StructType([*fields, *(each for each in wanted.fields if each.name not in known_names)])


def _finished(whole: DataFrame, table: Definition, value: StructType, observed: Observation | None = None) -> Rows:
    inference.check_names(value, rules_of(table).reserved)
    beside = {name: column(source) for name, source in _SOURCES.items()}
    columns = row_columns(table, value)
    place = place_of(whole)
    reason = F.coalesce(column("error").getField("message"), F.concat(place, column(REFUSED)))
    # Tables cannot have such a time, and neither can the table of errors: it gets null.
    beside[TIMESTAMP], impossible = _time_or_reason(beside[TIMESTAMP])
    reason = F.coalesce(reason, F.concat(place, impossible))
    row, fields, deleted = column("data"), {}, None
    if table.mode == "upsert":
        if table.envelope == "debezium":
            op = row.getField("op")
            wrong = F.concat(place, F.lit("operation "), F.coalesce(op, F.lit("null")), F.lit(" is no change of a row"))
            # The tombstone after a delete repeats the delete.
            whole = whole.filter(column("value").isNotNull())
            reason = F.coalesce(reason, F.when(op.isNull() | ~op.isin(*_OPERATIONS), wrong))
            row = F.when(op == _DELETE, row.getField("before")).otherwise(row.getField("after"))
            deleted = op == _DELETE
        else:
            deleted = column("value").isNull()
    for each in value.fields:
        fields[each.name] = row.getField(each.name)
        if table.format == "iceberg" and (wrong_time := _impossible_time(each, fields[each.name])) is not None:
            reason = F.coalesce(reason, F.concat(place, wrong_time))
    if deleted is not None:
        if table.envelope == "none":
            fields |= _keys_of_tombstones(table, value, fields)
        for name in table.keys:
            if name not in columns.names:
                raise BadDefinition(f"the rows have no column {name}, which --key names: {columns.names}")
            here = beside[name] if name in beside else fields[name]
            missing = F.concat(place, F.lit(f"{name} is null, by which rows are replaced and deleted"))
            reason = F.coalesce(reason, F.when(here.isNull(), missing))
            if isinstance(columns[name].dataType, DoubleType | FloatType):
                no_number = F.concat(place, F.lit(f"{name} is NaN, which equals no key of a row"))
                reason = F.coalesce(reason, F.when(F.isnan(here), no_number))
    out = [*(fields | beside).items()]
    if deleted is not None:
        out.append((DELETED, F.coalesce(deleted, F.lit(False))))
    out += [(REASON, reason), (RAW, F.when(reason.isNotNull(), column("value"))), (PUT_ASIDE, column(STAGED))]
    frame = whole.select(*[each.alias(f"c{number}") for number, (_, each) in enumerate(out)])
    return Rows(frame, tuple(name for name, _ in out), columns, observed)


def _time_or_reason(time: Column) -> tuple[Column, Column]:
    """Return the time of a record if a table can have it, and the reason if it cannot."""
    is_possible = F.unix_micros(time).between(F.lit(TIME_MIN_US), F.lit(TIME_MAX_US))
    wrong = F.concat(
        F.lit("timestamp "), F.unix_millis(time).cast("string"), F.lit(" ms is not in the years 1 to 9999 of a table")
    )
    return F.when(is_possible, time), F.when(~is_possible, wrong)


def _impossible_time(field: StructField, value: Column) -> Column | None:
    """Return the error of a time or day that pyiceberg cannot write. None if the column has another type."""
    if isinstance(field.dataType, DateType):
        number, least, most = F.unix_date(value), DAY_MIN, DAY_MAX
    elif isinstance(field.dataType, TimestampType | TimestampNTZType):
        number, least, most = F.unix_micros(value.cast("timestamp")), TIME_MIN_US, TIME_MAX_US
    else:
        return None
    wrong = F.lit(f"{field.name} is not in the years 1 to 9999, which an Iceberg table has")
    return F.when(~number.between(F.lit(least), F.lit(most)), wrong)


def _keys_of_tombstones(table: Definition, value: StructType, fields: dict[str, Column]) -> dict[str, Column]:
    """Read the columns of a tombstone from the record's key: JSON with the key's columns, or the text of the one column."""
    named = [each for each in value.fields if each.name in table.key]
    if not named:
        return {}
    text = column("key").cast("string")
    parsed = F.from_json(text, StructType(named))
    found = {}
    for each in named:
        of_key = parsed.getField(each.name)
        if len(named) == 1 and isinstance(each.dataType, AtomicType):
            of_key = F.coalesce(of_key, text.try_cast(each.dataType))
        found[each.name] = F.when(column("value").isNull(), of_key).otherwise(fields[each.name])
    return found
