"""Brokers that check schema ids (`barnabas.value.schema.validation`): a real broker, a real registry, confluent-kafka."""

import itertools
import json
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.schema_registry import (
    Schema,
    SchemaRegistryClient,
    record_subject_name_strategy,
    topic_record_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from barnabas.base.errors import ErrorCode
from barnabas.base.words import AlterOperation, ConfigResourceType
from barnabas.cli.local_cluster import wait_until
from barnabas.client.admin.configs import alter_configs, describe_configs
from barnabas.client.errors import BrokerRefused
from barnabas.testing import Cluster
from barnabas.wire import frame
from barnabas.wire.codec import decode
from barnabas.wire.compression import Codec
from barnabas.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from barnabas.wire.record_batch import CRC_AT, compute_crc
from barnabas.wire.records import BatchBuilder
from tests.scenarios.registry.conftest import DEADLINE_S, config_for, running

VALUES = "barnabas.value.schema.validation"
KEYS = "barnabas.key.schema.validation"
STRATEGY = "barnabas.value.subject.name.strategy"
URL = "barnabas.schema.registry.url"
USER = json.dumps(
    {"type": "record", "name": "User", "namespace": "shop", "fields": [{"name": "name", "type": "string"}]}
)
PAGE = json.dumps({"title": "Page", "type": "object", "properties": {"path": {"type": "string"}}})
_numbers = itertools.count(1)

Topic = Callable[..., str]


@pytest.fixture(scope="module")
def checking() -> Iterator[Cluster]:
    with Cluster(brokers=1, schema_registry=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(checking: Cluster) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": checking.schema_registry_url}) as client:
        yield client


@pytest.fixture
def topic(checking: Cluster) -> Topic:
    """New topics whose values are checked."""

    def new(**settings: str) -> str:
        name = f"checked-{next(_numbers)}"
        checking.create_topic(
            name, config={VALUES: "true", **{key.replace("_", "."): on for key, on in settings.items()}}
        )
        return name

    return new


def produce(checking: Cluster, topic: str, *values: bytes | None, key: bytes | None = b"k", **more: Any) -> str | None:
    """What became of the last value, which goes in one batch with the others: None where it was taken."""
    producer = Producer({"bootstrap.servers": checking.bootstrap, "linger.ms": 50, **more})
    errors: list[Any] = []
    for value in values:
        producer.produce(topic, value, key, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(DEADLINE_S) == 0
    return errors[-1] and errors[-1].name()


def framed(schema_id: int, payload: bytes = b"x") -> bytes:
    return struct.pack(">bi", 0, schema_id) + payload


def batch_of(*values: bytes | None, key: bytes | None = b"k", codec: Codec = Codec.NONE, **identity: int) -> bytes:
    builder = BatchBuilder(codec=codec, **identity)
    for value in values:
        builder.append(key, value, timestamp=1)
    return builder.build()


def send_batch(peer: socket.socket, topic: str, records: bytes, acks: int) -> PartitionProduceResponse:
    """One batch to partition 0, and what the broker says of it."""
    topics = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=records)])]
    request = ProduceRequest(acks=acks, timeout_ms=5_000, topic_data=topics)
    peer.sendall(frame.encode_request(request, 9, 1, "raw"))
    with peer.makefile("rb") as stream:
        size = stream.read(4)
        if len(size) < 4:
            raise ConnectionResetError("the broker closed the connection")
        answer = stream.read(struct.unpack(">i", size)[0])
    _, at = frame.parse_response_header(request.API_KEY, 9, answer)
    return decode(ProduceResponse, answer, 9, at).responses[0].partition_responses[0]


def answer_to(checking: Cluster, topic: str, records: bytes, acks: int = 1) -> PartitionProduceResponse:
    host, _, port = checking.bootstrap.partition(":")
    with socket.create_connection((host, int(port)), DEADLINE_S) as peer:
        return send_batch(peer, topic, records, acks)


def set_config(checking: Cluster, kind: ConfigResourceType, name: str, setting: str, value: str) -> None:
    checking.ask(lambda client: alter_configs(client, kind, name, {setting: (AlterOperation.SET, value)}))


def set_url(checking: Cluster, url: str) -> None:
    """Until the broker knows it."""
    resource = (ConfigResourceType.BROKER, "1")
    set_config(checking, ConfigResourceType.BROKER, "", URL, url)

    def is_known() -> bool:
        entries = checking.ask(lambda client: describe_configs(client, [resource]))[resource]
        return any(entry.name == URL and entry.value == url for entry in entries)

    wait_until(is_known, DEADLINE_S, what="the registry's new address")


@contextmanager
def registry_at(checking: Cluster, url: str) -> Iterator[None]:
    set_url(checking, url)
    try:
        yield
    finally:
        set_url(checking, checking.schema_registry_url)


# -- what is taken, and what is not -----------------------------------------------------------------------------------------


def protobuf_class(package: str) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    outer = file.message_type.add(name="Other")
    outer.nested_type.add(name="Inner").field.add(name="x", number=1, type=5, label=1)
    file.message_type.add(name="Order").field.add(name="count", number=1, type=5, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Order"))


def serializers(client: SchemaRegistryClient, package: str, **more: Any) -> Iterator[tuple[Any, Any]]:
    yield AvroSerializer(client, USER, conf=more), {"name": "ann"}
    yield JSONSerializer(PAGE, client, conf=more), {"path": "/"}
    order = protobuf_class(package)
    yield ProtobufSerializer(order, client, {"use.deprecated.format": False, **more}), order(count=2)


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        (None, "TopicNameStrategy"),
        (record_subject_name_strategy, "RecordNameStrategy"),
        (topic_record_subject_name_strategy, "io.confluent.kafka.serializers.subject.TopicRecordNameStrategy"),
    ],
    ids=["topic", "record", "topic-record"],
)
@pytest.mark.parametrize("number", [0, 1, 2], ids=["avro", "json", "protobuf"])
def test_records_of_confluents_serializers_are_accepted(
    checking: Cluster, client: SchemaRegistryClient, topic: Topic, strategy: Any, name: str, number: int
) -> None:
    checked = topic(**{STRATEGY: name})
    more = {} if strategy is None else {"subject.name.strategy": strategy}
    serialize, value = list(serializers(client, checked.replace("-", "_"), **more))[number]
    data = serialize(value, SerializationContext(checked, MessageField.VALUE))
    assert produce(checking, checked, data, data) is None
    if strategy is not None:  # the same schema elsewhere does not help
        other = topic()
        assert produce(checking, other, data) == "INVALID_RECORD"


def test_unknown_id_is_refused_and_the_answer_says_which_record_it_was(
    checking: Cluster, client: SchemaRegistryClient, topic: Topic
) -> None:
    checked = topic()
    good = client.register_schema(f"{checked}-value", Schema(USER, "AVRO"))
    elsewhere = client.register_schema(f"{checked}-other", Schema(PAGE, "JSON"))
    records = batch_of(framed(good), framed(77_777), b"no", None, framed(good), framed(elsewhere))
    answer = answer_to(checking, checked, records)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert answer.base_offset == -1
    found = [(error.batch_index, error.batch_index_error_message) for error in answer.record_errors]
    assert found == [(2, f"The value does not begin with a schema id in topic partition {checked}-0")]
    answer = answer_to(checking, checked, batch_of(framed(good), framed(77_777), None, framed(elsewhere)))
    found = [(error.batch_index, error.batch_index_error_message) for error in answer.record_errors]
    assert found == [
        (
            number,
            f"Schema id {schema_id} of the value is not registered under subject {checked}-value in topic partition "
            f"{checked}-0",
        )
        for number, schema_id in ((1, 77_777), (3, elsewhere))
    ]
    assert "2 record errors in total" in (answer.error_message or "")
    assert answer_to(checking, checked, batch_of(framed(good), None)).base_offset == 0, "nothing was written before"


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.label)
def test_compressed_batches_small_and_large_are_looked_into(
    checking: Cluster, client: SchemaRegistryClient, topic: Topic, codec: Codec
) -> None:
    checked = topic()
    good = framed(client.register_schema(f"{checked}-value", Schema(USER, "AVRO")), b"payload " * 30)
    for count in (3, 3_000):
        assert answer_to(checking, checked, batch_of(*[good] * count, codec=codec)).error_code == 0
        answer = answer_to(checking, checked, batch_of(*[good] * count, framed(5), codec=codec))
        assert answer.error_code == ErrorCode.INVALID_RECORD
        assert [error.batch_index for error in answer.record_errors] == [count]


def test_records_that_cannot_be_read_are_refused(checking: Cluster, topic: Topic) -> None:
    checked = topic()
    garbage = bytearray(batch_of(framed(1)))
    garbage[-20:] = b"these bytes are none"
    struct.pack_into(">I", garbage, CRC_AT, compute_crc(garbage, 0, len(garbage) - 12))
    assert answer_to(checking, checked, bytes(garbage)).error_code == ErrorCode.INVALID_RECORD
    flipped = bytearray(batch_of(framed(1)))
    flipped[-1] ^= 1
    assert answer_to(checking, checked, bytes(flipped)).error_code == ErrorCode.CORRUPT_MESSAGE, "clients send it again"


def test_unknown_id_without_acks_closes_the_connection(
    checking: Cluster, client: SchemaRegistryClient, topic: Topic
) -> None:
    checked = topic()
    good = client.register_schema(f"{checked}-value", Schema(USER, "AVRO"))
    host, _, port = checking.bootstrap.partition(":")
    with socket.create_connection((host, int(port)), DEADLINE_S) as peer:
        assert send_batch(peer, checked, batch_of(framed(good)), 1).base_offset == 0
        with pytest.raises(ConnectionResetError):
            send_batch(peer, checked, batch_of(framed(88_888)), 0)
    assert answer_to(checking, checked, batch_of(framed(good))).base_offset == 1


def test_keys_are_checked_where_the_topic_says_so(checking: Cluster, client: SchemaRegistryClient) -> None:
    name = f"keys-{next(_numbers)}"
    checking.create_topic(name, config={KEYS: "true"})
    good = client.register_schema(f"{name}-key", Schema('"string"', "AVRO"))
    assert produce(checking, name, b"anything", key=framed(good)) is None
    assert produce(checking, name, b"anything", key=None) is None
    assert produce(checking, name, b"anything", key=b"plain") == "INVALID_RECORD"


def test_subject_behind_an_alias_counts(checking: Cluster, client: SchemaRegistryClient, topic: Topic) -> None:
    checked = topic()
    good = client.register_schema(f"{checked}-real", Schema(USER, "AVRO"))
    address = f"{checking.schema_registry_url}/config/{checked}-value"
    httpx.put(address, json={"alias": f"{checked}-real"}, trust_env=False).raise_for_status()
    assert produce(checking, checked, framed(good)) is None


def test_schema_that_is_registered_after_a_refusal_is_taken_soon(
    checking: Cluster, client: SchemaRegistryClient, topic: Topic
) -> None:
    checked = topic()
    schema = Schema(json.dumps({"type": "enum", "name": f"E{next(_numbers)}", "symbols": ["A"]}), "AVRO")
    expected = client.register_schema(f"{checked}-elsewhere", schema)
    assert produce(checking, checked, framed(expected)) == "INVALID_RECORD"
    assert client.register_schema(f"{checked}-value", schema) == expected
    wait_until(lambda: produce(checking, checked, framed(expected)) is None, DEADLINE_S, what="the id to be known")


# -- producers ------------------------------------------------------------------------------------------------------------


def test_refused_batch_uses_no_sequence_number(checking: Cluster, client: SchemaRegistryClient, topic: Topic) -> None:
    checked = topic()
    good = client.register_schema(f"{checked}-value", Schema(USER, "AVRO"))
    host, _, port = checking.bootstrap.partition(":")
    producer = {"producer_id": 4_000_000, "producer_epoch": 0}
    with socket.create_connection((host, int(port)), DEADLINE_S) as peer:
        assert send_batch(peer, checked, batch_of(framed(good), base_sequence=0, **producer), -1).base_offset == 0
        refused = send_batch(peer, checked, batch_of(framed(99_999), base_sequence=1, **producer), -1)
        assert refused.error_code == ErrorCode.INVALID_RECORD
        assert send_batch(peer, checked, batch_of(framed(good), base_sequence=1, **producer), -1).base_offset == 1
        again = send_batch(peer, checked, batch_of(framed(good), base_sequence=1, **producer), -1)
        assert again.base_offset == 1, "a duplicate is one"


def test_transaction_with_unknown_and_then_known_schemas(
    checking: Cluster, client: SchemaRegistryClient, topic: Topic
) -> None:
    checked = topic()
    good = client.register_schema(f"{checked}-value", Schema(USER, "AVRO"))
    producer = Producer({"bootstrap.servers": checking.bootstrap, "transactional.id": checked})
    producer.init_transactions(DEADLINE_S)
    committed = False
    for value in (framed(66_666), *[framed(good, b"committed")] * 2):
        producer.begin_transaction()
        producer.produce(checked, value)
        try:
            producer.commit_transaction(DEADLINE_S)
        except KafkaException as error:  # librdkafka skips the refused sequence once, and raises its epoch then
            assert error.args[0].txn_requires_abort(), error
            producer.abort_transaction(DEADLINE_S)
        else:
            committed = True
            assert value == framed(good, b"committed")
            break
    assert committed
    assert [record.value for record in checking.records(checked)] == [framed(good, b"committed")]


# -- settings -------------------------------------------------------------------------------------------------------------


def test_topic_is_checked_from_when_the_tool_says_so_and_until_it_says_otherwise(
    checking: Cluster, client: SchemaRegistryClient
) -> None:
    name = f"live-{next(_numbers)}"
    checking.create_topic(name)
    assert produce(checking, name, b"plain") is None

    def configs(*arguments: str) -> None:
        tool = [sys.executable, "-m", "barnabas", "configs", "--bootstrap-server", checking.bootstrap]
        entity = ["--alter", "--entity-type", "topics", "--entity-name", name]
        subprocess.run([*tool, *entity, *arguments], check=True, capture_output=True, timeout=DEADLINE_S)

    configs("--add-config", f"{VALUES}=true")
    wait_until(lambda: produce(checking, name, b"plain") == "INVALID_RECORD", DEADLINE_S, what="the check")
    configs("--delete-config", VALUES)
    wait_until(lambda: produce(checking, name, b"plain") is None, DEADLINE_S, what="the end of the check")


def test_setting_without_a_registry_is_refused(cluster: Cluster) -> None:
    with pytest.raises(BrokerRefused, match=URL) as refused:
        cluster.create_topic(f"no-registry-{next(_numbers)}", config={VALUES: "true"})
    assert refused.value.code is ErrorCode.INVALID_CONFIG


def test_misspelt_strategy_and_address_are_refused(checking: Cluster) -> None:
    with pytest.raises(BrokerRefused, match="TopicNameStrategy"):
        checking.create_topic(f"odd-{next(_numbers)}", config={STRATEGY: "TopicStrategy"})
    with pytest.raises(BrokerRefused, match="http"):
        set_config(checking, ConfigResourceType.BROKER, "", URL, "localhost:8081")


# -- without the registry ---------------------------------------------------------------------------------------------------


def test_while_the_registry_is_away_known_ids_are_taken_and_others_come_again(checking: Cluster, topic: Topic) -> None:
    checked = topic()
    config = config_for(checking)
    with running(config) as registry, registry_at(checking, registry.url):
        good = registry.register(f"{checked}-value", USER)["id"]
        assert answer_to(checking, checked, batch_of(framed(good))).error_code == 0
        registry.stop()
        assert answer_to(checking, checked, batch_of(framed(good))).error_code == 0, "it is known"
        answer = answer_to(checking, checked, batch_of(framed(good + 1)))
        assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS, "retriable: clients send it again"
        assert "cannot ask the schema registry" in (answer.error_message or "")
    producer = Producer({"bootstrap.servers": checking.bootstrap})
    errors: list[Any] = []
    with running(config) as registry:
        registry.put(f"/config/{checked}-value", {"compatibility": "NONE"})
        new = registry.register(f"{checked}-value", PAGE, schemaType="JSON")["id"]
        closed = socket.socket()
        closed.bind(("127.0.0.1", 0))  # and does not listen
        with closed, registry_at(checking, f"http://127.0.0.1:{closed.getsockname()[1]}"):
            producer.produce(checked, framed(new), on_delivery=lambda error, _: errors.append(error))
            before = checking.log(1).count("does not answer about schema")
            wait_until(
                lambda: producer.poll(0.1) == 0 and checking.log(1).count("does not answer about schema") > before,
                DEADLINE_S,
                what="the unanswered question",
            )
            assert not errors
            set_url(checking, registry.url)
            assert producer.flush(DEADLINE_S) == 0
        assert errors == [None], "the producer tried again by itself"


def test_answers_of_another_server_are_not_taken_for_a_registrys(checking: Cluster, topic: Topic) -> None:
    """A wrong address must not look like "not registered": that would be final."""
    checked = topic()
    with registry_at(checking, f"{checking.schema_registry_url}/not/here"):
        answer = answer_to(checking, checked, batch_of(framed(1)))
        assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
