"""AlterLink, API key 10002. Ours alone: pause, resume, promote."""

from typing import ClassVar

from barnabas.wire.messages.base import ApiMessage, wire


class AlterLinkRequest(ApiMessage):
    API_KEY: ClassVar[int] = 10002
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    name: str = wire("string", "0+")
    #: Null: the whole link.
    topic: str | None = wire("string", "0+", nullable="0+", default=None)
    #: pause, resume, promote, promote-now
    action: str = wire("string", "0+")


class AlterLinkResponse(ApiMessage):
    API_KEY: ClassVar[int] = 10002
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    throttle_time_ms: int = wire("int32", "0+")
    error_code: int = wire("int16", "0+")
    error_message: str | None = wire("string", "0+", nullable="0+", default=None)
