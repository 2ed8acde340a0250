"""Replication between brokers, and what the controller does for it."""

from typing import Final

from barnabas.base.config.definition import Setting
from barnabas.base.config.definitions import reasons
from barnabas.base.config.definitions.shorthand import BOOLEAN, CLUSTER_WIDE, HIGH, INT, LONG, MEDIUM, READ_ONLY, STRING
from barnabas.base.config.units import KIB, MIB, MINUTE_MS
from barnabas.base.config.validators import MetadataVersion, at_least, one_of

# A table: one line of facts and the meaning below it.
# fmt: off
SETTINGS: Final = (
    Setting("controller.socket.timeout.ms", INT, 30_000, MEDIUM, None, READ_ONLY,
            "How long the controller waits for a broker's answer."),
    Setting("default.replication.factor", INT, 1, MEDIUM, None, READ_ONLY,
            "Replicas of a topic that is created without a number, automatic creation included."),
    Setting("replica.lag.time.max.ms", LONG, 30_000, HIGH, None, READ_ONLY,
            "Time without having caught up with the leader's log end after which a follower leaves the ISR."),
    Setting("replica.socket.timeout.ms", INT, 30_000, HIGH, None, READ_ONLY,
            "How long a follower waits for the answer to a fetch; at least replica.fetch.wait.max.ms."),
    Setting("replica.socket.receive.buffer.bytes", INT, 64 * KIB, HIGH, None, READ_ONLY,
            "Socket receive buffer for fetches from a leader; -1 leaves it to the operating system.",
            no_effect=reasons.KERNEL_BUFFER),
    Setting("replica.fetch.max.bytes", INT, MIB, MEDIUM, at_least(0), READ_ONLY,
            "Bytes that a follower asks for per partition. A larger batch is still sent, alone, so that replication "
            "goes on."),
    Setting("replica.fetch.wait.max.ms", INT, 500, HIGH, None, READ_ONLY,
            "How long a leader holds a follower's fetch that finds nothing new; at most replica.lag.time.max.ms."),
    Setting("replica.fetch.backoff.ms", INT, 1_000, MEDIUM, at_least(0), READ_ONLY,
            "Pause of a fetcher after an error."),
    Setting("replica.fetch.min.bytes", INT, 1, HIGH, None, READ_ONLY,
            "Bytes that must be there before a leader answers a follower early."),
    Setting("replica.fetch.response.max.bytes", INT, 10 * MIB, MEDIUM, at_least(0), READ_ONLY,
            "Bytes that a follower asks for over all partitions of a fetch. A first batch that is larger is still "
            "sent."),
    Setting("num.replica.fetchers", INT, 1, HIGH, None, CLUSTER_WIDE,
            "Fetch connections to each source broker; the partitions are spread over them."),
    Setting("replica.high.watermark.checkpoint.interval.ms", LONG, 5_000, HIGH, None, READ_ONLY,
            "How often the high watermarks are written to disk."),
    Setting("fetch.purgatory.purge.interval.requests", INT, 1_000, MEDIUM, None, READ_ONLY,
            "Completed fetches after which Kafka sweeps its purgatory.", no_effect=reasons.PURGATORY),
    Setting("producer.purgatory.purge.interval.requests", INT, 1_000, MEDIUM, None, READ_ONLY,
            "Completed produce requests after which Kafka sweeps its purgatory.", no_effect=reasons.PURGATORY),
    Setting("delete.records.purgatory.purge.interval.requests", INT, 1, MEDIUM, None, READ_ONLY,
            "Completed delete-records requests after which Kafka sweeps its purgatory.", no_effect=reasons.PURGATORY),
    Setting("auto.leader.rebalance.enable", BOOLEAN, True, HIGH, None, READ_ONLY,
            "Whether the controller gives leadership back to preferred replicas by itself."),
    Setting("leader.imbalance.per.broker.percentage", INT, 10, HIGH, None, READ_ONLY,
            "Share of a broker's preferred leaderships that may be elsewhere before the controller moves them back."),
    Setting("leader.imbalance.check.interval.seconds", LONG, 300, HIGH, at_least(1), READ_ONLY,
            "How often the controller looks for leadership imbalance."),
    Setting("unclean.leader.election.interval.ms", LONG, 5 * MINUTE_MS, MEDIUM, at_least(1), READ_ONLY,
            "How often a KRaft controller looks for unclean elections that are due.",
            internal=True, no_effect=reasons.KRAFT),
    Setting("unclean.leader.election.enable", BOOLEAN, False, HIGH, None, CLUSTER_WIDE,
            "Default of the topic setting unclean.leader.election.enable."),
    Setting("security.inter.broker.protocol", STRING, "PLAINTEXT", MEDIUM,
            one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"), READ_ONLY,
            "Security protocol between brokers, where inter.broker.listener.name is not set; only one of the two "
            "may be set."),
    Setting("inter.broker.protocol.version", STRING, "3.9-IV0", MEDIUM, MetadataVersion(), READ_ONLY,
            "Version of the inter-broker protocol that Kafka brokers agree on during an upgrade.",
            no_effect=reasons.IBP),
    Setting("inter.broker.listener.name", STRING, None, MEDIUM, None, READ_ONLY,
            "Listener that brokers use among themselves; unset, the one named like security.inter.broker.protocol."),
    Setting("replica.selector.class", STRING, None, MEDIUM, None, READ_ONLY,
            "How a consumer's preferred read replica is chosen: "
            "org.apache.kafka.common.replica.RackAwareReplicaSelector, or unset for the leader."),
)
# fmt: on
