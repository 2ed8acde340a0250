"""From a listener's settings to the mechanisms that it offers, and what is said of settings that cannot work."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.catalog import BROKER_SETTINGS
from barnabas.base.errors import ConfigError
from barnabas.broker.security.credentials import ScramCredentials
from barnabas.broker.security.sasl_mechanisms import SaslParts, mechanisms_of
from barnabas.broker.security.setup import make_tokens
from barnabas.client.key_sets import KeySets
from barnabas.wire.auth import registry
from barnabas.wire.auth.jaas import PLAIN_MODULE
from barnabas.wire.auth.machine import Mechanism
from barnabas.wire.auth.mechanisms.oauthbearer import OAUTH_MODULE
from barnabas.wire.auth.mechanisms.plain import PlainClient, PlainServer
from tests.oauth_provider import SigningKey, key_set


def offered(settings: dict[str, str]) -> list[str]:
    return list(mechanisms(settings))


def mechanisms(settings: dict[str, str]) -> dict[str, Mechanism]:
    config = BrokerConfig.parse(
        {
            "zookeeper.connect": "localhost",
            "listeners": "PLAINTEXT://:9092,CLIENT://:9093",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENT:SASL_PLAINTEXT",
            **{f"listener.name.client.{name}": value for name, value in settings.items()},
        }
    )
    parts = SaslParts(
        scram=ScramCredentials(), tokens=make_tokens(config), key_sets=KeySets(lambda: 0.0), now_ms=lambda: 0
    )
    return mechanisms_of(config, config.listeners[1], parts)


def test_mechanisms_in_the_order_of_the_settings(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(key_set(SigningKey("one", "ES256")))
    assert offered(
        {
            "sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER,PLAIN",
            "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
            "plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_a="b";',
        }
    ) == ["SCRAM-SHA-512", "OAUTHBEARER", "PLAIN"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, r"GSSAPI \(Kerberos\) is not supported, and it is Kafka's default; set sasl\.enabled\.mechanisms"),
        ({"sasl.enabled.mechanisms": ""}, "empty"),
        (
            {"sasl.enabled.mechanisms": "DIGEST-MD5"},
            "DIGEST-MD5 is not supported; use OAUTHBEARER, PLAIN, SCRAM-SHA-256",
        ),
        ({"sasl.enabled.mechanisms": "PLAIN"}, r"listener\.name\.client\.plain\.sasl\.jaas\.config"),
        ({"sasl.enabled.mechanisms": "OAUTHBEARER"}, r"oauthbearer\.sasl\.jaas\.config"),
        (
            {
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "oauthbearer.sasl.jaas.config": f'{OAUTH_MODULE} required unsecuredLoginStringClaim_sub="broker";',
            },
            r"needs sasl\.oauthbearer\.jwks\.endpoint\.url.*unsecuredValidator",
        ),
        (
            {"sasl.enabled.mechanisms": "OAUTHBEARER", "sasl.oauthbearer.jwks.endpoint.url": "file:///nowhere"},
            "nowhere cannot be read",
        ),
    ],
)
def test_listener_without_a_usable_mechanism_is_refused_with_advice(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        offered(settings)


def test_unsecured_tokens_are_taken_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    line = f'{OAUTH_MODULE} required unsecuredValidatorRequiredScope="kafka";'
    assert offered({"sasl.enabled.mechanisms": "OAUTHBEARER", "oauthbearer.sasl.jaas.config": line}) == ["OAUTHBEARER"]
    assert "every client can claim to be any user" in caplog.text


def test_mechanism_that_registers_itself_is_offered_and_can_log_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a new mechanism needs is its own module: nothing else names it."""
    for registered in ("_servers", "_clients", "_login_settings"):
        monkeypatch.setattr(registry, registered, dict(getattr(registry, registered)))

    @registry.server_side("TRUSTING")
    def server(sasl: registry.ListenerSasl) -> Callable[[], PlainServer]:
        return lambda: PlainServer({sasl.jaas().require("only"): "open sesame"})

    @registry.client_side("TRUSTING", settings=("sasl.login.read.timeout.ms",))
    def client(settings: Mapping[str, str]) -> registry.Login:
        return registry.Login(lambda: PlainClient(settings["user"], "open sesame"))

    line = f'{PLAIN_MODULE} required only="alice";'
    settings = {"sasl.enabled.mechanisms": "TRUSTING", "trusting.sasl.jaas.config": line}
    [mechanism] = mechanisms(settings).values()
    name, login = registry.login_of({"sasl.mechanism": "TRUSTING", "user": "alice"})
    exchange = mechanism.begin()
    exchange.evaluate(login.begin().first())
    assert (name, exchange.user) == ("TRUSTING", "alice")
    assert "sasl.login.read.timeout.ms" in registry.login_settings()


def test_every_mechanism_has_both_sides_and_is_documented() -> None:
    importlib.import_module("barnabas.client.security")
    documented = (Path(__file__).parents[4] / "docs" / "security.md").read_text()
    registry.login_settings()  # loads them all
    assert registry._servers
    for name in registry._servers:
        assert name in registry._clients
        assert name in documented
        assert name in BROKER_SETTINGS["sasl.enabled.mechanisms"].documentation
