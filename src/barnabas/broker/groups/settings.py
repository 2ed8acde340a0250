"""A group machine's settings, as one immutable value."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from barnabas.base.config.broker import BrokerConfig
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Kafka's defaults; `of` takes them from a broker's configuration."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1
    offset_metadata_bytes_max: int = 4096
    offsets_retention_ms: int = 10_080 * 60_000
    offsets_retention_check_interval_ms: int = 600_000
    consumer_max_size: int = 2**31 - 1
    #: The first assignor is the default.
    consumer_assignors: tuple[str, ...] = (UNIFORM, RANGE)
    migration_policy: MigrationPolicy = MigrationPolicy.DISABLED
    topic_partitions: int = 50
    topic_replication_factor: int = 3
    topic_segment_bytes: int = 100 * 1024 * 1024

    @classmethod
    def of(cls, config: BrokerConfig) -> "GroupSettings":
        assignors = tuple(ASSIGNOR_NAMES[each] for each in config.group_consumer_assignors if each in ASSIGNOR_NAMES)
        return cls(
            min_session_timeout_ms=config.group_min_session_timeout_ms,
            max_session_timeout_ms=config.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            max_size=config.group_max_size,
            offset_metadata_bytes_max=config.offset_metadata_max_bytes,
            offsets_retention_ms=config.offsets_retention_minutes * 60_000,
            offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
            consumer_max_size=config.group_consumer_max_size,
            consumer_assignors=assignors or (UNIFORM, RANGE),
            migration_policy=MigrationPolicy(config.group_consumer_migration_policy.lower()),
            topic_partitions=config.offsets_topic_num_partitions,
            topic_replication_factor=config.offsets_topic_replication_factor,
            topic_segment_bytes=config.offsets_topic_segment_bytes,
        )

    @property
    def new_topic(self) -> NewInternalTopic:
        """Return `__consumer_offsets` as it is created."""
        settings = {**_ENFORCED, "segment.bytes": str(self.topic_segment_bytes)}
        return NewInternalTopic(self.topic_partitions, self.topic_replication_factor, settings, "offsets.topic")
