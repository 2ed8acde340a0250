"""A broker's settings: parsed, resolved, and refused if they contradict each other."""

from collections.abc import Mapping

import pytest

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.definition import Password
from barnabas.base.config.listeners import Listener
from barnabas.base.errors import ConfigError
from barnabas.base.words import SecurityProtocol

MINIMAL = {"zookeeper.connect": "localhost:2181"}
HOUR_MS = 3_600_000


def parse(properties: Mapping[str, str] | None = None) -> BrokerConfig:
    return BrokerConfig.parse({**MINIMAL, **(properties or {})})


def test_broker_needs_no_more_than_zookeeper() -> None:
    config = parse()
    assert config.broker_id == -1
    assert config.listeners == (Listener("PLAINTEXT", SecurityProtocol.PLAINTEXT, "", 9092),)
    assert config.advertised_listeners == config.listeners
    assert config.inter_broker_listener == config.listeners[0]
    assert config.log_dirs == ("/tmp/kafka-logs",)
    assert config.replica_lag_time_max_ms == 30_000
    assert config.leader_replication_throttled_rate == 2**63 - 1


def test_config_does_not_change() -> None:
    config = parse()
    with pytest.raises(AttributeError, match="does not change"):
        config.log_segment_bytes = 1
    with pytest.raises(AttributeError, match="does not change"):
        del config.log_segment_bytes
    with pytest.raises(TypeError):
        config.values["log.segment.bytes"] = 1  # type: ignore[index]
    with pytest.raises(TypeError, match=r"BrokerConfig\.parse"):
        BrokerConfig()


def test_equal_settings_make_equal_configs() -> None:
    assert parse({"broker.rack": "a"}) == parse({"broker.rack": "a"})
    assert parse({"broker.rack": "a"}) != parse({"broker.rack": "b"})


@pytest.mark.parametrize(
    ("given", "expected_ms"),
    [
        ({}, 168 * HOUR_MS),
        ({"log.retention.hours": "2"}, 2 * HOUR_MS),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 3 * 60_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.ms": "-1"}, -1),
        ({"log.retention.hours": "-5"}, -1),
    ],
)
def test_retention_comes_from_the_finest_unit_that_is_set(given: dict[str, str], expected_ms: int) -> None:
    assert parse(given).log_retention_ms == expected_ms


@pytest.mark.parametrize(
    ("given", "attribute", "expected"),
    [
        ({"log.roll.hours": "2"}, "log_roll_ms", 2 * HOUR_MS),
        ({"log.roll.hours": "2", "log.roll.ms": "9"}, "log_roll_ms", 9),
        ({"log.roll.jitter.hours": "1"}, "log_roll_jitter_ms", HOUR_MS),
        ({"log.flush.scheduler.interval.ms": "70"}, "log_flush_interval_ms", 70),
        ({"log.flush.scheduler.interval.ms": "70", "log.flush.interval.ms": "5"}, "log_flush_interval_ms", 5),
        ({"zookeeper.session.timeout.ms": "7"}, "zookeeper_connection_timeout_ms", 7),
        ({"zookeeper.connection.timeout.ms": "8"}, "zookeeper_connection_timeout_ms", 8),
        ({"log.dir": "/d"}, "log_dirs", ("/d",)),
        ({"log.dir": "/d", "log.dirs": "/a , /b,/a"}, "log_dirs", ("/a", "/b")),
        ({"node.id": "4"}, "broker_id", 4),
        ({"broker.id": "4", "node.id": "4"}, "broker_id", 4),
        ({"delegation.token.master.key": "old"}, "delegation_token_secret_key", Password("old")),
        (
            {"delegation.token.master.key": "old", "delegation.token.secret.key": "new"},
            "delegation_token_secret_key",
            Password("new"),
        ),
        ({"super.users": "User:a; User:CN=b,O=c;"}, "super_users", frozenset({"User:a", "User:CN=b,O=c"})),
        (
            {"max.connections.per.ip.overrides": "10.0.0.1:3,::1:4,host:5"},
            "max_connections_per_ip_overrides",
            {"10.0.0.1": 3, "::1": 4, "host": 5},
        ),
    ],
)
def test_attribute_has_the_value_computed_from_the_settings(
    given: dict[str, str], attribute: str, expected: object
) -> None:
    assert getattr(parse(given), attribute) == expected


def test_listeners_are_parsed_with_their_protocols() -> None:
    config = parse(
        {
            "listeners": "internal://[::1]:9093, EXTERNAL://:9094,CONTROL://h:0",
            "advertised.listeners": "INTERNAL://broker-1:9093,EXTERNAL://example.org:443,CONTROL://h:1",
            "listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:sasl_ssl,CONTROL:SSL",
            "inter.broker.listener.name": "internal",
            "control.plane.listener.name": "control",
        }
    )
    assert config.listeners == (
        Listener("INTERNAL", SecurityProtocol.PLAINTEXT, "::1", 9093),
        Listener("EXTERNAL", SecurityProtocol.SASL_SSL, "", 9094),
        Listener("CONTROL", SecurityProtocol.SSL, "h", 0),
    )
    assert str(config.listeners[0]) == "INTERNAL://[::1]:9093"
    assert config.inter_broker_listener == Listener("INTERNAL", SecurityProtocol.PLAINTEXT, "broker-1", 9093)
    assert config.security_inter_broker_protocol is SecurityProtocol.PLAINTEXT
    assert config.control_plane_listener_name == "CONTROL"
    assert config.listener("EXTERNAL") == config.listeners[1]
    assert config.listener("NOBODY") is None
    assert config.listeners[1].security_protocol.uses_tls
    assert config.listeners[1].security_protocol.uses_sasl
    assert config.listeners[1].config_prefix == "listener.name.external."


def test_two_stacks_may_share_a_port() -> None:
    config = parse(
        {
            "listeners": "PLAINTEXT://127.0.0.1:9092,SIX://[::1]:9092",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SIX:PLAINTEXT",
        }
    )
    assert [listener.port for listener in config.listeners] == [9092, 9092]


def test_listener_has_settings_of_its_own_and_its_mechanisms_too() -> None:
    config = parse(
        {
            "max.connections": "10",
            "listener.name.plaintext.max.connections": "3",
            "listener.name.plaintext.plain.sasl.jaas.config": "for plain",
            "listener.name.plaintext.sasl.jaas.config": "for others",
        }
    )
    assert config.for_listener("PLAINTEXT", "max.connections") == 3
    assert config.for_listener("OTHER", "max.connections") == 10
    assert config.for_listener("PLAINTEXT", "sasl.jaas.config", "PLAIN") == Password("for plain")
    assert config.for_listener("PLAINTEXT", "sasl.jaas.config", "SCRAM-SHA-256") == Password("for others")
    assert config.for_listener("OTHER", "sasl.jaas.config", "PLAIN") is None


def test_unknown_names_are_kept_as_they_came() -> None:
    assert parse({"my.plugin.setting": "x"}).originals["my.plugin.setting"] == "x"


def test_repr_hides_secrets_and_possible_secrets() -> None:
    config = parse(
        {
            "ssl.key.password": "hunter2",
            "listener.name.plaintext.ssl.keystore.password": "hunter3",
            "my.plugin.secret": "hunter4",
            "broker.rack": "r1",
        }
    )
    assert "hunter" not in repr(config)
    assert "broker.rack=r1" in repr(config)


REFUSALS = [
    ({"process.roles": "broker"}, "asks for KRaft mode, but brokers here run with ZooKeeper"),
    ({"zookeeper.metadata.migration.enable": "true"}, "asks for a migration to KRaft"),
    ({"controller.listener.names": "CONTROLLER"}, "must be empty when not running in KRaft mode: CONTROLLER"),
    ({"zookeeper.connect": ""}, "Missing required configuration `zookeeper.connect`"),
    ({"broker.id": "1", "node.id": "2"}, "You must set `node.id` to the same value as `broker.id`"),
    ({"broker.id": "1001"}, "not greater than reserved.broker.max.id (1000): it is 1001"),
    ({"broker.id": "-2"}, "broker.id must be greater than or equal to -1"),
    ({"broker.id.generation.enable": "false"}, "broker.id must be greater than or equal to 0"),
    ({"log.segment.bytes": "5"}, "Invalid value 5 for configuration log.segment.bytes: Value must be at least 14"),
    ({"log.roll.ms": "0"}, "log.roll.ms must be greater than or equal to 1"),
    ({"log.roll.jitter.ms": "-1"}, "log.roll.jitter.ms must be greater than or equal to 0"),
    ({"log.retention.ms": "0"}, "log.retention.ms must be unlimited (-1) or, greater than or equal to 1"),
    ({"log.dirs": " , "}, "At least one log directory must be defined via log.dirs or log.dir."),
    ({"log.cleaner.dedupe.buffer.size": "1048576"}, "must be at least 1MB per cleaner thread"),
    (
        {"log.cleaner.min.compaction.lag.ms": "9", "log.cleaner.max.compaction.lag.ms": "8"},
        "min.compaction.lag.ms (9) > max.compaction.lag.ms (8)",
    ),
    ({"replica.fetch.wait.max.ms": "30001"}, "replica.socket.timeout.ms should always be at least"),
    ({"replica.lag.time.max.ms": "400"}, "less than or equal to replica.lag.time.max.ms"),
    ({"listeners": ""}, "There must be at least one broker advertised listener."),
    ({"listeners": "PLAINTEXT:9092"}, "Unable to parse PLAINTEXT:9092 to a broker endpoint"),
    ({"listeners": "PLAINTEXT://h:99999"}, "port 99999 is not in 0..65535"),
    ({"listeners": "MINE://h:1"}, "No security protocol defined for listener MINE"),
    ({"listeners": "PLAINTEXT://h:1,plaintext://h:2"}, "Each listener must have a different name"),
    ({"listeners": "PLAINTEXT://h:1,SSL://h:1"}, "Each listener must have a different port"),
    ({"listeners": "PLAINTEXT://127.0.0.1:1,SSL://127.0.0.2:1"}, "one needs to be IPv4 and the other IPv6"),
    (
        {"listeners": "PLAINTEXT://127.0.0.1:1,SSL://[::1]:1,SASL_SSL://h:1"},
        "unless exactly one listener has an IPv4 address",
    ),
    ({"listeners": "SSL://h:1"}, "inter.broker.listener.name must be a listener name defined in advertised.listeners"),
    ({"advertised.listeners": "PLAINTEXT://h:1,SSL://h:2"}, "must be equal to or a subset of the ones defined in listeners"),
    ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "cannot use the nonroutable meta-address 0.0.0.0"),
    ({"inter.broker.listener.name": "X"}, "Listener with name X defined in inter.broker.listener.name not found"),
    (
        {"inter.broker.listener.name": "PLAINTEXT", "security.inter.broker.protocol": "PLAINTEXT"},
        "Only one of inter.broker.listener.name and security.inter.broker.protocol should be set.",
    ),
    ({"control.plane.listener.name": "X"}, "Listener with X defined in control.plane.listener.name not found"),
    ({"control.plane.listener.name": "SSL"}, "control.plane.listener.name must be a listener name defined in"),
    ({"control.plane.listener.name": "PLAINTEXT"}, "Currently they both have the value PLAINTEXT"),
    ({"listener.security.protocol.map": "A"}, "'A' is not of the form key:value"),
    ({"listener.security.protocol.map": "A:TLS"}, "Invalid security protocol `TLS`"),
    (
        {"listeners": "SASL_PLAINTEXT://:1", "security.inter.broker.protocol": "SASL_PLAINTEXT",
         "sasl.mechanism.inter.broker.protocol": "PLAIN"},
        "sasl.mechanism.inter.broker.protocol (PLAIN) must be included in sasl.enabled.mechanisms",
    ),
    ({"queued.max.request.bytes": "1000"}, "must be larger or equal to socket.request.max.bytes"),
    ({"max.connections.per.ip": "0"}, "can be set to zero only if max.connections.per.ip.overrides property is set"),
    ({"max.connections.per.ip.overrides": "a b:1"}, "contains invalid addresses : a b"),
    ({"max.connections.per.ip.overrides": "h:many"}, "'many' is not a number of connections"),
    ({"connections.max.idle.ms": "100"}, "should always be less than connections.max.idle.ms=100"),
    ({"group.coordinator.rebalance.protocols": "consumer"}, "Disabling the 'classic' protocol is not supported."),
    ({"group.share.min.record.lock.duration.ms": "30000", "group.share.record.lock.duration.ms": "20000"},
     "group.share.record.lock.duration.ms must be greater than or equals to group.share.min.record.lock.duration.ms"),
    ({"group.consumer.max.session.timeout.ms": "44999"}, "must be greater than or equals to group.consumer.min.session"),
    ({"offsets.commit.required.acks": "4"}, "offsets.commit.required.acks must be greater or equal to -1"),
    ({"early.start.listeners": "PLAINTEXT, X"}, "early.start.listeners contains listener X"),
    ({"log.cleaner.threads": "0"}, "Log cleaner threads should be at least 1"),
    ({"offsets.topic.compression.codec": "5"}, "offsets.topic.compression.codec"),
    ({"group.consumer.session.timeout.ms": "60001"}, "must be less than or equals to group.consumer.max.session.timeout.ms"),
    ({"group.share.heartbeat.interval.ms": "4999"}, "group.share.heartbeat.interval.ms must be greater than"),
    (
        {"group.consumer.heartbeat.interval.ms": "50000", "group.consumer.max.heartbeat.interval.ms": "50000"},
        "group.consumer.heartbeat.interval.ms must be less than group.consumer.session.timeout.ms",
    ),
    (
        {"listener.name.plaintext.max.connections": "-1"},
        "Value must be at least 0 (in listener.name.plaintext.max.connections)",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("given", "message"), REFUSALS, ids=[message for _, message in REFUSALS])
def test_broker_does_not_start_with(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(given)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_kraft_file_is_refused_before_its_other_peculiarities() -> None:
    kraft = {
        "process.roles": "broker,controller",
        "controller.quorum.voters": "1@localhost:9093",
        "controller.listener.names": "CONTROLLER",
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    }
    with pytest.raises(ConfigError, match=r"process\.roles=broker,controller asks for KRaft mode"):
        BrokerConfig.parse(kraft)


def test_kraft_settings_that_ask_for_nothing_are_accepted() -> None:
    assert parse({"process.roles": "", "controller.quorum.voters": "", "broker.session.timeout.ms": "9"})
