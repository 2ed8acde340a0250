"""The transaction coordinator's metrics. Kafka has few of them: the load time of partitions, and the queue of the channel that
sends markers. The number of transactional ids by state is an addition.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

from barnabas.base.metrics.registry import Registry
from barnabas.broker.transactions.state import TransactionState

if TYPE_CHECKING:
    from barnabas.broker.transactions.machine import TransactionMachine
    from barnabas.broker.transactions.markers import MarkerSender


class CountedTransactions(Protocol):
    """The attributes of the coordinator that metrics use."""

    @property
    def machines(self) -> "Mapping[int, TransactionMachine]": ...

    @property
    def markers(self) -> "MarkerSender": ...


def load_time(registry: Registry) -> Callable[[float], None]:
    return registry.histogram(
        "kafka_server_transaction_coordinator_partition_load_time_ms",
        "How long partitions of __transaction_state took to load, as partition-load-time.",
    ).observe_ms


def add_gauges(registry: Registry, coordinator: CountedTransactions) -> None:
    """Add gauges that are computed at each scrape."""

    def transactions(state: TransactionState) -> float:
        return sum(machine.count(state) for machine in coordinator.machines.values())

    for state in TransactionState:
        if state not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE):
            registry.gauge(
                "kafka_coordinator_transaction_count",
                "Transactional ids that this broker coordinates, by their state.",
                partial(transactions, state),
                state=state.kafka_name,
            )
    registry.gauge(
        "kafka_coordinator_transaction_unknown_destination_queue_size",
        "Transactions whose markers wait for a leader, as UnknownDestinationQueueSize.",
        lambda: coordinator.markers.without_leader,
    )
