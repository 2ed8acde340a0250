"""The share coordinator's settings, as one immutable value."""

from dataclasses import dataclass
from typing import Final

from barnabas.base.config.derived import setting
from barnabas.base.topics import NewInternalTopic

#: Settings of the topic that the operator cannot change. Records are not compacted: an update is needed until the next
#: snapshot. The coordinator deletes what no state needs any more (`prune_interval_ms`).
_ENFORCED: Final = {"cleanup.policy": "delete", "retention.ms": "-1", "compression.type": "producer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareCoordinatorSettings:
    updates_per_snapshot: int = setting("share.coordinator.snapshot.update.records.per.snapshot")
    write_timeout_ms: int = setting("share.coordinator.write.timeout.ms")
    prune_interval_ms: int = setting("share.coordinator.state.topic.prune.interval.ms")
    cold_snapshot_interval_ms: int = setting("share.coordinator.cold.partition.snapshot.interval.ms")
    topic_partitions: int = setting("share.coordinator.state.topic.num.partitions")
    topic_replication_factor: int = setting("share.coordinator.state.topic.replication.factor")
    topic_min_isr: int = setting("share.coordinator.state.topic.min.isr")
    topic_segment_bytes: int = setting("share.coordinator.state.topic.segment.bytes")

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
