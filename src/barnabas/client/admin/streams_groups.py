"""Streams groups (KIP-1071): topology, members and their tasks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.client.admin.groups import GroupDescription, GroupMember
from barnabas.client.core import ClientCore
from barnabas.client.errors import check
from barnabas.wire.messages.streams_group_describe import (
    Assignment,
    Member,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    Subtopology,
    TaskIds,
)

STREAMS: Final = "Streams"

#: Partitions by subtopology.
TasksBySubtopology = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class StreamsTasks:
    active: TasksBySubtopology = ()
    standby: TasksBySubtopology = ()
    warmup: TasksBySubtopology = ()

    @property
    def active_count(self) -> int:
        return sum(len(numbers) for _, numbers in self.active)


@dataclass(frozen=True, slots=True)
class StreamsGroupMember:
    member_id: str
    client_id: str
    host: str
    #: The instance of the application; its threads are members of their own.
    process_id: str
    epoch: int
    topology_epoch: int
    tasks: StreamsTasks
    target: StreamsTasks


@dataclass(frozen=True, slots=True)
class StreamsSubtopology:
    subtopology_id: str
    source_topics: tuple[str, ...]
    repartition_sources: tuple[str, ...]
    repartition_sinks: tuple[str, ...]
    changelogs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StreamsGroupDescription:
    group_id: str
    #: `Stable`, `Assigning`, `Reconciling`, `NotReady`, `Empty` or `Dead`.
    state: str
    epoch: int
    assignment_epoch: int
    topology_epoch: int
    subtopologies: tuple[StreamsSubtopology, ...]
    members: tuple[StreamsGroupMember, ...]
    coordinator_id: int
    #: No streams group has this id.
    missing: bool = False

    @property
    def inputs(self) -> frozenset[str]:
        """Return the topics whose offsets the group commits."""
        return frozenset(
            topic for each in self.subtopologies for topic in (*each.source_topics, *each.repartition_sources)
        )

    @property
    def source_topics(self) -> frozenset[str]:
        """Return the topics of the user that the group reads."""
        return frozenset(topic for each in self.subtopologies for topic in each.source_topics)

    @property
    def internal_topics(self) -> frozenset[str]:
        """Return the repartition and changelog topics."""
        return frozenset(
            topic for each in self.subtopologies for topic in (*each.repartition_sources, *each.changelogs)
        )


async def describe_streams_group(cluster: ClientCore, group_id: str) -> StreamsGroupDescription:
    response = await cluster.ask_coordinator(
        group_id,
        StreamsGroupDescribeRequest(group_ids=[group_id]),
        StreamsGroupDescribeResponse,
        error_of=lambda answer: answer.groups[0].error_code,
    )
    group = response.groups[0]
    is_missing = group.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    if not is_missing:
        check(group.error_code, group.error_message or f"streams group {group_id}")
    topology = group.topology
    return StreamsGroupDescription(
        group_id=group_id,
        state="Dead" if is_missing else group.group_state,
        epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        topology_epoch=-1 if topology is None else topology.epoch,
        subtopologies=tuple(
            _subtopology(each) for each in (None if topology is None else topology.subtopologies) or ()
        ),
        members=tuple(_member(each) for each in group.members),
        coordinator_id=await cluster.coordinator(group_id),
        missing=is_missing,
    )


async def describe_as_group(cluster: ClientCore, group_id: str) -> GroupDescription:
    """Describe a streams group by the partitions that its members read, like a group of consumers."""
    found = await describe_streams_group(cluster, group_id)
    known = await cluster.topics(found.inputs)
    inputs = {each.subtopology_id: (*each.source_topics, *each.repartition_sources) for each in found.subtopologies}

    def partitions(tasks: TasksBySubtopology) -> tuple[TopicPartition, ...]:
        return tuple(
            TopicPartition(topic, number)
            for subtopology, numbers in tasks
            for topic in inputs.get(subtopology, ())
            for number in numbers
            if number < len(known[topic].partitions)
        )

    return GroupDescription(
        group_id=group_id,
        state=found.state,
        type=STREAMS,
        protocol_type="streams",
        assignor="sticky",
        members=tuple(
            GroupMember(each.member_id, None, each.client_id, each.host, partitions(each.tasks.active))
            for each in found.members
        ),
        coordinator_id=found.coordinator_id,
        missing=found.missing,
    )


async def member_counts(cluster: ClientCore, coordinator_id: int, groups: Sequence[str]) -> dict[str, int]:
    """Return the member counts of these streams groups, which have one coordinator. Unknown groups are left out."""
    found = await cluster.ask(
        coordinator_id, StreamsGroupDescribeRequest(group_ids=list(groups)), StreamsGroupDescribeResponse
    )
    return {group.group_id: len(group.members) for group in found.groups if not group.error_code}


def _subtopology(listed: Subtopology) -> StreamsSubtopology:
    return StreamsSubtopology(
        listed.subtopology_id,
        tuple(listed.source_topics),
        tuple(each.name for each in listed.repartition_source_topics),
        tuple(listed.repartition_sink_topics),
        tuple(each.name for each in listed.state_changelog_topics),
    )


def _member(listed: Member) -> StreamsGroupMember:
    return StreamsGroupMember(
        member_id=listed.member_id,
        client_id=listed.client_id,
        host=listed.client_host,
        process_id=listed.process_id,
        epoch=listed.member_epoch,
        topology_epoch=listed.topology_epoch,
        tasks=_tasks(listed.assignment),
        target=_tasks(listed.target_assignment),
    )


def _tasks(listed: Assignment) -> StreamsTasks:
    def tasks(some: Iterable[TaskIds]) -> TasksBySubtopology:
        return tuple((each.subtopology_id, tuple(each.partitions)) for each in some)

    return StreamsTasks(tasks(listed.active_tasks), tasks(listed.standby_tasks), tasks(listed.warmup_tasks))
