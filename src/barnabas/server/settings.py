"""From a broker's settings to what its parts are made with. Pure."""

from barnabas.controller.settings import ControllerSettings
from barnabas.coordination.session_config import SessionConfig
from barnabas.core.config.broker import BrokerConfig
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
    hosts, chroot = SessionConfig.split(config.zookeeper_connect)
    return SessionConfig(
        hosts=hosts,
        chroot=chroot,
        session_timeout_ms=config.zookeeper_session_timeout_ms,
        connection_timeout_ms=config.zookeeper_connection_timeout_ms,
        secure_acls=config.zookeeper_set_acl,
        tls=config.zookeeper_ssl_client_enable,
        tls_certificate=config.zookeeper_ssl_keystore_location,
        tls_authorities=config.zookeeper_ssl_truststore_location,
    )


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
