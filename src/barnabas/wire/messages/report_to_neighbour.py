"""ReportToNeighbour, API key 10006. Ours alone. A broker tells another one that it runs, and whether it reaches ZooKeeper."""

from typing import ClassVar

from barnabas.wire.messages.base import ApiMessage, wire


class ReportToNeighbourRequest(ApiMessage):
    API_KEY: ClassVar[int] = 10006
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    #: The sender.
    broker_id: int = wire("int32", "0+")
    #: For how long the sender has had no connection to ZooKeeper; -1 if it has one.
    zookeeper_away_ms: int = wire("int64", "0+", default=-1)


class ReportToNeighbourResponse(ApiMessage):
    API_KEY: ClassVar[int] = 10006
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    throttle_time_ms: int = wire("int32", "0+")
    error_code: int = wire("int16", "0+")
    error_message: str | None = wire("string", "0+", nullable="0+", default=None)
    #: The answering broker's clock.
    now_ms: int = wire("int64", "0+", default=-1)
