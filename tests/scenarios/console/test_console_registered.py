"""Records that Confluent's serializers wrote by a schema registry, as the console shows and filters them."""

import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.timestamp_pb2 import Timestamp

from barnabas.testing import Cluster
from tests.scenarios.console.conftest import DEADLINE_S, Console
from tests.scenarios.console.conftest import running as running_console
from tests.scenarios.console.test_console_messages import events
from tests.scenarios.registry.conftest import Registry, config_for
from tests.scenarios.registry.conftest import running as running_registry

AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
            {"name": "amount", "type": "double"},
            {"name": "blob", "type": "bytes"},
            {"name": "when", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        ],
    }
)
JSON_SCHEMA = json.dumps({"title": "Order", "type": "object", "properties": {"amount": {"type": "number"}}})


@pytest.fixture(scope="module")
def registry(cluster: Cluster) -> Iterator[Registry]:
    with running_registry(config_for(cluster)) as registry:
        yield registry


@pytest.fixture(scope="module")
def registry_console(cluster: Cluster, registry: Registry) -> Iterator[Console]:
    with running_console(cluster, read_write=True, schema_registry=registry.url) as console:
        yield console


@pytest.fixture(scope="module")
def client(registry: Registry) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry.url}) as client:
        yield client


def send(cluster: Cluster, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for value in values:
        producer.produce(topic, value=value)
    assert producer.flush(DEADLINE_S) == 0


def only(console: Console, topic: str, **query: Any) -> dict[str, Any]:
    (record,) = console.get(f"/api/topics/{topic}/messages", **query)["records"]
    return dict(record["value"])


def test_avro_is_decoded_and_filtered_by_its_fields(
    registry_console: Console, cluster: Cluster, client: SchemaRegistryClient, topic: Callable[..., str]
) -> None:
    name = topic()
    serialize, context = AvroSerializer(client, AVRO), SerializationContext(name, MessageField.VALUE)
    order = {"id": UUID(int=7), "amount": 150.0, "blob": b"\x01\x02", "when": 1_700_000_000_000}
    send(cluster, name, [serialize(order, context), serialize(order | {"amount": 5.0}, context)])
    path = f"/api/topics/{name}/search"
    found = events(registry_console, path, filter="value.amount > 100.0")["records"]
    assert len(found) == 1 and found[0]["value"]["format"] == "avro" and "schema" in found[0]["value"]["note"]
    assert json.loads(found[0]["value"]["text"]) == {
        "id": "00000000-0000-0000-0000-000000000007",
        "amount": 150.0,
        "blob": "0102",
        "when": "2023-11-14T22:13:20+00:00",
    }


def test_avro_with_a_schema_that_it_refers_to(
    registry_console: Console, cluster: Cluster, client: SchemaRegistryClient, topic: Callable[..., str]
) -> None:
    name = topic()
    city = json.dumps({"type": "record", "name": "City", "fields": [{"name": "name", "type": "string"}]})
    client.register_schema(f"{name}-city", Schema(city, "AVRO"))
    shop = json.dumps({"type": "record", "name": "Shop", "fields": [{"name": "city", "type": "City"}]})
    schema = Schema(shop, "AVRO", [SchemaReference("City", f"{name}-city", 1)])
    serialize = AvroSerializer(client, schema)
    send(cluster, name, [serialize({"city": {"name": "Jena"}}, SerializationContext(name, MessageField.VALUE))])
    assert json.loads(only(registry_console, name)["text"]) == {"city": {"name": "Jena"}}


def test_protobuf_is_decoded(
    registry_console: Console, cluster: Cluster, client: SchemaRegistryClient, topic: Callable[..., str]
) -> None:
    name = topic()
    serialize = ProtobufSerializer(Timestamp, client, {"use.deprecated.format": False})
    message = Timestamp(seconds=12, nanos=5)
    send(cluster, name, [serialize(message, SerializationContext(name, MessageField.VALUE))])
    shown = only(registry_console, name)
    assert shown["format"] == "protobuf" and "12" in shown["text"]


def test_json_by_a_schema_is_decoded(
    registry_console: Console, cluster: Cluster, client: SchemaRegistryClient, topic: Callable[..., str]
) -> None:
    name = topic()
    serialize = JSONSerializer(JSON_SCHEMA, client)
    send(cluster, name, [serialize({"amount": 3}, SerializationContext(name, MessageField.VALUE))])
    shown = only(registry_console, name)
    assert shown["format"] == "json schema" and json.loads(shown["text"]) == {"amount": 3}


def test_schema_that_is_not_known_leaves_the_bytes_and_says_why(
    registry_console: Console, console: Console, cluster: Cluster, topic: Callable[..., str]
) -> None:
    name = topic()
    send(cluster, name, [b"\0\0\x0f\xff\xff\x01\x02\x03"])
    shown = only(registry_console, name)
    assert shown["format"] == "hex" and "schema 1048575" in shown["note"] and "not found" in shown["note"]
    without = only(console, name, value="registry")
    assert without["format"] == "hex" and "--schema-registry" in without["note"]
