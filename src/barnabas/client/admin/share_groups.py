"""Share groups (KIP-932): members, where they begin to read, delete."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.client.admin.partitions import by_topic
from barnabas.client.core import ClientCore
from barnabas.client.errors import BrokerRefused, check
from barnabas.wire.messages import alter_share_group_offsets as altering
from barnabas.wire.messages import delete_share_group_offsets as deleting
from barnabas.wire.messages import describe_share_group_offsets as describing
from barnabas.wire.messages.share_group_describe import ShareGroupDescribeRequest, ShareGroupDescribeResponse

SHARE: Final = "Share"


@dataclass(frozen=True, slots=True)
class ShareGroupMember:
    member_id: str
    client_id: str
    host: str
    epoch: int
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ShareGroupDescription:
    group_id: str
    #: `Stable`, `Empty` or `Dead`.
    state: str
    assignor: str
    epoch: int
    assignment_epoch: int
    members: tuple[ShareGroupMember, ...]
    coordinator_id: int
    #: No share group has this id.
    missing: bool = False


@dataclass(frozen=True, slots=True)
class ShareOffset:
    """Where a share group reads a partition."""

    #: Every record before it is done; -1: the group has not begun.
    start: int
    leader_epoch: int
    #: Records from the start offset on that are not done; -1: not known.
    lag: int


async def describe_share_group(cluster: ClientCore, group_id: str) -> ShareGroupDescription:
    response = await cluster.ask_coordinator(
        group_id,
        ShareGroupDescribeRequest(group_ids=[group_id]),
        ShareGroupDescribeResponse,
        error_of=lambda answer: answer.groups[0].error_code,
    )
    group = response.groups[0]
    is_missing = group.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    if not is_missing:
        check(group.error_code, group.error_message or f"share group {group_id}")
    return ShareGroupDescription(
        group_id=group_id,
        state="Dead" if is_missing else group.group_state,
        assignor=group.assignor_name,
        epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        members=tuple(
            ShareGroupMember(
                member_id=member.member_id,
                client_id=member.client_id,
                host=member.client_host,
                epoch=member.member_epoch,
                assignment=tuple(
                    TopicPartition(topic.topic_name, index)
                    for topic in member.assignment.topic_partitions
                    for index in topic.partitions
                ),
            )
            for member in group.members
        ),
        coordinator_id=await cluster.coordinator(group_id),
        missing=is_missing,
    )


async def member_counts(cluster: ClientCore, coordinator_id: int, groups: Sequence[str]) -> dict[str, int]:
    """Return the member counts of these share groups, which have one coordinator. Unknown groups are left out."""
    found = await cluster.ask(
        coordinator_id, ShareGroupDescribeRequest(group_ids=list(groups)), ShareGroupDescribeResponse
    )
    return {group.group_id: len(group.members) for group in found.groups if not group.error_code}


async def share_offsets(cluster: ClientCore, group_id: str) -> dict[TopicPartition, ShareOffset]:
    """Return where the group reads each partition that it knows."""
    response = await cluster.ask_coordinator(
        group_id,
        _all_offsets([group_id]),
        describing.DescribeShareGroupOffsetsResponse,
        error_of=lambda answer: answer.groups[0].error_code,
    )
    group = response.groups[0]
    check(group.error_code, group.error_message or f"share group {group_id}")
    return _offsets_of(group)


async def share_offsets_of_many(
    cluster: ClientCore, coordinator_id: int, groups: Sequence[str]
) -> dict[str, dict[TopicPartition, ShareOffset]]:
    """Return the offsets of these share groups, which have one coordinator. Groups with an error are left out."""
    response = await cluster.ask(coordinator_id, _all_offsets(groups), describing.DescribeShareGroupOffsetsResponse)
    found: dict[str, dict[TopicPartition, ShareOffset]] = {}
    for group in response.groups:
        with suppress(BrokerRefused):
            check(group.error_code, group.error_message)
            found[group.group_id] = _offsets_of(group)
    return found


def _all_offsets(groups: Iterable[str]) -> describing.DescribeShareGroupOffsetsRequest:
    return describing.DescribeShareGroupOffsetsRequest(
        groups=[describing.DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=None) for group_id in groups]
    )


def _offsets_of(
    group: describing.DescribeShareGroupOffsetsResponseGroup,
) -> dict[TopicPartition, ShareOffset]:
    found: dict[TopicPartition, ShareOffset] = {}
    for topic in group.topics:
        for part in topic.partitions:
            check(part.error_code, part.error_message or f"{topic.topic_name}-{part.partition_index}")
            key = TopicPartition(topic.topic_name, part.partition_index)
            found[key] = ShareOffset(part.start_offset, part.leader_epoch, part.lag)
    return dict(sorted(found.items()))


async def alter_share_offsets(
    cluster: ClientCore, group_id: str, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, ErrorCode]:
    """Let an empty group begin at these offsets. Return the outcome by partition."""
    request = altering.AlterShareGroupOffsetsRequest(
        group_id=group_id,
        topics=[
            altering.AlterShareGroupOffsetsRequestTopic(
                topic_name=topic,
                partitions=[
                    altering.AlterShareGroupOffsetsRequestPartition(
                        partition_index=index, start_offset=offsets[TopicPartition(topic, index)]
                    )
                    for index in indexes
                ],
            )
            for topic, indexes in by_topic(offsets).items()
        ],
    )
    response = await cluster.ask_coordinator(
        group_id, request, altering.AlterShareGroupOffsetsResponse, error_of=lambda answer: answer.error_code
    )
    check(response.error_code, response.error_message or f"share group {group_id}")
    return {
        TopicPartition(topic.topic_name, part.partition_index): ErrorCode(part.error_code)
        for topic in response.responses
        for part in topic.partitions
    }


async def delete_share_offsets(cluster: ClientCore, group_id: str, topics: Iterable[str]) -> dict[str, ErrorCode]:
    """Let an empty group forget these topics. Return the outcome by topic."""
    request = deleting.DeleteShareGroupOffsetsRequest(
        group_id=group_id,
        topics=[deleting.DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in topics],
    )
    response = await cluster.ask_coordinator(
        group_id, request, deleting.DeleteShareGroupOffsetsResponse, error_of=lambda answer: answer.error_code
    )
    check(response.error_code, response.error_message or f"share group {group_id}")
    return {topic.topic_name: ErrorCode(topic.error_code) for topic in response.responses}
