"""Moving a replica from one log directory to another while it is in use (AlterReplicaLogDirs, KIP-113).

A future log is copied beside the current one until it has everything; then it replaces the current log in one step of the event
loop. Owner: the event loop. Threads read one chunk at a time; each move has one task, which ends with it.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from barnabas.base.clock import Clock
from barnabas.base.errors import ErrorCode, LogDirFault, Malformed, Refused
from barnabas.base.ids import TopicPartition
from barnabas.broker.replication.log_waits import cut, read_log
from barnabas.broker.replication.manager import ReplicaManager
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.throttle import ReplicationThrottle
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.storage import producer_snapshot
from barnabas.broker.storage.environment import Done
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.log_tier import TierStart

log = logging.getLogger(__name__)

#: Bytes copied between two checks whether the future log has caught up.
CHUNK_BYTES = 1024 * 1024
#: How often a throttled move checks the throttle again.
THROTTLE_LOOK_MS = 1000
#: The pause before a failed move continues.
RETRY_S = 5.0


class MovableLogs(Protocol):
    """The methods of the log manager that moves use."""

    def get(self, partition: TopicPartition) -> Log | None: ...
    def get_future(self, partition: TopicPartition) -> Log | None: ...
    def prefer_dir(self, partition: TopicPartition, path: str) -> None: ...
    def get_or_create_future(self, partition: TopicPartition) -> Log: ...
    def delete_future(self, partition: TopicPartition) -> None: ...
    def swap_future(self, partition: TopicPartition) -> Log: ...
    def when_old_is_gone(self, partition: TopicPartition, then: Callable[[], None]) -> None: ...
    def make_ready(self, future: Log, then: Done) -> None: ...
    def fail_dir(self, path: str, error: OSError) -> None: ...


class LogDirMoves:
    def __init__(
        self,
        replicas: ReplicaManager,
        logs: MovableLogs,
        clock: Clock,
        *,
        on_thread: Callable[[Callable[[], bytes]], Coroutine[Any, Any, bytes]],
        spawn: Spawn,
        throttle: ReplicationThrottle | None = None,
    ) -> None:
        """`throttle` limits all moves of the broker together (`replica.alter.log.dirs.io.max.bytes.per.second`)."""
        self._replicas = replicas
        self._logs = logs
        self._clock = clock
        self._on_thread = on_thread
        self._spawn = spawn
        self._throttle = throttle

    def begin(self, tp: TopicPartition, path: str) -> ErrorCode:
        """Start a move. If the broker has no replica yet, note the directory in which to create it, and return an error."""
        try:
            self._logs.prefer_dir(tp, path)
            partition = self._replicas.hosted.require(tp)
            current = partition.local_log
            future = self._logs.get_future(tp)
            if future is not None and future.log_dir != path:
                self._logs.delete_future(tp)  # a move to a third directory: the newer request wins
                future = None
            if current.log_dir == path:
                if future is not None:
                    self._logs.delete_future(tp)
                return ErrorCode.NONE
            if future is None:
                self._start(partition, self._logs.get_or_create_future(tp))
            elif partition.future_log is None:  # a move found at start, and the partition has had no role since
                self._start(partition, future)
        except Refused as refusal:
            # In this request, Kafka uses this error for a known partition without a replica on this broker.
            is_elsewhere = refusal.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
            return ErrorCode.REPLICA_NOT_AVAILABLE if is_elsewhere else refusal.code
        except LogDirFault:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE

    def leadership_changed(self, led: list[Partition], followed: list[Partition]) -> None:
        """Continue the moves that were found at start, for partitions that have a role now."""
        for partition in (*led, *followed):
            future = self._logs.get_future(partition.tp)
            if future is None or partition.log is None or partition.future_log is not None:
                continue
            if future.log_dir == partition.log.log_dir:
                # A move there and one back were interrupted, and the broker started with the log that both were to replace.
                self._give_up(partition.tp)
            else:
                self._start(partition, future)

    def _give_up(self, tp: TopicPartition) -> None:
        try:
            self._logs.delete_future(tp)
        except LogDirFault as fault:
            log.error(
                "[partition %s] cannot delete the copy of an ended move: look at its log directory: %s", tp, fault
            )

    def _start(self, partition: Partition, future: Log) -> None:
        partition.future_log = future
        self._spawn(self._move(partition, future), f"move {partition.tp} to {future.log_dir}")

    async def _move(self, partition: Partition, future: Log) -> None:
        log.info("[partition %s] moving to %s", partition.tp, future.log_dir)
        is_ready = False
        try:
            while self._is_current(partition, future):
                assert partition.log is not None
                try:
                    is_ready = await self._step(partition, partition.log, future, is_ready=is_ready)
                except (Refused, LogDirFault, Malformed) as error:
                    # A chunk may have been truncated while it was read, or no descriptor was free: try again, as a fetch does.
                    # No other code would restart the move, and the cleaner waits for its end. A failed disk ends the move.
                    log.error(
                        "[partition %s] the move to %s failed and is tried again in %d s: %s",
                        partition.tp,
                        future.log_dir,
                        RETRY_S,
                        error,
                    )
                    if self._is_current(partition, future):
                        await asyncio.sleep(RETRY_S)
        finally:
            if partition.future_log is future:
                partition.future_log = None

    async def _step(self, partition: Partition, current: Log, future: Log, *, is_ready: bool) -> bool:
        """Make progress. Return whether `future` is ready to replace `current`, except for records that have come since."""
        cut_at = current.take_cut()
        if cut_at is not None and cut_at < future.log_end_offset:
            # Comparing epochs is not enough here. The chunk in progress may have records that were written after the cut, and
            # may fit onto records that the cut removed; both may have the same epoch.
            try:
                await cut(future.truncate_then, cut_at)
            except BaseException:
                current.put_back_cut(cut_at)
                raise
            return is_ready
        if future.log_end_offset < current.local_log_start_offset:
            await self._begin_at_local_start(current, future)
            return False
        excess_from = self._excess_from(current, future)
        if excess_from is not None:
            # This may remove too much if things change meanwhile. That costs another copy, and no request reads the copy yet.
            await cut(future.truncate_then, excess_from)
        elif future.log_end_offset == current.log_end_offset:
            if not is_ready:
                await self._make_ready(future)
                return True
            if not await self._waited_for_previous_move(partition.tp):
                if (latest := current.epochs.latest) is not None:
                    # The leader may have noted its epoch without a record, and followers of the former leader ask for that
                    # epoch.
                    future.assign_epoch_start(latest.epoch, latest.start_offset)
                self._swap(partition)
        elif not await self._is_held_back():
            await self._copy_chunk(current, future)
        return is_ready

    async def _begin_at_local_start(self, current: Log, future: Log) -> None:
        """Skip the records that the current log has in the tier only, but note them in the future log."""
        if current.log_start_offset == current.local_log_start_offset:
            await cut(future.restart_then, current.log_start_offset)
            return
        offset, log_start = current.local_log_start_offset, current.log_start_offset
        epochs, snapshot = current.epochs.below(offset), current.snapshot_at(offset)
        try:
            data = (
                b"" if snapshot is None else await self._read(current, lambda: snapshot.disk.read_file(snapshot.path))
            )
        except FileNotFoundError:
            return  # its segment was deleted meanwhile: the local start has moved
        producers = producer_snapshot.decode(data) if data else ()
        start = TierStart(offset, log_start, epochs, producers)
        await cut(future.start_from_tier_then, start)

    async def _make_ready(self, future: Log) -> None:
        ready: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self._logs.make_ready(future, ready.set_result)
        error = await ready
        if isinstance(error, OSError):
            self._logs.fail_dir(future.log_dir, error)
            raise LogDirFault(future.log_dir, error) from error
        if error is not None:
            raise error

    async def _waited_for_previous_move(self, tp: TopicPartition) -> bool:
        """Whether the log that the previous move replaced is still in the way; wait until it is gone."""
        gone = asyncio.Event()
        self._logs.when_old_is_gone(tp, gone.set)
        if gone.is_set():
            return False
        await gone.wait()
        return True

    def _swap(self, partition: Partition) -> None:
        try:
            self._logs.swap_future(partition.tp)
        finally:
            # Do this also if the new directory failed at the very end: then there may be no log.
            moved = self._logs.get(partition.tp)
            if moved is None:
                partition.log = None
            else:
                partition.attach(moved)
                # Records that the old log had on disk and the copy does not have yet are committed when the copy has flushed
                # them.
                partition.flush_what_is_due()
            self._replicas.hosted.wake_all(partition)

    def _is_current(self, partition: Partition, future: Log) -> bool:
        """Whether the move was not overtaken by another move, a deletion, or a failed disk."""
        return (
            partition.log is not None
            and not partition.log.is_closed
            and self._logs.get_future(partition.tp) is future
            and not future.is_closed
        )

    @staticmethod
    def _excess_from(current: Log, future: Log) -> int | None:
        """Return the offset from which on the future log differs; None if it is a beginning of the current log."""
        if future.log_end_offset > current.log_end_offset:
            return current.log_end_offset
        epoch = future.latest_epoch
        if epoch is None:
            return None
        known = current.end_offset_for_epoch(epoch)
        if known.epoch == epoch:
            return known.end_offset if known.end_offset < future.log_end_offset else None
        # As a follower truncates (KIP-279): both logs agree up to the end of the last epoch that both have.
        return max(0, min(known.end_offset, future.end_offset_for_epoch(known.epoch).end_offset))

    async def _is_held_back(self) -> bool:
        """Wait while the throttle is used up, for at most a second: the move may be overtaken, or the limit may change."""
        wait_ms = self._throttle.wait_ms() if self._throttle is not None else 0
        if not wait_ms:
            return False
        await asyncio.sleep(min(wait_ms, THROTTLE_LOOK_MS) / 1000)
        return True

    async def _copy_chunk(self, current: Log, future: Log) -> None:
        chunk_bytes = CHUNK_BYTES if self._throttle is None else max(1, min(CHUNK_BYTES, self._throttle.limit))
        start = future.log_end_offset
        found = await read_log(current, start, max_bytes=chunk_bytes, max_offset=current.log_end_offset)
        if future.is_closed or future.log_end_offset != start:
            found.release()
            return
        try:
            data = await self._read(current, lambda: b"".join([file_range.read() for file_range in found.ranges]))
        finally:
            found.release()
        if self._throttle is not None:
            self._throttle.record_any(len(data))
        if not future.is_closed:
            future.append_as_follower(data, now_ms=self._clock.now_ms())
            future.update_high_watermark(min(current.high_watermark, future.log_end_offset))

    async def _read(self, current: Log, work: Callable[[], bytes]) -> bytes:
        """Run `work` on a thread. Raises `FileNotFoundError`, and `LogDirFault` if the disk fails."""
        try:
            return await self._on_thread(work)
        except FileNotFoundError:
            raise
        except OSError as error:
            self._logs.fail_dir(current.log_dir, error)
            raise LogDirFault(current.log_dir, error) from error
