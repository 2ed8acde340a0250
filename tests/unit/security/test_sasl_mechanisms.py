"""From a listener's settings to the mechanisms that it offers, and what is said of settings that cannot work."""

from pathlib import Path

import pytest

from barnabas.api.sasl_mechanisms import SaslParts, mechanisms_of
from barnabas.auth.jaas import PLAIN_MODULE
from barnabas.auth.oauth import OAUTH_MODULE
from barnabas.core.config.broker import BrokerConfig
from barnabas.core.errors import ConfigError
from barnabas.security.credentials import ScramCredentials
from barnabas.security.key_sets import KeySets
from barnabas.security.setup import make_tokens
from tests.oauth_provider import SigningKey, key_set


def offered(settings: dict[str, str]) -> list[str]:
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
    return list(mechanisms_of(config, config.listeners[1], parts))


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
        ({"sasl.enabled.mechanisms": "DIGEST-MD5"}, "DIGEST-MD5 is not supported; use PLAIN, SCRAM-SHA-256"),
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
def test_listener_that_could_let_nobody_in_is_refused_with_what_to_do(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        offered(settings)


def test_unsecured_tokens_are_taken_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    line = f'{OAUTH_MODULE} required unsecuredValidatorRequiredScope="kafka";'
    assert offered({"sasl.enabled.mechanisms": "OAUTHBEARER", "oauthbearer.sasl.jaas.config": line}) == ["OAUTHBEARER"]
    assert "anybody may say to be anybody" in caplog.text
