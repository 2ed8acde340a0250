"""Replays the records of share groups. Their hard state changes nowhere else. Pure."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from barnabas.broker.groups.consumer_group import EMPTY
from barnabas.broker.groups.replay import Replays, target_assignment, target_epoch
from barnabas.broker.groups.share_group import ShareGroup, ShareMember
from barnabas.broker.groups.share_topics import NO_STATES, StateTopics
from barnabas.wire.messages import share_group_records as written
from barnabas.wire.messages.base import Record


def _metadata(
    group: ShareGroup, key: written.ShareGroupMetadataKey, value: written.ShareGroupMetadataValue | None
) -> None:
    if value is not None:
        group.group_epoch = value.epoch
        group.metadata_hash = value.metadata_hash


def _member_metadata(
    group: ShareGroup, key: written.ShareGroupMemberMetadataKey, value: written.ShareGroupMemberMetadataValue | None
) -> None:
    if value is None:
        group.remove(key.member_id)
    else:
        group.members[key.member_id] = _member(group, key.member_id).with_metadata(value)


def _current_assignment(
    group: ShareGroup,
    key: written.ShareGroupCurrentMemberAssignmentKey,
    value: written.ShareGroupCurrentMemberAssignmentValue | None,
) -> None:
    if value is not None:
        group.members[key.member_id] = _member(group, key.member_id).with_assignment(value)
    elif key.member_id in group.members:
        group.members[key.member_id] = replace(
            group.members[key.member_id], member_epoch=-1, previous_member_epoch=-1, assigned=EMPTY
        )


def _state_topics(
    group: ShareGroup,
    key: written.ShareGroupStatePartitionMetadataKey,
    value: written.ShareGroupStatePartitionMetadataValue | None,
) -> None:
    group.states = NO_STATES if value is None else StateTopics.of_record(value)


def _member(group: ShareGroup, member_id: str) -> ShareMember:
    return group.members.get(member_id) or ShareMember(member_id=member_id)


_BY_KEY: Final[dict[type[Record], Callable[[ShareGroup, Any, Any], None]]] = {
    written.ShareGroupMetadataKey: _metadata,
    written.ShareGroupMemberMetadataKey: _member_metadata,
    written.ShareGroupTargetAssignmentMetadataKey: target_epoch,
    written.ShareGroupTargetAssignmentMemberKey: target_assignment,
    written.ShareGroupCurrentMemberAssignmentKey: _current_assignment,
    written.ShareGroupStatePartitionMetadataKey: _state_topics,
}

SHARE_REPLAYS: Final = Replays(ShareGroup, _BY_KEY, last=written.ShareGroupMetadataKey)
