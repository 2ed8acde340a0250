"""Credentials for signing in."""

from typing import Any

import pytest

from barnabas.base.errors import ConfigError
from barnabas.client.config import client_config
from barnabas.services.console import sign_in
from barnabas.services.console.errors import Refusal
from barnabas.services.console.settings import Settings
from barnabas.services.console.sign_in import check_settings, credentials_of
from barnabas.wire.auth.jaas import parse_jaas
from barnabas.wire.auth.jwt import encode_unsecured

SASL = {"security.protocol": "SASL_PLAINTEXT"}


def settings(properties: dict[str, str], **more: Any) -> Settings:
    return Settings(client=client_config("localhost:9092", properties), **more)


def test_loopback_without_users_is_served() -> None:
    check_settings(settings({}))
    check_settings(settings({}, host="::1"))
    assert not settings({}).needs_sign_in


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "console.example"])
def test_other_hosts_need_sign_in(host: str) -> None:
    assert settings(SASL, host=host).needs_sign_in
    with pytest.raises(ConfigError, match="listener with SASL"):
        check_settings(settings({}, host=host, certificate="c.pem"))
    with pytest.raises(ConfigError, match="in the clear"):
        check_settings(settings(SASL, host=host))
    check_settings(settings(SASL, host=host, certificate="c.pem"))
    check_settings(settings(SASL, host=host, behind_proxy=True))


def test_sign_in_can_be_asked_for_on_loopback() -> None:
    assert settings(SASL, sign_in=True).needs_sign_in
    check_settings(settings(SASL, sign_in=True))
    with pytest.raises(ConfigError, match="listener with SASL"):
        check_settings(settings({}, sign_in=True))


def test_a_key_alone_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="--ssl-certificate"):
        check_settings(settings({}, key="k.pem"))


@pytest.mark.parametrize(
    "given",
    [(None, None, None), ("alice", "", None), ("", "x", None), (1, "x", None), ("a", {}, None), ("a" * 300, "x", None),
     ("a", "x" * 20_000, None), (None, None, "no token"), (None, None, "a\x01b"), (None, None, ["a"])],
)  # fmt: skip
def test_invalid_credentials_are_refused(given: tuple[Any, Any, Any]) -> None:
    with pytest.raises(Refusal) as caught:
        credentials_of(*given)
    assert caught.value.status == 400


def test_secrets_do_not_show() -> None:
    token = encode_unsecured({"sub": "bob"})
    shown = repr(credentials_of("alice", "pass-word", None)) + repr(credentials_of(None, None, token))
    assert "pass-word" not in shown and token not in shown


def test_a_token_contains_its_user_and_its_end() -> None:
    lasting = credentials_of(None, None, encode_unsecured({"sub": "bob", "exp": 1e12}))
    assert (lasting.user, lasting.lifetime_s is not None) == ("bob", True)
    assert credentials_of(None, None, encode_unsecured({"sub": "bob", "exp": 1.0})).lifetime_s == 0
    assert credentials_of(None, None, "opaque").user == "token"
    assert credentials_of("alice", "x", None).lifetime_s is None


@pytest.mark.parametrize("password", ['a"b', "a\\", 'x" username="root', "a;b", "späße 🔑", '\\\\\\"', "a\nb", " "])
def test_any_password_reaches_the_login_unchanged(password: str) -> None:
    config = client_config(
        "localhost:9092", {**SASL, "sasl.jaas.config": "the console's own", "sasl.mechanism": "PLAIN"}
    )
    [identity] = sign_in._identities(config, credentials_of("alice", password, None))
    entry = parse_jaas(identity.config.security["sasl.jaas.config"])
    assert entry.options == {"username": "alice", "password": password}


def test_the_consoles_own_credentials_are_not_lent() -> None:
    secret = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="admin" password="own-secret";'
    config = client_config("localhost:9092", {**SASL, "sasl.jaas.config": secret, "sasl.mechanism": "OAUTHBEARER"})
    for credentials in (credentials_of("alice", "x", None), credentials_of(None, None, "opaque")):
        for identity in sign_in._identities(config, credentials):
            held = [*identity.config.security.values(), *identity.config.properties.values()]
            assert not any("own-secret" in value for value in held)


def test_without_a_mechanism_both_of_scram_are_tried() -> None:
    config = client_config("localhost:9092", SASL)
    found = [
        each.config.security["sasl.mechanism"] for each in sign_in._identities(config, credentials_of("a", "b", None))
    ]
    assert found == ["SCRAM-SHA-512", "SCRAM-SHA-256"]
