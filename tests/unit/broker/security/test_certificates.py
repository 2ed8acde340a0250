"""Stores that change under a broker's listeners, and passwords among its dynamic settings."""

import ssl
import time
from pathlib import Path

import pytest

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.errors import ConfigError, ErrorCode, Refused
from barnabas.base.tls.contexts import shake_hands
from barnabas.broker.security.dynamic_secrets import DynamicSecrets, is_password
from barnabas.broker.security.tls import Certificates, tls_settings
from barnabas.wire.auth.authority import LocalAuthority

BASE = {
    "zookeeper.connect": "localhost",
    "listeners": "PLAINTEXT://:9092,CLIENT://:9093",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENT:SSL",
}


class Listener:
    """CLIENT, with stores in a folder that the test changes."""

    def __init__(self, folder: Path, protocol: str = "SSL", **settings: str) -> None:
        self.folder = folder
        self.authority, self.other = LocalAuthority.create("one"), LocalAuthority.create("other")
        self.issue("broker")
        (folder / "trust.pem").write_text(self.authority.certificate_pem)
        self.config = BrokerConfig.parse(
            {
                **BASE,
                "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CLIENT:{protocol}",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(folder / "broker.pem"),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(folder / "trust.pem"),
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        self.contexts: list[ssl.SSLContext] = []
        self.certificates = Certificates(self.config, on_change=lambda name, context: self.contexts.append(context))

    def issue(self, name: str, hosts: tuple[str, ...] = ("localhost",)) -> None:
        (self.folder / "broker.pem").write_text(self.authority.issue(name, list(hosts)))

    def client(self, authority: LocalAuthority) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.authority.certificate_pem)
        context.check_hostname = False
        (self.folder / "client.pem").write_text(authority.issue("alice", ["localhost"]))
        context.load_cert_chain(self.folder / "client.pem")
        return context


def test_trust_store_that_changed_lets_others_in(tmp_path: Path) -> None:
    listener = Listener(tmp_path, listener_name_client_ssl_client_auth="required")
    stranger = listener.client(listener.other)
    listener.certificates.reload(listener.config)
    assert not listener.contexts  # nothing has changed
    (tmp_path / "trust.pem").write_text(listener.authority.certificate_pem + listener.other.certificate_pem)
    listener.certificates.check(listener.config)
    listener.certificates.reload(listener.config)
    (context,) = listener.contexts
    shake_hands(context, stranger)


def test_end_of_a_certificate_is_that_of_the_served_one_not_of_the_file(tmp_path: Path) -> None:
    listener = Listener(tmp_path)
    (before,) = dict(listener.certificates.ends()).values()
    (tmp_path / "broker.pem").write_text(listener.authority.issue("broker", ["localhost"], days=1))
    assert dict(listener.certificates.ends()) == {"CLIENT": before}
    listener.certificates.reload(listener.config)
    (after,) = dict(listener.certificates.ends()).values()
    assert 0 < after - time.time() < 2 * 86_400 < before - time.time()


def test_names_must_stay_unless_the_settings_let_them_go(tmp_path: Path) -> None:
    listener = Listener(tmp_path)
    listener.issue("broker", ("localhost", "more.example"))
    listener.certificates.check(listener.config)  # more names are welcome
    listener.issue("other")
    with pytest.raises(ConfigError, match="DistinguishedName does not match: existing=CN=broker, new=CN=other"):
        listener.certificates.check(listener.config)
    listener.issue("broker", ("elsewhere",))
    with pytest.raises(ConfigError, match="SubjectAltNames do not match"):
        listener.certificates.check(listener.config)
    free = BrokerConfig.parse(
        {**listener.config.originals, "ssl.allow.dn.changes": "true", "ssl.allow.san.changes": "true"}
    )
    listener.certificates.check(free)


def test_store_that_became_unusable_leaves_the_old_one_in_use(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    listener = Listener(tmp_path)
    (tmp_path / "broker.pem").write_text("half a key")
    listener.certificates.reload(listener.config)
    assert not listener.contexts and "keeps its certificate" in caplog.text
    listener.issue("broker")
    listener.certificates.reload(listener.config)
    assert len(listener.contexts) == 1


@pytest.mark.parametrize(
    ("protocol", "settings", "asked"),
    [
        ("SSL", {"ssl_client_auth": "required"}, "required"),
        ("SASL_SSL", {"ssl_client_auth": "required"}, "none"),
        ("SASL_SSL", {"listener_name_client_ssl_client_auth": "required"}, "required"),
    ],
)
def test_sasl_listener_asks_for_certificates_only_by_its_own_setting(
    tmp_path: Path, protocol: str, settings: dict[str, str], asked: str
) -> None:
    listener = Listener(tmp_path, protocol, **settings)
    assert tls_settings(listener.config, listener.config.listeners[1]).client_auth == asked


# -- passwords --------------------------------------------------------------------------------------------------------

NAME, HUSH = "listener.name.client.ssl.keystore.password", "hush"


def secrets(**settings: str) -> DynamicSecrets:
    return DynamicSecrets(BrokerConfig.parse({**BASE, **{n.replace("_", "."): v for n, v in settings.items()}}))


def test_passwords_are_protected_and_other_settings_are_left_alone() -> None:
    held = secrets(password_encoder_secret="one")
    stored = held.protect({NAME: HUSH, "log.retention.ms": "1"}, per_broker=True)
    assert stored["log.retention.ms"] == "1" and HUSH not in stored[NAME]
    assert held.reveal(stored) == ({NAME: HUSH, "log.retention.ms": "1"}, ())
    assert is_password("listener.name.x.plain.sasl.jaas.config") and not is_password("ssl.keystore.location")


def test_former_secret_is_read_and_replaced() -> None:
    stored = secrets(password_encoder_secret="one").protect({NAME: HUSH}, per_broker=True)
    renewed = secrets(password_encoder_secret="two", password_encoder_old_secret="one")
    assert renewed.needs_reencoding(stored)
    assert renewed.reveal(stored) == ({NAME: HUSH}, ())
    again = renewed.protect({NAME: HUSH}, per_broker=True)
    assert not renewed.needs_reencoding(again)
    assert secrets(password_encoder_secret="two").reveal(again)[0] == {NAME: HUSH}
    revealed, ignored = secrets(password_encoder_secret="three").reveal(stored)
    assert revealed == {} and len(ignored) == 1 and HUSH not in ignored[0]


@pytest.mark.parametrize(("settings", "per_broker"), [({}, True), ({"password_encoder_secret": "one"}, False)])
def test_password_that_could_not_be_protected_is_refused(settings: dict[str, str], per_broker: bool) -> None:
    with pytest.raises(Refused) as refused:
        secrets(**settings).protect({NAME: HUSH}, per_broker=per_broker)
    assert refused.value.code is ErrorCode.INVALID_REQUEST and HUSH not in str(refused.value)
