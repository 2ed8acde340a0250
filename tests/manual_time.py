"""Time and threads that advance only when a test says so."""

import heapq
from collections import deque
from collections.abc import Callable

from barnabas.broker.runtime.timers import Timer
from barnabas.broker.storage.environment import Done, InlineThreads, Work


class ManualClock:
    """A clock that moves only when a test advances it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._start_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_s(self) -> float:
        return (self._now_ms - self._start_ms) / 1000

    def advance_ms(self, delta_ms: int) -> None:
        if delta_ms < 0:
            raise ValueError(f"a clock does not go back: {delta_ms} ms")
        self._now_ms += delta_ms


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


class ManualThreads:
    """Keeps the work until `run_pending`, for tests that look at the state in between."""

    def __init__(self) -> None:
        self._pending: deque[tuple[Work, Done]] = deque()

    def __len__(self) -> int:
        return len(self._pending)

    def run(self, work: Work, done: Done) -> None:
        self._pending.append((work, done))

    def run_one(self) -> None:
        if self._pending:
            InlineThreads().run(*self._pending.popleft())

    def run_pending(self) -> None:
        """Run all pending work, including the work that it adds."""
        while self._pending:
            self.run_one()
