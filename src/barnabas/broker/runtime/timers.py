"""The interface of timers, which the event loop implements, or a test with a manual clock."""

from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    def time(self) -> float:
        """Return a monotonic time in seconds."""
        ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Run `callback` once on the owner's thread after `delay_s` seconds. An asyncio loop is a `Timers`."""
        ...
