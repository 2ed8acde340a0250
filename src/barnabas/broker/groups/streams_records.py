"""Keys and values of `__consumer_offsets` for streams groups (KIP-1071), byte for byte as Kafka writes them.

The types of the records are 17 and 19 to 23.
"""

from collections.abc import Iterable, Mapping

from barnabas.broker.groups.records import pair, tombstone
from barnabas.broker.groups.streams_tasks import TaskId, Tasks, by_subtopology
from barnabas.broker.runtime.machine import KeyValue
from barnabas.wire.messages import streams_group_records as streams


def group_epoch(
    group_id: str, epoch: int, *, metadata_hash: int, validated_topology_epoch: int, settings: Mapping[str, str]
) -> KeyValue:
    value = streams.StreamsGroupMetadataValue(
        epoch=epoch,
        metadata_hash=metadata_hash,
        validated_topology_epoch=validated_topology_epoch,
        last_assignment_configs=[
            streams.LastAssignmentConfig(key=key, value=value) for key, value in sorted(settings.items())
        ]
        or None,
    )
    return pair(streams.StreamsGroupMetadataKey(group_id=group_id), 17, value)


def group_epoch_tombstone(group_id: str) -> KeyValue:
    return tombstone(streams.StreamsGroupMetadataKey(group_id=group_id), 17)


def member_metadata(group_id: str, member_id: str, value: streams.StreamsGroupMemberMetadataValue) -> KeyValue:
    return pair(streams.StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member_id), 19, value)


def member_metadata_tombstone(group_id: str, member_id: str) -> KeyValue:
    return tombstone(streams.StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member_id), 19)


def target_epoch(group_id: str, epoch: int, *, timestamp_ms: int) -> KeyValue:
    value = streams.StreamsGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=timestamp_ms)
    return pair(streams.StreamsGroupTargetAssignmentMetadataKey(group_id=group_id), 20, value)


def target_epoch_tombstone(group_id: str) -> KeyValue:
    return tombstone(streams.StreamsGroupTargetAssignmentMetadataKey(group_id=group_id), 20)


def target_assignment(group_id: str, member_id: str, tasks: Tasks) -> KeyValue:
    value = streams.StreamsGroupTargetAssignmentMemberValue(
        active_tasks=_listed(tasks.active), standby_tasks=_listed(tasks.standby), warmup_tasks=_listed(tasks.warmup)
    )
    return pair(streams.StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), 21, value)


def target_assignment_tombstone(group_id: str, member_id: str) -> KeyValue:
    return tombstone(streams.StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), 21)


def current_assignment(
    group_id: str, member_id: str, value: streams.StreamsGroupCurrentMemberAssignmentValue
) -> KeyValue:
    return pair(streams.StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), 22, value)


def current_assignment_tombstone(group_id: str, member_id: str) -> KeyValue:
    return tombstone(streams.StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), 22)


def topology(group_id: str, value: streams.StreamsGroupTopologyValue) -> KeyValue:
    return pair(streams.StreamsGroupTopologyKey(group_id=group_id), 23, value)


def topology_tombstone(group_id: str) -> KeyValue:
    return tombstone(streams.StreamsGroupTopologyKey(group_id=group_id), 23)


def _listed(tasks: Iterable[TaskId]) -> list[streams.TaskIds]:
    return [
        streams.TaskIds(subtopology_id=subtopology, partitions=numbers)
        for subtopology, numbers in by_subtopology(tasks).items()
    ]
