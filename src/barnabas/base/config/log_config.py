"""A topic's settings, each declared once as a field of `LogConfig`.

A field has the setting's name in snake case (`segment.bytes` is `segment_bytes`). Its declaration defines the setting that
clients see (`TOPIC_SETTINGS`) and, for most, the broker setting with the default for all topics (`BROKER_DEFAULTS`).
`LogConfig()` is a topic without overrides on a broker without its own settings.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple

from barnabas.base.config.definition import LONG_MAX as LONG_MAX  # re-exported with the limits
from barnabas.base.config.definition import Importance, Setting, Validator, Value, ValueType
from barnabas.base.config.definitions import reasons
from barnabas.base.config.definitions.shorthand import (
    BOOLEAN,
    CLUSTER_WIDE,
    DOUBLE,
    HIGH,
    INT,
    LIST,
    LONG,
    LOW,
    MEDIUM,
    STRING,
    TOPIC,
)
from barnabas.base.config.units import DAY_MS, GIB, KIB, MIB, MINUTE_MS
from barnabas.base.config.validators import (
    EachOf,
    MetadataVersion,
    OneValueOr,
    ThrottledReplicas,
    at_least,
    between,
    one_of,
)

CLEANUP_DELETE: Final = "delete"
CLEANUP_COMPACT: Final = "compact"

CREATE_TIME: Final = "CreateTime"
LOG_APPEND_TIME: Final = "LogAppendTime"

#: The value of `local.retention.*` that means the value of `retention.*`.
AS_RETENTION: Final = -2

#: `compression.type` values that keep the producer's bytes, and that store records uncompressed.
COMPRESSION_PRODUCER: Final = "producer"
COMPRESSION_UNCOMPRESSED: Final = "uncompressed"
COMPRESSION_ZSTD: Final = "zstd"

#: Naming strategies for the subject of a record's schema: `orders-value`, `shop.Order`, `orders-shop.Order`.
TOPIC_NAME: Final = "TopicNameStrategy"
RECORD_NAME: Final = "RecordNameStrategy"
TOPIC_RECORD_NAME: Final = "TopicRecordNameStrategy"
_CONFLUENTS: Final = "io.confluent.kafka.serializers.subject."
_STRATEGIES: Final = tuple(
    prefix + name for prefix in ("", _CONFLUENTS) for name in (TOPIC_NAME, RECORD_NAME, TOPIC_RECORD_NAME)
)


def _short_strategy(name: str) -> str:
    return name.removeprefix(_CONFLUENTS)


class BrokerDefault(NamedTuple):
    """A broker setting that only provides the default of a topic setting: same type, same valid values."""

    name: str
    importance: Importance


class _Declaration(NamedTuple):
    """A topic setting without its name, which is the field's."""

    type: ValueType
    default: Value
    validator: Validator | None
    meaning: str
    inherits: str | BrokerDefault | None
    importance: Importance
    no_effect: str
    convert: Callable[[Any], Any]


def default_of(name: str, importance: Importance = MEDIUM) -> BrokerDefault:
    """Declare the broker setting `name` and make it the default."""
    return BrokerDefault(name, importance)


def topic_setting(
    type: ValueType,
    default: Value,
    validator: Validator | None,
    meaning: str,
    *,
    inherits: str | BrokerDefault | None = None,
    importance: Importance = MEDIUM,
    no_effect: str = "",
    convert: Callable[[Any], Any] = lambda value: value,
) -> Any:
    """Declare a topic setting as the default of its field.

    `inherits` names the broker setting from which topics without their own value inherit: with `default_of`, or just the name
    if it is declared elsewhere. `convert` computes the field's value from the setting's.
    """
    declared = _Declaration(type, default, validator, meaning, inherits, importance, no_effect, convert)
    return field(default=convert(default), metadata={"declaration": declared})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """An immutable snapshot of one topic's settings. Its values are already validated."""

    # A table: the facts on one line, the meaning below it.
    # fmt: off
    segment_bytes: int = topic_setting(INT, GIB, at_least(14),
        "Size at which a segment file is closed and a new one begun. Retention and compaction work on whole "
        "segments, so a smaller one gives finer control and more files.",
        inherits=default_of("log.segment.bytes", HIGH))
    segment_ms: int = topic_setting(LONG, 7 * DAY_MS, at_least(1),
        "Age at which the active segment is closed even if it is not full, so that retention and compaction can "
        "reach its records.",
        inherits="log.roll.ms")
    segment_jitter_ms: int = topic_setting(LONG, 0, at_least(0),
        "Upper bound of a random amount taken off segment.ms, so that many partitions do not roll at the same "
        "moment.",
        inherits="log.roll.jitter.ms")
    segment_index_bytes: int = topic_setting(INT, 10 * MIB, at_least(4),
        "Size of an offset or time index file; it is allocated sparsely and cut when the segment rolls.",
        inherits=default_of("log.index.size.max.bytes"))
    index_interval_bytes: int = topic_setting(INT, 4 * KIB, at_least(0),
        "Bytes of log between two entries of the offset index. A smaller step finds a position faster and makes "
        "the index larger.",
        inherits=default_of("log.index.interval.bytes"))
    flush_messages: int = topic_setting(LONG, LONG_MAX, at_least(1),
        "Number of messages after which the log is forced to disk. The default leaves flushing to the operating "
        "system and safety to replication.",
        inherits=default_of("log.flush.interval.messages", HIGH))
    flush_ms: int = topic_setting(LONG, LONG_MAX, at_least(0),
        "Time after which unflushed data is forced to disk. The default leaves flushing to the operating system "
        "and safety to replication.",
        inherits="log.flush.interval.ms")
    preallocate: bool = topic_setting(BOOLEAN, False, None,
        "Whether a new segment's file is created at its full size.",
        inherits=default_of("log.preallocate"))

    #: -1: no limit.
    retention_bytes: int = topic_setting(LONG, -1, None,
        "Size per partition beyond which the oldest segments are deleted under the delete policy; -1 for no limit.",
        inherits=default_of("log.retention.bytes", HIGH))
    #: -1: no limit.
    retention_ms: int = topic_setting(LONG, 7 * DAY_MS, at_least(-1),
        "Age beyond which segments are deleted under the delete policy; -1 for no limit.",
        inherits="log.retention.ms")
    file_delete_delay_ms: int = topic_setting(LONG, MINUTE_MS, at_least(0),
        "Time between renaming a file for deletion and removing it, for readers that still have it open.",
        inherits=default_of("log.segment.delete.delay.ms", HIGH))

    #: A subset of {delete, compact}.
    cleanup_policy: frozenset[str] = topic_setting(LIST, ("delete",), EachOf("compact", "delete"),
        "delete drops segments that are past retention, compact keeps the last value of each key; both together "
        "do both.",
        inherits=default_of("log.cleanup.policy"), convert=frozenset)
    min_cleanable_dirty_ratio: float = topic_setting(DOUBLE, 0.5, between(0, 1),
        "Share of a log that must be uncompacted before the cleaner takes it. A higher ratio means fewer, larger"
        " cleanings and more space held by duplicates.",
        inherits=default_of("log.cleaner.min.cleanable.ratio"))
    min_compaction_lag_ms: int = topic_setting(LONG, 0, at_least(0),
        "Age below which a record is never compacted away.",
        inherits=default_of("log.cleaner.min.compaction.lag.ms"))
    max_compaction_lag_ms: int = topic_setting(LONG, LONG_MAX, at_least(1),
        "Age at which a record of a compacted topic becomes due for compaction, whatever the dirty ratio is. The active "
        "segment of such a topic is closed at this age, if segment.ms is longer.",
        inherits=default_of("log.cleaner.max.compaction.lag.ms"))
    delete_retention_ms: int = topic_setting(LONG, DAY_MS, at_least(0),
        "How long a tombstone, or a transaction marker, stays in a compacted log. A reader that starts at the beginning has to"
        " reach the end within this time, to see all deletions.",
        inherits=default_of("log.cleaner.delete.retention.ms"))

    #: Largest record batch, including the header.
    max_message_bytes: int = topic_setting(INT, MIB + 12, at_least(0),
        "Largest record batch that is accepted, header included and compressed as it came.",
        inherits=default_of("message.max.bytes", HIGH))
    compression_type: str = topic_setting(
        STRING, "producer", one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        "Codec in which batches are stored. producer keeps what the producer chose; uncompressed, gzip, snappy, "
        "lz4 or zstd store that codec instead.",
        inherits=default_of("compression.type", HIGH))
    #: -1: zlib's own default.
    compression_gzip_level: int = topic_setting(INT, -1, OneValueOr(-1, 1, 9),
        "Level used where compression.type is gzip; -1 takes the library's own default.",
        inherits=default_of("compression.gzip.level"))
    compression_lz4_level: int = topic_setting(INT, 9, between(1, 17),
        "Level used where compression.type is lz4.",
        inherits=default_of("compression.lz4.level"))
    compression_zstd_level: int = topic_setting(INT, 3, between(-131_072, 22),
        "Level used where compression.type is zstd.",
        inherits=default_of("compression.zstd.level"))

    message_timestamp_type: str = topic_setting(STRING, "CreateTime", one_of("CreateTime", "LogAppendTime"),
        "CreateTime keeps the producer's timestamp, LogAppendTime stamps records as they are appended.",
        inherits=default_of("log.message.timestamp.type"))
    message_timestamp_before_max_ms: int = topic_setting(LONG, LONG_MAX, at_least(0),
        "How far a record's timestamp may lie behind the broker's clock under CreateTime; older ones are "
        "refused.",
        inherits=default_of("log.message.timestamp.before.max.ms"))
    message_timestamp_after_max_ms: int = topic_setting(LONG, LONG_MAX, at_least(0),
        "How far a record's timestamp may lie ahead of the broker's clock under CreateTime; later ones are "
        "refused.",
        inherits=default_of("log.message.timestamp.after.max.ms"))
    #: Deprecated. `topic_log_config` has already applied it to the two fields above.
    message_timestamp_difference_max_ms: int = topic_setting(LONG, LONG_MAX, at_least(0),
        "Deprecated: allowed distance between a record's timestamp and the broker's clock either way; the before"
        " and after settings win where they are set.",
        inherits=default_of("log.message.timestamp.difference.max.ms"))
    #: Deprecated, without effect: the format is always v2.
    message_format_version: str = topic_setting(STRING, "3.0-IV1", MetadataVersion(),
        "Deprecated: the record format that older brokers wrote.",
        inherits="log.message.format.version", no_effect=reasons.FORMAT)
    #: Without effect: the fetch versions served here all take format v2.
    message_downconversion_enable: bool = topic_setting(BOOLEAN, True, None,
        "Whether batches are rewritten in an older format for consumers that cannot read the current one.",
        inherits=default_of("log.message.downconversion.enable", LOW), importance=LOW, no_effect=reasons.DOWNCONVERSION)

    min_insync_replicas: int = topic_setting(INT, 1, at_least(1),
        "Size of the ISR below which a write with acks=all is refused.",
        inherits=default_of("min.insync.replicas", HIGH))
    unclean_leader_election_enable: bool = topic_setting(BOOLEAN, False, None,
        "Whether a replica outside the ISR may become leader when no other is left, at the price of losing "
        "records.",
        inherits="unclean.leader.election.enable")
    #: `*`, or `partition:broker` pairs.
    leader_replication_throttled_replicas: tuple[str, ...] = topic_setting(LIST, (), ThrottledReplicas(),
        "Replicas whose leader side is throttled: partition:broker pairs, or * for all of the topic.")
    #: `*`, or `partition:broker` pairs.
    follower_replication_throttled_replicas: tuple[str, ...] = topic_setting(LIST, (), ThrottledReplicas(),
        "Replicas whose follower side is throttled: partition:broker pairs, or * for all of the topic.")

    remote_storage_enable: bool = topic_setting(BOOLEAN, False, None,
        "Whether closed segments are also kept in remote storage.")
    remote_log_copy_disable: bool = topic_setting(BOOLEAN, False, None,
        "Whether a tiered topic stops copying segments to remote storage and only reads from it.")
    remote_log_delete_on_disable: bool = topic_setting(BOOLEAN, False, None,
        "Whether remote data goes when tiering is switched off for the topic.")
    local_retention_ms: int = topic_setting(LONG, -2, at_least(-2),
        "Age up to which a tiered topic keeps segments on local disk; -2 takes retention.ms.",
        inherits="log.local.retention.ms")
    local_retention_bytes: int = topic_setting(LONG, -2, at_least(-2),
        "Size up to which a tiered topic keeps segments on local disk; -2 takes retention.bytes.",
        inherits="log.local.retention.bytes")

    #: Kafka 4.4 has it (KIP-1191).
    errors_deadletterqueue_group_enable: bool = topic_setting(BOOLEAN, False, None,
        "Whether share groups may use the topic as their dead-letter topic.")

    barnabas_key_schema_validation: bool = topic_setting(BOOLEAN, False, None,
        "Whether keys must begin with the id of a schema that the registry has under the key's subject; others are refused.")
    barnabas_value_schema_validation: bool = topic_setting(BOOLEAN, False, None,
        "Whether values must begin with the id of a schema that the registry has under the value's subject; others are "
        "refused. Null values pass.")
    barnabas_key_subject_name_strategy: str = topic_setting(STRING, TOPIC_NAME, one_of(*_STRATEGIES),
        "How the subject of a key is named, where barnabas.key.schema.validation is on. Confluent's class names mean the same.",
        convert=_short_strategy)
    barnabas_value_subject_name_strategy: str = topic_setting(STRING, TOPIC_NAME, one_of(*_STRATEGIES),
        "How the subject of a value is named, where barnabas.value.schema.validation is on. Confluent's class names mean the "
        "same.",
        convert=_short_strategy)
    barnabas_link_name: str = topic_setting(STRING, "", None,
        "The link that mirrors another cluster's topic into this one, which is then read-only. Only links set and remove "
        "it.")
    # fmt: on

    #: Names of the settings that the topic itself overrides (`segment.bytes`, ...).
    overridden: frozenset[str] = field(default=frozenset())

    # What each append asks, derived once from the settings.
    is_compacted: bool = field(init=False, repr=False, compare=False)
    stamps_append_time: bool = field(init=False, repr=False, compare=False)
    #: The age at which the active segment is closed. Compaction never reads the active segment, so a compacted topic must close
    #: its segments within `max.compaction.lag.ms` to respect that limit (KIP-354).
    roll_ms: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        is_compacted = CLEANUP_COMPACT in self.cleanup_policy
        object.__setattr__(self, "is_compacted", is_compacted)
        object.__setattr__(self, "stamps_append_time", self.message_timestamp_type == LOG_APPEND_TIME)
        roll_ms = min(self.segment_ms, self.max_compaction_lag_ms) if is_compacted else self.segment_ms
        object.__setattr__(self, "roll_ms", roll_ms)

    @property
    def is_deleted_by_retention(self) -> bool:
        return CLEANUP_DELETE in self.cleanup_policy

    @property
    def kept_locally_ms(self) -> int:
        """`local.retention.ms` of a tiered topic."""
        return self.retention_ms if self.local_retention_ms == AS_RETENTION else self.local_retention_ms

    @property
    def kept_locally_bytes(self) -> int:
        """`local.retention.bytes` of a tiered topic."""
        return self.retention_bytes if self.local_retention_bytes == AS_RETENTION else self.local_retention_bytes


_DECLARATIONS: Final[dict[str, _Declaration]] = {
    each.name.replace("_", "."): each.metadata["declaration"]
    for each in fields(LogConfig)
    if "declaration" in each.metadata
}


def _topic_setting(name: str, declared: _Declaration) -> Setting:
    inherits = declared.inherits.name if isinstance(declared.inherits, BrokerDefault) else declared.inherits
    return Setting(
        name,
        declared.type,
        declared.default,
        declared.importance,
        declared.validator,
        TOPIC,
        declared.meaning,
        server_default=inherits,
        no_effect=declared.no_effect,
    )


def _broker_setting(topic_setting: str, declared: _Declaration, inherits: BrokerDefault) -> Setting:
    return Setting(
        inherits.name,
        declared.type,
        declared.default,
        inherits.importance,
        declared.validator,
        CLUSTER_WIDE,
        f"Default of the topic setting {topic_setting}.",
        no_effect=declared.no_effect,
    )


#: Every topic setting, as clients see it.
TOPIC_SETTINGS: Final = tuple(_topic_setting(name, declared) for name, declared in _DECLARATIONS.items())
#: The broker settings that are declared with the topic settings that inherit from them.
BROKER_DEFAULTS: Final = tuple(
    _broker_setting(name, declared, declared.inherits)
    for name, declared in _DECLARATIONS.items()
    if isinstance(declared.inherits, BrokerDefault)
)


def make_log_config(values: dict[str, Value], overridden: frozenset[str]) -> LogConfig:
    """Build a `LogConfig` from the values of all topic settings, by name."""
    # Each value has its setting's type; a test compares it with the field's type.
    converted = {name.replace(".", "_"): _DECLARATIONS[name].convert(value) for name, value in values.items()}
    return LogConfig(**converted, overridden=overridden)
