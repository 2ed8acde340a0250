"""Settings of brokers that differ as far as exactly-once has anything to do with them, and change from one restart to the next.

A cluster is like this while its operator rolls a change out, and for as long as a roll-out is left half done.
"""

import json
from collections.abc import Mapping

from kazoo.client import KazooClient

from barnabas.cli.local_cluster import LocalCluster

#: Three kinds of brokers: one without two-phase commit, one that trusts producers, one that forgets soon. Each writes, flushes
#: and fetches in its own way.
KINDS: Mapping[str, tuple[str, str, str]] = {
    "transaction.two.phase.commit.enable": ("false", "true", "true"),
    "transaction.partition.verification.enable": ("true", "false", "true"),
    # Longer than a driver takes to come back: one that finds forgotten what it had ended and not recorded stops, and says so.
    "transactional.id.expiration.ms": ("604800000", "604800000", "600000"),
    "transaction.remove.expired.transaction.cleanup.interval.ms": ("3600000", "3600000", "1000"),
    "min.insync.replicas": ("1", "2", "1"),
    "log.segment.bytes": ("1073741824", "100000", "1073741824"),
    "log.flush.interval.messages": ("1", "9223372036854775807", "9223372036854775807"),
    "num.replica.fetchers": ("1", "1", "2"),
    "replica.fetch.max.bytes": ("1048576", "1048576", "10000"),
    "group.coordinator.rebalance.protocols": ("classic,consumer", "classic,consumer", "classic"),
}


def settings_of(broker_id: int, *, restarts: int = 0) -> dict[str, str]:
    """Another kind after each restart. Of brokers that were restarted equally often, each is of its own kind."""
    return {name: values[(broker_id + restarts) % len(values)] for name, values in KINDS.items()}


def announce_nothing(cluster: LocalCluster, broker_id: int) -> None:
    """The broker looks to the others as one of Kafka's, which has no features: when brokers have come or gone next, the cluster
    goes without `transaction.version` 2, until this one registers again."""
    zookeeper = KazooClient(cluster.zookeeper_connect)
    zookeeper.start()
    try:
        path = f"/brokers/ids/{broker_id}"
        registration = json.loads(zookeeper.get(path)[0])
        zookeeper.set(path, json.dumps(registration | {"features": {}}).encode())
    finally:
        zookeeper.stop()
        zookeeper.close()
