"""Replays the records of streams groups. Their hard state changes nowhere else. Pure."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from barnabas.broker.groups.consumer_group import LEAVING_EPOCH
from barnabas.broker.groups.replay import Replays
from barnabas.broker.groups.streams_group import StreamsGroup, StreamsMember
from barnabas.broker.groups.streams_tasks import NO_TASKS, Tasks, task_set
from barnabas.broker.groups.streams_topology import StreamsTopology
from barnabas.wire.messages import streams_group_records as written
from barnabas.wire.messages.base import Record


def _metadata(
    group: StreamsGroup, key: written.StreamsGroupMetadataKey, value: written.StreamsGroupMetadataValue | None
) -> None:
    if value is not None:
        group.group_epoch = value.epoch
        group.metadata_hash = value.metadata_hash
        group.validated_topology_epoch = value.validated_topology_epoch
        group.assignment_settings = {each.key: each.value for each in value.last_assignment_configs or ()}


def _topology(
    group: StreamsGroup, key: written.StreamsGroupTopologyKey, value: written.StreamsGroupTopologyValue | None
) -> None:
    group.set_topology(None if value is None else StreamsTopology.of(value))


def _member_metadata(
    group: StreamsGroup,
    key: written.StreamsGroupMemberMetadataKey,
    value: written.StreamsGroupMemberMetadataValue | None,
) -> None:
    if value is None:
        group.remove(key.member_id)
    else:
        group.put(_member(group, key.member_id).with_metadata(value))


def _target_epoch(
    group: StreamsGroup,
    key: written.StreamsGroupTargetAssignmentMetadataKey,
    value: written.StreamsGroupTargetAssignmentMetadataValue | None,
) -> None:
    group.target_epoch = -1 if value is None else value.assignment_epoch
    group.target_timestamp_ms = 0 if value is None else value.assignment_timestamp


def _target_assignment(
    group: StreamsGroup,
    key: written.StreamsGroupTargetAssignmentMemberKey,
    value: written.StreamsGroupTargetAssignmentMemberValue | None,
) -> None:
    if value is None:
        group.target.pop(key.member_id, None)
    else:
        group.target[key.member_id] = Tasks(
            task_set(value.active_tasks), task_set(value.standby_tasks), task_set(value.warmup_tasks)
        )


def _current_assignment(
    group: StreamsGroup,
    key: written.StreamsGroupCurrentMemberAssignmentKey,
    value: written.StreamsGroupCurrentMemberAssignmentValue | None,
) -> None:
    if value is not None:
        group.put(_member(group, key.member_id).with_assignment(value))
    elif key.member_id in group.members:
        gone = replace(
            group.members[key.member_id],
            member_epoch=LEAVING_EPOCH,
            previous_member_epoch=LEAVING_EPOCH,
            assigned=NO_TASKS,
            pending_revocation=NO_TASKS,
            active_epochs={},
        )
        group.put(gone)


def _member(group: StreamsGroup, member_id: str) -> StreamsMember:
    return group.members.get(member_id) or StreamsMember(member_id=member_id)


_BY_KEY: Final[dict[type[Record], Callable[[StreamsGroup, Any, Any], None]]] = {
    written.StreamsGroupMetadataKey: _metadata,
    written.StreamsGroupTopologyKey: _topology,
    written.StreamsGroupMemberMetadataKey: _member_metadata,
    written.StreamsGroupTargetAssignmentMetadataKey: _target_epoch,
    written.StreamsGroupTargetAssignmentMemberKey: _target_assignment,
    written.StreamsGroupCurrentMemberAssignmentKey: _current_assignment,
}

STREAMS_REPLAYS: Final = Replays(StreamsGroup, _BY_KEY, last=written.StreamsGroupMetadataKey)
