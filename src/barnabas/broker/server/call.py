"""One request on its way through the broker: who sent it, when it went where, and how it is answered."""

import logging
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Protocol

from barnabas.base.words import AclOperation, AclResourceType
from barnabas.broker.runtime.purgatory import DelayedOperation
from barnabas.broker.runtime.threads import OnThread
from barnabas.broker.security.principal import Principal
from barnabas.broker.server.ranges import Part
from barnabas.wire.messages.base import ApiMessage

if TYPE_CHECKING:
    from barnabas.broker.server.handler import ApiHandler
    from barnabas.broker.server.request_quota import RequestQuota

log = logging.getLogger(__name__)


class Gate(Protocol):
    """Stands before the handlers of a connection that must say who it is."""

    #: The largest frame while it is closed.
    frame_bytes_max: int

    @property
    def is_open(self) -> bool: ...

    @property
    def raw(self) -> "ApiHandler | None":
        """Takes the next frame whole, as a SASL token, where that is due."""
        ...

    def admit(self, api_key: int) -> None:
        """Raises `Malformed` for a request that may not come now."""
        ...


class Channel(Protocol):
    """What a call knows of the connection that it came on."""

    principal: Principal
    gate: Gate | None
    listener_name: str
    peer_host: str
    #: The client id of the last request; kept only where faults are injected.
    client_id: str

    def answered(self, call: "Call") -> None:
        """The call has its answer; send what is ready, in order."""
        ...

    def resume(self) -> None:
        """The connection may be able to start its next request."""
        ...

    def fail(self, why: str) -> None:
        """Close the connection: the peer broke the protocol."""
        ...

    def authenticated(self, principal: Principal) -> None:
        """The peer has proved who it is."""
        ...

    def finish(self) -> None:
        """Close the connection when what is being answered has gone out; start nothing more."""
        ...


class Call:
    """Owner: the event loop. Answered exactly once, by `reply`, `reply_parts` or `reply_nothing`."""

    __slots__ = (
        "answered_s",
        "api",
        "api_version",
        "busy_s",
        "busy_since_s",
        "channel",
        "client_id",
        "correlation_id",
        "is_charged",
        "is_running",
        "is_sent",
        "local_done_s",
        "meter",
        "on_abandoned",
        "on_answer",
        "overlaps",
        "parts",
        "received_s",
        "request_bytes",
        "started_s",
        "throttle_ms",
        "waits_in",
    )

    def __init__(
        self,
        channel: Channel,
        api: "ApiHandler",
        *,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        received_s: float,
    ) -> None:
        self.channel = channel
        self.api = api
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.received_s = received_s
        self.started_s = received_s
        self.local_done_s = 0.0
        self.answered_s = 0.0
        #: The size of the request's frame: what a produce quota counts.
        self.request_bytes = 0
        #: Set before the answer: the connection is not read from for so long after it.
        self.throttle_ms = 0
        #: Charges the loop's time to the client that sent this; None without a request quota.
        self.meter: RequestQuota | None = None
        self.is_charged = False
        #: Its handler goes on after its first turn, with the request in its hands. False for one that merely waits.
        self.is_running = False
        #: Its answer went out while its handler still ran.
        self.is_sent = False
        #: Time on the loop that has not been charged; the step that is under way began at `busy_since_s`, 0 for none.
        self.busy_s = 0.0
        self.busy_since_s = 0.0
        #: APIs whose requests may start behind this one while it merely waits, by key. Answers keep their order (ADR 3).
        self.overlaps: frozenset[int] = frozenset()
        #: Set by a handler that waits: called when the client goes away before the answer.
        self.on_abandoned: Callable[[], None] | None = None
        #: Told of the response, whoever gives it and when: for the audit log.
        self.on_answer: Callable[[ApiMessage], None] | None = None
        #: Where it waits in purgatory: for who looks inside.
        self.waits_in: DelayedOperation | None = None
        #: What goes to the peer; None until answered; empty for acks=0.
        self.parts: Sequence[Part] | None = None

    def charge(self) -> int:
        """Time used so far, if it is limited, is charged once; how long the client must wait, for this and all else."""
        if self.meter is not None and not self.is_charged:
            self.is_charged = True
            self.meter.charge(self)
        return self.throttle_ms

    def reply(self, response: ApiMessage) -> None:
        self._reply(response, self.api.encode)

    async def reply_by_thread(self, response: ApiMessage, on_thread: OnThread) -> None:
        """The same for an answer that takes long to encode. It must not change any more."""
        parts: list[Sequence[Part] | Exception] = []

        def encode() -> None:
            try:
                parts.append(self.api.encode(self, response))
            except Exception as error:
                parts.append(error)

        def encoded(call: "Call", response: ApiMessage) -> Sequence[Part]:
            if isinstance(parts[0], Exception):
                raise parts[0]
            return parts[0]

        self._stamp(response)
        await on_thread(encode)
        self._reply(response, encoded)

    def _stamp(self, response: ApiMessage) -> None:
        if self.meter is not None:
            self.charge()
        if self.throttle_ms and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = self.throttle_ms

    def _reply(self, response: ApiMessage, encode: Callable[["Call", ApiMessage], Sequence[Part]]) -> None:
        self._stamp(response)
        if self.on_answer is not None:
            self.on_answer(response)
            self.on_answer = None  # it holds the request
        try:
            parts = encode(self, response)
        except Exception as error:
            # A field that this version cannot carry. The peer may have provoked it: only its connection fails.
            log.exception("cannot encode %s v%s for %s", self.api.name, self.api_version, self.client_id)
            self.channel.fail(f"{self.api.name} v{self.api_version} has no answer that can be encoded: {error}")
            return
        self.reply_parts(parts)

    def reply_parts(self, parts: Sequence[Part]) -> None:
        """Answer with a whole frame, size and header included."""
        assert self.parts is None, f"{self.api.name} answered twice"
        self.parts = parts
        # What waits for an answer holds its call, and would be garbage that only a search of the heap finds.
        self.on_abandoned = self.waits_in = None
        self.channel.answered(self)

    def reply_nothing(self) -> None:
        self.reply_parts(())


class Audit(Protocol):
    """Takes note of changes and of denied requests."""

    @property
    def changes(self) -> Container[int]:
        """Keys of the APIs that change something."""

    def denied(self, call: Call, operation: AclOperation, resource: AclResourceType, name: str) -> None: ...

    def changed(self, call: Call, request: object, response: object) -> None:
        """A request that was meant to change something has its response."""
