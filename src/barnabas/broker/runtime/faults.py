"""Faults that tests switch on. A broker outside of tests has none.

`Faults` holds the faults, and code with a fault point asks it. Owner: the event loop. Only `check_disk` is also called by file
work on threads: it only reads.
"""

import errno
import os
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


@dataclass(slots=True)
class Faults:
    clock: AdjustableClock = field(default_factory=AdjustableClock)
    apis: list[ApiFault] = field(default_factory=list)
    #: Every API fault since the start, in order: a test may ask how often each has fired.
    asked: list[ApiFault] = field(default_factory=list)
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
        """Return the delay. `peer`: the broker that sent the request, if a broker did."""
        return self.network_delay_ms + (self.peer_delays_ms.get(peer, 0) if peer is not None else 0)

    def api_fault(self, api: str, client_id: str | None) -> ApiFault | None:
        return next((fault for fault in self.apis if fault.take(api, client_id)), None)

    def is_cut_off(self, broker_id: int) -> bool:
        return self.is_dead or broker_id in self.cut_off

    def hears(self, broker_id: int) -> bool:
        return broker_id not in self.cut_off and broker_id not in self.deaf_to

    def check_disk(self) -> None:
        if self.disk_errno:
            raise OSError(self.disk_errno, os.strerror(self.disk_errno))

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
