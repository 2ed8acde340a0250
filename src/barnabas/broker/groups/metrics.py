"""The group coordinator's metrics, under Kafka's names: `GroupMetadataManager` and `group-coordinator-metrics`.

Machines count their decisions; the numbers of groups by state are computed at each scrape.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

from barnabas.base.metrics.registry import Registry
from barnabas.broker.groups.classic_group import GroupState
from barnabas.broker.groups.consumer_group import ConsumerGroupState
from barnabas.broker.groups.group import GroupCounts, GroupType
from barnabas.broker.groups.share_group import ShareGroupState
from barnabas.broker.groups.streams_group import StreamsGroupState
from barnabas.broker.runtime.shard import ShardState

if TYPE_CHECKING:
    from barnabas.broker.groups.machine import GroupMachine


class CountedGroups(Protocol):
    """The methods of the coordinator that metrics use."""

    @property
    def machines(self) -> "Mapping[int, GroupMachine]": ...

    def partitions_in(self, state: ShardState) -> int: ...


def group_counts(registry: Registry) -> GroupCounts:
    """Create the counters in a registry. The scraper computes rates."""

    def counter(name: str, what: str) -> Callable[[int], None]:
        return registry.counter(f"kafka_server_group_coordinator_{name}", what).add

    return GroupCounts(
        offset_commit=counter("offset_commit", "Offsets committed, as offset-commit-count."),
        offset_expiration=counter("offset_expiration", "Offsets expired, as offset-expiration-count."),
        offset_deletion=counter("offset_deletion", "Offsets deleted, as offset-deletion-count."),
        completed_rebalance=counter(
            "group_completed_rebalance", "Rebalances of classic groups, as group-completed-rebalance-count."
        ),
        consumer_group_rebalance=counter(
            "consumer_group_rebalance", "Rebalances of consumer groups, as consumer-group-rebalance-count."
        ),
        share_group_rebalance=counter(
            "share_group_rebalance", "Rebalances of share groups, as share-group-rebalance-count."
        ),
        streams_group_rebalance=counter(
            "streams_group_rebalance", "Rebalances of streams groups, as streams-group-rebalance-count."
        ),
    )


def load_time(registry: Registry) -> Callable[[float], None]:
    return registry.histogram(
        "kafka_server_group_coordinator_partition_load_time_ms",
        "How long partitions of __consumer_offsets took to load, as partition-load-time.",
    ).observe_ms


def add_gauges(registry: Registry, coordinator: CountedGroups) -> None:
    """Add gauges that are computed at each scrape."""

    def groups(kind: GroupType | None = None, state: str | None = None) -> float:
        return sum(
            (kind is None or group.type is kind) and (state is None or group.state_name() == state)
            for machine in coordinator.machines.values()
            for group in machine.groups.values()
        )

    registry.gauge(
        "kafka_coordinator_group_num_offsets",
        "Committed offsets, as NumOffsets.",
        lambda: sum(machine.store.count for machine in coordinator.machines.values()),
    )
    registry.gauge("kafka_coordinator_group_num_groups", "Groups, as NumGroups.", groups)
    for state in GroupState:
        registry.gauge(
            f"kafka_coordinator_group_num_groups_{state.name.lower()}",
            f"Classic groups that are {state.value}, as NumGroups{state.value}.",
            partial(groups, GroupType.CLASSIC, state.value),
        )
    for kind in GroupType:
        registry.gauge(
            "kafka_server_group_coordinator_group_count",
            "Groups by their protocol, as group-count.",
            partial(groups, kind),
            protocol=kind.value,
        )
    for consumer_state in ConsumerGroupState:
        registry.gauge(
            "kafka_server_group_coordinator_consumer_group_count",
            "Consumer groups by their state, as consumer-group-count.",
            partial(groups, GroupType.CONSUMER, consumer_state.value),
            state=consumer_state.value.lower(),
        )
    for share_state in ShareGroupState:
        registry.gauge(
            "kafka_server_group_coordinator_share_group_count",
            "Share groups by their state, as share-group-count.",
            partial(groups, GroupType.SHARE, share_state.value),
            state=share_state.value.lower(),
        )
    for streams_state in StreamsGroupState:
        registry.gauge(
            "kafka_server_group_coordinator_streams_group_count",
            "Streams groups by their state, as streams-group-count.",
            partial(groups, GroupType.STREAMS, streams_state.value),
            state=streams_state.name.lower(),
        )
    for shard_state in (ShardState.LOADING, ShardState.ACTIVE, ShardState.FAILED):
        registry.gauge(
            "kafka_server_group_coordinator_num_partitions",
            "Partitions of the coordinator's topic by their state, as num-partitions.",
            partial(coordinator.partitions_in, shard_state),
            state=shard_state.value,
        )
