"""The pauses between attempts of an operation that fails. Pure: the caller sleeps, and provides the randomness.

backoff = Backoff(0.1, 10)
while True:
    try:
        await attempt()
        backoff.succeeded()
    except Failed:
        await asyncio.sleep(backoff.failed())
"""

from collections.abc import Callable


def doubled(first_s: float, longest_s: float, times: int) -> float:
    """Return `first_s`, doubled so many times, but not more than `longest_s`."""
    return min(first_s * 2.0 ** min(times, 60), longest_s)


class Backoff:
    """Each pause is twice as long as the one before, up to a limit, until a success."""

    __slots__ = ("_first_s", "_longest_s", "_vary", "failures")

    def __init__(self, first_s: float, longest_s: float, vary: Callable[[], float] = lambda: 1.0) -> None:
        """`vary` returns a factor for each pause, so that many clients of one server do not retry at the same time."""
        self._first_s = first_s
        self._longest_s = longest_s
        self._vary = vary
        #: The number of failures since the last success.
        self.failures = 0

    def failed(self) -> float:
        """Return the pause before the next attempt, in seconds."""
        self.failures += 1
        return doubled(self._first_s, self._longest_s, self.failures - 1) * self._vary()

    def succeeded(self) -> None:
        self.failures = 0
