"""Passwords among a broker's dynamic settings: encrypted in ZooKeeper, plain in this broker's memory only.

`password.encoder.secret` enables it; without it no password can be set dynamically. After a change of the secret,
`password.encoder.old.secret` decrypts the passwords that the former secret encrypted.
"""

from collections.abc import Mapping
from typing import Final

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.catalog import BROKER_SETTINGS, DYNAMIC_NAMES
from barnabas.base.config.definition import Password
from barnabas.base.errors import ConfigError, ErrorCode, Refused
from barnabas.wire.auth.password_encoder import PasswordEncoder

_PASSWORDS: Final = tuple(name for name in sorted(DYNAMIC_NAMES) if BROKER_SETTINGS[name].is_sensitive)


def is_password(name: str) -> bool:
    """Whether a setting is a password, with or without the prefix of a listener and a mechanism."""
    return name.endswith(_PASSWORDS)


class DynamicSecrets:
    def __init__(self, config: BrokerConfig) -> None:
        self._encoder = _encoder(config, config.password_encoder_secret)
        self._former = _encoder(config, config.password_encoder_old_secret)

    def protect(self, settings: Mapping[str, str], *, per_broker: bool) -> dict[str, str]:
        """Encrypt settings for ZooKeeper. :raises Refused: INVALID_REQUEST, with Kafka's message."""
        protected = dict(settings)
        for name in filter(is_password, settings):
            if not per_broker:
                raise Refused(ErrorCode.INVALID_REQUEST, "Password config can be defined only at broker level")
            if self._encoder is None:
                raise Refused(
                    ErrorCode.INVALID_REQUEST,
                    f"Password encoder secret not configured: set password.encoder.secret to change {name} dynamically",
                )
            protected[name] = self._encoder.encode(settings[name])
        return protected

    def reveal(self, stored: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
        """Decrypt settings from ZooKeeper; return (settings, lines about ignored ones)."""
        settings, ignored = dict(stored), []
        for name in filter(is_password, stored):
            try:
                settings[name] = self._decode(stored[name])
            except ConfigError as error:
                del settings[name]
                ignored.append(f"{name} is ignored: {error}")
        return settings, tuple(ignored)

    def needs_reencoding(self, stored: Mapping[str, str]) -> bool:
        """Whether the former secret encrypted any of the passwords."""
        return self._encoder is not None and any(
            not _reads(self._encoder, stored[name]) and _reads(self._former, stored[name])
            for name in filter(is_password, stored)
        )

    def _decode(self, encoded: str) -> str:
        if self._encoder is None:
            raise ConfigError("password.encoder.secret is not set")
        if not _reads(self._encoder, encoded) and self._former is not None:
            return self._former.decode(encoded)
        return self._encoder.decode(encoded)


def _reads(encoder: PasswordEncoder | None, encoded: str) -> bool:
    if encoder is None:
        return False
    try:
        encoder.decode(encoded)
    except ConfigError:
        return False
    return True


def _encoder(config: BrokerConfig, secret: Password | None) -> PasswordEncoder | None:
    if secret is None:
        return None
    return PasswordEncoder(
        secret.value,
        key_factory=config.password_encoder_keyfactory_algorithm,
        cipher=config.password_encoder_cipher_algorithm,
        key_bits=config.password_encoder_key_length,
        iterations=config.password_encoder_iterations,
    )
