"""The memory of requests that have not been carried out, of all connections together.

With `queued.max.request.bytes` it is Kafka's pool: a request takes its whole size before it is received, as long as anything is
left (so the last one may take more than that), and gives it back when its handler has run. Who finds nothing left is not read
from until somebody gives something back. Kafka waits for that without end. Here a request that arrives too slowly goes when
others wait for its memory.

Without the setting nobody waits: a request counts with what has really come of it. All together may take a share of the
machine's memory, which honest clients never do. Past it, the connection that holds most is closed.

Only what has a buffer of its own counts. A request that arrived whole and runs at once takes no memory.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

#: Of the machine's memory, for requests under way, where `queued.max.request.bytes` is not set.
SHARE_OF_MACHINE: Final = 4
#: How long a request may take to arrive while others wait for its memory.
PATIENCE_S: Final = 30.0
CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")


class Holder(Protocol):
    """A connection, as its memory sees it."""

    @property
    def frame_since_s(self) -> float | None:
        """The loop's time when the request that is arriving began; None if none is."""
        ...

    def resume(self) -> None: ...

    def fail(self, why: str) -> None: ...


class Timers(Protocol):
    """The part of an event loop that is needed here."""

    def time(self) -> float: ...

    def call_soon(self, callback: Callable[[], object], /) -> object: ...

    def call_later(self, delay: float, callback: Callable[[], object], /) -> object: ...


def machine_bytes(cgroup_limit: Path = CGROUP_LIMIT) -> int:
    """What the machine has, or the container that this process runs in."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(physical, int(cgroup_limit.read_text()))
    except (OSError, ValueError):  # no such file, or "max"
        return physical


class RequestMemory:
    """Owner: the event loop."""

    def __init__(self, loop: Timers, pool_bytes: int = -1) -> None:
        self._loop = loop
        #: Requests take their whole size before they arrive.
        self.is_pool = pool_bytes > 0
        self.limit_bytes = pool_bytes if self.is_pool else machine_bytes() // SHARE_OF_MACHINE
        self.used_bytes = 0
        self._held: dict[Holder, int] = {}
        #: In the order in which they came. What they have read so far does not count, or they would wait for themselves.
        self._waiting: dict[Holder, None] = {}
        self._is_waking = self._is_watching = self._is_closing = False

    def may_begin(self, holder: Holder) -> bool:
        """Whether a request may be received now; if not, the connection's `resume` is called when it may."""
        if not self.is_pool or self.used_bytes < self.limit_bytes:
            return True
        self._waiting[holder] = None
        self._watch()
        return False

    def is_waiting(self, holder: Holder) -> bool:
        return holder in self._waiting

    def leave(self, holder: Holder) -> None:
        """The connection is closed."""
        self._waiting.pop(holder, None)
        self.hold(holder, 0)

    def hold(self, holder: Holder, size_bytes: int) -> None:
        """From now on the connection has so much."""
        before = self._held.get(holder, 0)
        if size_bytes:
            self._held[holder] = size_bytes
        else:
            self._held.pop(holder, None)
        self.used_bytes += size_bytes - before
        if self.used_bytes < self.limit_bytes:
            if self._waiting and not self._is_waking:
                self._is_waking = True
                self._loop.call_soon(self._wake)
        elif not self.is_pool and not self._is_closing:
            # Not at once: a loop that has asked for a buffer does not expect its connection to end.
            self._is_closing = True
            self._loop.call_soon(self._close_largest)

    def _wake(self) -> None:
        """In the order in which they came, each as long as something is left."""
        self._is_waking = False
        for holder in list(self._waiting):
            if self.used_bytes >= self.limit_bytes:
                return
            self._waiting.pop(holder, None)
            holder.resume()

    def _close_largest(self) -> None:
        self._is_closing = False
        if self.used_bytes < self.limit_bytes:
            return
        largest = max(self._held, key=lambda holder: self._held[holder])
        largest.fail(
            f"requests that have not arrived whole take {self.used_bytes} bytes, and this connection holds most of them; "
            f"with queued.max.request.bytes clients would wait for each other"
        )
        self.hold(largest, 0)

    def _watch(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            self._loop.call_later(PATIENCE_S, self._look_for_slow_ones)

    def _look_for_slow_ones(self) -> None:
        self._is_watching = False
        if not self._waiting:
            return
        latest_s = self._loop.time() - PATIENCE_S
        for holder in list(self._held):
            if (since_s := holder.frame_since_s) is not None and since_s <= latest_s:
                holder.fail(
                    f"its request did not arrive in {PATIENCE_S:.0f} s, and others wait for the memory "
                    f"(queued.max.request.bytes={self.limit_bytes})"
                )
                self.hold(holder, 0)
        self._watch()
