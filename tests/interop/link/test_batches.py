"""The comparer itself notices differences."""

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.cli.local_cluster import LocalCluster
from tests.interop.kraft import KraftCluster
from tests.interop.link.batches import assert_same, fetched_batches, partitions_of


def _write(bootstrap: str, topic: str, values: list[str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 2, 3)])[topic].result(60)
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4", "linger.ms": 5})
    for number, value in enumerate(values):
        producer.produce(topic, value, f"k{number}", partition=number % 2, timestamp=1_700_000_000_000 + number)
        producer.poll(0)
    assert producer.flush(60) == 0


def test_comparer_finds_a_cluster_equal_to_itself_and_other_records_different(
    source: KraftCluster, mirror: LocalCluster, topic: str
) -> None:
    values = [f"value {number}" for number in range(200)]
    _write(source.bootstrap, topic, values)
    _write(mirror.bootstrap, topic, [*values[:-1], "another"])
    assert assert_same(source, source, topic) >= 2
    assert assert_same(mirror, mirror, topic) >= 2
    assert all(fetched_batches(source, partition) for partition in partitions_of(source, topic))
    with pytest.raises(AssertionError, match=r"differs|at the source"):
        assert_same(source, mirror, topic)
