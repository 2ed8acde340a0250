"""Requests that wait for replication: acks=all, long polls, DeleteRecords.

Each waits in a purgatory under the partitions that can satisfy it. A partition is watched under itself by those who
wait for its high watermark, and under `partition.log_end_key` by followers, who wait for its log end.
"""

from collections.abc import Callable, Sequence

from barnabas.core.errors import ErrorCode
from barnabas.replication.fetch_session_cache import FetchedPartition
from barnabas.replication.partition import Partition
from barnabas.runtime.purgatory import DelayedOperation


class DelayedProduce(DelayedOperation):
    """acks=all: done when every partition's records are committed, or can no longer be.

    `waiting` maps the index of a partition in the request to the partition and the offset that must be committed.
    """

    __slots__ = ("_on_done", "_waiting", "errors")

    def __init__(
        self, waiting: dict[int, tuple[Partition, int]], on_done: Callable[[dict[int, ErrorCode]], None]
    ) -> None:
        super().__init__()
        self._waiting = waiting
        self._on_done = on_done
        self.errors: dict[int, ErrorCode] = {}

    def is_satisfied(self) -> bool:
        for index, (partition, required_offset) in list(self._waiting.items()):
            verdict = partition.machine.check_replicated(required_offset)
            if verdict is not None:
                del self._waiting[index]
                if verdict is not ErrorCode.NONE:
                    self.errors[index] = verdict
        return not self._waiting

    def on_complete(self, *, expired: bool) -> None:
        if expired:
            self.is_satisfied()
            for index in self._waiting:
                self.errors[index] = ErrorCode.REQUEST_TIMED_OUT
        self._on_done(self.errors)


class DelayedFetch(DelayedOperation):
    """A long poll: done when `min.bytes` have come, when a partition has news of another kind, or when time is up."""

    __slots__ = ("_bytes_ready", "_min_bytes", "_on_done", "_positions")

    def __init__(
        self,
        positions: Sequence[tuple[Partition, int, FetchedPartition]],
        *,
        min_bytes: int,
        bytes_ready: Callable[[Partition, FetchedPartition], int | None],
        on_done: Callable[[], None],
    ) -> None:
        """`positions`: partition, the leader epoch that the read believed in, what is wanted of it.

        `bytes_ready` says how much could be read, or None when the fetch must be answered at once, whatever it gets.
        """
        super().__init__()
        self._positions = positions
        self._min_bytes = min_bytes
        self._bytes_ready = bytes_ready
        self._on_done = on_done

    def is_satisfied(self) -> bool:
        total = 0
        for partition, leader_epoch, want in self._positions:
            if partition.machine.leader_epoch != leader_epoch:
                return True
            ready = self._bytes_ready(partition, want)
            if ready is None:
                return True
            total += ready
            if total >= self._min_bytes:
                return True
        return False

    def on_complete(self, *, expired: bool) -> None:
        self._on_done()


class DelayedDeleteRecords(DelayedOperation):
    """DeleteRecords: done when every live replica has moved its log start."""

    __slots__ = ("_on_done", "_waiting")

    def __init__(
        self, waiting: dict[int, tuple[Partition, int]], on_done: Callable[[dict[int, ErrorCode]], None]
    ) -> None:
        super().__init__()
        self._waiting = waiting
        self._on_done = on_done

    def is_satisfied(self) -> bool:
        return all(
            not partition.is_leader or partition.low_watermark() >= required
            for partition, required in self._waiting.values()
        )

    def on_complete(self, *, expired: bool) -> None:
        errors: dict[int, ErrorCode] = {}
        for index, (partition, required) in self._waiting.items():
            if not partition.is_leader:
                errors[index] = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif partition.low_watermark() < required:
                errors[index] = ErrorCode.REQUEST_TIMED_OUT
        self._on_done(errors)
