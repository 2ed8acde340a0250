"""The requests and responses of one connection, without the socket: encodes requests, matches response frames, in order.

Pure, and shared by the asyncio connection and the blocking one. Responses come in the order of the requests, and each
must carry the expected correlation id. Anything else is `Malformed`, which ends the connection.
"""

import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

from barnabas import __version__
from barnabas.base.errors import ErrorCode, Malformed
from barnabas.client.errors import UnsupportedVersion, check
from barnabas.client.image import NO_TOPIC_ID
from barnabas.wire import codec, frame
from barnabas.wire.codec_read import Budget
from barnabas.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.fetch import FetchRequest
from barnabas.wire.messages.offset_commit import OffsetCommitRequest
from barnabas.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopics
from barnabas.wire.messages.produce import ProduceRequest
from barnabas.wire.versions import VersionRange, api_of

R = TypeVar("R", bound=ApiMessage)
T = TypeVar("T")
P = TypeVar("P", bound="Pending")

SOFTWARE_NAME: Final = "barnabas"
#: While a connection is set up: whatever listens at the port must not make us take the memory of a large response.
SETUP_RESPONSE_BYTES_MAX: Final = 1024 * 1024

_SHORT: Final = struct.Struct(">h")
_UNSUPPORTED_VERSION: Final = int(ErrorCode.UNSUPPORTED_VERSION)


@dataclass(slots=True)
class BrokerVersions:
    """The response to ApiVersions, by API key."""

    apis: dict[int, VersionRange] = field(default_factory=dict)
    #: `feature name: (lowest, highest)` that the broker supports.
    supported_features: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: `feature name: (lowest, highest)` that the cluster has finalized.
    finalized_features: dict[str, tuple[int, int]] = field(default_factory=dict)

    def pick(self, message: type[ApiMessage]) -> int:
        """Return the highest version that both sides support."""
        served = self.apis.get(message.API_KEY)
        if served is None:
            raise UnsupportedVersion(f"the broker does not serve {api_name(message)} (key {message.API_KEY})")
        version = min(served.max_version, message.MAX_VERSION)
        if version < served.min_version or version < message.MIN_VERSION:
            raise UnsupportedVersion(
                f"{api_name(message)}: the broker serves versions {served.min_version} to {served.max_version}, "
                f"this client knows {message.MIN_VERSION} to {message.MAX_VERSION}"
            )
        return version


_UNNAMED: Final = (OffsetFetchRequestTopics(),)
#: The last versions that name topics, and the topics of a request: later versions have only ids.
_NAMES_UP_TO: Final[dict[int, tuple[int, Callable[[Any], Sequence[Any]]]]] = {
    ProduceRequest.API_KEY: (12, lambda request: request.topic_data),
    FetchRequest.API_KEY: (12, lambda request: request.topics),
    OffsetCommitRequest.API_KEY: (9, lambda request: request.topics),
    # A request without topics gets ids in the response that this client may not know.
    OffsetFetchRequest.API_KEY: (9, lambda request: request.groups[0].topics or _UNNAMED),
}


def version_with_names(message: ApiMessage, version: int) -> int:
    """Return at most the last version that names topics, unless the request knows the id of each of its topics."""
    if message.API_KEY not in _NAMES_UP_TO:
        return version
    named, topics_of = _NAMES_UP_TO[message.API_KEY]
    if version <= named or all(topic.topic_id != NO_TOPIC_ID for topic in topics_of(message)):
        return version
    return named


def api_name(message: type[ApiMessage]) -> str:
    return message.__name__.removesuffix("Request").removesuffix("Response")


@dataclass(slots=True, eq=False)
class Pending:
    """A request that was sent and has no response yet. Each shell adds the object that its caller waits for."""

    correlation_id: int
    name: str
    response_type: type[ApiMessage]
    version: int


@dataclass(frozen=True, slots=True)
class Incoming(Generic[P]):
    """A response that has come. It may be decoded by any thread."""

    pending: P
    response_type: type[ApiMessage]
    version: int
    data: memoryview
    offset: int

    def decode(self, budget: Budget | None) -> ApiMessage:
        """:raises Malformed: `TooManyElements` for more elements of arrays than the budget has; None allows any number."""
        if budget is None:
            return codec.decode(self.response_type, self.data, self.version, self.offset)
        end = len(self.data)
        message, position = codec.bounded_reader(self.response_type, self.version, budget)(self.data, self.offset, end)
        if position != end:
            raise Malformed(
                f"{self.response_type.__name__} v{self.version}: {end - position} bytes left over at {position}"
            )
        return message


class Exchange(Generic[P]):
    """`P` is the shell's own subclass of `Pending`."""

    def __init__(self, make_pending: type[P], *, client_id: str, response_bytes_max: int) -> None:
        self.client_id = client_id
        self.versions = BrokerVersions()
        #: Requests without a response, oldest first.
        self.unanswered: deque[P] = deque()
        self._make_pending = make_pending
        self._response_bytes_max = min(response_bytes_max, SETUP_RESPONSE_BYTES_MAX)
        self._full_response_bytes_max = response_bytes_max
        self._correlation_id = 0

    def set_up(self) -> None:
        """The server has said its versions and proved who it is, where it can: it may answer at length from now on."""
        self._response_bytes_max = self._full_response_bytes_max

    def request(
        self, message: ApiMessage, response_type: type[ApiMessage] | None, version: int | None
    ) -> tuple[bytes, P]:
        """Return the bytes to send. `version` defaults to the highest that both sides support."""
        if response_type is None:
            response_type = api_of(message.API_KEY).response_class
        if version is None:
            version = self.versions.pick(type(message))
        data = self.post(message, version)
        pending = self._make_pending(self._correlation_id, api_name(type(message)), response_type, version)
        self.unanswered.append(pending)
        return data, pending

    def post(self, message: ApiMessage, version: int | None) -> bytes:
        """Return the bytes of a request that gets no response: Produce with acks=0."""
        if version is None:
            version = self.versions.pick(type(message))
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return frame.encode_request(message, version, self._correlation_id, self.client_id)

    def check_size(self, size: int) -> None:
        """Check the size that a response claims before a buffer is allocated for it."""
        if not 4 <= size <= self._response_bytes_max:
            raise Malformed(f"a response of {size} bytes (this client takes up to {self._response_bytes_max})")

    def answer(self, data: memoryview) -> tuple[P, ApiMessage]:
        """Decode one frame (without its size); return the request that it belongs to, and the response."""
        incoming = self.expect(data)
        response = incoming.decode(None)
        self.unanswered.popleft()
        return incoming.pending, response

    def expect(self, data: memoryview) -> "Incoming[P]":
        """Match one frame without decoding it. The caller decodes it and then removes the request from `unanswered`."""
        if not self.unanswered:
            raise Malformed("a response without a request")
        pending = self.unanswered[0]
        response_type, version = pending.response_type, pending.version
        correlation_id, offset = frame.parse_response_header(response_type.API_KEY, version, data)
        if correlation_id != pending.correlation_id:
            raise Malformed(f"correlation id {correlation_id} where {pending.correlation_id} was due")
        if response_type is ApiVersionsResponse and _SHORT.unpack_from(data, offset)[0] == _UNSUPPORTED_VERSION:
            version = 0  # KIP-511: the broker does not support the version of the request
        return Incoming(pending, response_type, version, data, offset)


class Link(Protocol):
    """A connection as the core uses it, in either shell."""

    @property
    def address(self) -> str: ...

    @property
    def versions(self) -> BrokerVersions: ...

    @property
    def closed(self) -> bool: ...

    @property
    def in_flight(self) -> int: ...

    async def request(
        self, message: ApiMessage, response_type: type[R], *, version: int | None = None, timeout_ms: int
    ) -> R: ...

    async def compute(self, work: Callable[[], T]) -> T:
        """Do work whose length the server chose, without holding up other tasks."""
        ...

    def close(self) -> None: ...


async def negotiate(link: Link, timeout_ms: int) -> BrokerVersions:
    """KIP-511: try the newest ApiVersions. A broker without it answers in version 0 and lists its versions."""
    request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=__version__)
    version = ApiVersionsRequest.MAX_VERSION
    response = await link.request(request, ApiVersionsResponse, version=version, timeout_ms=timeout_ms)
    if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
        served = next((api.max_version for api in response.api_keys if api.api_key == ApiVersionsRequest.API_KEY), 0)
        version = max(0, min(served, ApiVersionsRequest.MAX_VERSION))
        response = await link.request(request, ApiVersionsResponse, version=version, timeout_ms=timeout_ms)
    check(response.error_code)
    return BrokerVersions(
        apis={api.api_key: VersionRange(api.min_version, api.max_version) for api in response.api_keys},
        supported_features={f.name: (f.min_version, f.max_version) for f in response.supported_features},
        finalized_features={f.name: (f.min_version_level, f.max_version_level) for f in response.finalized_features},
    )
