"""Settings of the type password never show their values: not in DescribeConfigs, in errors, or in texts of the settings."""

import logging

import pytest

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.catalog import BROKER_SETTINGS, DYNAMIC_NAMES
from barnabas.base.config.describe import Shown, describe_broker, describe_cluster_default
from barnabas.base.config.dynamic import DynamicConfig
from barnabas.base.errors import BarnabasError, ConfigError
from barnabas.broker.api.configs import _result
from barnabas.broker.security.dynamic_secrets import DynamicSecrets
from barnabas.client.config import client_config
from barnabas.wire.auth.jaas import PLAIN_MODULE

SECRET = "hush-hush"
PASSWORDS = sorted(name for name, setting in BROKER_SETTINGS.items() if setting.is_sensitive)
BASE = {
    "zookeeper.connect": "localhost:2181",
    "listeners": "PLAINTEXT://:9092,CLIENT://:9093",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENT:SASL_SSL",
}


def test_every_password_of_kafka_is_typed_as_one() -> None:
    assert {
        "ssl.key.password", "ssl.keystore.password", "ssl.keystore.key", "ssl.keystore.certificate.chain",
        "ssl.truststore.password", "ssl.truststore.certificates", "sasl.jaas.config", "password.encoder.secret",
        "password.encoder.old.secret", "delegation.token.secret.key", "delegation.token.master.key",
        "zookeeper.ssl.keystore.password", "zookeeper.ssl.truststore.password", "barnabas.zookeeper.digest",
        "barnabas.schema.registry.basic.auth.user.info", "barnabas.schema.registry.bearer.auth.token",
    } == set(PASSWORDS)  # fmt: skip


@pytest.mark.parametrize("name", PASSWORDS)
def test_value_is_shown_nowhere(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    names = [name, f"listener.name.client.{name}", f"listener.name.client.plain.{name}", "unknown.plugin.secret"]
    dynamic = DynamicConfig(BASE | dict.fromkeys(names, SECRET))
    shown = [
        repr(_result(entry))
        for entry in (
            *describe_broker(dynamic, Shown(synonyms=True, documentation=True)),
            *describe_cluster_default(dynamic, Shown(synonyms=True)),
        )
    ]
    assert {each.name for each in describe_broker(dynamic)} >= set(names)
    assert SECRET not in "".join(shown)
    assert SECRET not in repr(dynamic.broker.values) + str(dynamic.broker.values[name])
    assert SECRET not in caplog.text


@pytest.mark.parametrize("name", sorted(DYNAMIC_NAMES & set(PASSWORDS)))
def test_dynamic_value_is_shown_nowhere_and_refused_without_being_repeated(name: str) -> None:
    dynamic = DynamicConfig(BASE)
    own = f"listener.name.client.{name}"
    assert dynamic.set_broker({own: SECRET}) == ()
    assert SECRET not in repr([_result(entry) for entry in describe_broker(dynamic, Shown(synonyms=True))])
    refusals: list[str] = []
    for change in (
        lambda: dynamic.validate_broker_change({name: SECRET}, per_broker=True),
        lambda: dynamic.validate_broker_change({own: SECRET}, per_broker=False),
        lambda: DynamicSecrets(dynamic.broker).protect({own: SECRET}, per_broker=True),
        lambda: DynamicSecrets(dynamic.broker).protect({own: SECRET}, per_broker=False),
    ):
        with pytest.raises(BarnabasError) as refused:
            change()
        refusals.append(str(refused.value))
    assert SECRET not in "".join(refusals)
    _, ignored = DynamicSecrets(BrokerConfig.parse(BASE)).reveal({own: SECRET})
    assert len(ignored) == 1 and SECRET not in ignored[0]


def test_client_settings_do_not_show_their_secrets() -> None:
    config = client_config(
        "h:1",
        {
            "security.protocol": "SASL_SSL",
            "sasl.jaas.config": f'{PLAIN_MODULE} required username="u" password="{SECRET}";',
            "ssl.key.password": SECRET,
        },
    )
    assert SECRET not in repr(config)


def test_client_settings_may_come_from_a_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD_FOR_TEST", SECRET)
    config = client_config(
        "h:1",
        {
            "config.providers": "env",
            "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
            "ssl.key.password": "${env:PASSWORD_FOR_TEST}",
        },
    )
    assert config.security["ssl.key.password"] == SECRET
    with pytest.raises(ConfigError, match=r"config\.providers\.env\.class"):
        client_config("h:1", {"config.providers": "env"})
