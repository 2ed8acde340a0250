"""MirrorMaker 2 between Apache Kafka and our brokers, in both directions at once, exactly once."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.kafka import ApacheKafka
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from barnabas.cli.local_cluster import LocalCluster
from barnabas.testing import wait_until
from tests.interop.connect import JavaProcess

pytestmark = [pytest.mark.usefixtures("java"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def apache() -> Iterator[ApacheKafka]:
    with ApacheKafka(brokers=1, heap="512m", config={"transaction.state.log.min.isr": "1"}) as kafka:
        yield kafka


@pytest.fixture
def mirroring(cluster: LocalCluster, apache: ApacheKafka, topic: str, tmp_path: Path) -> Iterator[JavaProcess]:
    settings = {
        "clusters": "ours, apache",
        "ours.bootstrap.servers": cluster.bootstrap,
        "apache.bootstrap.servers": apache.bootstrap,
        **{
            f"{way}.{name}": value
            for way in ("ours->apache", "apache->ours")
            for name, value in {"enabled": "true", "topics": f"{topic}.*", "groups": f"{topic}.*"}.items()
        },
        "replication.factor": "1",
        **{f"{kind}.topic.replication.factor": "1" for kind in ("checkpoints", "heartbeats", "offset-syncs")},
        **{f"{kind}.storage.replication.factor": "1" for kind in ("config", "offset", "status")},
        "sync.group.offsets.enabled": "true",
        "sync.topic.acls.enabled": "false",
        **{f"{what}.interval.seconds": "2" for what in ("sync.group.offsets", "emit.checkpoints", "emit.heartbeats")},
        **{f"{what}.interval.seconds": "2" for what in ("refresh.topics", "refresh.groups", "sync.topic.configs")},
        "offset.lag.max": "0",
        "exactly.once.source.support": "enabled",
        "dedicated.mode.enable.internal.rest": "true",
        "listeners": "http://127.0.0.1:0",
    }
    with JavaProcess("org.apache.kafka.connect.mirror.MirrorMaker", settings, tmp_path) as process:
        yield process


def produce(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "compression.type": "zstd"})
    for number in range(count):
        producer.produce(topic, f"value {number}", f"key {number}", headers={"number": str(number)})
    assert producer.flush(30) == 0


def consume(bootstrap: str, topic: str, group: str, count: int) -> list[str]:
    """Values that are committed; the group's offsets are committed behind them."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    seen: list[str] = []
    deadline = time.monotonic() + 120
    while len(seen) < count and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None or ((error := message.error()) and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART):
            continue
        assert not message.error(), message.error()
        seen.append(message.value().decode())
    consumer.commit(asynchronous=False)
    consumer.close()
    return seen


def check_mirror(source: str, target: str, topic: str, bootstrap: str, mirroring: JavaProcess) -> None:
    """What `source` has of the topic is at `target` as well: records, settings, and where its group is."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    mirror = f"{source}.{topic}-{source}"
    wait_until(
        lambda: mirroring.alive() and mirror in admin.list_topics(timeout=30).topics, what=f"{mirror} at {target}"
    )
    seen = consume(bootstrap, mirror, f"reader-{topic}", 300)
    assert sorted(seen) == sorted(f"value {number}" for number in range(300))

    resource = ConfigResource(ResourceType.TOPIC, mirror)
    wait_until(
        lambda: admin.describe_configs([resource])[resource].result(30)["retention.ms"].value == "7777777",
        what="the setting of the source",
    )
    group = ConsumerGroupTopicPartitions(f"{topic}-group-{source}", [TopicPartition(mirror, part) for part in range(3)])

    def translated() -> bool:
        [answer] = admin.list_consumer_group_offsets([group]).values()
        return sum(max(0, part.offset) for part in answer.result(30).topic_partitions) == 300

    wait_until(translated, what=f"the offsets of {group.group_id} at {target}")


def test_topics_their_settings_and_groups_are_mirrored_both_ways(
    cluster: LocalCluster, apache: ApacheKafka, topic: str, mirroring: JavaProcess
) -> None:
    places = {"ours": cluster.bootstrap, "apache": apache.bootstrap}
    for name, bootstrap in places.items():
        admin = AdminClient({"bootstrap.servers": bootstrap})
        made = f"{topic}-{name}"
        admin.create_topics([NewTopic(made, 3, 1, config={"retention.ms": "7777777"})])[made].result(30)
        produce(bootstrap, made, 300)
        assert len(consume(bootstrap, made, f"{topic}-group-{name}", 300)) == 300
    check_mirror("ours", "apache", topic, apache.bootstrap, mirroring)
    check_mirror("apache", "ours", topic, cluster.bootstrap, mirroring)
