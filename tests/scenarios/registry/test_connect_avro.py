"""Connect's AvroConverter on a real registry, beside Confluent's own serializer and deserializer."""

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from barnabas.spark.connect import data
from barnabas.spark.connect.converters.base import Converter
from barnabas.spark.connect.converters.table import converter_of
from barnabas.spark.connect.data import DataError, Schema
from tests.scenarios.registry.conftest import Registry

AVRO = "io.confluent.connect.avro.AvroConverter"


def converter(registry: Registry, **more: str) -> Converter:
    config = {"value.converter": AVRO, "value.converter.schema.registry.url": registry.url}
    made, problems = converter_of("value.converter", config | {f"value.converter.{k}": v for k, v in more.items()}, "")
    assert not problems
    return made


ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "item", "type": ["null", "string"], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "number", "type": "int", "default": 7},
    ],
}
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
VALUE: dict[str, Any] = {
    "id": 1,
    "item": None,
    "kind": "B",
    "price": Decimal("1.50"),
    "day": date(2026, 1, 2),
    "at": AT,
    "tags": ["x"],
    "counts": {"a": 1},
    "number": 3,
}


def test_records_of_confluents_serializer_are_read_with_their_schema(registry: Registry) -> None:
    context = SerializationContext("connect-orders", MessageField.VALUE)
    with SchemaRegistryClient({"url": registry.url}) as client:
        written = AvroSerializer(client, json.dumps(ORDER))(VALUE, context)
    found = converter(registry).to_connect("connect-orders", written)
    assert found.value == VALUE
    assert found.schema == data.struct(
        ("id", data.INT64),
        ("item", data.OPTIONAL_STRING),
        ("kind", data.STRING),
        ("price", data.decimal(2)),
        ("day", data.day()),
        ("at", data.timestamp()),
        ("tags", data.array(data.STRING)),
        ("counts", data.mapping(data.STRING, data.INT32)),
        ("number", Schema("int32", default=7)),
        name="shop.Order",
    )


def test_records_of_the_converter_are_read_by_confluents_deserializer(registry: Registry) -> None:
    schema = data.struct(
        ("id", data.INT64),
        ("small", Schema("int8")),
        ("price", data.decimal(2)),
        ("day", data.day(optional=True)),
        ("time", data.time_of_day()),
        ("at", data.timestamp()),
        ("inner", data.struct(("a", data.OPTIONAL_STRING), optional=True, name="shop.Inner")),
        name="shop.Row",
    )
    value = {
        "id": 1, "small": 5, "price": Decimal("1.50"), "day": None, "time": time(4, 5), "at": AT, "inner": {"a": "x"},
    }  # fmt: skip
    ours = converter(registry)
    written = ours.from_connect("connect-rows", schema, value)
    assert ours.to_connect("connect-rows", written) == (schema, value)
    context = SerializationContext("connect-rows", MessageField.VALUE)
    with SchemaRegistryClient({"url": registry.url}) as client:
        assert AvroDeserializer(client)(written or b"", context) == value
    registered = json.loads(registry.get("/subjects/connect-rows-value/versions/latest")["schema"])
    assert registered["connect.name"] == "shop.Row"
    assert registered["fields"][1]["type"] == {"type": "int", "connect.type": "int8"}


def test_primitives_and_nulls_are_written_as_connect_writes_them(registry: Registry) -> None:
    ours = converter(registry)
    assert ours.from_connect("connect-plain", None, None) is None
    assert ours.to_connect("connect-plain", None).value is None
    written = ours.from_connect("connect-plain", data.STRING, "x")
    assert written is not None and written[5:] == b"\x02x"
    assert ours.to_connect("connect-plain", written) == (data.STRING, "x")


@pytest.mark.parametrize(
    ("given", "message"),
    [(b"plain", "not Avro of a registered schema"), (b"\0\0\0\xff\xff1", "not Avro of a registered")],
)
def test_bytes_that_are_not_of_the_registry_are_a_bad_record(registry: Registry, given: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        converter(registry).to_connect("t", given)


def test_a_schema_that_must_be_there_is_not_registered(registry: Registry) -> None:
    registry.register("connect-known-value", json.dumps("string"))
    ours = converter(registry, **{"auto.register.schemas": "false"})
    written = ours.from_connect("connect-known", data.STRING, "x")
    assert written is not None
    assert registry.get("/subjects/connect-known-value/versions") == [1]
