"""Read from a source what a link would carry over, or could not. Reads only, through Kafka's protocol."""

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import (
    ACL_OPERATIONS,
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    AclOperation,
    ConfigResourceType,
    ConfigSource,
)
from barnabas.broker.features.link.settings import DEFAULT_TOPIC_CONFIGS, matching
from barnabas.client.admin.acls import Ace, ResourcePattern, describe_acls
from barnabas.client.admin.configs import Resource, describe_configs, describe_quotas, describe_scram, list_resources
from barnabas.client.admin.groups import GroupListing, list_groups
from barnabas.client.admin.partitions import describe_log_dirs, list_offsets
from barnabas.client.admin.tokens import describe_tokens
from barnabas.client.admin.transactions import list_transactions
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.errors import BrokerRefused, ClientError, UnsupportedVersion
from barnabas.client.exchange import BrokerVersions
from barnabas.client.fetching import ConsumerConfig, fetch_one
from barnabas.client.image import TopicInfo
from barnabas.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from barnabas.wire.record_batch import MAGIC_AT

T = TypeVar("T")

#: Value of authorized operations if the broker did not report them.
_NOT_SAID: Final = -(2**31)
#: Large enough to measure one connection's rate, small enough not to burden the source.
_SAMPLE_BYTES: Final = 32 << 20
_SAMPLE_S: Final = 3.0
#: How many topics are probed at the same time.
_PROBES: Final = 8


@dataclass(slots=True)
class SourceTopic:
    info: TopicInfo
    #: Settings of the topic itself, by name. None: the given user may not see them.
    settings: dict[str, str] | None = None
    #: The operations that the given user may do. None: the broker does not report them.
    operations: frozenset[AclOperation] | None = None
    #: First and next offset, by partition.
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)
    #: Partitions whose first records are in remote storage.
    remote: int = 0
    #: Bytes on the leaders' disks. None: the given user may not see them, or the service hides them.
    size_bytes: int | None = None
    #: Format version of the oldest batch; -1 if no batch was read.
    magic: int = -1
    #: Why the first records cannot be read; empty if they can.
    unreadable: str = ""

    @property
    def partitions(self) -> int:
        return len(self.info.partitions)


@dataclass(slots=True)
class Source:
    """Everything that was read. A part that could not be read is None, and `unread` has the reason."""

    cluster_id: str = ""
    brokers: dict[int, BrokerVersions] = field(default_factory=dict)
    topics: dict[str, SourceTopic] = field(default_factory=dict)
    #: The settings that mirrors copy.
    topic_configs: Sequence[str] = DEFAULT_TOPIC_CONFIGS
    groups: list[GroupListing] | None = None
    acls: dict[ResourcePattern, list[Ace]] | None = None
    quotas: int | None = None
    scram_users: list[str] | None = None
    tokens: int | None = None
    client_metrics: list[str] | None = None
    #: Groups that have their own settings.
    group_settings: list[str] | None = None
    open_transactions: list[str] | None = None
    cluster_operations: frozenset[AclOperation] | None = None
    #: The reason by part, for parts that could not be read.
    unread: dict[str, str] = field(default_factory=dict)
    #: Rate of one connection while it read the largest partition. None: too little data.
    bytes_per_s: float | None = None

    @property
    def versions(self) -> BrokerVersions:
        """Return the API versions of one broker; they rarely differ between brokers."""
        return next(iter(self.brokers.values()))

    @property
    def size_bytes(self) -> int | None:
        sizes = [topic.size_bytes for topic in self.topics.values()]
        return sum(size for size in sizes if size is not None) if any(size is not None for size in sizes) else None


async def look(cluster: AsyncClient, *, topics: str, groups: str) -> Source:
    """Read the source. `topics` and `groups` are regular expressions for whole names."""
    source = Source()
    for broker_id in sorted(await cluster.brokers()):
        source.brokers[broker_id] = (await cluster.connection(broker_id)).versions
    source.cluster_id = cluster.image.cluster_id or ""
    every = await cluster.all_topics()
    names = sorted(name for name, info in every.items() if not info.internal)
    source.topics = {name: SourceTopic(every[name]) for name in matching(topics, names)}
    await _look_at_topics(cluster, source)
    await _look_around(cluster, source, groups)
    source.bytes_per_s = await _read_rate(cluster, source)
    return source


async def _try(source: Source, what: str, part: Awaitable[T]) -> T | None:
    """Return None if the source lacks the API or refuses it. The check then reports the gap and continues."""
    try:
        return await part
    except ClientError as error:
        source.unread[what] = _reason(error)
    return None


async def _try_feature(
    source: Source, what: str, part: Awaitable[T], nothing: T, off: ErrorCode | None = None
) -> T | None:
    """Like `_try`, but return `nothing` if the source lacks the API or has the feature switched off (error `off`)."""
    try:
        return await part
    except UnsupportedVersion:
        return nothing
    except ClientError as error:
        if isinstance(error, BrokerRefused) and error.code is off:
            return nothing
        source.unread[what] = _reason(error)
    return None


def _reason(error: ClientError) -> str:
    """Name the error. Kafka's message for a refusal is only a dump of the request."""
    return error.code.name if isinstance(error, BrokerRefused) else str(error)


# -- topics -------------------------------------------------------------------------------------------------------------


async def _look_at_topics(cluster: AsyncClient, source: Source) -> None:
    await _settings(cluster, source)
    await _operations(cluster, source)
    await _offsets(cluster, source)
    await _sizes(cluster, source)
    gate = asyncio.Semaphore(_PROBES)
    await asyncio.gather(*(_probe(cluster, topic, gate) for topic in source.topics.values()))


async def _settings(cluster: AsyncClient, source: Source) -> None:
    resources = [(ConfigResourceType.TOPIC, name) for name in source.topics]
    refused: dict[Resource, BrokerRefused] = {}
    described = await _try(source, "topic settings", describe_configs(cluster, resources, refused=refused)) or {}
    for (_, name), entries in described.items():
        source.topics[name].settings = {
            entry.name: entry.value
            for entry in entries
            if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG and entry.value is not None
        }


async def _operations(cluster: AsyncClient, source: Source) -> None:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in source.topics],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    response = await cluster.ask_any(request, MetadataResponse)
    for topic in response.topics:
        if topic.name in source.topics:
            source.topics[topic.name].operations = _allowed(topic.topic_authorized_operations)
    described = await _try(
        source,
        "rights on the cluster",
        cluster.ask_any(DescribeClusterRequest(include_cluster_authorized_operations=True), DescribeClusterResponse),
    )
    if described is not None and not described.error_code:
        source.cluster_operations = _allowed(described.cluster_authorized_operations)


def _allowed(bits: int) -> frozenset[AclOperation] | None:
    if bits == _NOT_SAID:
        return None
    return frozenset(operation for operation in ACL_OPERATIONS if bits >> operation & 1)


def _led(source: Source) -> list[TopicPartition]:
    return [
        TopicPartition(name, each.index)
        for name, topic in source.topics.items()
        for each in topic.info.partitions
        if each.leader >= 0
    ]


async def _offsets(cluster: AsyncClient, source: Source) -> None:
    partitions = _led(source)
    starts = await _try(source, "first offsets", list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))) or {}
    ends = await _try(source, "last offsets", list_offsets(cluster, dict.fromkeys(partitions, LATEST))) or {}
    for partition in starts.keys() & ends.keys():
        start, end = starts[partition], ends[partition]
        if not start.error and not end.error:
            source.topics[partition.topic].offsets[partition.partition] = (start.offset, end.offset)
    tiered = [
        each for each in partitions if (source.topics[each.topic].settings or {}).get("remote.storage.enable") == "true"
    ]
    if not tiered:
        return
    local = await _try(source, "remote storage", list_offsets(cluster, dict.fromkeys(tiered, EARLIEST_LOCAL))) or {}
    for partition, listed in local.items():
        topic = source.topics[partition.topic]
        if not listed.error and listed.offset > topic.offsets.get(partition.partition, (listed.offset, 0))[0]:
            topic.remote += 1


async def _sizes(cluster: AsyncClient, source: Source) -> None:
    leaders = {
        (name, each.index): each.leader for name, topic in source.topics.items() for each in topic.info.partitions
    }
    for broker_id in source.brokers:
        for folder in await _try(source, "sizes", describe_log_dirs(cluster, broker_id)) or ():
            for described in folder.topics:
                for part in described.partitions:
                    if leaders.get((described.name, part.partition_index)) == broker_id and not part.is_future_key:
                        topic = source.topics[described.name]
                        topic.size_bytes = (topic.size_bytes or 0) + part.partition_size


async def _probe(cluster: AsyncClient, topic: SourceTopic, gate: asyncio.Semaphore) -> None:
    """Read the first records of a partition. That reveals their format, missing rights, and unreadable remote storage."""
    index, (start, _) = next(((i, at) for i, at in topic.offsets.items() if at[0] < at[1]), (-1, (0, 0)))
    if index < 0:
        return
    async with gate:
        config = ConsumerConfig(partition_max_bytes=1, fetch_max_wait_ms=5000)
        try:
            fetched = await fetch_one(cluster, config, TopicPartition(topic.info.name, index), start)
        except ClientError as error:
            topic.unreadable = str(error)
            return
    if len(fetched.data) > MAGIC_AT:
        topic.magic = fetched.data[MAGIC_AT]


async def _read_rate(cluster: AsyncClient, source: Source) -> float | None:
    """Return the bytes per second of one connection; None if there is too little to read."""
    readable = [topic for topic in source.topics.values() if not topic.unreadable and topic.size_bytes]
    largest = max(readable, key=lambda topic: topic.size_bytes or 0, default=None)
    if largest is None or (largest.size_bytes or 0) < _SAMPLE_BYTES // 8:
        return None
    index, (position, end) = max(largest.offsets.items(), key=lambda each: each[1][1] - each[1][0])
    config = ConsumerConfig(partition_max_bytes=8 << 20, fetch_max_bytes=8 << 20)
    read, began_s = 0, time.monotonic()
    while position < end and read < _SAMPLE_BYTES and time.monotonic() - began_s < _SAMPLE_S:
        fetched = await fetch_one(cluster, config, TopicPartition(largest.info.name, index), position)
        if fetched.next_position == position:
            break
        read, position = read + len(fetched.data), fetched.next_position
    return read / (time.monotonic() - began_s) if read else None


# -- all else -----------------------------------------------------------------------------------------------------------


async def _look_around(cluster: AsyncClient, source: Source, groups: str) -> None:
    listed = await _try(source, "groups", list_groups(cluster))
    if listed is not None:
        wanted = set(matching(groups, [group.group_id for group in listed]))
        source.groups = [group for group in listed if group.group_id in wanted]
    source.acls = await _try_feature(source, "ACLs", describe_acls(cluster), {}, ErrorCode.SECURITY_DISABLED)
    quotas = await _try_feature(source, "quotas", describe_quotas(cluster, {}, strict=False), [])
    source.quotas = None if quotas is None else len(quotas)
    # An empty list means all users, as None does. With None, Kafka 4.3 fails while refusing a user who lacks the right.
    scram = await _try_feature(source, "SCRAM users", describe_scram(cluster, []), {})
    source.scram_users = None if scram is None else sorted(scram)
    tokens = await _try_feature(
        source, "delegation tokens", describe_tokens(cluster), [], ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    )
    source.tokens = None if tokens is None else len(tokens)
    metrics = list_resources(cluster, ConfigResourceType.CLIENT_METRICS)
    source.client_metrics = await _try_feature(source, "client metrics", metrics, [])
    settings = list_resources(cluster, ConfigResourceType.GROUP)
    source.group_settings = await _try_feature(source, "settings of groups", settings, [])
    transactions = await _try_feature(source, "open transactions", list_transactions(cluster, states=["Ongoing"]), [])
    source.open_transactions = None if transactions is None else [each.transactional_id for each in transactions]


# -- the cluster that it would come to ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Target:
    cluster_id: str
    brokers: dict[int, BrokerVersions]
    topics: Mapping[str, TopicInfo]
    #: Groups with members.
    active_groups: Sequence[str]
    #: Free bytes by broker; None if the broker does not report them.
    usable_bytes: dict[int, int | None]


async def look_at_target(cluster: AsyncClient) -> Target:
    brokers = {each: (await cluster.connection(each)).versions for each in sorted(await cluster.brokers())}
    usable: dict[int, int | None] = {}
    for broker_id in brokers:
        folders = await describe_log_dirs(cluster, broker_id, [])
        sizes = [folder.usable_bytes for folder in folders if not folder.error_code and folder.usable_bytes >= 0]
        usable[broker_id] = sum(sizes) if sizes else None
    groups = [group.group_id for group in await list_groups(cluster) if group.state not in ("Empty", "Dead")]
    return Target(cluster.image.cluster_id or "", brokers, await cluster.all_topics(), groups, usable)
