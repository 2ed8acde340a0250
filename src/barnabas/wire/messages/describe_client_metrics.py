"""DescribeClientMetrics, API key 10005. Ours alone. The clients that push metrics (KIP-714) to the answering broker."""

from typing import ClassVar

from barnabas.wire.messages.base import ApiMessage, Message, array, wire


class DescribeClientMetricsRequest(ApiMessage):
    API_KEY: ClassVar[int] = 10005
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    #: Names of the metrics to return. Null: all.
    metrics: list[str] | None = array("string", "0+", nullable="0+", default=None)


class DescribedLabel(Message):
    key: str = wire("string", "0+")
    value: str = wire("string", "0+")


class DescribedSeries(Message):
    name: str = wire("string", "0+")
    labels: list[DescribedLabel] = array(DescribedLabel, "0+")
    value: float = wire("float64", "0+")


class DescribedRequests(Message):
    """The requests of one API that the client has sent to this broker since it pushes."""

    api_key: int = wire("int16", "0+")
    count: int = wire("int64", "0+")
    #: From the arrival of a request to the sending of its answer, all requests together.
    total_ms: float = wire("float64", "0+")
    #: The part of it that requests have waited for records, replicas or members.
    waiting_ms: float = wire("float64", "0+")


class DescribedClient(Message):
    client_instance_id: bytes = wire("uuid", "0+")
    client_id: str | None = wire("string", "0+", nullable="0+", default=None)
    software_name: str = wire("string", "0+")
    software_version: str = wire("string", "0+")
    principal: str = wire("string", "0+")
    address: str = wire("string", "0+")
    interval_ms: int = wire("int32", "0+")
    #: Time since its last push.
    pushed_ms_ago: int = wire("int64", "0+")
    #: Whether the last push said that the client ends.
    is_ended: bool = wire("bool", "0+")
    series: list[DescribedSeries] = array(DescribedSeries, "0+")
    requests: list[DescribedRequests] = array(DescribedRequests, "0+")


class DescribeClientMetricsResponse(ApiMessage):
    API_KEY: ClassVar[int] = 10005
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    throttle_time_ms: int = wire("int32", "0+")
    error_code: int = wire("int16", "0+")
    error_message: str | None = wire("string", "0+", nullable="0+", default=None)
    clients: list[DescribedClient] = array(DescribedClient, "0+")
