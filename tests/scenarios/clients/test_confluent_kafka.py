"""librdkafka through confluent-kafka, used as by its users."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def create(bootstrap: str, topic: str, partitions: int = 1, **config: str) -> None:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    client = admin(bootstrap)
    client.create_topics([NewTopic(topic, partitions, config=settings)])[topic].result(60)


def produce(bootstrap: str, topic: str, records: list[dict[str, Any]], **config: Any) -> list[Message]:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **config})
    delivered: list[Message] = []

    def note(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        delivered.append(message)

    for record in records:
        producer.produce(topic, on_delivery=note, **record)
    assert producer.flush(60) == 0
    return delivered


def consume(bootstrap: str, topic: str, count: int, *, offset: int = OFFSET_BEGINNING, **config: Any) -> list[Message]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"{topic}-reader", "enable.auto.commit": False, **config}
    )
    partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, offset) for number in partitions])
    messages: list[Message] = []
    deadline = time.monotonic() + 60
    while len(messages) < count and time.monotonic() < deadline:
        for message in consumer.consume(count, 0.5):
            assert message.error() is None, message.error()
            messages.append(message)
    consumer.close()
    return messages


@pytest.mark.parametrize("codec", CODECS)
def test_keys_values_headers_nulls_and_timestamps_come_back(bootstrap: str, topic: str, codec: str) -> None:
    create(bootstrap, topic)
    sent: list[dict[str, Any]] = [
        {
            "key": None if n % 5 == 0 else f"key-{n}".encode(),
            "value": None if n % 7 == 0 else f"value-{n}".encode() * n,
            "headers": [("n", str(n).encode()), ("n", b"again"), ("empty", None)] if n % 2 else [],
            "timestamp": 1_700_000_000_000 + n,
        }
        for n in range(200)
    ]
    produce(bootstrap, topic, sent, **{"compression.type": codec})
    got = consume(bootstrap, topic, len(sent))
    assert [(m.key(), m.value(), m.headers() or [], m.timestamp()[1], m.offset()) for m in got] == [
        (r["key"], r["value"], r["headers"], r["timestamp"], n) for n, r in enumerate(sent)
    ]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_level_of_acknowledgement(bootstrap: str, topic: str, acks: str) -> None:
    create(bootstrap, topic)
    produce(bootstrap, topic, [{"value": str(n)} for n in range(100)], acks=acks)
    assert [m.value() for m in consume(bootstrap, topic, 100)] == [str(n).encode() for n in range(100)]


def test_records_of_one_megabyte(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic, max_message_bytes="2000000")
    values = [bytes([n]) * 1_000_000 for n in range(5)]
    produce(bootstrap, topic, [{"value": v} for v in values], **{"message.max.bytes": 2_000_000})
    assert [m.value() for m in consume(bootstrap, topic, 5, **{"fetch.message.max.bytes": 5_000_000})] == values


def test_record_that_is_too_large_is_refused(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic, max_message_bytes="1000")
    producer = Producer({"bootstrap.servers": bootstrap})
    errors: list[Any] = []
    producer.produce(topic, b"x" * 5000, on_delivery=lambda error, message: errors.append(error))
    producer.flush(60)
    assert errors[0].code() == KafkaError.MSG_SIZE_TOO_LARGE


def test_idempotent_producer_keeps_order_over_many_batches(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic, 3)
    produce(
        bootstrap,
        topic,
        [{"key": str(n % 10), "value": str(n)} for n in range(5000)],
        **{"enable.idempotence": True, "batch.num.messages": 50},
    )
    by_key: dict[bytes, list[int]] = {}
    for message in consume(bootstrap, topic, 5000):
        key, value = message.key(), message.value()
        assert key is not None and value is not None
        by_key.setdefault(key, []).append(int(value))
    assert sum(map(len, by_key.values())) == 5000
    assert all(values == sorted(values) for values in by_key.values())


def test_topic_is_created_by_the_first_write(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, [{"value": "first"}])
    assert [m.value() for m in consume(bootstrap, topic, 1)] == [b"first"]


def test_long_poll_answers_as_soon_as_a_record_comes(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic)
    # Far longer than the poll below: the answer cannot be that of a fetch that timed out.
    patient = {"fetch.wait.max.ms": 250_000, "socket.timeout.ms": 300_000}
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, **patient})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumer.poll(0.5) is None  # the fetch is waiting at the broker by now
    produce(bootstrap, topic, [{"value": "now"}], **{"linger.ms": 0})
    message = consumer.poll(60)
    assert message is not None and message.value() == b"now"
    consumer.close()


def test_seek_by_time_and_special_offsets(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic)
    base = 1_700_000_000_000
    produce(bootstrap, topic, [{"value": str(n), "timestamp": base + n * 1000} for n in range(100)])
    tp = TopicPartition(topic, 0)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    [found] = consumer.offsets_for_times([TopicPartition(topic, 0, base + 41_500)], timeout=60)
    assert found.offset == 42
    [past_the_end] = consumer.offsets_for_times([TopicPartition(topic, 0, base + 10_000_000)], timeout=60)
    assert past_the_end.offset in (-1, 100)
    assert consumer.get_watermark_offsets(tp, timeout=60) == (0, 100)
    consumer.close()
    client = admin(bootstrap)
    latest = client.list_offsets({tp: OffsetSpec.max_timestamp()})[tp].result(60)
    assert (latest.offset, latest.timestamp) == (99, base + 99_000)


def test_offset_out_of_range_is_reported(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic)
    produce(bootstrap, topic, [{"value": "only"}])
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "error"})
    consumer.assign([TopicPartition(topic, 0, 500)])
    message = consumer.poll(60)
    assert message is not None
    error = message.error()
    assert error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET
    consumer.close()


def test_delete_records_moves_the_log_start(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic)
    produce(bootstrap, topic, [{"value": str(n)} for n in range(10)])
    tp = TopicPartition(topic, 0, 6)
    client = admin(bootstrap)
    result = client.delete_records([tp])[tp].result(60)
    assert result.low_watermark == 6
    assert [m.value() for m in consume(bootstrap, topic, 4)] == [b"6", b"7", b"8", b"9"]


def test_topics_are_created_described_grown_and_deleted(bootstrap: str, topic: str) -> None:
    client = admin(bootstrap)
    create(bootstrap, topic, 2, retention_ms="12345")
    with pytest.raises(KafkaException) as exists:
        create(bootstrap, topic)
    assert exists.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    with pytest.raises(KafkaException) as invalid:
        create(bootstrap, "not a name")
    assert invalid.value.args[0].code() == KafkaError.TOPIC_EXCEPTION
    client.create_partitions([NewPartitions(topic, 5)])[topic].result(60)
    _wait(lambda: len(client.list_topics(topic, timeout=60).topics[topic].partitions) == 5)
    client.delete_topics([topic])[topic].result(60)
    _wait(lambda: topic not in client.list_topics(timeout=60).topics)


def test_validate_only_creates_nothing(bootstrap: str, topic: str) -> None:
    client = admin(bootstrap)
    client.create_topics([NewTopic(topic, 1)], validate_only=True)[topic].result(60)
    assert topic not in client.list_topics(timeout=60).topics
    with pytest.raises(KafkaException) as refused:
        client.create_topics([NewTopic(topic, 1, replication_factor=9)], validate_only=True)[topic].result(60)
    assert refused.value.args[0].code() == KafkaError.INVALID_REPLICATION_FACTOR


def test_topic_settings_are_described_and_altered(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic, retention_ms="5000")
    client = admin(bootstrap)
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def settings() -> dict[str, ConfigEntry]:
        described: dict[str, ConfigEntry] = client.describe_configs([resource])[resource].result(60)
        return described

    assert settings()["retention.ms"].value == "5000"
    assert settings()["cleanup.policy"].is_default
    changes = [
        ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
        ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
        ConfigEntry("segment.bytes", "2000000", incremental_operation=AlterConfigOpType.SET),
    ]
    wish = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
    client.incremental_alter_configs([wish])[wish].result(60)
    _wait(lambda: settings()["segment.bytes"].value == "2000000")
    assert settings()["retention.ms"].value == "604800000"
    assert set((settings()["cleanup.policy"].value or "").split(",")) == {"delete", "compact"}
    bad = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[ConfigEntry("retention.ms", "soon", incremental_operation=AlterConfigOpType.SET)],
    )
    with pytest.raises(KafkaException) as refused:
        client.incremental_alter_configs([bad])[bad].result(60)
    assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG


def test_broker_settings_are_described_with_secrets_hidden(bootstrap: str) -> None:
    client = admin(bootstrap)
    broker = next(iter(client.list_topics(timeout=60).brokers))
    resource = ConfigResource(ResourceType.BROKER, str(broker))
    settings = client.describe_configs([resource])[resource].result(60)
    assert settings["broker.id"].value == str(broker)
    assert settings["broker.id"].is_read_only
    assert settings["ssl.keystore.password"].is_sensitive and settings["ssl.keystore.password"].value is None


def test_null_key_on_a_compacted_topic_is_refused(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic, cleanup_policy="compact")
    producer = Producer({"bootstrap.servers": bootstrap})
    errors: list[Any] = []
    producer.produce(topic, b"no key", on_delivery=lambda error, message: errors.append(error))
    producer.flush(60)
    assert errors[0].code() == KafkaError.INVALID_RECORD


def test_log_append_time_replaces_the_producers(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic, message_timestamp_type="LogAppendTime")
    before_ms = int(time.time() * 1000)
    produce(bootstrap, topic, [{"value": "x", "timestamp": 1000}])
    [message] = consume(bootstrap, topic, 1)
    assert message.timestamp()[1] >= before_ms - 1000


def test_topic_codec_recompresses(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic, compression_type="zstd")
    produce(bootstrap, topic, [{"key": str(n), "value": "v" * 100} for n in range(50)], **{"compression.type": "gzip"})
    assert [m.key() for m in consume(bootstrap, topic, 50)] == [str(n).encode() for n in range(50)]


def test_consumer_group_resumes_where_it_committed(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic, 3)
    produce(bootstrap, topic, [{"key": str(n), "value": str(n)} for n in range(300)])
    seen: list[bytes] = []
    for _ in range(3):
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest",
             "enable.auto.commit": False}
        )  # fmt: skip
        consumer.subscribe([topic])
        batch: list[Message] = []
        deadline = time.monotonic() + 60
        while len(batch) < 100 and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None:
                assert message.error() is None, message.error()
                batch.append(message)
                consumer.commit(message, asynchronous=False)
        seen += [m.value() or b"" for m in batch]
        consumer.close()
    assert sorted(seen, key=int) == [str(n).encode() for n in range(300)]
    client = admin(bootstrap)
    offsets = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(topic)])[topic].result(60)
    assert sum(tp.offset for tp in offsets.topic_partitions) == 300


def _wait(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.05)
