"""Kafka for tests: real clusters of processes that start in a fraction of a second, and fault injection.

    from barnabas.testing import Cluster

    with Cluster(brokers=3) as cluster:
        cluster.create_topic("orders", partitions=3)
        run_my_service(cluster.bootstrap)
        cluster.kill(1)
        cluster.fail_api(2, "Produce", error="NOT_ENOUGH_REPLICAS", times=3)

`async with Cluster()` works as well. With pytest, the fixtures `kafka` and `kafka_cluster` come with the package; with unittest
there is `KafkaTestCase`. `docs/testing.md` has it all.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.cli.local_cluster import ClusterFailed, wait_until
    from barnabas.testing.cases import AsyncKafkaTestCase, KafkaTestCase
    from barnabas.testing.cluster import Cluster, PartitionView
    from barnabas.testing.journal import Fault
    from barnabas.testing.records import Record
    from barnabas.testing.shared import Kafka
    from barnabas.testing.snapshot import Snapshot

__all__ = [
    "AsyncKafkaTestCase",
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
    "AsyncKafkaTestCase": "barnabas.testing.cases",
    "Cluster": "barnabas.testing.cluster",
    "ClusterFailed": "barnabas.cli.local_cluster",
    "Fault": "barnabas.testing.journal",
    "Kafka": "barnabas.testing.shared",
    "KafkaTestCase": "barnabas.testing.cases",
    "PartitionView": "barnabas.testing.cluster",
    "Record": "barnabas.testing.records",
    "Snapshot": "barnabas.testing.snapshot",
    "wait_until": "barnabas.cli.local_cluster",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
