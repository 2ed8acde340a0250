"""`barnabas topics`: kafka-topics.sh."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import ZERO_TOPIC_ID, TopicPartition, format_uuid, parse_uuid
from barnabas.base.words import ConfigResourceType
from barnabas.cli._tool import (
    Bootstrap,
    CommandConfig,
    Json,
    UsageError,
    commas,
    exactly_one,
    matches,
    options,
    pairs,
    parse_number,
    run,
    say,
    say_fields,
    say_json,
    warn_of_unknown,
    warn_without_effect,
)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """The filters of `--describe`."""

    under_replicated: bool = False
    unavailable: bool = False
    under_min_isr: bool = False
    at_min_isr: bool = False
    overrides_only: bool = False

    @property
    def only_some_partitions(self) -> bool:
        return self.under_replicated or self.unavailable or self.under_min_isr or self.at_min_isr


def command(
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
    list_: Annotated[bool, typer.Option("--list", help="List all available topics.")] = False,
    create: Annotated[bool, typer.Option("--create", help="Create a new topic.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Delete a topic.")] = False,
    alter: Annotated[bool, typer.Option("--alter", help="Change the number of partitions.")] = False,
    describe: Annotated[bool, typer.Option("--describe", help="Show details of topics.")] = False,
    topic: Annotated[
        str | None,
        typer.Option("--topic", metavar="TOPIC", help="The topic; a regular expression, except with --create."),
    ] = None,
    topic_id: Annotated[str | None, typer.Option("--topic-id", metavar="ID", help="The topic to describe.")] = None,
    config: Annotated[
        list[str] | None, typer.Option("--config", metavar="NAME=VALUE", help="A setting of the topic to create.")
    ] = None,
    delete_config: Annotated[list[str] | None, typer.Option("--delete-config", hidden=True)] = None,
    partitions: Annotated[int | None, typer.Option("--partitions", help="How many partitions.")] = None,
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", help="Replicas of each partition.")
    ] = None,
    replica_assignment: Annotated[
        str | None,
        typer.Option("--replica-assignment", metavar="1:2,2:3,…", help="Brokers of each partition, the leader first."),
    ] = None,
    under_replicated_partitions: Annotated[
        bool, typer.Option("--under-replicated-partitions", help="Only partitions with replicas out of sync.")
    ] = False,
    unavailable_partitions: Annotated[
        bool, typer.Option("--unavailable-partitions", help="Only partitions without a leader.")
    ] = False,
    under_min_isr_partitions: Annotated[
        bool, typer.Option("--under-min-isr-partitions", help="Only partitions below their minimum ISR.")
    ] = False,
    at_min_isr_partitions: Annotated[
        bool, typer.Option("--at-min-isr-partitions", help="Only partitions at their minimum ISR.")
    ] = False,
    topics_with_overrides: Annotated[
        bool, typer.Option("--topics-with-overrides", help="Only topics with settings of their own.")
    ] = False,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Do nothing if the topic does not exist.")] = False,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Do nothing if the topic exists.")] = False,
    exclude_internal: Annotated[bool, typer.Option("--exclude-internal", help="Leave internal topics out.")] = False,
    partition_size_limit_per_response: Annotated[
        int | None, typer.Option("--partition-size-limit-per-response", hidden=True)
    ] = None,
    json: Json = False,
) -> None:
    """Create, list, describe, alter and delete topics."""
    action = exactly_one("Command", list=list_, describe=describe, create=create, alter=alter, delete=delete)
    filters = Filters(
        under_replicated=under_replicated_partitions,
        unavailable=unavailable_partitions,
        under_min_isr=under_min_isr_partitions,
        at_min_isr=at_min_isr_partitions,
        overrides_only=topics_with_overrides,
    )
    _check(
        action,
        filters,
        delete_config=delete_config,
        topic=topic,
        topic_id=topic_id,
        config=config,
        partitions=partitions,
        replication_factor=replication_factor,
        replica_assignment=replica_assignment,
        if_exists=if_exists,
        if_not_exists=if_not_exists,
        exclude_internal=exclude_internal,
    )
    warn_without_effect(
        "--partition-size-limit-per-response",
        partition_size_limit_per_response,
        "a broker sends all partitions of a topic in one response",
    )
    client = options(bootstrap_server, command_config)
    assignment = parse_assignment(replica_assignment) if replica_assignment else {}
    if action == "list":
        run(client, lambda cluster: _list(cluster, topic, exclude_internal, json))
    elif action == "create":
        assert topic is not None
        new = topic_admin.NewTopic(
            name=topic,
            partitions=partitions if partitions is not None else -1,
            replication_factor=replication_factor if replication_factor is not None else -1,
            assignment=assignment,
            configs=pairs(config or (), option="--config"),
        )
        run(client, lambda cluster: _create(cluster, new, if_not_exists))
    elif action == "alter":
        assert topic is not None and partitions is not None
        run(client, lambda cluster: _alter(cluster, topic, partitions, assignment, exclude_internal, if_exists))
    elif action == "delete":
        assert topic is not None
        run(client, lambda cluster: _delete(cluster, topic, exclude_internal, if_exists))
    else:
        wanted_id = parse_topic_id(topic_id) if topic_id else None
        run(client, lambda cluster: _describe(cluster, topic, wanted_id, exclude_internal, if_exists, filters, json))


def _check(
    action: str,
    filters: Filters,
    *,
    topic: str | None,
    topic_id: str | None,
    delete_config: list[str] | None,
    config: list[str] | None,
    partitions: int | None,
    replication_factor: int | None,
    replica_assignment: str | None,
    if_exists: bool,
    if_not_exists: bool,
    exclude_internal: bool,
) -> None:
    """Refuse options that do not go together, with Kafka's messages."""

    def only_with(given: bool, option: str, *actions: str) -> None:
        if given and action not in actions:
            raise UsageError(f'Option "[{option}]" can\'t be used with option "[{action}]"')

    if delete_config:
        raise UsageError(
            'Option "[delete-config]" can\'t be used with option "[bootstrap-server]" '
            "(to change settings of a topic use: barnabas configs --alter --entity-type topics)"
        )
    if action in ("create", "alter", "delete") and topic is None:
        raise UsageError('Missing required argument "[topic]"')
    if action == "describe" and if_exists and topic is None and topic_id is None:
        raise UsageError("--topic or --topic-id is required to describe a topic")
    if action == "alter":
        if config:
            raise UsageError(
                'Option combination "[bootstrap-server],[config]" can\'t be used with option "[alter]" '
                "(to change settings of a topic use: barnabas configs --alter --entity-type topics)"
            )
        if partitions is None:
            raise UsageError('Missing required argument "[partitions]"')
    only_with(config is not None, "config", "create")
    only_with(partitions is not None, "partitions", "create", "alter")
    only_with(replication_factor is not None, "replication-factor", "create")
    only_with(replica_assignment is not None, "replica-assignment", "create", "alter")
    only_with(filters.only_some_partitions or filters.overrides_only, "partition filters", "describe")
    only_with(if_exists, "if-exists", "alter", "delete", "describe")
    only_with(if_not_exists, "if-not-exists", "create")
    only_with(exclude_internal, "exclude-internal", "list", "describe")
    if action == "create" and replica_assignment and (partitions is not None or replication_factor is not None):
        raise UsageError('Option "[replica-assignment]" can\'t be used with "[partitions]" or "[replication-factor]"')
    if filters.only_some_partitions and filters.overrides_only:
        raise UsageError('Option "[topics-with-overrides]" can\'t be used with a filter of partitions')
    if partitions is not None and partitions < 1:
        raise UsageError("The partitions must be greater than 0")
    if replication_factor is not None and not 1 <= replication_factor <= 32767:
        raise UsageError("The replication factor must be between 1 and 32767 inclusive")


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


# -- actions ------------------------------------------------------------------------------------------------------------


async def _names(cluster: AsyncClient, pattern: str | None, exclude_internal: bool) -> dict[str, TopicInfo]:
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


async def _list(cluster: AsyncClient, pattern: str | None, exclude_internal: bool, json: bool) -> None:
    names = list(await _names(cluster, pattern, exclude_internal))
    if json:
        say_json(names)
    else:
        say("\n".join(names))


async def _create(cluster: AsyncClient, new: topic_admin.NewTopic, if_not_exists: bool) -> None:
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


async def _alter(
    cluster: AsyncClient,
    pattern: str,
    count: int,
    assignment: dict[int, list[int]],
    exclude_internal: bool,
    if_exists: bool,
) -> None:
    found = await _names(cluster, pattern, exclude_internal)
    _require(found, pattern, if_exists)
    if not found:
        return
    new_replicas = (
        {name: [assignment[i] for i in sorted(assignment)][len(info.partitions) :] for name, info in found.items()}
        if assignment
        else None
    )
    await topic_admin.create_partitions(cluster, dict.fromkeys(found, count), new_replicas)


async def _delete(cluster: AsyncClient, pattern: str, exclude_internal: bool, if_exists: bool) -> None:
    found = await _names(cluster, pattern, exclude_internal)
    _require(found, pattern, if_exists)
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


async def _describe(
    cluster: AsyncClient,
    pattern: str | None,
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
        found = await _names(cluster, pattern, exclude_internal)
        _require(found, pattern, if_exists)
    if not found:
        if json:
            say_json([])
        return
    descriptions = await _describe_all(cluster, found)
    alive = set(cluster.image.brokers)
    if json:
        say_json([_as_json(d, filters, alive) for d in descriptions if d.overrides or not filters.overrides_only])
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
    if filters.under_replicated:
        tests.append(lambda p: description.replication_factor(p) > len(p.isr))
    if filters.unavailable:
        tests.append(lambda p: p.leader not in alive)
    if filters.under_min_isr:
        tests.append(lambda p: p.leader < 0 or len(p.isr) < description.min_isr)
    if filters.at_min_isr:
        tests.append(lambda p: len(p.isr) == description.min_isr)
    return [partition for partition in info.partitions if any(test(partition) for test in tests)]


def _print(description: _Description, filters: Filters, alive: set[int]) -> None:
    info = description.info
    if not filters.only_some_partitions and (description.overrides or not filters.overrides_only):
        identity = f"\tTopicId: {format_uuid(info.topic_id)}" if info.topic_id != ZERO_TOPIC_ID else ""
        factor = description.replication_factor(info.partitions[0]) if info.partitions else 0
        overrides = ",".join(f"{name}={value}" for name, value in description.overrides.items())
        say_fields(
            f"Topic: {info.name}{identity}\tPartitionCount: {len(info.partitions)}"
            f"\tReplicationFactor: {factor}\tConfigs: {overrides}"
        )
    if filters.overrides_only:
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
