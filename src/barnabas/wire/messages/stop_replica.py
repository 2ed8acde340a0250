"""StopReplica, API key 5. Of Kafka 3.9, written by hand: Kafka 4 and kio have it no more."""

from typing import ClassVar

from barnabas.wire.messages.base import ApiMessage, Message, array, wire


class StopReplicaPartitionV0(Message):
    topic_name: str = wire("string", "0")
    partition_index: int = wire("int32", "0")


class StopReplicaTopicV1(Message):
    name: str = wire("string", "1-2")
    partition_indexes: list[int] = array("int32", "1-2")


class StopReplicaPartitionState(Message):
    partition_index: int = wire("int32", "3+")
    leader_epoch: int = wire("int32", "3+", default=-1)
    delete_partition: bool = wire("bool", "3+")


class StopReplicaTopicState(Message):
    topic_name: str = wire("string", "3+")
    partition_states: list[StopReplicaPartitionState] = array(StopReplicaPartitionState, "3+")


class StopReplicaRequest(ApiMessage):
    API_KEY: ClassVar[int] = 5
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 4
    FLEXIBLE_FROM: ClassVar[int] = 2

    controller_id: int = wire("int32", "0+")
    is_kraft_controller: bool = wire("bool", "4+")
    controller_epoch: int = wire("int32", "0+")
    broker_epoch: int = wire("int64", "1+", default=-1)
    delete_partitions: bool = wire("bool", "0-2")
    ungrouped_partitions: list[StopReplicaPartitionV0] = array(StopReplicaPartitionV0, "0")
    topics: list[StopReplicaTopicV1] = array(StopReplicaTopicV1, "1-2")
    topic_states: list[StopReplicaTopicState] = array(StopReplicaTopicState, "3+")


class StopReplicaPartitionError(Message):
    topic_name: str = wire("string", "0+")
    partition_index: int = wire("int32", "0+")
    error_code: int = wire("int16", "0+")


class StopReplicaResponse(ApiMessage):
    API_KEY: ClassVar[int] = 5
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 4
    FLEXIBLE_FROM: ClassVar[int] = 2

    error_code: int = wire("int16", "0+")
    partition_errors: list[StopReplicaPartitionError] = array(StopReplicaPartitionError, "0+")
