"""Records of `__consumer_offsets`: consumer groups of KIP-848."""

from typing import ClassVar

from barnabas.wire.messages.base import Message, Record, array, struct, wire


class ConsumerGroupCurrentMemberAssignmentKey(Record):
    MIN_VERSION: ClassVar[int] = 8
    MAX_VERSION: ClassVar[int] = 8
    FLEXIBLE_FROM: ClassVar[int] = 9

    group_id: str = wire("string", "8+")
    member_id: str = wire("string", "8+")


class TopicPartitions(Message):
    topic_id: bytes = wire("uuid", "0+")
    partitions: list[int] = array("int32", "0+")


class ConsumerGroupCurrentMemberAssignmentValue(Record):
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    member_epoch: int = wire("int32", "0+")
    previous_member_epoch: int = wire("int32", "0+")
    state: int = wire("int8", "0+")
    assigned_partitions: list[TopicPartitions] = array(TopicPartitions, "0+")
    partitions_pending_revocation: list[TopicPartitions] = array(TopicPartitions, "0+")


class ConsumerGroupMemberMetadataKey(Record):
    MIN_VERSION: ClassVar[int] = 5
    MAX_VERSION: ClassVar[int] = 5
    FLEXIBLE_FROM: ClassVar[int] = 6

    group_id: str = wire("string", "5+")
    member_id: str = wire("string", "5+")


class ClassicProtocol(Message):
    name: str = wire("string", "0+")
    metadata: bytes = wire("bytes", "0+")


class ClassicMemberMetadata(Message):
    session_timeout_ms: int = wire("int32", "0+")
    supported_protocols: list[ClassicProtocol] = array(ClassicProtocol, "0+")


class ConsumerGroupMemberMetadataValue(Record):
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    instance_id: str | None = wire("string", "0+", nullable="0+")
    rack_id: str | None = wire("string", "0+", nullable="0+")
    client_id: str = wire("string", "0+")
    client_host: str = wire("string", "0+")
    subscribed_topic_names: list[str] = array("string", "0+")
    subscribed_topic_regex: str | None = wire("string", "0+", nullable="0+")
    rebalance_timeout_ms: int = wire("int32", "0+", default=-1)
    server_assignor: str | None = wire("string", "0+", nullable="0+")
    classic_member_metadata: ClassicMemberMetadata | None = struct(ClassicMemberMetadata, "0+", nullable="0+", tag=0)


class ConsumerGroupMetadataKey(Record):
    MIN_VERSION: ClassVar[int] = 3
    MAX_VERSION: ClassVar[int] = 3
    FLEXIBLE_FROM: ClassVar[int] = 4

    group_id: str = wire("string", "3+")


class ConsumerGroupMetadataValue(Record):
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    epoch: int = wire("int32", "0+")


class ConsumerGroupPartitionMetadataKey(Record):
    MIN_VERSION: ClassVar[int] = 4
    MAX_VERSION: ClassVar[int] = 4
    FLEXIBLE_FROM: ClassVar[int] = 5

    group_id: str = wire("string", "4+")


class PartitionMetadata(Message):
    partition: int = wire("int32", "0+")
    racks: list[str] = array("string", "0+")


class TopicMetadata(Message):
    topic_id: bytes = wire("uuid", "0+")
    topic_name: str = wire("string", "0+")
    num_partitions: int = wire("int32", "0+")
    partition_metadata: list[PartitionMetadata] = array(PartitionMetadata, "0+")


class ConsumerGroupPartitionMetadataValue(Record):
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    topics: list[TopicMetadata] = array(TopicMetadata, "0+")


class ConsumerGroupTargetAssignmentMemberKey(Record):
    MIN_VERSION: ClassVar[int] = 7
    MAX_VERSION: ClassVar[int] = 7
    FLEXIBLE_FROM: ClassVar[int] = 8

    group_id: str = wire("string", "7+")
    member_id: str = wire("string", "7+")


class TopicPartition(Message):
    topic_id: bytes = wire("uuid", "0+")
    partitions: list[int] = array("int32", "0+")


class ConsumerGroupTargetAssignmentMemberValue(Record):
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    topic_partitions: list[TopicPartition] = array(TopicPartition, "0+")


class ConsumerGroupTargetAssignmentMetadataKey(Record):
    MIN_VERSION: ClassVar[int] = 6
    MAX_VERSION: ClassVar[int] = 6
    FLEXIBLE_FROM: ClassVar[int] = 7

    group_id: str = wire("string", "6+")


class ConsumerGroupTargetAssignmentMetadataValue(Record):
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    assignment_epoch: int = wire("int32", "0+")


class ConsumerGroupRegularExpressionKey(Record):
    """Of Kafka 4: what a member's regular expression matched."""

    MIN_VERSION: ClassVar[int] = 16
    MAX_VERSION: ClassVar[int] = 16
    FLEXIBLE_FROM: ClassVar[int] = 17

    group_id: str = wire("string", "16+")
    regular_expression: str = wire("string", "16+")


class ConsumerGroupRegularExpressionValue(Record):
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    topics: list[str] = array("string", "0+")
    version: int = wire("int64", "0+")
    timestamp: int = wire("int64", "0+")
