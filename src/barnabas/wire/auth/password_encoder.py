"""Encrypt passwords among dynamic settings as Kafka does in ZooKeeper (`password.encoder.*`).

The text has everything for decoding except the secret (salt, iterations, algorithms, initialization vector), so either side
can change its algorithms. Needs the package cryptography.
"""

import base64
import binascii
import hashlib
import os
from typing import TYPE_CHECKING, Final

from barnabas.base.errors import ConfigError
from barnabas.base.tls.stores import needs_cryptography

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.modes import CBC, GCM

_DIGESTS: Final = {
    "PBKDF2WithHmacSHA512": "sha512",
    "PBKDF2WithHmacSHA256": "sha256",
    "PBKDF2WithHmacSHA1": "sha1",
}
_CBC: Final = "AES/CBC/PKCS5Padding"
_GCM: Final = "AES/GCM/NoPadding"
_SALT_BYTES: Final = 256
_BLOCK_BYTES: Final = 16
_TAG_BYTES: Final = 16
_GCM_NONCE_BYTES: Final = 12
#: Bound for a text from ZooKeeper: more iterations could block a broker for minutes.
_ITERATIONS_MAX: Final = 10_000_000


class PasswordEncoder:
    def __init__(
        self,
        secret: str,
        *,
        key_factory: str | None = None,
        cipher: str = _CBC,
        key_bits: int = 128,
        iterations: int = 4096,
    ) -> None:
        """:raises ConfigError: if an algorithm is unknown."""
        self._secret = secret.encode()
        self._key_factory = key_factory or "PBKDF2WithHmacSHA512"
        self._cipher = cipher
        self._key_bits = key_bits
        self._iterations = iterations
        if self._key_factory not in _DIGESTS:
            raise ConfigError(f"password.encoder.keyfactory.algorithm={key_factory}: use {', '.join(_DIGESTS)}")
        if cipher not in (_CBC, _GCM):
            raise ConfigError(f"password.encoder.cipher.algorithm={cipher}: use {_CBC} or {_GCM}")
        if key_bits not in (128, 192, 256):
            raise ConfigError(f"password.encoder.key.length={key_bits}: AES takes 128, 192 and 256")

    def encode(self, password: str) -> str:
        salt = os.urandom(_SALT_BYTES)
        fields = {
            "keyFactoryAlgorithm": self._key_factory,
            "cipherAlgorithm": self._cipher,
            "keyLength": str(self._key_bits),
            "salt": _b64(salt),
            "iterations": str(self._iterations),
            "passwordLength": str(len(password.encode("utf-16-le")) // 2),  # Java counts UTF-16 units
        }
        key = self._key(self._key_factory, salt, self._iterations, self._key_bits)
        plain = password.encode()
        if self._cipher == _GCM:
            nonce = os.urandom(_GCM_NONCE_BYTES)
            cipher = _aes(key, _GCM, nonce).encryptor()
            encrypted = cipher.update(plain) + cipher.finalize() + _tag_of(cipher)
            fields |= {"initializationVector": _b64(nonce), "authenticationTagLength": str(_TAG_BYTES * 8)}
        else:
            nonce = os.urandom(_BLOCK_BYTES)
            padding = _BLOCK_BYTES - len(plain) % _BLOCK_BYTES
            cipher = _aes(key, _CBC, nonce).encryptor()
            encrypted = cipher.update(plain + bytes([padding]) * padding) + cipher.finalize()
            fields["initializationVector"] = _b64(nonce)
        fields["encryptedPassword"] = _b64(encrypted)
        return ",".join(f"{name}:{value}" for name, value in fields.items())

    def decode(self, encoded: str) -> str:
        """:raises ConfigError: revealing nothing of the text."""
        fields = dict(part.partition(":")[::2] for part in encoded.split(","))
        try:
            iterations, key_bits = int(fields["iterations"]), int(fields["keyLength"])
            if not 0 < iterations <= _ITERATIONS_MAX or key_bits not in (128, 192, 256):
                raise ValueError("out of bounds")
            key = self._key(fields["keyFactoryAlgorithm"], _unb64(fields["salt"]), iterations, key_bits)
            password = _decrypt(
                key,
                fields["cipherAlgorithm"],
                _unb64(fields["initializationVector"]),
                _unb64(fields["encryptedPassword"]),
            )
            if len(password.encode("utf-16-le")) // 2 != int(fields["passwordLength"]):
                raise ValueError("the length does not match")
        except (KeyError, ValueError):
            # Not chained: the cause may quote what it could not decode.
            raise ConfigError(
                "a password from ZooKeeper could not be decoded: is password.encoder.secret the one it was encoded with?"
            ) from None
        return password

    def _key(self, key_factory: str, salt: bytes, iterations: int, key_bits: int) -> bytes:
        return hashlib.pbkdf2_hmac(_DIGESTS[key_factory], self._secret, salt, iterations, key_bits // 8)


def _decrypt(key: bytes, algorithm: str, nonce: bytes, encrypted: bytes) -> str:
    if algorithm == _GCM:
        body, tag = encrypted[:-_TAG_BYTES], encrypted[-_TAG_BYTES:]
        opened = _aes(key, _GCM, nonce, tag).decryptor()
        try:
            return (opened.update(body) + opened.finalize()).decode()
        except Exception as error:
            raise ValueError("the tag does not match") from error
    if algorithm != _CBC or len(nonce) != _BLOCK_BYTES or not encrypted or len(encrypted) % _BLOCK_BYTES:
        raise ValueError("not a known form")
    opened = _aes(key, _CBC, nonce).decryptor()
    padded = opened.update(encrypted) + opened.finalize()
    padding = padded[-1]
    if not 1 <= padding <= _BLOCK_BYTES or padded[-padding:] != bytes([padding]) * padding:
        raise ValueError("the padding does not match")
    return padded[:-padding].decode()


def _aes(key: bytes, algorithm: str, nonce: bytes, tag: bytes | None = None) -> "Cipher[CBC | GCM]":
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    except ImportError:
        raise needs_cryptography("a password among dynamic settings") from None
    mode = modes.GCM(nonce, tag) if algorithm == _GCM else modes.CBC(nonce)
    return Cipher(algorithms.AES(key), mode)


def _tag_of(encryptor: object) -> bytes:
    from cryptography.hazmat.primitives.ciphers import AEADEncryptionContext

    assert isinstance(encryptor, AEADEncryptionContext)
    return encryptor.tag


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _unb64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("no base64") from error
