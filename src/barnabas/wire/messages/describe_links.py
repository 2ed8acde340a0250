"""DescribeLinks, API key 10001. Ours alone. Each broker tells what all know, and how far the partitions are that it leads."""

from typing import ClassVar

from barnabas.wire.messages.base import ApiMessage, Message, array, wire


class DescribeLinksRequest(ApiMessage):
    API_KEY: ClassVar[int] = 10001
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    #: Null: all.
    names: list[str] | None = array("string", "0+", nullable="0+", default=None)
    #: With the partitions that this broker leads.
    include_partitions: bool = wire("bool", "0+", default=True)


class DescribedLinkConfig(Message):
    name: str = wire("string", "0+")
    #: Null: a secret.
    value: str | None = wire("string", "0+", nullable="0+", default=None)


class DescribedEpoch(Message):
    epoch: int = wire("int32", "0+")
    start_offset: int = wire("int64", "0+")


class DescribedMirrorPartition(Message):
    partition: int = wire("int32", "0+")
    #: mirroring, waiting, failed, final
    state: str = wire("string", "0+")
    error: str | None = wire("string", "0+", nullable="0+", default=None)
    log_start_offset: int = wire("int64", "0+", default=-1)
    log_end_offset: int = wire("int64", "0+", default=-1)
    high_watermark: int = wire("int64", "0+", default=-1)
    #: The source's high watermark when it was last heard of; -1: never.
    source_offset: int = wire("int64", "0+", default=-1)
    lag_records: int = wire("int64", "0+", default=-1)
    lag_ms: int = wire("int64", "0+", default=-1)
    source_leader: int = wire("int32", "0+", default=-1)
    open_transactions: int = wire("int32", "0+")
    bytes_per_second: float = wire("float64", "0+")
    #: What was cut from this mirror since this broker leads it, in records.
    truncated_records: int = wire("int64", "0+")
    #: Where it ended when it was promoted, before the markers that ended its transactions; -1: not yet.
    final_offset: int = wire("int64", "0+", default=-1)
    #: The source's leader epochs, for a former source that is to follow.
    epochs: list[DescribedEpoch] = array(DescribedEpoch, "0+")


class DescribedMirrorTopic(Message):
    name: str = wire("string", "0+")
    state: str = wire("string", "0+")
    reason: str | None = wire("string", "0+", nullable="0+", default=None)
    source_topic_id: bytes = wire("uuid", "0+")
    #: How many it has here; 0 while it does not exist.
    partition_count: int = wire("int32", "0+")
    partitions: list[DescribedMirrorPartition] = array(DescribedMirrorPartition, "0+")


class DescribedLink(Message):
    name: str = wire("string", "0+")
    #: active, paused, refused
    state: str = wire("string", "0+")
    #: What this broker has to say of the link as a whole: the source cannot be reached, a setting is wrong.
    error: str | None = wire("string", "0+", nullable="0+", default=None)
    configs: list[DescribedLinkConfig] = array(DescribedLinkConfig, "0+")
    topics_pattern: str = wire("string", "0+")
    groups_pattern: str | None = wire("string", "0+", nullable="0+", default=None)
    acls: bool = wire("bool", "0+")
    start: str = wire("string", "0+")
    restart_recreated: bool = wire("bool", "0+")
    adopt: bool = wire("bool", "0+")
    source_cluster_id: str | None = wire("string", "0+", nullable="0+", default=None)
    #: Groups whose offsets this broker has copied.
    groups_copied: int = wire("int32", "0+")
    #: How often it has looked at them, since it started.
    group_turns: int = wire("int64", "0+")
    topics: list[DescribedMirrorTopic] = array(DescribedMirrorTopic, "0+")


class DescribeLinksResponse(ApiMessage):
    API_KEY: ClassVar[int] = 10001
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    throttle_time_ms: int = wire("int32", "0+")
    error_code: int = wire("int16", "0+")
    error_message: str | None = wire("string", "0+", nullable="0+", default=None)
    links: list[DescribedLink] = array(DescribedLink, "0+")
