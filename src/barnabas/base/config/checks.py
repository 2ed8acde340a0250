"""Checks across several settings, as Kafka makes them when a broker starts.

The error messages are Kafka's, so that users find help on the web.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from barnabas.base.config.listeners import Listener, split_list
from barnabas.base.config.units import MIB
from barnabas.base.errors import ConfigError

if TYPE_CHECKING:
    from barnabas.base.config.broker import BrokerConfig

_GROUP_PROTOCOLS: Final = ("consumer", "share", "streams")
_CODEC_MAX: Final = 4


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ConfigError(otherwise)


def refuse_kraft(properties: Mapping[str, str]) -> None:
    """Checked first, because a KRaft file also fails other checks, but only this error gives the cause."""
    require(
        not properties.get("process.roles", "").strip(),
        f"process.roles={properties.get('process.roles')} asks for KRaft mode, but brokers here run with ZooKeeper: "
        "remove process.roles (and the controller.quorum.* settings), and set zookeeper.connect.",
    )
    require(
        properties.get("zookeeper.metadata.migration.enable", "").strip().lower() != "true",
        "zookeeper.metadata.migration.enable=true asks for a migration to KRaft, which this broker does not take part "
        "in: remove it.",
    )
    names = properties.get("controller.listener.names", "").strip()
    require(not names, f"controller.listener.names must be empty when not running in KRaft mode: {names}")


def check(config: "BrokerConfig") -> None:
    """:raises ConfigError: at the first check that fails."""
    _check_identity(config)
    _check_log(config)
    _check_replication(config)
    _check_listeners(config)
    _check_security(config)
    _check_connections(config)
    _check_groups(config)
    require(
        not config.barnabas_inside_enable or config.barnabas_metrics_port >= 0,
        "barnabas.inside.enable=true needs barnabas.metrics.port: that is where the inside is shown (0 picks a free port).",
    )
    require(
        not config.remote_log_storage_system_enable or config.barnabas_remote_storage_url is not None,
        "remote.log.storage.system.enable=true needs barnabas.remote.storage.url: where segments go.",
    )


def _check_identity(config: "BrokerConfig") -> None:
    require(
        config.values["node.id"] == config.broker_id,
        "You must set `node.id` to the same value as `broker.id`.",
    )
    require(
        bool(config.values["zookeeper.connect"]),
        "Missing required configuration `zookeeper.connect` which has no default value.",
    )
    if config.broker_id_generation_enable:
        require(
            -1 <= config.broker_id <= config.reserved_broker_max_id,
            f"broker.id must be greater than or equal to -1 and not greater than reserved.broker.max.id "
            f"({config.reserved_broker_max_id}): it is {config.broker_id}",
        )
    else:
        require(config.broker_id >= 0, "broker.id must be greater than or equal to 0")


def _check_log(config: "BrokerConfig") -> None:
    require(config.log_roll_ms >= 1, "log.roll.ms must be greater than or equal to 1")
    require(config.log_roll_jitter_ms >= 0, "log.roll.jitter.ms must be greater than or equal to 0")
    require(
        config.log_retention_ms >= 1 or config.log_retention_ms == -1,
        "log.retention.ms must be unlimited (-1) or, greater than or equal to 1",
    )
    require(bool(config.log_dirs), "At least one log directory must be defined via log.dirs or log.dir.")
    threads = _number(config, "log.cleaner.threads")
    require(threads >= 1, "Log cleaner threads should be at least 1")
    require(
        _number(config, "log.cleaner.dedupe.buffer.size") // threads > MIB,
        "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.",
    )
    shortest = _number(config, "log.cleaner.min.compaction.lag.ms")
    longest = _number(config, "log.cleaner.max.compaction.lag.ms")
    require(
        shortest <= longest,
        f"conflict topic config setting min.compaction.lag.ms ({shortest}) > max.compaction.lag.ms ({longest})",
    )


def _check_replication(config: "BrokerConfig") -> None:
    wait_ms_max = _number(config, "replica.fetch.wait.max.ms")
    require(
        wait_ms_max <= _number(config, "replica.socket.timeout.ms"),
        "replica.socket.timeout.ms should always be at least replica.fetch.wait.max.ms to prevent unnecessary socket "
        "timeouts",
    )
    require(
        wait_ms_max <= config.replica_lag_time_max_ms,
        "replica.fetch.wait.max.ms should always be less than or equal to replica.lag.time.max.ms to prevent frequent "
        "changes in ISR",
    )


def _names(listeners: tuple[Listener, ...]) -> str:
    return ",".join(listener.name for listener in listeners)


def _check_listeners(config: "BrokerConfig") -> None:
    advertised = {listener.name for listener in config.advertised_listeners}
    require(bool(advertised), "There must be at least one broker advertised listener.")
    require(
        config.inter_broker_listener_name in advertised,
        "inter.broker.listener.name must be a listener name defined in advertised.listeners. The valid options based on "
        f"currently configured listeners are {_names(config.advertised_listeners)}",
    )
    require(
        advertised <= {listener.name for listener in config.listeners},
        "advertised.listeners listener names must be equal to or a subset of the ones defined in listeners. Found "
        f"{_names(config.advertised_listeners)}. The valid options based on the current configuration are "
        f"{_names(config.listeners)}",
    )
    require(
        all(listener.host != "0.0.0.0" for listener in config.advertised_listeners),
        "advertised.listeners cannot use the nonroutable meta-address 0.0.0.0. Use a routable IP address.",
    )
    early = config.values["early.start.listeners"]
    for name in split_list(early) if isinstance(early, str) else ():
        require(
            any(listener.name == name for listener in config.listeners),
            f"early.start.listeners contains listener {name}, but this is not contained in listeners "
            f"({_names(config.listeners)})",
        )
    control_plane = config.control_plane_listener_name
    if control_plane is not None:
        require(
            control_plane in config.listener_security_protocol_map,
            f"Listener with {control_plane} defined in control.plane.listener.name not found in "
            "listener.security.protocol.map.",
        )
        require(
            control_plane in advertised,
            "control.plane.listener.name must be a listener name defined in advertised.listeners. The valid options "
            f"based on currently configured listeners are {_names(config.advertised_listeners)}",
        )
        require(
            control_plane != config.inter_broker_listener_name,
            "control.plane.listener.name, when defined, should have a different value from the inter broker listener "
            f"name. Currently they both have the value {control_plane}",
        )


def _check_security(config: "BrokerConfig") -> None:
    if config.security_inter_broker_protocol.uses_sasl:
        mechanisms = config.for_listener(config.inter_broker_listener_name, "sasl.enabled.mechanisms")
        assert isinstance(mechanisms, tuple)
        require(
            config.sasl_mechanism_inter_broker_protocol in mechanisms,
            f"sasl.mechanism.inter.broker.protocol ({config.sasl_mechanism_inter_broker_protocol}) must be included in "
            "sasl.enabled.mechanisms when SASL is used for inter-broker communication",
        )


def _check_connections(config: "BrokerConfig") -> None:
    require(
        config.queued_max_request_bytes <= 0 or config.queued_max_request_bytes >= config.socket_request_max_bytes,
        "queued.max.request.bytes must be larger or equal to socket.request.max.bytes",
    )
    if config.max_connections_per_ip == 0:
        require(
            bool(config.max_connections_per_ip_overrides),
            "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides property is set.",
        )
    if config.connections_max_idle_ms >= 0:
        delay_ms, idle_ms = config.connection_failed_authentication_delay_ms, config.connections_max_idle_ms
        require(
            delay_ms < idle_ms,
            f"connection.failed.authentication.delay.ms={delay_ms} should always be less than "
            f"connections.max.idle.ms={idle_ms} to prevent failed authentication responses from timing out",
        )


def _check_groups(config: "BrokerConfig") -> None:
    require(
        "classic" in config.group_coordinator_rebalance_protocols, "Disabling the 'classic' protocol is not supported."
    )
    require(
        0 <= config.offsets_topic_compression_codec <= _CODEC_MAX,
        f"Invalid value {config.offsets_topic_compression_codec} for configuration offsets.topic.compression.codec: "
        "it must be 0 (none), 1 (gzip), 2 (snappy), 3 (lz4) or 4 (zstd)",
    )
    for group in _GROUP_PROTOCOLS:
        for what in ("session.timeout.ms", "heartbeat.interval.ms"):
            _check_within(config, f"group.{group}", what)
        heartbeat, session = f"group.{group}.heartbeat.interval.ms", f"group.{group}.session.timeout.ms"
        require(_number(config, heartbeat) < _number(config, session), f"{heartbeat} must be less than {session}")
    for what in ("record.lock.duration.ms", "delivery.count.limit", "partition.max.record.locks"):
        _check_within(config, "group.share", what)
    _check_within(config, "group.streams", "assignment.interval.ms")
    standbys, standbys_max = "group.streams.num.standby.replicas", "group.streams.max.standby.replicas"
    require(
        _number(config, standbys) <= _number(config, standbys_max),
        f"{standbys} must be less than or equal to {standbys_max}",
    )
    require(
        -1 <= _number(config, "offsets.commit.required.acks") <= config.offsets_topic_replication_factor,
        "offsets.commit.required.acks must be greater or equal to -1 and less or equal to "
        "offsets.topic.replication.factor",
    )


def _check_within(config: "BrokerConfig", prefix: str, what: str) -> None:
    lowest, name, highest = f"{prefix}.min.{what}", f"{prefix}.{what}", f"{prefix}.max.{what}"
    low, value, high = _number(config, lowest), _number(config, name), _number(config, highest)
    require(high >= low, f"{highest} must be greater than or equals to {lowest}")
    require(value >= low, f"{name} must be greater than or equals to {lowest}")
    require(value <= high, f"{name} must be less than or equals to {highest}")


def _number(config: "BrokerConfig", name: str) -> int:
    value = config.values[name]
    assert isinstance(value, int), name
    return value
