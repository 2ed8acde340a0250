"""Kafka for tests: real brokers in the test's process or as processes, and faults on purpose.

    from barnabas.testing import Broker

    async with Broker() as kafka:
        await kafka.create_topic("orders")
        await run_my_service(kafka.bootstrap)

    from barnabas.testing import Cluster

    with Cluster(brokers=3) as cluster:
        cluster.create_topic("orders", partitions=3)
        run_my_service(cluster.bootstrap)
        cluster.kill(1)
        cluster.fail_api(2, "Produce", error="NOT_ENOUGH_REPLICAS", times=3)

With pytest, the fixtures `kafka_broker`, `kafka` and `kafka_cluster` come with the package; with unittest there are
`BrokerTestCase` and `KafkaTestCase`. `docs/testing.md` has it all.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.cli.faults.journal import Fault
    from barnabas.cli.local_cluster import ClusterFailed, wait_until
    from barnabas.testing.broker import AsyncBroker, BlockingBroker, Broker
    from barnabas.testing.broker_cases import AsyncBrokerTestCase, BrokerTestCase
    from barnabas.testing.cases import AsyncKafkaTestCase, KafkaTestCase
    from barnabas.testing.cluster import Cluster
    from barnabas.testing.records import Record
    from barnabas.testing.shared import Kafka
    from barnabas.testing.snapshot import Snapshot
    from barnabas.testing.topics import PartitionView

__all__ = [
    "AsyncBroker",
    "AsyncBrokerTestCase",
    "AsyncKafkaTestCase",
    "BlockingBroker",
    "Broker",
    "BrokerTestCase",
    "Cluster",
    "ClusterFailed",
    "Fault",
    "Kafka",
    "KafkaTestCase",
    "PartitionView",
    "Record",
    "Snapshot",
    "wait_until",
]

#: Loaded on first use: pytest loads this package at each start, whether tests use it or not.
_HOMES = {
    "AsyncBroker": "barnabas.testing.broker",
    "AsyncBrokerTestCase": "barnabas.testing.broker_cases",
    "AsyncKafkaTestCase": "barnabas.testing.cases",
    "BlockingBroker": "barnabas.testing.broker",
    "Broker": "barnabas.testing.broker",
    "BrokerTestCase": "barnabas.testing.broker_cases",
    "Cluster": "barnabas.testing.cluster",
    "ClusterFailed": "barnabas.cli.local_cluster",
    "Fault": "barnabas.cli.faults.journal",
    "Kafka": "barnabas.testing.shared",
    "KafkaTestCase": "barnabas.testing.cases",
    "PartitionView": "barnabas.testing.topics",
    "Record": "barnabas.testing.records",
    "Snapshot": "barnabas.testing.snapshot",
    "wait_until": "barnabas.cli.local_cluster",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
