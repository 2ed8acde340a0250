"""The option `topic` of a sink, and rows whose column `topic` separates dead letters from good records."""

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from barnabas.base.errors import ConfigError
from barnabas.spark import sink
from barnabas.spark.destinations import marked
from barnabas.spark.sink import BatchWriter, StreamWriter

OPTIONS = {"kafka.bootstrap.servers": "127.0.0.1:1", "deliveryGuarantee": "at-least-once"}


def rows(metadata: dict[str, object] | None) -> StructType:
    return StructType([StructField("value", StringType()), StructField("topic", StringType(), metadata=metadata or {})])


def writers(metadata: dict[str, object] | None, **options: str) -> list[BatchWriter | StreamWriter]:
    schema = rows(metadata)
    return [make(OPTIONS | options, schema, False) for make in (sink.batch_writer, sink.stream_writer)]


def test_the_option_wins_over_a_plain_column_as_in_the_official_connector() -> None:
    assert [writer._options.encoder.topic for writer in writers(None, topic="copy")] == ["copy", "copy"]


def test_the_column_of_to_topics_decides_in_a_sink_for_the_same_topic_or_for_none() -> None:
    for options in ({"topic": "clean"}, {}):
        assert [writer._options.encoder.topic for writer in writers(marked("clean"), **options)] == [None, None]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("other", "send good records to 'other', but the sink is for topic 'clean'"),
        (None, "that their column topic names"),
    ],
)
def test_a_sink_for_another_topic_is_refused(name: str | None, words: str) -> None:
    """FINDINGS P12: dead letters would land among good records without an error."""
    for make in (sink.batch_writer, sink.stream_writer):
        with pytest.raises(ConfigError, match=words):
            make(OPTIONS | {"topic": "clean"}, rows(marked(name)), False)
