"""The answer to a read that needs an index which a thread is rebuilding."""

from collections.abc import Callable
from typing import Protocol

from barnabas.base.errors import ErrorCode, Refused


class Repairable(Protocol):
    """A segment, as far as the error needs it."""

    is_under_repair: bool
    repair_waiters: list[Callable[[], None]]

    @property
    def log_path(self) -> str: ...


class IndexUnderRepair(Refused):
    """A thread is rebuilding the indexes of a segment. Clients and followers try again."""

    def __init__(self, segment: Repairable) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, f"the indexes of {segment.log_path} are being rebuilt")
        self._segment = segment

    def when_over(self, then: Callable[[], None]) -> None:
        """Call `then` on the event loop when the repair has ended, whether it succeeded or not."""
        if self._segment.is_under_repair:
            self._segment.repair_waiters.append(then)
        else:
            then()
