"""ControlledShutdown, API key 7. Of Kafka 3.9, written by hand: Kafka 4 and kio have it no more."""

from typing import ClassVar

from barnabas.wire.messages.base import ApiMessage, Message, array, wire


class ControlledShutdownRequest(ApiMessage):
    API_KEY: ClassVar[int] = 7
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 3
    FLEXIBLE_FROM: ClassVar[int] = 3

    broker_id: int = wire("int32", "0+")
    broker_epoch: int = wire("int64", "2+", default=-1)


class RemainingPartition(Message):
    topic_name: str = wire("string", "0+")
    partition_index: int = wire("int32", "0+")


class ControlledShutdownResponse(ApiMessage):
    API_KEY: ClassVar[int] = 7
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 3
    FLEXIBLE_FROM: ClassVar[int] = 3

    error_code: int = wire("int16", "0+")
    remaining_partitions: list[RemainingPartition] = array(RemainingPartition, "0+")
