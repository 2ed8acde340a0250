"""Time is injected: production code asks a `Clock`, and tests move one by hand."""

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return wall-clock time in milliseconds since the epoch, for timestamps that leave the process."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds of a clock that never goes back, for timeouts and intervals."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()
