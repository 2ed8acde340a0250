"""Records that could not be used, kept as they were in a topic of their own, with headers that say where and why.

A dead letter has the key, value, headers and time of its record, and the headers that Connect adds
(`__connect.errors.topic`, `.partition`, `.offset`, `.exception.message`, …), so that Connect's tools read ours and we read
theirs.

    decoded = decode(records, Json("id int, total double"))                            # bad records have an error
    ready = encode(decoded, Json(), into="out", mode="PERMISSIVE")
    ready = to_topics(ready, topic="clean", dead_letter_topic="dead", value="out")
    sinks.topic("clean", bootstrap=…).writer(ready, checkpoint=…).start()

`to_topics` sends both kinds through one query, so each record arrives exactly once in one place or the other. Its column
`topic` says where each row goes. The sink is given the same name or none; it refuses another name, which would send all rows
there.
`barnabas pipeline replay` (`replay.replay`) sends dead letters back; `restore` does so within Spark.
"""

from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, StringType

from barnabas.client import error_headers as names
from barnabas.spark.destinations import marked
from barnabas.spark.pipelines import connector
from barnabas.spark.pipelines._fields import TransformError, column, column_type, without
from barnabas.spark.pipelines._schema import columns_of, schema_of
from barnabas.spark.pipelines.transforms.headers import HEADERS_TYPE, header, headers_or_none_yet

#: Stages of Connect, by their names.
KEY_CONVERTER: Final = "KEY_CONVERTER"
VALUE_CONVERTER: Final = "VALUE_CONVERTER"
TRANSFORMATION: Final = "TRANSFORMATION"


class Split(NamedTuple):
    good: DataFrame
    bad: DataFrame


def split(df: DataFrame, *, error: str = "error") -> Split:
    """Return the rows without an error, and those with one. If both are started, each is a query of its own; see
    `to_topics`."""
    column_type(df, error, "split")
    return Split(without(df.filter(column(error).isNull()), error), df.filter(column(error).isNotNull()))


def dead_letters(
    bad: DataFrame,
    topic: str,
    *,
    pipeline: str = "barnabas",
    stage: str = VALUE_CONVERTER,
    error: str = "error",
) -> DataFrame:
    """Return the rows for a dead-letter topic: `topic, key, value, headers` and, if known, `timestamp`."""
    _raw(bad, "dead_letters")
    return bad.select(
        _destination(F.lit(topic), topic),
        _bytes_of(bad, "key"),
        _bytes_of(bad, "value"),
        error_headers(bad, pipeline=pipeline, stage=stage, error=error).alias("headers"),
        *_timestamp(bad),
    )


def to_topics(
    df: DataFrame,
    *,
    topic: str | Column,
    dead_letter_topic: str,
    key: str = "key",
    value: str = "value",
    pipeline: str = "barnabas",
    stage: str = VALUE_CONVERTER,
    error: str = "error",
) -> DataFrame:
    """Return good and bad records in one DataFrame for one sink: good ones go to `topic` (a name or a column), with the columns
    `key` and `value`; bad ones go to `dead_letter_topic` as they came."""
    column_type(df, error, "to_topics")
    _raw(df, "to_topics")
    connector.note_dead_letters(dead_letter_topic)
    for name in (key, value):
        kind = column_type(df, name, "to_topics")
        if not isinstance(kind, BinaryType | StringType):
            raise TransformError(f"to_topics: column {name!r} is {kind.simpleString()}: encode it first")
    bad = column(error).isNotNull()
    destination = F.lit(topic) if isinstance(topic, str) else topic
    kept = headers_or_none_yet(df).cast(HEADERS_TYPE)
    return df.select(
        _destination(
            F.when(bad, F.lit(dead_letter_topic)).otherwise(destination), topic if isinstance(topic, str) else None
        ),
        F.when(bad, _bytes_of(df, "key")).otherwise(column(key).cast("binary")).alias("key"),
        F.when(bad, _bytes_of(df, "value")).otherwise(column(value).cast("binary")).alias("value"),
        F.when(bad, error_headers(df, pipeline=pipeline, stage=stage, error=error)).otherwise(kept).alias("headers"),
        *_timestamp(df),
    )


def _destination(topic: Column, name: str | None) -> Column:
    """Return the column `topic` with a mark, so that no option of the sink overrides it. `name`: the topic of good rows."""
    return topic.alias("topic", metadata=marked(name))


def _raw(df: DataFrame, caller: str) -> None:
    for name in ("key", "value"):
        if name in columns_of(df) and not isinstance(schema_of(df)[name].dataType, BinaryType | StringType):
            kind = schema_of(df)[name].dataType.simpleString()
            raise TransformError(
                f"{caller}: {name!r} is {kind}, but a dead letter keeps the bytes: decode into another column"
            )


def _bytes_of(df: DataFrame, name: str) -> Column:
    return (column(name) if name in columns_of(df) else F.lit(None)).cast("binary").alias(name)


def _timestamp(df: DataFrame) -> list[Column]:
    return [column("timestamp")] if "timestamp" in columns_of(df) else []


def error_headers(df: DataFrame, *, pipeline: str, stage: str, error: str = "error") -> Column:
    """Return the record's own headers and those of the error. Headers of an earlier error are replaced."""

    def text(value: Column) -> Column:
        return value.cast("string").cast("binary")

    def known(name: str, otherwise: object) -> Column:
        value = column(name).cast("string") if name in columns_of(df) else F.lit(None).cast("string")
        return text(F.coalesce(value, F.lit(str(otherwise))))

    task = F.coalesce(column("partition").cast("string") if "partition" in columns_of(df) else F.lit("0"), F.lit("0"))
    added = F.array(
        header(names.TOPIC, known("topic", "")),
        header(names.PARTITION, known("partition", -1)),
        header(names.OFFSET, known("offset", -1)),
        header(names.CONNECTOR_NAME, text(F.lit(pipeline))),
        header(names.TASK_ID, text(task)),
        header(names.STAGE, text(F.lit(stage))),
        header(names.CLASS_NAME, text(column(error).getField("class"))),
        header(names.EXCEPTION_CLASS_NAME, text(column(error).getField("class"))),
        header(names.EXCEPTION_MESSAGE, text(column(error).getField("message"))),
    ).cast(HEADERS_TYPE)
    return F.concat(_without_errors(headers_or_none_yet(df).cast(HEADERS_TYPE)), added)


def _without_errors(headers: Column) -> Column:
    return F.filter(headers, lambda one: ~one.getField("key").startswith(names.PREFIX))


def header_text(df: DataFrame, name: str) -> Column:
    """Return a header's value as text, null without one: `header_text(letters, error_headers.EXCEPTION_MESSAGE)`."""
    column_type(df, "headers", "header_text")
    named = F.filter(column("headers"), lambda one: one.getField("key") == name)
    return F.get(named, -1 + F.size(named)).getField("value").cast("string")


def restore(df: DataFrame, topic: str | None = None) -> DataFrame:
    """Turn dead letters back into their records, for `topic` or for the topic that they came from. Read them with
    `includeHeaders=true`."""
    target = F.lit(topic) if topic is not None else header_text(df, names.TOPIC)
    return df.select(
        _destination(target, topic),
        column("key"),
        column("value"),
        _without_errors(headers_or_none_yet(df)).cast(HEADERS_TYPE).alias("headers"),
        *_timestamp(df),
    )
