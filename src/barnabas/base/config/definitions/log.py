"""Broker settings of the log: defaults for topics, directories, flushing, retention, compaction."""

from typing import Final

from barnabas.base.config.definition import DOUBLE_MAX, LONG_MAX, Setting
from barnabas.base.config.definitions import reasons
from barnabas.base.config.definitions.shorthand import (
    BOOLEAN,
    CLASS,
    CLUSTER_WIDE,
    DOUBLE,
    HIGH,
    INT,
    LONG,
    LOW,
    MEDIUM,
    READ_ONLY,
    STRING,
)
from barnabas.base.config.units import KIB, MIB, MINUTE_MS
from barnabas.base.config.validators import MetadataVersion, at_least

# A table: one line of facts and the meaning below it.
# fmt: off
SETTINGS: Final = (
    Setting("num.partitions", INT, 1, MEDIUM, at_least(1), READ_ONLY,
            "Partitions of a topic that is created without a number."),
    Setting("log.dir", STRING, "/tmp/kafka-logs", HIGH, None, READ_ONLY,
            "The log directory, where log.dirs is not set."),
    Setting("log.dirs", STRING, None, HIGH, None, READ_ONLY,
            "Comma-separated directories for partitions; a failed one goes offline and the others go on. Unset: "
            "log.dir."),
    Setting("log.roll.ms", LONG, None, HIGH, None, CLUSTER_WIDE,
            "Default of the topic setting segment.ms; unset, log.roll.hours counts."),
    Setting("log.roll.hours", INT, 168, HIGH, at_least(1), READ_ONLY,
            "Default of the topic setting segment.ms in hours, where log.roll.ms is not set."),
    Setting("log.roll.jitter.ms", LONG, None, HIGH, None, CLUSTER_WIDE,
            "Default of the topic setting segment.jitter.ms; unset, log.roll.jitter.hours counts."),
    Setting("log.roll.jitter.hours", INT, 0, HIGH, at_least(0), READ_ONLY,
            "Default of the topic setting segment.jitter.ms in hours, where log.roll.jitter.ms is not set."),
    Setting("log.retention.ms", LONG, None, HIGH, None, CLUSTER_WIDE,
            "Default of the topic setting retention.ms; -1 for no limit. Unset, log.retention.minutes counts."),
    Setting("log.retention.minutes", INT, None, HIGH, None, READ_ONLY,
            "Default of the topic setting retention.ms in minutes, where log.retention.ms is not set; unset, "
            "log.retention.hours counts."),
    Setting("log.retention.hours", INT, 168, HIGH, None, READ_ONLY,
            "Default of the topic setting retention.ms in hours, where neither log.retention.ms nor "
            "log.retention.minutes is set."),
    Setting("log.retention.check.interval.ms", LONG, 5 * MINUTE_MS, MEDIUM, at_least(1), READ_ONLY,
            "How often logs are looked over for segments past retention."),
    Setting("log.flush.scheduler.interval.ms", LONG, LONG_MAX, HIGH, None, READ_ONLY,
            "How often logs are looked over for flushes that are due; also the default of flush.ms where "
            "log.flush.interval.ms is not set."),
    Setting("log.flush.interval.ms", LONG, None, HIGH, None, CLUSTER_WIDE,
            "Default of the topic setting flush.ms; unset, log.flush.scheduler.interval.ms counts."),
    Setting("log.flush.offset.checkpoint.interval.ms", INT, MINUTE_MS, HIGH, at_least(0), READ_ONLY,
            "How often the recovery point of each log is written, which bounds what is checked after a crash."),
    Setting("log.flush.start.offset.checkpoint.interval.ms", INT, MINUTE_MS, HIGH, at_least(0), READ_ONLY,
            "How often the log start offsets are written, so that deleted records do not come back after a crash."),
    Setting("num.recovery.threads.per.data.dir", INT, 1, HIGH, at_least(1), CLUSTER_WIDE,
            "Logs of one directory that are recovered at the same time at start, and flushed at stop."),
    Setting("auto.create.topics.enable", BOOLEAN, True, HIGH, None, READ_ONLY,
            "Whether a metadata request for an unknown topic creates it."),
    Setting("log.message.format.version", STRING, "3.0-IV1", MEDIUM, MetadataVersion(), READ_ONLY,
            "Deprecated: default of the topic setting message.format.version.", no_effect=reasons.FORMAT),
    Setting("create.topic.policy.class.name", CLASS, None, LOW, None, READ_ONLY,
            "Java class that may refuse the creation of a topic.", no_effect=reasons.JAVA),
    Setting("alter.config.policy.class.name", CLASS, None, LOW, None, READ_ONLY,
            "Java class that may refuse a change of settings.", no_effect=reasons.JAVA),
    Setting("log.dir.failure.timeout.ms", LONG, 30_000, LOW, at_least(1), READ_ONLY,
            "Time after which a broker that cannot report a failed directory to the KRaft controller stops.",
            no_effect=reasons.KRAFT),
    Setting("log.initial.task.delay.ms", LONG, 30_000, LOW, at_least(0), READ_ONLY,
            "Time after start before the periodic log tasks (retention, flush, checkpoints) begin.", internal=True),
    Setting("log.cleaner.threads", INT, 1, MEDIUM, at_least(0), CLUSTER_WIDE,
            "Worker processes for compaction, started when there is something to compact."),
    Setting("log.cleaner.io.max.bytes.per.second", DOUBLE, DOUBLE_MAX, MEDIUM, None, CLUSTER_WIDE,
            "Bytes per second that compaction may read and write in all."),
    Setting("log.cleaner.dedupe.buffer.size", LONG, 128 * MIB, MEDIUM, None, CLUSTER_WIDE,
            "Memory for the map of keys of one cleaning, over all cleaner threads; it bounds how many keys one pass "
            "takes."),
    Setting("log.cleaner.io.buffer.size", INT, 512 * KIB, MEDIUM, at_least(0), CLUSTER_WIDE,
            "Memory for the read and write buffers of compaction, over all cleaner threads."),
    Setting("log.cleaner.io.buffer.load.factor", DOUBLE, 0.9, MEDIUM, None, CLUSTER_WIDE,
            "Share of the key map that may fill up. Fuller takes more keys in a pass."),
    Setting("log.cleaner.backoff.ms", LONG, 15_000, MEDIUM, at_least(0), CLUSTER_WIDE,
            "Pause of the cleaner when no log is due."),
    Setting("log.cleaner.enable", BOOLEAN, True, MEDIUM, None, READ_ONLY,
            "Whether compaction runs; without it compacted topics, offsets among them, grow without end."),
)
# fmt: on
