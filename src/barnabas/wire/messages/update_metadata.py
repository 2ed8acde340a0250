"""UpdateMetadata, API key 6. Of Kafka 3.9, written by hand: Kafka 4 and kio have it no more."""

from typing import ClassVar

from barnabas.wire.messages.base import ApiMessage, Message, array, wire


class UpdateMetadataPartitionState(Message):
    topic_name: str = wire("string", "0-4")
    partition_index: int = wire("int32", "0+")
    controller_epoch: int = wire("int32", "0+")
    leader: int = wire("int32", "0+")
    leader_epoch: int = wire("int32", "0+")
    isr: list[int] = array("int32", "0+")
    zk_version: int = wire("int32", "0+")
    replicas: list[int] = array("int32", "0+")
    offline_replicas: list[int] = array("int32", "4+")


class UpdateMetadataEndpoint(Message):
    port: int = wire("int32", "1+")
    host: str = wire("string", "1+")
    listener: str = wire("string", "3+")
    security_protocol: int = wire("int16", "1+")


class UpdateMetadataTopicState(Message):
    topic_name: str = wire("string", "5+")
    topic_id: bytes = wire("uuid", "7+")
    partition_states: list[UpdateMetadataPartitionState] = array(UpdateMetadataPartitionState, "5+")


class UpdateMetadataBroker(Message):
    id: int = wire("int32", "0+")
    v0_host: str = wire("string", "0")
    v0_port: int = wire("int32", "0")
    endpoints: list[UpdateMetadataEndpoint] = array(UpdateMetadataEndpoint, "1+")
    rack: str | None = wire("string", "2+", nullable="2+")


class UpdateMetadataRequest(ApiMessage):
    API_KEY: ClassVar[int] = 6
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 8
    FLEXIBLE_FROM: ClassVar[int] = 6

    controller_id: int = wire("int32", "0+")
    is_kraft_controller: bool = wire("bool", "8+")
    type: int = wire("int8", "8+", tag=0)
    controller_epoch: int = wire("int32", "0+")
    broker_epoch: int = wire("int64", "5+", default=-1)
    ungrouped_partition_states: list[UpdateMetadataPartitionState] = array(UpdateMetadataPartitionState, "0-4")
    topic_states: list[UpdateMetadataTopicState] = array(UpdateMetadataTopicState, "5+")
    live_brokers: list[UpdateMetadataBroker] = array(UpdateMetadataBroker, "0+")


class UpdateMetadataResponse(ApiMessage):
    API_KEY: ClassVar[int] = 6
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 8
    FLEXIBLE_FROM: ClassVar[int] = 6

    error_code: int = wire("int16", "0+")
