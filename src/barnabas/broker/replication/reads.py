"""A Fetch request's parameters, and the results for its partitions."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.broker.replication.fetch_session_cache import CachedPartition
from barnabas.broker.storage.file_handle import FileRange
from barnabas.broker.storage.txn_index import AbortedTxn

#: Each entry of a request with its partition, or with the reason why it cannot be read.
Wanted = Sequence[tuple[CachedPartition, TopicPartition | ErrorCode]]


class FetchParams(NamedTuple):
    """The parameters of one Fetch request for all its partitions."""

    replica_id: int  #: -1: a consumer
    replica_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    client_rack: str
    #: Consumers that name their rack (v11 and later) may read from followers.
    may_read_from_follower: bool

    @property
    def is_from_follower(self) -> bool:
        return self.replica_id >= 0


class DivergingEpoch(NamedTuple):
    epoch: int
    end_offset: int


class PartitionRead:
    """The result for one partition. Its file ranges are pinned: send or release them.

    Most reads keep most fields as they are in the class, which costs less than slots.
    """

    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    ranges: Sequence[FileRange] = ()
    size_bytes: int = 0
    #: Bytes that count for `min.bytes`. A read that its limit cuts counts as its limit, though only whole batches are sent.
    readable_bytes: int = 0
    #: The read ended with its segment, and the next segment has more: waiting would bring nothing.
    has_more_segments: bool = False
    aborted_transactions: list[AbortedTxn] | None = None
    diverging_epoch: DivergingEpoch | None = None
    preferred_read_replica: int = -1

    def __init__(self, error: ErrorCode = ErrorCode.NONE) -> None:
        self.error = error

    def release(self) -> None:
        for file_range in self.ranges:
            file_range.release()
        self.ranges = ()
        self.size_bytes = 0

    def withhold(self) -> None:
        """Drop the records from the answer. The offsets of the log stay in it."""
        self.release()
        self.readable_bytes = 0
        self.has_more_segments = False


class _NothingNew(PartitionRead):
    def release(self) -> None:
        """There is nothing to release: one object stands for all such reads."""


#: The read of a partition in a consumer's session that has neither records nor offsets which the consumer does not know.
NOTHING_NEW: Final = _NothingNew()


class TieredRead(PartitionRead):
    """A read at an offset below the local start: `TierReads` fills in the records from the tier."""

    def __init__(self, max_bytes: int, min_one_batch: bool) -> None:
        super().__init__()
        self.max_bytes = max_bytes
        self.min_one_batch = min_one_batch
        self.has_more_segments = True
