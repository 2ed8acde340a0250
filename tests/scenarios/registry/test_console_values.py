"""`console-producer` and `console-consumer` with --schema-registry, and Confluent's serializers on the other side."""

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

from barnabas.cli.main import app
from barnabas.testing import Cluster
from tests.scenarios.registry.conftest import DEADLINE_S, Registry
from tests.support.command_line import CliRunner

Run = Callable[..., tuple[str, str]]
NUMBERS = count()

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "raw", "type": "bytes", "default": "\u00ff"},
        {"name": "what", "type": [{"type": "enum", "name": "Kind", "symbols": ["A", "B"]}, "long"], "default": "A"},
    ],
}
PROTO = 'syntax = "proto3"; package shop; message Order { int64 id = 1; string name = 2; repeated string tags = 3; }'
JSON_SCHEMA = {"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}}


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = f"console-values-{next(NUMBERS)}"
    cluster.create_topic(name)
    return name


@pytest.fixture
def run(cluster: Cluster, registry: Registry) -> Run:
    """Run a tool as a process, and return its output and its errors."""

    def run(name: str, *arguments: str, stdin: str | None = None, status: int = 0) -> tuple[str, str]:
        reach = ["--bootstrap-server", cluster.bootstrap, "--schema-registry", registry.url]
        command = [sys.executable, "-m", "barnabas", name, *reach, *arguments]
        done = subprocess.run(
            command, input=stdin or "", capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        assert done.returncode == status, done.stderr
        return done.stdout, done.stderr

    return run


def received(cluster: Cluster, topic: str, count: int) -> list[tuple[Any, bytes]]:
    """Return keys and values, as librdkafka reads them."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    try:
        found = consumer.consume(count, DEADLINE_S)
        return [(message.key(), message.value()) for message in found]
    finally:
        consumer.close()


def register(registry: Registry, subject: str, kind: str, text: str) -> None:
    with SchemaRegistryClient({"url": registry.url}) as client:
        client.register_schema(subject, Schema(text, kind))


def test_avro_goes_in_and_out(cluster: Cluster, registry: Registry, run: Run, topic: str) -> None:
    register(registry, f"{topic}-value", "AVRO", json.dumps(ORDER))
    lines = [
        {
            "id": 1,
            "price": "12.50",
            "at": "2026-11-19T20:00:00Z",
            "note": {"string": "named"},
            "raw": "\u0001ÿ",
            "what": 7,
        },
        {"id": 2, "price": 3, "at": 1_000, "note": "plain"},
    ]
    run("console-producer", "--topic", topic, stdin="".join(json.dumps(line) + "\n" for line in lines))
    with SchemaRegistryClient({"url": registry.url}) as client:
        decode = AvroDeserializer(client)
        context = SerializationContext(topic, MessageField.VALUE)
        decoded = [decode(value, context) for _, value in received(cluster, topic, 2)]
    assert decoded[0]["note"] == "named" and decoded[0]["raw"] == b"\x01\xff" and decoded[0]["what"] == 7
    assert decoded[1]["raw"] == b"\xff" and decoded[1]["what"] == "A"
    assert (str(decoded[0]["price"]), str(decoded[1]["price"])) == ("12.50", "3.00")
    out, _ = run("console-consumer", "--topic", topic, "--from-beginning", "--max-messages", "2")
    shown = [json.loads(line) for line in out.splitlines()]
    assert shown[0] == {
        "id": 1, "price": "12.50", "at": "2026-11-19T20:00:00+00:00", "note": "named", "raw": "\u0001ÿ", "what": 7,
    }  # fmt: skip
    # What the consumer prints, the producer takes.
    run("console-producer", "--topic", topic, stdin=out)
    again, _ = run("console-consumer", "--topic", topic, "--from-beginning", "--max-messages", "4")
    assert again == out + out


def test_values_that_confluent_serialized_are_printed(
    cluster: Cluster, registry: Registry, run: Run, topic: str
) -> None:
    with SchemaRegistryClient({"url": registry.url}) as client:
        encode = AvroSerializer(client, '{"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}')
        value = encode({"x": 5}, SerializationContext(topic, MessageField.VALUE))
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce(topic, key=b"plain key", value=value)
    producer.produce(topic, key=b"k", value=b"plain value")
    producer.produce(topic, key=b"k", value=b"\0\0\0\xff\xffunknown")
    producer.flush()
    show = ["--topic", topic, "--from-beginning", "--property", "print.key=true"]
    out, _ = run("console-consumer", *show, "--max-messages", "2")
    assert out == 'plain key\t{"x":5}\nk\tplain value\n'
    _, err = run("console-consumer", *show, "--max-messages", "3", status=1)
    assert f"error: {topic}-0 offset 2: schema 65535: " in err
    out, err = run("console-consumer", *show, "--max-messages", "3", "--skip-message-on-error")
    assert out.count("\n") == 2 and "skipped" in err


def test_protobuf_goes_in_and_out(cluster: Cluster, registry: Registry, run: Run, topic: str) -> None:
    register(registry, f"{topic}-value", "PROTOBUF", PROTO)
    run("console-producer", "--topic", topic, stdin='{"id": 7, "name": "x", "tags": ["a", "b"]}\n')
    out, _ = run("console-consumer", "--topic", topic, "--from-beginning", "--max-messages", "1")
    assert json.loads(out) == {"id": "7", "name": "x", "tags": ["a", "b"]}
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=3, label=1)
    message.field.add(name="name", number=2, type=9, label=1)
    message.field.add(name="tags", number=3, type=9, label=3)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    decode = ProtobufDeserializer(kind, {"use.deprecated.format": False})
    [(_, value)] = received(cluster, topic, 1)
    decoded = decode(value, SerializationContext(topic, MessageField.VALUE))
    assert json_format.MessageToDict(decoded) == {"id": "7", "name": "x", "tags": ["a", "b"]}


def test_json_schema_and_keys_go_in_and_out(cluster: Cluster, registry: Registry, run: Run, topic: str) -> None:
    register(registry, f"{topic}-value", "JSON", json.dumps(JSON_SCHEMA))
    register(registry, f"{topic}-key", "AVRO", '"string"')
    keyed = ["--property", "parse.key=true", "--property", "null.marker=NULL"]
    run("console-producer", "--topic", topic, *keyed, stdin='"k"\t{"id": 1}\nNULL\tNULL\n')
    out, _ = run(
        "console-consumer", "--topic", topic, "--from-beginning", "--max-messages", "2", "--property", "print.key=true"
    )
    assert out == '"k"\t{"id":1}\nnull\tnull\n'
    value = received(cluster, topic, 2)[0][1]
    decode = JSONDeserializer(json.dumps(JSON_SCHEMA))
    assert decode(value, SerializationContext(topic, MessageField.VALUE)) == {"id": 1}


def test_mistakes_say_what_to_do(registry: Registry, run: Run, topic: str) -> None:
    _, err = run("console-producer", "--topic", topic, stdin="{}\n", status=1)
    assert f"error: the registry has no subject {topic}-value" in err
    register(registry, f"{topic}-value", "AVRO", json.dumps(ORDER))
    whole = {"id": 1, "price": "1.00", "at": 0}
    for line, words in {
        "{": "line 1: the value is not JSON",
        json.dumps({"price": "1.00", "at": 0}): "the field id is missing",
        json.dumps({**whole, "nota": ""}): "shop.Order has no field nota; did you mean note?",
        json.dumps({**whole, "id": "x"}): "id: 'x' is not of type long",
        json.dumps({**whole, "price": "much"}): "price: 'much' is not a decimal",
        json.dumps({**whole, "price": "1.001"}): "not as schema",
    }.items():
        _, err = run("console-producer", "--topic", topic, stdin=f"{line}\n", status=1)
        assert words in err, line


def test_registry_that_does_not_answer_is_reported(cluster: Cluster, topic: str) -> None:
    reach = ["--bootstrap-server", cluster.bootstrap, "--schema-registry", "http://127.0.0.1:1", "--topic", topic]
    result = CliRunner().invoke(app, ["console-producer", *reach], input="{}\n")
    assert result.exit_code == 1 and "no registry can be reached" in result.stderr
