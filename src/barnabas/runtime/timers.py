"""Timers as the rest of the code sees them: the event loop provides them, or a test with a manual clock."""

import heapq
from collections.abc import Callable
from typing import Protocol

from barnabas.core.clock import ManualClock


class Timer(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    def time(self) -> float:
        """Monotonic, in seconds."""
        ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Run `callback` once on the owner's thread after `delay_s` seconds. An asyncio loop is a `Timers`."""
        ...


class ManualTimers:
    """Timers over a `ManualClock`: they fire inside `advance_ms`, in the order of their deadlines."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._heap: list[_ManualTimer] = []
        self._sequence = 0

    def time(self) -> float:
        return self._clock.monotonic_s()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> "Timer":
        self._sequence += 1
        timer = _ManualTimer(self._clock.monotonic_s() + delay_s, self._sequence, callback)
        heapq.heappush(self._heap, timer)
        return timer

    def advance_ms(self, delta_ms: int) -> None:
        end_s = self._clock.monotonic_s() + delta_ms / 1000
        while self._heap and self._heap[0].deadline_s <= end_s:
            timer = heapq.heappop(self._heap)
            behind_ms = round((timer.deadline_s - self._clock.monotonic_s()) * 1000)
            self._clock.advance_ms(max(0, behind_ms))
            if timer.callback is not None:
                timer.callback()
        self._clock.advance_ms(max(0, round((end_s - self._clock.monotonic_s()) * 1000)))


class _ManualTimer:
    __slots__ = ("callback", "deadline_s", "sequence")

    def __init__(self, deadline_s: float, sequence: int, callback: Callable[[], None]) -> None:
        self.deadline_s = deadline_s
        self.sequence = sequence
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None

    def __lt__(self, other: "_ManualTimer") -> bool:
        return (self.deadline_s, self.sequence) < (other.deadline_s, other.sequence)
