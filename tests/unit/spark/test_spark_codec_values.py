"""The values that a codec in Python gets."""

import pyarrow as pa

from barnabas.spark.pipelines.codecs import avro
from barnabas.spark.pipelines.codecs.base import convert_all

_SCHEMA = """
{"type": "record", "name": "r", "fields": [{"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}]}
"""


def test_a_time_that_python_does_not_have_is_an_error_of_its_record_only() -> None:
    """Spark has times after the year 9999. Such a time failed the batch, even if bad records are kept or dropped."""
    times = pa.array([0, 1 << 60, 1], pa.timestamp("us", "UTC"))
    rows = pa.StructArray.from_arrays([times], names=["at"])
    done = convert_all(rows, avro.writer(_SCHEMA, (), b""), pa.binary()).to_pylist()
    assert [each["data"] for each in done] == [b"\0", None, b"\2"]
    assert [each["error"] and each["error"]["class"] for each in done] == [None, "OverflowError", None]
