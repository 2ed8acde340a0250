"""Transforms that drop records, or choose their topic."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from barnabas.spark.pipelines._fields import (
    TransformError,
    column,
    column_type,
)
from barnabas.spark.pipelines._schema import columns_of
from barnabas.spark.pipelines.transforms.base import as_condition
from barnabas.spark.pipelines.transforms.headers import HEADERS
from barnabas.spark.pipelines.transforms.timestamps import in_utc

TOPIC: Final = "topic"


@dataclass(frozen=True)
class Filter:
    """Drop the records for which the predicate is true (Connect's Filter); with `negate`, those for which it is not."""

    predicate: Column | str
    negate: bool = False

    def __call__(self, df: DataFrame) -> DataFrame:
        matched = F.coalesce(as_condition(self.predicate), F.lit(False))
        return df.filter(matched if self.negate else ~matched)


def topic_name_matches(pattern: str) -> Column:
    """Connect's predicate TopicNameMatches: the regular expression matches the whole name."""
    return F.regexp_like(column(TOPIC), F.lit(_whole(pattern)))


def has_header_key(name: str) -> Column:
    """Connect's predicate HasHeaderKey."""
    return F.exists(column(HEADERS), lambda header: header.getField("key") == name)


def record_is_tombstone(value: str = "value") -> Column:
    """Connect's predicate RecordIsTombstone."""
    return column(value).isNull()


def _whole(pattern: str) -> str:
    return rf"\A(?:{pattern})\z"


@dataclass(frozen=True)
class RegexRouter:
    """Send records whose whole topic name matches `regex` to `replacement`, in which `$1` is the first group."""

    regex: str
    replacement: str

    def __call__(self, df: DataFrame) -> DataFrame:
        column_type(df, TOPIC, "RegexRouter")
        return df.withColumn(TOPIC, F.regexp_replace(column(TOPIC), _whole(self.regex), self.replacement))


@dataclass(frozen=True)
class TimestampRouter:
    """Put the record's time into the topic's name: `${topic}` and `${timestamp}` in `topic_format`, in UTC."""

    topic_format: str = "${topic}-${timestamp}"
    timestamp_format: str = "yyyyMMdd"

    def __call__(self, df: DataFrame) -> DataFrame:
        column_type(df, TOPIC, "TimestampRouter")
        column_type(df, "timestamp", "TimestampRouter")
        stamp = in_utc(column("timestamp"), self.timestamp_format)
        parts = re.split(r"(\$\{topic\}|\$\{timestamp\})", self.topic_format)
        values = {"${topic}": column(TOPIC), "${timestamp}": stamp}
        return df.withColumn(TOPIC, F.concat(*[values.get(part, F.lit(part)) for part in parts if part]))


@dataclass(frozen=True)
class Route:
    """Choose the topic by conditions: the first condition that is true names it.

    `otherwise` is the topic of the other records; without it they keep their topic, or have none (then the sink's option
    decides).
    """

    topics: Mapping[str, Column | str]
    otherwise: str | None = None

    def __call__(self, df: DataFrame) -> DataFrame:
        if not self.topics:
            raise TransformError("Route: no topic was named")
        rest = column(TOPIC) if self.otherwise is None and TOPIC in columns_of(df) else F.lit(self.otherwise)
        chosen: Column = rest.cast("string")
        for topic, condition in reversed(list(self.topics.items())):
            chosen = F.when(as_condition(condition), F.lit(topic)).otherwise(chosen)
        return df.withColumn(TOPIC, chosen)
