"""All replicas of this broker: requests find their partition here, and waiting requests are woken here.

Owner: the event loop. `appends` and `fetches` carry out Produce and Fetch on the partitions in `hosted`.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from barnabas.base.clock import Clock
from barnabas.base.errors import ErrorCode, LogDirFault, Refused
from barnabas.base.ids import BrokerId, TopicPartition
from barnabas.base.metrics.registry import Registry
from barnabas.broker.replication.appends import Appends
from barnabas.broker.replication.delayed import DelayedDeleteRecords
from barnabas.broker.replication.fetcher_machine import never_throttled
from barnabas.broker.replication.fetches import Fetches
from barnabas.broker.replication.hosted import HostedPartitions
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.reads import FetchParams
from barnabas.broker.replication.state import IsrSettled, ProposeIsr
from barnabas.broker.runtime.timers import Timers

log = logging.getLogger(__name__)


class ReplicaManager:
    def __init__(
        self,
        broker_id: BrokerId,
        *,
        clock: Clock,
        timers: Timers,
        registry: Registry,
        is_known: Callable[[TopicPartition], bool],
        submit_isr_change: Callable[[Partition, ProposeIsr], None],
        prefers_replica: Callable[[Partition, FetchParams, int], int | None],
        fetch_bytes_max: int,
        is_throttled: Callable[[TopicPartition], bool] = never_throttled,
    ) -> None:
        """`is_known` returns whether the cluster has the partition; `prefers_replica` the replica that a consumer should read
        from; `is_throttled` whether a partition's records are withheld from followers that are not in sync."""
        self.broker_id = broker_id
        self.fetch_bytes_max = fetch_bytes_max
        self._clock = clock
        self._submit_isr_change = submit_isr_change
        self.hosted = hosted = HostedPartitions(broker_id, timers=timers, registry=registry, is_known=is_known)
        self.appends = Appends(hosted, clock)
        self.fetches = Fetches(
            hosted,
            clock,
            bytes_max=fetch_bytes_max,
            submit_isr_change=submit_isr_change,
            prefers_replica=prefers_replica,
            is_throttled=is_throttled,
        )
        self._add_gauges(registry)

    def _add_gauges(self, registry: Registry) -> None:
        def count(name: str, what: str, condition: Callable[[Partition], bool]) -> None:
            registry.gauge(
                f"kafka_server_replica_manager_{name}",
                what,
                lambda: sum(map(condition, self.hosted.partitions.values())),
            )

        count("partition_count", "Replicas on this broker.", lambda p: True)
        count("leader_count", "Partitions that this broker leads.", lambda p: p.is_leader)
        count(
            "under_replicated_partitions",
            "Led here, with replicas out of sync.",
            lambda p: p.machine.is_under_replicated,
        )
        count(
            "under_min_isr_partition_count",
            "Led here, below min.insync.replicas.",
            lambda p: p.machine.is_under_min_isr,
        )
        count("at_min_isr_partition_count", "Led here, at min.insync.replicas.", lambda p: p.machine.is_at_min_isr)
        count(
            "reassigning_partitions", "Led here, being reassigned.", lambda p: p.is_leader and p.machine.is_reassigning
        )

    def __iter__(self) -> Iterator[Partition]:
        return iter(self.hosted)

    # -- delete records -----------------------------------------------------------------------------------------------

    def delete_records(
        self,
        entries: Sequence[tuple[TopicPartition, int]],
        *,
        timeout_ms: int,
        on_done: Callable[[list[tuple[ErrorCode, int]]], None],
    ) -> DelayedDeleteRecords | None:
        """Move log starts on all replicas; pass (error, low watermark) of each entry to `on_done`. Return the wait, if any."""
        answers: list[tuple[ErrorCode, int]] = []
        waiting: dict[int, tuple[Partition, int]] = {}
        for index, (tp, offset) in enumerate(entries):
            try:
                partition = self.hosted.require(tp)
                waiting[index] = (partition, partition.delete_records(offset))
                answers.append((ErrorCode.NONE, -1))
            except Refused as refusal:
                answers.append((refusal.code, -1))
            except LogDirFault:
                answers.append((ErrorCode.KAFKA_STORAGE_ERROR, -1))

        def done(errors: dict[int, ErrorCode]) -> None:
            for index, (partition, _) in waiting.items():
                error = errors.get(index, ErrorCode.NONE)
                answers[index] = (error, -1 if error else partition.low_watermark())
            on_done(answers)

        operation = DelayedDeleteRecords(waiting, done)
        keys = [partition for partition, _ in waiting.values()]
        purgatory = self.hosted.delete_records_purgatory
        return None if purgatory.try_complete_else_watch(operation, keys, timeout_ms=timeout_ms) else operation

    # -- ticks and settings ------------------------------------------------------------------------------------

    def topic_settings_changed(self, topic: str) -> None:
        """Apply a topic's new settings, which the logs have already. `topic` is empty if every topic's may have changed."""
        now_ms = self._clock.now_ms()
        for partition in self.hosted.partitions.values():
            if partition.log is not None and topic in ("", partition.tp.topic):
                moved = partition.machine.set_min_insync_replicas(
                    partition.log.config.min_insync_replicas, log_end=partition.log.log_end_offset, now_ms=now_ms
                )
                if moved:
                    self.hosted.high_watermark_moved(partition)

    def isr_settled(self, partition: Partition, settled: IsrSettled) -> None:
        # A follower that left the ISR must be examined when it fetches.
        self.hosted.stir(partition)
        if settled.hw_moved:
            self.hosted.high_watermark_moved(partition)

    def tick(self, partitions: Iterable[Partition] | None = None) -> None:
        """Propose to shrink ISRs by lagging followers. Called periodically."""
        self.appends.early.forget_old()
        now_ms = self._clock.now_ms()
        for partition in list(self.hosted.partitions.values() if partitions is None else partitions):
            hw_moved, proposal = partition.tick(now_ms)
            if proposal is not None:
                log.info("[partition %s] proposing to shrink the ISR to %s", partition.tp, sorted(proposal.broker_ids))
                self._submit_isr_change(partition, proposal)
            if hw_moved:
                self.hosted.high_watermark_moved(partition)
