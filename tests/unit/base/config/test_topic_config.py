"""A topic's settings, and the broker's for the rest."""

import pytest

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.topic import log_config, topic_values, validate_topic_config
from barnabas.base.errors import ConfigError, ErrorCode, Refused


def broker(**settings: str) -> BrokerConfig:
    names = {name.replace("_", "."): raw for name, raw in settings.items()}
    return BrokerConfig.parse({"zookeeper.connect": "h:1", **names})


@pytest.mark.parametrize(
    ("given", "overrides", "field", "expected"),
    [
        ({"log.segment.bytes": "1000"}, {}, "segment_bytes", 1000),
        ({"log.segment.bytes": "1000"}, {"segment.bytes": "2000"}, "segment_bytes", 2000),
        ({"log.retention.minutes": "1"}, {}, "retention_ms", 60_000),
        ({"log.retention.minutes": "1"}, {"retention.ms": "-1"}, "retention_ms", -1),
        ({"log.roll.hours": "1"}, {}, "segment_ms", 3_600_000),
        ({"message.max.bytes": "77"}, {}, "max_message_bytes", 77),
        ({"log.flush.scheduler.interval.ms": "5"}, {}, "flush_ms", 5),
        ({"min.insync.replicas": "2"}, {}, "min_insync_replicas", 2),
        ({"unclean.leader.election.enable": "true"}, {}, "unclean_leader_election_enable", True),
        ({"log.cleanup.policy": "compact"}, {}, "cleanup_policy", frozenset({"compact"})),
        ({}, {"cleanup.policy": "compact, delete"}, "cleanup_policy", frozenset({"compact", "delete"})),
        ({}, {"cleanup.policy": ""}, "cleanup_policy", frozenset()),
        ({}, {"min.cleanable.dirty.ratio": "1"}, "min_cleanable_dirty_ratio", 1.0),
        (
            {},
            {"leader.replication.throttled.replicas": "0:1,1:2"},
            "leader_replication_throttled_replicas",
            ("0:1", "1:2"),
        ),
        ({}, {"segment.bytes": "20", "unknown": "x"}, "overridden", frozenset({"segment.bytes"})),
        ({"log.message.timestamp.difference.max.ms": "9"}, {}, "message_timestamp_before_max_ms", 9),
        ({}, {"message.timestamp.difference.max.ms": "9"}, "message_timestamp_after_max_ms", 9),
        (
            {"log.message.timestamp.difference.max.ms": "9"},
            {"message.timestamp.after.max.ms": "4"},
            "message_timestamp_after_max_ms",
            4,
        ),
        ({"log.message.format.version": "2.8"}, {}, "message_format_version", "3.0-IV1"),
    ],
)
def test_topic_has_its_own_value_or_the_brokers(
    given: dict[str, str], overrides: dict[str, str], field: str, expected: object
) -> None:
    config = BrokerConfig.parse({"zookeeper.connect": "h:1", **given})
    assert getattr(log_config(config, overrides), field) == expected


def test_log_config_derives_the_values_for_a_log() -> None:
    config = log_config(broker(), {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"})
    assert config.is_compacted
    assert not config.is_deleted_by_retention
    assert config.stamps_append_time


def test_values_keep_the_order_of_lists() -> None:
    assert topic_values(broker(), {"cleanup.policy": "delete,compact"})["cleanup.policy"] == ("delete", "compact")


@pytest.mark.parametrize(
    ("proposed", "message"),
    [
        ({"segment.byte": "1"}, "Unknown topic config name: segment.byte"),
        ({"log.segment.bytes": "100"}, "Unknown topic config name: log.segment.bytes"),
        (
            {"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"},
            "conflict topic config setting min.compaction.lag.ms (2) > max.compaction.lag.ms (1)",
        ),
    ],
)
def test_topic_cannot_have(proposed: dict[str, str], message: str) -> None:
    with pytest.raises(Refused) as refused:
        validate_topic_config(broker(), proposed)
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert message in str(refused.value.message)


def test_compaction_lag_is_held_against_the_brokers_default() -> None:
    with pytest.raises(Refused, match=r"\(50\) > max\.compaction\.lag\.ms \(40\)"):
        config = BrokerConfig.parse({"zookeeper.connect": "h:1", "log.cleaner.max.compaction.lag.ms": "40"})
        validate_topic_config(config, {"min.compaction.lag.ms": "50"})


@pytest.mark.parametrize(
    ("given", "proposed", "message"),
    [
        ({}, {"retention.ms": "soon"}, "Invalid value soon for configuration retention.ms: Not a number of type LONG"),
        ({}, {"remote.storage.enable": "true"}, "Tiered Storage functionality is disabled in the broker"),
        (
            {"remote.log.storage.system.enable": "true", "barnabas.remote.storage.url": "file:///tier"},
            {"remote.storage.enable": "true", "cleanup.policy": "compact"},
            "Remote log storage is unsupported for the compacted topics",
        ),
    ],
)
def test_value_that_cannot_be_used_is_refused(given: dict[str, str], proposed: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate_topic_config(BrokerConfig.parse({"zookeeper.connect": "h:1", **given}), proposed)


TIERING = {
    "zookeeper.connect": "h:1",
    "remote.log.storage.system.enable": "true",
    "barnabas.remote.storage.url": "file:///t",
}


def test_tiering_is_switched_off_only_with_deletion_of_remote_data() -> None:
    with pytest.raises(Refused, match="invalid to disable remote storage without deleting"):
        validate_topic_config(broker(), {}, existing={"remote.storage.enable": "true"})
    goes = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
    validate_topic_config(broker(), goes, existing={"remote.storage.enable": "true"})
    validate_topic_config(
        BrokerConfig.parse(TIERING), {"remote.storage.enable": "true", "remote.log.copy.disable": "true"}
    )


@pytest.mark.parametrize(
    ("proposed", "message"),
    [
        ({"retention.ms": "10", "local.retention.ms": "-1"}, "must not be -1 as retention.ms value is set as 10"),
        ({"retention.ms": "10", "local.retention.ms": "11"}, "must not be more than retention.ms property value: 10"),
        (
            {"retention.bytes": "0", "local.retention.bytes": "1"},
            "must not be more than retention.bytes property value: 0",
        ),
        (
            {"retention.ms": "10", "local.retention.ms": "9", "remote.log.copy.disable": "true"},
            "must be set to the identical value",
        ),
    ],
)
def test_local_retention_is_within_the_whole(proposed: dict[str, str], message: str) -> None:
    config = BrokerConfig.parse(TIERING)
    with pytest.raises((ConfigError, Refused), match=message):
        validate_topic_config(config, {"remote.storage.enable": "true", **proposed})
    validate_topic_config(config, {**proposed, "remote.storage.enable": "false"})
    good = {"retention.ms": "10", "local.retention.ms": "10", "retention.bytes": "-1", "local.retention.bytes": "5"}
    validate_topic_config(config, {"remote.storage.enable": "true", **good})


def test_usable_settings_pass() -> None:
    validate_topic_config(broker(), {"retention.ms": "1", "cleanup.policy": "compact"}, existing={"segment.ms": "5"})
