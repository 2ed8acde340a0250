"""The durable state of a share partition, and the interface to the coordinator that keeps it (KIP-932).

A share partition is a partition as one share group reads it. Its leader decides which records are acquired, and writes
what must survive it to the share coordinator of the partition, which keeps it in `__share_group_state`. The group coordinator
creates and deletes that state. Both reach the share coordinator through a `SharePersister`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class SharePartitionKey(NamedTuple):
    group_id: str
    topic_id: bytes
    partition: int


@dataclass(frozen=True, slots=True)
class StateBatch:
    """Records with the same delivery state. `last_offset` is inclusive."""

    first_offset: int
    last_offset: int
    #: Kafka's number: 0 available, 2 acknowledged, 4 archived. An acquired record is written as available.
    delivery_state: int
    delivery_count: int


@dataclass(frozen=True, slots=True)
class ShareState:
    state_epoch: int
    #: The first offset whose delivery is not complete, or -1 if the leader has yet to choose it (`share.auto.offset.reset`).
    start_offset: int
    batches: Sequence[StateBatch] = ()


@dataclass(frozen=True, slots=True)
class ShareStateSummary:
    state_epoch: int
    leader_epoch: int
    start_offset: int
    #: Records from `start_offset` on whose delivery is complete; -1 if it is unknown (KIP-1226).
    delivery_complete_count: int = -1


class SharePersister(Protocol):
    """Requests to share coordinators. Each method raises `Refused` with the coordinator's error code, and retries what is
    retriable (a coordinator that moves or loads) until a bounded time has passed.
    """

    async def initialize(self, key: SharePartitionKey, *, state_epoch: int, start_offset: int) -> None: ...

    async def read(self, key: SharePartitionKey, *, leader_epoch: int) -> ShareState: ...

    async def write(
        self,
        key: SharePartitionKey,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> None: ...

    async def delete(self, key: SharePartitionKey) -> None: ...

    async def read_summary(self, key: SharePartitionKey, *, leader_epoch: int) -> ShareStateSummary: ...
