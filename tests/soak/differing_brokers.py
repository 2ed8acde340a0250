"""Settings in which brokers differ and that matter for exactly-once. They change from one restart to the next.

A cluster is like this while its operator rolls out a change, and as long as the roll-out is incomplete.
"""

import json
from collections.abc import Mapping

from kazoo.client import KazooClient

from barnabas.cli.local_cluster import LocalCluster

#: Three kinds of brokers: one without two-phase commit, one that trusts producers, one with a short expiration. Each writes,
#: flushes and fetches in its own way.
KINDS: Mapping[str, tuple[str, str, str]] = {
    "transaction.two.phase.commit.enable": ("false", "true", "true"),
    "transaction.partition.verification.enable": ("true", "false", "true"),
    # Longer than a restart of a driver, which stops with an error if the broker has forgotten an unrecorded transaction.
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
    """Return the settings of another kind after each restart. Brokers with equally many restarts have different kinds."""
    return {name: values[(broker_id + restarts) % len(values)] for name, values in KINDS.items()}


def announce_nothing(cluster: LocalCluster, broker_id: int) -> None:
    """Make the broker look like one of Kafka's without features: at the next change of the live brokers the cluster gives up
    `transaction.version` 2, until this broker registers again.
    """
    zookeeper = KazooClient(cluster.zookeeper_connect)
    zookeeper.start()
    try:
        path = f"/brokers/ids/{broker_id}"
        registration = json.loads(zookeeper.get(path)[0])
        zookeeper.set(path, json.dumps(registration | {"features": {}}).encode())
    finally:
        zookeeper.stop()
        zookeeper.close()
