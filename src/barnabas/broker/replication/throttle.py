"""Replication throttles (KIP-73): limit how fast moved replicas are copied, so that clients keep their share.

Owner: the event loop. A broker has one throttle for its leaders, one for its followers, one for moves between its directories.
It counts and delays only replicas on the throttled list, and of those only the ones that are not in sync: an in-sync replica
would leave the ISR, come back, and leave it again.

    leader:    while the rate is used up, answers a follower that is not in sync without a throttled partition's records
    follower:  while the rate is used up, does not fetch throttled partitions
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.log_config import LogConfig
from barnabas.base.ids import BrokerId, TopicPartition
from barnabas.base.metrics.registry import Registry
from barnabas.broker.security.rates import SimpleRate

#: No limit: Kafka's default.
UNLIMITED: Final = 2**63 - 1
ALL_REPLICAS: Final = "*"

#: Throttled lists whose parsed form is cached.
PARSED_MAX: Final = 1_000

#: A topic's `…replication.throttled.replicas`: `partition:broker` pairs, or `*`.
ThrottledReplicas = tuple[str, ...]


class ReplicationThrottle:
    def __init__(
        self,
        broker_id: BrokerId,
        *,
        windows: int,
        window_ms: int,
        now_ms: Callable[[], int],
        replicas_of: Callable[[str], ThrottledReplicas],
        limit: int = UNLIMITED,
    ) -> None:
        """`replicas_of(topic)` returns the current throttled list; `now_ms` is a clock that does not go back."""
        self._broker_id = broker_id
        self._now_ms = now_ms
        self._replicas_of = replicas_of
        self._rate = SimpleRate(windows=windows, window_ms=window_ms)
        #: Bytes per second; changes while the broker runs.
        self.limit = limit
        #: Throttled list -> partitions of this broker on it; None for all. Bounded by the lists that topics have now.
        self._parsed: dict[ThrottledReplicas, frozenset[int] | None] = {}

    def is_listed(self, partition: TopicPartition) -> bool:
        replicas = self._replicas_of(partition.topic)
        if not replicas:
            return False
        if replicas not in self._parsed:
            if len(self._parsed) >= PARSED_MAX:
                self._parsed.clear()
            self._parsed[replicas] = self._parse(replicas)
        partitions = self._parsed[replicas]
        return partitions is None or partition.partition in partitions

    def _parse(self, replicas: ThrottledReplicas) -> frozenset[int] | None:
        if ALL_REPLICAS in replicas:
            return None
        pairs = (each.split(":") for each in replicas)
        return frozenset(int(partition) for partition, broker in pairs if int(broker) == self._broker_id)

    @property
    def is_used_up(self) -> bool:
        return self.limit < UNLIMITED and self._rate.per_second(self._now_ms()) > self.limit

    def is_throttled(self, partition: TopicPartition) -> bool:
        """Whether the partition is on the list and the rate is used up."""
        return self.is_used_up and self.is_listed(partition)

    def record(self, partition: TopicPartition, size: int) -> None:
        """Count bytes sent to, or fetched for, a replica, if it is on the list."""
        if self.is_listed(partition):
            self._rate.record(size, self._now_ms())

    def record_any(self, size: int) -> None:
        self._rate.record(size, self._now_ms())

    def wait_ms(self) -> int:
        """Return how long nothing may be copied until the rate is back at its limit."""
        return self._rate.throttle_ms(self.limit, self._now_ms()) if self.limit < UNLIMITED else 0

    def bytes_per_second(self) -> float:
        """Return the current rate, for the metrics."""
        return self._rate.per_second(self._now_ms())


@dataclass(frozen=True, slots=True)
class ReplicationThrottles:
    """All throttles of a broker."""

    leader: ReplicationThrottle
    follower: ReplicationThrottle
    #: Counts every move between directories.
    moves: ReplicationThrottle

    @staticmethod
    def of(
        broker_id: BrokerId,
        config: BrokerConfig,
        *,
        now_ms: Callable[[], int],
        config_of: Callable[[str], LogConfig],
        registry: Registry,
    ) -> "ReplicationThrottles":
        def new_throttle(
            replicas_of: Callable[[str], ThrottledReplicas], windows: int, seconds: int
        ) -> ReplicationThrottle:
            return ReplicationThrottle(
                broker_id, windows=windows, window_ms=seconds * 1000, now_ms=now_ms, replicas_of=replicas_of
            )

        windows, seconds = config.replication_quota_window_num, config.replication_quota_window_size_seconds
        throttles = ReplicationThrottles(
            new_throttle(lambda topic: config_of(topic).leader_replication_throttled_replicas, windows, seconds),
            new_throttle(lambda topic: config_of(topic).follower_replication_throttled_replicas, windows, seconds),
            new_throttle(
                lambda topic: (ALL_REPLICAS,),
                config.alter_log_dirs_replication_quota_window_num,
                config.alter_log_dirs_replication_quota_window_size_seconds,
            ),
        )
        throttles.change_limits(config)
        for kind, throttle in (
            ("LeaderReplication", throttles.leader),
            ("FollowerReplication", throttles.follower),
            ("AlterLogDirsReplication", throttles.moves),
        ):
            registry.gauge(
                "kafka_server_replication_byte_rate",
                "Bytes a second of throttled replicas.",
                throttle.bytes_per_second,
                quota=kind,
            )
        return throttles

    def change_limits(self, config: BrokerConfig) -> None:
        self.leader.limit = config.leader_replication_throttled_rate
        self.follower.limit = config.follower_replication_throttled_rate
        self.moves.limit = config.replica_alter_log_dirs_io_max_bytes_per_second
