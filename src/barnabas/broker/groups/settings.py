"""A group machine's settings, as one immutable value."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from barnabas.base.config.derived import setting
from barnabas.base.config.units import MINUTE_MS
from barnabas.base.topics import NewInternalTopic

#: Settings of the topic that the operator cannot change.
_ENFORCED: Final = {"cleanup.policy": "compact", "compression.type": "producer"}

UNIFORM: Final = "uniform"
RANGE: Final = "range"

#: The server-side assignors, by the Java class that Kafka users configure and by their short name.
ASSIGNOR_NAMES: Final = {
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": UNIFORM,
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": RANGE,
    UNIFORM: UNIFORM,
    RANGE: RANGE,
}


class MigrationPolicy(Enum):
    """The directions in which a group with members may change its protocol. An empty group may always."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def allows_upgrade(self) -> bool:
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def allows_downgrade(self) -> bool:
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


def _assignors(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(ASSIGNOR_NAMES[each] for each in names if each in ASSIGNOR_NAMES) or (UNIFORM, RANGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    min_session_timeout_ms: int = setting("group.min.session.timeout.ms")
    max_session_timeout_ms: int = setting("group.max.session.timeout.ms")
    initial_rebalance_delay_ms: int = setting("group.initial.rebalance.delay.ms")
    max_size: int = setting("group.max.size")
    offset_metadata_bytes_max: int = setting("offset.metadata.max.bytes")
    offsets_retention_ms: int = setting("offsets.retention.minutes", lambda minutes: minutes * MINUTE_MS)
    offsets_retention_check_interval_ms: int = setting("offsets.retention.check.interval.ms")
    consumer_max_size: int = setting("group.consumer.max.size")
    #: The first assignor is the default.
    consumer_assignors: tuple[str, ...] = setting("group.consumer.assignors", _assignors)
    migration_policy: MigrationPolicy = setting(
        "group.consumer.migration.policy", lambda name: MigrationPolicy(name.lower())
    )
    share_max_size: int = setting("group.share.max.size")
    #: When to ask again for the state of a share partition if no answer came.
    share_initialize_retry_ms: int = setting("group.share.initialize.retry.interval.ms")
    streams_max_size: int = setting("group.streams.max.size")
    topic_partitions: int = setting("offsets.topic.num.partitions")
    topic_replication_factor: int = setting("offsets.topic.replication.factor")
    topic_segment_bytes: int = setting("offsets.topic.segment.bytes")

    @property
    def new_topic(self) -> NewInternalTopic:
        """Return `__consumer_offsets` as it is created."""
        settings = {**_ENFORCED, "segment.bytes": str(self.topic_segment_bytes)}
        return NewInternalTopic(self.topic_partitions, self.topic_replication_factor, settings, "offsets.topic")
