"""Lines to records and records to lines, as in Kafka's console tools."""

import pytest

from barnabas.base.ids import TopicPartition
from barnabas.cli._command import UsageError
from barnabas.cli._format import formatter_of
from barnabas.cli.console_producer import LineReader
from barnabas.wire.record_batch import read_header
from barnabas.wire.records import BatchBuilder, Record, iter_records

T3 = TopicPartition("t", 3)


def test_line_is_the_value() -> None:
    assert LineReader.of({}).parse(b"k\tv") == (None, b"k\tv", ())


def test_key_ends_at_the_first_separator() -> None:
    reader = LineReader.of({"parse.key": "true", "key.separator": "::"})
    assert reader.parse(b"a::b::c") == (b"a", b"b::c", ())


def test_headers_come_before_the_key() -> None:
    reader = LineReader.of({"parse.key": "TRUE", "parse.headers": "true"})
    key, value, headers = reader.parse(b"h1:v1,h2:\tk\tv")
    assert (key, value, list(headers)) == (b"k", b"v", [("h1", b"v1"), ("h2", b"")])


def test_null_marker_means_null_everywhere() -> None:
    reader = LineReader.of({"parse.key": "true", "parse.headers": "true", "null.marker": "NULL"})
    key, value, headers = reader.parse(b"h:NULL\tNULL\tNULL")
    assert (key, value, list(headers)) == (None, None, [("h", None)])
    assert reader.parse(b"NULL\tk\tv") == (b"k", b"v", ())


def test_missing_separator_is_an_error_with_its_line_or_ignored() -> None:
    reader = LineReader.of({"parse.key": "true"})
    reader.parse(b"a\tb")
    with pytest.raises(UsageError, match="No key separator found on line number 2: 'ab'"):
        reader.parse(b"ab")
    assert LineReader.of({"parse.key": "true", "ignore.error": "true"}).parse(b"ab") == (None, b"ab", ())


@pytest.mark.parametrize(
    "settings",
    [
        {"headers.delimiter": ","},
        {"headers.separator": ":"},
        {"null.marker": "\t"},
        {"key.separator": ""},
    ],
)
def test_equal_separators_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        LineReader.of(settings)


def line(settings: dict[str, str], *, append_time_ms: int | None = None) -> bytes:
    builder = BatchBuilder(base_offset=7, leader_epoch=2, log_append_time_ms=append_time_ms)
    builder.append(b"k", b"v", timestamp=5, headers=[("h", b"x"), ("n", None)])
    data = builder.build()
    header = read_header(data)
    record: Record = next(iter_records(data, 0, header))
    return formatter_of("org.apache.kafka.tools.consumer.DefaultMessageFormatter", settings)(T3, header, record)


def test_value_alone_is_the_default() -> None:
    assert line({}) == b"v\n"


def test_columns_come_in_kafkas_order() -> None:
    columns = ("timestamp", "partition", "offset", "delivery", "epoch", "headers", "key", "value")
    assert (
        line({f"print.{column}": "true" for column in columns})
        == b"CreateTime:5\tPartition:3\tOffset:7\tDelivery:NOT_PRESENT\tEpoch:2\th:x,n:null\tk\tv\n"
    )


def test_log_append_time_is_named() -> None:
    assert line({"print.timestamp": "true"}, append_time_ms=9) == b"LogAppendTime:9\tv\n"


def test_separators_and_null_can_be_chosen() -> None:
    settings = {"print.key": "true", "print.headers": "true", "key.separator": "|", "line.separator": ";"}
    assert line(settings | {"headers.separator": "&", "null.literal": "~"}) == b"h:x&n:~|k|v;"


def test_value_can_be_left_out() -> None:
    assert line({"print.key": "true", "print.value": "false"}) == b"k\n"


def test_numbers_are_deserialized() -> None:
    builder = BatchBuilder()
    builder.append((5).to_bytes(4, "big"), (-2).to_bytes(8, "big", signed=True), timestamp=0)
    data = builder.build()
    header = read_header(data)
    record = next(iter_records(data, 0, header))
    settings = {
        "print.key": "true",
        "key.deserializer": "org.apache.kafka.common.serialization.IntegerDeserializer",
        "value.deserializer": "LongDeserializer",
    }
    assert formatter_of("Default", settings)(T3, header, record) == b"5\t-2\n"


def test_deserializer_and_formatter_that_are_unknown_are_refused() -> None:
    with pytest.raises(UsageError, match=r"com\.example\.Avro"):
        formatter_of("Default", {"value.deserializer": "com.example.Avro"})
    with pytest.raises(UsageError, match="only the Default, NoOp and Logging"):
        formatter_of("com.example.Pretty", {})
