"""kafka-python, used as by its users."""

import time
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
from kafka.errors import MessageSizeTooLargeError, TopicAlreadyExistsError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:kafka")


def create(bootstrap: str, topic: str, partitions: int = 1, **config: str) -> None:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.create_topics([NewTopic(topic, partitions, 3, topic_configs=settings)])
    finally:
        admin.close()


def consumer(bootstrap: str, topic: str, **options: Any) -> KafkaConsumer:
    return KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=15_000,
        **options,
    )


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_records_come_back_as_they_were_sent(bootstrap: str, topic: str, codec: str | None) -> None:
    create(bootstrap, topic)
    sent = [(b"k%d" % n, None if n % 7 == 0 else b"v%d" % n, [("h", b"%d" % n)]) for n in range(100)]
    producer = KafkaProducer(bootstrap_servers=bootstrap, compression_type=codec, acks="all")
    for key, value, headers in sent:
        producer.send(topic, key=key, value=value, headers=headers)
    producer.flush(60)
    producer.close()
    reader = consumer(bootstrap, topic)
    got = [next(reader) for _ in sent]
    reader.close()
    assert [(m.key, m.value, list(m.headers)) for m in got] == sent


def test_admin_creates_grows_describes_and_deletes(bootstrap: str, topic: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics([NewTopic(topic, 1, 3, topic_configs={"retention.ms": "12345"})])
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([NewTopic(topic, 1, 3, topic_configs={"retention.ms": "12345"})])
    admin.create_partitions({topic: NewPartitions(3)})
    deadline = time.monotonic() + 60
    while len(admin.describe_topics([topic])[0]["partitions"]) != 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    configs = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    assert "12345" in str(configs)
    admin.delete_topics([topic])
    while topic in admin.list_topics():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    admin.close()


def test_seek_by_time(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic)
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
    for n in range(20):
        producer.send(topic, b"%d" % n, timestamp_ms=1_700_000_000_000 + n * 10)
    producer.flush(60)
    producer.close()
    tp = TopicPartition(topic, 0)
    reader = KafkaConsumer(bootstrap_servers=bootstrap)
    reader.assign([tp])
    assert reader.offsets_for_times({tp: 1_700_000_000_055})[tp].offset == 6
    assert reader.beginning_offsets([tp]) == {tp: 0}
    assert reader.end_offsets([tp]) == {tp: 20}
    reader.close()


def test_too_large_record_is_refused(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic, max_message_bytes="1000")
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
    with pytest.raises(MessageSizeTooLargeError):
        producer.send(topic, b"x" * 5000).get(60)
    producer.close()


def test_group_commits_and_resumes(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic)
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
    for n in range(10):
        producer.send(topic, b"%d" % n)
    producer.flush(60)
    producer.close()
    first = consumer(bootstrap, topic, group_id=topic, max_poll_records=1)
    assert [next(first).value for _ in range(4)] == [b"0", b"1", b"2", b"3"]
    first.commit()
    first.close(autocommit=False)
    second = consumer(bootstrap, topic, group_id=topic)
    assert next(second).value == b"4"
    second.close(autocommit=False)
