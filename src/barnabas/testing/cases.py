"""For unittest: test cases with a shared cluster.

class TestOrders(KafkaTestCase):
    kafka_options = {"brokers": 3}

    def test_order_arrives(self):
        topic = self.kafka.topic("orders")
        run_my_service(self.kafka.bootstrap, topic)
        self.kafka.assert_records(topic, ["coffee"])
"""

import atexit
import functools
import unittest
from collections.abc import Mapping
from typing import Any, ClassVar

from barnabas.testing.shared import Kafka, SharedClusters, check_options


@functools.cache
def _clusters() -> SharedClusters:
    """Return the shared clusters of this process; they end with it."""
    clusters = SharedClusters()
    atexit.register(clusters.close)
    return clusters


class KafkaTestCase(unittest.TestCase):
    """`self.kafka` is what the fixture `kafka` is for pytest. After each test its faults end and its topics are deleted."""

    #: Options of `Cluster`. Classes with the same options share a cluster.
    kafka_options: ClassVar[Mapping[str, Any]] = {}
    kafka: Kafka

    def setUp(self) -> None:
        super().setUp()
        check_options(self.kafka_options, of=f"{type(self).__name__}.kafka_options")
        clusters = _clusters()
        self.kafka = Kafka(clusters, clusters.get(**{"brokers": 1, **self.kafka_options}))
        self.addCleanup(self.kafka.close)


class AsyncKafkaTestCase(KafkaTestCase, unittest.IsolatedAsyncioTestCase):
    """The same for tests that are coroutines. `self.kafka` blocks: `await asyncio.to_thread(self.kafka.topic, "orders")`."""
