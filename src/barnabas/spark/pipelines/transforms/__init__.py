"""Connect's transforms under their names in Connect, made of Spark's own expressions: no Python per record.

Each is a value that `DataFrame.transform` takes, so they can be chained, and printing one shows what it does:

    orders.transform(MaskField(["card"], of="data")).transform(RegexRouter(r"raw-(.*)", "$1"))

`of` says whose fields: `None` the DataFrame's own columns, `"value"` those of the struct column `value` (Connect's `$Value`).
Paths reach into structs. Those that route or add headers work on the columns `topic` and `headers` of format `barnabas`.
A transform that does not fit the DataFrame raises `TransformError`, naming the field, while the plan is made; nothing has run.
"""

from barnabas.spark.pipelines._fields import TransformError
from barnabas.spark.pipelines.transforms.base import Transform, chain
from barnabas.spark.pipelines.transforms.fields import (
    Cast,
    ExtractField,
    Flatten,
    HoistField,
    InsertField,
    MaskField,
    ReplaceField,
    ValueToKey,
)
from barnabas.spark.pipelines.transforms.headers import DropHeaders, HeaderFrom, InsertHeader, Move
from barnabas.spark.pipelines.transforms.records import (
    Filter,
    RegexRouter,
    Route,
    TimestampRouter,
    has_header_key,
    record_is_tombstone,
    topic_name_matches,
)
from barnabas.spark.pipelines.transforms.timestamps import Precision, Target, TimestampConverter

__all__ = [
    "Cast",
    "DropHeaders",
    "ExtractField",
    "Filter",
    "Flatten",
    "HeaderFrom",
    "HoistField",
    "InsertField",
    "InsertHeader",
    "MaskField",
    "Move",
    "Precision",
    "RegexRouter",
    "ReplaceField",
    "Route",
    "Target",
    "TimestampConverter",
    "TimestampRouter",
    "Transform",
    "TransformError",
    "ValueToKey",
    "chain",
    "has_header_key",
    "record_is_tombstone",
    "topic_name_matches",
]
