"""Connect's converters: bytes to data and back, in the forms that Kafka Connect writes."""

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest

from barnabas.spark.connect import data
from barnabas.spark.connect.converters.json_converter import JsonConverter
from barnabas.spark.connect.converters.table import converter_of
from barnabas.spark.connect.data import DataError, Schema

#: A value of every type, and the JSON that Kafka Connect 4.1 writes for it.
TYPES: list[tuple[Schema, Any, str]] = [
    (Schema("int8"), 12, '{"schema":{"type":"int8","optional":false},"payload":12}'),
    (data.STRING.as_optional(), None, '{"schema":{"type":"string","optional":true},"payload":null}'),
    (Schema("float32"), 1.5, '{"schema":{"type":"float","optional":false},"payload":1.5}'),
    (data.BYTES, b"test-string", '{"schema":{"type":"bytes","optional":false},"payload":"dGVzdC1zdHJpbmc="}'),
    (
        data.array(data.INT32),
        [1, 2],
        '{"schema":{"type":"array","items":{"type":"int32","optional":false},"optional":false},"payload":[1,2]}',
    ),
    (
        data.mapping(data.STRING, data.INT32),
        {"a": 1},
        '{"schema":{"type":"map","keys":{"type":"string","optional":false},"values":{"type":"int32","optional":false},'
        '"optional":false},"payload":{"a":1}}',
    ),
    (
        data.decimal(2),
        Decimal("1.56"),
        '{"schema":{"type":"bytes","optional":false,"name":"org.apache.kafka.connect.data.Decimal","version":1,'
        '"parameters":{"scale":"2"}},"payload":"AJw="}',
    ),
    (
        data.day(),
        date(1970, 4, 10),
        '{"schema":{"type":"int32","optional":false,"name":"org.apache.kafka.connect.data.Date","version":1},"payload":99}',
    ),
    (
        data.time_of_day(),
        time(4, 0),
        '{"schema":{"type":"int32","optional":false,"name":"org.apache.kafka.connect.data.Time","version":1},'
        '"payload":14400000}',
    ),
    (
        data.timestamp(),
        datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC),
        '{"schema":{"type":"int64","optional":false,"name":"org.apache.kafka.connect.data.Timestamp","version":1},'
        '"payload":1000000000000}',
    ),
    (
        data.struct(("id", data.INT64), ("name", data.OPTIONAL_STRING), name="shop.Order"),
        {"id": 1, "name": None},
        '{"schema":{"type":"struct","fields":[{"type":"int64","optional":false,"field":"id"},'
        '{"type":"string","optional":true,"field":"name"}],"optional":false,"name":"shop.Order"},'
        '"payload":{"id":1,"name":null}}',
    ),
]


@pytest.mark.parametrize(("schema", "value", "text"), TYPES, ids=[each[0].name or each[0].type for each in TYPES])
def test_json_with_schemas_is_that_of_connect(schema: Schema, value: object, text: str) -> None:
    converter = JsonConverter()
    assert converter.from_connect("t", schema, value) == text.encode()
    assert converter.to_connect("t", text.encode()) == (schema, value)


def test_json_without_schemas_is_plain() -> None:
    converter = JsonConverter(with_schemas=False)
    assert converter.to_connect("t", b'{"a":[1,2.5,null,"x"]}') == (None, {"a": [1, 2.5, None, "x"]})
    schema = data.struct(("at", data.timestamp()), ("n", Schema("float64")))
    value = {"at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "n": float("nan")}
    assert converter.from_connect("t", schema, value) == b'{"at":1000,"n":"NaN"}'
    assert converter.from_connect("t", None, None) is None


def test_numeric_decimals_keep_all_their_digits() -> None:
    converter = JsonConverter(decimal_numbers=True)
    number = Decimal("12345678901234567890.12")
    written = converter.from_connect("t", data.decimal(2), number)
    assert written is not None and written.endswith(b'"payload":12345678901234567890.12}')
    assert converter.to_connect("t", written).value == number


def test_a_default_stands_for_null_unless_the_converter_says_otherwise() -> None:
    schema = Schema("int32", optional=True, default=5)
    written = json.dumps({"schema": {"type": "int32", "optional": True, "default": 5}, "payload": None}).encode()
    assert JsonConverter().to_connect("t", written) == (schema, 5)
    assert JsonConverter(nulls_are_defaults=False).to_connect("t", written) == (schema, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{oops", "not JSON"),
        (b'{"id":1}', 'requires "schema" and "payload" fields'),
        (b'{"schema":{"type":"int8","optional":false},"payload":300}', "does not fit into int8"),
        (b'{"schema":{"type":"int32","optional":false},"payload":null}', "null is not valid"),
        (b'{"schema":{"type":"int32","optional":false},"payload":true}', "its schema says int32"),
        (b'{"schema":{"type":"bytes","optional":false},"payload":"?"}', "is not Base64"),
        (b'{"schema":{"type":"other"},"payload":1}', "unknown type 'other'"),
        (b'{"schema":{"type":"struct"},"payload":{}}', "a struct in JSON has fields"),
        (b'{"schema":{"type":"struct","fields":[{"field":"a","type":"int8"}]},"payload":{"a":"x"}}', "of field a"),
    ],
)
def test_json_that_is_not_of_its_schema_is_a_bad_record(text: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        JsonConverter().to_connect("t", text)


@pytest.mark.parametrize(
    ("name", "data_", "value"),
    [
        ("storage.StringConverter", b"text", "text"),
        ("converters.ByteArrayConverter", b"\xff", b"\xff"),
        ("converters.LongConverter", b"\0\0\0\0\0\0\0\x05", 5),
        ("converters.IntegerConverter", b"\0\0\0\x05", 5),
        ("converters.DoubleConverter", b"\x3f\xf8\0\0\0\0\0\0", 1.5),
        ("converters.BooleanConverter", b"\1", True),
    ],
)
def test_simple_converters_read_and_write(name: str, data_: bytes, value: object) -> None:
    converter, problems = converter_of("value.converter", {"value.converter": f"org.apache.kafka.connect.{name}"}, "")
    assert not problems
    found = converter.to_connect("t", data_)
    assert found.value == value and found.schema is not None and found.schema.optional
    assert converter.from_connect("t", found.schema, value) == data_
    assert converter.to_connect("t", None).value is None


def test_bytes_that_are_not_text_or_a_number_are_a_bad_record() -> None:
    for name, message in (
        ("storage.StringConverter", "not UTF-8"),
        ("converters.LongConverter", "1 bytes are not int64"),
    ):
        converter, _ = converter_of("value.converter", {"value.converter": f"org.apache.kafka.connect.{name}"}, "")
        with pytest.raises(DataError, match=message):
            converter.to_connect("t", b"\xff")


def test_a_converter_that_is_not_here_is_named() -> None:
    _, problems = converter_of("value.converter", {"value.converter": "com.example.Mine"}, "")
    assert "no converter 'com.example.Mine' here" in str(problems[0])
    given = {"value.converter": "org.apache.kafka.connect.json.JsonConverter", "value.converter.schema.enable": "false"}
    _, problems = converter_of("value.converter", given, "")
    assert "value.converter.schema.enable: JsonConverter has no such option here" in str(problems[0])
