"""The gauges that operators watch, with Kafka's names. All are computed when they are scraped; nothing is counted for them.

`docs/metrics.md` lists every metric with Kafka's MBean, and a test compares the page with what a broker offers.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from barnabas.base.host.disk import Disk
from barnabas.base.metrics.registry import Registry, Row
from barnabas.broker.controller.context import ControllerContext
from barnabas.broker.controller.driver import Controller
from barnabas.broker.replication.fetchers import FetcherManager
from barnabas.broker.replication.manager import ReplicaManager
from barnabas.broker.storage.manager import LogManager
from barnabas.broker.zookeeper_client.session import ZooKeeperSession

if TYPE_CHECKING:
    from barnabas.broker.groups.machine import GroupMachine


def add_controller_gauges(registry: Registry, controller: Controller) -> None:
    """Add the controller's gauges: 0 on brokers that are not controller, as in Kafka."""

    def add(name: str, what: str, read: Callable[[ControllerContext], float]) -> None:
        def value() -> float:
            return read(controller.machine.context) if controller.is_active else 0.0

        registry.gauge(f"kafka_controller_{name}", what, value)

    add("active_controller_count", "1 on the broker that is controller; the sum over all must be 1.", lambda _: 1)
    add("active_broker_count", "Registered brokers.", lambda seen: len(seen.brokers))
    add("global_topic_count", "Topics of the cluster.", lambda seen: len(seen.topics))
    add("global_partition_count", "Partitions of the cluster.", lambda seen: sum(map(len, seen.assignments.values())))
    add("offline_partitions_count", "Partitions without a leader.", lambda seen: seen.offline_partition_count())
    add(
        "preferred_replica_imbalance_count",
        "Partitions that their preferred replica could lead but does not.",
        lambda seen: seen.preferred_replica_imbalance_count(),
    )
    add("topics_to_delete_count", "Topics queued for deletion.", lambda seen: len(seen.to_delete))
    add(
        "topics_ineligible_to_delete_count",
        "Topics whose deletion waits for a broker or a reassignment.",
        lambda seen: len(seen.deletion_ineligible),
    )
    add(
        "unclean_leader_elections",
        "Leaders elected outside of the ISR in this broker's term as controller.",
        lambda seen: seen.unclean_elections,
    )


def add_replication_gauges(registry: Registry, replicas: ReplicaManager, fetchers: FetcherManager) -> None:
    registry.gauge(
        "kafka_server_replica_fetcher_manager_max_lag",
        "Records by which the slowest replica on this broker is behind its leader.",
        lambda: fetchers.max_lag,
    )
    registry.gauge(
        "kafka_server_replica_fetcher_manager_failed_partitions_count",
        "Replicas on this broker that no longer follow, because something about their log is wrong.",
        lambda: len(fetchers.failed),
    )
    registry.gauge(
        "kafka_server_replica_manager_offline_replica_count",
        "Replicas on this broker whose log directory has failed.",
        lambda: sum(partition.log is None for partition in replicas),
    )


def add_log_gauges(registry: Registry, logs: LogManager, disk: Disk) -> None:
    def of_logs(read: Callable[..., float]) -> Callable[[], Iterator[Row]]:
        def rows() -> Iterator[Row]:
            for log in logs.all_logs():
                tp = log.partition
                yield {"topic": tp.topic, "partition": str(tp.partition)}, read(log)

        return rows

    registry.table("kafka_log_size_bytes", "Bytes of a partition's log.", of_logs(lambda log: log.size_bytes))
    registry.table("kafka_log_log_start_offset", "First offset of a log.", of_logs(lambda log: log.log_start_offset))
    registry.table("kafka_log_log_end_offset", "Next offset of a log.", of_logs(lambda log: log.log_end_offset))

    def rooms(index: int) -> Callable[[], Iterator[Row]]:
        def rows() -> Iterator[Row]:
            for log_dir in logs.live_dirs:
                yield {"log_dir": log_dir.path}, disk.space_bytes(log_dir.path)[index]

        return rows

    registry.table("kafka_log_dir_total_bytes", "Size of a log directory's disk.", rooms(0))
    registry.table("kafka_log_dir_usable_bytes", "Room left on a log directory's disk.", rooms(1))
    registry.gauge(
        "kafka_log_offline_log_directory_count",
        "Log directories that have failed.",
        lambda: len(logs.dirs) - len(logs.live_dirs),
    )


def add_zookeeper_gauges(registry: Registry, session: ZooKeeperSession) -> None:
    registry.gauge(
        "kafka_server_zookeeper_session_connected",
        "1 while there is a connection to ZooKeeper.",
        lambda: float(session.is_connected),
    )
    session.disconnects = registry.counter("kafka_server_zookeeper_disconnects", "Connections to ZooKeeper lost.")
    session.expirations = registry.counter("kafka_server_zookeeper_expires", "ZooKeeper sessions that expired.")
    session.latency = registry.histogram(
        "kafka_server_zookeeper_request_latency_ms", "From a request to ZooKeeper to its answer."
    )


def add_offset_gauges(registry: Registry, machines: Callable[[], "Mapping[int, GroupMachine]"]) -> None:
    """Add the committed offsets: with `kafka_log_log_end_offset` of the leaders they give the lag of every group."""

    def rows() -> Iterator[Row]:
        for machine in machines().values():
            for group_id in machine.groups:
                for topic, partitions in machine.store.of_group(group_id).items():
                    for partition, committed in partitions.items():
                        labels = {"group": group_id, "topic": topic, "partition": str(partition)}
                        yield labels, committed.offset

    registry.table(
        "kafka_coordinator_group_committed_offset", "Offsets that groups have committed, at their coordinator.", rows
    )
