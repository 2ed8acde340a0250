"""Every setting by its name, and the relations of names: synonyms, listener prefixes, units."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from barnabas.base.config import log_config
from barnabas.base.config.definition import Setting, UpdateMode
from barnabas.base.config.definitions import (
    extra,
    groups,
    kraft,
    log,
    network,
    quotas,
    remote,
    replication,
    sasl,
    server,
    share,
    share_coordinator,
    ssl,
    streams,
    transactions,
    zookeeper,
)
from barnabas.base.config.units import HOUR_MS, MINUTE_MS


def _by_name(*families: Iterable[Setting]) -> Mapping[str, Setting]:
    return {setting.name: setting for family in families for setting in family}


#: Broker settings by family, in the order of the documentation.
FAMILIES: Final[Mapping[str, tuple[Setting, ...]]] = {
    "The broker": server.SETTINGS,
    "Network": network.SETTINGS,
    "ZooKeeper": zookeeper.SETTINGS,
    "Log": log.SETTINGS + log_config.BROKER_DEFAULTS,
    "Replication": replication.SETTINGS,
    "Groups and offsets": groups.SETTINGS,
    "Share groups": share.SETTINGS,
    "Streams groups": streams.SETTINGS,
    "Transactions": transactions.SETTINGS,
    "Share coordinator": share_coordinator.SETTINGS,
    "Quotas": quotas.SETTINGS,
    "TLS": ssl.SETTINGS,
    "SASL, tokens and passwords": sasl.SETTINGS,
    "Tiered storage": remote.SETTINGS,
    "KRaft": kraft.SETTINGS,
    "Authorizer, and barnabas's own": extra.SETTINGS,
}

BROKER_SETTINGS: Final = _by_name(*FAMILIES.values())
TOPIC_SETTINGS: Final = _by_name(log_config.TOPIC_SETTINGS)
#: Broker settings that exist only dynamically.
DYNAMIC_ONLY_SETTINGS: Final = _by_name(quotas.DYNAMIC_ONLY)
CLIENT_QUOTA_SETTINGS: Final = _by_name(quotas.CLIENT_QUOTAS)
IP_QUOTA_SETTINGS: Final = _by_name(quotas.IP_QUOTAS)

#: Broker settings that can change while the broker runs.
DYNAMIC_NAMES: Final = frozenset(
    name for name, setting in BROKER_SETTINGS.items() if setting.update_mode is not UpdateMode.READ_ONLY
)
PER_BROKER_NAMES: Final = frozenset(
    name for name, setting in BROKER_SETTINGS.items() if setting.update_mode is UpdateMode.PER_BROKER
)
#: Settings that can change only with a listener's prefix.
DYNAMIC_SECURITY_NAMES: Final = frozenset(
    {
        "ssl.keystore.type",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.key.password",
        "ssl.keystore.key",
        "ssl.keystore.certificate.chain",
        "ssl.truststore.type",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.certificates",
    }
)
#: Settings of listeners that can change for all brokers at once.
CLUSTER_LISTENER_NAMES: Final = frozenset({"max.connections", "max.connection.creation.rate", "num.network.threads"})
#: Settings that can have a mechanism's prefix after the listener's: `listener.name.x.plain.sasl.jaas.config`.
MECHANISM_NAMES: Final = (
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
    "connections.max.reauth.ms",
)

LISTENER_PREFIX: Final = "listener.name."


class UnitSynonym(NamedTuple):
    """A broker setting with the same meaning, and the size of its unit in units of the topic setting."""

    name: str
    factor: int


#: The broker settings that provide the default of a topic setting. The first one that is set wins.
UNIT_SYNONYMS: Final[Mapping[str, tuple[UnitSynonym, ...]]] = {
    "segment.ms": (UnitSynonym("log.roll.ms", 1), UnitSynonym("log.roll.hours", HOUR_MS)),
    "segment.jitter.ms": (UnitSynonym("log.roll.jitter.ms", 1), UnitSynonym("log.roll.jitter.hours", HOUR_MS)),
    "flush.ms": (UnitSynonym("log.flush.interval.ms", 1), UnitSynonym("log.flush.scheduler.interval.ms", 1)),
    "retention.ms": (
        UnitSynonym("log.retention.ms", 1),
        UnitSynonym("log.retention.minutes", MINUTE_MS),
        UnitSynonym("log.retention.hours", HOUR_MS),
    ),
}


def _synonym_groups() -> Mapping[str, tuple[str, ...]]:
    groups_by_name: dict[str, tuple[str, ...]] = {}
    for synonyms in UNIT_SYNONYMS.values():
        names = tuple(synonym.name for synonym in synonyms)
        for name in names:
            groups_by_name[name] = names
    # The scheduler's interval is a default for flush.interval.ms, but also an independent setting.
    del groups_by_name["log.flush.scheduler.interval.ms"]
    return groups_by_name


_SYNONYM_GROUPS: Final = _synonym_groups()


def listener_base_name(name: str) -> str | None:
    """Return `max.connections` for `listener.name.internal.max.connections`; None for a name without listener prefix."""
    if not name.startswith(LISTENER_PREFIX):
        return None
    _, dot, base = name[len(LISTENER_PREFIX) :].partition(".")
    return base if dot else None


def broker_synonyms(name: str, *, match_listener: bool = True) -> tuple[str, ...]:
    """Return the names that can set the value of `name`, the winning one first."""
    group = _SYNONYM_GROUPS.get(name)
    if group is not None:
        return group
    base = listener_base_name(name) if match_listener else None
    if base is None:
        return (name,)
    return (name, next((mechanism for mechanism in MECHANISM_NAMES if base.endswith(mechanism)), base))


def broker_setting(name: str) -> Setting | None:
    """Return the setting that gives `name` its type: itself, or the plain one for a name with a listener's prefix."""
    setting = BROKER_SETTINGS.get(name) or DYNAMIC_ONLY_SETTINGS.get(name)
    if setting is not None:
        return setting
    return next((BROKER_SETTINGS[other] for other in broker_synonyms(name) if other in BROKER_SETTINGS), None)
