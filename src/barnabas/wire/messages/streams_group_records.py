"""Records of `__consumer_offsets`: streams groups (KIP-1071), as of Kafka 4.3."""

from typing import ClassVar

from barnabas.wire.messages.base import Message, Record, array, struct, wire


class TaskIds(Message):
    subtopology_id: str = wire("string", "0+")
    partitions: list[int] = array("int32", "0+")


class StreamsGroupMetadataKey(Record):
    MIN_VERSION: ClassVar[int] = 17
    MAX_VERSION: ClassVar[int] = 17
    FLEXIBLE_FROM: ClassVar[int] = 18

    group_id: str = wire("string", "17+")


class LastAssignmentConfig(Message):
    key: str = wire("string", "0+")
    value: str = wire("string", "0+")


class StreamsGroupMetadataValue(Record):
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    epoch: int = wire("int32", "0+")
    #: Changes when the topics of the topology do.
    metadata_hash: int = wire("int64", "0+")
    #: Epoch of the topology all of whose topics exist; -1: some are missing.
    validated_topology_epoch: int = wire("int32", "0+", default=-1, tag=0)
    #: Settings with which the last assignment was computed.
    last_assignment_configs: list[LastAssignmentConfig] | None = array(
        LastAssignmentConfig, "0+", default=None, nullable="0+", tag=1
    )


class StreamsGroupMemberMetadataKey(Record):
    MIN_VERSION: ClassVar[int] = 19
    MAX_VERSION: ClassVar[int] = 19
    FLEXIBLE_FROM: ClassVar[int] = 20

    group_id: str = wire("string", "19+")
    member_id: str = wire("string", "19+")


class Endpoint(Message):
    host: str = wire("string", "0+")
    port: int = wire("uint16", "0+")


class KeyValue(Message):
    key: str = wire("string", "0+")
    value: str = wire("string", "0+")


class StreamsGroupMemberMetadataValue(Record):
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    instance_id: str | None = wire("string", "0+", nullable="0+")
    rack_id: str | None = wire("string", "0+", nullable="0+")
    client_id: str = wire("string", "0+")
    client_host: str = wire("string", "0+")
    rebalance_timeout_ms: int = wire("int32", "0+", default=-1)
    topology_epoch: int = wire("int32", "0+")
    process_id: str = wire("string", "0+")
    user_endpoint: Endpoint | None = struct(Endpoint, "0+", default=None, nullable="0+")
    client_tags: list[KeyValue] = array(KeyValue, "0+")


class StreamsGroupTargetAssignmentMetadataKey(Record):
    MIN_VERSION: ClassVar[int] = 20
    MAX_VERSION: ClassVar[int] = 20
    FLEXIBLE_FROM: ClassVar[int] = 21

    group_id: str = wire("string", "20+")


class StreamsGroupTargetAssignmentMetadataValue(Record):
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    assignment_epoch: int = wire("int32", "0+")
    assignment_timestamp: int = wire("int64", "0+", default=0, tag=0)


class StreamsGroupTargetAssignmentMemberKey(Record):
    MIN_VERSION: ClassVar[int] = 21
    MAX_VERSION: ClassVar[int] = 21
    FLEXIBLE_FROM: ClassVar[int] = 22

    group_id: str = wire("string", "21+")
    member_id: str = wire("string", "21+")


class StreamsGroupTargetAssignmentMemberValue(Record):
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    active_tasks: list[TaskIds] = array(TaskIds, "0+")
    standby_tasks: list[TaskIds] = array(TaskIds, "0+")
    warmup_tasks: list[TaskIds] = array(TaskIds, "0+")


class StreamsGroupCurrentMemberAssignmentKey(Record):
    MIN_VERSION: ClassVar[int] = 22
    MAX_VERSION: ClassVar[int] = 22
    FLEXIBLE_FROM: ClassVar[int] = 23

    group_id: str = wire("string", "22+")
    member_id: str = wire("string", "22+")


class CurrentTaskIds(Message):
    """Kafka's name is TaskIds here, too; but this one has epochs."""

    subtopology_id: str = wire("string", "0+")
    partitions: list[int] = array("int32", "0+")
    #: Only for active tasks: the member epoch in which each partition was assigned.
    assignment_epochs: list[int] | None = array("int32", "0+", default=None, nullable="0+", tag=0)


class StreamsGroupCurrentMemberAssignmentValue(Record):
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    member_epoch: int = wire("int32", "0+")
    previous_member_epoch: int = wire("int32", "0+")
    state: int = wire("int8", "0+")
    active_tasks: list[CurrentTaskIds] = array(CurrentTaskIds, "0+")
    standby_tasks: list[CurrentTaskIds] = array(CurrentTaskIds, "0+")
    warmup_tasks: list[CurrentTaskIds] = array(CurrentTaskIds, "0+")
    active_tasks_pending_revocation: list[CurrentTaskIds] = array(CurrentTaskIds, "0+")
    standby_tasks_pending_revocation: list[CurrentTaskIds] = array(CurrentTaskIds, "0+")
    warmup_tasks_pending_revocation: list[CurrentTaskIds] = array(CurrentTaskIds, "0+")


class StreamsGroupTopologyKey(Record):
    MIN_VERSION: ClassVar[int] = 23
    MAX_VERSION: ClassVar[int] = 23
    FLEXIBLE_FROM: ClassVar[int] = 24

    group_id: str = wire("string", "23+")


class CopartitionGroup(Message):
    source_topics: list[int] = array("int16", "0+")
    source_topic_regex: list[int] = array("int16", "0+")
    repartition_source_topics: list[int] = array("int16", "0+")


class TopicConfig(Message):
    key: str = wire("string", "0+")
    value: str = wire("string", "0+")


class TopicInfo(Message):
    name: str = wire("string", "0+")
    partitions: int = wire("int32", "0+")
    replication_factor: int = wire("int16", "0+")
    topic_configs: list[TopicConfig] = array(TopicConfig, "0+")


class Subtopology(Message):
    subtopology_id: str = wire("string", "0+")
    source_topics: list[str] = array("string", "0+")
    source_topic_regex: list[str] = array("string", "0+")
    state_changelog_topics: list[TopicInfo] = array(TopicInfo, "0+")
    repartition_sink_topics: list[str] = array("string", "0+")
    repartition_source_topics: list[TopicInfo] = array(TopicInfo, "0+")
    copartition_groups: list[CopartitionGroup] = array(CopartitionGroup, "0+")


class StreamsGroupTopologyValue(Record):
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    epoch: int = wire("int32", "0+")
    subtopologies: list[Subtopology] = array(Subtopology, "0+")
