"""Read keys and certificates as PEM text from PEM files, PEM in settings, or PKCS12 stores.

Java's default type is `JKS`, but Java also reads PKCS12 files under that name, which keytool has written by default since
Java 9. So the file's first bytes decide. A real JKS store is refused with the command that converts it, because the only
library for the format has had no release since 2020. PKCS12 needs the package cryptography (`pip install barnabas[security]`).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from barnabas.base.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_JKS_MAGIC: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_TYPES: Final = ("PEM", "PKCS12", "JKS")


@dataclass(frozen=True, slots=True, repr=False)
class KeyPair:
    """A private key and its certificate chain, the leaf first. `repr` hides the secret."""

    key: str
    chain: str
    #: The password of the key's text; empty if it is not encrypted.
    password: str = ""


def needs_cryptography(what: str) -> ConfigError:
    return ConfigError(f"{what} needs the package cryptography: pip install 'barnabas[security]'")


def read_key_pair(kind: str, location: str, *, store_password: str | None, key_password: str | None) -> KeyPair:
    """Read `ssl.keystore.*`. :raises ConfigError: naming the setting, without secrets."""
    data = _read("ssl.keystore", kind, location)
    if _is_pem("ssl.keystore", kind, location, data):
        return KeyPair(_pem_text("ssl.keystore", location, data), "", key_password or "")
    if store_password is None:
        raise ConfigError("ssl.keystore.location is a PKCS12 store, and ssl.keystore.password is not set")
    if key_password is not None and key_password != store_password:
        raise ConfigError(
            "the key of a PKCS12 store has the store's password: ssl.key.password must be the same or unset"
        )
    key, leaf, others = _open_pkcs12("ssl.keystore", location, data, store_password)
    if key is None or leaf is None:
        raise ConfigError(f"ssl.keystore.location={location} holds no private key with its certificate")
    return KeyPair(key, "".join(as_pem(each) for each in _chain(leaf, others)))


def read_trusted(kind: str, location: str, *, password: str | None) -> str:
    """Return all certificates of `ssl.truststore.*`."""
    data = _read("ssl.truststore", kind, location)
    if _is_pem("ssl.truststore", kind, location, data):
        return _pem_text("ssl.truststore", location, data)
    _, leaf, others = _open_pkcs12("ssl.truststore", location, data, password)
    found = [*((leaf,) if leaf is not None else ()), *others]
    if not found:
        raise ConfigError(f"ssl.truststore.location={location} holds no certificate")
    return "".join(as_pem(each) for each in found)


def _read(prefix: str, kind: str, location: str) -> bytes:
    if kind.upper() not in _TYPES:
        raise ConfigError(f"{prefix}.type={kind} is not known; use {', '.join(_TYPES)}")
    try:
        with open(location, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"{prefix}.location={location} cannot be read: {error.strerror}") from error


def _is_pem(prefix: str, kind: str, location: str, data: bytes) -> bool:
    if kind.upper() == "PEM":
        return True
    if data.startswith(_JKS_MAGIC):
        raise ConfigError(
            f"{prefix}.location={location} is in Java's own format JKS, which is not supported; convert it with: keytool "
            f"-importkeystore -srckeystore {location} -destkeystore store.p12 -deststoretype PKCS12, and set "
            f"{prefix}.type=PKCS12"
        )
    if b"-----BEGIN " in data[:4096]:
        raise ConfigError(f"{prefix}.location={location} is a PEM file: set {prefix}.type=PEM")
    return False


def _pem_text(prefix: str, location: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{prefix}.location={location} is not a PEM file; for PKCS12 set {prefix}.type=PKCS12"
        ) from error


def _open_pkcs12(
    prefix: str, location: str, data: bytes, password: str | None
) -> tuple[str | None, "Certificate | None", "list[Certificate]"]:
    """Return (key as PEM, its certificate, all other certificates)."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise needs_cryptography(f"the PKCS12 store {prefix}.location={location}") from None
    try:
        store = pkcs12.load_pkcs12(data, password.encode() if password is not None else None)
    except ValueError:
        # Not chained: the library's error does not help, and might contain a secret.
        raise ConfigError(
            f"{prefix}.location={location} is not a PKCS12 store, or {prefix}.password is not its password"
        ) from None
    key = None
    if store.key is not None:
        plain = serialization.NoEncryption()
        key = store.key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode()
    leaf = store.cert.certificate if store.cert is not None else None
    return key, leaf, [each.certificate for each in store.additional_certs]


def _chain(leaf: "Certificate", others: "list[Certificate]") -> "list[Certificate]":
    """Sort the chain. Stores keep no order, but TLS wants each certificate before the one that signed it."""
    chain, rest = [leaf], list(others)
    while rest:
        issuer = next((each for each in rest if each.subject == chain[-1].issuer), None)
        if issuer is None:
            break
        rest.remove(issuer)
        chain.append(issuer)
    return chain


def as_pem(certificate: "Certificate") -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM).decode()
