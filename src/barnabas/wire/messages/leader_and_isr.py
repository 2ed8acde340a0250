"""LeaderAndIsr, API key 4. Of Kafka 3.9, written by hand: Kafka 4 and kio have it no more."""

from typing import ClassVar

from barnabas.wire.messages.base import ApiMessage, Message, array, wire


class LeaderAndIsrPartitionState(Message):
    topic_name: str = wire("string", "0-1")
    partition_index: int = wire("int32", "0+")
    controller_epoch: int = wire("int32", "0+")
    leader: int = wire("int32", "0+")
    leader_epoch: int = wire("int32", "0+")
    isr: list[int] = array("int32", "0+")
    partition_epoch: int = wire("int32", "0+")
    replicas: list[int] = array("int32", "0+")
    adding_replicas: list[int] = array("int32", "3+")
    removing_replicas: list[int] = array("int32", "3+")
    is_new: bool = wire("bool", "1+")
    leader_recovery_state: int = wire("int8", "6+")


class LeaderAndIsrLiveLeader(Message):
    broker_id: int = wire("int32", "0+")
    host_name: str = wire("string", "0+")
    port: int = wire("int32", "0+")


class LeaderAndIsrTopicState(Message):
    topic_name: str = wire("string", "2+")
    topic_id: bytes = wire("uuid", "5+")
    partition_states: list[LeaderAndIsrPartitionState] = array(LeaderAndIsrPartitionState, "2+")


class LeaderAndIsrRequest(ApiMessage):
    API_KEY: ClassVar[int] = 4
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 7
    FLEXIBLE_FROM: ClassVar[int] = 4

    controller_id: int = wire("int32", "0+")
    is_kraft_controller: bool = wire("bool", "7+")
    controller_epoch: int = wire("int32", "0+")
    broker_epoch: int = wire("int64", "2+", default=-1)
    type: int = wire("int8", "5+")
    ungrouped_partition_states: list[LeaderAndIsrPartitionState] = array(LeaderAndIsrPartitionState, "0-1")
    topic_states: list[LeaderAndIsrTopicState] = array(LeaderAndIsrTopicState, "2+")
    live_leaders: list[LeaderAndIsrLiveLeader] = array(LeaderAndIsrLiveLeader, "0+")


class LeaderAndIsrPartitionError(Message):
    topic_name: str = wire("string", "0-4")
    partition_index: int = wire("int32", "0+")
    error_code: int = wire("int16", "0+")


class LeaderAndIsrTopicError(Message):
    topic_id: bytes = wire("uuid", "5+")
    partition_errors: list[LeaderAndIsrPartitionError] = array(LeaderAndIsrPartitionError, "5+")


class LeaderAndIsrResponse(ApiMessage):
    API_KEY: ClassVar[int] = 4
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 7
    FLEXIBLE_FROM: ClassVar[int] = 4

    error_code: int = wire("int16", "0+")
    partition_errors: list[LeaderAndIsrPartitionError] = array(LeaderAndIsrPartitionError, "0-4")
    topics: list[LeaderAndIsrTopicError] = array(LeaderAndIsrTopicError, "5+")
