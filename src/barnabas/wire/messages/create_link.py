"""CreateLink, API key 10000. Ours alone: mirror topics of another cluster."""

from typing import ClassVar

from barnabas.wire.messages.base import ApiMessage, Message, array, wire


class LinkConfig(Message):
    name: str = wire("string", "0+")
    value: str = wire("string", "0+")


class CreateLinkRequest(ApiMessage):
    API_KEY: ClassVar[int] = 10000
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    name: str = wire("string", "0+")
    #: Of the client that reaches the source, and of the link itself (`link.*`).
    configs: list[LinkConfig] = array(LinkConfig, "0+")
    #: A regular expression that whole names match.
    topics: str = wire("string", "0+")
    #: The same for groups whose offsets are copied. Null: none.
    groups: str | None = wire("string", "0+", nullable="0+", default=None)
    acls: bool = wire("bool", "0+")
    #: earliest, latest, or a time in milliseconds.
    start: str = wire("string", "0+", default="earliest")
    #: A topic that was deleted and created again at the source is mirrored from its new beginning.
    restart_recreated: bool = wire("bool", "0+")
    #: Topics of these names that exist here and were promoted, or are the former source, become mirrors again.
    adopt: bool = wire("bool", "0+")


class CreateLinkResponse(ApiMessage):
    API_KEY: ClassVar[int] = 10000
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    throttle_time_ms: int = wire("int32", "0+")
    error_code: int = wire("int16", "0+")
    error_message: str | None = wire("string", "0+", nullable="0+", default=None)
