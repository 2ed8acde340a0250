"""DeleteLink, API key 10003. Ours alone. The mirrors stay, and become ordinary topics only by promotion."""

from typing import ClassVar

from barnabas.wire.messages.base import ApiMessage, wire


class DeleteLinkRequest(ApiMessage):
    API_KEY: ClassVar[int] = 10003
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    name: str = wire("string", "0+")


class DeleteLinkResponse(ApiMessage):
    API_KEY: ClassVar[int] = 10003
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    throttle_time_ms: int = wire("int32", "0+")
    error_code: int = wire("int16", "0+")
    error_message: str | None = wire("string", "0+", nullable="0+", default=None)
