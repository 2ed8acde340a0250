"""`barnabas configs`: kafka-configs.sh. `--zookeeper` is for SCRAM credentials that the first broker needs to start."""

import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from barnabas.base.config.definitions.quotas import CLIENT_QUOTAS, IP_QUOTAS
from barnabas.base.java_text import java_double
from barnabas.base.names import did_you_mean
from barnabas.base.words import AlterOperation, ConfigResourceType, ConfigSource
from barnabas.cli._command import UsageError
from barnabas.cli._connection import options, run
from barnabas.cli._output import say, say_json
from barnabas.cli._parsing import warn_of_unknown
from barnabas.cli.tool import CONNECTION, JSON, Option, Tool
from barnabas.client.admin import configs as admin
from barnabas.client.admin.configs import ConfigEntry
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import load_properties
from barnabas.wire.auth.mechanisms.scram import ScramMechanism

TOPICS, BROKERS, LOGGERS, USERS, CLIENTS, IPS, GROUPS = (
    "topics",
    "brokers",
    "broker-loggers",
    "users",
    "clients",
    "ips",
    "groups",
)
CLIENT_METRICS = "client-metrics"
#: In Kafka's order.
ENTITY_TYPES: Final = (TOPICS, CLIENTS, USERS, BROKERS, IPS, LOGGERS, CLIENT_METRICS, GROUPS)

_RESOURCES: Final = {
    TOPICS: (ConfigResourceType.TOPIC, ConfigSource.DYNAMIC_TOPIC_CONFIG),
    BROKERS: (ConfigResourceType.BROKER, ConfigSource.DYNAMIC_BROKER_CONFIG),
    LOGGERS: (ConfigResourceType.BROKER_LOGGER, None),
    GROUPS: (ConfigResourceType.GROUP, ConfigSource.DYNAMIC_GROUP_CONFIG),
    CLIENT_METRICS: (ConfigResourceType.CLIENT_METRICS, ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG),
}
_QUOTA_TYPES: Final = {USERS: "user", CLIENTS: "client-id", IPS: "ip"}
_QUOTA_LABELS: Final = {"user": "user-principal", "client-id": "client-id", "ip": "ip"}
_QUOTAS: Final = frozenset(each.name for each in CLIENT_QUOTAS)
_IP_QUOTAS: Final = frozenset(each.name for each in IP_QUOTAS)
_SCRAM: Final = {mechanism.sasl_name: mechanism for mechanism in ScramMechanism}


@dataclass(frozen=True, slots=True)
class Entity:
    """The entity to describe or alter: one type, or users with clients. A name of "" is the default."""

    types: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def type(self) -> str:
        return self.types[0]


_DEFAULTS = "The defaults of all {}."
TOOL = Tool(
    note="`--zookeeper` only for SCRAM credentials of users, and then `--command-config` is a broker's file.",
    kafka="kafka-configs.sh",
    options=(
        *CONNECTION,
        Option("--entity-type", ", ".join(ENTITY_TYPES), metavar="TYPE", many=True),
        Option("--entity-name", "Name of the entity.", metavar="NAME", many=True),
        # In its place among the names: `--entity-type users --entity-default --entity-type clients …`.
        Option(
            "--entity-default",
            "The default of clients, users, brokers or ips.",
            bool,
            means=("--entity-name", ""),
        ),
        Option("--topic", "The topic's name."),
        Option("--client", "The client's id."),
        Option("--client-defaults", _DEFAULTS.format("clients"), bool),
        Option("--user", "The user's principal name."),
        Option("--user-defaults", _DEFAULTS.format("users"), bool),
        Option("--broker", "The broker's id."),
        Option("--broker-defaults", _DEFAULTS.format("brokers"), bool),
        Option("--broker-logger", "The broker's id, for its loggers.", metavar="ID"),
        Option("--ip", "The IP address."),
        Option("--ip-defaults", _DEFAULTS.format("IPs"), bool),
        Option("--group", "The group's id."),
        Option("--client-metrics", "The subscription to metrics of clients.", metavar="NAME"),
        Option("--all", "List all settings, static ones and defaults too.", bool),
        Option("--add-config", "Settings to add; [] groups values with commas.", metavar="K1=V1,K2=[V1,V2]"),
        Option("--add-config-file", "Properties file with settings to add.", metavar="FILE"),
        Option("--delete-config", "Settings to remove.", metavar="K1,K2", many=True),
        Option("--force", "Suppress console prompts.", bool, needless="there are none"),
        Option(
            "--zookeeper",
            "Instead of brokers, for users' SCRAM credentials before the first broker starts; --command-config is then a "
            "broker's file.",
            metavar="HOST:PORT[/PATH]",
            instead="to describe, use --bootstrap-server",
        ),
        JSON,
    ),
    examples=(
        "barnabas configs --describe --topic orders --all",
        "barnabas configs --alter --topic orders --add-config retention.ms=86400000",
        "barnabas configs --alter --broker-defaults --delete-config log.retention.ms",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """The options that name an entity. Kafka has two ways: `--entity-type … --entity-name …` and `--topic …`."""

    entity_type: Sequence[str]
    entity_name: Sequence[str]
    topic: str | None
    client: str | None
    client_defaults: bool
    user: str | None
    user_defaults: bool
    broker: str | None
    broker_defaults: bool
    broker_logger: str | None
    ip: str | None
    ip_defaults: bool
    group: str | None
    client_metrics: str | None

    def entity(self, *, alter: bool) -> Entity:
        flags: list[tuple[str, str | None]] = [
            (TOPICS, self.topic),
            (CLIENTS, self.client),
            (USERS, self.user),
            (BROKERS, self.broker),
            (LOGGERS, self.broker_logger),
            (IPS, self.ip),
            (CLIENT_METRICS, self.client_metrics),
            (GROUPS, self.group),
            (CLIENTS, "" if self.client_defaults else None),
            (USERS, "" if self.user_defaults else None),
            (BROKERS, "" if self.broker_defaults else None),
            (IPS, "" if self.ip_defaults else None),
        ]
        return choose_entity(self.entity_type, self.entity_name, flags, alter=alter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    add_config: str | None
    add_config_file: str | None
    delete_config: Sequence[str]

    def parsed(self) -> tuple[dict[str, str], list[str]]:
        """Return settings to add and to delete."""
        additions = load_properties(self.add_config_file) if self.add_config_file else {}
        additions |= parse_additions(self.add_config) if self.add_config else {}
        deletions = [name.strip() for value in self.delete_config for name in value.split(",")]
        if not additions and not deletions:
            raise UsageError(
                "At least one of --add-config, --add-config-file, or --delete-config must be specified with --alter"
            )
        for name in additions:
            if not re.fullmatch(r"[a-zA-Z0-9._-]*", name):
                raise UsageError(f"Invalid character found for config key: {name}")
        return additions, deletions


def choose_entity(
    types: Sequence[str], names: Sequence[str], flags: Sequence[tuple[str, str | None]], *, alter: bool
) -> Entity:
    """Choose the entity; the two ways to name it do not mix."""
    given = [(kind, name) for kind, name in flags if name is not None]
    if given and (types or names):
        raise UsageError("--entity-{type,name,default} should not be used in conjunction with specific entity flags")
    entity = Entity(
        (*types, *(kind for kind, _ in given)),
        (*names, *(name for _, name in given)),
    )
    if not entity.types:
        raise UsageError("At least one entity type must be specified, for example --entity-type topics")
    for kind in entity.types:
        if kind not in ENTITY_TYPES:
            raise UsageError(f"Invalid entity type {kind}, the entity type must be one of {', '.join(ENTITY_TYPES)}")
    if len(set(entity.types)) < len(entity.types):
        raise UsageError(f"Duplicate entity type(s) specified: {','.join(entity.types)}")
    if len(entity.types) > 1 and set(entity.types) != {USERS, CLIENTS}:
        raise UsageError(f"Only '{USERS}' and '{CLIENTS}' entity types may be specified together")
    if len(entity.names) > len(entity.types):
        raise UsageError("More entity names specified than entity types")
    if alter and len(entity.names) != len(entity.types):
        raise UsageError("An entity name must be specified for every entity type")
    _check_names(entity, alter)
    return entity


def _check_names(entity: Entity, alter: bool) -> None:
    kind = entity.type
    for name in entity.names:
        if name and kind in (BROKERS, LOGGERS) and not re.fullmatch(r"-?\d+", name):
            raise UsageError(f"The entity name for {kind} must be a valid integer broker id, but it is: {name}")
        if name and kind == IPS and not _resolves(name):
            raise UsageError(f"The entity name for {kind} must be a valid IP or resolvable host, but it is: {name}")
        if not name and kind in (TOPICS, LOGGERS, GROUPS, CLIENT_METRICS):
            raise UsageError(
                f"--entity-default must not be specified with --{'alter' if alter else 'describe'} of {kind}"
            )
    if kind == LOGGERS and not entity.names:
        raise UsageError(f"An entity name must be specified with --describe of {kind}")


def _resolves(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        try:
            socket.getaddrinfo(name, None)
        except OSError:
            return False
    return True


def parse_additions(text: str) -> dict[str, str]:
    """Parse `k1=v1,k2=[v2,v3]`: commas and equal signs inside brackets belong to the value."""
    outside = r"(?=[^\]]*(?:\[|$))"
    found: dict[str, str] = {}
    for part in re.split("," + outside, text):
        pair = re.split(r"\s*=\s*" + outside, part)
        if len(pair) != 2:
            raise UsageError('Invalid entity config: all configs to be added must be in the format "key=val".')
        found[pair[0].strip()] = re.sub(r"\[?\]?", "", pair[1]).strip()
    return found


# -- alter --------------------------------------------------------------------------------------------------------------


@TOOL.action("--alter", "Alter the settings of the entity.")
def _alter(
    bootstrap_server: str | None, command_config: str | None, zookeeper: str | None, named: Named, changes: Changes
) -> None:
    entity = named.entity(alter=True)
    additions, deletions = changes.parsed()
    if zookeeper is not None:
        _alter_in_zookeeper(zookeeper, command_config, entity, additions, deletions)
    else:
        client = options(bootstrap_server, command_config)
        run(client, lambda cluster: _alter_entity(cluster, entity, additions, deletions))


async def _alter_entity(
    cluster: AsyncClient, entity: Entity, additions: Mapping[str, str], deletions: Sequence[str]
) -> None:
    if entity.type in _RESOURCES:
        await _alter_resource(cluster, entity, additions, deletions)
    elif entity.type == IPS:
        unknown = [name for name in (*additions, *deletions) if name not in _IP_QUOTAS]
        if unknown:
            raise UsageError(
                f"Only connection quota configs can be added for '{IPS}'. Unexpected config names: {','.join(unknown)}"
                + did_you_mean(unknown[0], _IP_QUOTAS)
            )
        await _alter_quotas(cluster, entity, additions, deletions)
    else:
        await _alter_user_or_client(cluster, entity, additions, deletions)
    name = entity.names[0]
    if name:
        say(f"Completed updating config for {entity.type[:-1]} {name}.")
    else:
        say(f"Completed updating default config for {entity.type} in the cluster.")


async def _alter_resource(
    cluster: AsyncClient, entity: Entity, additions: Mapping[str, str], deletions: Sequence[str]
) -> None:
    name = entity.names[0]
    kind, _ = _RESOURCES[entity.type]
    if kind in (ConfigResourceType.TOPIC, ConfigResourceType.BROKER):
        warn_of_unknown(additions, of_topic=kind is ConfigResourceType.TOPIC)
    existing = {entry.name for entry in await _resource_configs(cluster, entity.type, name, everything=False)}
    unknown = [setting for setting in deletions if setting not in existing]
    if entity.type == LOGGERS:
        unknown += [setting for setting in additions if setting not in existing]
    if unknown:
        what = "broker logger(s)" if entity.type == LOGGERS else "config(s)"
        raise UsageError(f"Invalid {what}: {','.join(unknown)}")
    changes: dict[str, tuple[AlterOperation, str | None]] = {
        setting: (AlterOperation.SET, value) for setting, value in additions.items()
    }
    changes |= dict.fromkeys(deletions, (AlterOperation.DELETE, ""))
    await admin.alter_configs(cluster, kind, name, changes)


async def _alter_user_or_client(
    cluster: AsyncClient, entity: Entity, additions: Mapping[str, str], deletions: Sequence[str]
) -> None:
    names = [*additions, *deletions]
    scram = [name for name in names if name in _SCRAM]
    unknown = [name for name in names if name not in _SCRAM and name not in _QUOTAS]
    if CLIENTS in entity.types:
        if unknown or scram:
            raise UsageError(
                f"Only quota configs can be added for '{CLIENTS}'. Unexpected config names: {','.join(unknown + scram)}"
                + did_you_mean((unknown + scram)[0], _QUOTAS)
            )
    elif unknown:
        raise UsageError(
            f"Only quota and SCRAM credential configs can be added for '{USERS}'. "
            f"Unexpected config names: {','.join(unknown)}" + did_you_mean(unknown[0], [*_QUOTAS, *_SCRAM])
        )
    if not scram:
        await _alter_quotas(cluster, entity, additions, deletions)
        return
    if "" in entity.names:
        raise UsageError("The use of --entity-default or --user-defaults is not allowed with User SCRAM Credentials.")
    if len(scram) < len(names):
        raise UsageError(f"Cannot alter both quota and SCRAM credential configs simultaneously for '{USERS}'.")
    await admin.alter_scram(
        cluster,
        entity.names[0],
        upserts=[parse_scram(name, value) for name, value in additions.items()],
        deletions=[_SCRAM[name] for name in deletions],
    )


def _alter_in_zookeeper(
    connect: str, broker_file: str | None, entity: Entity, additions: Mapping[str, str], deletions: Sequence[str]
) -> None:
    from barnabas.cli._scram_bootstrap import alter_scram
    from barnabas.cli._zookeeper_settings import session_settings, warn_of_open

    others = [name for name in (*additions, *deletions) if name not in _SCRAM]
    if entity.types != (USERS,) or "" in entity.names or others:
        raise UsageError(
            f"--bootstrap-server option must be specified to update {entity.type} configs. "
            "Updates using ZooKeeper are only supported for SCRAM credentials of users."
        )
    config = session_settings(connect, broker_file, creates=True)
    found = alter_scram(
        config,
        entity.names[0],
        upserts=[parse_scram(name, value) for name, value in additions.items()],
        deletions=deletions,
    )
    say(f"Completed updating config for entity: user-principal '{entity.names[0]}'.")
    warn_of_open(found, config, connect, broker_file, option="--command-config")


def parse_scram(mechanism: str, text: str) -> admin.ScramUpsert:
    """Parse `[iterations=8192,password=secret]`, without its brackets."""
    match = re.fullmatch(r"(?:iterations=(-?[0-9]*),)?password=(.*)", text)
    if match is None:
        raise UsageError(f"Invalid credential property {mechanism}=…; write {mechanism}=[iterations=8192,password=…]")
    given = match.group(1)
    iterations = int(given) if given and given != "-1" else admin.SCRAM_ITERATIONS_DEFAULT
    if iterations < admin.SCRAM_ITERATIONS_DEFAULT:
        raise UsageError(
            f"Iterations {iterations} is less than the minimum {admin.SCRAM_ITERATIONS_DEFAULT} required for {mechanism}"
        )
    return admin.ScramUpsert(_SCRAM[mechanism], iterations, match.group(2))


async def _alter_quotas(
    cluster: AsyncClient, entity: Entity, additions: Mapping[str, str], deletions: Sequence[str]
) -> None:
    target = {_QUOTA_TYPES[kind]: name or None for kind, name in zip(entity.types, entity.names, strict=True)}
    existing = await admin.describe_quotas(cluster, target)
    have = existing[0][1] if existing else {}
    missing = [name for name in deletions if name not in have]
    if missing:
        raise UsageError(f"Invalid config(s): {','.join(missing)}")
    changes: dict[str, float | None] = {}
    for name, value in additions.items():
        try:
            changes[name] = float(value)
        except ValueError:
            raise UsageError(f"Cannot parse quota configuration value for {name}: {value}") from None
    changes |= dict.fromkeys(deletions)
    await admin.alter_quotas(cluster, target, changes)


# -- describe -----------------------------------------------------------------------------------------------------------


@TOOL.action("--describe", "List the settings of the entity.")
async def _describe(cluster: AsyncClient, named: Named, all_: bool, json: bool) -> None:
    entity = named.entity(alter=False)
    if entity.type in _RESOURCES:
        await _describe_resources(cluster, entity, all_, json)
    else:
        await _describe_quotas(cluster, entity, json)


async def _resource_configs(cluster: AsyncClient, kind: str, name: str, *, everything: bool) -> list[ConfigEntry]:
    resource, dynamic = _RESOURCES[kind]
    if kind == BROKERS and not name:
        dynamic = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    found = await admin.describe_configs(cluster, [(resource, name)], synonyms=True)
    entries = sorted(found[resource, name], key=lambda entry: entry.name)
    return [entry for entry in entries if everything or dynamic is None or entry.source is dynamic]


async def _describe_resources(cluster: AsyncClient, entity: Entity, everything: bool, json: bool) -> None:
    kind = entity.type
    if entity.names:
        names = [entity.names[0]]
    elif kind == TOPICS:
        names = sorted(await cluster.all_topics())
    elif kind == GROUPS:
        from barnabas.client.admin.groups import list_groups

        names = [group.group_id for group in await list_groups(cluster)]
    elif kind == CLIENT_METRICS:
        names = await admin.list_resources(cluster, ConfigResourceType.CLIENT_METRICS)
    else:
        names = [*(str(broker) for broker in sorted(await cluster.brokers())), ""]
    document = []
    for name in names:
        entries = await _resource_configs(cluster, kind, name, everything=everything)
        if json:
            document.append(
                {"entityType": kind, "entityName": name or None, "configs": [_entry_json(entry) for entry in entries]}
            )
            continue
        if name:
            say(f"{'All' if everything else 'Dynamic'} configs for {kind[:-1]} {name} are:")
        else:
            say(f"Default configs for {kind} in the cluster are:")
        for entry in entries:
            synonyms = ", ".join(f"{s.source.name}:{s.name}={_null(s.value)}" for s in entry.synonyms)
            say(f"  {entry.name}={_null(entry.value)} sensitive={str(entry.sensitive).lower()} synonyms={{{synonyms}}}")
    if json:
        say_json(document)


def _entry_json(entry: ConfigEntry) -> dict[str, object]:
    return {
        "name": entry.name,
        "value": entry.value,
        "source": entry.source.name,
        "sensitive": entry.sensitive,
        "readOnly": entry.read_only,
        "synonyms": [{"name": s.name, "value": s.value, "source": s.source.name} for s in entry.synonyms],
    }


async def _describe_quotas(cluster: AsyncClient, entity: Entity, json: bool) -> None:
    named = dict(zip(entity.types, entity.names, strict=False))
    target = {_QUOTA_TYPES[kind]: name or None for kind, name in named.items()}
    others = [_QUOTA_TYPES[kind] for kind in entity.types if kind not in named]
    quotas = await admin.describe_quotas(cluster, target, any_name=others)
    scram: dict[str, list[tuple[ScramMechanism, int]]] = {}
    if USERS in entity.types and CLIENTS not in entity.types and "" not in entity.names:
        scram = await admin.describe_scram(cluster, list(entity.names) or None)
    if json:
        say_json(
            {
                "quotas": [{"entity": whom, "values": values} for whom, values in quotas],
                "scram": {user: {m.sasl_name: n for m, n in infos} for user, infos in scram.items()},
            }
        )
        return
    for whom, values in quotas:
        parts = [
            f"{label} '{whom[kind]}'" if whom[kind] is not None else f"the default {label}"
            for kind, label in _QUOTA_LABELS.items()
            if kind in whom
        ]
        settings = ", ".join(f"{name}={java_double(value)}" for name, value in values.items())
        say(f"Quota configs for {', '.join(parts)} are {settings}")
    for user, infos in scram.items():
        text = ", ".join(f"{mechanism.sasl_name}=iterations={count}" for mechanism, count in infos)
        say(f"SCRAM credential configs for user-principal '{user}' are {text}")


def _null(value: str | None) -> str:
    return "null" if value is None else value
