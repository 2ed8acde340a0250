"""Replays the records of consumer groups. Their hard state changes nowhere else. Pure."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from barnabas.broker.groups.consumer_group import (
    LEAVING_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    ResolvedRegex,
    TopicMetadata,
)
from barnabas.broker.groups.replay import Replays, target_assignment, target_epoch
from barnabas.wire.messages import consumer_group_records as modern
from barnabas.wire.messages.base import Record


def _metadata(
    group: ConsumerGroup, key: modern.ConsumerGroupMetadataKey, value: modern.ConsumerGroupMetadataValue | None
) -> None:
    if value is not None:
        group.group_epoch = value.epoch


def _partition_metadata(
    group: ConsumerGroup,
    key: modern.ConsumerGroupPartitionMetadataKey,
    value: modern.ConsumerGroupPartitionMetadataValue | None,
) -> None:
    group.topics = {}
    if value is not None:
        for topic in value.topics:
            group.topics[topic.topic_name] = TopicMetadata(topic.topic_id, topic.topic_name, topic.num_partitions)


def _member_metadata(
    group: ConsumerGroup,
    key: modern.ConsumerGroupMemberMetadataKey,
    value: modern.ConsumerGroupMemberMetadataValue | None,
) -> None:
    if value is None:
        group.remove(key.member_id)
        return
    group.put((group.members.get(key.member_id) or ConsumerMember(member_id=key.member_id)).with_metadata(value))


def _current_assignment(
    group: ConsumerGroup,
    key: modern.ConsumerGroupCurrentMemberAssignmentKey,
    value: modern.ConsumerGroupCurrentMemberAssignmentValue | None,
) -> None:
    member = group.members.get(key.member_id)
    if value is not None:
        group.put((member or ConsumerMember(member_id=key.member_id)).with_assignment(value))
    elif member is not None:
        gone = replace(
            member,
            member_epoch=LEAVING_EPOCH,
            previous_member_epoch=LEAVING_EPOCH,
            assigned={},
            pending_revocation={},
        )
        group.put(gone)


def _regular_expression(
    group: ConsumerGroup,
    key: modern.ConsumerGroupRegularExpressionKey,
    value: modern.ConsumerGroupRegularExpressionValue | None,
) -> None:
    if value is None:
        group.regexes.pop(key.regular_expression, None)
    else:
        group.regexes[key.regular_expression] = ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)


_BY_KEY: Final[dict[type[Record], Callable[[ConsumerGroup, Any, Any], None]]] = {
    modern.ConsumerGroupMetadataKey: _metadata,
    modern.ConsumerGroupPartitionMetadataKey: _partition_metadata,
    modern.ConsumerGroupMemberMetadataKey: _member_metadata,
    modern.ConsumerGroupTargetAssignmentMetadataKey: target_epoch,
    modern.ConsumerGroupTargetAssignmentMemberKey: target_assignment,
    modern.ConsumerGroupCurrentMemberAssignmentKey: _current_assignment,
    modern.ConsumerGroupRegularExpressionKey: _regular_expression,
}

CONSUMER_REPLAYS: Final = Replays(ConsumerGroup, _BY_KEY, last=modern.ConsumerGroupMetadataKey)
