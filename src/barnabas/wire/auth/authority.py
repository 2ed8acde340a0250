"""A certificate authority for a local cluster: a root certificate, and the certificates that it signs. Needs cryptography."""

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from barnabas.base.tls.stores import as_pem, needs_cryptography

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, CertificateBuilder, GeneralName

_ROOT_DAYS: Final = 3650
#: Some clients refuse certificates that are valid for longer.
_LEAF_DAYS: Final = 820


@dataclass(frozen=True, slots=True, repr=False)
class LocalAuthority:
    """Has a private key, so `repr` hides it."""

    _key: "EllipticCurvePrivateKey"
    _certificate: "Certificate"

    @staticmethod
    def create(name: str) -> "LocalAuthority":
        """:raises ConfigError: if the package cryptography is not installed."""
        try:
            from cryptography import x509
            from cryptography.hazmat.primitives import hashes
            from cryptography.hazmat.primitives.asymmetric import ec
        except ImportError:
            raise needs_cryptography("a certificate authority") from None
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _named(name, name, key, _ROOT_DAYS).add_extension(x509.BasicConstraints(True, 0), critical=True)
        return LocalAuthority(key, builder.sign(key, hashes.SHA256()))

    @property
    def certificate_pem(self) -> str:
        return as_pem(self._certificate)

    def issue(self, name: str, hosts: Sequence[str], *, days: int = _LEAF_DAYS) -> str:
        """Return a private key and its certificate as PEM, for a server at `hosts` and a client called `name`. With negative
        `days` the certificate has already expired."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = ec.generate_private_key(ec.SECP256R1())
        issuer = self._certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value
        builder = (
            _named(name, str(issuer), key, days)
            .add_extension(x509.BasicConstraints(False, None), critical=True)
            .add_extension(x509.SubjectAlternativeName([_host(each) for each in hosts]), critical=False)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return private.decode() + as_pem(builder.sign(self._key, hashes.SHA256()))


def _named(subject: str, issuer: str, key: "EllipticCurvePrivateKey", days: int) -> "CertificateBuilder":
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    end = now + datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Begin an hour ago: the clocks of a machine and its containers may differ.
        .not_valid_before(min(now, end) - datetime.timedelta(hours=1))
        .not_valid_after(end)
    )


def _host(host: str) -> "GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
