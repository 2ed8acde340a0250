"""The interface of tiered storage for replication: reads of records that a log does not have on this broker any more.

`barnabas.broker.features.tiered` implements it.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.broker.replication.fetch_session_cache import CachedPartition
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.reads import FetchParams, PartitionRead
from barnabas.broker.runtime.purgatory import DelayedOperation, Purgatory
from barnabas.broker.storage.log_types import TimestampedOffset


class RemoteReads(Protocol):
    @property
    def purgatory(self) -> Purgatory:
        """Fetches that wait for remote records."""

    def fetch(
        self,
        params: FetchParams,
        wanted: Sequence[tuple[CachedPartition, TopicPartition | ErrorCode]],
        reads: list[PartitionRead],
        bytes_max: int,
        on_done: Callable[[list[PartitionRead]], None],
    ) -> DelayedOperation | None:
        """Read the partitions whose records are remote, then call `on_done`. None if there are none."""

    def may_have(self, partition: Partition) -> bool:
        """Whether some records of the partition are remote only."""

    async def offset_for(self, partition: Partition, timestamp: int) -> TimestampedOffset | None:
        """Return the first remote record with the timestamp, or the latest for `MAX_TIMESTAMP`; None: use the local log."""
