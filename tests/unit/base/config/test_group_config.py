"""The settings of a group: its own, the broker's, and the bounds that the broker sets."""

from typing import get_type_hints

import pytest

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.describe import Shown, describe_group
from barnabas.base.config.dynamic import DynamicConfig
from barnabas.base.config.group_config import (
    GROUP_SETTINGS,
    GroupConfig,
    OffsetReset,
    OffsetResetKind,
    group_config,
    validate_group_config,
)
from barnabas.base.errors import ConfigError
from barnabas.base.words import ConfigSource

GROUP = "g"


def broker(**settings: str) -> BrokerConfig:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return BrokerConfig.parse({"zookeeper.connect": "h:1", **given})


def dynamic(**settings: str) -> DynamicConfig:
    return DynamicConfig({"zookeeper.connect": "h:1", **{n.replace("_", "."): v for n, v in settings.items()}})


def refused(config: BrokerConfig, **settings: str) -> str:
    with pytest.raises(ConfigError) as refusal:
        validate_group_config(config, {name.replace("_", "."): value for name, value in settings.items()})
    return str(refusal.value)


def test_a_group_without_settings_on_a_broker_without_settings_has_the_defaults() -> None:
    assert group_config(broker(), {}) == (GroupConfig(), ())
    assert set(get_type_hints(GroupConfig)) == {each.attribute for each in GROUP_SETTINGS.values()}


def test_the_broker_says_what_a_group_does_not() -> None:
    config = dynamic(group_consumer_session_timeout_ms="50000", group_share_delivery_count_limit="3")
    config.set_group(GROUP, {"share.delivery.count.limit": "4"})
    assert config.group_config(GROUP).consumer_session_timeout_ms == 50_000
    assert config.group_config(GROUP).share_delivery_count_limit == 4
    assert config.group_config("another").share_delivery_count_limit == 3
    assert config.groups == (GROUP,)
    config.set_group(GROUP, {})
    assert config.group_config(GROUP).share_delivery_count_limit == 3
    assert config.groups == ()


@pytest.mark.parametrize(
    ("name", "value", "bound"),
    [
        ("consumer.session.timeout.ms", "44999", "group.consumer.min.session.timeout.ms"),
        ("consumer.heartbeat.interval.ms", "15001", "group.consumer.max.heartbeat.interval.ms"),
        ("share.session.timeout.ms", "60001", "group.share.max.session.timeout.ms"),
        ("share.heartbeat.interval.ms", "4999", "group.share.min.heartbeat.interval.ms"),
        ("share.record.lock.duration.ms", "60001", "group.share.max.record.lock.duration.ms"),
        ("share.delivery.count.limit", "11", "group.share.max.delivery.count.limit"),
        ("share.partition.max.record.locks", "4001", "group.share.max.partition.max.record.locks"),
    ],
)
def test_value_outside_the_brokers_bounds_is_refused_and_a_stored_one_counts_as_the_bound(
    name: str, value: str, bound: str
) -> None:
    config = broker()
    assert bound in refused(config, **{name: value})
    found, corrected = group_config(config, {name: value})
    assert getattr(found, GROUP_SETTINGS[name].attribute) == config.values[bound]
    assert [bound in line for line in corrected] == [True]


def test_session_must_be_longer_than_the_heartbeat_interval() -> None:
    config = broker(group_share_min_session_timeout_ms="5000")
    assert refused(config, share_session_timeout_ms="6000", share_heartbeat_interval_ms="6000") == (
        "share.session.timeout.ms must be greater than share.heartbeat.interval.ms"
    )
    validate_group_config(config, {"share.session.timeout.ms": "6001", "share.heartbeat.interval.ms": "6000"})


def test_unknown_name_is_refused_with_the_nearest_one() -> None:
    assert "did you mean share.isolation.level?" in refused(broker(), share_isolation_levl="read_committed")
    assert "did you mean streams.session.timeout.ms?" in refused(broker(), streams_session_timout_ms="45000")


def test_settings_of_streams_groups_have_the_bounds_of_kafka() -> None:
    assert "(2)" in refused(broker(), streams_num_standby_replicas="3")
    assert "group.streams.max.assignment.interval.ms" in refused(broker(), streams_assignment_interval_ms="15001")
    validate_group_config(broker(), {"streams.initial.rebalance.delay.ms": "3600000"})
    values, corrected = group_config(broker(), {"streams.num.standby.replicas": "9"})
    assert (values.streams_num_standby_replicas, len(corrected)) == (2, 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("latest", OffsetReset(OffsetResetKind.LATEST)),
        ("earliest", OffsetReset(OffsetResetKind.EARLIEST)),
        ("by_duration:PT1H", OffsetReset(OffsetResetKind.BY_DURATION, 3_600_000)),
        ("by_duration:P1DT0.5S", OffsetReset(OffsetResetKind.BY_DURATION, 86_400_500)),
    ],
)
def test_offset_reset_is_one_of_kafkas(text: str, expected: OffsetReset) -> None:
    config = dynamic()
    assert config.set_group(GROUP, {"share.auto.offset.reset": text}) == ()
    assert config.group_config(GROUP).share_auto_offset_reset == expected


@pytest.mark.parametrize("text", ["none", "by_duration", "by_duration:1h", "by_duration:-PT1S", "Latest", ""])
def test_other_offset_resets_are_refused_with_kafkas_words(text: str) -> None:
    assert "must be either 'earliest', 'latest' or of the format" in refused(broker(), share_auto_offset_reset=text)


def test_offset_reset_finds_its_time() -> None:
    assert OffsetReset(OffsetResetKind.LATEST).timestamp_ms(10_000) == -1
    assert OffsetReset(OffsetResetKind.EARLIEST).timestamp_ms(10_000) == -2
    assert OffsetReset(OffsetResetKind.BY_DURATION, 4_000).timestamp_ms(10_000) == 6_000
    assert OffsetReset(OffsetResetKind.BY_DURATION, 20_000).timestamp_ms(10_000) == 0


def test_setting_that_cannot_be_used_does_not_take_the_others_with_it() -> None:
    config = dynamic()
    ignored = config.set_group(GROUP, {"share.session.timeout.ms": "soon", "share.heartbeat.interval.ms": "6000"})
    assert [line.startswith("[settings of group g] share.session.timeout.ms is ignored") for line in ignored] == [True]
    assert config.group_config(GROUP).share_heartbeat_interval_ms == 6_000


def test_description_names_the_source_of_each_value() -> None:
    config = dynamic(group_share_delivery_count_limit="3")
    own = {"share.isolation.level": "read_committed"}
    entries = {each.name: each for each in describe_group(config, own, Shown(synonyms=True))}
    assert set(entries) == set(GROUP_SETTINGS)
    isolation, limit, reset = (
        entries[name] for name in ("share.isolation.level", "share.delivery.count.limit", "share.auto.offset.reset")
    )
    assert (isolation.value, isolation.source) == ("read_committed", ConfigSource.DYNAMIC_GROUP_CONFIG)
    assert (limit.value, limit.source) == ("3", ConfigSource.STATIC_BROKER_CONFIG)
    assert [each.name for each in limit.synonyms] == ["group.share.delivery.count.limit"] * 2
    assert (reset.value, reset.source) == ("latest", ConfigSource.DEFAULT_CONFIG)
    assert not any(each.read_only for each in entries.values())
