"""Records of `__remote_log_metadata` (KIP-405). `features.tiered.metadata_records` frames them."""

from typing import ClassVar

from barnabas.wire.messages.base import Message, Record, array, struct, wire


class TopicIdPartitionEntry(Message):
    name: str = wire("string", "0+")
    id: bytes = wire("uuid", "0+")
    partition: int = wire("int32", "0+")


class RemoteLogSegmentIdEntry(Message):
    topic_id_partition: TopicIdPartitionEntry = struct(TopicIdPartitionEntry, "0+")
    id: bytes = wire("uuid", "0+")


class SegmentLeaderEpochEntry(Message):
    leader_epoch: int = wire("int32", "0+")
    offset: int = wire("int64", "0+")


class RemoteLogSegmentMetadataRecord(Record):
    TYPE: ClassVar[int] = 0
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    remote_log_segment_id: RemoteLogSegmentIdEntry = struct(RemoteLogSegmentIdEntry, "0+")
    start_offset: int = wire("int64", "0+")
    end_offset: int = wire("int64", "0+")
    broker_id: int = wire("int32", "0+")
    max_timestamp_ms: int = wire("int64", "0+")
    event_timestamp_ms: int = wire("int64", "0+")
    segment_leader_epochs: list[SegmentLeaderEpochEntry] = array(SegmentLeaderEpochEntry, "0+")
    segment_size_in_bytes: int = wire("int32", "0+")
    custom_metadata: bytes | None = wire("bytes", "0+", default=None, nullable="0+")
    remote_log_segment_state: int = wire("int8", "0+")
    #: KIP-1058, Kafka 4.0; 3.9 passes it over.
    txn_index_empty: bool = wire("bool", "0+", tag=0)


class RemoteLogSegmentMetadataUpdateRecord(Record):
    TYPE: ClassVar[int] = 1
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    remote_log_segment_id: RemoteLogSegmentIdEntry = struct(RemoteLogSegmentIdEntry, "0+")
    broker_id: int = wire("int32", "0+")
    event_timestamp_ms: int = wire("int64", "0+")
    custom_metadata: bytes | None = wire("bytes", "0+", default=None, nullable="0+")
    remote_log_segment_state: int = wire("int8", "0+")


class RemotePartitionDeleteMetadataRecord(Record):
    TYPE: ClassVar[int] = 2
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    topic_id_partition: TopicIdPartitionEntry = struct(TopicIdPartitionEntry, "0+")
    broker_id: int = wire("int32", "0+")
    event_timestamp_ms: int = wire("int64", "0+")
    remote_partition_delete_state: int = wire("int8", "0+")
