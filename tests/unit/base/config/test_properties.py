"""Properties files, as Java reads and writes them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.base.config.properties import (
    format_properties,
    from_environment,
    load,
    parse,
    parse_overrides,
    resolve_variables,
)
from barnabas.base.errors import ConfigError

PROVIDER = "org.apache.kafka.common.config.provider."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", {"a": "1"}),
        ("a : 1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        ("  a\t=\t1 ", {"a": "1 "}),
        ("a==1", {"a": "=1"}),
        ("a", {"a": ""}),
        ("=1", {"": "1"}),
        ("# c\n! d\n\n  # e\na=1", {"a": "1"}),
        ("a=# not a comment", {"a": "# not a comment"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=x,\\\n   y,\\\n\tz", {"a": "x,y,z"}),
        ("a=x\\\n# kept", {"a": "x# kept"}),
        ("a=x\\\n\nb=2", {"a": "x", "b": "2"}),
        ("a=x\\\\\nb=2", {"a": "x\\", "b": "2"}),
        ("a=x\\", {"a": "x"}),
        ("\\\na=1", {"a": "1"}),
        ("\\\n# comment", {}),
        ("a=1\n\\", {"a": "1", "": ""}),
        ("a\\ b\\:c\\=d=1", {"a b:c=d": "1"}),
        ("a=\\t\\n\\r\\f\\q\\\\", {"a": "\t\n\r\fq\\"}),
        ("a=\\u00e9\\u20AC", {"a": "\u00e9\u20ac"}),
        ("a=\\ud83d\\ude00", {"a": "\U0001f600"}),
        ("listeners=PLAINTEXT://:9092", {"listeners": "PLAINTEXT://:9092"}),
        ("", {}),
    ],
)
def test_file_is_read_as_java_does(text: str, expected: dict[str, str]) -> None:
    assert parse(text) == expected


def test_broken_escape_is_refused_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"line 2: .u must be followed by four hexadecimal digits, not '12g4'"):
        parse("a=1\nb=\\u12g4")


@given(st.dictionaries(st.text(), st.text()))
def test_written_properties_are_read_again(properties: dict[str, str]) -> None:
    assert parse(format_properties(properties)) == properties


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert all(isinstance(value, str) for value in parse(text).values())
    except ConfigError as error:
        assert "line" in str(error)


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("broker.id=1\nlog.dirs=/a\n")
    assert load(str(file), ["log.dirs=/b=c", "x="]) == {"broker.id": "1", "log.dirs": "/b=c", "x": ""}


@pytest.mark.parametrize("argument", ["broker.id", "=1", ""])
def test_override_without_name_or_value_is_refused(argument: str) -> None:
    with pytest.raises(ConfigError, match="expected name=value"):
        parse_overrides([argument])


def test_missing_file_is_named_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*absent\.properties: No such file or directory$"):
        load(str(tmp_path / "absent.properties"))


def test_file_that_is_not_text_is_named_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_bytes(b"a=\xff")
    with pytest.raises(ConfigError, match=r"byte 2 is not UTF-8"):
        load(str(file))


def providers(**more: str) -> dict[str, str]:
    return {
        "config.providers": "file, env,dir",
        "config.providers.file.class": PROVIDER + "FileConfigProvider",
        "config.providers.env.class": PROVIDER + "EnvVarConfigProvider",
        "config.providers.dir.class": PROVIDER + "DirectoryConfigProvider",
        **more,
    }


def test_variables_of_providers_are_filled_in(tmp_path: Path) -> None:
    (tmp_path / "secrets.properties").write_text("key=s3cret\n")
    (tmp_path / "word").write_text("from a file")
    properties = providers(
        a=f"${{file:{tmp_path}/secrets.properties:key}}",
        b="x-${env:HOME_TOWN}-y-${env:HOME_TOWN}",
        c=f"${{dir:{tmp_path}:word}}",
        d="${env:ABSENT} ${vault:x:y}",
    )
    filled = resolve_variables(properties, {"HOME_TOWN": "Prague"})
    assert filled["a"] == "s3cret"
    assert filled["b"] == "x-Prague-y-Prague"
    assert filled["c"] == "from a file"
    assert filled["d"] == "${env:ABSENT} ${vault:x:y}"


def test_variables_stay_where_no_provider_is_configured() -> None:
    assert resolve_variables({"a": "${env:HOME}"}, {"HOME": "/root"}) == {"a": "${env:HOME}"}


@pytest.mark.parametrize("allowed", ["none", "", PROVIDER + "FileConfigProvider"])
def test_providers_can_be_switched_off_for_untrusted_settings(allowed: str) -> None:
    """As in Kafka since CVE-2024-31141: a peer that provides a client's settings could otherwise read files and variables."""
    switch = {"KAFKA_OPTS": f"-Xmx1g -Dorg.apache.kafka.automatic.config.providers={allowed} -Dx=y", "SECRET": "1"}
    env = {"config.providers": "env", "config.providers.env.class": PROVIDER + "EnvVarConfigProvider"}
    with pytest.raises(ConfigError, match="EnvVarConfigProvider is not allowed: KAFKA_OPTS has"):
        resolve_variables({**env, "a": "${env:SECRET}"}, switch)
    named = {"KAFKA_OPTS": f"-Dorg.apache.kafka.automatic.config.providers=x,{PROVIDER}EnvVarConfigProvider"}
    assert resolve_variables({**env, "a": "${env:SECRET}"}, {**switch, **named})["a"] == "1"


def test_provider_reads_only_allowed_paths_and_names(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "p").write_text("key=1")
    (tmp_path / "closed").write_text("key=2")
    limits = {
        "config.providers.file.param.allowed.paths": f"{tmp_path}/open",
        "config.providers.env.param.allowlist.pattern": "KAFKA_.*",
        "config.providers.dir.param.allowed.paths": f"{tmp_path}/open",
    }
    properties = providers(
        **limits,
        inside=f"${{file:{tmp_path}/open/p:key}}",
        outside=f"${{file:{tmp_path}/closed:key}}",
        sneaky=f"${{file:{tmp_path}/open/../closed:key}}",
        upwards=f"${{dir:{tmp_path}/open:../closed}}",
        named="${env:KAFKA_X}",
        other="${env:OTHER}",
    )
    filled = resolve_variables(properties, {"KAFKA_X": "1", "OTHER": "2"})
    assert filled["inside"] == "1"
    assert filled["named"] == "1"
    for name in ("outside", "sneaky", "upwards", "other"):
        assert filled[name] == properties[name], name


def test_provider_of_an_unknown_class_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"config\.providers\.x\.class=org\.example\.Vault: expected"):
        resolve_variables({"config.providers": "x", "config.providers.x.class": "org.example.Vault"}, {})


def test_path_for_the_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match="Path is not supported for EnvVarConfigProvider"):
        resolve_variables(providers(a="${env:path:KEY}"), {})


def test_missing_file_of_a_provider_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot read /nowhere"):
        resolve_variables(providers(a="${file:/nowhere:key}"), {})


def test_invalid_pattern_of_a_provider_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"allowlist\.pattern=\(: "):
        resolve_variables(providers(**{"config.providers.env.param.allowlist.pattern": "("}), {})


def test_variables_are_settings_as_in_the_image_of_apache_kafka() -> None:
    environment = {
        "KAFKA_LOG_DIRS": "/data",
        "KAFKA_SASL_MECHANISM_INTER_BROKER_PROTOCOL": "PLAIN",
        "KAFKA_LISTENER_NAME_MY__LISTENER_SSL_KEYSTORE_TYPE": "PEM",
        "KAFKA_LISTENER_NAME_A_SASL_SCRAM___SHA___256_IGNORED": "x",
        "KAFKA_HEAP_OPTS": "-Xmx1g",
        "CLUSTER_ID": "x",
    }
    assert from_environment(environment) == {
        "log.dirs": "/data",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.my_listener.ssl.keystore.type": "PEM",
        "listener.name.a.sasl.scram-sha-256.ignored": "x",
    }


def test_variables_win_over_the_file_and_overrides_over_both(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("broker.id=1\nnum.partitions=1\nlog.dirs=/file\n")
    environment = {"KAFKA_NUM_PARTITIONS": "2", "KAFKA_LOG_DIRS": "/variable"}
    assert load(str(file), ["log.dirs=/override"], environment) == {
        "broker.id": "1",
        "num.partitions": "1",
        "log.dirs": "/override",
    }
    assert load(str(file), ["log.dirs=/override"], environment, with_environment=True) == {
        "broker.id": "1",
        "num.partitions": "2",
        "log.dirs": "/override",
    }
    assert load(None, (), environment, with_environment=True)["log.dirs"] == "/variable"
