"""Faults on purpose: what may go wrong when a test says so. A broker outside of tests has none of this.

`Faults` keeps what was asked for; whoever has a fault point asks it. Owner: the event loop, but for `disk_error`, which file
work on threads asks as well: it only reads.
"""

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from barnabas.base.clock import SystemClock
from barnabas.base.errors import ErrorCode

#: How a test's own questions to its cluster call themselves. Faults are for the application: they do not hit these.
TEST_CLIENT_ID = "barnabas-testing"


@dataclass(slots=True, kw_only=True)
class ApiFault:
    """What happens to requests of one API."""

    #: Kafka's name: `Produce`. `*` stands for every API.
    api: str
    #: Answered instead of being carried out.
    error: ErrorCode | None = None
    #: Carried out, or refused, only after this.
    delay_ms: int = 0
    #: The connection is closed instead.
    drop: bool = False
    #: It is carried out, and the connection is closed before the answer.
    lose_answer: bool = False
    #: So many requests pass first.
    after: int = 0
    #: So many are hit; None: all until `clear`.
    times: int | None = None
    #: Only clients whose id starts with this.
    client_id: str = ""
    #: Requests that it has hit.
    fired: int = 0

    @property
    def effect(self) -> str:
        """For the log."""
        parts = (
            f"delayed by {self.delay_ms} ms" if self.delay_ms else "",
            "connection dropped" if self.drop else "",
            "answer lost" if self.lose_answer else "",
            self.error.name if self.error is not None else "",
        )
        return ", ".join(filter(None, parts))

    def take(self, api: str, client_id: str | None) -> bool:
        """Whether this request is hit."""
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
    """The system's clock, moved by a test."""

    def __init__(self) -> None:
        self.offset_ms = 0
        #: The wall clock is wrong by this; what is timed is not.
        self.skew_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.offset_ms + self.skew_ms

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.offset_ms / 1000


@dataclass(slots=True)
class Faults:
    clock: AdjustableClock = field(default_factory=AdjustableClock)
    apis: list[ApiFault] = field(default_factory=list)
    #: Every one that was ever asked for, in order: a test may ask how often each has fired.
    asked: list[ApiFault] = field(default_factory=list)
    #: Brokers that this one neither hears nor reaches.
    cut_off: frozenset[int] = frozenset()
    #: Brokers that this one does not hear, but reaches.
    deaf_to: frozenset[int] = frozenset()
    #: What writes to log directories raise: ENOSPC for a full disk, EIO for a broken one.
    disk_errno: int = 0
    #: Each write and each sync takes this much longer.
    disk_delay_ms: int = 0
    #: The next batch of records is written by half, and the process ends.
    tears_write: bool = False
    #: The broker was killed: nothing that it still writes reaches the disk.
    is_dead: bool = False
    #: Each request takes this much longer on its way here.
    network_delay_ms: int = 0
    #: The same for requests of single brokers.
    peer_delays_ms: Mapping[int, int] = field(default_factory=dict)

    def add_api_fault(self, fault: ApiFault) -> int:
        """Its number among those that were asked for."""
        self.apis.append(fault)
        self.asked.append(fault)
        return len(self.asked) - 1

    def request_delay_ms(self, peer: int | None) -> int:
        """`peer`: the broker that sent the request, if one did."""
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
        """Everything works again; time stays where `advance_clock` moved it to."""
        self.apis.clear()
        self.cut_off = self.deaf_to = frozenset()
        self.disk_errno = self.disk_delay_ms = self.network_delay_ms = self.clock.skew_ms = 0
        self.tears_write = False
        self.peer_delays_ms = {}
