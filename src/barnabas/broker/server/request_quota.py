"""The time that requests take of the broker's loop, charged to who sent them (`request_percentage`, KIP-124).

Kafka counts the time of its network and I/O threads, so that its whole is 100 % for each of them. Here one loop does all the
work: 100 % is the whole broker. What a request waits for costs nothing; what its handler, its encoding and the sending of its
answer take of the loop does. Requests between brokers are exempt, as in Kafka.
"""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final, TypeVar

from barnabas.broker.security.quotas import ClientQuotas, Quota
from barnabas.broker.server.call import Call
from barnabas.wire.versions import api_named

T = TypeVar("T")

#: Kafka throttles none of these: the controller's requests, those of brokers to the controller, and SASL, which is over before
#: quotas know whose time it is.
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
        """From here on the call's time is measured. Asked only where anybody's time is limited."""
        if call.api.api_key not in EXEMPT:
            call.meter = self
            call.busy_since_s = started_s

    def charge(self, call: Call) -> None:
        """The answer is about to be made: what it took so far; the client may have to wait for it."""
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
        """Time after the answer was made: it counts for the next one."""
        self.quotas.add(
            Quota.REQUEST,
            call.channel.principal.name,
            call.client_id or "",
            used_s * _PERCENT,
            now_ms=int(self._now_s() * 1000),
        )

    def rest(self, call: Call) -> None:
        """The handler has returned. What it did after its answer counts as well."""
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
            except BaseException as error:  # a cancellation, mostly: for the work to hear of
                thrown = error
