"""Replays the records of consumer groups and share groups, each with its own table of record types. Pure.

A tombstone for something that does not exist is ignored: compaction may have removed the record to which it refers.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from barnabas.base.errors import BrokenInvariant
from barnabas.broker.groups.consumer_group import ConsumerGroup
from barnabas.broker.groups.group import Group
from barnabas.broker.groups.share_group import ShareGroup
from barnabas.wire.messages.base import Record
from barnabas.wire.messages.consumer_group_records import (
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from barnabas.wire.messages.share_group_records import (
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)


class Replays(NamedTuple):
    """The records of one kind of group."""

    #: Makes an empty group with an id.
    kind: type[Any]
    #: Applies a record (group, key, value) by the type of its key.
    by_key: Mapping[type[Record], Callable[[Any, Any, Any], None]]
    #: The tombstone with this key removes the group.
    last: type[Record]


class GroupReplay:
    def __init__(self, groups: dict[str, Group], tables: Iterable[Replays]) -> None:
        self._groups = groups
        self._tables = {key: table for table in tables for key in table.by_key}

    def replay(self, key: Record, value: Record | None) -> None:
        table = self._tables.get(type(key))
        if table is None:
            raise BrokenInvariant(f"no replay for {type(key).__name__}")
        group_id: str = getattr(key, "group_id")  # noqa: B009 - every key of these groups has one
        group: Any = self._groups.get(group_id)
        if not isinstance(group, table.kind):
            if value is None:
                return
            # Replace a simple group that offset records created, or a group that changed its protocol.
            group = self._groups[group_id] = table.kind(group_id)
        table.by_key[type(key)](group, key, value)
        if value is None and isinstance(key, table.last):
            del self._groups[group_id]


def target_epoch(
    group: ConsumerGroup | ShareGroup,
    key: ConsumerGroupTargetAssignmentMetadataKey | ShareGroupTargetAssignmentMetadataKey,
    value: ConsumerGroupTargetAssignmentMetadataValue | ShareGroupTargetAssignmentMetadataValue | None,
) -> None:
    group.target_epoch = -1 if value is None else value.assignment_epoch


def target_assignment(
    group: ConsumerGroup | ShareGroup,
    key: ConsumerGroupTargetAssignmentMemberKey | ShareGroupTargetAssignmentMemberKey,
    value: ConsumerGroupTargetAssignmentMemberValue | ShareGroupTargetAssignmentMemberValue | None,
) -> None:
    if value is None:
        group.target.pop(key.member_id, None)
    else:
        group.target[key.member_id] = {
            each.topic_id: frozenset(each.partitions) for each in value.topic_partitions if each.partitions
        }
