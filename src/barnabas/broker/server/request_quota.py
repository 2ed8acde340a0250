"""Charges the time that requests take of the broker's loop to their client (`request_percentage`, KIP-124).

Kafka counts the time of its network and I/O threads, so that each of them has 100 %. Here one loop does all the work: 100 % is
the whole broker. Waiting costs nothing; running the handler, encoding and sending the answer do. Requests between brokers are
exempt, as in Kafka.
"""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final, TypeVar

from barnabas.broker.security.quotas import ClientQuotas, Quota
from barnabas.broker.server.call import Call
from barnabas.wire.versions import api_named

T = TypeVar("T")

#: Requests that Kafka never throttles: the controller's, those of brokers to the controller, and SASL, which ends before the
#: client's quota is known.
EXEMPT: Final = frozenset(
    api_named(name).key
    for name in (
        "LeaderAndIsr",
        "StopReplica",
        "UpdateMetadata",
        "ControlledShutdown",
        "WriteTxnMarkers",
        "AlterPartition",
        "SaslHandshake",
        "SaslAuthenticate",
    )
)
_PERCENT: Final = 100.0


class RequestQuota:
    """Owner: the event loop."""

    def __init__(self, quotas: ClientQuotas, now_s: Callable[[], float]) -> None:
        self.quotas = quotas
        self._now_s = now_s

    def admit(self, call: Call, started_s: float) -> None:
        """Begin to measure the call's time. Called only if any client's time is limited."""
        if call.api.api_key not in EXEMPT:
            call.meter = self
            call.busy_since_s = started_s

    def charge(self, call: Call) -> None:
        """Charge the time used so far, just before the answer is built; the client may have to wait for it."""
        now_s = self._now_s()
        used_s = call.busy_s
        if call.busy_since_s:
            used_s += now_s - call.busy_since_s
            call.busy_since_s = now_s
        call.busy_s = 0.0
        throttle_ms = self.quotas.record(
            Quota.REQUEST,
            call.channel.principal.name,
            call.client_id or "",
            used_s * _PERCENT,
            now_ms=int(now_s * 1000),
        )
        call.throttle_ms = max(call.throttle_ms, throttle_ms)

    def add(self, call: Call, used_s: float) -> None:
        """Charge time that was used after the answer was built: it counts for the next answer."""
        self.quotas.add(
            Quota.REQUEST,
            call.channel.principal.name,
            call.client_id or "",
            used_s * _PERCENT,
            now_ms=int(self._now_s() * 1000),
        )

    def rest(self, call: Call) -> None:
        """Charge the rest after the handler has returned, including its work after the answer."""
        if not call.busy_since_s:
            return
        used_s, call.busy_since_s = self._now_s() - call.busy_since_s, 0.0
        if call.parts is None:
            call.busy_s += used_s
        else:
            self.add(call, used_s)

    def measured(self, call: Call, work: Awaitable[T]) -> "Measured[T]":
        return Measured(self, call, work, self._now_s)


class Measured(Awaitable[T]):
    """An awaitable whose steps on the loop are charged to a call; its waits are not."""

    def __init__(self, meter: RequestQuota, call: Call, work: Awaitable[T], now_s: Callable[[], float]) -> None:
        self._meter = meter
        self._call = call
        self._work = work
        self._now_s = now_s

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._work.__await__()
        thrown: BaseException | None = None
        while True:
            self._call.busy_since_s = self._now_s()
            try:
                waits_for = next(steps) if thrown is None else steps.throw(thrown)
            except StopIteration as done:
                result: T = done.value
                return result
            finally:
                self._meter.rest(self._call)
            thrown = None
            try:
                yield waits_for
            except BaseException as error:  # usually a cancellation: pass it on to the work
                thrown = error
