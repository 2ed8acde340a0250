"""How the object store does: told by those who ask it, for the log, the metrics and `barnabas doctor`.

Owner: the event loop. An outage is one line when it begins, one every few minutes, and one when it ends, however
many partitions wait for the store.
"""

import logging
from typing import Final

from barnabas.base.clock import Clock

log = logging.getLogger(__name__)

_REMINDER_S: Final = 300.0


class StoreHealth:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: Requests that failed since the last one that did not.
        self.failures = 0
        #: What the last of them met; None while the store does what it is asked for.
        self.trouble: str | None = None
        self._failing_since_s = 0.0
        self._told_s = 0.0

    @property
    def failing_s(self) -> float:
        """For how long nothing has worked; 0 while it does."""
        return self._clock.monotonic_s() - self._failing_since_s if self.trouble is not None else 0.0

    def failed(self, what: str, error: BaseException) -> None:
        now_s = self._clock.monotonic_s()
        if self.trouble is None:
            self._failing_since_s = now_s
            self._told_s = now_s - _REMINDER_S
        self.failures += 1
        self.trouble = f"{what}: {error}"
        if now_s - self._told_s >= _REMINDER_S:
            self._told_s = now_s
            log.warning(
                "the object store fails (%d requests in %.0f s). Writes go on; nothing is deleted here before it is copied: %s",
                *(self.failures, self.failing_s, self.trouble),
            )

    def worked(self) -> None:
        if self.trouble is not None:
            log.info("the object store works again after %.0f s and %d failures", self.failing_s, self.failures)
            self.failures, self.trouble = 0, None
