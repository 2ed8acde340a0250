"""Chooses the replica that a consumer should read from (KIP-392). Pure.

`replica.selector.class` is Kafka's: unset (always the leader) or the rack-aware selector, by its Java class name.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.ids import BrokerId
from barnabas.broker.replication.machine import PartitionMachine

if TYPE_CHECKING:
    from barnabas.broker.replication.partition import Partition
    from barnabas.broker.replication.reads import FetchParams

RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class ReplicaView(NamedTuple):
    broker_id: BrokerId
    #: None: the broker has no rack, or it is not alive as far as this broker knows.
    rack: str | None
    log_end: int
    #: Milliseconds since it had all records.
    since_caught_up_ms: int


def read_candidates(
    machine: PartitionMachine,
    *,
    fetch_offset: int,
    now_ms: int,
    rack_of: Callable[[BrokerId], str | None],
) -> list[ReplicaView]:
    """Return the in-sync followers that have `fetch_offset`: sent to a lagging one, a consumer might never catch up."""
    return [
        ReplicaView(
            follower.broker_id, rack_of(follower.broker_id), follower.log_end, now_ms - follower.last_caught_up_ms
        )
        for follower in machine.followers
        if follower.broker_id in machine.isr and follower.log_start <= fetch_offset <= follower.log_end
    ]


def select_by_rack(client_rack: str, *, leader_rack: str | None, candidates: Iterable[ReplicaView]) -> BrokerId | None:
    """Return the most advanced replica in the client's rack; None: read from the leader."""
    if not client_rack or client_rack == leader_rack:
        return None
    nearby = [view for view in candidates if view.rack == client_rack]
    if not nearby:
        return None
    best = max(nearby, key=lambda view: (view.log_end, -view.since_caught_up_ms, view.broker_id))
    return best.broker_id


class ReadReplicaSelector:
    """Sends a consumer that names its rack to a replica nearby. Owner: the event loop."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        *,
        rack_of: Callable[[BrokerId], str | None],
        now_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._rack_of = rack_of
        self._now_ms = now_ms

    def select(self, partition: "Partition", params: "FetchParams", fetch_offset: int) -> BrokerId | None:
        """Return the replica to read from; None: the consumer reads from this broker."""
        if params.replica_id >= 0 or not params.client_rack or not partition.is_leader:
            return None
        config = self._config()
        if config.replica_selector_class != RACK_AWARE_SELECTOR:
            return None
        candidates = read_candidates(
            partition.machine, fetch_offset=fetch_offset, now_ms=self._now_ms(), rack_of=self._rack_of
        )
        return select_by_rack(params.client_rack, leader_rack=config.broker_rack, candidates=candidates)
