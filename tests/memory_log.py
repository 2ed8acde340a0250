"""An internal topic in memory, for tests of coordinators."""

import asyncio
from collections.abc import Callable, Sequence

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.runtime.internal_log import Replay
from barnabas.broker.runtime.machine import KeyValue, Marker, Producer, ReplayedRecord


class MemoryLog:
    """A `CoordinatorLog` that commits within the append, as one of a single replica does, or when it is told to."""

    def __init__(self, *, commits_at_once: bool = True) -> None:
        self.entries: dict[int, list[ReplayedRecord | Marker]] = {}
        self.commits_at_once = commits_at_once
        self.pending: list[Callable[[ErrorCode], None]] = []
        self.refuses_with: ErrorCode | None = None
        #: How many appends met with it.
        self.refused = 0
        #: How many records each append had.
        self.appends: list[int] = []
        #: Of the last append.
        self.guard: object | None = None
        #: Cleared: the log takes its time to load.
        self.may_load = asyncio.Event()
        self.may_load.set()

    @property
    def records(self) -> list[KeyValue]:
        """Of all partitions."""
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
        """End all appends that wait."""
        pending, self.pending = self.pending, []
        for on_committed in pending:
            on_committed(error)

    def settle_first(self, error: ErrorCode = ErrorCode.NONE) -> None:
        self.pending.pop(0)(error)

    async def load(self, partition: int, replay: Replay) -> None:
        await self.may_load.wait()
        for offset, entry in enumerate(self.entries.get(partition, [])):
            replay(entry, offset)
            await asyncio.sleep(0)
