"""TLS contexts from Kafka's `ssl.*` settings, for listeners and for clients.

Keys and certificates come as PEM: a file with the key and its chain (`ssl.keystore.location`), or text in the settings
themselves. JKS and PKCS12 stores are refused with the command that turns them into PEM.
"""

import os
import ssl
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from barnabas.core.errors import ConfigError

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
#: Java's names of TLS 1.2 suites differ from OpenSSL's; those of 1.3 are the same on both sides and cannot be chosen.
_SUITES_1_3: Final = ("TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TlsSettings:
    """The `ssl.*` settings that matter, secrets in the clear: it does not show itself."""

    keystore_type: str = "JKS"
    keystore_location: str | None = None
    keystore_key: str | None = None
    keystore_certificate_chain: str | None = None
    key_password: str | None = None
    truststore_type: str = "JKS"
    truststore_location: str | None = None
    truststore_certificates: str | None = None
    enabled_protocols: Sequence[str] = ("TLSv1.2", "TLSv1.3")
    cipher_suites: Sequence[str] = ()
    client_auth: str = "none"
    endpoint_identification_algorithm: str = "https"

    @staticmethod
    def read(get: Callable[[str], str | None]) -> "TlsSettings":
        """From settings by Kafka's names; `get` answers None for what is not set."""

        def words(name: str, default: tuple[str, ...]) -> tuple[str, ...]:
            text = get(name)
            return default if text is None else tuple(word.strip() for word in text.split(",") if word.strip())

        identification = get("ssl.endpoint.identification.algorithm")
        return TlsSettings(
            keystore_type=get("ssl.keystore.type") or "JKS",
            keystore_location=get("ssl.keystore.location"),
            keystore_key=get("ssl.keystore.key"),
            keystore_certificate_chain=get("ssl.keystore.certificate.chain"),
            key_password=get("ssl.key.password"),
            truststore_type=get("ssl.truststore.type") or "JKS",
            truststore_location=get("ssl.truststore.location"),
            truststore_certificates=get("ssl.truststore.certificates"),
            enabled_protocols=words("ssl.enabled.protocols", ("TLSv1.2", "TLSv1.3")),
            cipher_suites=words("ssl.cipher.suites", ()),
            client_auth=get("ssl.client.auth") or "none",
            endpoint_identification_algorithm="https" if identification is None else identification,
        )


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """:raises ConfigError: naming the setting that does not do."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _restrict(context, settings)
    if not _load_key(context, settings):
        raise ConfigError("a listener with TLS needs a key: set ssl.keystore.type=PEM and ssl.keystore.location")
    context.verify_mode = _CLIENT_AUTH[settings.client_auth]
    if context.verify_mode != ssl.CERT_NONE:
        _load_trust(context, settings)
    return context


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """Checks the server's certificate always, and its host name unless told not to. Without a trust store, the system's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _restrict(context, settings)
    # An empty text, as in Kafka, is how the check of the name is turned off.
    context.check_hostname = settings.endpoint_identification_algorithm.lower() == "https"
    _load_key(context, settings)
    _load_trust(context, settings)
    return context


def _restrict(context: ssl.SSLContext, settings: TlsSettings) -> None:
    unknown = [name for name in settings.enabled_protocols if name not in _VERSIONS]
    if unknown or not settings.enabled_protocols:
        raise ConfigError(f"ssl.enabled.protocols={','.join(settings.enabled_protocols)}: use TLSv1.2, TLSv1.3 or both")
    versions = [_VERSIONS[name] for name in settings.enabled_protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    suites = [name for name in settings.cipher_suites if name not in _SUITES_1_3]
    if suites:
        try:
            context.set_ciphers(":".join(_openssl_name(name) for name in suites))
        except ssl.SSLError:
            raise ConfigError(f"ssl.cipher.suites={','.join(settings.cipher_suites)}: no such TLS 1.2 suite") from None


def _openssl_name(suite: str) -> str:
    """`TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384` as OpenSSL calls it: `ECDHE-RSA-AES256-GCM-SHA384`."""
    name = suite.removeprefix("TLS_").replace("_WITH_", "_")
    return name.replace("AES_128", "AES128").replace("AES_256", "AES256").replace("_", "-")


def _load_key(context: ssl.SSLContext, settings: TlsSettings) -> bool:
    """False where the settings name no key."""
    if settings.keystore_key is not None or settings.keystore_certificate_chain is not None:
        if settings.keystore_key is None or settings.keystore_certificate_chain is None:
            raise ConfigError("ssl.keystore.key and ssl.keystore.certificate.chain belong together: set both")
        _load_chain_text(context, settings.keystore_key + "\n" + settings.keystore_certificate_chain, settings)
        return True
    if settings.keystore_location is None:
        return False
    _require_pem("ssl.keystore", settings.keystore_type, settings.keystore_location)
    _load_chain(context, settings.keystore_location, settings, "ssl.keystore.location")
    return True


def _load_chain_text(context: ssl.SSLContext, text: str, settings: TlsSettings) -> None:
    """OpenSSL takes keys from files only: one that nobody else can read and that is gone at once."""
    descriptor, path = tempfile.mkstemp(prefix="barnabas-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        _load_chain(context, path, settings, "ssl.keystore.key")
    finally:
        Path(path).unlink()


def _load_chain(context: ssl.SSLContext, path: str, settings: TlsSettings, setting: str) -> None:
    try:
        # A password is always given: without one OpenSSL would ask at the terminal.
        context.load_cert_chain(path, password=settings.key_password or "")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        reason = error.strerror if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) else None
        raise ConfigError(
            f"{setting}: {reason or 'no usable private key with its certificates, or a wrong ssl.key.password'}"
        ) from error


def _load_trust(context: ssl.SSLContext, settings: TlsSettings) -> None:
    if settings.truststore_certificates is not None:
        where, text = "ssl.truststore.certificates", settings.truststore_certificates
    elif settings.truststore_location is not None:
        where = "ssl.truststore.location"
        _require_pem("ssl.truststore", settings.truststore_type, settings.truststore_location)
        try:
            with open(settings.truststore_location, encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{where}={settings.truststore_location} cannot be read: {error}") from error
    else:
        context.load_default_certs(
            ssl.Purpose.CLIENT_AUTH if context.protocol == ssl.PROTOCOL_TLS_SERVER else ssl.Purpose.SERVER_AUTH
        )
        return
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{where}: no certificates in PEM found") from error


def _require_pem(prefix: str, store_type: str, location: str) -> None:
    if store_type.upper() == "PEM":
        return
    if store_type.upper() == "PKCS12":
        advice = f"openssl pkcs12 -in {location} -nodes -out store.pem"
    else:
        advice = (
            f"keytool -importkeystore -srckeystore {location} -destkeystore store.p12 -deststoretype PKCS12 && "
            "openssl pkcs12 -in store.p12 -nodes -out store.pem"
        )
    raise ConfigError(f"{prefix}.type={store_type} is not supported, PEM is; turn the store into PEM with: {advice}")
