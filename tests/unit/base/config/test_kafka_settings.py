"""The table of settings, compared with facts from Apache Kafka 3.9.1 itself (kafka_3_9_settings.json)."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.catalog import (
    BROKER_SETTINGS,
    CLIENT_QUOTA_SETTINGS,
    DYNAMIC_ONLY_SETTINGS,
    FAMILIES,
    IP_QUOTA_SETTINGS,
    TOPIC_SETTINGS,
    UNIT_SYNONYMS,
)
from barnabas.base.config.definition import Password, Setting, ValueType, attribute_name
from barnabas.base.config.definitions import extra, share, share_coordinator, streams
from barnabas.base.config.log_config import LogConfig
from barnabas.base.config.settings import BrokerSettings
from barnabas.base.config.topic import log_config

FACTS: dict[str, Any] = json.loads((Path(__file__).parent / "kafka_3_9_settings.json").read_text())
EXTRA_NAMES = {setting.name for setting in extra.SETTINGS + share_coordinator.SETTINGS} | {
    name for name in TOPIC_SETTINGS if name.startswith("barnabas.")
}
#: Settings that came with Kafka 4.
EXTRA_NAMES |= {"group.share.max.share.sessions", "errors.deadletterqueue.group.enable"}

#: Kafka 3.9 has a preview of share groups. Their settings are those of Kafka 4.3: (default, valid values).
SHARE = {
    "errors.deadletterqueue.auto.create.topics.enable": ("false", "None"),
    "errors.deadletterqueue.topic.name.prefix": ("dlq.", "None"),
    "group.share.delivery.count.limit": ("5", "[2,...,10]"),
    "group.share.heartbeat.interval.ms": ("5000", "[1,...]"),
    "group.share.initialize.retry.interval.ms": ("30000", "[1,...]"),
    "group.share.max.delivery.count.limit": ("10", "[5,...,25]"),
    "group.share.max.heartbeat.interval.ms": ("15000", "[1,...]"),
    "group.share.max.partition.max.record.locks": ("4000", "[2000,...,10000]"),
    "group.share.max.record.lock.duration.ms": ("60000", "[30000,...,3600000]"),
    "group.share.max.session.timeout.ms": ("60000", "[1,...]"),
    "group.share.max.share.sessions": ("2000", "[1,...,10000]"),
    "group.share.max.size": ("200", "[1,...,1000]"),
    "group.share.min.delivery.count.limit": ("2", "[2,...,5]"),
    "group.share.min.heartbeat.interval.ms": ("5000", "[1,...]"),
    "group.share.min.partition.max.record.locks": ("100", "[100,...,2000]"),
    "group.share.min.record.lock.duration.ms": ("15000", "[1000,...,30000]"),
    "group.share.min.session.timeout.ms": ("45000", "[1,...]"),
    "group.share.partition.max.record.locks": ("2000", "[100,...,10000]"),
    "group.share.record.lock.duration.ms": ("30000", "[1000,...,3600000]"),
    "group.share.session.timeout.ms": ("45000", "[1,...]"),
}
#: Settings of streams groups, as Kafka 4.3 has them.
STREAMS = {
    "group.streams.assignment.interval.ms": ("1000", "[0,...]"),
    "group.streams.heartbeat.interval.ms": ("5000", "[1,...]"),
    "group.streams.initial.rebalance.delay.ms": ("3000", "[0,...]"),
    "group.streams.max.assignment.interval.ms": ("15000", "[0,...]"),
    "group.streams.max.heartbeat.interval.ms": ("15000", "[1,...]"),
    "group.streams.max.session.timeout.ms": ("60000", "[1,...]"),
    "group.streams.max.size": ("2147483647", "[1,...]"),
    "group.streams.max.standby.replicas": ("2", "[0,...]"),
    "group.streams.min.assignment.interval.ms": ("0", "[0,...]"),
    "group.streams.min.heartbeat.interval.ms": ("5000", "[1,...]"),
    "group.streams.min.session.timeout.ms": ("45000", "[1,...]"),
    "group.streams.num.standby.replicas": ("0", "[0,...]"),
    "group.streams.session.timeout.ms": ("45000", "[1,...]"),
}
EXTRA_NAMES |= STREAMS.keys()
#: Settings of the preview that Kafka 4 does not have.
SHARE_PREVIEW = {"group.share.enable", "group.share.max.groups"}

TABLES = {
    "broker": BROKER_SETTINGS,
    "topic": TOPIC_SETTINGS,
    "dynamic_only": DYNAMIC_ONLY_SETTINGS,
    "client_quotas": CLIENT_QUOTA_SETTINGS,
    "ip_quotas": IP_QUOTA_SETTINGS,
}
PYTHON_TYPES = {
    ValueType.BOOLEAN: bool,
    ValueType.STRING: str,
    ValueType.INT: int,
    ValueType.SHORT: int,
    ValueType.LONG: int,
    ValueType.DOUBLE: float,
    ValueType.LIST: tuple[str, ...],
    ValueType.CLASS: str,
    ValueType.PASSWORD: Password,
}
#: Attributes that are computed from several settings, or parsed from structured text.
RESOLVED = {
    "listeners",
    "advertised.listeners",
    "listener.security.protocol.map",
    "max.connections.per.ip.overrides",
    "security.inter.broker.protocol",
    "inter.broker.listener.name",
    "log.dirs",
    "log.roll.ms",
    "log.roll.jitter.ms",
    "log.flush.interval.ms",
    "log.retention.ms",
    "zookeeper.connect",
    "zookeeper.connection.timeout.ms",
    "super.users",
}


def of_3_9(kind: str) -> list[dict[str, Any]]:
    return [fact for fact in FACTS[kind] if fact["name"] not in SHARE]


@pytest.mark.parametrize("kind", TABLES)
def test_names_are_kafkas_all_of_them_and_no_others(kind: str) -> None:
    assert set(TABLES[kind]) - EXTRA_NAMES - set(SHARE) == {fact["name"] for fact in of_3_9(kind)}


def test_settings_of_share_groups_are_those_of_kafka_4() -> None:
    ours = {each.name: (each.format(each.default), str(each.validator)) for each in share.SETTINGS}
    assert {name: facts for name, facts in ours.items() if name not in SHARE_PREVIEW} == SHARE


def test_settings_of_streams_groups_are_those_of_kafka_4() -> None:
    assert {each.name: (each.format(each.default), str(each.validator)) for each in streams.SETTINGS} == STREAMS


@pytest.mark.parametrize("kind", TABLES)
def test_types_defaults_and_importance_are_kafkas(kind: str) -> None:
    ours = {
        name: (each.type.name, each.format(each.default), each.importance.value, each.internal)
        for name, each in TABLES[kind].items()
        if name not in EXTRA_NAMES and name not in SHARE
    }
    theirs = {
        fact["name"]: (fact["type"], fact["default"], fact["importance"], fact["internal"]) for fact in of_3_9(kind)
    }
    # Java's maps have no order.
    for table in (ours, theirs):
        if "listener.security.protocol.map" in table:
            kept = table["listener.security.protocol.map"]
            table["listener.security.protocol.map"] = (kept[0], ",".join(sorted(str(kept[1]).split(","))), *kept[2:])
    assert ours == theirs


def test_update_modes_are_kafkas() -> None:
    ours = {
        name: each.update_mode.value
        for name, each in BROKER_SETTINGS.items()
        if name not in EXTRA_NAMES and name not in SHARE
    }
    assert ours == {fact["name"]: fact["update_mode"] for fact in of_3_9("broker")}


@pytest.mark.parametrize("kind", TABLES)
def test_valid_values_are_kafkas(kind: str) -> None:
    for fact in of_3_9(kind):
        if fact["name"] == "group.coordinator.rebalance.protocols":
            fact = {**fact, "valid": "[consumer, classic, share, streams, unknown]"}  # as Kafka 4
        if "valid" in fact:
            assert str(TABLES[kind][fact["name"]].validator) == fact["valid"], fact["name"]


def test_topic_settings_inherit_from_the_broker_settings_that_kafka_says() -> None:
    ours = {name: each.server_default for name, each in TOPIC_SETTINGS.items() if each.server_default is not None}
    assert ours == {name: synonyms[0] for name, synonyms in FACTS["topic_synonyms"].items()}
    several = {name: synonyms for name, synonyms in FACTS["topic_synonyms"].items() if len(synonyms) > 1}
    assert {name: [each.name for each in synonyms] for name, synonyms in UNIT_SYNONYMS.items()} == several


@pytest.mark.parametrize("setting", [*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values()], ids=lambda each: each.name)
def test_default_is_valid_and_survives_its_own_text(setting: Setting) -> None:
    if setting.default is not None:
        text = setting.format(setting.default)
        assert text is not None
        assert setting.parse(text) == setting.default
        assert type(setting.parse(text)) is type(setting.default)


@pytest.mark.parametrize("setting", [*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values()], ids=lambda each: each.name)
def test_setting_says_what_it_means(setting: Setting) -> None:
    assert setting.documentation.endswith(".")
    assert len(setting.documentation) < 260


def test_no_setting_is_in_two_families() -> None:
    assert sum(len(settings) for settings in FAMILIES.values()) == len(BROKER_SETTINGS)


def test_each_attribute_has_the_type_of_its_setting() -> None:
    settings = {each.attribute: each for each in [*BROKER_SETTINGS.values(), *DYNAMIC_ONLY_SETTINGS.values()]}
    for attribute, found in get_type_hints(BrokerSettings).items():
        setting = settings[attribute]
        if setting.name not in RESOLVED:
            expected = PYTHON_TYPES[setting.type]
            if setting.default is None:
                assert set(get_args(found)) == {expected, type(None)}, attribute
            else:
                assert found == expected, attribute


def test_each_topic_setting_is_a_field_of_log_config_with_its_type() -> None:
    hints = get_type_hints(LogConfig)
    derived = {each.name for each in fields(LogConfig) if not each.init}
    assert set(hints) - {"overridden"} - derived == {attribute_name(name) for name in TOPIC_SETTINGS}
    for name, setting in TOPIC_SETTINGS.items():
        if name != "cleanup.policy":
            assert hints[attribute_name(name)] == PYTHON_TYPES[setting.type], name


def test_log_config_without_arguments_is_a_topic_on_a_broker_without_settings() -> None:
    assert log_config(BrokerConfig.parse({"zookeeper.connect": "localhost:2181"})) == LogConfig()
