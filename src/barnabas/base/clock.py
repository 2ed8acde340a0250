"""Time is injected: production code asks a `Clock`, tests move one by hand."""

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since the epoch: for timestamps that others see."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never go back: for time-outs and intervals."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()
