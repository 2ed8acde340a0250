"""Measures a rate, and the wait above a limit: Kafka's sampled rate and its token bucket.

Owner: the event loop. Pure: time is given, in milliseconds of any clock that does not go back.
"""

from collections import deque
from typing import Final

THROTTLE_MS_MAX: Final = 2**31 - 1


class Rate:
    """Amounts per second over the last windows.

    A sample that partly overlaps the windows counts whole, and so does the time since it began, as in Kafka 3.9: there may be
    one sample more than windows.
    """

    __slots__ = ("_samples", "_window_ms", "_windows")

    def __init__(self, *, windows: int, window_ms: int) -> None:
        self._windows = windows
        self._window_ms = window_ms
        #: [start time, amount, time of the last amount], oldest first.
        self._samples: deque[list[float]] = deque()

    def record(self, amount: float, now_ms: int) -> None:
        self._purge(now_ms)
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= self._window_ms:
            if len(samples) > self._windows:
                samples.popleft()
            samples.append([now_ms, 0.0, now_ms])
        samples[-1][1] += amount
        samples[-1][2] = now_ms

    def _purge(self, now_ms: int) -> None:
        while self._samples and now_ms - self._samples[0][2] >= self._windows * self._window_ms:
            self._samples.popleft()

    def is_silent(self, now_ms: int) -> bool:
        self._purge(now_ms)
        return not self._samples

    def measured_ms(self, now_ms: int) -> float:
        """Return the time over which the rate is taken: all windows except the current one count whole even before they have
        passed, so that a first burst does not count as a rate."""
        elapsed_ms = now_ms - self._samples[0][0] if self._samples else 0
        full = int(elapsed_ms // self._window_ms)
        return elapsed_ms + max(0, self._windows - 1 - full) * self._window_ms

    def per_second(self, now_ms: int) -> float:
        self._purge(now_ms)
        measured_ms = self.measured_ms(now_ms) or self._window_ms
        return sum(amount for _, amount, _ in self._samples) / measured_ms * 1000

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """Return how long nothing may be added until the rate is back at its limit; 0 within the limit."""
        excess = self.per_second(now_ms) - limit
        if excess <= 0:
            return 0
        if limit <= 0:
            return THROTTLE_MS_MAX
        return min(THROTTLE_MS_MAX, round(excess / limit * (self.measured_ms(now_ms) or self._window_ms)))


class SimpleRate(Rate):
    """Amounts per second since the oldest sample, but over at least one window: for replication throttles."""

    __slots__ = ()

    def measured_ms(self, now_ms: int) -> float:
        elapsed_ms = now_ms - self._samples[0][0] if self._samples else 0
        return max(elapsed_ms, self._window_ms)


class TokenBucket:
    """KIP-599: tokens come at a rate, up to the amount of all windows together; taking them may make it negative once."""

    __slots__ = ("_seconds", "_tokens", "_updated_ms")

    def __init__(self, *, windows: int, window_ms: int) -> None:
        #: A full bucket holds the tokens of this many seconds.
        self._seconds = windows * window_ms / 1000
        self._tokens: float | None = None  #: None while it is full
        self._updated_ms = 0

    def take(self, amount: float, limit: float, now_ms: int) -> None:
        self._tokens = min(self._seconds * limit, self.tokens(limit, now_ms) - amount)
        self._updated_ms = now_ms

    def tokens(self, limit: float, now_ms: int) -> float:
        burst = self._seconds * limit
        if self._tokens is None:
            return burst
        return min(burst, self._tokens + limit * (now_ms - self._updated_ms) / 1000)

    def is_silent(self, now_ms: int) -> bool:
        """Whether the bucket is full again under any limit that it may have had."""
        return self._tokens is None or now_ms - self._updated_ms >= 2_000 * self._seconds

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """Return the time until the bucket is back at zero; 0 if it is not below."""
        tokens = self.tokens(limit, now_ms)
        if tokens >= 0:
            return 0
        if limit <= 0:
            return THROTTLE_MS_MAX
        return min(THROTTLE_MS_MAX, round(-tokens / limit * 1000))
