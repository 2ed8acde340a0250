"""Records of `__consumer_offsets`: share groups (KIP-932), as of Kafka 4.1."""

from typing import ClassVar

from barnabas.wire.messages.base import Message, Record, array, wire


class ShareGroupCurrentMemberAssignmentKey(Record):
    MIN_VERSION: ClassVar[int] = 14
    MAX_VERSION: ClassVar[int] = 14
    FLEXIBLE_FROM: ClassVar[int] = 15

    group_id: str = wire("string", "14+")
    member_id: str = wire("string", "14+")


class TopicPartitions(Message):
    topic_id: bytes = wire("uuid", "0+")
    partitions: list[int] = array("int32", "0+")


class ShareGroupCurrentMemberAssignmentValue(Record):
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    member_epoch: int = wire("int32", "0+")
    previous_member_epoch: int = wire("int32", "0+")
    state: int = wire("int8", "0+")
    assigned_partitions: list[TopicPartitions] = array(TopicPartitions, "0+")


class ShareGroupMemberMetadataKey(Record):
    MIN_VERSION: ClassVar[int] = 10
    MAX_VERSION: ClassVar[int] = 10
    FLEXIBLE_FROM: ClassVar[int] = 11

    group_id: str = wire("string", "10+")
    member_id: str = wire("string", "10+")


class ShareGroupMemberMetadataValue(Record):
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    rack_id: str | None = wire("string", "0+", nullable="0+")
    client_id: str = wire("string", "0+")
    client_host: str = wire("string", "0+")
    subscribed_topic_names: list[str] = array("string", "0+")


class ShareGroupMetadataKey(Record):
    MIN_VERSION: ClassVar[int] = 11
    MAX_VERSION: ClassVar[int] = 11
    FLEXIBLE_FROM: ClassVar[int] = 12

    group_id: str = wire("string", "11+")


class ShareGroupMetadataValue(Record):
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    epoch: int = wire("int32", "0+")
    #: Changes when the topics do to which the members subscribe.
    metadata_hash: int = wire("int64", "0+")


class ShareGroupStatePartitionMetadataKey(Record):
    MIN_VERSION: ClassVar[int] = 15
    MAX_VERSION: ClassVar[int] = 15
    FLEXIBLE_FROM: ClassVar[int] = 16

    group_id: str = wire("string", "15+")


class TopicPartitionsInfo(Message):
    topic_id: bytes = wire("uuid", "0+")
    topic_name: str = wire("string", "0+")
    partitions: list[int] = array("int32", "0+")


class TopicInfo(Message):
    topic_id: bytes = wire("uuid", "0+")
    topic_name: str = wire("string", "0+")


class ShareGroupStatePartitionMetadataValue(Record):
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    initializing_topics: list[TopicPartitionsInfo] = array(TopicPartitionsInfo, "0+")
    initialized_topics: list[TopicPartitionsInfo] = array(TopicPartitionsInfo, "0+")
    deleting_topics: list[TopicInfo] = array(TopicInfo, "0+")


class ShareGroupTargetAssignmentMemberKey(Record):
    MIN_VERSION: ClassVar[int] = 13
    MAX_VERSION: ClassVar[int] = 13
    FLEXIBLE_FROM: ClassVar[int] = 14

    group_id: str = wire("string", "13+")
    member_id: str = wire("string", "13+")


class TopicPartition(Message):
    topic_id: bytes = wire("uuid", "0+")
    partitions: list[int] = array("int32", "0+")


class ShareGroupTargetAssignmentMemberValue(Record):
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    topic_partitions: list[TopicPartition] = array(TopicPartition, "0+")


class ShareGroupTargetAssignmentMetadataKey(Record):
    MIN_VERSION: ClassVar[int] = 12
    MAX_VERSION: ClassVar[int] = 12
    FLEXIBLE_FROM: ClassVar[int] = 13

    group_id: str = wire("string", "12+")


class ShareGroupTargetAssignmentMetadataValue(Record):
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    assignment_epoch: int = wire("int32", "0+")
