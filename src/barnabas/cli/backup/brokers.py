"""Read and write a cluster's metadata through Kafka's protocol, for any cluster that speaks it.

The protocol has no ids for new topics, no SCRAM verifiers, no passwords in settings, no producer ids. Only it has offsets.
"""

from collections.abc import Iterable, Mapping

from barnabas.base.errors import BarnabasError, ErrorCode
from barnabas.base.ids import TopicPartition, format_uuid
from barnabas.base.words import AlterOperation, ConfigResourceType, ConfigSource
from barnabas.broker.zookeeper_client.paths import DEFAULT_ENTITY
from barnabas.cli.backup.document import Document, Entity, Partition, Topic, entity
from barnabas.client.admin.acls import Ace, ResourcePattern, create_acls, describe_acls
from barnabas.client.admin.configs import ConfigEntry, alter_configs, alter_quotas, describe_configs, describe_quotas
from barnabas.client.admin.configs import describe_scram as describe_scram_users
from barnabas.client.admin.groups import CommittedOffset, commit_offsets, committed_offsets, list_groups
from barnabas.client.admin.tokens import describe_tokens
from barnabas.client.admin.topics import NewTopic, create_topics
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.errors import BrokerRefused
from barnabas.client.image import NO_TOPIC_ID

#: Errors of a cluster in which the feature is switched off.
_SWITCHED_OFF = (
    ErrorCode.SECURITY_DISABLED,
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED,
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
    ErrorCode.UNSUPPORTED_VERSION,
)


class OffsetsRefused(BarnabasError):
    """A group refused its offsets."""


async def read(cluster: AsyncClient) -> Document:
    """Read everything except offsets."""
    image = await cluster.refresh(None)
    found = Document(cluster_id=image.cluster_id)
    settings = await _settings_of_topics(cluster, list(image.topics))
    for name, info in image.topics.items():
        partitions = tuple(Partition(each.replicas, each.isr, max(0, each.leader_epoch)) for each in info.partitions)
        topic_id = format_uuid(info.topic_id) if info.topic_id != NO_TOPIC_ID else None
        found.topics[name] = Topic(name, topic_id, partitions, settings.get(name, {}))
    await _read_brokers(cluster, found, sorted(image.brokers))
    quotas = await describe_quotas(cluster, {}, strict=False)
    found.quotas = {entity(named): values for named, values in quotas}
    try:
        found.acls = {pattern: frozenset(aces) for pattern, aces in (await describe_acls(cluster)).items()}
    except BrokerRefused as refused:
        if refused.code not in _SWITCHED_OFF:
            raise
    await _add_left_out(cluster, found)
    return found


async def _settings_of_topics(cluster: AsyncClient, topics: list[str]) -> dict[str, dict[str, str]]:
    if not topics:
        return {}
    described = await describe_configs(cluster, [(ConfigResourceType.TOPIC, name) for name in topics])
    return {name: _set_in(entries, ConfigSource.DYNAMIC_TOPIC_CONFIG) for (_, name), entries in described.items()}


def _set_in(entries: Iterable[ConfigEntry], source: ConfigSource) -> dict[str, str]:
    return {each.name: each.value for each in entries if each.source is source and each.value is not None}


async def _read_brokers(cluster: AsyncClient, found: Document, ids: list[int]) -> None:
    sources = {"": ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG}
    sources |= {str(broker): ConfigSource.DYNAMIC_BROKER_CONFIG for broker in ids}
    resources = [(ConfigResourceType.BROKER, name) for name in sources]
    secret = 0
    for (_, name), entries in (await describe_configs(cluster, resources)).items():
        secret += sum(each.source is sources[name] and each.sensitive for each in entries)
        if own := _set_in(entries, sources[name]):
            found.brokers[name or DEFAULT_ENTITY] = own
    if secret:
        found.left_out.append(f"{secret} passwords among the settings of brokers: brokers do not return them")
    replicas = {broker for topic in found.topics.values() for each in topic.partitions for broker in each.replicas}
    if away := sorted(replicas - set(ids)):
        found.left_out.append(f"settings of brokers that are down: {', '.join(map(str, away))}")


async def _add_left_out(cluster: AsyncClient, found: Document) -> None:
    found.left_out.append("where producer ids begin: brokers do not return it")
    if users := await describe_scram_users(cluster, None):
        number = sum(map(len, users.values()))
        found.left_out.append(
            f"{number} SCRAM verifiers of {len(users)} users: brokers do not return them; see --zookeeper"
        )
    try:
        tokens = len(await describe_tokens(cluster, None))
    except BrokerRefused as refused:
        if refused.code not in _SWITCHED_OFF:
            raise
        return
    if tokens:
        found.left_out.append(f"{tokens} delegation tokens: they are short-lived, and their owners ask for new ones")


async def read_offsets(cluster: AsyncClient) -> dict[str, dict[TopicPartition, CommittedOffset]]:
    groups = [each.group_id for each in await list_groups(cluster)]
    found = {group: await committed_offsets(cluster, group) for group in groups}
    return {group: offsets for group, offsets in found.items() if offsets}


async def commit(cluster: AsyncClient, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
    """Commit as an administrator, which a group accepts only while it has no members."""
    # Omit the leader epochs: in another cluster they are wrong, and a consumer would look for a truncation.
    plain = {where: CommittedOffset(committed.offset, committed.metadata) for where, committed in offsets.items()}
    outcome = await commit_offsets(cluster, group, plain)
    failed = {where: code for where, code in outcome.items() if code is not ErrorCode.NONE}
    if failed:
        where, code = next(iter(failed.items()))
        hint = "; it has members: stop them first" if code is ErrorCode.UNKNOWN_MEMBER_ID else ""
        raise OffsetsRefused(f"{len(failed)} of {len(offsets)} offsets were refused, {where}: {code.name}{hint}")


class BrokersTarget:
    """Writes through Kafka's protocol."""

    def __init__(self, cluster: AsyncClient, *, spread: bool) -> None:
        self._cluster = cluster
        self._spread = spread

    async def set_broker(self, name: str, settings: Mapping[str, str]) -> None:
        await self._alter(ConfigResourceType.BROKER, "" if name == DEFAULT_ENTITY else name, settings)

    async def set_topic(self, name: str, settings: Mapping[str, str]) -> None:
        await self._alter(ConfigResourceType.TOPIC, name, settings)

    async def _alter(self, kind: ConfigResourceType, name: str, settings: Mapping[str, str]) -> None:
        changes: dict[str, tuple[AlterOperation, str | None]] = {
            setting: (AlterOperation.SET, value) for setting, value in settings.items()
        }
        await alter_configs(self._cluster, kind, name, changes)

    async def set_quotas(self, entity: Entity, values: Mapping[str, float]) -> None:
        await alter_quotas(self._cluster, dict(entity), values)

    async def add_acls(self, pattern: ResourcePattern, aces: Iterable[Ace]) -> None:
        await create_acls(self._cluster, pattern, sorted(aces))

    async def create_topic(self, topic: Topic) -> None:
        replicas = {number: each.replicas for number, each in enumerate(topic.partitions)}
        new = NewTopic(
            name=topic.name,
            partitions=len(topic.partitions),
            replication_factor=max(map(len, replicas.values())),
            assignment={} if self._spread else replicas,
            configs=topic.settings,
        )
        await create_topics(self._cluster, [new])
