"""The share coordinator's settings, as one immutable value."""

from dataclasses import dataclass
from typing import Final

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.topics import NewInternalTopic

#: Settings of the topic that the operator cannot change. Records are not compacted: an update is needed until the next
#: snapshot. The coordinator deletes what no state needs any more (`prune_interval_ms`).
_ENFORCED: Final = {"cleanup.policy": "delete", "retention.ms": "-1", "compression.type": "producer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareCoordinatorSettings:
    """Kafka's defaults; `of` takes them from a broker's configuration."""

    updates_per_snapshot: int = 500
    write_timeout_ms: int = 5_000
    prune_interval_ms: int = 300_000
    cold_snapshot_interval_ms: int = 300_000
    request_timeout_ms: int = 30_000
    topic_partitions: int = 50
    topic_replication_factor: int = 3
    topic_min_isr: int = 2
    topic_segment_bytes: int = 100 * 1024 * 1024

    @classmethod
    def of(cls, config: BrokerConfig) -> "ShareCoordinatorSettings":
        return cls(
            updates_per_snapshot=config.share_coordinator_snapshot_update_records_per_snapshot,
            write_timeout_ms=config.share_coordinator_write_timeout_ms,
            prune_interval_ms=config.share_coordinator_state_topic_prune_interval_ms,
            cold_snapshot_interval_ms=config.share_coordinator_cold_partition_snapshot_interval_ms,
            request_timeout_ms=config.request_timeout_ms,
            topic_partitions=config.share_coordinator_state_topic_num_partitions,
            topic_replication_factor=config.share_coordinator_state_topic_replication_factor,
            topic_min_isr=config.share_coordinator_state_topic_min_isr,
            topic_segment_bytes=config.share_coordinator_state_topic_segment_bytes,
        )

    @property
    def new_topic(self) -> NewInternalTopic:
        """Return `__share_group_state` as it is created."""
        settings = {
            **_ENFORCED,
            "min.insync.replicas": str(self.topic_min_isr),
            "segment.bytes": str(self.topic_segment_bytes),
        }
        return NewInternalTopic(
            self.topic_partitions, self.topic_replication_factor, settings, "share.coordinator.state.topic"
        )
