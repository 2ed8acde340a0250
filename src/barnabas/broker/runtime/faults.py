"""Faults that tests switch on. A broker outside of tests has none.

`Faults` holds the faults, and code with a fault point asks it. Owner: the event loop. File work on threads also calls
`check_disk` and `disk_delay_s`: they read, and count under a lock.
"""

import errno
import os
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from barnabas.base.clock import SystemClock
from barnabas.base.errors import ErrorCode

#: Client id of a test's own requests to its cluster, which faults must not hit: faults are for the application.
TEST_CLIENT_ID = "barnabas-testing"


@dataclass(slots=True, kw_only=True)
class ApiFault:
    """A fault of one API's requests."""

    #: Kafka's name of the API, for example `Produce`. `*` stands for every API.
    api: str
    #: Error that is answered instead of carrying the request out.
    error: ErrorCode | None = None
    #: Delay before the request is carried out, or refused.
    delay_ms: int = 0
    #: The connection is closed instead of carrying the request out.
    drop: bool = False
    #: The request is carried out, and the connection is closed before the answer.
    lose_answer: bool = False
    #: Number of requests that pass before the fault begins.
    after: int = 0
    #: Number of requests that the fault hits; None: all until `clear`.
    times: int | None = None
    #: Only clients whose id starts with this are hit.
    client_id: str = ""
    #: Number of requests that the fault has hit.
    fired: int = 0

    @property
    def effect(self) -> str:
        """The effect in words, for the log."""
        parts = (
            f"delayed by {self.delay_ms} ms" if self.delay_ms else "",
            "connection dropped" if self.drop else "",
            "answer lost" if self.lose_answer else "",
            self.error.name if self.error is not None else "",
        )
        return ", ".join(filter(None, parts))

    def take(self, api: str, client_id: str | None) -> bool:
        """Return whether the fault hits this request, and count it."""
        if self.api not in ("*", api) or not (client_id or "").startswith(self.client_id):
            return False
        if self.after > 0:
            self.after -= 1
            return False
        if self.times is not None:
            if self.times == 0:
                return False
            self.times -= 1
        self.fired += 1
        return True


class AdjustableClock(SystemClock):
    """The system's clock, which a test can move."""

    def __init__(self) -> None:
        self.offset_ms = 0
        #: Error of the wall clock; the monotonic clock is right.
        self.skew_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.offset_ms + self.skew_ms

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.offset_ms / 1000


class Hits:
    """How often each kind of fault has had an effect since the start of the broker."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, kind: str, count: int = 1) -> None:
        with self._lock:
            self._counts[kind] += count

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)


@dataclass(slots=True)
class Faults:
    clock: AdjustableClock = field(default_factory=AdjustableClock)
    apis: list[ApiFault] = field(default_factory=list)
    #: Every API fault since the start, in order: a test may ask how often each has fired.
    asked: list[ApiFault] = field(default_factory=list)
    #: Hits of all other faults, by the command that began them.
    hits: Hits = field(default_factory=Hits)
    #: Brokers that this one neither hears nor can reach.
    cut_off: frozenset[int] = frozenset()
    #: Brokers that this one does not hear, but can reach.
    deaf_to: frozenset[int] = frozenset()
    #: Error that writes to log directories raise: ENOSPC for a full disk, EIO for a broken one.
    disk_errno: int = 0
    #: Additional time of each write and each sync.
    disk_delay_ms: int = 0
    #: Only half of the next batch is written, and the process ends.
    tears_write: bool = False
    #: The broker was killed: nothing that it still writes reaches the disk.
    is_dead: bool = False
    #: Additional time of each request on its way to this broker.
    network_delay_ms: int = 0
    #: Additional time of requests from single brokers.
    peer_delays_ms: Mapping[int, int] = field(default_factory=dict)

    def add_api_fault(self, fault: ApiFault) -> int:
        """Add a fault; return its number in `asked`."""
        self.apis.append(fault)
        self.asked.append(fault)
        return len(self.asked) - 1

    def request_delay_ms(self, peer: int | None) -> int:
        """Return the delay, and count it. `peer`: the broker that sent the request, if a broker did."""
        by_peer_ms = self.peer_delays_ms.get(peer, 0) if peer is not None else 0
        if self.network_delay_ms:
            self.hits.add("slow_network")
        if by_peer_ms:
            self.hits.add("slow_peer")
        return self.network_delay_ms + by_peer_ms

    def api_fault(self, api: str, client_id: str | None) -> ApiFault | None:
        return next((fault for fault in self.apis if fault.take(api, client_id)), None)

    def end_api_fault(self, number: int) -> None:
        self.apis = [fault for fault in self.apis if fault is not self.asked[number]]

    def refuses_to_reach(self, broker_id: int) -> bool:
        """Whether this broker cannot connect to another one. Counts an attempt that is refused."""
        if broker_id in self.cut_off:
            self.hits.add("cut_off")
            return True
        return self.is_dead

    def refuses_to_hear(self, broker_id: int) -> bool:
        """Whether a request of another broker is lost. Counts those that are."""
        if broker_id in self.cut_off:
            self.hits.add("cut_off")
        elif broker_id in self.deaf_to:
            self.hits.add("be_deaf_to")
        else:
            return False
        return True

    def check_disk(self) -> None:
        if self.disk_errno:
            self.hits.add("fill_disk")
            raise OSError(self.disk_errno, os.strerror(self.disk_errno))

    def disk_delay_s(self) -> float:
        """Return the additional time of this write, and count it."""
        if not self.disk_delay_ms:
            return 0.0
        self.hits.add("slow_disk")
        return self.disk_delay_ms / 1000

    def fill_disk(self) -> None:
        self.disk_errno = errno.ENOSPC

    def break_disk(self) -> None:
        self.disk_errno = errno.EIO

    def clear(self) -> None:
        """End all faults; the clock stays where `advance_clock` moved it."""
        self.apis.clear()
        self.cut_off = self.deaf_to = frozenset()
        self.disk_errno = self.disk_delay_ms = self.network_delay_ms = self.clock.skew_ms = 0
        self.tears_write = False
        self.peer_delays_ms = {}
