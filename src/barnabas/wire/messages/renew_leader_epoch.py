"""RenewLeaderEpoch, API key 10004. Ours alone: a leader that has cut its log asks the controller for another epoch."""

from typing import ClassVar

from barnabas.wire.messages.base import ApiMessage, wire


class RenewLeaderEpochRequest(ApiMessage):
    API_KEY: ClassVar[int] = 10004
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    broker_id: int = wire("int32", "0+")
    topic: str = wire("string", "0+")
    partition: int = wire("int32", "0+")
    #: In which it leads. A higher one is enough: nothing happens then.
    leader_epoch: int = wire("int32", "0+")


class RenewLeaderEpochResponse(ApiMessage):
    API_KEY: ClassVar[int] = 10004
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    throttle_time_ms: int = wire("int32", "0+")
    error_code: int = wire("int16", "0+")
    error_message: str | None = wire("string", "0+", nullable="0+", default=None)
