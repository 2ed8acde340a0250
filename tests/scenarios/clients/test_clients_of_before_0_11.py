"""Clients of before Kafka 0.11, which know neither batches nor ApiVersions: kafka-python, told to be one."""

from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

VERSIONS = [(0, 8, 2), (0, 9), (0, 10, 0), (0, 10, 2)]


@pytest.fixture
def made(bootstrap: str, topic: str) -> str:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(30)
    return topic


def read_by(bootstrap: str, topic: str, count: int, version: tuple[int, ...]) -> list[Any]:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, api_version=version, auto_offset_reset="earliest", enable_auto_commit=False
    )
    found: list[Any] = []
    try:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        while len(found) < count:
            found += [record for records in consumer.poll(10_000).values() for record in records]
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_old_and_new_clients_read_what_the_other_wrote(bootstrap: str, made: str, version: tuple[int, ...]) -> None:
    expected: list[bytes] = []
    for codec in (None, "gzip", "snappy"):
        producer = KafkaProducer(bootstrap_servers=bootstrap, api_version=version, compression_type=codec, linger_ms=5)
        values = [f"{codec}-{number}".encode() * 20 for number in range(50)]
        for value in values:
            producer.send(made, key=value, value=value)
        producer.flush(30)
        producer.close()
        expected += values
    modern = Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4", "linger.ms": 5})
    values = [f"new-{number}".encode() * 20 for number in range(50)]
    for value in values:
        modern.produce(made, key=value, value=value, headers={"h": b"1"})
    assert modern.flush(30) == 0
    expected += values

    found = read_by(bootstrap, made, len(expected), version)
    assert [(record.offset, record.key, record.value) for record in found] == [
        (offset, value, value) for offset, value in enumerate(expected)
    ]
    assert all((record.timestamp or -1) > 0 for record in found[-50:]) == (version >= (0, 10))

    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": made, "auto.offset.reset": "earliest"})
    reader.subscribe([made])
    read: list[Any] = []
    while len(read) < len(expected):
        read += reader.consume(len(expected), 1.0)
    reader.close()
    assert [message.value() for message in read] == expected


@pytest.mark.parametrize("version", VERSIONS[1:], ids=str)
def test_old_group_member_goes_on_where_it_was(bootstrap: str, made: str, version: tuple[int, ...]) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, api_version=version)
    for number in range(20):
        producer.send(made, value=b"%d" % number).get(30)
    producer.close()
    seen: list[bytes] = []
    for _ in range(2):
        consumer = KafkaConsumer(
            made,
            bootstrap_servers=bootstrap,
            api_version=version,
            group_id=f"{made}-group",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=10,
        )
        polled: list[bytes] = []
        while not polled:
            polled = [record.value for records in consumer.poll(10_000).values() for record in records]
        consumer.commit()
        consumer.close()
        seen += polled
    assert seen == [b"%d" % number for number in range(20)]
