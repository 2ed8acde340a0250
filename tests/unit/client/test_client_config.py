"""Settings of a client, with Kafka's names."""

from pathlib import Path

import pytest

from barnabas.base.errors import ConfigError
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import ClientConfig, client_config, load_properties, parse_bootstrap
from barnabas.client.settings import consumer_config, producer_config
from barnabas.wire.compression import Codec


def test_bootstrap_servers_may_have_protocols_blanks_and_ipv6() -> None:
    assert parse_bootstrap("a:1, PLAINTEXT://b:2,[::1]:3") == (("a", 1), ("b", 2), ("::1", 3))


@pytest.mark.parametrize("text", ["", "localhost", "localhost:", ":9092", "a:b", "a:0", "a:70000", ","])
def test_invalid_bootstrap_server_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_bootstrap(text)


def test_command_config_file_becomes_settings(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# comment\nrequest.timeout.ms = 1234\nsasl.mechanism: PLAIN\nclient.id=me\n")
    config = client_config("h:1", load_properties(file))
    assert (config.request_timeout_ms, config.client_id, config.bootstrap) == (1234, "me", (("h", 1),))
    assert config.security == {"sasl.mechanism": "PLAIN"}


def test_error_for_an_invalid_number_names_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"request\.timeout\.ms='soon' is not a number"):
        client_config("h:1", {"request.timeout.ms": "soon"})


def test_unknown_security_protocol_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not valid: use PLAINTEXT, SSL"):
        client_config("h:1", {"security.protocol": "magic"})


def test_sasl_without_a_usable_mechanism_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match=r"GSSAPI is the default: set sasl\.mechanism"):
        AsyncClient(client_config("h:1", {"security.protocol": "SASL_PLAINTEXT"}))
    with pytest.raises(ConfigError, match=r"sasl\.mechanism=PLAIN needs sasl\.jaas\.config"):
        AsyncClient(client_config("h:1", {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}))


def test_cluster_without_bootstrap_servers_is_refused() -> None:
    with pytest.raises(ConfigError):
        AsyncClient(ClientConfig())


def test_producer_settings_default_to_kafkas() -> None:
    config = producer_config({})
    assert (config.acks, config.idempotent, config.codec, config.batch_bytes) == (-1, True, Codec.NONE, 16384)


def test_acks_other_than_all_switch_idempotence_off_unless_it_was_asked_for() -> None:
    assert not producer_config({"acks": "1"}).idempotent
    with pytest.raises(ConfigError, match="acks to all"):
        producer_config({"acks": "1", "enable.idempotence": "true"})


@pytest.mark.parametrize(
    "settings",
    [{"acks": "2"}, {"compression.type": "rar"}, {"enable.idempotence": "maybe"}, {"linger.ms": "x"}],
)
def test_bad_producer_setting_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        producer_config(settings)


@pytest.mark.parametrize("settings", [{"isolation.level": "x"}, {"auto.offset.reset": "y"}, {"check.crcs": "z"}])
def test_bad_consumer_setting_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        consumer_config(settings)
