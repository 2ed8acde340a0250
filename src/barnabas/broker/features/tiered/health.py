"""The health of the object store, as its users report it: for the log, the metrics and `barnabas doctor`.

Owner: the event loop. An outage causes one log line when it begins, one every few minutes, and one when it ends, however
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
        #: Failed requests since the last successful one.
        self.failures = 0
        #: The last error; None while the store works.
        self.trouble: str | None = None
        self._failing_since_s = 0.0
        self._logged_s = 0.0

    @property
    def failing_s(self) -> float:
        """Duration of the outage in seconds; 0 while the store works."""
        return self._clock.monotonic_s() - self._failing_since_s if self.trouble is not None else 0.0

    def failed(self, what: str, error: BaseException) -> None:
        now_s = self._clock.monotonic_s()
        if self.trouble is None:
            self._failing_since_s = now_s
            self._logged_s = now_s - _REMINDER_S
        self.failures += 1
        self.trouble = f"{what}: {error}"
        if now_s - self._logged_s >= _REMINDER_S:
            self._logged_s = now_s
            log.warning(
                "[tier] the object store fails (%d requests in %.0f s). Uncopied segments stay here; check the store: %s",
                *(self.failures, self.failing_s, self.trouble),
            )

    def worked(self) -> None:
        if self.trouble is not None:
            log.info("[tier] the object store works again after %.0f s and %d failures", self.failing_s, self.failures)
            self.failures, self.trouble = 0, None
