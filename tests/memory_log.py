"""An internal topic in memory, for tests of coordinators."""

import asyncio
from collections.abc import Callable, Sequence

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.runtime.internal_log import Replay
from barnabas.broker.runtime.machine import KeyValue, Marker, Producer, ReplayedRecord


class MemoryLog:
    """A `CoordinatorLog` that commits within the append, as one with a single replica does, or when a test calls `settle`."""

    def __init__(self, *, commits_at_once: bool = True) -> None:
        self.entries: dict[int, list[ReplayedRecord | Marker]] = {}
        self.commits_at_once = commits_at_once
        self.pending: list[Callable[[ErrorCode], None]] = []
        self.refuses_with: ErrorCode | None = None
        #: Number of appends that were refused with `error`.
        self.refused = 0
        #: Number of records in each append.
        self.appends: list[int] = []
        #: The guard of the last append.
        self.guard: object | None = None
        #: Start offsets by partition, where records were deleted.
        self.starts: dict[int, int] = {}
        #: Cleared by a test to keep the log loading.
        self.may_load = asyncio.Event()
        self.may_load.set()

    @property
    def records(self) -> list[KeyValue]:
        """The records of all partitions."""
        return [entry.record for log in self.entries.values() for entry in log if isinstance(entry, ReplayedRecord)]

    def append(
        self,
        partition: int,
        records: Sequence[KeyValue],
        *,
        producer: Producer,
        guard: object | None = None,
        now_ms: int,
        on_committed: Callable[[ErrorCode], None],
    ) -> int:
        if self.refuses_with is not None:
            self.refused += 1
            raise Refused(self.refuses_with)
        self.guard = guard
        self.appends.append(len(records))
        log = self.entries.setdefault(partition, [])
        first = len(log)
        log += [ReplayedRecord(record, offset, now_ms, producer) for offset, record in enumerate(records, first)]
        if self.commits_at_once:
            on_committed(ErrorCode.NONE)
        else:
            self.pending.append(on_committed)
        return first

    def settle(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """Complete all waiting appends."""
        pending, self.pending = self.pending, []
        for on_committed in pending:
            on_committed(error)

    def settle_first(self, error: ErrorCode = ErrorCode.NONE) -> None:
        self.pending.pop(0)(error)

    def delete_before(self, partition: int, offset: int) -> None:
        self.starts[partition] = max(offset, self.starts.get(partition, 0))

    async def load(self, partition: int, replay: Replay) -> None:
        await self.may_load.wait()
        start = self.starts.get(partition, 0)
        for offset, entry in enumerate(self.entries.get(partition, [])[start:], start):
            replay(entry, offset)
            await asyncio.sleep(0)
