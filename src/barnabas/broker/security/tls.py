"""A broker's TLS: contexts of its listeners from its settings, and their replacement at run time."""

import contextlib
import logging
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.definition import Password
from barnabas.base.config.listeners import Listener
from barnabas.base.errors import ConfigError
from barnabas.base.tls.contexts import (
    TlsSettings,
    certificate_names,
    client_context,
    key_pair,
    server_context,
    shake_hands,
    trusted,
)
from barnabas.base.tls.distinguished_name import Subject, format_subject, principal_mapper
from barnabas.base.tls.stores import KeyPair
from barnabas.broker.security.principal import Principal

log = logging.getLogger(__name__)


def setting_text(config: BrokerConfig, listener: str, name: str, mechanism: str | None = None) -> str | None:
    """Return a setting of a listener as a user would write it, including secrets."""
    value = config.for_listener(listener, name, mechanism)
    if value is None:
        return None
    if isinstance(value, Password):
        return value.value
    return ",".join(value) if isinstance(value, tuple) else str(value)


def tls_settings(config: BrokerConfig, listener: Listener) -> TlsSettings:
    settings = TlsSettings.read(lambda name: setting_text(config, listener.name, name))
    own = f"{listener.config_prefix}ssl.client.auth"
    if listener.security_protocol.uses_sasl and own not in config.originals:
        # KIP-684: if SASL identifies the client, only the listener's own setting demands a certificate.
        return replace(settings, client_auth="none")
    return settings


def listener_context(config: BrokerConfig, listener: Listener) -> ssl.SSLContext:
    try:
        return server_context(tls_settings(config, listener))
    except ConfigError as error:
        raise ConfigError(f"listener {listener.name}: {error}") from error


def certificate_principals(config: BrokerConfig, listener: Listener) -> Callable[[Subject], Principal]:
    """Return a function from subject to principal by `ssl.principal.mapping.rules`; it raises `ValueError` if no rule
    matches."""
    map_name = principal_mapper(setting_text(config, listener.name, "ssl.principal.mapping.rules") or "DEFAULT")
    return lambda subject: Principal("User", map_name(format_subject(subject)))


@dataclass(frozen=True, slots=True, repr=False)
class _Material:
    """The content of the stores when they were read: a file may change while its name stays."""

    settings: TlsSettings
    pair: KeyPair | None
    trust: str | None


class Certificates:
    """The present certificate and trust store of each TLS listener. Owner: the event loop.

    Files are read again whenever this broker's dynamic settings are written, changed or not, as in Kafka: so a renewed
    certificate with the same name takes effect. New connections use it; open ones stay as they are.
    """

    def __init__(self, config: BrokerConfig, *, on_change: Callable[[str, ssl.SSLContext], None]) -> None:
        self._on_change = on_change
        self._inter_broker = config.inter_broker_listener_name
        self._held = {listener.name: _material(config, listener) for listener in _tls_listeners(config)}

    def ends(self) -> Iterator[tuple[str, float]]:
        """Yield each listener, and when the certificate that it serves ends (seconds since 1970)."""
        for name, material in self._held.items():
            if material.pair is not None:
                with contextlib.suppress(ssl.SSLError):
                    yield name, certificate_names(material.pair).ends_s

    def check(self, config: BrokerConfig) -> None:
        """Check that `config` may replace the present settings. :raises ConfigError: with Kafka's message."""
        for listener in _tls_listeners(config):
            try:
                self._check_listener(config, listener)
            except (ConfigError, ssl.SSLError) as error:
                raise ConfigError(f"Validation of dynamic config update of SSLFactory failed: {error}") from error

    def _check_listener(self, config: BrokerConfig, listener: Listener) -> None:
        held, new = self._held.get(listener.name), _material(config, listener)
        if held is None or new == held:
            return
        server_context(new.settings)
        assert held.pair is not None and new.pair is not None  # a TLS listener without a key would have no context
        before, after = certificate_names(held.pair), certificate_names(new.pair)
        if not config.ssl_allow_dn_changes and before.subject != after.subject:
            raise ConfigError(
                f"Keystore DistinguishedName does not match: existing={format_subject(before.subject)}, "
                f"new={format_subject(after.subject)}"
            )
        if not config.ssl_allow_san_changes and not before.alternative <= after.alternative:
            raise ConfigError(
                f"Keystore SubjectAltNames do not match: existing={sorted(before.alternative)}, "
                f"new={sorted(after.alternative)}"
            )
        if listener.name == self._inter_broker:
            _check_agreement(held, new)

    def reload(self, config: BrokerConfig) -> None:
        """Read the settings and files again. If they cannot be used, log that and keep the old certificate."""
        listeners = _tls_listeners(config)
        for gone in self._held.keys() - {listener.name for listener in listeners}:
            del self._held[gone]
        for listener in listeners:
            try:
                new = _material(config, listener)
                if new == self._held.get(listener.name):
                    continue
                context = server_context(new.settings)
            except ConfigError as error:
                log.error("[listener %s] keeps its certificate, correct the ssl settings: %s", listener.name, error)
                continue
            self._held[listener.name] = new
            self._on_change(listener.name, context)
            log.info("[listener %s] has a new certificate or trust store", listener.name)


def _tls_listeners(config: BrokerConfig) -> list[Listener]:
    return [listener for listener in config.listeners if listener.security_protocol.uses_tls]


def _material(config: BrokerConfig, listener: Listener) -> _Material:
    settings = tls_settings(config, listener)
    return _Material(settings, key_pair(settings), trusted(settings))


def _check_agreement(held: _Material, new: _Material) -> None:
    """Shake hands between old and new in both directions: brokers apply the change one after the other."""
    for server, client in ((held, new), (new, held)):
        shake_hands(server_context(_in_memory(server)), client_context(_in_memory(client)))


def _in_memory(material: _Material) -> TlsSettings:
    """Return the material in place of the stores' names: the files may have changed already."""
    pair = material.pair
    assert pair is not None
    return replace(
        material.settings,
        endpoint_identification_algorithm="",
        keystore_location=None,
        keystore_key=pair.key,
        keystore_certificate_chain=pair.chain,
        key_password=pair.password,
        truststore_location=None,
        truststore_certificates=material.trust,
    )
