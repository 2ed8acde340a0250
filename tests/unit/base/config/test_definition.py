"""Conversion of text to values and back, by Kafka's rules."""

import pytest

from barnabas.base.config.catalog import BROKER_SETTINGS, TOPIC_SETTINGS
from barnabas.base.config.definition import Password, ValueType, attribute_name, format_value, parse_type
from barnabas.base.errors import ConfigError


@pytest.mark.parametrize(
    ("kind", "raw", "expected"),
    [
        (ValueType.BOOLEAN, " TRUE ", True),
        (ValueType.BOOLEAN, "False", False),
        (ValueType.INT, " -1\n", -1),
        (ValueType.INT, "+7", 7),
        (ValueType.INT, "2147483647", 2147483647),
        (ValueType.LONG, "-9223372036854775808", -(2**63)),
        (ValueType.SHORT, "-32768", -32768),
        (ValueType.DOUBLE, "1e3", 1000.0),
        (ValueType.DOUBLE, ".5", 0.5),
        (ValueType.DOUBLE, "2.", 2.0),
        (ValueType.DOUBLE, "0.25d", 0.25),
        (ValueType.STRING, "  a b ", "a b"),
        (ValueType.STRING, "\u00a0x", "\u00a0x"),
        (ValueType.LIST, "", ()),
        (ValueType.LIST, "a , b,c", ("a", "b", "c")),
        (ValueType.LIST, "a,,b,", ("a", "", "b", "")),
        (ValueType.CLASS, "org.example.It ", "org.example.It"),
        (ValueType.PASSWORD, " secret ", Password("secret")),
    ],
)
def test_text_becomes_a_value(kind: ValueType, raw: str, expected: object) -> None:
    assert parse_type("x", raw, kind) == expected


@pytest.mark.parametrize(
    ("kind", "raw", "why"),
    [
        (ValueType.BOOLEAN, "yes", "Expected value to be either true or false"),
        (ValueType.INT, "2147483648", "Not a number of type INT"),
        (ValueType.INT, "1_000", "Not a number of type INT"),
        (ValueType.INT, "0x10", "Not a number of type INT"),
        (ValueType.INT, "", "Not a number of type INT"),
        (ValueType.INT, "\u0661", "Not a number of type INT"),
        (ValueType.INT, "1" * 100_000, "Not a number of type INT"),
        (ValueType.SHORT, "32768", "Not a number of type SHORT"),
        (ValueType.LONG, "9223372036854775808", "Not a number of type LONG"),
        (ValueType.LONG, "1.0", "Not a number of type LONG"),
        (ValueType.DOUBLE, "a lot", "Not a number of type DOUBLE"),
        (ValueType.DOUBLE, "NaN", "Not a number of type DOUBLE"),
    ],
)
def test_text_of_the_wrong_kind_is_refused_in_kafkas_words(kind: ValueType, raw: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_type("some.setting", raw, kind)
    assert str(refused.value) == f"Invalid value {raw} for configuration some.setting: {why}"


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("segment.bytes", "13", "Invalid value 13 for configuration segment.bytes: Value must be at least 14"),
        (
            "min.cleanable.dirty.ratio",
            "1.5",
            "Invalid value 1.5 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
        ),
        (
            "cleanup.policy",
            "compact,shred",
            "Invalid value shred for configuration cleanup.policy: String must be one of: compact, delete",
        ),
        (
            "message.timestamp.type",
            "createtime",
            "Invalid value createtime for configuration message.timestamp.type: String must be one of: "
            "CreateTime, LogAppendTime",
        ),
        (
            "compression.gzip.level",
            "0",
            "Invalid value 0 for configuration compression.gzip.level: Value must be between 1 and 9 or equal to -1",
        ),
        (
            "leader.replication.throttled.replicas",
            "0:1,x",
            "Invalid value [0:1, x] for configuration leader.replication.throttled.replicas: "
            "leader.replication.throttled.replicas must be the literal '*' or a list of replicas in the following format: "
            "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
        ),
    ],
)
def test_value_out_of_bounds_is_refused_with_the_valid_range(name: str, raw: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        TOPIC_SETTINGS[name].parse(raw)
    assert str(refused.value) == message


@pytest.mark.parametrize("raw", ["*", "0:1", "0:1, 1:2", ""])
def test_throttled_replicas_are_pairs_or_all(raw: str) -> None:
    TOPIC_SETTINGS["follower.replication.throttled.replicas"].parse(raw)


@pytest.mark.parametrize("raw", ["-1", "1", "9"])
def test_gzip_level_has_a_value_of_its_own_for_the_default(raw: str) -> None:
    assert TOPIC_SETTINGS["compression.gzip.level"].parse(raw) == int(raw)


@pytest.mark.parametrize("raw", ["3.9", "3.9.1", "3.9-IV0", "0.10.0", "0.10.0-IV1", "0.8.2", "2.8"])
def test_release_and_protocol_versions_are_known(raw: str) -> None:
    assert BROKER_SETTINGS["inter.broker.protocol.version"].parse(raw) == raw


@pytest.mark.parametrize("raw", ["3", "3.10", "3.9-IV7", "3.9-IVx", "latest", "", "0.10"])
def test_unknown_versions_are_refused(raw: str) -> None:
    with pytest.raises(ConfigError, match=r"inter\.broker\.protocol\.version"):
        BROKER_SETTINGS["inter.broker.protocol.version"].parse(raw)


@pytest.mark.parametrize("raw", ["Upgrade", "DISABLED"])
def test_migration_policy_is_known_in_any_case(raw: str) -> None:
    assert BROKER_SETTINGS["group.consumer.migration.policy"].parse(raw) == raw


def test_migration_policy_that_is_unknown_is_refused() -> None:
    with pytest.raises(ConfigError, match="case insensitive"):
        BROKER_SETTINGS["group.consumer.migration.policy"].parse("sideways")


def test_password_does_not_show_itself() -> None:
    secret = Password("hunter2")
    assert "hunter2" not in f"{secret} {secret!r} {[secret]} {format_value(secret)}"
    assert secret.value == "hunter2"
    assert {secret} == {Password("hunter2")}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        (0.0, "0.0"),
        (100.0, "100.0"),
        (1e7, "1.0E7"),
        (-12345678.5, "-1.23456785E7"),
        (9999999.0, "9999999.0"),
        (0.001, "0.001"),
        (0.0005, "5.0E-4"),
        (2147483647.0, "2.147483647E9"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (1e22, "1.0E22"),
        (1.5e-9, "1.5E-9"),
    ],
)
def test_doubles_are_written_as_java_does(value: float, text: str) -> None:
    assert format_value(value) == text


def test_attribute_names_are_snake_case() -> None:
    assert attribute_name("zookeeper.clientCnxnSocket") == "zookeeper_client_cnxn_socket"
    assert attribute_name("log.segment.bytes") == "log_segment_bytes"
