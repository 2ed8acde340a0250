"""TLS contexts for listeners and clients, from Kafka's `ssl.*` settings."""

import os
import ssl
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from barnabas.base.errors import ConfigError
from barnabas.base.host.kernel import IS_LINUX
from barnabas.base.tls.stores import KeyPair, read_key_pair, read_trusted

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
#: Values of `ssl.protocol`: Java's name for "the best version", and the two versions.
_PROTOCOLS: Final = {"TLS": ssl.TLSVersion.TLSv1_3, **_VERSIONS}
_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_SUITES_1_3: Final = ("TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256")
#: OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python does not name.
_NO_CHECK_TIME: Final = 0x200000


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TlsSettings:
    """The `ssl.*` settings that have an effect. Has secrets in the clear, so `repr` hides them."""

    keystore_type: str = "JKS"
    keystore_location: str | None = None
    keystore_password: str | None = None
    keystore_key: str | None = None
    keystore_certificate_chain: str | None = None
    key_password: str | None = None
    truststore_type: str = "JKS"
    truststore_location: str | None = None
    truststore_password: str | None = None
    truststore_certificates: str | None = None
    protocol: str = "TLSv1.3"
    enabled_protocols: Sequence[str] = ("TLSv1.2", "TLSv1.3")
    cipher_suites: Sequence[str] = ()
    client_auth: str = "none"
    endpoint_identification_algorithm: str = "https"
    #: A PEM file with the authority's revoked certificates.
    crl_location: str | None = None

    @staticmethod
    def read(get: Callable[[str], str | None]) -> "TlsSettings":
        """Read settings by Kafka's names; `get` returns None for a setting that is not set."""

        def words(name: str, default: tuple[str, ...]) -> tuple[str, ...]:
            text = get(name)
            return default if text is None else tuple(word.strip() for word in text.split(",") if word.strip())

        identification = get("ssl.endpoint.identification.algorithm")
        return TlsSettings(
            keystore_type=get("ssl.keystore.type") or "JKS",
            keystore_location=get("ssl.keystore.location"),
            keystore_password=get("ssl.keystore.password"),
            keystore_key=get("ssl.keystore.key"),
            keystore_certificate_chain=get("ssl.keystore.certificate.chain"),
            key_password=get("ssl.key.password"),
            truststore_type=get("ssl.truststore.type") or "JKS",
            truststore_location=get("ssl.truststore.location"),
            truststore_password=get("ssl.truststore.password"),
            truststore_certificates=get("ssl.truststore.certificates"),
            protocol=get("ssl.protocol") or "TLSv1.3",
            enabled_protocols=words("ssl.enabled.protocols", ("TLSv1.2", "TLSv1.3")),
            cipher_suites=words("ssl.cipher.suites", ()),
            client_auth=get("ssl.client.auth") or "none",
            endpoint_identification_algorithm="https" if identification is None else identification,
            crl_location=get("barnabas.ssl.crl.location"),
        )


class HandshakeAlert(ssl.SSLObject):
    """Keeps the alert of a failed handshake in the error, because event loops discard it with the connection.

    Otherwise a client whose certificate is missing or refused only sees the connection end, and retries forever.
    """

    @classmethod
    def _create(cls, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, **more: Any) -> "HandshakeAlert":
        created: HandshakeAlert = super()._create(incoming, outgoing, **more)  # type: ignore[misc]
        created._outgoing = outgoing
        return created

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            error.alert = self._outgoing.read()  # type: ignore[attr-defined]
            raise

    _outgoing: ssl.MemoryBIO


def alert_of(error: BaseException) -> bytes:
    """Return the bytes that should still be sent to the peer of a failed handshake."""
    alert = getattr(error, "alert", b"")
    return alert if isinstance(alert, bytes) else b""


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """:raises ConfigError: naming the setting that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslobject_class = HandshakeAlert
    _restrict(context, settings)
    if not _load_key(context, settings):
        raise ConfigError("a listener with TLS needs a key: set ssl.keystore.type=PEM and ssl.keystore.location")
    context.verify_mode = _CLIENT_AUTH[settings.client_auth]
    if context.verify_mode != ssl.CERT_NONE:
        _load_trust(context, settings)
        _load_revoked(context, settings)
    return context


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """Always verify the server's certificate, and by default its host name. Without a trust store, use the system's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _restrict(context, settings)
    # As in Kafka, an empty text turns off the verification of the host name.
    context.check_hostname = settings.endpoint_identification_algorithm.lower() == "https"
    _load_key(context, settings)
    _load_trust(context, settings)
    return context


# -- versions and suites ----------------------------------------------------------------------------------------------


def _restrict(context: ssl.SSLContext, settings: TlsSettings) -> None:
    unknown = [name for name in settings.enabled_protocols if name not in _VERSIONS]
    if unknown or not settings.enabled_protocols:
        raise ConfigError(f"ssl.enabled.protocols={','.join(settings.enabled_protocols)}: use TLSv1.2, TLSv1.3 or both")
    if settings.protocol not in _PROTOCOLS:
        raise ConfigError(f"ssl.protocol={settings.protocol}: use {', '.join(_PROTOCOLS)}")
    highest = _PROTOCOLS[settings.protocol]
    versions = {_VERSIONS[name] for name in settings.enabled_protocols if _VERSIONS[name] <= highest}
    if settings.cipher_suites:
        # As in Java, a version without any of the named suites is not offered.
        old = [name for name in settings.cipher_suites if name not in _SUITES_1_3]
        if not old:
            versions.discard(ssl.TLSVersion.TLSv1_2)
        else:
            _set_suites(context, old)
        if len(old) == len(settings.cipher_suites):
            versions.discard(ssl.TLSVersion.TLSv1_3)
    if not versions:
        raise ConfigError("ssl.protocol, ssl.enabled.protocols and ssl.cipher.suites together leave no version of TLS")
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION


def _set_suites(context: ssl.SSLContext, suites: Sequence[str]) -> None:
    for suite in suites:
        # Check each suite alone first: OpenSSL ignores unknown names if at least one is known.
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(openssl_suite(suite))
        except ssl.SSLError:
            raise ConfigError(f"ssl.cipher.suites: there is no TLS suite {suite}: check its spelling") from None
    context.set_ciphers(":".join(openssl_suite(name) for name in suites))


def openssl_suite(suite: str) -> str:
    """Convert Java's name `TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384` to OpenSSL's `ECDHE-RSA-AES256-GCM-SHA384`, which also
    passes."""
    if not suite.startswith("TLS_"):
        return suite
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    if cipher.startswith("CHACHA20_POLY1305"):
        cipher = "CHACHA20_POLY1305"
    cipher = cipher.replace("AES_128", "AES128").replace("AES_256", "AES256").replace("_CBC", "")
    # OpenSSL leaves out RSA's own key exchange.
    return (cipher if exchange == "RSA" else f"{exchange}_{cipher}").replace("_", "-")


# -- keys and trust ---------------------------------------------------------------------------------------------------


def key_pair(settings: TlsSettings) -> KeyPair | None:
    """Return the key pair; None if the settings name no key."""
    if settings.keystore_key is not None or settings.keystore_certificate_chain is not None:
        if settings.keystore_key is None or settings.keystore_certificate_chain is None:
            raise ConfigError("ssl.keystore.key and ssl.keystore.certificate.chain belong together: set both")
        return KeyPair(settings.keystore_key, settings.keystore_certificate_chain, settings.key_password or "")
    if settings.keystore_location is None:
        return None
    return read_key_pair(
        settings.keystore_type,
        settings.keystore_location,
        store_password=settings.keystore_password,
        key_password=settings.key_password,
    )


def trusted(settings: TlsSettings) -> str | None:
    """Return the trusted certificates as PEM; None for the system's."""
    if settings.truststore_certificates is not None:
        return settings.truststore_certificates
    if settings.truststore_location is None:
        return None
    return read_trusted(settings.truststore_type, settings.truststore_location, password=settings.truststore_password)


def _load_key(context: ssl.SSLContext, settings: TlsSettings) -> bool:
    pair = key_pair(settings)
    if pair is None:
        return False
    _load_pair(context, pair, "ssl.keystore.location" if settings.keystore_key is None else "ssl.keystore.key")
    return True


def _load_pair(context: ssl.SSLContext, pair: KeyPair, setting: str) -> None:
    with _secret_file(pair.key + "\n" + pair.chain) as path:
        try:
            # Always pass a password: without one OpenSSL would ask at the terminal.
            context.load_cert_chain(path, password=pair.password)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            # OpenSSL's reason has no secret, for example CA_MD_TOO_WEAK for an old authority that Java would accept.
            reason = f" ({error.reason})" if isinstance(error, ssl.SSLError) and error.reason else ""
            raise ConfigError(
                f"{setting}: no usable private key with its certificates, or a wrong ssl.key.password{reason}"
            ) from None


@contextmanager
def _secret_file(text: str) -> Iterator[str]:
    """Yield the path of a file with the text, because OpenSSL reads keys only from files. It is a file in memory if the system
    supports them, else a private file that is deleted at once."""
    if IS_LINUX:
        with open(os.memfd_create("barnabas-key"), "w") as file:
            file.write(text)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
        return
    descriptor, path = tempfile.mkstemp(prefix="barnabas-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        yield path
    finally:
        Path(path).unlink()


def _load_trust(context: ssl.SSLContext, settings: TlsSettings) -> None:
    text = trusted(settings)
    if text is None:
        server = context.protocol == ssl.PROTOCOL_TLS_SERVER
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH if server else ssl.Purpose.SERVER_AUTH)
        return
    where = "ssl.truststore.location" if settings.truststore_certificates is None else "ssl.truststore.certificates"
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{where}: no certificates in PEM found") from error


def _load_revoked(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Load revocation lists. A certificate's authority must then have a list, and the certificate must not be on it."""
    if settings.crl_location is None:
        return
    try:
        context.load_verify_locations(cafile=settings.crl_location)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"barnabas.ssl.crl.location={settings.crl_location}: no list of revoked certificates in PEM found"
        ) from error
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


# -- a new certificate for a listener that serves ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CertificateNames:
    """The names in a certificate, and the end of its validity."""

    subject: tuple[tuple[tuple[str, str], ...], ...]
    alternative: frozenset[tuple[str, str]]
    #: Seconds since 1970.
    ends_s: float


def certificate_names(pair: KeyPair) -> CertificateNames:
    """Return the names and the end of the leaf certificate, even if it has expired."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    # Trust its own chain: this reads the certificate's contents and does not verify it.
    client.load_verify_locations(cadata=_certificates(pair.chain or pair.key))
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(_NO_CHECK_TIME)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_pair(server, pair, "ssl.keystore")
    certificate = shake_hands(server, client).getpeercert() or {}
    return CertificateNames(
        subject=certificate.get("subject", ()),  # type: ignore[arg-type]
        alternative=frozenset(certificate.get("subjectAltName", ())),  # type: ignore[arg-type]
        ends_s=ssl.cert_time_to_seconds(str(certificate["notAfter"])),
    )


def _certificates(pem: str) -> str:
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    return "".join(f"{begin}{part.partition(end)[0]}{end}\n" for part in pem.split(begin)[1:])


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    """Shake hands in memory, and return the client's side. Raises `ssl.SSLError` if the two sides do not agree."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        client.wrap_bio(to_client, to_server, server_hostname=None),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    done = [False, False]
    for _ in range(8):
        for at, side in enumerate(sides):
            if not done[at]:
                try:
                    side.do_handshake()
                    done[at] = True
                except ssl.SSLWantReadError:
                    continue
        if all(done):
            break
    # With TLS 1.3 a server refuses the client's certificate only after the client has finished.
    if not all(done):
        raise ssl.SSLError("the handshake does not finish")
    return sides[0]
