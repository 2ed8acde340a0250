"""Log bugs that end only one request: count them, and log one traceback for each place in the code.

A client that has found such a bug can trigger it repeatedly, and a traceback each time would fill the disk.
"""

import logging
from types import TracebackType

from barnabas.base.metrics.registry import Counter, Registry

#: Bound of places whose traceback is in the log. Source lines are few; the bound is for code that is generated at run time.
PLACES_MAX = 1_000


class BugLog:
    """Owner: the event loop."""

    def __init__(self, log: logging.Logger, registry: Registry | None = None) -> None:
        self._log = log
        self._seen: set[tuple[str, str, int]] = set()
        self.count: Counter = (registry or Registry()).counter(
            "barnabas_request_bugs", "Requests that failed because of a bug; the log has a traceback of each kind."
        )

    def note(self, what: str, error: BaseException) -> None:
        """Log that `what` failed with the error."""
        self.count.add()
        place = _place(error)
        if place in self._seen or len(self._seen) >= PLACES_MAX:
            self._log.error("%s failed again: %s in %s:%d", what, type(error).__name__, place[1], place[2])
            return
        self._seen.add(place)
        self._log.error("%s failed; this is a bug in barnabas", what, exc_info=error)


def _place(error: BaseException) -> tuple[str, str, int]:
    step: TracebackType | None = error.__traceback__
    if step is None:
        return type(error).__name__, "?", 0
    while step.tb_next is not None:
        step = step.tb_next
    return type(error).__name__, step.tb_frame.f_code.co_filename, step.tb_lineno
