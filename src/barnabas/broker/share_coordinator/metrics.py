"""The share coordinator's metrics, with the numbers of Kafka's share-coordinator-metrics."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from barnabas.base.metrics.registry import Registry, Row

if TYPE_CHECKING:
    from barnabas.broker.share_coordinator.machine import ShareCoordinatorMachine


class CountedStates(Protocol):
    """The attributes of the coordinator that metrics use."""

    @property
    def machines(self) -> "Mapping[int, ShareCoordinatorMachine]": ...

    @property
    def pruned(self) -> Mapping[int, int]: ...


def load_time(registry: Registry) -> Callable[[float], None]:
    return registry.histogram(
        "kafka_server_share_coordinator_partition_load_time_ms",
        "How long partitions of __share_group_state took to load, as partition-load-time.",
    ).observe_ms


def write_time(registry: Registry) -> Callable[[float], None]:
    return registry.histogram(
        "kafka_server_share_coordinator_write_latency_ms",
        "How long writes of the state of a share partition took, as write-latency.",
    ).observe_ms


def add_gauges(registry: Registry, coordinator: CountedStates) -> None:
    """Add gauges that are computed at each scrape."""

    def pruned() -> Iterator[Row]:
        for partition, offset in coordinator.pruned.items():
            yield {"partition": str(partition)}, offset

    registry.gauge(
        "barnabas_share_coordinator_share_partitions",
        "Share partitions whose state this broker keeps.",
        lambda: sum(len(machine.states) for machine in coordinator.machines.values()),
    )
    registry.table(
        "kafka_server_share_coordinator_last_pruned_offset",
        "Offset before which the records of a partition of __share_group_state were deleted, as last-pruned-offset.",
        pruned,
    )
