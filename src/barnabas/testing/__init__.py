"""Kafka for tests: real clusters of processes that start in about a second, and fault injection.

    from barnabas.testing import Cluster

    with Cluster(brokers=3) as cluster:
        cluster.create_topic("orders", partitions=3)
        run_my_service(cluster.bootstrap)
        cluster.kill(1)
        cluster.fail_api(2, "Produce", error="NOT_ENOUGH_REPLICAS", times=3)

`async with Cluster()` works as well. With pytest, the fixtures `kafka` and `kafka_cluster` come with the package.
"""

from barnabas.cli.local_cluster import ClusterFailed, wait_until
from barnabas.testing.cluster import Cluster, PartitionView

__all__ = ["Cluster", "ClusterFailed", "PartitionView", "wait_until"]
