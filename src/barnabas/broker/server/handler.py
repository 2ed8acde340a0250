"""An API as a broker serves it, and the decorator with which a family of APIs declares its handlers.

A family is a class with a method for each API:

    class OffsetsApi:
        @serves("ListOffsets", refusal("topics.partitions <- topics.partitions"))
        def list_offsets(self, call: Call, request: ListOffsetsRequest) -> HandlerResult: ...

`handlers_of(family)` finds these methods. Versions come from the table of the protocol (`barnabas.wire.versions`).
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from barnabas.base.errors import ErrorCode
from barnabas.broker.server.call import Call
from barnabas.broker.server.ranges import Part
from barnabas.broker.server.refusal import Refusal
from barnabas.wire.codec import RecordsRef
from barnabas.wire.frame import response_writer, response_writers
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.versions import API_VERSIONS, Api, api_named

#: A response, an awaitable of one, or None: the handler keeps the call and answers it later.
HandlerResult = ApiMessage | Awaitable[ApiMessage | None] | None
Execute = Callable[[Call, Any], HandlerResult]
Refuse = Callable[[Any, ErrorCode, str | None], ApiMessage]
M = TypeVar("M", bound=Callable[..., Any])


class ApiHandler:
    """One API as this broker serves it."""

    def __init__(
        self, api: Api, execute: Execute, refuse: Refuse, *, min_version: int | None = None, sends_files: bool = False
    ) -> None:
        self.api = api
        self.api_key = api.key
        self.name = api.name
        #: Differs from the advertised version only for Produce: older librdkafka needs to see v0, and never sends it.
        self.min_version = api.min_version if min_version is None else min_version
        self.max_version = api.max_version
        self.execute = execute
        #: Builds the response to a request that is refused as a whole, with the error in every place that the response has for
        #: it.
        self.refuse = refuse
        #: Whether its responses carry file ranges in a records field.
        self.sends_files = sends_files

    def encode(self, call: Call, response: ApiMessage) -> Sequence[Part]:
        """Return the whole frame. File ranges in a records field become separate parts."""
        version = call.api_version
        if self.api_key == API_VERSIONS and not self.min_version <= version <= self.max_version:
            version = 0  # KIP-511: a client newer than this broker can read v0
        cls = response.__class__
        pieces = (response_writers.get((cls, version)) or response_writer(cls, version))(response, call.correlation_id)
        if not self.sends_files:
            return pieces  # type: ignore[return-value]  # without refs they are bytes
        parts: list[Part] = []
        for piece in pieces:
            if piece.__class__ is RecordsRef:
                parts += piece.payload  # type: ignore[arg-type]  # the payload of our own refs
            else:
                parts.append(piece)  # type: ignore[arg-type]
        return parts


class _Served(NamedTuple):
    name: str
    refuse: Refusal | Refuse
    min_version: int | None
    sends_files: bool


def serves(
    name: str, refuse: Refusal | Refuse, *, min_version: int | None = None, sends_files: bool = False
) -> Callable[[M], M]:
    """Declare that the decorated method handles this API."""
    served = _Served(name, refuse, min_version, sends_files)

    def mark(method: M) -> M:
        method.__served__ = served  # type: ignore[attr-defined]
        return method

    return mark


def handlers_of(family: object) -> Iterator[ApiHandler]:
    for kind in type(family).__mro__:
        for name, function in vars(kind).items():
            served: _Served | None = getattr(function, "__served__", None)
            if served is None:
                continue
            api = api_named(served.name)
            refuse = served.refuse.of(api) if isinstance(served.refuse, Refusal) else served.refuse
            yield ApiHandler(
                api,
                getattr(family, name),
                refuse,
                min_version=served.min_version,
                sends_files=served.sends_files,
            )
