"""The memory of requests that have not been executed, of all connections together.

With `queued.max.request.bytes` it is Kafka's pool: a request takes its whole size before it is received, if any memory is free
(so the last one may exceed the limit), and returns it when its handler has run. If no memory is free, the connection is not
read until some is returned. Kafka waits for that without limit. Here a request that arrives too slowly is dropped if others
wait for its memory.

Without the setting no request waits: each counts with the bytes that have arrived. All together may take a share of the
machine's memory, which honest clients never do. Above it, the connection that holds the most is closed.

Only separate buffers count. A request that arrived whole and runs at once takes no memory.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

#: Without `queued.max.request.bytes`, incomplete requests may take this fraction (1/4) of the machine's memory.
SHARE_OF_MACHINE: Final = 4
#: How long a request may take to arrive while others wait for its memory.
PATIENCE_S: Final = 30.0
CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")


class Holder(Protocol):
    """The part of a connection that the memory uses."""

    @property
    def frame_since_s(self) -> float | None:
        """The loop's time when the present request began to arrive; None if there is none."""
        ...

    def resume(self) -> None: ...

    def fail(self, why: str) -> None: ...


class Timers(Protocol):
    """The methods of an event loop that are used here."""

    def time(self) -> float: ...

    def call_soon(self, callback: Callable[[], object], /) -> object: ...

    def call_later(self, delay: float, callback: Callable[[], object], /) -> object: ...


def machine_bytes(cgroup_limit: Path = CGROUP_LIMIT) -> int:
    """Return the memory of the machine, or of the container in which this process runs."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(physical, int(cgroup_limit.read_text()))
    except (OSError, ValueError):  # no such file, or "max"
        return physical


class RequestMemory:
    """Owner: the event loop."""

    def __init__(self, loop: Timers, pool_bytes: int = -1) -> None:
        self._loop = loop
        #: Whether requests take their whole size before they arrive.
        self.is_pool = pool_bytes > 0
        self.limit_bytes = pool_bytes if self.is_pool else machine_bytes() // SHARE_OF_MACHINE
        self.used_bytes = 0
        self._held: dict[Holder, int] = {}
        #: In order of arrival. The bytes that they have already read do not count, or they would wait for themselves.
        self._waiting: dict[Holder, None] = {}
        self._is_waking = self._is_watching = self._is_closing = False

    def may_begin(self, holder: Holder) -> bool:
        """Whether a request may be received now; if not, the connection's `resume` is called later."""
        if not self.is_pool or self.used_bytes < self.limit_bytes:
            return True
        self._waiting[holder] = None
        self._watch()
        return False

    def is_waiting(self, holder: Holder) -> bool:
        return holder in self._waiting

    def leave(self, holder: Holder) -> None:
        """Release the memory of a closed connection."""
        self._waiting.pop(holder, None)
        self.hold(holder, 0)

    def hold(self, holder: Holder, size_bytes: int) -> None:
        """Set the memory that the connection holds."""
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
            # Not at once: the loop has just asked for a buffer, and does not expect its connection to end.
            self._is_closing = True
            self._loop.call_soon(self._close_largest)

    def _wake(self) -> None:
        """Resume waiting connections in order of arrival, as long as memory is free."""
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
            f"incomplete requests take {self.used_bytes} bytes, and this connection holds most of them; set "
            f"queued.max.request.bytes to make clients wait for each other instead"
        )
        self.hold(largest, 0)

    def _watch(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            self._loop.call_later(PATIENCE_S, self._close_slow)

    def _close_slow(self) -> None:
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
