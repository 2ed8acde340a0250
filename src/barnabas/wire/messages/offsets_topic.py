"""Records of `__consumer_offsets`: offsets and classic groups."""

from typing import ClassVar

from barnabas.wire.messages.base import Message, Record, array, wire


class OffsetCommitKey(Record):
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 1
    FLEXIBLE_FROM: ClassVar[int] = 2

    group: str = wire("string", "0+")
    topic: str = wire("string", "0+")
    partition: int = wire("int32", "0+")


class OffsetCommitValue(Record):
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 4
    FLEXIBLE_FROM: ClassVar[int] = 4

    offset: int = wire("int64", "0+")
    leader_epoch: int = wire("int32", "3+", default=-1)
    metadata: str = wire("string", "0+")
    commit_timestamp: int = wire("int64", "0+")
    expire_timestamp: int = wire("int64", "1", default=-1)


class GroupMetadataKey(Record):
    MIN_VERSION: ClassVar[int] = 2
    MAX_VERSION: ClassVar[int] = 2
    FLEXIBLE_FROM: ClassVar[int] = 3

    group: str = wire("string", "2+")


class MemberMetadata(Message):
    member_id: str = wire("string", "0+")
    group_instance_id: str | None = wire("string", "3+", default=None, nullable="3+")
    client_id: str = wire("string", "0+")
    client_host: str = wire("string", "0+")
    rebalance_timeout: int = wire("int32", "1+", default=-1)
    session_timeout: int = wire("int32", "0+")
    subscription: bytes = wire("bytes", "0+")
    assignment: bytes = wire("bytes", "0+")


class GroupMetadataValue(Record):
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 4
    FLEXIBLE_FROM: ClassVar[int] = 4

    protocol_type: str = wire("string", "0+")
    generation: int = wire("int32", "0+")
    protocol: str | None = wire("string", "0+", nullable="0+")
    leader: str | None = wire("string", "0+", nullable="0+")
    current_state_timestamp: int = wire("int64", "2+", default=-1)
    members: list[MemberMetadata] = array(MemberMetadata, "0+")
