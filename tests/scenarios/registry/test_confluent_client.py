"""confluent-kafka-python against the registry: its client, and its serializers of all three formats."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient, topic_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.schema_registry.schema_registry_client import (
    ConfigCompatibilityLevel,
    Metadata,
    MetadataProperties,
    Rule,
    RuleKind,
    RuleMode,
    RuleParams,
    RuleSet,
    ServerConfig,
)
from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tests.scenarios.registry.conftest import Registry

Subject = Callable[[], str]

USER = {
    "type": "record",
    "name": "User",
    "namespace": "shop",
    "fields": [{"name": "name", "type": "string"}, {"name": "age", "type": "int"}],
}


@pytest.fixture(scope="session")
def client(registry: Registry) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry.url}) as client:
        yield client


def test_subjects_versions_and_ids(client: SchemaRegistryClient, subject: Subject) -> None:
    name = subject()
    schema = Schema(json.dumps(USER), "AVRO")
    schema_id = client.register_schema(name, schema)
    assert client.register_schema(name, schema) == schema_id
    assert name in client.get_subjects()
    assert client.get_versions(name) == [1]
    registered = client.get_latest_version(name)
    assert (registered.subject, registered.version, registered.schema_id) == (name, 1, schema_id)
    assert registered.schema.schema_type == "AVRO"
    assert json.loads(client.get_schema(schema_id).schema_str) == USER
    assert client.lookup_schema(name, schema).schema_id == schema_id
    assert client.get_version(name, 1).guid == registered.guid
    assert json.loads(client.get_schema_by_guid(registered.guid).schema_str) == USER
    assert client.delete_subject(name) == [1]
    with pytest.raises(SchemaRegistryError) as refused:
        client.get_versions(name)
    assert (refused.value.http_status_code, refused.value.error_code) == (404, 40401)
    assert client.delete_subject(name, permanent=True) == [1]


def test_levels_and_checks(client: SchemaRegistryClient, subject: Subject) -> None:
    name = subject()
    client.register_schema(name, Schema(json.dumps(USER), "AVRO"))
    more = {**USER, "fields": [*USER["fields"], {"name": "x", "type": "int"}]}  # type: ignore[misc]
    assert client.test_compatibility(name, Schema(json.dumps(more), "AVRO")) is False
    client.set_compatibility(name, "NONE")
    assert client.get_compatibility(name) == "NONE"
    assert client.test_compatibility(name, Schema(json.dumps(more), "AVRO")) is True
    client.set_config(name, ServerConfig(compatibility=ConfigCompatibilityLevel.BACKWARD))
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema(name, Schema(json.dumps(more), "AVRO"))
    assert refused.value.http_status_code == 409


def test_rules_and_metadata_come_back(client: SchemaRegistryClient, subject: Subject) -> None:
    name = subject()
    rule = Rule(
        name="check",
        doc=None,
        kind=RuleKind.CONDITION,
        mode=RuleMode.WRITE,
        type="CEL",
        tags=["PII"],
        params=RuleParams({"a": "b"}),
        expr="message.age > 1",
        on_success=None,
        on_failure="ERROR",
        disabled=False,
    )
    schema = Schema(
        json.dumps(USER),
        "AVRO",
        metadata=Metadata(tags=None, properties=MetadataProperties({"owner": "me"}), sensitive=None),
        rule_set=RuleSet(None, [rule]),
    )
    client.register_schema(name, schema)
    found = client.get_latest_version(name).schema
    assert found.metadata is not None and found.metadata.properties is not None
    assert found.metadata.properties.properties == {"owner": "me"}
    assert found.rule_set is not None and found.rule_set.domain_rules is not None
    (kept,) = found.rule_set.domain_rules
    assert (kept.name, kept.kind, kept.expr, kept.on_failure) == (
        "check",
        RuleKind.CONDITION,
        "message.age > 1",
        "ERROR",
    )
    assert client.get_latest_with_metadata(name, {"owner": "me"}).version == 1


# -- serializers ------------------------------------------------------------------------------------------------------------


def _value_of(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


def test_avro_is_written_and_read_by_a_newer_reader(client: SchemaRegistryClient, subject: Subject) -> None:
    topic = subject()
    write = AvroSerializer(client, json.dumps(USER))
    data = write({"name": "ann", "age": 3}, _value_of(topic))
    assert data is not None and data[0] == 0
    newer = {**USER, "fields": [*USER["fields"], {"name": "x", "type": "string", "default": "?"}]}  # type: ignore[misc]
    read = AvroDeserializer(client, json.dumps(newer))
    assert read(data, _value_of(topic)) == {"name": "ann", "age": 3, "x": "?"}
    assert client.get_versions(topic_subject_name_strategy(_value_of(topic), None)) == [1]


def test_avro_with_a_reference(client: SchemaRegistryClient, subject: Subject) -> None:
    topic, users = subject(), subject()
    client.register_schema(users, Schema(json.dumps(USER), "AVRO"))
    order = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "by", "type": "shop.User"}]}
    schema = Schema(json.dumps(order), "AVRO", [SchemaReference("shop.User", users, 1)])
    data = AvroSerializer(client, schema)({"by": {"name": "ann", "age": 3}}, _value_of(topic))
    assert AvroDeserializer(client)(data, _value_of(topic)) == {"by": {"name": "ann", "age": 3}}


def test_json_is_checked_against_the_schema(client: SchemaRegistryClient, subject: Subject) -> None:
    topic = subject()
    schema = json.dumps(
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "title": "User",
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["name"],
            "additionalProperties": False,
        }
    )
    write = JSONSerializer(schema, client)
    data = write({"name": "ann", "age": 3}, _value_of(topic))
    assert JSONDeserializer(None, schema_registry_client=client)(data, _value_of(topic)) == {"name": "ann", "age": 3}
    with pytest.raises(SerializationError):
        write({"age": "three"}, _value_of(topic))
    assert client.get_latest_version(f"{topic}-value").schema.schema_type == "JSON"


def test_json_with_a_reference(client: SchemaRegistryClient, subject: Subject) -> None:
    topic, names = subject(), subject()
    client.register_schema(names, Schema('{"type":"string","minLength":2}', "JSON"))
    user = {"type": "object", "properties": {"name": {"$ref": "name.json"}}, "additionalProperties": False}
    schema = Schema(json.dumps(user), "JSON", [SchemaReference("name.json", names, 1)])
    write = JSONSerializer(schema, client)
    assert write({"name": "ann"}, _value_of(topic)) is not None
    with pytest.raises(SerializationError):
        write({"name": "a"}, _value_of(topic))


def _messages(package: str) -> tuple[Any, Any]:
    """Two files, one of which imports the other: what protoc would have made."""
    users, orders = descriptor_pb2.FileDescriptorProto(), descriptor_pb2.FileDescriptorProto()
    users.name, users.package, users.syntax = f"{package}/user.proto", package, "proto3"
    user = users.message_type.add(name="User")
    user.field.add(name="name", number=1, type=9, label=1, json_name="name")
    orders.name, orders.package, orders.syntax = f"{package}/order.proto", package, "proto3"
    orders.dependency.append(users.name)
    order = orders.message_type.add(name="Order")
    order.field.add(name="by", number=1, type=11, type_name=f".{package}.User", label=1, json_name="by")
    order.field.add(name="count", number=2, type=5, label=1, json_name="count")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(users)
    pool.Add(orders)
    make = message_factory.GetMessageClass
    return (
        make(pool.FindMessageTypeByName(f"{package}.User")),
        make(pool.FindMessageTypeByName(f"{package}.Order")),
    )


def test_protobuf_with_an_import_is_written_and_read(
    registry: Registry, client: SchemaRegistryClient, subject: Subject
) -> None:
    topic = subject()
    package = topic.replace("-", "_")
    user_class, order_class = _messages(package)
    write = ProtobufSerializer(order_class, client, {"use.deprecated.format": False})
    data = write(order_class(by=user_class(name="ann"), count=2), _value_of(topic))
    read = ProtobufDeserializer(order_class, {"use.deprecated.format": False}, client)
    found = read(data, _value_of(topic))
    assert (found.by.name, found.count) == ("ann", 2)
    registered = client.get_latest_version(f"{topic}-value").schema
    assert registered.schema_type == "PROTOBUF"
    assert registered.schema_str.startswith('syntax = "proto3";')
    assert [reference.name for reference in registered.references] == [f"{package}/user.proto"]
    assert client.get_latest_version(f"{package}/user.proto").schema.schema_type == "PROTOBUF"
    with SchemaRegistryClient({"url": registry.url}) as stranger:  # it has not registered: it asks for descriptors
        read = ProtobufDeserializer(order_class, {"use.deprecated.format": False}, stranger)
        assert read(data, _value_of(topic)).by.name == "ann"
