"""A persister of share state in memory, whose share coordinators can be made to fail."""

from collections.abc import Sequence

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.runtime.share_state import (
    SharePartitionKey,
    SharePersister,
    ShareState,
    ShareStateSummary,
    StateBatch,
)


class MemoryPersister:
    def __init__(self) -> None:
        self.states: dict[SharePartitionKey, ShareStateSummary] = {}
        #: Requests by name, in order.
        self.requests: list[tuple[str, SharePartitionKey]] = []
        #: The errors of these share partitions.
        self.failing: dict[SharePartitionKey, ErrorCode] = {}

    def _note(self, name: str, key: SharePartitionKey) -> None:
        self.requests.append((name, key))
        if key in self.failing:
            raise Refused(self.failing[key], "the share coordinator fails on purpose")

    async def initialize(self, key: SharePartitionKey, *, state_epoch: int, start_offset: int) -> None:
        self._note("initialize", key)
        self.states[key] = ShareStateSummary(state_epoch, 0, start_offset, -1 if start_offset == -1 else 0)

    async def read(self, key: SharePartitionKey, *, leader_epoch: int) -> ShareState:
        self._note("read", key)
        found = self.states[key]
        return ShareState(found.state_epoch, found.start_offset)

    async def write(
        self,
        key: SharePartitionKey,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> None:
        self._note("write", key)
        self.states[key] = ShareStateSummary(state_epoch, leader_epoch, start_offset, delivery_complete_count)

    async def delete(self, key: SharePartitionKey) -> None:
        self._note("delete", key)
        self.states.pop(key, None)

    async def read_summary(self, key: SharePartitionKey, *, leader_epoch: int) -> ShareStateSummary:
        self._note("read_summary", key)
        return self.states.get(key) or ShareStateSummary(0, 0, -1)


_AS_INTERFACE: type[SharePersister] = MemoryPersister
