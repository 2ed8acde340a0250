"""Keys and values of `__consumer_offsets`, byte for byte as Kafka writes them.

A key begins with its version, which is the type of the record: 0 and 1 are a committed offset, 2 a classic group, 3 to 8 a
consumer group (KIP-848), 10 to 15 a share group (KIP-932), 16 the topics that a regular expression matched, 17 to 23 a streams
group (KIP-1071). 9 was of a share group and 18 of a streams group in previews of Kafka 4.1.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from barnabas.base.errors import Malformed
from barnabas.broker.groups.offset_store import OffsetCommit
from barnabas.broker.runtime.machine import KeyValue
from barnabas.wire import codec
from barnabas.wire.messages import consumer_group_records as modern
from barnabas.wire.messages import share_group_records as share
from barnabas.wire.messages import streams_group_records as streams
from barnabas.wire.messages.base import Record
from barnabas.wire.messages.offsets_topic import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)

OFFSET_KEY_VERSION: Final = 1
#: Kafka 3.9 writes the highest version that is not flexible; version 1 for the sake of `expire_timestamp`.
OFFSET_VALUE_VERSION: Final = 3
OFFSET_VALUE_WITH_EXPIRY_VERSION: Final = 1
GROUP_KEY_VERSION: Final = 2
GROUP_VALUE_VERSION: Final = 3

#: Partitions of topics, by topic id.
Partitions = Mapping[bytes, frozenset[int]]

_TYPES: Final[dict[int, tuple[type[Record], type[Record]]]] = {
    0: (OffsetCommitKey, OffsetCommitValue),
    1: (OffsetCommitKey, OffsetCommitValue),
    2: (GroupMetadataKey, GroupMetadataValue),
    3: (modern.ConsumerGroupMetadataKey, modern.ConsumerGroupMetadataValue),
    4: (modern.ConsumerGroupPartitionMetadataKey, modern.ConsumerGroupPartitionMetadataValue),
    5: (modern.ConsumerGroupMemberMetadataKey, modern.ConsumerGroupMemberMetadataValue),
    6: (modern.ConsumerGroupTargetAssignmentMetadataKey, modern.ConsumerGroupTargetAssignmentMetadataValue),
    7: (modern.ConsumerGroupTargetAssignmentMemberKey, modern.ConsumerGroupTargetAssignmentMemberValue),
    8: (modern.ConsumerGroupCurrentMemberAssignmentKey, modern.ConsumerGroupCurrentMemberAssignmentValue),
    10: (share.ShareGroupMemberMetadataKey, share.ShareGroupMemberMetadataValue),
    11: (share.ShareGroupMetadataKey, share.ShareGroupMetadataValue),
    12: (share.ShareGroupTargetAssignmentMetadataKey, share.ShareGroupTargetAssignmentMetadataValue),
    13: (share.ShareGroupTargetAssignmentMemberKey, share.ShareGroupTargetAssignmentMemberValue),
    14: (share.ShareGroupCurrentMemberAssignmentKey, share.ShareGroupCurrentMemberAssignmentValue),
    15: (share.ShareGroupStatePartitionMetadataKey, share.ShareGroupStatePartitionMetadataValue),
    16: (modern.ConsumerGroupRegularExpressionKey, modern.ConsumerGroupRegularExpressionValue),
    17: (streams.StreamsGroupMetadataKey, streams.StreamsGroupMetadataValue),
    19: (streams.StreamsGroupMemberMetadataKey, streams.StreamsGroupMemberMetadataValue),
    20: (streams.StreamsGroupTargetAssignmentMetadataKey, streams.StreamsGroupTargetAssignmentMetadataValue),
    21: (streams.StreamsGroupTargetAssignmentMemberKey, streams.StreamsGroupTargetAssignmentMemberValue),
    22: (streams.StreamsGroupCurrentMemberAssignmentKey, streams.StreamsGroupCurrentMemberAssignmentValue),
    23: (streams.StreamsGroupTopologyKey, streams.StreamsGroupTopologyValue),
}

#: Types of records of share groups.
_SHARE: Final = range(10, 16)

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")
#: Version, offset, leader epoch, length of the metadata.
_OFFSET_VALUE_HEAD: Final = Struct(">hqih")
#: Texts of up to so many characters certainly fit into an int16 length in UTF-8.
_METADATA_FAST_MAX: Final = 8000


class Entry(NamedTuple):
    """A decoded record. A value of None is a tombstone."""

    key: Record
    value: Record | None


class OffsetRecord(KeyValue):
    """A committed offset with its decoded form, so that the coordinator that wrote it can replay it without decoding."""

    commit: OffsetCommit


def decode(record: KeyValue) -> Entry | None:
    """Decode a record. None: this type of record is not used here, and Kafka skips those as well.

    :raises Malformed: if the bytes are not a valid record.
    """
    if len(record.key) < 2:
        raise Malformed(f"a key of __consumer_offsets has only {len(record.key)} bytes")
    types = _TYPES.get(_INT16.unpack_from(record.key)[0])
    if types is None:
        return None
    key, _ = codec.decode_versioned(types[0], record.key)
    if record.value is None:
        return Entry(key, None)
    try:
        value, _ = codec.decode_versioned(types[1], record.value)
    except Malformed:
        if types[0].MIN_VERSION in _SHARE:
            # The previews of share groups in Kafka 3.9 and 4.0 wrote fewer fields. Kafka cannot upgrade those groups either.
            return None
        raise
    return Entry(key, value)


def commit_of(key: OffsetCommitKey, value: OffsetCommitValue) -> OffsetCommit:
    return OffsetCommit(
        key.group,
        key.topic,
        key.partition,
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp,
        value.expire_timestamp,
    )


def tombstone(key: Record, version: int) -> KeyValue:
    return KeyValue(codec.encode_versioned(key, version), None)


def pair(key: Record, version: int, value: Record, value_version: int = 0) -> KeyValue:
    return KeyValue(codec.encode_versioned(key, version), codec.encode_versioned(value, value_version))


# -- offsets and classic groups ----------------------------------------------------------------------------------------


def offset_commit(commit: OffsetCommit) -> OffsetRecord:
    group_id, topic, partition, offset, leader_epoch, metadata, commit_timestamp_ms, expire_timestamp_ms = commit
    if expire_timestamp_ms == -1 and len(metadata) < _METADATA_FAST_MAX:
        # Nearly all commits are of this form, and there are many: this takes little more than half the time.
        text = metadata.encode()
        head = _OFFSET_VALUE_HEAD.pack(OFFSET_VALUE_VERSION, offset, leader_epoch, len(text))
        value_bytes = head + text + _INT64.pack(commit_timestamp_ms)
    else:
        version = OFFSET_VALUE_VERSION if expire_timestamp_ms == -1 else OFFSET_VALUE_WITH_EXPIRY_VERSION
        value = OffsetCommitValue(
            offset=offset,
            leader_epoch=leader_epoch,
            metadata=metadata,
            commit_timestamp=commit_timestamp_ms,
            expire_timestamp=expire_timestamp_ms,
        )
        value_bytes = codec.encode_versioned(value, version)
    record = OffsetRecord(_offset_key_head(group_id, topic) + _INT32.pack(partition), value_bytes)
    record.commit = commit
    return record


@lru_cache(maxsize=4096)
def _offset_key_head(group_id: str, topic: str) -> bytes:
    """Return the key of a group's offset for a topic without the partition, which comes last."""
    return codec.encode_versioned(OffsetCommitKey(group=group_id, topic=topic), OFFSET_KEY_VERSION)[: -_INT32.size]


def offset_tombstone(group_id: str, topic: str, partition: int) -> KeyValue:
    return tombstone(OffsetCommitKey(group=group_id, topic=topic, partition=partition), OFFSET_KEY_VERSION)


def group_metadata(group_id: str, value: GroupMetadataValue) -> KeyValue:
    return pair(GroupMetadataKey(group=group_id), GROUP_KEY_VERSION, value, GROUP_VALUE_VERSION)


def group_tombstone(group_id: str) -> KeyValue:
    return tombstone(GroupMetadataKey(group=group_id), GROUP_KEY_VERSION)


# -- consumer groups ---------------------------------------------------------------------------------------------------


def group_epoch(group_id: str, epoch: int) -> KeyValue:
    return pair(modern.ConsumerGroupMetadataKey(group_id=group_id), 3, modern.ConsumerGroupMetadataValue(epoch=epoch))


def group_epoch_tombstone(group_id: str) -> KeyValue:
    return tombstone(modern.ConsumerGroupMetadataKey(group_id=group_id), 3)


def partition_metadata(group_id: str, topics: Iterable[modern.TopicMetadata]) -> KeyValue:
    value = modern.ConsumerGroupPartitionMetadataValue(topics=list(topics))
    return pair(modern.ConsumerGroupPartitionMetadataKey(group_id=group_id), 4, value)


def partition_metadata_tombstone(group_id: str) -> KeyValue:
    return tombstone(modern.ConsumerGroupPartitionMetadataKey(group_id=group_id), 4)


def member_metadata(group_id: str, member_id: str, value: modern.ConsumerGroupMemberMetadataValue) -> KeyValue:
    return pair(modern.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), 5, value)


def member_metadata_tombstone(group_id: str, member_id: str) -> KeyValue:
    return tombstone(modern.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), 5)


def target_epoch(group_id: str, epoch: int) -> KeyValue:
    value = modern.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch)
    return pair(modern.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), 6, value)


def target_epoch_tombstone(group_id: str) -> KeyValue:
    return tombstone(modern.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), 6)


def target_assignment(group_id: str, member_id: str, partitions: Partitions) -> KeyValue:
    value = modern.ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            modern.TopicPartition(topic_id=topic_id, partitions=sorted(numbers))
            for topic_id, numbers in partitions.items()
        ]
    )
    return pair(modern.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), 7, value)


def target_assignment_tombstone(group_id: str, member_id: str) -> KeyValue:
    return tombstone(modern.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), 7)


def current_assignment(
    group_id: str,
    member_id: str,
    *,
    member_epoch: int,
    previous_member_epoch: int,
    state: int,
    assigned: Partitions,
    pending_revocation: Partitions,
) -> KeyValue:
    value = modern.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member_epoch,
        previous_member_epoch=previous_member_epoch,
        state=state,
        assigned_partitions=_topic_partitions(assigned),
        partitions_pending_revocation=_topic_partitions(pending_revocation),
    )
    return pair(modern.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), 8, value)


def current_assignment_tombstone(group_id: str, member_id: str) -> KeyValue:
    return tombstone(modern.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), 8)


def regular_expression(
    group_id: str, expression: str, *, topics: Iterable[str], version: int, timestamp_ms: int
) -> KeyValue:
    key = modern.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=expression)
    value = modern.ConsumerGroupRegularExpressionValue(topics=sorted(topics), version=version, timestamp=timestamp_ms)
    return pair(key, 16, value)


def regular_expression_tombstone(group_id: str, expression: str) -> KeyValue:
    return tombstone(modern.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=expression), 16)


def _topic_partitions(partitions: Partitions) -> list[modern.TopicPartitions]:
    return [
        modern.TopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
        for topic_id, numbers in partitions.items()
    ]


# -- share groups ------------------------------------------------------------------------------------------------------


def share_member_metadata(group_id: str, member_id: str, value: share.ShareGroupMemberMetadataValue) -> KeyValue:
    return pair(share.ShareGroupMemberMetadataKey(group_id=group_id, member_id=member_id), 10, value)


def share_member_metadata_tombstone(group_id: str, member_id: str) -> KeyValue:
    return tombstone(share.ShareGroupMemberMetadataKey(group_id=group_id, member_id=member_id), 10)


def share_group_epoch(group_id: str, epoch: int, *, metadata_hash: int) -> KeyValue:
    value = share.ShareGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return pair(share.ShareGroupMetadataKey(group_id=group_id), 11, value)


def share_group_epoch_tombstone(group_id: str) -> KeyValue:
    return tombstone(share.ShareGroupMetadataKey(group_id=group_id), 11)


def share_target_epoch(group_id: str, epoch: int) -> KeyValue:
    value = share.ShareGroupTargetAssignmentMetadataValue(assignment_epoch=epoch)
    return pair(share.ShareGroupTargetAssignmentMetadataKey(group_id=group_id), 12, value)


def share_target_epoch_tombstone(group_id: str) -> KeyValue:
    return tombstone(share.ShareGroupTargetAssignmentMetadataKey(group_id=group_id), 12)


def share_target_assignment(group_id: str, member_id: str, partitions: Partitions) -> KeyValue:
    value = share.ShareGroupTargetAssignmentMemberValue(
        topic_partitions=[
            share.TopicPartition(topic_id=topic_id, partitions=sorted(numbers))
            for topic_id, numbers in partitions.items()
        ]
    )
    return pair(share.ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), 13, value)


def share_target_assignment_tombstone(group_id: str, member_id: str) -> KeyValue:
    return tombstone(share.ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), 13)


def share_current_assignment(
    group_id: str, member_id: str, *, member_epoch: int, previous_member_epoch: int, assigned: Partitions
) -> KeyValue:
    """The state of a member is always 0, stable: it needs no partition that another member must give up first."""
    value = share.ShareGroupCurrentMemberAssignmentValue(
        member_epoch=member_epoch,
        previous_member_epoch=previous_member_epoch,
        state=0,
        assigned_partitions=[
            share.TopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
            for topic_id, numbers in assigned.items()
        ],
    )
    return pair(share.ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), 14, value)


def share_current_assignment_tombstone(group_id: str, member_id: str) -> KeyValue:
    return tombstone(share.ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), 14)


def share_state_topics(group_id: str, value: share.ShareGroupStatePartitionMetadataValue) -> KeyValue:
    return pair(share.ShareGroupStatePartitionMetadataKey(group_id=group_id), 15, value)


def share_state_topics_tombstone(group_id: str) -> KeyValue:
    return tombstone(share.ShareGroupStatePartitionMetadataKey(group_id=group_id), 15)
