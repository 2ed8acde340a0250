"""Tiered storage."""

from typing import Final

from barnabas.base.config.definition import LONG_MAX, Setting
from barnabas.base.config.definitions import reasons
from barnabas.base.config.definitions.shorthand import (
    BOOLEAN,
    CLUSTER_WIDE,
    DOUBLE,
    INT,
    LONG,
    LOW,
    MEDIUM,
    READ_ONLY,
    STRING,
)
from barnabas.base.config.units import GIB
from barnabas.base.config.validators import NonEmptyString, OneValueOr, at_least, between

# A table: one line of facts and the meaning below it.
# fmt: off
SETTINGS: Final = (
    Setting("remote.log.storage.system.enable", BOOLEAN, False, MEDIUM, None, READ_ONLY,
            "Whether tiered storage runs on this broker."),
    Setting("remote.log.storage.manager.impl.prefix", STRING, "rsm.config.", MEDIUM, NonEmptyString(), READ_ONLY,
            "Prefix of settings for the object store, by the names that obstore has for them: rsm.config.aws_region."),
    Setting("remote.log.metadata.manager.impl.prefix", STRING, "rlmm.config.", MEDIUM, NonEmptyString(), READ_ONLY,
            "Prefix of settings for __remote_log_metadata: rlmm.config.remote.log.metadata.topic.replication.factor."),
    Setting("remote.log.storage.manager.class.name", STRING, None, MEDIUM, NonEmptyString(), READ_ONLY,
            "Java class of the remote storage manager.", no_effect=reasons.TIER_PLUGIN),
    Setting("remote.log.storage.manager.class.path", STRING, None, MEDIUM, None, READ_ONLY,
            "Class path of the remote storage manager.", no_effect=reasons.TIER_PLUGIN),
    Setting("remote.log.metadata.manager.class.name", STRING,
            "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager", MEDIUM,
            NonEmptyString(), READ_ONLY,
            "Java class of the remote log metadata manager.", no_effect=reasons.TIER_PLUGIN),
    Setting("remote.log.metadata.manager.class.path", STRING, None, MEDIUM, None, READ_ONLY,
            "Class path of the remote log metadata manager.", no_effect=reasons.TIER_PLUGIN),
    Setting("remote.log.metadata.manager.listener.name", STRING, None, MEDIUM, NonEmptyString(), READ_ONLY,
            "Listener that the remote log metadata manager connects to.", no_effect=reasons.TIER_LISTENER),
    Setting("remote.log.metadata.custom.metadata.max.bytes", INT, 128, LOW, at_least(0), READ_ONLY,
            "Largest custom metadata that a remote storage manager may add to a segment.", no_effect=reasons.TIER_CUSTOM),
    Setting("remote.log.index.file.cache.total.size.bytes", LONG, GIB, LOW, at_least(1), CLUSTER_WIDE,
            "Disk space for index files fetched from remote storage."),
    Setting("remote.log.manager.thread.pool.size", INT, 10, MEDIUM, at_least(1), READ_ONLY,
            "How many segments are copied, and partitions expired, at once."),
    Setting("remote.log.manager.copier.thread.pool.size", INT, -1, MEDIUM, OneValueOr(-1, 1), READ_ONLY,
            "Segments that are copied at once; -1 takes remote.log.manager.thread.pool.size."),
    Setting("remote.log.manager.expiration.thread.pool.size", INT, -1, MEDIUM, OneValueOr(-1, 1), READ_ONLY,
            "Partitions that are expired at once; -1 takes remote.log.manager.thread.pool.size."),
    Setting("remote.log.manager.task.interval.ms", LONG, 30_000, LOW, at_least(1), READ_ONLY,
            "How often tasks of tiered storage run."),
    Setting("remote.log.manager.task.retry.backoff.ms", LONG, 500, LOW, at_least(1), READ_ONLY,
            "First pause before a failed task is tried again.", internal=True),
    Setting("remote.log.manager.task.retry.backoff.max.ms", LONG, 30_000, LOW, at_least(1), READ_ONLY,
            "Longest pause before a failed task is tried again.", internal=True),
    Setting("remote.log.manager.task.retry.jitter", DOUBLE, 0.2, LOW, between(0, 0.5), READ_ONLY,
            "Random part of such a pause.", internal=True),
    Setting("remote.log.reader.threads", INT, 10, MEDIUM, at_least(1), READ_ONLY,
            "Requests for parts of segments that may be in flight at once, for all reads together."),
    Setting("remote.log.reader.max.pending.tasks", INT, 100, MEDIUM, at_least(1), READ_ONLY,
            "Reads of remote storage, besides those, that may wait; more are answered without records."),
    Setting("log.local.retention.ms", LONG, -2, MEDIUM, at_least(-2), CLUSTER_WIDE,
            "Default of the topic setting local.retention.ms."),
    Setting("log.local.retention.bytes", LONG, -2, MEDIUM, at_least(-2), CLUSTER_WIDE,
            "Default of the topic setting local.retention.bytes."),
    Setting("remote.log.manager.copy.max.bytes.per.second", LONG, LONG_MAX, MEDIUM, at_least(1), CLUSTER_WIDE,
            "Bytes per second that may be copied to remote storage."),
    Setting("remote.log.manager.copy.quota.window.num", INT, 11, MEDIUM, at_least(1), READ_ONLY,
            "Windows over which copying is measured."),
    Setting("remote.log.manager.copy.quota.window.size.seconds", INT, 1, MEDIUM, at_least(1), READ_ONLY,
            "Length of such a window."),
    Setting("remote.log.manager.fetch.max.bytes.per.second", LONG, LONG_MAX, MEDIUM, at_least(1), CLUSTER_WIDE,
            "Bytes per second that may be read from remote storage."),
    Setting("remote.log.manager.fetch.quota.window.num", INT, 11, MEDIUM, at_least(1), READ_ONLY,
            "Windows over which remote reads are measured."),
    Setting("remote.log.manager.fetch.quota.window.size.seconds", INT, 1, MEDIUM, at_least(1), READ_ONLY,
            "Length of such a window."),
    Setting("remote.fetch.max.wait.ms", INT, 500, MEDIUM, at_least(1), CLUSTER_WIDE,
            "How long a fetch waits for remote storage."),
)
# fmt: on
