"""Consumer groups: list, describe, offsets, delete."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from barnabas.base.errors import RETRIABLE, ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.client.admin.partitions import by_topic
from barnabas.client.core import COORDINATION, ClientCore
from barnabas.client.errors import BrokerRefused, ClientError, UnsupportedVersion, check
from barnabas.client.image import NO_TOPIC_ID
from barnabas.wire import codec
from barnabas.wire.messages import consumer_group_describe as modern
from barnabas.wire.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from barnabas.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from barnabas.wire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from barnabas.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from barnabas.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

CLASSIC = "Classic"
CONSUMER = "Consumer"
#: Upper bound of groups times partitions in one request.
_OFFSETS_AT_ONCE = 10_000

#: States of a group that is about to assign its partitions again, in either protocol.
REBALANCING: Final = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")


@dataclass(frozen=True, slots=True)
class GroupListing:
    group_id: str
    protocol_type: str
    #: Empty if the broker is too old to report it.
    state: str
    #: `Classic`, `Consumer`, …
    type: str


async def list_groups(
    cluster: ClientCore, *, states: Sequence[str] = (), types: Sequence[str] = ()
) -> list[GroupListing]:
    """List the groups of all brokers, sorted by id. Each broker knows only the groups that it coordinates."""
    found: dict[str, GroupListing] = {}
    for broker_id in sorted(await cluster.brokers()):
        request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))

        async def once(broker_id: int = broker_id, request: ListGroupsRequest = request) -> ListGroupsResponse:
            response = await cluster.ask(broker_id, request, ListGroupsResponse)
            check(response.error_code)
            return response

        for group in (await cluster.retrying("ListGroups", once)).groups:
            kind = group.group_type[:1].upper() + group.group_type[1:] if group.group_type else CLASSIC
            found[group.group_id] = GroupListing(group.group_id, group.protocol_type, group.group_state, kind)
    return [found[name] for name in sorted(found)]


@dataclass(frozen=True, slots=True)
class GroupMember:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    group_id: str
    #: As Kafka's tools print it: `Stable`, `Empty`, `Dead`, `PreparingRebalance`, …
    state: str
    type: str
    protocol_type: str
    assignor: str
    members: tuple[GroupMember, ...]
    coordinator_id: int
    #: No group has this id.
    missing: bool = False


async def describe_group(cluster: ClientCore, group_id: str) -> GroupDescription:
    """Describe a group of either kind: ConsumerGroupDescribe for a KIP-848 group, DescribeGroups for a classic one."""
    try:
        described = await cluster.ask_coordinator(
            group_id,
            modern.ConsumerGroupDescribeRequest(group_ids=[group_id]),
            modern.ConsumerGroupDescribeResponse,
            error_of=lambda response: response.groups[0].error_code,
        )
    except UnsupportedVersion:
        return await _describe_classic(cluster, group_id)
    group = described.groups[0]
    if group.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
        return await _describe_classic(cluster, group_id)
    check(group.error_code, group.error_message)
    return GroupDescription(
        group_id=group_id,
        state=group.group_state,
        type=CONSUMER,
        protocol_type="consumer",
        assignor=group.assignor_name,
        members=tuple(_modern_member(member) for member in group.members),
        coordinator_id=await cluster.coordinator(group_id),
    )


def _modern_member(member: modern.Member) -> GroupMember:
    return GroupMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.client_host,
        assignment=tuple(
            TopicPartition(topic.topic_name, index)
            for topic in member.assignment.topic_partitions
            for index in topic.partitions
        ),
    )


async def _describe_classic(cluster: ClientCore, group_id: str) -> GroupDescription:
    response = await cluster.ask_coordinator(
        group_id,
        DescribeGroupsRequest(groups=[group_id]),
        DescribeGroupsResponse,
        error_of=lambda answer: answer.groups[0].error_code,
    )
    group = response.groups[0]
    # From version 6 on a group that does not exist is an error; before, and in 3.9, it is a dead group.
    missing = group.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    if not missing:
        check(group.error_code, group.error_message)
    return GroupDescription(
        group_id=group_id,
        state="Dead" if missing else group.group_state,
        type=CLASSIC,
        protocol_type=group.protocol_type,
        assignor=group.protocol_data,
        members=_classic_members(group),
        coordinator_id=await cluster.coordinator(group_id),
        missing=missing or group.group_state == "Dead",
    )


def _classic_members(group: DescribedGroup) -> tuple[GroupMember, ...]:
    return tuple(
        GroupMember(
            member_id=member.member_id,
            instance_id=member.group_instance_id,
            client_id=member.client_id,
            host=member.client_host,
            assignment=decode_assignment(member.member_assignment) if group.protocol_type == "consumer" else (),
        )
        for member in group.members
    )


async def member_counts(cluster: ClientCore, coordinator_id: int, kind: str, groups: Sequence[str]) -> dict[str, int]:
    """Return the member counts of these groups, which have one kind and one coordinator. Unknown groups are left out."""
    if kind == CONSUMER:
        found = await cluster.ask(
            coordinator_id,
            modern.ConsumerGroupDescribeRequest(group_ids=list(groups)),
            modern.ConsumerGroupDescribeResponse,
        )
        return {group.group_id: len(group.members) for group in found.groups if not group.error_code}
    described = await cluster.ask(coordinator_id, DescribeGroupsRequest(groups=list(groups)), DescribeGroupsResponse)
    return {group.group_id: len(group.members) for group in described.groups if not group.error_code}


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Decode the partitions of a classic group's member; empty while the group rebalances."""
    if not data:
        return ()
    assignment, _ = codec.decode_versioned(ConsumerProtocolAssignment, data, newest_known=True)
    return tuple(
        TopicPartition(topic.topic, index) for topic in assignment.assigned_partitions for index in topic.partitions
    )


# -- offsets ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    offset: int
    metadata: str = ""
    leader_epoch: int = -1


async def committed_offsets(
    cluster: ClientCore,
    group_id: str,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    require_stable: bool = False,
) -> dict[TopicPartition, CommittedOffset]:
    """Return the offsets that the group has committed for these partitions, or for all. Partitions without one are left out."""
    wanted = None if partitions is None else by_topic(partitions)
    is_id_unknown = False

    def error_of(response: OffsetFetchResponse) -> int:
        return response.groups[0].error_code if response.groups else response.error_code

    async def once() -> dict[TopicPartition, CommittedOffset]:
        nonlocal is_id_unknown
        if is_id_unknown and wanted is not None:
            # A topic may have been deleted and created again: by name alone the request would get the old topic's offsets.
            await cluster.refresh(wanted.keys())
        request = OffsetFetchRequest(
            group_id=group_id,
            topics=None
            if wanted is None
            else [OffsetFetchRequestTopic(name=name, partition_indexes=indexes) for name, indexes in wanted.items()],
            groups=[_of_group(cluster, group_id, wanted)],
            require_stable=require_stable,
        )
        response = await cluster.ask_coordinator(group_id, request, OffsetFetchResponse, error_of=error_of)
        check(error_of(response))
        try:
            return _committed(response, _names(request.groups[0].topics or ()))
        except BrokerRefused as refusal:
            is_id_unknown = refusal.code is ErrorCode.UNKNOWN_TOPIC_ID
            raise

    return await cluster.retrying("OffsetFetch", once)


async def committed_offsets_of(
    cluster: ClientCore, group_ids: Sequence[str], partitions: Iterable[TopicPartition]
) -> dict[str, dict[TopicPartition, CommittedOffset] | BrokerRefused]:
    """Return the committed offsets of many groups, or why one cannot be read: one request per coordinator (KIP-709)."""
    wanted = by_topic(partitions)
    at_once = max(1, _OFFSETS_AT_ONCE // max(1, sum(map(len, wanted.values()))))
    by_broker: dict[int, list[str]] = {}
    try:
        for group, broker in (await cluster.coordinators(group_ids)).items():
            by_broker.setdefault(broker, []).append(group)
    except BrokerRefused:
        by_broker = {}  # a look-up failed: the loop below asks for each group alone
    found: dict[str, dict[TopicPartition, CommittedOffset] | BrokerRefused] = {}
    for broker, groups in by_broker.items():
        for some in (groups[at : at + at_once] for at in range(0, len(groups), at_once)):
            request = OffsetFetchRequest(groups=[_of_group(cluster, group, wanted) for group in some])
            try:
                response = await cluster.ask(broker, request, OffsetFetchResponse, version_min=8)
            except ClientError:
                continue  # too old or unreachable: the loop below asks for each group alone
            for described in response.groups:
                if described.error_code:
                    continue
                try:
                    found[described.group_id] = _committed_of(described.topics, _names(request.groups[0].topics or ()))
                except BrokerRefused:
                    continue  # the loop below asks for this group alone
    for group in group_ids:
        if group not in found:
            try:
                found[group] = await committed_offsets(cluster, group, _partitions(wanted))
            except BrokerRefused as refusal:
                found[group] = refusal
    return found


def _partitions(wanted: Mapping[str, Iterable[int]]) -> list[TopicPartition]:
    return [TopicPartition(name, index) for name, indexes in wanted.items() for index in indexes]


def _of_group(cluster: ClientCore, group_id: str, wanted: Mapping[str, list[int]] | None) -> OffsetFetchRequestGroup:
    if wanted is None:
        return OffsetFetchRequestGroup(group_id=group_id, topics=None)
    topics = [
        OffsetFetchRequestTopics(name=name, topic_id=cluster.image.topic_id(name), partition_indexes=indexes)
        for name, indexes in wanted.items()
    ]
    return OffsetFetchRequestGroup(group_id=group_id, topics=topics)


def _names(topics: Iterable[OffsetFetchRequestTopics | OffsetCommitRequestTopic]) -> dict[bytes, str]:
    """Return names by topic id: from version 10 on responses have ids instead of names."""
    return {topic.topic_id: topic.name for topic in topics if topic.topic_id != NO_TOPIC_ID}


def _committed(response: OffsetFetchResponse, names: Mapping[bytes, str]) -> dict[TopicPartition, CommittedOffset]:
    return _committed_of(response.groups[0].topics if response.groups else response.topics, names)


def _committed_of(
    topics: Iterable[OffsetFetchResponseTopics | OffsetFetchResponseTopic], names: Mapping[bytes, str]
) -> dict[TopicPartition, CommittedOffset]:
    found: dict[TopicPartition, CommittedOffset] = {}
    for topic in topics:
        name = topic.name or names[topic.topic_id] if isinstance(topic, OffsetFetchResponseTopics) else topic.name
        for part in topic.partitions:
            key = TopicPartition(name, part.partition_index)
            if part.error_code and ErrorCode(part.error_code) in RETRIABLE:
                # Do not report this as "never committed": a consumer would begin at the wrong offset.
                raise BrokerRefused(part.error_code, str(key))
            if not part.error_code and part.committed_offset >= 0:
                found[key] = CommittedOffset(part.committed_offset, part.metadata or "", part.committed_leader_epoch)
    return found


async def commit_offsets(
    cluster: ClientCore,
    group_id: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    *,
    generation: int = -1,
    member_id: str = "",
    instance_id: str | None = None,
    purpose: str = COORDINATION,
) -> dict[TopicPartition, ErrorCode]:
    """Commit offsets and return the outcome by partition. Without a generation this is an administrator's commit, for
    which the group must be empty."""
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                topic_id=cluster.image.topic_id(topic),
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=index,
                        committed_offset=(entry := offsets[TopicPartition(topic, index)]).offset,
                        committed_leader_epoch=entry.leader_epoch,
                        committed_metadata=entry.metadata,
                    )
                    for index in indexes
                ],
            )
            for topic, indexes in by_topic(offsets).items()
        ],
    )

    def first_error(response: OffsetCommitResponse) -> int:
        codes = [part.error_code for topic in response.topics for part in topic.partitions]
        return next((code for code in codes if code and ErrorCode(code) in RETRIABLE), 0)

    response = await cluster.ask_coordinator(
        group_id, request, OffsetCommitResponse, error_of=first_error, purpose=purpose
    )
    names = _names(request.topics)
    outcome = {
        TopicPartition(topic.name or names[topic.topic_id], part.partition_index): ErrorCode(part.error_code)
        for topic in response.topics
        for part in topic.partitions
    }
    # The topic was deleted and created again: these offsets belong to the old one.
    cluster.forget_leaders({where.topic for where, code in outcome.items() if code is ErrorCode.UNKNOWN_TOPIC_ID})
    return outcome


async def delete_offsets(
    cluster: ClientCore, group_id: str, partitions: Iterable[TopicPartition]
) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
    """Delete offsets; return the outcome for the group and the outcome by partition."""
    request = OffsetDeleteRequest(
        group_id=group_id,
        topics=[
            OffsetDeleteRequestTopic(
                name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
            )
            for topic, indexes in by_topic(partitions).items()
        ],
    )
    response = await cluster.ask_coordinator(
        group_id, request, OffsetDeleteResponse, error_of=lambda answer: answer.error_code
    )
    return ErrorCode(response.error_code), {
        TopicPartition(topic.name, part.partition_index): ErrorCode(part.error_code)
        for topic in response.topics
        for part in topic.partitions
    }


async def delete_group(cluster: ClientCore, group_id: str) -> ErrorCode:
    response = await cluster.ask_coordinator(
        group_id,
        DeleteGroupsRequest(groups_names=[group_id]),
        DeleteGroupsResponse,
        error_of=lambda answer: answer.results[0].error_code,
    )
    return ErrorCode(response.results[0].error_code)
