"""What a log must know of its topic's settings: one typed field per topic setting of Kafka 3.9.

A field is named by the setting in snake case (`segment.bytes` is `segment_bytes`), and `LogConfig()` is a topic without
overrides on a broker without settings of its own. Values arrive here already validated.
"""

from dataclasses import dataclass, field
from typing import Final

LONG_MAX: Final = 2**63 - 1
_HOUR_MS = 60 * 60 * 1000
_DAY_MS = 24 * _HOUR_MS

CLEANUP_DELETE: Final = "delete"
CLEANUP_COMPACT: Final = "compact"

CREATE_TIME: Final = "CreateTime"
LOG_APPEND_TIME: Final = "LogAppendTime"

#: `compression.type` values that keep the producer's bytes as they came, and that store plain records.
COMPRESSION_PRODUCER: Final = "producer"
COMPRESSION_UNCOMPRESSED: Final = "uncompressed"

#: `local.retention.*`: take the value of `retention.*`.
LOCAL_RETENTION_INHERITED: Final = -2


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """An immutable snapshot; a change of settings makes a new one."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * _DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * 1024 * 1024
    index_interval_bytes: int = 4096
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    preallocate: bool = False

    #: -1: no limit.
    retention_bytes: int = -1
    #: -1: no limit.
    retention_ms: int = 7 * _DAY_MS
    file_delete_delay_ms: int = 60_000

    #: A subset of {delete, compact}.
    cleanup_policy: frozenset[str] = frozenset({CLEANUP_DELETE})
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    delete_retention_ms: int = _DAY_MS

    #: The largest record batch, header included.
    max_message_bytes: int = 1024 * 1024 + 12
    compression_type: str = COMPRESSION_PRODUCER
    #: -1: zlib's own default.
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3

    message_timestamp_type: str = CREATE_TIME
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_after_max_ms: int = LONG_MAX
    #: Deprecated; already folded into the two fields above by `topic_log_config`.
    message_timestamp_difference_max_ms: int = LONG_MAX
    #: Deprecated, without effect: the format is always v2.
    message_format_version: str = "3.0-IV1"
    #: Without effect: the fetch versions served here all take format v2.
    message_downconversion_enable: bool = True

    min_insync_replicas: int = 1
    unclean_leader_election_enable: bool = False
    #: `*`, or `partition:broker` pairs.
    leader_replication_throttled_replicas: tuple[str, ...] = ()
    #: `*`, or `partition:broker` pairs.
    follower_replication_throttled_replicas: tuple[str, ...] = ()

    remote_storage_enable: bool = False
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False
    local_retention_ms: int = LOCAL_RETENTION_INHERITED
    local_retention_bytes: int = LOCAL_RETENTION_INHERITED

    #: Names of the settings that the topic itself overrides (`segment.bytes`, ...).
    overridden: frozenset[str] = field(default=frozenset())

    @property
    def is_compacted(self) -> bool:
        return CLEANUP_COMPACT in self.cleanup_policy

    @property
    def is_deleted_by_retention(self) -> bool:
        return CLEANUP_DELETE in self.cleanup_policy

    @property
    def stamps_append_time(self) -> bool:
        return self.message_timestamp_type == LOG_APPEND_TIME

    @property
    def effective_local_retention_ms(self) -> int:
        return self.retention_ms if self.local_retention_ms == LOCAL_RETENTION_INHERITED else self.local_retention_ms

    @property
    def effective_local_retention_bytes(self) -> int:
        if self.local_retention_bytes == LOCAL_RETENTION_INHERITED:
            return self.retention_bytes
        return self.local_retention_bytes
