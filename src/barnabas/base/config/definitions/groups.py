"""Group coordination and committed offsets."""

from typing import Final

from barnabas.base.config.definition import INT_MAX, Setting
from barnabas.base.config.definitions import reasons
from barnabas.base.config.definitions.shorthand import BOOLEAN, HIGH, INT, LIST, LONG, MEDIUM, READ_ONLY, SHORT, STRING
from barnabas.base.config.units import KIB, MIB, MINUTE_MS
from barnabas.base.config.validators import EachOf, OneOf, at_least

# A table: one line of facts and the meaning below it.
# fmt: off
SETTINGS: Final = (
    Setting("group.min.session.timeout.ms", INT, 6_000, MEDIUM, None, READ_ONLY,
            "Shortest session timeout that a member may ask for."),
    Setting("group.max.session.timeout.ms", INT, 30 * MINUTE_MS, MEDIUM, None, READ_ONLY,
            "Longest session timeout that a member may ask for."),
    Setting("group.initial.rebalance.delay.ms", INT, 3_000, MEDIUM, None, READ_ONLY,
            "How long an empty group waits for more members before its first rebalance."),
    Setting("group.max.size", INT, INT_MAX, MEDIUM, at_least(1), READ_ONLY,
            "Members that a classic group may have."),
    Setting("group.coordinator.rebalance.protocols", LIST, ("classic",), MEDIUM,
            EachOf("consumer", "classic", "share", "streams", "unknown"), READ_ONLY,
            "Group protocols that are served; classic must be among them. Unset, the consumer and the streams protocol are "
            "served, too, where the features group.version and streams.version are on."),
    Setting("group.coordinator.threads", INT, 1, MEDIUM, at_least(1), READ_ONLY,
            "Threads of Kafka's new group coordinator.", no_effect=reasons.LOOP),
    Setting("group.coordinator.append.linger.ms", INT, 10, MEDIUM, at_least(0), READ_ONLY,
            "How long Kafka's new group coordinator gathers writes into one batch.", no_effect=reasons.LINGER),
    Setting("group.coordinator.new.enable", BOOLEAN, False, MEDIUM, None, READ_ONLY,
            "Whether Kafka uses its new group coordinator.", internal=True, no_effect=reasons.NEWCOORD),
    Setting("offset.metadata.max.bytes", INT, 4 * KIB, HIGH, None, READ_ONLY,
            "Largest metadata string that may go with a committed offset."),
    Setting("offsets.load.buffer.size", INT, 5 * MIB, HIGH, at_least(1), READ_ONLY,
            "Bytes that are read at a time when a coordinator loads offsets. A larger batch is still read.",
            no_effect=reasons.LOAD),
    Setting("offsets.topic.replication.factor", SHORT, 3, HIGH, at_least(1), READ_ONLY,
            "Replicas of __consumer_offsets. Its creation waits until there are as many brokers."),
    Setting("offsets.topic.num.partitions", INT, 50, HIGH, at_least(1), READ_ONLY,
            "Partitions of __consumer_offsets; not to be changed once it exists."),
    Setting("offsets.topic.segment.bytes", INT, 100 * MIB, HIGH, at_least(1), READ_ONLY,
            "Segment size of __consumer_offsets: small, so that compaction and loading are quick."),
    Setting("offsets.topic.compression.codec", INT, 0, HIGH, None, READ_ONLY,
            "Codec of batches in __consumer_offsets, as a number: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."),
    Setting("offsets.retention.minutes", INT, 10_080, HIGH, at_least(1), READ_ONLY,
            "How long the offsets of a group without members, or of a topic without subscribers, are kept."),
    Setting("offsets.retention.check.interval.ms", LONG, 10 * MINUTE_MS, HIGH, at_least(1), READ_ONLY,
            "How often expired offsets are looked for."),
    Setting("offsets.commit.timeout.ms", INT, 5_000, HIGH, at_least(1), READ_ONLY,
            "How long a commit waits for the replicas of the offsets topic."),
    Setting("offsets.commit.required.acks", SHORT, -1, HIGH, None, READ_ONLY,
            "Deprecated: acknowledgements before a commit counts; only -1 makes sense.",
            no_effect=reasons.ACKS),
    Setting("group.consumer.session.timeout.ms", INT, 45_000, MEDIUM, at_least(1), READ_ONLY,
            "Session timeout of members of the consumer protocol (KIP-848)."),
    Setting("group.consumer.min.session.timeout.ms", INT, 45_000, MEDIUM, at_least(1), READ_ONLY,
            "Shortest session timeout that a consumer group may be given."),
    Setting("group.consumer.max.session.timeout.ms", INT, MINUTE_MS, MEDIUM, at_least(1), READ_ONLY,
            "Longest session timeout that a consumer group may be given."),
    Setting("group.consumer.heartbeat.interval.ms", INT, 5_000, MEDIUM, at_least(1), READ_ONLY,
            "Heartbeat interval of members of the consumer protocol."),
    Setting("group.consumer.min.heartbeat.interval.ms", INT, 5_000, MEDIUM, at_least(1), READ_ONLY,
            "Shortest heartbeat interval that a consumer group may be given."),
    Setting("group.consumer.max.heartbeat.interval.ms", INT, 15_000, MEDIUM, at_least(1), READ_ONLY,
            "Longest heartbeat interval that a consumer group may be given."),
    Setting("group.consumer.max.size", INT, INT_MAX, MEDIUM, at_least(1), READ_ONLY,
            "Members that a consumer group may have."),
    Setting("group.consumer.assignors", LIST,
            ("org.apache.kafka.coordinator.group.assignor.UniformAssignor",
             "org.apache.kafka.coordinator.group.assignor.RangeAssignor"),
            MEDIUM, None, READ_ONLY,
            "Server-side assignors by their Java names, the default one first."),
    Setting("group.consumer.migration.policy", STRING, "disabled", MEDIUM,
            OneOf("DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL", ignore_case=True), READ_ONLY,
            "Whether groups move between the classic and the consumer protocol while they run: disabled, upgrade, "
            "downgrade or bidirectional.",
            internal=True),
)
# fmt: on
