"""A broker's TLS: contexts of its listeners and of its connections to other brokers, from its settings."""

import ssl
from collections.abc import Callable

from barnabas.auth.distinguished_name import Subject, format_subject, principal_mapper
from barnabas.auth.tls import TlsSettings, server_context
from barnabas.core.config.broker import BrokerConfig
from barnabas.core.config.definition import Password
from barnabas.core.config.listeners import Listener
from barnabas.core.errors import ConfigError
from barnabas.security.principal import Principal


def setting_text(config: BrokerConfig, listener: str, name: str, mechanism: str | None = None) -> str | None:
    """A setting of a listener as a user would write it, secrets included."""
    value = config.for_listener(listener, name, mechanism)
    if value is None:
        return None
    if isinstance(value, Password):
        return value.value
    return ",".join(value) if isinstance(value, tuple) else str(value)


def tls_settings(config: BrokerConfig, listener: str) -> TlsSettings:
    return TlsSettings.read(lambda name: setting_text(config, listener, name))


def listener_context(config: BrokerConfig, listener: Listener) -> ssl.SSLContext:
    try:
        return server_context(tls_settings(config, listener.name))
    except ConfigError as error:
        raise ConfigError(f"listener {listener.name}: {error}") from error


def certificate_principals(config: BrokerConfig, listener: Listener) -> Callable[[Subject], Principal]:
    """Makes principals by `ssl.principal.mapping.rules`; raises `ValueError` where no rule applies."""
    map_name = principal_mapper(setting_text(config, listener.name, "ssl.principal.mapping.rules") or "DEFAULT")
    return lambda subject: Principal("User", map_name(format_subject(subject)))
