"""Records of `__share_group_state`: the state of share partitions (KIP-932)."""

from typing import ClassVar

from barnabas.wire.messages.base import Message, Record, array, wire


class ShareSnapshotKey(Record):
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 1

    group_id: str = wire("string", "0+")
    topic_id: bytes = wire("uuid", "0+")
    partition: int = wire("int32", "0+")


class StateBatch(Message):
    first_offset: int = wire("int64", "0+")
    last_offset: int = wire("int64", "0+")
    delivery_state: int = wire("int8", "0+")
    delivery_count: int = wire("int16", "0+")


class ShareSnapshotValue(Record):
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    snapshot_epoch: int = wire("int32", "0+")
    state_epoch: int = wire("int32", "0+")
    leader_epoch: int = wire("int32", "0+")
    start_offset: int = wire("int64", "0+")
    #: KIP-1226.
    delivery_complete_count: int = wire("int32", "0+", default=-1, tag=0)
    create_timestamp: int = wire("int64", "0+")
    write_timestamp: int = wire("int64", "0+")
    state_batches: list[StateBatch] = array(StateBatch, "0+")


class ShareUpdateKey(Record):
    MIN_VERSION: ClassVar[int] = 1
    MAX_VERSION: ClassVar[int] = 1
    FLEXIBLE_FROM: ClassVar[int] = 2

    group_id: str = wire("string", "1+")
    topic_id: bytes = wire("uuid", "1+")
    partition: int = wire("int32", "1+")


class ShareUpdateValue(Record):
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    snapshot_epoch: int = wire("int32", "0+")
    leader_epoch: int = wire("int32", "0+")
    #: -1: it does not change.
    start_offset: int = wire("int64", "0+")
    delivery_complete_count: int = wire("int32", "0+", default=-1, tag=0)
    state_batches: list[StateBatch] = array(StateBatch, "0+")
