"""The share coordinator (KIP-932), as Kafka 4.3 defines it."""

from typing import Final

from barnabas.base.config.definition import Setting
from barnabas.base.config.definitions import reasons
from barnabas.base.config.definitions.shorthand import CLUSTER_WIDE, HIGH, INT, LOW, MEDIUM, READ_ONLY, SHORT
from barnabas.base.config.units import KIB, MIB, MINUTE_MS
from barnabas.base.config.validators import at_least, between

# A table: one line of facts and the meaning below it.
# fmt: off
SETTINGS: Final = (
    Setting("share.coordinator.state.topic.num.partitions", INT, 50, HIGH, at_least(1), READ_ONLY,
            "Partitions of __share_group_state; not to be changed once it exists."),
    Setting("share.coordinator.state.topic.replication.factor", SHORT, 3, HIGH, at_least(1), READ_ONLY,
            "Replicas of __share_group_state. Its creation waits until there are as many brokers."),
    Setting("share.coordinator.state.topic.min.isr", SHORT, 2, HIGH, at_least(1), READ_ONLY,
            "min.insync.replicas of __share_group_state."),
    Setting("share.coordinator.state.topic.segment.bytes", INT, 100 * MIB, HIGH, at_least(1), READ_ONLY,
            "Segment size of __share_group_state."),
    Setting("share.coordinator.state.topic.compression.codec", INT, 0, HIGH, None, READ_ONLY,
            "Codec of batches in __share_group_state, as a number: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."),
    Setting("share.coordinator.snapshot.update.records.per.snapshot", INT, 500, MEDIUM, between(0, 500), READ_ONLY,
            "Update records that are written for a share partition between two snapshots of its state."),
    Setting("share.coordinator.write.timeout.ms", INT, 5_000, HIGH, at_least(1), READ_ONLY,
            "How long a write waits for the replicas of __share_group_state."),
    Setting("share.coordinator.state.topic.prune.interval.ms", INT, 5 * MINUTE_MS, LOW, at_least(1), READ_ONLY,
            "How often records of __share_group_state are deleted that are older than every snapshot.", internal=True),
    Setting("share.coordinator.cold.partition.snapshot.interval.ms", INT, 5 * MINUTE_MS, LOW, at_least(1), READ_ONLY,
            "How often the state of a share partition that does not change is written again, so that older records can be "
            "deleted.", internal=True),
    Setting("share.coordinator.load.buffer.size", INT, 5 * MIB, HIGH, at_least(1), READ_ONLY,
            "Bytes that are read at a time when a coordinator loads share partitions. A larger batch is still read.",
            no_effect=reasons.LOAD),
    Setting("share.coordinator.threads", INT, 1, MEDIUM, at_least(1), READ_ONLY,
            "Threads of Kafka's share coordinator.", no_effect=reasons.LOOP),
    Setting("share.coordinator.append.linger.ms", INT, -1, MEDIUM, at_least(-1), READ_ONLY,
            "How long Kafka's share coordinator gathers writes into one batch.", no_effect=reasons.LINGER),
    Setting("share.coordinator.cached.buffer.max.bytes", INT, MIB + 12, MEDIUM, at_least(512 * KIB), CLUSTER_WIDE,
            "Largest write buffer that Kafka's share coordinator keeps for the next write.", no_effect=reasons.NO_BUFFER),
)
# fmt: on
