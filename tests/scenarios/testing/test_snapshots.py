"""Snapshots: a cluster returns to a moment, with everything that was acknowledged then, and nothing later."""

import json
from collections.abc import Callable
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import Consumer, Producer

from barnabas.cli.local_cluster import REGISTRY
from barnabas.testing import Cluster, ClusterFailed
from tests.scenarios.testing.testing_clients import produce


def commit_all(cluster: Cluster, topic: str, group: str, count: int) -> None:
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0}
    )
    consumer.subscribe([topic])
    assert len(consumer.consume(count, 60)) == count
    consumer.commit(asynchronous=False)
    consumer.close()


def test_cluster_comes_back_to_the_moment_of_the_snapshot_as_often_as_one_likes(
    kafka_cluster: Callable[..., Cluster],
) -> None:
    cluster = kafka_cluster(brokers=2)
    bootstrap = cluster.bootstrap
    cluster.create_topic("orders", partitions=2, config={"retention.ms": 77_000_000})
    cluster.produce("orders", ["a", "b"], partition=0)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "tx"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("orders", "c", partition=1)
    producer.commit_transaction(60)
    commit_all(cluster, "orders", "readers", 3)
    snapshot = cluster.snapshot()
    for _ in range(2):
        assert produce(bootstrap, "orders", 3) == [None] * 3
        cluster.create_topic("bills")
        cluster.delete_topic("orders")
        cluster.restore(snapshot)
        assert cluster.bootstrap == bootstrap
        cluster.wait_until_led("orders")
        assert cluster.topics() == ["orders"]
        cluster.assert_records("orders", ["a", "b", "c"])
        assert set(cluster.lag("readers").values()) == {0}
    assert produce(bootstrap, "orders", 3) == [None] * 3
    cluster.wait_for_isr("orders", 2)


def test_clients_do_not_notice_that_a_snapshot_is_taken(kafka_cluster: Callable[..., Cluster]) -> None:
    cluster = kafka_cluster(brokers=1)
    cluster.create_topic("orders")
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0})
    errors: list[object] = []
    for number in range(20):
        producer.produce("orders", str(number), on_delivery=lambda error, message: errors.append(error))
        if number == 10:
            cluster.snapshot()
    producer.flush(60)
    assert errors == [None] * 20
    cluster.assert_records("orders", [str(number) for number in range(20)])


def test_snapshot_of_half_a_cluster_or_of_another_one_is_refused(kafka_cluster: Callable[..., Cluster]) -> None:
    one, other = kafka_cluster(brokers=1), kafka_cluster(brokers=1)
    snapshot = one.snapshot()
    with pytest.raises(ClusterFailed, match="this snapshot is of another cluster"):
        other.restore(snapshot)
    other.kill(1)
    with pytest.raises(ClusterFailed, match=r"broker-1 does not run: a snapshot takes a whole cluster"):
        other.snapshot()


def test_schema_registry_comes_back_with_its_cluster_and_ends_with_it(kafka_cluster: Callable[..., Cluster]) -> None:
    cluster = kafka_cluster(brokers=1, schema_registry=True)

    def subjects() -> list[str]:
        with urlopen(f"{cluster.schema_registry_url}/subjects", timeout=60) as answer:
            return json.load(answer)

    url, snapshot = cluster.schema_registry_url, cluster.snapshot()
    body = json.dumps({"schema": '"string"'}).encode()
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    urlopen(Request(f"{url}/subjects/orders-value/versions", body, headers), timeout=60).close()
    assert subjects() == ["orders-value"]
    cluster.restore(snapshot)
    assert cluster.schema_registry_url == url
    assert subjects() == []
    pid = cluster._members[REGISTRY].pid
    cluster.stop()
    assert not Path(f"/proc/{pid}").exists()
