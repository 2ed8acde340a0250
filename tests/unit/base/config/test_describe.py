"""The response of DescribeConfigs."""

from barnabas.base.config.catalog import BROKER_SETTINGS, TOPIC_SETTINGS
from barnabas.base.config.definitions import extra
from barnabas.base.config.describe import (
    ConfigEntry,
    ConfigSynonym,
    Shown,
    describe_broker,
    describe_cluster_default,
    describe_topic,
)
from barnabas.base.config.dynamic import DynamicConfig
from barnabas.base.words import ConfigSource

TOPIC, OWN, CLUSTER, STATIC, DEFAULT = (
    ConfigSource.DYNAMIC_TOPIC_CONFIG,
    ConfigSource.DYNAMIC_BROKER_CONFIG,
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
    ConfigSource.STATIC_BROKER_CONFIG,
    ConfigSource.DEFAULT_CONFIG,
)


def dynamic(static: dict[str, str] | None = None) -> DynamicConfig:
    return DynamicConfig({"zookeeper.connect": "h:1", "broker.id": "1", **(static or {})})


def one_topic(config: DynamicConfig, name: str, overrides: dict[str, str] | None = None) -> ConfigEntry:
    entries = describe_topic(config, overrides or {}, Shown(frozenset({name}), synonyms=True, documentation=True))
    assert len(entries) == 1
    return entries[0]


def one_broker(config: DynamicConfig, name: str) -> ConfigEntry:
    entries = describe_broker(config, Shown(frozenset({name}), synonyms=True, documentation=True))
    assert len(entries) == 1
    return entries[0]


def test_every_topic_setting_is_described() -> None:
    entries = describe_topic(dynamic(), {})
    assert {entry.name for entry in entries} == set(TOPIC_SETTINGS)
    assert all(entry.source is DEFAULT and not entry.read_only and not entry.is_sensitive for entry in entries)
    assert all(entry.synonyms == () and entry.documentation is None for entry in entries)


def test_topics_value_comes_with_the_values_that_it_overrides() -> None:
    config = dynamic({"log.segment.bytes": "100"})
    config.set_cluster_default({"log.segment.bytes": "200"})
    config.set_broker({"log.segment.bytes": "300"})
    entry = one_topic(config, "segment.bytes", {"segment.bytes": "400"})
    assert entry.value == "400"
    assert entry.source is TOPIC
    assert entry.type_code == 3
    assert entry.synonyms == (
        ConfigSynonym("segment.bytes", "400", TOPIC),
        ConfigSynonym("log.segment.bytes", "300", OWN),
        ConfigSynonym("log.segment.bytes", "200", CLUSTER),
        ConfigSynonym("log.segment.bytes", "100", STATIC),
        ConfigSynonym("log.segment.bytes", "1073741824", DEFAULT),
    )
    assert entry.documentation == TOPIC_SETTINGS["segment.bytes"].documentation
    assert one_topic(config, "segment.bytes").source is OWN


def test_retention_in_hours_shows_as_kafka_shows_it() -> None:
    # Kafka drops what precedes log.retention.ms itself, so a file's hours only show in the value.
    entry = one_topic(dynamic({"log.retention.hours": "1"}), "retention.ms")
    assert (entry.value, entry.source, entry.synonyms) == ("3600000", DEFAULT, ())
    entry = one_topic(dynamic({"log.retention.hours": "1", "log.retention.ms": "5"}), "retention.ms")
    assert entry.value == "5"
    assert entry.source is STATIC
    assert entry.synonyms == (
        ConfigSynonym("log.retention.ms", "5", STATIC),
        ConfigSynonym("log.retention.hours", "1", STATIC),
        ConfigSynonym("log.retention.hours", "168", DEFAULT),
    )


def test_topic_setting_without_a_broker_default() -> None:
    entry = one_topic(dynamic(), "leader.replication.throttled.replicas")
    assert (entry.value, entry.source, entry.synonyms) == ("", DEFAULT, ())


def test_every_broker_setting_is_described_but_internal_and_foreign_ones() -> None:
    described = {entry.name for entry in describe_broker(dynamic())}
    hidden = {name for name, setting in BROKER_SETTINGS.items() if setting.internal}
    hidden |= {setting.name for setting in extra.SETTINGS}
    assert described == set(BROKER_SETTINGS) - hidden
    shown = {
        entry.name for entry in describe_broker(dynamic({"log.initial.task.delay.ms": "1", "super.users": "User:a"}))
    }
    assert shown - described == {"log.initial.task.delay.ms", "super.users"}


def test_broker_entry_has_its_update_mode_and_its_source() -> None:
    config = dynamic({"num.partitions": "3"})
    fixed = one_broker(config, "num.partitions")
    assert (fixed.value, fixed.read_only, fixed.source) == ("3", True, STATIC)
    assert fixed.synonyms == (
        ConfigSynonym("num.partitions", "3", STATIC),
        ConfigSynonym("num.partitions", "1", DEFAULT),
    )
    assert not one_broker(config, "log.segment.bytes").read_only
    assert one_broker(config, "broker.rack").value is None
    assert one_broker(config, "node.id").source is STATIC


def test_secrets_and_unknown_names_have_no_value() -> None:
    config = dynamic({"ssl.key.password": "x", "my.plugin": "y", "listener.name.plaintext.ssl.key.password": "z"})
    for name in ("ssl.key.password", "my.plugin", "listener.name.plaintext.ssl.key.password"):
        entry = one_broker(config, name)
        assert entry.is_sensitive
        assert entry.value is None
        assert all(synonym.value is None for synonym in entry.synonyms)
        assert entry.source is STATIC
    assert one_broker(config, "my.plugin").type_code == 0
    assert one_broker(config, "ssl.key.password").type_code == 9


def test_listeners_own_value_wins_over_the_plain_one() -> None:
    config = dynamic({"max.connections": "9", "listener.name.plaintext.max.connections": "5"})
    entry = one_broker(config, "listener.name.plaintext.max.connections")
    assert entry.value == "5"
    assert entry.synonyms == (
        ConfigSynonym("listener.name.plaintext.max.connections", "5", STATIC),
        ConfigSynonym("max.connections", "9", STATIC),
        ConfigSynonym("max.connections", "2147483647", DEFAULT),
    )
    assert one_broker(config, "max.connections").synonyms[0].name == "max.connections"


def test_cluster_default_shows_only_what_is_set_there() -> None:
    config = dynamic({"log.segment.bytes": "100"})
    config.set_cluster_default({"log.segment.bytes": "200", "leader.replication.throttled.rate": "7"})
    config.set_broker({"log.segment.bytes": "300"})
    entries = {entry.name: entry for entry in describe_cluster_default(config, Shown(synonyms=True))}
    assert set(entries) == {"log.segment.bytes", "leader.replication.throttled.rate"}
    assert entries["log.segment.bytes"].value == "200"
    assert entries["log.segment.bytes"].source is CLUSTER
    assert entries["log.segment.bytes"].synonyms == (ConfigSynonym("log.segment.bytes", "200", CLUSTER),)
    assert entries["leader.replication.throttled.rate"].value == "7"
