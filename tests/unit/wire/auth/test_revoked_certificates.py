"""A revoked certificate opens no connection."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from barnabas.base.errors import ConfigError
from barnabas.base.tls.contexts import TlsSettings, client_context, server_context, shake_hands
from tests.pki import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority.create(tmp_path_factory.mktemp("pki"))
    for name in ("broker", "good", "revoked"):
        made.issue(name, subject=f"/CN={name}")
    return made


def revoke(authority: Authority, *names: str) -> Path:
    issuer = x509.load_pem_x509_certificate(authority.certificate.read_bytes())
    key = serialization.load_pem_private_key((authority.folder / "ca.key").read_bytes(), None)
    now = datetime.now(UTC)
    builder = x509.CertificateRevocationListBuilder().issuer_name(issuer.subject)
    builder = builder.last_update(now - timedelta(hours=1)).next_update(now + timedelta(days=1))
    for name in names:
        certificate = x509.load_pem_x509_certificate((authority.folder / f"{name}.crt").read_bytes())
        revoked = x509.RevokedCertificateBuilder().serial_number(certificate.serial_number).revocation_date(now).build()
        builder = builder.add_revoked_certificate(revoked)
    path = authority.folder / "revoked.crl"
    path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))  # type: ignore[arg-type]
    return path


def settings(authority: Authority, name: str, **more: str) -> TlsSettings:
    return TlsSettings(
        keystore_type="PEM",
        keystore_location=str(authority.folder / f"{name}.pem"),
        truststore_type="PEM",
        truststore_location=str(authority.certificate),
        **more,
    )


def meet(authority: Authority, client: str, crl: Path) -> None:
    server = server_context(settings(authority, "broker", client_auth="required", crl_location=str(crl)))
    shake_hands(server, client_context(settings(authority, client, endpoint_identification_algorithm="")))


def test_revoked_certificate_is_refused_and_another_is_not(authority: Authority) -> None:
    crl = revoke(authority, "revoked")
    meet(authority, "good", crl)
    with pytest.raises(ssl.SSLError, match=r"revoked|REVOKED"):
        meet(authority, "revoked", crl)


def test_unreadable_revocation_list_is_reported_at_the_start(authority: Authority) -> None:
    nothing = authority.folder / "nothing.crl"
    nothing.write_text("no list")
    with pytest.raises(ConfigError, match=r"barnabas\.ssl\.crl\.location"):
        meet(authority, "good", nothing)
