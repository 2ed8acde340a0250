"""A broker's settings, parsed and validated once, for all components.

`BrokerConfig.parse({"broker.id": "1", "zookeeper.connect": "localhost:2181"})` parses every known name, refuses what Kafka
refuses, and returns an immutable value. A dynamic change creates a new one: see `dynamic`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Never

from barnabas.base.config.catalog import (
    BROKER_SETTINGS,
    DYNAMIC_ONLY_SETTINGS,
    UNIT_SYNONYMS,
    broker_setting,
    listener_base_name,
)
from barnabas.base.config.checks import check, refuse_kraft
from barnabas.base.config.definition import Password, Value
from barnabas.base.config.listeners import (
    Listener,
    parse_connection_overrides,
    parse_listeners,
    parse_protocol_map,
    parse_security_protocol,
    split_list,
)
from barnabas.base.config.settings import BrokerSettings
from barnabas.base.errors import ConfigError
from barnabas.base.words import SecurityProtocol

_ATTRIBUTES: Final = tuple(
    (each.attribute, each.name) for each in BROKER_SETTINGS.values() if each.attribute in BrokerSettings.__annotations__
)


class BrokerConfig(BrokerSettings):
    """An immutable snapshot of a broker's settings.

    Read a setting as an attribute, `config.replica_lag_time_max_ms`; `BrokerSettings` lists them all.
    """

    #: Every known setting by Kafka's name, with its own type. Neither resolved nor parsed further.
    values: Mapping[str, Value]
    #: The settings that were given, as text, including unknown names and listener prefixes.
    originals: Mapping[str, str]

    def __init__(self) -> None:
        raise TypeError("use BrokerConfig.parse")

    @classmethod
    def parse(cls, properties: Mapping[str, str], dynamic_only: Mapping[str, str] | None = None) -> "BrokerConfig":
        """Parse `properties`. `dynamic_only` are limits that a file cannot set.

        :raises ConfigError: naming the setting, the value, and the valid values.
        """
        refuse_kraft(properties)
        originals = _with_id_synonyms(properties)
        values = _parse_values(originals)
        attributes: dict[str, object] = {attribute: values[name] for attribute, name in _ATTRIBUTES}
        for name, setting in DYNAMIC_ONLY_SETTINGS.items():
            raw = (dynamic_only or {}).get(name)
            attributes[setting.attribute] = setting.default if raw is None else setting.parse(raw)
        config = cls.__new__(cls)
        config.__dict__.update(attributes)
        config.__dict__.update(values=MappingProxyType(values), originals=MappingProxyType(dict(originals)))
        config.__dict__.update(_resolve(values, originals))
        check(config)
        return config

    def __setattr__(self, name: str, value: object) -> Never:
        raise AttributeError(f"a BrokerConfig does not change; {name} cannot be set")

    def __delattr__(self, name: str) -> Never:
        raise AttributeError(f"a BrokerConfig does not change; {name} cannot be removed")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BrokerConfig) and other.__dict__ == self.__dict__

    __hash__ = None  # type: ignore[assignment]  # it has mappings

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={self.loggable(name)}" for name in sorted(self.originals))
        return f"BrokerConfig({shown})"

    def loggable(self, name: str) -> str:
        """Return the text of a setting for a log; hidden if it is a secret, or unknown and so possibly one."""
        setting = broker_setting(name)
        return Password.HIDDEN if setting is None or setting.is_sensitive else self.originals[name]

    @property
    def inter_broker_listener(self) -> Listener:
        """Return the listener to which other brokers connect."""
        return next(
            listener for listener in self.advertised_listeners if listener.name == self.inter_broker_listener_name
        )

    def listener(self, name: str) -> Listener | None:
        return next((each for each in self.listeners if each.name == name), None)

    def for_listener(self, listener: str, setting_name: str, mechanism: str | None = None) -> Value:
        """Return a setting's value for one listener: its mechanism's value, else the listener's, else the broker's."""
        prefix = f"listener.name.{listener.lower()}."
        names = [f"{prefix}{setting_name}"]
        if mechanism is not None:
            names.insert(0, f"{prefix}{mechanism.lower()}.{setting_name}")
        for name in names:
            raw = self.originals.get(name)
            if raw is not None:
                return BROKER_SETTINGS[setting_name].parse(raw)
        return self.values[setting_name]


def _with_id_synonyms(properties: Mapping[str, str]) -> Mapping[str, str]:
    """Fill in `broker.id` and `node.id`, which are two names of one setting."""
    broker_id, node_id = properties.get("broker.id"), properties.get("node.id")
    if broker_id is None and node_id is not None:
        return {**properties, "broker.id": node_id}
    if broker_id is not None and node_id is None:
        return {**properties, "node.id": broker_id}
    return properties


def _parse_values(originals: Mapping[str, str]) -> dict[str, Value]:
    values: dict[str, Value] = {name: setting.default for name, setting in BROKER_SETTINGS.items()}
    for name, raw in originals.items():
        setting = BROKER_SETTINGS.get(name)
        if setting is not None:
            values[name] = setting.parse(raw)
            continue
        base = listener_base_name(name)
        if base is not None and base in BROKER_SETTINGS:
            try:
                BROKER_SETTINGS[base].parse(raw)
            except ConfigError as error:
                raise ConfigError(f"{error} (in {name})") from error
    return values


def _resolve(values: Mapping[str, Value], originals: Mapping[str, str]) -> dict[str, object]:
    """Compute the attributes that depend on several settings, or are parsed from structured text."""
    protocols = parse_protocol_map(_text(values, "listener.security.protocol.map"))
    listeners = parse_listeners(_text(values, "listeners"), protocols, distinct_ports=True)
    advertised_text = values["advertised.listeners"]
    advertised = (
        parse_listeners(advertised_text, protocols, distinct_ports=False)
        if isinstance(advertised_text, str)
        else listeners
    )
    inter_broker_name, inter_broker_protocol = _inter_broker_listener(values, originals, protocols)
    control_plane = values["control.plane.listener.name"]
    retention_ms = resolve_units("retention.ms", values)
    connection_timeout_ms = values["zookeeper.connection.timeout.ms"]
    return {
        "listener_security_protocol_map": MappingProxyType(protocols),
        "listeners": listeners,
        "advertised_listeners": advertised,
        "inter_broker_listener_name": inter_broker_name,
        "security_inter_broker_protocol": inter_broker_protocol,
        "control_plane_listener_name": control_plane.upper() if isinstance(control_plane, str) else None,
        "max_connections_per_ip_overrides": MappingProxyType(
            parse_connection_overrides(_text(values, "max.connections.per.ip.overrides"))
        ),
        "log_dirs": _log_dirs(values),
        "log_roll_ms": resolve_units("segment.ms", values),
        "log_roll_jitter_ms": resolve_units("segment.jitter.ms", values),
        "log_flush_interval_ms": resolve_units("flush.ms", values),
        "log_retention_ms": -1 if retention_ms < 0 else retention_ms,
        "zookeeper_connection_timeout_ms": (
            values["zookeeper.session.timeout.ms"] if connection_timeout_ms is None else connection_timeout_ms
        ),
        "delegation_token_secret_key": values["delegation.token.secret.key"] or values["delegation.token.master.key"],
        "super_users": frozenset(user.strip() for user in _text(values, "super.users").split(";") if user.strip()),
    }


def resolve_units(topic_setting: str, values: Mapping[str, Value]) -> int:
    """Return the first broker synonym of a topic setting that has a value, in the topic setting's unit."""
    for synonym in UNIT_SYNONYMS[topic_setting]:
        value = values[synonym.name]
        if isinstance(value, int):
            return value * synonym.factor
    raise AssertionError(f"bug: the last synonym of {topic_setting} has no default")


def _text(values: Mapping[str, Value], name: str) -> str:
    value = values[name]
    assert isinstance(value, str), name
    return value


def _log_dirs(values: Mapping[str, Value]) -> tuple[str, ...]:
    dirs = values["log.dirs"]
    text = dirs if isinstance(dirs, str) else _text(values, "log.dir")
    return tuple(dict.fromkeys(split_list(text)))


def _inter_broker_listener(
    values: Mapping[str, Value], originals: Mapping[str, str], protocols: Mapping[str, SecurityProtocol]
) -> tuple[str, SecurityProtocol]:
    name = values["inter.broker.listener.name"]
    if not isinstance(name, str):
        setting = "security.inter.broker.protocol"
        protocol = parse_security_protocol(setting, _text(values, setting))
        return protocol.name, protocol
    if "security.inter.broker.protocol" in originals:
        raise ConfigError("Only one of inter.broker.listener.name and security.inter.broker.protocol should be set.")
    listener = name.upper()
    if listener not in protocols:
        raise ConfigError(
            f"Listener with name {listener} defined in inter.broker.listener.name not found in "
            "listener.security.protocol.map."
        )
    return listener, protocols[listener]
