"""Settings that change while the broker runs."""

import pytest

from barnabas.base.config.alter import ConfigChange, apply_changes, invalid_value, replacement
from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.catalog import BROKER_SETTINGS, TOPIC_SETTINGS
from barnabas.base.config.dynamic import DynamicConfig
from barnabas.base.config.log_config import LogConfig
from barnabas.base.errors import ConfigError, ErrorCode, Refused
from barnabas.base.words import AlterOperation


def dynamic(**settings: str) -> DynamicConfig:
    named = {name.replace("_", "."): raw for name, raw in settings.items()}
    return DynamicConfig({"zookeeper.connect": "h:1", "broker.id": "1", **named})


def test_own_value_wins_over_cluster_default_over_file_over_default() -> None:
    config = dynamic(log_segment_bytes="100")
    assert DynamicConfig({"zookeeper.connect": "h:1"}).broker.values["log.segment.bytes"] == 1024**3
    assert config.broker.values["log.segment.bytes"] == 100
    config.set_cluster_default({"log.segment.bytes": "200"})
    assert config.broker.values["log.segment.bytes"] == 200
    config.set_broker({"log.segment.bytes": "300"})
    assert config.broker.values["log.segment.bytes"] == 300
    config.set_cluster_default({})
    assert config.broker.values["log.segment.bytes"] == 300
    config.set_broker({})
    assert config.broker.values["log.segment.bytes"] == 100


def test_dynamic_value_wins_over_a_finer_unit_in_the_file() -> None:
    config = dynamic(log_retention_minutes="1", log_retention_hours="5")
    config.set_cluster_default({"log.retention.ms": "7"})
    assert config.broker.log_retention_ms == 7
    config.set_cluster_default({})
    assert config.broker.log_retention_ms == 60_000


def test_topic_follows_the_broker_where_it_has_no_value_of_its_own() -> None:
    config = dynamic()
    config.set_topic("t", {"segment.bytes": "50"})
    config.set_broker({"log.segment.bytes": "60", "log.retention.bytes": "70"})
    assert (config.log_config("t").segment_bytes, config.log_config("t").retention_bytes) == (50, 70)
    assert (config.log_config("other").segment_bytes, config.log_config("other").retention_bytes) == (60, 70)
    config.set_topic("t", {})
    assert config.log_config("t") == config.log_config("other")


def test_limits_that_no_file_can_hold_come_dynamically() -> None:
    config = DynamicConfig({"zookeeper.connect": "h:1", "leader.replication.throttled.rate": "5"})
    assert config.broker.leader_replication_throttled_rate == 2**63 - 1
    config.set_cluster_default({"leader.replication.throttled.rate": "7"})
    assert config.broker.leader_replication_throttled_rate == 7


def test_subscribers_get_changes_and_only_changes() -> None:
    config = dynamic()
    seen: list[tuple[int, int]] = []
    end = config.subscribe(lambda old, new: seen.append((old.max_connections, new.max_connections)))
    config.set_broker({"max.connections": "5"})
    config.set_broker({"max.connections": "5"})
    config.set_broker({"max.connections": "6"})
    end()
    config.set_broker({})
    assert seen == [(2**31 - 1, 5), (5, 6)]


def test_subscriber_sees_the_new_settings_everywhere() -> None:
    config = dynamic()
    seen: list[bool] = []

    def look(old: BrokerConfig, new: BrokerConfig) -> None:
        seen.append(config.broker is new and config.log_config("t").segment_bytes == new.values["log.segment.bytes"])

    config.subscribe(look)
    config.set_broker({"log.segment.bytes": "99"})
    assert seen == [True]


def test_topic_subscribers_get_changes_of_topics_and_of_the_broker() -> None:
    config = dynamic()
    seen: list[tuple[str, int]] = []

    def note(topic: str, log: LogConfig) -> None:
        seen.append((topic, log.segment_bytes))

    end = config.subscribe_topics(note)
    config.set_topic("t", {"segment.bytes": "50"})
    config.set_topic("t", {"segment.bytes": "50"})
    config.set_broker({"max.connections": "5"})
    config.set_broker({"log.segment.bytes": "60"})
    end()
    config.set_topic("t", {})
    assert seen == [("t", 50), ("", 60), ("t", 50)]


def test_bad_entries_in_the_store_are_ignored_and_the_others_count() -> None:
    config = dynamic()
    ignored = config.set_broker({"max.connections": "many", "broker.id": "7", "log.segment.bytes": "60"})
    assert config.broker.values["log.segment.bytes"] == 60
    assert config.broker.broker_id == 1
    assert ignored == (
        "max.connections is ignored: Invalid value many for configuration max.connections: Not a number of type INT",
        "broker.id is ignored: Cannot update these configs dynamically: Set(broker.id)",
    )
    assert config.set_cluster_default({"listeners": "PLAINTEXT://:1"}) == (
        "listeners is ignored: Cannot update these configs at default cluster level, broker id must be specified: "
        "Set(listeners)",
    )
    assert config.set_topic("t", {"nonsense": "1", "retention.ms": "-7", "segment.bytes": "55"}) == (
        "nonsense is ignored: Unknown topic config name: nonsense",
        "retention.ms is ignored: Invalid value -7 for configuration retention.ms: Value must be at least -1",
    )
    assert config.log_config("t").segment_bytes == 55


def test_settings_in_the_store_that_do_not_fit_together_leave_things_as_they_are() -> None:
    config = dynamic()
    config.set_broker({"log.segment.bytes": "60"})
    ignored = config.set_broker({"log.segment.bytes": "70", "advertised.listeners": "SSL://h:1"})
    assert config.broker.values["log.segment.bytes"] == 60
    assert config.own == {"log.segment.bytes": "60"}
    assert len(ignored) == 1
    assert "do not fit together" in ignored[0]


REFUSALS = [
    ({"broker.id": "2", "log.dirs": "/x"}, True, "Cannot update these configs dynamically: Set(broker.id, log.dirs)"),
    ({"log.retention.hours": "2"}, True, "Cannot update these configs dynamically: Set(log.retention.hours)"),
    (
        {"ssl.keystore.location": "/k"},
        True,
        "These security configs can be dynamically updated only per-listener using the listener prefix: "
        "Set(ssl.keystore.location)",
    ),
    (
        {"advertised.listeners": "PLAINTEXT://h:1"},
        False,
        "Cannot update these configs at default cluster level, broker id must be specified: Set(advertised.listeners)",
    ),
    (
        {"listener.name.plaintext.ssl.keystore.location": "/k"},
        False,
        "Cannot update these configs at default cluster level, broker id must be specified: "
        "Set(listener.name.plaintext.ssl.keystore.location)",
    ),
    (
        {"log.segment.bytes": "1"},
        False,
        "Invalid value 1 for configuration log.segment.bytes: Value must be at least 14",
    ),
    (
        {"leader.replication.throttled.rate": "-1"},
        True,
        "Invalid value -1 for configuration leader.replication.throttled.rate: Value must be at least 0",
    ),
    (
        {"listener.name.plaintext.max.connections": "x"},
        True,
        "Invalid value x for configuration max.connections: Not a number of type INT",
    ),
    (
        {"num.io.threads": "17"},
        False,
        "Invalid dynamic configuration: Dynamic thread count update validation failed for num.io.threads=17, value should "
        "not be greater than double the current value 8",
    ),
    (
        {"background.threads": "4"},
        False,
        "Invalid dynamic configuration: Dynamic thread count update validation failed for background.threads=4, value "
        "should be at least half the current value 10",
    ),
    (
        {"log.cleaner.threads": "3"},
        False,
        "Invalid dynamic configuration: Log cleaner threads cannot be increased to more than double the current value 1",
    ),
    (
        {"log.cleaner.threads": "0"},
        False,
        "Log cleaner threads should be at least 1",
    ),
    (
        {"log.local.retention.ms": "-1"},
        False,
        "Invalid dynamic configuration: Invalid value -1 for configuration log.local.retention.ms: Value must not be -1 as "
        "log.retention.ms value is set as 604800000.",
    ),
    (
        {"log.local.retention.bytes": "11", "log.retention.bytes": "10"},
        False,
        "Invalid dynamic configuration: Invalid value 11 for configuration log.local.retention.bytes: Value must not be more "
        "than log.retention.bytes property value: 10",
    ),
    ({"max.connections": "0"}, False, "Invalid dynamic configuration: Invalid max.connections 0"),
    (
        {"max.connection.creation.rate": "0"},
        False,
        "Invalid dynamic configuration: Invalid max.connection.creation.rate 0",
    ),
    (
        {"listener.name.plaintext.max.connections": "0"},
        True,
        "Invalid dynamic configuration: Invalid max.connections 0",
    ),
    (
        {"num.network.threads": "7"},
        False,
        "Invalid dynamic configuration: Dynamic thread count update validation failed for num.network.threads=7, value "
        "should not be greater than double the current value 3",
    ),
    (
        {"num.replica.fetchers": "0"},
        False,
        "Invalid dynamic configuration: Dynamic thread count update validation failed for num.replica.fetchers=0, value "
        "should be at least 1",
    ),
    (
        {"listener.security.protocol.map": "PLAINTEXT:SSL,SSL:SSL", "listeners": "PLAINTEXT://:9092"},
        True,
        "Invalid dynamic configuration: Security protocol cannot be updated for existing listener PLAINTEXT",
    ),
    (
        {"listener.name.plaintext.sasl.enabled.mechanisms": "PLAIN"},
        True,
        "Invalid dynamic configuration: Configs cannot be updated dynamically for existing listener PLAINTEXT, "
        "restart broker or create a new listener for update",
    ),
    (
        {"advertised.listeners": "SSL://h:1"},
        True,
        "inter.broker.listener.name must be a listener name defined in advertised.listeners. The valid options based on "
        "currently configured listeners are SSL",
    ),
]


@pytest.mark.parametrize(("proposed", "per_broker", "message"), REFUSALS)
def test_change_is_refused_in_kafkas_words(proposed: dict[str, str], per_broker: bool, message: str) -> None:
    config = dynamic()
    with pytest.raises(Refused) as refused:
        config.validate_broker_change(proposed, per_broker=per_broker)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert refused.value.message == message
    assert config.broker == dynamic().broker


@pytest.mark.parametrize(
    ("proposed", "per_broker"),
    [
        ({"log.segment.bytes": "100"}, False),
        ({"num.io.threads": "16", "background.threads": "5"}, False),
        ({"advertised.listeners": "PLAINTEXT://elsewhere:9092"}, True),
        ({"listener.name.plaintext.ssl.keystore.location": "/k"}, True),
        ({"listener.name.plaintext.max.connections": "5"}, False),
        ({"follower.replication.throttled.rate": "1000"}, True),
        ({"some.plugins.setting": "x"}, True),
        ({"listeners": "PLAINTEXT://:9092,SSL://:9093", "listener.name.ssl.ssl.client.auth": "required"}, True),
    ],
)
def test_change_is_accepted(proposed: dict[str, str], per_broker: bool) -> None:
    dynamic().validate_broker_change(proposed, per_broker=per_broker)


def change(name: str, operation: int, value: str | None) -> ConfigChange:
    return ConfigChange(name, operation, value)


SET, DELETE, APPEND, SUBTRACT = AlterOperation


@pytest.mark.parametrize(
    ("current", "changes", "expected"),
    [
        ({}, [change("retention.ms", SET, "5")], {"retention.ms": "5"}),
        ({"retention.ms": "5"}, [change("retention.ms", DELETE, None)], {}),
        ({}, [change("retention.ms", DELETE, None)], {}),
        ({}, [change("cleanup.policy", APPEND, "compact")], {"cleanup.policy": "delete,compact"}),
        ({"cleanup.policy": "compact"}, [change("cleanup.policy", APPEND, "compact")], {"cleanup.policy": "compact"}),
        ({"cleanup.policy": ""}, [change("cleanup.policy", APPEND, "compact")], {"cleanup.policy": "compact"}),
        (
            {"cleanup.policy": "compact,delete"},
            [change("cleanup.policy", SUBTRACT, "delete,absent")],
            {"cleanup.policy": "compact"},
        ),
        ({}, [change("cleanup.policy", SUBTRACT, "delete")], {"cleanup.policy": ""}),
        (
            {"segment.ms": "1"},
            [change("retention.ms", SET, "5"), change("segment.ms", SET, "2")],
            {"segment.ms": "2", "retention.ms": "5"},
        ),
    ],
)
def test_incremental_changes(current: dict[str, str], changes: list[ConfigChange], expected: dict[str, str]) -> None:
    before = dict(current)
    assert apply_changes(current, changes, TOPIC_SETTINGS) == expected
    assert current == before


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        (
            [change("retention.ms", APPEND, "5")],
            ErrorCode.INVALID_CONFIG,
            "Config value append is not allowed for config key: retention.ms",
        ),
        (
            [change("retention.ms", SUBTRACT, "5")],
            ErrorCode.INVALID_CONFIG,
            "Config value subtract is not allowed for config key: retention.ms",
        ),
        ([change("nonsense", APPEND, "5")], ErrorCode.INVALID_CONFIG, "Unknown config name: nonsense"),
        ([change("retention.ms", 9, "5")], ErrorCode.INVALID_REQUEST, "Unknown operations type 9"),
        (
            [change("retention.ms", SET, None), change("segment.ms", APPEND, None)],
            ErrorCode.INVALID_REQUEST,
            "Null value not supported for : retention.ms, segment.ms",
        ),
        (
            [change("retention.ms", SET, "1"), change("retention.ms", DELETE, None)],
            ErrorCode.INVALID_REQUEST,
            "Error due to duplicate config keys",
        ),
    ],
)
def test_incremental_changes_that_make_no_sense(changes: list[ConfigChange], code: ErrorCode, message: str) -> None:
    with pytest.raises(Refused) as refused:
        apply_changes({}, changes, TOPIC_SETTINGS)
    assert (refused.value.code, refused.value.message) == (code, message)


def test_broker_lists_are_appended_to_their_default() -> None:
    changes = [change("metric.reporters", APPEND, "a.B")]
    assert apply_changes({}, changes, BROKER_SETTINGS) == {"metric.reporters": "a.B"}


def test_alter_configs_replaces_everything() -> None:
    assert replacement([("retention.ms", "5"), ("segment.ms", "6")]) == {"retention.ms": "5", "segment.ms": "6"}
    with pytest.raises(Refused, match="Null value not supported for : a"):
        replacement([("a", None)])


def test_error_names_the_resource_with_the_bad_value() -> None:
    refused = invalid_value("TOPIC", "t", ConfigError("Invalid value x for configuration y"))
    assert refused.code is ErrorCode.INVALID_CONFIG
    assert refused.message == (
        "Invalid config value for resource ConfigResource(type=TOPIC, name='t'): Invalid value x for configuration y"
    )
