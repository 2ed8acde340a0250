"""Records of `__transaction_state`."""

from typing import ClassVar

from barnabas.wire.messages.base import Message, Record, array, wire


class TransactionLogKey(Record):
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 1

    transactional_id: str = wire("string", "0+")


class PartitionsSchema(Message):
    topic: str = wire("string", "0+")
    partition_ids: list[int] = array("int32", "0+")


class TransactionLogValue(Record):
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 1
    FLEXIBLE_FROM: ClassVar[int] = 1

    producer_id: int = wire("int64", "0+")
    previous_producer_id: int = wire("int64", "1+", default=-1, tag=0)
    next_producer_id: int = wire("int64", "1+", default=-1, tag=1)
    producer_epoch: int = wire("int16", "0+")
    transaction_timeout_ms: int = wire("int32", "0+")
    transaction_status: int = wire("int8", "0+")
    transaction_partitions: list[PartitionsSchema] | None = array(PartitionsSchema, "0+", nullable="0+")
    transaction_last_update_timestamp_ms: int = wire("int64", "0+")
    transaction_start_timestamp_ms: int = wire("int64", "0+")
    client_transaction_version: int = wire("int16", "1+", tag=2)
    #: KIP-939.
    next_producer_epoch: int = wire("int16", "1+", default=-1, tag=3)
