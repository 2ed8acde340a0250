"""Settings that a topic may have of its own. Each but five inherits from a broker setting."""

from typing import Final

from barnabas.core.config.definition import LONG_MAX, Setting
from barnabas.core.config.definitions import reasons
from barnabas.core.config.definitions.shorthand import BOOLEAN, DOUBLE, INT, LIST, LONG, LOW, MEDIUM, STRING, TOPIC
from barnabas.core.config.units import DAY_MS, GIB, KIB, MIB, MINUTE_MS
from barnabas.core.config.validators import (
    EachOf,
    MetadataVersion,
    OneValueOr,
    ThrottledReplicas,
    at_least,
    between,
    one_of,
)

# A table: one line of facts and the meaning below it.
# fmt: off
SETTINGS: Final = (
    Setting("segment.bytes", INT, GIB, MEDIUM, at_least(14), TOPIC,
            "Size at which a segment file is closed and a new one begun. Retention and compaction work on whole "
            "segments, so a smaller one gives finer control and more files.",
            server_default="log.segment.bytes"),
    Setting("segment.ms", LONG, 7 * DAY_MS, MEDIUM, at_least(1), TOPIC,
            "Age at which the active segment is closed even if it is not full, so that retention and compaction can "
            "reach its records.",
            server_default="log.roll.ms"),
    Setting("segment.jitter.ms", LONG, 0, MEDIUM, at_least(0), TOPIC,
            "Upper bound of a random amount taken off segment.ms, so that many partitions do not roll at the same "
            "moment.",
            server_default="log.roll.jitter.ms"),
    Setting("segment.index.bytes", INT, 10 * MIB, MEDIUM, at_least(4), TOPIC,
            "Size of an offset or time index file; it is allocated sparsely and cut when the segment rolls.",
            server_default="log.index.size.max.bytes"),
    Setting("flush.messages", LONG, LONG_MAX, MEDIUM, at_least(1), TOPIC,
            "Number of messages after which the log is forced to disk. The default leaves flushing to the operating "
            "system and safety to replication.",
            server_default="log.flush.interval.messages"),
    Setting("flush.ms", LONG, LONG_MAX, MEDIUM, at_least(0), TOPIC,
            "Time after which unflushed data is forced to disk. The default leaves flushing to the operating system "
            "and safety to replication.",
            server_default="log.flush.interval.ms"),
    Setting("retention.bytes", LONG, -1, MEDIUM, None, TOPIC,
            "Size per partition beyond which the oldest segments go under the delete policy; -1 for no limit.",
            server_default="log.retention.bytes"),
    Setting("retention.ms", LONG, 7 * DAY_MS, MEDIUM, at_least(-1), TOPIC,
            "Age beyond which segments go under the delete policy; -1 for no limit.",
            server_default="log.retention.ms"),
    Setting("max.message.bytes", INT, MIB + 12, MEDIUM, at_least(0), TOPIC,
            "Largest record batch that is accepted, header included and compressed as it came.",
            server_default="message.max.bytes"),
    Setting("index.interval.bytes", INT, 4 * KIB, MEDIUM, at_least(0), TOPIC,
            "Bytes of log between two entries of the offset index. A smaller step finds a position faster and makes "
            "the index larger.",
            server_default="log.index.interval.bytes"),
    Setting("delete.retention.ms", LONG, DAY_MS, MEDIUM, at_least(0), TOPIC,
            "How long a tombstone, or a transaction marker, stays in a compacted log, which is the time a reader "
            "has to come through from the start.",
            server_default="log.cleaner.delete.retention.ms"),
    Setting("min.compaction.lag.ms", LONG, 0, MEDIUM, at_least(0), TOPIC,
            "Age below which a record is never compacted away.", server_default="log.cleaner.min.compaction.lag.ms"),
    Setting("max.compaction.lag.ms", LONG, LONG_MAX, MEDIUM, at_least(1), TOPIC,
            "Age at which a record of a compacted topic becomes due for compaction, whatever the dirty ratio is.",
            server_default="log.cleaner.max.compaction.lag.ms"),
    Setting("file.delete.delay.ms", LONG, MINUTE_MS, MEDIUM, at_least(0), TOPIC,
            "Time between renaming a file for deletion and removing it, for readers that still have it open.",
            server_default="log.segment.delete.delay.ms"),
    Setting("min.cleanable.dirty.ratio", DOUBLE, 0.5, MEDIUM, between(0, 1), TOPIC,
            "Share of a log that must be uncompacted before the cleaner takes it. A higher ratio means fewer, "
            "larger cleanings and more space held by duplicates.",
            server_default="log.cleaner.min.cleanable.ratio"),
    Setting("cleanup.policy", LIST, ("delete",), MEDIUM, EachOf("compact", "delete"), TOPIC,
            "delete drops segments that are past retention, compact keeps the last value of each key; both together "
            "do both.",
            server_default="log.cleanup.policy"),
    Setting("unclean.leader.election.enable", BOOLEAN, False, MEDIUM, None, TOPIC,
            "Whether a replica outside the ISR may become leader when no other is left, at the price of losing "
            "records.",
            server_default="unclean.leader.election.enable"),
    Setting("min.insync.replicas", INT, 1, MEDIUM, at_least(1), TOPIC,
            "Size of the ISR below which a write with acks=all is refused.", server_default="min.insync.replicas"),
    Setting("compression.type", STRING, "producer", MEDIUM,
            one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), TOPIC,
            "Codec in which batches are stored. producer keeps what the producer chose; uncompressed, gzip, snappy, "
            "lz4 or zstd store that codec instead.",
            server_default="compression.type"),
    Setting("compression.gzip.level", INT, -1, MEDIUM, OneValueOr(-1, 1, 9), TOPIC,
            "Level used where compression.type is gzip; -1 takes the library's own default.",
            server_default="compression.gzip.level"),
    Setting("compression.lz4.level", INT, 9, MEDIUM, between(1, 17), TOPIC,
            "Level used where compression.type is lz4.", server_default="compression.lz4.level"),
    Setting("compression.zstd.level", INT, 3, MEDIUM, between(-131_072, 22), TOPIC,
            "Level used where compression.type is zstd.", server_default="compression.zstd.level"),
    Setting("preallocate", BOOLEAN, False, MEDIUM, None, TOPIC,
            "Whether a new segment's file is created at its full size.", server_default="log.preallocate"),
    Setting("message.format.version", STRING, "3.0-IV1", MEDIUM, MetadataVersion(), TOPIC,
            "Deprecated: the record format that older brokers wrote.",
            server_default="log.message.format.version", no_effect=reasons.FORMAT),
    Setting("message.timestamp.type", STRING, "CreateTime", MEDIUM, one_of("CreateTime", "LogAppendTime"), TOPIC,
            "CreateTime keeps the producer's timestamp, LogAppendTime stamps records as they are appended.",
            server_default="log.message.timestamp.type"),
    Setting("message.timestamp.difference.max.ms", LONG, LONG_MAX, MEDIUM, at_least(0), TOPIC,
            "Deprecated: allowed distance between a record's timestamp and the broker's clock either way; the "
            "before and after settings win where they are set.",
            server_default="log.message.timestamp.difference.max.ms"),
    Setting("message.timestamp.before.max.ms", LONG, LONG_MAX, MEDIUM, at_least(0), TOPIC,
            "How far a record's timestamp may lie behind the broker's clock under CreateTime; older ones are "
            "refused.",
            server_default="log.message.timestamp.before.max.ms"),
    Setting("message.timestamp.after.max.ms", LONG, LONG_MAX, MEDIUM, at_least(0), TOPIC,
            "How far a record's timestamp may lie ahead of the broker's clock under CreateTime; later ones are "
            "refused.",
            server_default="log.message.timestamp.after.max.ms"),
    Setting("leader.replication.throttled.replicas", LIST, (), MEDIUM, ThrottledReplicas(), TOPIC,
            "Replicas whose leader side is throttled: partition:broker pairs, or * for all of the topic."),
    Setting("follower.replication.throttled.replicas", LIST, (), MEDIUM, ThrottledReplicas(), TOPIC,
            "Replicas whose follower side is throttled: partition:broker pairs, or * for all of the topic."),
    Setting("message.downconversion.enable", BOOLEAN, True, LOW, None, TOPIC,
            "Whether batches are rewritten in an older format for consumers that cannot read the current one.",
            server_default="log.message.downconversion.enable", no_effect=reasons.DOWNCONVERSION),
    Setting("remote.storage.enable", BOOLEAN, False, MEDIUM, None, TOPIC,
            "Whether closed segments are also kept in remote storage.", no_effect=reasons.TIERED),
    Setting("local.retention.ms", LONG, -2, MEDIUM, at_least(-2), TOPIC,
            "Age up to which a tiered topic keeps segments on local disk; -2 takes retention.ms.",
            server_default="log.local.retention.ms", no_effect=reasons.TIERED),
    Setting("local.retention.bytes", LONG, -2, MEDIUM, at_least(-2), TOPIC,
            "Size up to which a tiered topic keeps segments on local disk; -2 takes retention.bytes.",
            server_default="log.local.retention.bytes", no_effect=reasons.TIERED),
    Setting("remote.log.copy.disable", BOOLEAN, False, MEDIUM, None, TOPIC,
            "Whether a tiered topic stops copying segments to remote storage and only reads from it.",
            no_effect=reasons.TIERED),
    Setting("remote.log.delete.on.disable", BOOLEAN, False, MEDIUM, None, TOPIC,
            "Whether remote data goes when tiering is switched off for the topic.", no_effect=reasons.TIERED),
)
# fmt: on
