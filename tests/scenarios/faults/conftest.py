"""Helpers for scenarios with faults."""

import contextlib

import pytest
from confluent_kafka import KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.cli.local_cluster import LocalCluster, wait_until
from tests.soak.workload import QUIET

#: Settings with which brokers notice each other's end within about two seconds.
QUICK = {
    "zookeeper.session.timeout.ms": "2000",
    "replica.lag.time.max.ms": "2000",
    "auto.create.topics.enable": "false",
}
QUICK_COORDINATOR = ("--tick-time", "500")


class Admin:
    """Requests to a cluster that these scenarios need."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.client = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})

    def create(self, topic: str, *, partitions: int = 1, replicas: int = 3, **config: str) -> None:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        new = NewTopic(topic, num_partitions=partitions, replication_factor=replicas, config=settings)
        self.client.create_topics([new], request_timeout=60)[topic].result()
        self.wait(lambda: all(p.leader > 0 for p in self.partitions(topic).values()), "leaders")

    def create_on(self, topic: str, assignment: list[list[int]], **config: str) -> None:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        new = NewTopic(topic, num_partitions=len(assignment), replica_assignment=assignment, config=settings)
        self.client.create_topics([new], request_timeout=60)[topic].result()
        self.wait(lambda: all(p.leader > 0 for p in self.partitions(topic).values()), "leaders")

    def partitions(self, topic: str) -> dict:
        with contextlib.suppress(KafkaException, KeyError):
            return self.client.list_topics(topic, timeout=5).topics[topic].partitions
        return {}

    def leader(self, topic: str, partition: int = 0) -> int:
        return self.partitions(topic)[partition].leader if partition in self.partitions(topic) else -1

    def wait(self, condition, what: str, timeout_s: float = 60.0) -> None:
        def holds() -> bool:
            with contextlib.suppress(KafkaException, KeyError):
                return bool(condition())
            return False

        wait_until(holds, timeout_s, what=what)

    def wait_in_sync(self, topic: str, replicas: int = 3) -> None:
        self.wait(
            lambda: self.partitions(topic) and all(len(p.isrs) == replicas for p in self.partitions(topic).values()),
            f"that all replicas of {topic} are in sync",
        )

    def write(self, topic: str, values: list[bytes], partition: int = 0, timeout_s: float = 60.0) -> list[int]:
        """Write the values; return their offsets, or raise the error."""
        offsets: list[int] = []
        errors: list[object] = []

        def delivered(error: object, message: Message) -> None:
            if error is not None:
                errors.append(error)
            else:
                offsets.append(message.offset())

        producer = Producer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "enable.idempotence": True,
                "retry.backoff.ms": 20,
                "message.timeout.ms": int(timeout_s * 1000),
                "batch.size": 16384,
                **QUIET,
            }
        )
        for value in values:
            producer.produce(topic, value, partition=partition, on_delivery=delivered)
        producer.flush(timeout_s + 5)
        if errors or len(offsets) != len(values):
            raise AssertionError(f"{len(offsets)} of {len(values)} were written: {errors[:2]}")
        return offsets


@pytest.fixture
def quick_cluster(new_cluster) -> LocalCluster:
    """Three brokers that the test may break."""
    return new_cluster(brokers=3, config=QUICK, zookeeper_options=QUICK_COORDINATOR)


@pytest.fixture
def admin(quick_cluster: LocalCluster) -> Admin:
    return Admin(quick_cluster)
