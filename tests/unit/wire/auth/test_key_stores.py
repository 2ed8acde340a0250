"""PKCS12 and PEM stores, versions and suites, and the conditions for a certificate that replaces another."""

import ssl
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption
from cryptography.hazmat.primitives.serialization import pkcs12 as p12

from barnabas.base.errors import ConfigError
from barnabas.base.tls import stores
from barnabas.base.tls.contexts import (
    TlsSettings,
    certificate_names,
    client_context,
    key_pair,
    openssl_suite,
    server_context,
    shake_hands,
)
from tests.pki import Authority

PASSWORD = "store-secret"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority.create(tmp_path_factory.mktemp("pki"))
    made.issue("broker", subject="/O=Test/CN=Broker")
    made.issue("expired", subject="/O=Test/CN=Broker", days=-1)
    return made


@pytest.fixture(scope="module")
def key_store(authority: Authority) -> Path:
    return authority.pkcs12("broker", PASSWORD)


@pytest.fixture(scope="module")
def trust_store(authority: Authority) -> Path:
    """As keytool writes it: certificates that are marked as trusted, without a key."""
    certificate = x509.load_pem_x509_certificate(authority.certificate.read_bytes())
    path = authority.folder / "trust.p12"
    path.write_bytes(
        p12.serialize_java_truststore(
            [p12.PKCS12Certificate(certificate, b"ca")], BestAvailableEncryption(PASSWORD.encode())
        )
    )
    return path


def server(key_store: Path, **more: str) -> TlsSettings:
    return TlsSettings(**{"keystore_location": str(key_store), "keystore_password": PASSWORD, **more})


def client(trust_store: Path) -> TlsSettings:
    return TlsSettings(
        truststore_location=str(trust_store), truststore_password=PASSWORD, endpoint_identification_algorithm=""
    )


@pytest.mark.parametrize("kind", ["PKCS12", "pkcs12", "JKS"])
def test_pkcs12_stores_are_read_under_both_of_javas_names(key_store: Path, trust_store: Path, kind: str) -> None:
    """keytool has written PKCS12 since Java 9, but Kafka's default type is JKS. Java reads such a store nevertheless."""
    said = shake_hands(
        server_context(server(key_store, keystore_type=kind)),
        client_context(replace(client(trust_store), truststore_type=kind)),
    ).getpeercert()
    assert said is not None and said["subject"] == ((("organizationName", "Test"),), (("commonName", "Broker"),))


def test_chain_is_put_in_order(authority: Authority) -> None:
    """The authority's certificate is in the chain, behind the leaf."""
    pair = key_pair(server(authority.pkcs12("broker", PASSWORD, with_authority=True)))
    assert pair is not None
    leaf, issuer = x509.load_pem_x509_certificates(pair.chain.encode())
    assert leaf.issuer == issuer.subject
    assert PASSWORD not in repr(pair) and "PRIVATE" not in repr(pair)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"keystore_password": "wrong"}, r"ssl\.keystore\.password is not its password"),
        ({"keystore_password": None}, r"ssl\.keystore\.password is not set"),
        ({"key_password": "another"}, r"ssl\.key\.password must be the same"),
        ({"keystore_location": "/nowhere"}, "No such file"),
        ({"keystore_type": "BCFKS"}, "PEM, PKCS12, JKS"),
        ({"keystore_type": "PEM"}, r"ssl\.keystore\.type=PKCS12"),
    ],
)
def test_error_for_an_unreadable_store_has_no_secrets(
    key_store: Path, changes: dict[str, str | None], words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        server_context(replace(server(key_store), **changes))  # type: ignore[arg-type]
    assert PASSWORD not in str(refused.value)
    assert refused.value.__cause__ is None or PASSWORD not in repr(refused.value.__cause__)


def test_real_jks_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    old = tmp_path / "kafka.jks"
    old.write_bytes(b"\xfe\xed\xfe\xed\x00\x00\x00\x02" + bytes(40))
    with pytest.raises(ConfigError, match=r"keytool -importkeystore .*kafka\.jks"):
        server_context(server(old))
    with pytest.raises(ConfigError, match=r"truststore\.type=PKCS12"):
        client_context(client(old))


def test_pem_file_with_another_type_is_recognised(authority: Authority) -> None:
    with pytest.raises(ConfigError, match=r"set ssl\.keystore\.type=PEM"):
        server_context(server(authority.folder / "broker.pem"))


def test_without_the_library_the_message_says_what_to_install(key_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.serialization", None)
    with pytest.raises(ConfigError, match=r"barnabas\[security\]"):
        server_context(server(key_store))


def test_store_made_by_the_openssl_command(authority: Authority, trust_store: Path) -> None:
    path = authority.folder / "openssl.p12"
    subprocess.run(
        ["openssl", "pkcs12", "-export", "-in", str(authority.folder / "broker.pem"), "-out", str(path),
         "-passout", f"pass:{PASSWORD}"],
        check=True, capture_output=True,
    )  # fmt: skip
    shake_hands(server_context(server(path, keystore_type="PKCS12")), client_context(client(trust_store)))


# -- versions and suites ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "version"),
    [
        ({}, "TLSv1.3"),
        ({"protocol": "TLS"}, "TLSv1.3"),
        ({"protocol": "TLSv1.2"}, "TLSv1.2"),
        ({"enabled_protocols": ("TLSv1.2",)}, "TLSv1.2"),
        ({"cipher_suites": ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",)}, "TLSv1.2"),
        ({"cipher_suites": ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384")}, "TLSv1.3"),
    ],
)
def test_version_that_is_agreed_on(
    key_store: Path, trust_store: Path, settings: dict[str, object], version: str
) -> None:
    offered = server_context(replace(server(key_store), **settings))  # type: ignore[arg-type]
    assert shake_hands(offered, client_context(client(trust_store))).version() == version


def test_version_without_a_suite_is_not_agreed_on(key_store: Path, trust_store: Path) -> None:
    new_only = server_context(replace(server(key_store), cipher_suites=("TLS_AES_128_GCM_SHA256",)))
    with pytest.raises(ssl.SSLError):
        shake_hands(new_only, client_context(replace(client(trust_store), protocol="TLSv1.2")))


@pytest.mark.parametrize(
    "changes",
    [
        {"protocol": "SSLv3"},
        {"enabled_protocols": ("TLSv1.3",), "protocol": "TLSv1.2"},
        {"cipher_suites": ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_MADE_UP_WITH_NOTHING")},
    ],
)
def test_settings_that_leave_nothing_are_refused(key_store: Path, changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"ssl\."):
        server_context(replace(server(key_store), **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("java", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("TLS_RSA_WITH_AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256", "ECDHE-RSA-AES128-SHA256"),
        ("TLS_DHE_RSA_WITH_AES_256_CBC_SHA", "DHE-RSA-AES256-SHA"),
        ("ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
    ],
)
def test_suites_by_javas_names(java: str, openssl: str) -> None:
    assert openssl_suite(java) == openssl
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(openssl)


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["broker", "expired"])
def test_names_of_a_certificate_expired_or_not(authority: Authority, name: str) -> None:
    pair = stores.read_key_pair("PEM", str(authority.folder / f"{name}.pem"), store_password=None, key_password=None)
    names = certificate_names(pair)
    assert names.subject == ((("organizationName", "Test"),), (("commonName", "Broker"),))
    assert names.alternative == {("DNS", "localhost"), ("IP Address", "127.0.0.1")}
