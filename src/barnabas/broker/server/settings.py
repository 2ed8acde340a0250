"""Converts a broker's settings into the settings of its parts."""

import ssl

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.definition import Password
from barnabas.base.errors import ConfigError
from barnabas.base.tls.contexts import TlsSettings, client_context
from barnabas.base.words import STREAMS_VERSION
from barnabas.broker.security.connection_rates import RateLimits
from barnabas.broker.server.connection_quotas import ConnectionLimits
from barnabas.broker.zookeeper_client.features import ClusterFeatures
from barnabas.broker.zookeeper_client.session_config import IN_FLIGHT_MAX, SessionConfig


def session_config(config: BrokerConfig) -> SessionConfig:
    """Return the session's settings. :raises ConfigError: if ZooKeeper could not identify this broker with them."""
    hosts, chroot = SessionConfig.split(config.zookeeper_connect)
    digest = config.barnabas_zookeeper_digest
    if digest is not None and not all(digest.value.partition(":")):
        raise ConfigError("barnabas.zookeeper.digest must have the form user:password")
    has_certificate = config.zookeeper_ssl_client_enable and config.zookeeper_ssl_keystore_location is not None
    if config.zookeeper_set_acl and digest is None and not has_certificate:
        raise ConfigError(
            "zookeeper.set.acl=true, but ZooKeeper could not identify this broker: set barnabas.zookeeper.digest to "
            "user:password, the same on every broker, or zookeeper.ssl.client.enable with zookeeper.ssl.keystore.location"
        )
    return SessionConfig(
        hosts=hosts,
        chroot=chroot,
        session_timeout_ms=config.zookeeper_session_timeout_ms,
        connection_timeout_ms=config.zookeeper_connection_timeout_ms,
        secure_acls=config.zookeeper_set_acl,
        auth=(("digest", digest.value),) if digest is not None else (),
        in_flight_max=_zookeeper_in_flight_max(config),
        tls=_zookeeper_context(config) if config.zookeeper_ssl_client_enable else None,
    )


def _zookeeper_in_flight_max(config: BrokerConfig) -> int:
    """Return the in-flight limit. Kafka's default of 10 would slow a controller's takeover down: it applies only if it is
    set."""
    is_set = "zookeeper.max.in.flight.requests" in config.originals
    return min(config.zookeeper_max_in_flight_requests, IN_FLIGHT_MAX) if is_set else IN_FLIGHT_MAX


def _zookeeper_context(config: BrokerConfig) -> ssl.SSLContext:
    versions = config.zookeeper_ssl_enabled_protocols or (config.zookeeper_ssl_protocol,)
    if versions == ("TLS",):
        versions = ("TLSv1.2", "TLSv1.3")
    password = _secret(config.zookeeper_ssl_keystore_password)
    keystore, truststore = config.zookeeper_ssl_keystore_location, config.zookeeper_ssl_truststore_location
    try:
        return client_context(
            TlsSettings(
                keystore_type=config.zookeeper_ssl_keystore_type or _store_type(keystore),
                keystore_location=keystore,
                keystore_password=password,
                # ZooKeeper's settings have one password for the store and its key.
                key_password=password,
                truststore_type=config.zookeeper_ssl_truststore_type or _store_type(truststore),
                truststore_location=truststore,
                truststore_password=_secret(config.zookeeper_ssl_truststore_password),
                protocol="TLS",
                enabled_protocols=versions,
                cipher_suites=config.zookeeper_ssl_cipher_suites or (),
                endpoint_identification_algorithm=config.zookeeper_ssl_endpoint_identification_algorithm,
            )
        )
    except ConfigError as error:
        raise ConfigError(f"the zookeeper.ssl.* settings cannot be used: {error}") from error


def _secret(password: Password | None) -> str | None:
    return None if password is None else password.value


def _store_type(location: str | None) -> str:
    """Return the type by the file's ending, as ZooKeeper does. `JKS` accepts PKCS12 files, too."""
    return "PEM" if location is not None and location.lower().endswith(".pem") else "JKS"


def control_listener_name(config: BrokerConfig) -> str:
    """Return the listener of other brokers to which a controller here sends its requests."""
    return config.control_plane_listener_name or config.inter_broker_listener_name


def allows_protocol(config: BrokerConfig, protocol: str) -> bool:
    """Whether the settings allow a group protocol. The default has only the classic one: it applies only if it is set."""
    is_set = "group.coordinator.rebalance.protocols" in config.originals
    return not is_set or protocol in config.group_coordinator_rebalance_protocols


def serves_streams_groups(features: ClusterFeatures, config: BrokerConfig) -> bool:
    """Whether streams groups (KIP-1071) are on. It changes when brokers come or go."""
    return features.level(STREAMS_VERSION) >= 1 and allows_protocol(config, "streams")


def buffer_bytes(config: BrokerConfig, setting: str) -> int:
    """Return a buffer size; -1 if it is not set: the kernel sizes a socket's buffers better than Kafka's default of 100 KB.

    A fixed send buffer cuts the sendfile of a 1 MB fetch into seven pieces, at five times the CPU.
    """
    value = config.values[setting]
    assert isinstance(value, int)
    return value if setting in config.originals else -1


def connection_rate_limits(config: BrokerConfig) -> RateLimits:
    return RateLimits(
        broker=config.max_connection_creation_rate,
        listeners=_by_listener(config, "max.connection.creation.rate"),
        protected=_broker_listener(config),
    )


def connection_limits(config: BrokerConfig) -> ConnectionLimits:
    return ConnectionLimits(
        max_connections=config.max_connections,
        listeners=_by_listener(config, "max.connections"),
        max_connections_per_ip=config.max_connections_per_ip,
        per_ip_overrides=config.max_connections_per_ip_overrides,
        idle_ms_max=config.connections_max_idle_ms,
        broker_listener=_broker_listener(config),
    )


def _broker_listener(config: BrokerConfig) -> str | None:
    """Return the brokers' listener, if clients have another one: clients must not keep brokers out."""
    return config.inter_broker_listener_name if len(config.listeners) > 1 else None


def _by_listener(config: BrokerConfig, setting: str) -> dict[str, int]:
    values: dict[str, int] = {}
    for listener in config.listeners:
        value = config.for_listener(listener.name, setting)
        assert isinstance(value, int)
        values[listener.name] = value
    return values
