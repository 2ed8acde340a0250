"""`barnabas migrate check`: report whether a running Apache Kafka cluster can move to barnabas, broker by broker, and back.

Asks the brokers only; changes nothing. Exits with 1 if a problem prevents the migration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.catalog import TOPIC_SETTINGS, broker_setting
from barnabas.base.errors import BarnabasError
from barnabas.base.words import ConfigResourceType, ConfigSource
from barnabas.broker.security.setup import ACL_AUTHORIZER
from barnabas.cli._output import say, say_json
from barnabas.cli.tool import CONNECTION, JSON, Tool
from barnabas.client.admin.configs import ConfigEntry, describe_configs
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.exchange import BrokerVersions
from barnabas.client.image import TopicInfo
from barnabas.wire.versions import api_named

#: Version of Fetch in Kafka 3.9, whose controller requests and records barnabas uses.
FETCH_OF_3_9: Final = 17
#: Settings that each new barnabas broker gets its own value for; the old brokers' values do not matter.
_NEVER_CHECKED: Final = frozenset({"log.dirs", "log.dir"})


@dataclass(frozen=True, slots=True)
class Finding:
    #: `blocks`: solve it before the first broker moves. `note`: be aware of it.
    level: str
    about: str
    text: str


TOOL = Tool(
    note="See [migration](migration.md).",
    options=(*CONNECTION, JSON),
    examples=("barnabas migrate check --bootstrap-server kafka-1:9092",),
)


@TOOL.action("check", "Look at a running Kafka cluster, and say what would not work with barnabas brokers.")
async def _check(cluster: AsyncClient, json: bool) -> int:
    findings = await check_cluster(cluster)
    blocked = any(finding.level == "blocks" for finding in findings)
    if json:
        rows = [{"level": each.level, "about": each.about, "text": each.text} for each in findings]
        say_json({"ready": not blocked, "findings": rows})
    else:
        for each in findings:
            say(f"{each.level}: {each.about}: {each.text}")
        say("Something stands in the way of a migration." if blocked else "Nothing stands in the way of a migration.")
    return int(blocked)


async def check_cluster(cluster: AsyncClient) -> list[Finding]:
    found: list[Finding] = []
    brokers = sorted(await cluster.brokers())
    for broker_id in brokers:
        versions = (await cluster.connection(broker_id)).versions
        resource = (ConfigResourceType.BROKER, str(broker_id))
        entries = (await describe_configs(cluster, [resource], synonyms=True))[resource]
        found += check_versions(f"broker {broker_id}", versions)
        found += check_broker_settings(f"broker {broker_id}", entries)
    topics = dict((await cluster.refresh(None)).topics)
    resources = [(ConfigResourceType.TOPIC, name) for name in topics]
    configs = await describe_configs(cluster, resources) if resources else {}
    for name, info in sorted(topics.items()):
        found += check_topic(info, configs.get((ConfigResourceType.TOPIC, name), []), broker_count=len(brokers))
    return found


def check_versions(about: str, versions: BrokerVersions) -> list[Finding]:
    if api_named("LeaderAndIsr").key not in versions.apis:
        return [Finding("blocks", about, "runs in KRaft mode: bring it in through a link (barnabas link check)")]
    fetch = versions.apis.get(api_named("Fetch").key)
    if fetch is None or fetch.max_version < FETCH_OF_3_9:
        return [Finding("blocks", about, "is older than Kafka 3.9: upgrade it to 3.9 first")]
    return []


def check_broker_settings(about: str, entries: Sequence[ConfigEntry]) -> list[Finding]:
    """Check the settings of a broker, from its file or set dynamically, as a barnabas broker would."""
    own = [entry for entry in entries if _is_set(entry)]
    found = []
    for entry in own:
        setting = broker_setting(entry.name)
        if setting is None:
            found.append(Finding("note", about, f"{entry.name} is unknown and would be ignored"))
        elif setting.no_effect:
            found.append(Finding("note", about, f"{entry.name} has no effect here: {setting.no_effect}"))
    values = {entry.name: entry.value for entry in own if entry.value is not None}
    found += _check_special(about, values)
    try:
        BrokerConfig.parse({name: value for name, value in values.items() if broker_setting(name) is not None})
    except BarnabasError as error:
        found.append(Finding("blocks", about, f"a barnabas broker refuses its settings: {error}"))
    return found


def _is_set(entry: ConfigEntry) -> bool:
    return entry.source not in (ConfigSource.DEFAULT_CONFIG, ConfigSource.UNKNOWN) and entry.name not in _NEVER_CHECKED


def _check_special(about: str, values: Mapping[str, str]) -> list[Finding]:
    found = []
    authorizer = values.get("authorizer.class.name", "")
    if authorizer and authorizer != ACL_AUTHORIZER:
        found.append(
            Finding("blocks", about, f"authorizer.class.name={authorizer} is not supported; use {ACL_AUTHORIZER}")
        )
    if values.get("remote.log.storage.system.enable") == "true":
        found.append(Finding("blocks", about, "tiered storage is on: what its plugin keeps cannot be read here"))
    for name, value in values.items():
        if name.endswith("sasl.enabled.mechanisms") and "GSSAPI" in value.split(","):
            found.append(Finding("blocks", about, f"{name}={value}: GSSAPI (Kerberos) is not supported"))
    return found


def check_topic(info: TopicInfo, entries: Sequence[ConfigEntry], *, broker_count: int) -> list[Finding]:
    about = f"topic {info.name}"
    found = []
    for entry in entries:
        if entry.name == "remote.storage.enable" and entry.value == "true":
            found.append(
                Finding("blocks", about, "is in tiered storage, in the layout of a plugin, which cannot be read here")
            )
        elif entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG and entry.name not in TOPIC_SETTINGS:
            found.append(Finding("note", about, f"{entry.name} is unknown and would be ignored"))
    if any(part.leader < 0 for part in info.partitions):
        found.append(Finding("blocks", about, "has partitions without a leader"))
    if any(set(part.isr) != set(part.replicas) for part in info.partitions):
        found.append(Finding("blocks", about, "has replicas that are not in sync: wait until they are"))
    if broker_count > 1 and any(len(part.replicas) == 1 for part in info.partitions):
        found.append(
            Finding("note", about, "has partitions with one replica: they are not available while their broker changes")
        )
    return found
