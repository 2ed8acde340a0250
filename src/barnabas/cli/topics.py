"""`barnabas topics`: kafka-topics.sh."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import ZERO_TOPIC_ID, TopicPartition, format_uuid, parse_uuid
from barnabas.base.words import ConfigResourceType
from barnabas.cli._command import UsageError
from barnabas.cli._output import say, say_fields, say_json
from barnabas.cli._parsing import commas, matches, pairs, parse_number, warn_of_unknown
from barnabas.cli.tool import CONNECTION, JSON, Option, Tool, at_least_one, excludes
from barnabas.client.admin import configs as config_admin
from barnabas.client.admin import partitions as partition_admin
from barnabas.client.admin import topics as topic_admin
from barnabas.client.admin.configs import ConfigEntry
from barnabas.client.admin.partitions import Reassignment
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.errors import BrokerRefused, UnsupportedVersion, check
from barnabas.client.image import PartitionInfo, TopicInfo

_COLLISION = (
    "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') could collide. "
    "To avoid issues it is best to use either, but not both."
)
_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


def parse_assignment(text: str) -> dict[int, list[int]]:
    """Parse `1:2,2:3`: the brokers of partition 0, of partition 1, …"""
    assignment: dict[int, list[int]] = {}
    for index, part in enumerate(text.split(",")):
        brokers = [parse_number(broker.strip(), what="--replica-assignment") for broker in part.split(":")]
        twice = sorted({broker for broker in brokers if brokers.count(broker) > 1})
        if twice:
            raise UsageError(f"Partition replica lists may not contain duplicate entries: {','.join(map(str, twice))}")
        assignment[index] = brokers
        if len(brokers) != len(assignment[0]):
            raise UsageError(f"Partition {index} has different replication factor: {brokers}")
    return assignment


def parse_topic_id(text: str) -> bytes:
    try:
        return parse_uuid(text)
    except ValueError:
        raise UsageError(f"--topic-id {text}: it is not a topic id, which has 22 characters of base64") from None


def _partitions(text: str) -> int:
    if (number := int(text)) < 1:
        raise UsageError("The partitions must be greater than 0")
    return number


def _replication_factor(text: str) -> int:
    if not 1 <= (number := int(text)) <= 32767:
        raise UsageError("The replication factor must be between 1 and 32767 inclusive")
    return number


_CONFIGS_TOOL = "to change settings of a topic use: barnabas configs --alter --entity-type topics"
_PARTITION_FILTERS = (
    "--under-replicated-partitions",
    "--unavailable-partitions",
    "--under-min-isr-partitions",
    "--at-min-isr-partitions",
)
TOOL = Tool(
    kafka="kafka-topics.sh",
    options=(
        *CONNECTION,
        Option("--topic", "The topic; a regular expression, except with --create."),
        Option("--topic-id", "The topic to describe.", parse_topic_id, metavar="ID"),
        Option("--config", "A setting of the topic.", metavar="NAME=VALUE", many=True, instead=_CONFIGS_TOOL),
        Option(
            "--delete-config",
            "Refused here, as by Kafka: use barnabas configs.",
            many=True,
            metavar="NAME",
            refused=f'Option "[delete-config]" can\'t be used with option "[bootstrap-server]" ({_CONFIGS_TOOL})',
        ),
        Option("--partitions", "How many partitions.", _partitions, metavar="N"),
        Option("--replication-factor", "Replicas of each partition.", _replication_factor, metavar="N"),
        Option(
            "--replica-assignment",
            "Brokers of each partition, the leader first.",
            parse_assignment,
            metavar="1:2,2:3,…",
            default={},
        ),
        Option("--under-replicated-partitions", "Only partitions with replicas out of sync.", bool),
        Option("--unavailable-partitions", "Only partitions without a leader.", bool),
        Option("--under-min-isr-partitions", "Only partitions below their minimum ISR.", bool),
        Option("--at-min-isr-partitions", "Only partitions at their minimum ISR.", bool),
        Option("--topics-with-overrides", "Only topics with settings of their own.", bool),
        Option("--if-exists", "Do nothing if the topic does not exist.", bool),
        Option("--if-not-exists", "Do nothing if the topic exists.", bool),
        Option("--exclude-internal", "Leave internal topics out.", bool),
        Option(
            "--partition-size-limit-per-response",
            metavar="N",
            no_effect="a broker sends all partitions of a topic in one response",
        ),
        JSON,
    ),
    examples=(
        "barnabas topics --create --topic orders",
        "barnabas topics --describe --topic 'orders.*'",
        "barnabas topics --alter --topic orders --partitions 6",
        "barnabas topics --delete --topic orders",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """The filters of `--describe`."""

    under_replicated_partitions: bool = False
    unavailable_partitions: bool = False
    under_min_isr_partitions: bool = False
    at_min_isr_partitions: bool = False
    topics_with_overrides: bool = False

    @property
    def only_some_partitions(self) -> bool:
        return (
            self.under_replicated_partitions
            or self.unavailable_partitions
            or self.under_min_isr_partitions
            or self.at_min_isr_partitions
        )


async def _names(cluster: AsyncClient, pattern: str | None, exclude_internal: bool = False) -> dict[str, TopicInfo]:
    """Return topics whose names match, sorted by name."""
    everything = await cluster.all_topics()
    return {
        name: everything[name]
        for name in sorted(everything)
        if not (exclude_internal and name in _INTERNAL) and (pattern is None or matches(pattern, name))
    }


def _require(found: Sequence[str] | dict[str, TopicInfo], topic: str | None, if_exists: bool) -> None:
    if topic and not found and not if_exists:
        raise UsageError(f"Topic '{topic}' does not exist as expected")


@TOOL.action("--list", "List all available topics.", ignores=("--topic-id",))
async def _list(cluster: AsyncClient, topic: str | None, exclude_internal: bool, json: bool) -> None:
    names = list(await _names(cluster, topic, exclude_internal))
    if json:
        say_json(names)
    else:
        say("\n".join(names))


@TOOL.action(
    "--create",
    "Create a new topic.",
    needs=("--topic",),
    ignores=("--topic-id",),
    rules=(excludes("--replica-assignment", "--partitions", "--replication-factor"),),
)
async def _create(
    cluster: AsyncClient,
    topic: str,
    config: Sequence[str],
    partitions: int | None,
    replication_factor: int | None,
    replica_assignment: dict[int, list[int]],
    if_not_exists: bool,
) -> None:
    new = topic_admin.NewTopic(
        name=topic,
        partitions=partitions or -1,
        replication_factor=replication_factor or -1,
        assignment=replica_assignment,
        configs=pairs(config, option="--config"),
    )
    warn_of_unknown(new.configs, of_topic=True)
    if "." in new.name or "_" in new.name:
        say(_COLLISION)
    try:
        await topic_admin.create_topics(cluster, [new])
    except BrokerRefused as refused:
        if refused.code is ErrorCode.TOPIC_ALREADY_EXISTS and if_not_exists:
            return
        raise
    say(f"Created topic {new.name}.")


@TOOL.action("--alter", "Change the number of partitions.", needs=("--topic", "--partitions"), ignores=("--topic-id",))
async def _alter(
    cluster: AsyncClient, topic: str, partitions: int, replica_assignment: dict[int, list[int]], if_exists: bool
) -> None:
    found = await _names(cluster, topic)
    _require(found, topic, if_exists)
    if not found:
        return
    new_replicas = None
    if replica_assignment:
        replicas = [replica_assignment[i] for i in sorted(replica_assignment)]
        new_replicas = {name: replicas[len(info.partitions) :] for name, info in found.items()}
    await topic_admin.create_partitions(cluster, dict.fromkeys(found, partitions), new_replicas)


@TOOL.action("--delete", "Delete a topic.", needs=("--topic",), ignores=("--topic-id",))
async def _delete(cluster: AsyncClient, topic: str, if_exists: bool) -> None:
    found = await _names(cluster, topic)
    _require(found, topic, if_exists)
    if not found:
        return
    for name, code in (await topic_admin.delete_topics(cluster, list(found))).items():
        check(code, f"topic {name}")


@dataclass(frozen=True, slots=True)
class _Description:
    """One topic with everything that `--describe` prints."""

    info: TopicInfo
    configs: list[ConfigEntry]
    reassignments: dict[TopicPartition, Reassignment]

    def reassignment(self, partition: PartitionInfo) -> Reassignment | None:
        return self.reassignments.get(TopicPartition(self.info.name, partition.index))

    def replication_factor(self, partition: PartitionInfo) -> int:
        """Return the replication factor; during a reassignment, the number of replicas before it."""
        moving = self.reassignment(partition)
        if moving and set(partition.replicas) & {*moving.adding, *moving.removing}:
            return len(moving.replicas) - len(moving.adding)
        return len(partition.replicas)

    @property
    def min_isr(self) -> int:
        return next((int(c.value) for c in self.configs if c.name == "min.insync.replicas" and c.value), 1)

    @property
    def overrides(self) -> dict[str, str | None]:
        return {config.name: config.value for config in self.configs if not config.is_default}


@TOOL.action(
    "--describe",
    "Show details of topics.",
    rules=(
        at_least_one(
            "--topic", "--topic-id", when="--if-exists", says="--topic or --topic-id is required to describe a topic"
        ),
        excludes("--topics-with-overrides", *_PARTITION_FILTERS),
    ),
)
async def _describe(
    cluster: AsyncClient,
    topic: str | None,
    topic_id: bytes | None,
    exclude_internal: bool,
    if_exists: bool,
    filters: Filters,
    json: bool,
) -> None:
    if topic_id is not None and topic_id != ZERO_TOPIC_ID:
        found = {n: t for n, t in (await _names(cluster, None, exclude_internal)).items() if t.topic_id == topic_id}
        if not found and not if_exists:
            raise UsageError(f"TopicId '{format_uuid(topic_id)}' does not exist as expected")
    else:
        found = await _names(cluster, topic, exclude_internal)
        _require(found, topic, if_exists)
    if not found:
        if json:
            say_json([])
        return
    descriptions = await _describe_all(cluster, found)
    alive = set(cluster.image.brokers)
    if json:
        say_json(
            [_as_json(d, filters, alive) for d in descriptions if d.overrides or not filters.topics_with_overrides]
        )
        return
    for description in descriptions:
        _print(description, filters, alive)


async def _describe_all(cluster: AsyncClient, found: dict[str, TopicInfo]) -> list[_Description]:
    configs = await config_admin.describe_configs(cluster, [(ConfigResourceType.TOPIC, name) for name in found])
    try:
        reassignments = await partition_admin.list_reassignments(cluster)
    except UnsupportedVersion:
        reassignments = {}
    except BrokerRefused as refused:
        if refused.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        reassignments = {}  # as in Kafka: a user without the right to see reassignments still sees the topic
    return [_Description(info, configs[ConfigResourceType.TOPIC, name], reassignments) for name, info in found.items()]


def _selected(description: _Description, filters: Filters, alive: set[int]) -> list[PartitionInfo]:
    info = description.info
    if not filters.only_some_partitions:
        return list(info.partitions)
    tests: list[Callable[[PartitionInfo], bool]] = []
    if filters.under_replicated_partitions:
        tests.append(lambda p: description.replication_factor(p) > len(p.isr))
    if filters.unavailable_partitions:
        tests.append(lambda p: p.leader not in alive)
    if filters.under_min_isr_partitions:
        tests.append(lambda p: p.leader < 0 or len(p.isr) < description.min_isr)
    if filters.at_min_isr_partitions:
        tests.append(lambda p: len(p.isr) == description.min_isr)
    return [partition for partition in info.partitions if any(test(partition) for test in tests)]


def _print(description: _Description, filters: Filters, alive: set[int]) -> None:
    info = description.info
    if not filters.only_some_partitions and (description.overrides or not filters.topics_with_overrides):
        identity = f"\tTopicId: {format_uuid(info.topic_id)}" if info.topic_id != ZERO_TOPIC_ID else ""
        factor = description.replication_factor(info.partitions[0]) if info.partitions else 0
        overrides = ",".join(f"{name}={value}" for name, value in description.overrides.items())
        say_fields(
            f"Topic: {info.name}{identity}\tPartitionCount: {len(info.partitions)}"
            f"\tReplicationFactor: {factor}\tConfigs: {overrides}"
        )
    if filters.topics_with_overrides:
        return
    for partition in _selected(description, filters, alive):
        leader = str(partition.leader) if partition.leader >= 0 else "none"
        moving = description.reassignment(partition)
        line = (
            f"\tTopic: {info.name}\tPartition: {partition.index}\tLeader: {leader}"
            f"\tReplicas: {commas(partition.replicas)}\tIsr: {commas(partition.isr)}"
        )
        if moving:
            line += f"\tAdding Replicas: {commas(moving.adding)}\tRemoving Replicas: {commas(moving.removing)}"
        # Eligible leader replicas (KIP-966) exist only in KRaft: both lists are empty, as Kafka's tool prints them.
        say_fields(line + "\tElr: \tLastKnownElr: ")


def _as_json(description: _Description, filters: Filters, alive: set[int]) -> dict[str, object]:
    info = description.info
    return {
        "topic": info.name,
        "topicId": format_uuid(info.topic_id),
        "partitionCount": len(info.partitions),
        "replicationFactor": description.replication_factor(info.partitions[0]) if info.partitions else 0,
        "internal": info.internal,
        "configs": description.overrides,
        "partitions": [
            {
                "partition": partition.index,
                "leader": partition.leader if partition.leader >= 0 else None,
                "leaderEpoch": partition.leader_epoch,
                "replicas": list(partition.replicas),
                "isr": list(partition.isr),
                "offlineReplicas": list(partition.offline),
                "addingReplicas": list(moving.adding) if (moving := description.reassignment(partition)) else [],
                "removingReplicas": list(moving.removing) if moving else [],
            }
            for partition in _selected(description, filters, alive)
        ],
    }
