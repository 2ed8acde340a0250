"""The pytest plugin: `kafka`, a cluster that all tests share, and `kafka_cluster`, clusters that a test may break.

    def test_orders(kafka):
        topic = kafka.topic(partitions=3)
        produce(kafka.bootstrap, topic)

    def test_leader_dies(kafka_cluster):
        cluster = kafka_cluster(brokers=3)
        cluster.kill(cluster.leader_of("orders"))

`--kafka-brokers N` (or `kafka_brokers` in the ini file) sets the size of the shared cluster; 1 by default. `--kafka-secure` (or
`kafka_secure`) makes it a secure one: `kafka.client_settings()` and `kafka.librdkafka_settings()` have what clients need. The
cluster starts when the first test asks for it, in about half a second, and a process of pytest-xdist has its own.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from barnabas.testing.cluster import Cluster


class Kafka:
    """The shared cluster for one test. Its topics are deleted when the test ends."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._topics: list[str] = []
        self._prefix = f"test-{uuid.uuid4().hex[:8]}"

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    def client_settings(self, user: str = "client") -> dict[str, str]:
        """For the Java client and ours: the address, and what a secure cluster asks for."""
        return self.cluster.client_settings(user)

    def librdkafka_settings(self, user: str = "client") -> dict[str, str]:
        """The same for confluent-kafka."""
        return self.cluster.librdkafka_settings(user)

    def topic(self, name: str = "topic", *, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Make a topic whose name no other test has."""
        full = self.name(name)
        self.cluster.create_topic(full, partitions=partitions, config=config)
        self._topics.append(full)
        return full

    def name(self, name: str) -> str:
        """A name for a topic, a group or a transactional id that no other test has."""
        return f"{self._prefix}-{name}"

    def _close(self) -> None:
        for topic in self._topics:
            self.cluster.delete_topic(topic)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kafka", "a Kafka cluster for tests (barnabas)")
    group.addoption(
        "--kafka-brokers", type=int, default=None, help="brokers of the cluster that tests share; default 1"
    )
    group.addoption("--kafka-secure", action="store_true", help="the shared cluster has TLS, users and ACLs")
    parser.addini("kafka_brokers", "brokers of the cluster that tests share", default="1")
    parser.addini("kafka_secure", "whether the shared cluster has TLS, users and ACLs", type="bool", default=False)


@pytest.fixture(scope="session")
def kafka_shared_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster behind `kafka`."""
    brokers = request.config.getoption("--kafka-brokers") or int(request.config.getini("kafka_brokers"))
    secure = request.config.getoption("--kafka-secure") or bool(request.config.getini("kafka_secure"))
    with Cluster(brokers=brokers, secure=secure) as cluster:
        yield cluster


@pytest.fixture
def kafka(kafka_shared_cluster: Cluster) -> Iterator[Kafka]:
    """A cluster that all tests share, with topics of this test's own."""
    view = Kafka(kafka_shared_cluster)
    yield view
    view._close()


@pytest.fixture
def kafka_cluster() -> Iterator[Callable[..., Cluster]]:
    """Makes clusters for this test alone: `kafka_cluster(brokers=3, config={...})`."""
    with ExitStack() as stack:

        def make(**options: Any) -> Cluster:
            return stack.enter_context(Cluster(**options))

        yield make
