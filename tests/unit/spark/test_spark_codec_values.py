"""What a codec in Python is given, value by value."""

import pyarrow as pa

from barnabas.spark.pipelines.codecs import avro
from barnabas.spark.pipelines.codecs.base import convert_all

_SCHEMA = """
{"type": "record", "name": "r", "fields": [{"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}]}
"""


def test_a_time_that_python_has_no_name_for_is_an_error_of_its_record_alone() -> None:
    """It ended the batch, also where bad records are to be kept or dropped: Spark has times after the year 9999."""
    times = pa.array([0, 1 << 60, 1], pa.timestamp("us", "UTC"))
    rows = pa.StructArray.from_arrays([times], names=["at"])
    done = convert_all(rows, avro.writer(_SCHEMA, (), b""), pa.binary()).to_pylist()
    assert [each["data"] for each in done] == [b"\0", None, b"\2"]
    assert [each["error"] and each["error"]["class"] for each in done] == [None, "OverflowError", None]
