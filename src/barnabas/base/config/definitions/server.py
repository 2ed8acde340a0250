"""The broker itself: its identity, its limits, its end; and metrics."""

from typing import Final

from barnabas.base.config.definition import Setting
from barnabas.base.config.definitions import reasons
from barnabas.base.config.definitions.shorthand import (
    BOOLEAN,
    CLUSTER_WIDE,
    HIGH,
    INT,
    LIST,
    LONG,
    LOW,
    MEDIUM,
    READ_ONLY,
    STRING,
)
from barnabas.base.config.units import MIB
from barnabas.base.config.validators import NonNull, at_least

# A table: one line of facts and the meaning below it.
# fmt: off
SETTINGS: Final = (
    Setting("broker.id.generation.enable", BOOLEAN, True, MEDIUM, None, READ_ONLY,
            "Whether a broker without broker.id gets one from ZooKeeper, above reserved.broker.max.id."),
    Setting("reserved.broker.max.id", INT, 1_000, MEDIUM, at_least(0), READ_ONLY,
            "Largest id that may be set by hand; generated ones start above it."),
    Setting("broker.id", INT, -1, HIGH, None, READ_ONLY,
            "This broker's number, unique in the cluster; -1 for a generated one."),
    Setting("num.io.threads", INT, 8, HIGH, at_least(1), CLUSTER_WIDE,
            "Request handler threads in Kafka.", no_effect=reasons.LOOP),
    Setting("num.replica.alter.log.dirs.threads", INT, None, HIGH, None, READ_ONLY,
            "Replicas that move between log directories at the same time; unset, one per directory.",
            no_effect=reasons.MOVES),
    Setting("background.threads", INT, 10, HIGH, at_least(1), CLUSTER_WIDE,
            "Threads for file work in the background (flush, delete, recovery)."),
    Setting("request.timeout.ms", INT, 30_000, HIGH, None, READ_ONLY,
            "How long a request of this broker to another one may take before it counts as failed."),
    Setting("socket.connection.setup.timeout.ms", LONG, 10_000, MEDIUM, None, READ_ONLY,
            "How long setting up a connection to another broker may take; it grows with each failure in a row."),
    Setting("socket.connection.setup.timeout.max.ms", LONG, 30_000, MEDIUM, None, READ_ONLY,
            "Bound to which the connection setup time grows."),
    Setting("authorizer.class.name", STRING, "", LOW, NonNull(), READ_ONLY,
            "Authorizer, by its Java name (kafka.security.authorizer.AclAuthorizer); empty allows "
            "everything."),
    Setting("early.start.listeners", STRING, None, HIGH, None, READ_ONLY,
            "Listeners that Kafka opens before the authorizer is ready.", no_effect=reasons.EARLY),
    Setting("broker.rack", STRING, None, MEDIUM, None, READ_ONLY,
            "The rack of this broker: replicas are spread over racks, and consumers may read from their own."),
    Setting("controlled.shutdown.max.retries", INT, 3, MEDIUM, None, READ_ONLY,
            "Attempts to hand over leaderships before stopping anyway."),
    Setting("controlled.shutdown.retry.backoff.ms", LONG, 5_000, MEDIUM, None, READ_ONLY,
            "Pause between two such attempts."),
    Setting("controlled.shutdown.enable", BOOLEAN, True, MEDIUM, None, READ_ONLY,
            "Whether a broker hands over its leaderships before it stops."),
    Setting("delete.topic.enable", BOOLEAN, True, HIGH, None, READ_ONLY,
            "Whether topics may be deleted."),
    Setting("max.incremental.fetch.session.cache.slots", INT, 1_000, MEDIUM, at_least(0), READ_ONLY,
            "Fetch sessions that are kept at the same time."),
    Setting("fetch.max.bytes", INT, 55 * MIB, MEDIUM, at_least(1_024), READ_ONLY,
            "Bytes that one fetch may return. A first batch that is larger is still sent."),
    Setting("max.request.partition.size.limit", INT, 2_000, MEDIUM, at_least(1), READ_ONLY,
            "Partitions that one DescribeTopicPartitions answer may have."),
    Setting("unstable.api.versions.enable", BOOLEAN, False, HIGH, None, READ_ONLY,
            "Whether Kafka announces API versions that are still in development.",
            internal=True, no_effect=reasons.UNSTABLE),
    Setting("unstable.feature.versions.enable", BOOLEAN, False, HIGH, None, READ_ONLY,
            "Whether Kafka announces feature versions that are still in development.",
            internal=True, no_effect=reasons.UNSTABLE),
    Setting("metrics.num.samples", INT, 2, LOW, at_least(1), READ_ONLY,
            "Windows over which Kafka computes rates.", no_effect=reasons.METRICS),
    Setting("metrics.sample.window.ms", LONG, 30_000, LOW, at_least(1), READ_ONLY,
            "Length of such a window.", no_effect=reasons.METRICS),
    Setting("metric.reporters", LIST, (), LOW, None, CLUSTER_WIDE,
            "Java classes that report metrics.", no_effect=reasons.METRICS),
    Setting("metrics.recording.level", STRING, "INFO", LOW, None, READ_ONLY,
            "Finest level of metrics that Kafka records.", no_effect=reasons.METRICS),
    Setting("auto.include.jmx.reporter", BOOLEAN, True, LOW, None, READ_ONLY,
            "Deprecated: whether Kafka's metrics show in JMX without being asked.", no_effect=reasons.METRICS),
    Setting("kafka.metrics.reporters", LIST, (), LOW, None, READ_ONLY,
            "Java classes that report Yammer metrics.", no_effect=reasons.METRICS),
    Setting("kafka.metrics.polling.interval.secs", INT, 10, LOW, at_least(1), READ_ONLY,
            "How often these reporters poll.", no_effect=reasons.METRICS),
    Setting("telemetry.max.bytes", INT, MIB, LOW, at_least(1), READ_ONLY,
            "Largest batch of client metrics (KIP-714) that is accepted."),
)
# fmt: on
