"""The partitions on this broker, and the requests that wait on them. Owner: the event loop."""

from collections.abc import Callable, Iterator

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import BrokerId, TopicPartition
from barnabas.base.metrics.registry import Registry
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.topic_counters import TopicCounters
from barnabas.broker.runtime.purgatory import Purgatory
from barnabas.broker.runtime.timers import Timers


class HostedPartitions:
    """Code that moves a log end, a high watermark or a log start calls `log_end_moved`, `high_watermark_moved` or
    `log_start_moved`, which wake the waiting requests."""

    def __init__(
        self, broker_id: BrokerId, *, timers: Timers, registry: Registry, is_known: Callable[[TopicPartition], bool]
    ) -> None:
        """`is_known` returns whether the cluster has the partition."""
        self.broker_id = broker_id
        self.timers = timers
        self.partitions: dict[TopicPartition, Partition] = {}
        #: Number of moves of log ends and high watermarks, of all partitions.
        self.movements = 0
        self._registry = registry
        self._is_known = is_known
        self._counters: dict[str, TopicCounters] = {}
        self.produce_purgatory = Purgatory("Produce", timers)
        self.fetch_purgatory = Purgatory("Fetch", timers)
        self.delete_records_purgatory = Purgatory("DeleteRecords", timers)
        for purgatory in (self.produce_purgatory, self.fetch_purgatory, self.delete_records_purgatory):
            registry.gauge(
                "kafka_server_purgatory_size", "Waiting requests.", purgatory.__len__, delayed_operation=purgatory.name
            )

    def __iter__(self) -> Iterator[Partition]:
        return iter(self.partitions.values())

    def get(self, tp: TopicPartition) -> Partition | None:
        return self.partitions.get(tp)

    def add(self, partition: Partition) -> None:
        self.partitions[partition.tp] = partition

    def remove(self, tp: TopicPartition) -> Partition | None:
        partition = self.partitions.pop(tp, None)
        if partition is not None:
            self.wake_all(partition)
        return partition

    def require(self, tp: TopicPartition) -> Partition:
        """Return the partition, or raise the error that sends a client to another broker."""
        partition = self.partitions.get(tp)
        if partition is not None:
            return partition
        if self._is_known(tp):
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{tp} is not on broker {self.broker_id}")
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {tp}")

    def counters(self, topic: str) -> TopicCounters:
        counters = self._counters.get(topic)
        if counters is None:
            counters = self._counters[topic] = TopicCounters.of(self._registry, topic)
        return counters

    def count(self, partition: Partition) -> TopicCounters:
        """Return the counters of the partition's topic, and keep them in the partition."""
        counters = partition.counters = self.counters(partition.tp.topic)
        return counters

    def forget_topic(self, topic: str) -> None:
        """Remove the counters of a deleted topic: otherwise a broker with many short-lived topics grows without end."""
        if self._counters.pop(topic, None) is not None:
            TopicCounters.remove(self._registry, topic)
            for partition in self.partitions.values():
                if partition.tp.topic == topic:
                    partition.counters = None

    def grew(self, partition: Partition, hw_moved: bool) -> None:
        """Wake the requests that wait for a leader's append: nearly always there are none."""
        watchers = self.fetch_purgatory.watchers
        if partition.resting or partition.log_end_key in watchers:
            self.log_end_moved(partition)
        else:
            self.movements += 1
        if hw_moved and (partition in watchers or partition in self.produce_purgatory.watchers or partition.resting):
            self.high_watermark_moved(partition)

    def log_end_moved(self, partition: Partition) -> None:
        self.movements += 1
        if partition.log_end_key in self.fetch_purgatory.watchers:
            self.fetch_purgatory.check(partition.log_end_key)
        if partition.resting:
            self.stir(partition)

    def high_watermark_moved(self, partition: Partition) -> None:
        self.movements += 1
        if partition in self.produce_purgatory.watchers:
            self.produce_purgatory.check(partition)
        if partition in self.fetch_purgatory.watchers:
            self.fetch_purgatory.check(partition)
        if partition.resting:
            self.stir(partition)

    def log_start_moved(self, tp: TopicPartition) -> None:
        partition = self.partitions.get(tp)
        if partition is not None and partition.resting:
            self.stir(partition)

    def stir(self, partition: Partition) -> None:
        """Wake the followers' sessions that skip the partition."""
        for session in partition.stir():
            self.fetch_purgatory.check(session)

    def wake_all(self, partition: Partition) -> None:
        """Wake all requests that wait for the partition: it has changed its role, or is gone."""
        self.high_watermark_moved(partition)
        self.log_end_moved(partition)
        self.delete_records_purgatory.check(partition)
