"""One request in the broker: its sender, the times of its stages, and its answer."""

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
    """Stands before the handlers of a connection that must authenticate."""

    #: The largest frame while the gate is closed.
    frame_bytes_max: int

    @property
    def is_open(self) -> bool: ...

    @property
    def raw(self) -> "ApiHandler | None":
        """The handler of the next frame if that is a bare SASL token, else None."""
        ...

    def admit(self, api_key: int) -> None:
        """Raise `Malformed` for a request that is not allowed now."""
        ...


class Channel(Protocol):
    """The part of a connection that its calls use."""

    principal: Principal
    gate: Gate | None
    listener_name: str
    peer_host: str
    peer_port: int
    #: The client's software and its version, as ApiVersions named them; empty if it did not.
    software: tuple[str, str]
    #: The client id of the last request; set only if faults are injected.
    client_id: str

    def answered(self, call: "Call") -> None:
        """Send the answers that are ready, in order: the call has its answer."""
        ...

    def resume(self) -> None:
        """Start the next request, if the connection may."""
        ...

    def fail(self, why: str) -> None:
        """Close the connection, because the peer broke the protocol."""
        ...

    def authenticated(self, principal: Principal) -> None:
        """Set the principal: the peer has authenticated."""
        ...

    def finish(self) -> None:
        """Close the connection after the pending answers; start no further request."""
        ...


class Call:
    """Owner: the event loop. Answered exactly once, by `reply`, `reply_parts` or `reply_nothing`.

    Most calls keep most of their fields as they are in the class: so a call costs half the time of one with slots.
    """

    local_done_s: float = 0.0
    answered_s: float = 0.0
    #: The size of the request's frame, which counts for a produce quota.
    request_bytes: int = 0
    #: Set before the answer: for so long after the answer the connection is not read.
    throttle_ms: int = 0
    #: Charges the loop's time to the client that sent this; None without a request quota.
    meter: "RequestQuota | None" = None
    is_charged: bool = False
    #: Whether its handler goes on after its first turn, and still uses the request. False while it merely waits.
    is_running: bool = False
    #: Whether its handler gets the request in slices: then it returns an answer to each, and must not send it.
    is_sliced: bool = False
    #: Whether its answer was sent while its handler was still running.
    is_sent: bool = False
    #: Time on the loop that is not charged yet; the current step began at `busy_since_s`, 0 if there is none.
    busy_s: float = 0.0
    busy_since_s: float = 0.0
    #: Keys of APIs whose requests may start after this one while it merely waits. Answers keep their order (ADR 3).
    overlaps: frozenset[int] = frozenset()
    #: Set by a handler that waits: called if the client disconnects before the answer.
    on_abandoned: Callable[[], None] | None = None
    #: Called with the response, whenever it comes: for the audit log.
    on_answer: Callable[[ApiMessage], None] | None = None
    #: Where it waits in purgatory, for `features.inside`.
    waits_in: DelayedOperation | None = None
    #: The bytes for the peer; None until answered; empty for acks=0.
    parts: Sequence[Part] | None = None

    def __init__(
        self,
        channel: Channel,
        api: "ApiHandler",
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        received_s: float,
    ) -> None:
        """By position where it is hot: keywords would double the time."""
        self.channel = channel
        self.api = api
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.received_s = self.started_s = received_s

    def charge(self) -> int:
        """Charge the time used so far once, if it is limited; return how long the client must wait for all its quotas."""
        if self.meter is not None and not self.is_charged:
            self.is_charged = True
            self.meter.charge(self)
        return self.throttle_ms

    def reply(self, response: ApiMessage) -> None:
        if self.meter is not None or self.throttle_ms or self.on_answer is not None:
            self._stamp(response)
        try:
            parts = self.api.encode(self, response)
        except Exception as error:
            self._cannot_encode(error)
        else:
            self.reply_parts(parts)

    async def reply_by_thread(self, response: ApiMessage, on_thread: OnThread) -> None:
        """Reply, with the encoding on a thread, for a large response. The response must not change any more."""
        parts: list[Sequence[Part] | Exception] = []

        def encode() -> None:
            try:
                parts.append(self.api.encode(self, response))
            except Exception as error:
                parts.append(error)

        self._stamp(response)
        await on_thread(encode)
        if isinstance(parts[0], Exception):
            self._cannot_encode(parts[0])
        else:
            self.reply_parts(parts[0])

    def _stamp(self, response: ApiMessage) -> None:
        """Complete a response that is about to be encoded."""
        if self.meter is not None:
            self.charge()
        if self.throttle_ms and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = self.throttle_ms
        if self.on_answer is not None:
            self.on_answer(response)
            self.on_answer = None  # it holds the request

    def _cannot_encode(self, error: Exception) -> None:
        """The peer may have provoked a field that this version cannot carry: only its connection fails."""
        log.error(
            "[request %s] v%s of %s has a response that cannot be encoded",
            self.api.name,
            self.api_version,
            self.client_id,
            exc_info=error,
        )
        self.channel.fail(f"the response of {self.api.name} v{self.api_version} cannot be encoded: {error}")

    def reply_parts(self, parts: Sequence[Part]) -> None:
        """Answer with a whole frame, size and header included."""
        assert self.parts is None, f"{self.api.name} answered twice"
        self.parts = parts
        if self.waits_in is not None or self.on_abandoned is not None:
            # Objects that wait hold their call: a cycle that only a garbage collection would find.
            self.on_abandoned = self.waits_in = None
        self.channel.answered(self)

    def reply_nothing(self) -> None:
        self.reply_parts(())


class Audit(Protocol):
    """Records changes and denied requests."""

    @property
    def changes(self) -> Container[int]:
        """Keys of the APIs that change data."""

    def denied(self, call: Call, operation: AclOperation, resource: AclResourceType, name: str) -> None: ...

    def changed(self, call: Call, request: object, response: object) -> None:
        """Record a request that was meant to change something, with its response."""
