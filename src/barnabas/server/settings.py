"""From a broker's settings to what its parts are made with. Pure."""

from barnabas.controller.settings import ControllerSettings
from barnabas.coordination.session_config import SessionConfig
from barnabas.core.config.broker import BrokerConfig
from barnabas.core.errors import ConfigError
from barnabas.core.ids import BrokerId
from barnabas.replication.leader_endpoint import FetcherSettings
from barnabas.security.connection_rates import RateLimits
from barnabas.server.listener import ConnectionLimits


def fetcher_settings(broker_id: BrokerId, config: BrokerConfig) -> FetcherSettings:
    return FetcherSettings(
        broker_id=broker_id,
        num_replica_fetchers=config.num_replica_fetchers,
        replica_fetch_max_bytes=config.replica_fetch_max_bytes,
        replica_fetch_min_bytes=config.replica_fetch_min_bytes,
        replica_fetch_response_max_bytes=config.replica_fetch_response_max_bytes,
        replica_fetch_wait_max_ms=config.replica_fetch_wait_max_ms,
        replica_fetch_backoff_ms=config.replica_fetch_backoff_ms,
        replica_socket_timeout_ms=config.replica_socket_timeout_ms,
    )


def controller_settings(broker_id: BrokerId, config: BrokerConfig) -> ControllerSettings:
    return ControllerSettings(
        broker_id=broker_id,
        auto_leader_rebalance_enable=config.auto_leader_rebalance_enable,
        leader_imbalance_check_interval_seconds=config.leader_imbalance_check_interval_seconds,
        leader_imbalance_per_broker_percentage=config.leader_imbalance_per_broker_percentage,
        delete_topic_enable=config.delete_topic_enable,
        unclean_leader_election_enable=config.unclean_leader_election_enable,
    )


def session_config(config: BrokerConfig) -> SessionConfig:
    """:raises ConfigError: for settings with which ZooKeeper would not know who this broker is."""
    hosts, chroot = SessionConfig.split(config.zookeeper_connect)
    digest = config.barnabas_zookeeper_digest
    if digest is not None and not all(digest.value.partition(":")):
        raise ConfigError("barnabas.zookeeper.digest must have the form user:password")
    has_certificate = config.zookeeper_ssl_client_enable and config.zookeeper_ssl_keystore_location is not None
    if config.zookeeper_set_acl and digest is None and not has_certificate:
        raise ConfigError(
            "zookeeper.set.acl=true, but ZooKeeper would not know who this broker is: set barnabas.zookeeper.digest to "
            "user:password, the same on every broker, or zookeeper.ssl.client.enable with zookeeper.ssl.keystore.location"
        )
    key_password = config.zookeeper_ssl_keystore_password
    return SessionConfig(
        hosts=hosts,
        chroot=chroot,
        session_timeout_ms=config.zookeeper_session_timeout_ms,
        connection_timeout_ms=config.zookeeper_connection_timeout_ms,
        secure_acls=config.zookeeper_set_acl,
        auth=(("digest", digest.value),) if digest is not None else (),
        tls=config.zookeeper_ssl_client_enable,
        tls_certificate=_pem_file(config, "keystore"),
        tls_key_password=key_password.value if key_password is not None else None,
        tls_authorities=_pem_file(config, "truststore"),
        tls_verify_hostname=config.zookeeper_ssl_endpoint_identification_algorithm.lower() == "https",
    )


def _pem_file(config: BrokerConfig, store: str) -> str | None:
    """kazoo reads PEM files only."""
    location, kind = (config.values[f"zookeeper.ssl.{store}.{part}"] for part in ("location", "type"))
    if not isinstance(location, str):
        return None
    named = kind if isinstance(kind, str) else "PEM" if location.lower().endswith(".pem") else "JKS"
    if named.upper() != "PEM":
        raise ConfigError(
            f"zookeeper.ssl.{store}.type={named} is not supported, PEM is; turn the store into PEM with: "
            f"openssl pkcs12 -in {location} -nodes -out {store}.pem"
        )
    return location


def buffer_bytes(config: BrokerConfig, setting: str) -> int:
    """-1 where nobody has set it: the kernel sizes a socket's buffers better than Kafka's default of 100 KB does.

    A fixed send buffer cuts the sendfile of a 1 MB fetch into seven pieces, at five times the CPU.
    """
    value = config.values[setting]
    assert isinstance(value, int)
    return value if setting in config.originals else -1


def connection_rate_limits(config: BrokerConfig) -> RateLimits:
    name = "max.connection.creation.rate"
    listeners: dict[str, int] = {}
    for listener in config.listeners:
        rate = config.for_listener(listener.name, name)
        assert isinstance(rate, int)
        listeners[listener.name] = rate
    return RateLimits(
        broker=config.max_connection_creation_rate,
        listeners=listeners,
        protected=config.inter_broker_listener_name if len(listeners) > 1 else None,
    )


def connection_limits(config: BrokerConfig) -> ConnectionLimits:
    return ConnectionLimits(
        max_connections=config.max_connections,
        max_connections_per_ip=config.max_connections_per_ip,
        per_ip_overrides=config.max_connections_per_ip_overrides,
        idle_ms_max=config.connections_max_idle_ms,
    )
