"""A partition's log: segments, indexes, producer state, leader epochs, and the offsets that say what may be read.

Owner: the event loop. `FlushJob.run`, `Truncation.run` and the deletion of files run on threads and touch only what cannot
change. An `OSError` becomes a `LogDirFault`: the environment gets it first, then the caller.

`Log` is the interface for callers. It is its own `LogState`, which its parts share and change: `appender`, `log_read`,
`log_segments`, `truncation`, `retention` and `log_flush`. Callers read the state's fields and change them by methods only.
"""

from collections.abc import Callable, Iterator, Sequence

from barnabas.base.config.log_config import LogConfig
from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import LeaderEpoch, Offset, TopicId, TopicPartition, format_uuid
from barnabas.broker.storage import names
from barnabas.broker.storage.appender import LogAppender
from barnabas.broker.storage.checkpoints import write_partition_metadata
from barnabas.broker.storage.environment import LogEnvironment
from barnabas.broker.storage.epoch_cache import EpochEnd, EpochEntry, LeaderEpochCache
from barnabas.broker.storage.epoch_file import EpochFile
from barnabas.broker.storage.log_flush import FlushJob, LogFlusher
from barnabas.broker.storage.log_read import LogReader
from barnabas.broker.storage.log_segments import LogSegments
from barnabas.broker.storage.log_state import LogState
from barnabas.broker.storage.log_tier import CopyCandidate, TierStart, copy_candidates
from barnabas.broker.storage.log_types import TimestampedOffset
from barnabas.broker.storage.producer_state import ProducerStateManager
from barnabas.broker.storage.retention import LogRetention
from barnabas.broker.storage.segment import Segment
from barnabas.broker.storage.segments import SegmentList
from barnabas.broker.storage.snapshots import ProducerSnapshots, Snapshot
from barnabas.broker.storage.truncation import LogTruncator
from barnabas.broker.storage.txn_index import AbortedTxn


class Log(LogState):
    """A partition's log. Created by `recovery.open_log`."""

    __slots__ = (
        "_appender",
        "_epoch_file",
        "_reader",
        "_retention",
        "_segments",
        "_truncator",
        "append_as_follower",
        "append_as_leader",
        "flusher",
        "read",
        "topic_id",
    )

    def __init__(
        self,
        directory: str,
        partition: TopicPartition,
        *,
        config: LogConfig,
        env: LogEnvironment,
        segments: SegmentList,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        producers: ProducerStateManager,
        snapshots: ProducerSnapshots,
        epochs: LeaderEpochCache,
        epoch_file: EpochFile,
        topic_id: TopicId | None = None,
    ) -> None:
        super().__init__(
            directory,
            partition,
            config=config,
            env=env,
            segments=segments,
            log_start_offset=log_start_offset,
            log_end_offset=log_end_offset,
            producers=producers,
            snapshots=snapshots,
            epochs=epochs,
        )
        self._epoch_file = epoch_file
        self.topic_id = topic_id
        self.flusher = flusher = LogFlusher(
            self,
            recovery_point=max(min(recovery_point, self.log_end_offset), self.log_start_offset),
            unsynced=epoch_file.unsynced,
        )
        self._reader = reader = LogReader(self)
        self._segments = LogSegments(self, flusher=flusher, reader=reader)
        self._retention = LogRetention(self, segments=self._segments)
        self._truncator = LogTruncator(self, segments=self._segments, flusher=flusher, reader=reader)
        self._appender = LogAppender(self, segments=self._segments, flusher=flusher, truncator=self._truncator)
        # The hot path calls the parts directly.
        self.append_as_leader = self._appender.append_as_leader
        self.append_as_follower = self._appender.append_as_follower
        self.read = reader.read

    def __repr__(self) -> str:
        return (
            f"Log({self.partition}, start={self.log_start_offset}, high_watermark={self.high_watermark}, "
            f"end={self.log_end_offset}, segments={len(self.segments)})"
        )

    # -- identity and extent

    @property
    def name(self) -> str:
        return self.directory.rpartition("/")[2]

    @property
    def is_future(self) -> bool:
        return self.directory.endswith(names.FUTURE_DIR_SUFFIX)

    @property
    def active_segment(self) -> Segment:
        return self.segments.active

    @property
    def size_bytes(self) -> int:
        return self.segments.size_bytes

    def snapshot_at(self, offset: int) -> Snapshot | None:
        """Return the producers' state at `offset` from disk; None if there is no such file."""
        newest = self.snapshots.newest(at_most=offset)
        return newest if newest is not None and newest.offset == offset else None

    @property
    def latest_epoch(self) -> LeaderEpoch | None:
        return self.epochs.latest_epoch

    def take_cut(self) -> int | None:
        """Return the lowest offset to which the log was truncated since the last call. A copy of it must be truncated there
        too."""
        lowest, self.lowest_cut = self.lowest_cut, None
        return lowest

    def put_back_cut(self, offset: int) -> None:
        """Make the next `take_cut` return this offset again: the caller could not truncate its copy."""
        lowest = self.lowest_cut
        self.lowest_cut = offset if lowest is None else min(lowest, offset)

    def commit_up_to(self, offset: int) -> bool:
        """Record that all other in-sync replicas have everything below `offset`; return whether the high watermark moved.

        A leader calls it. Records that `flush.messages` wants on disk are committed only once they are there."""
        flusher = self.flusher
        if flusher.recovery_point < flusher.due_up_to and offset > flusher.recovery_point:
            offset = flusher.recovery_point
        return self.maybe_increment_high_watermark(offset)

    @property
    def recovery_point(self) -> Offset:
        """Everything below is on disk."""
        return Offset(self.flusher.recovery_point)

    @property
    def unflushed_messages(self) -> int:
        return self.log_end_offset - self.flusher.recovery_point

    @property
    def last_flush_ms(self) -> int:
        return self.flusher.last_flush_ms

    # -- settings and names

    def update_config(self, config: LogConfig) -> None:
        """Use these settings from the next append, roll, read or retention pass on.

        A log leaves the tier only by `remote.log.delete.on.disable`, so that lost settings do not cost its history. It then
        begins at its first local segment."""
        self.config = config
        leaves_tier = config.remote_log_delete_on_disable and not self.is_tiered
        if self.log_start_offset < self.local_log_start_offset and leaves_tier:
            self.maybe_increment_log_start_offset(self.local_log_start_offset, "remote.storage.enable=false")
        for segment in self.segments:
            segment.index_interval_bytes = config.index_interval_bytes
            segment.max_index_bytes = config.segment_index_bytes

    def assign_topic_id(self, topic_id: TopicId) -> None:
        """Write the topic's id to `partition.metadata`. `INCONSISTENT_TOPIC_ID` if the log has another one."""
        if self.topic_id == topic_id:
            return
        if self.topic_id is not None:
            raise Refused(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"the log of {self.partition} has topic id {format_uuid(self.topic_id)}, not {format_uuid(topic_id)}",
            )
        path = f"{self.directory}/{names.PARTITION_METADATA}"
        try:
            write_partition_metadata(path, topic_id, sync=False, disk=self.env.disk)
        except OSError as error:
            self.fault(error)
        self.flusher.unsynced.add(path)
        self.topic_id = topic_id

    def moved_to(self, directory: str) -> None:
        """Follow the rename of the partition's directory (a deletion, or a future log that replaces the current one)."""
        self.directory = directory
        self._epoch_file.directory = directory
        self.flusher.moved_to(directory)
        self.snapshots.directory = directory
        for segment in self.segments:
            segment.moved_to(directory)

    # -- reads off the hot path

    def aborted_transactions(self, from_offset: int, upper_offset: int) -> list[AbortedTxn]:
        """Return the aborted transactions that overlap [from_offset, upper_offset): for consumers that read committed data."""
        return self._reader.aborted_transactions(from_offset, upper_offset)

    def offset_for_timestamp(self, timestamp: int) -> TimestampedOffset | None:
        """Return the first record whose timestamp is `timestamp` or later; None if there is none."""
        return self._reader.offset_for_timestamp(timestamp)

    def offset_of_max_timestamp(self) -> TimestampedOffset | None:
        """Return the first record with the largest timestamp; None if no record has one."""
        return self._reader.offset_of_max_timestamp()

    def earliest_offset(self) -> TimestampedOffset:
        return self._reader.earliest_offset()

    def earliest_local_offset(self) -> TimestampedOffset:
        return self._reader.earliest_local_offset()

    def latest_tiered_offset(self) -> TimestampedOffset | None:
        """Return the last offset that is known to be in the tier; None if there is none."""
        return self._reader.latest_tiered_offset()

    def earliest_pending_upload_offset(self) -> TimestampedOffset | None:
        """Return the first offset that is not in the tier yet (KIP-1023); None if unknown, or if the log is not tiered."""
        return self._reader.earliest_pending_upload_offset()

    def latest_offset(self) -> TimestampedOffset:
        return self._reader.latest_offset()

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        """Return the largest known epoch <= `epoch`, and where it ended (KIP-279)."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def copy_candidates(self, from_offset: int) -> Iterator[CopyCandidate]:
        """Yield the rolled segments wholly below the last stable offset, from the one that holds `from_offset` on. Lazy: a
        segment may be deleted before it is yielded. Raises `LogDirFault`, and `Refused` while an index is rebuilt."""
        with self.reading():
            yield from copy_candidates(self, from_offset)

    # -- changes

    def assign_epoch_start(self, epoch: int, offset: int | None = None) -> None:
        """Record that this replica leads from `epoch` on. The epoch starts at the log end, even if no record follows."""
        self._appender.assign_epoch_start(epoch, offset)

    def roll(self, now_ms: int) -> Segment:
        """Start a new segment at the log end; a background flush syncs the previous one."""
        self.check_open()
        try:
            return self._segments.roll(self.log_end_offset, now_ms)
        except OSError as error:
            self.fault(error)

    def replace_segments_then(
        self,
        cleaned: list[Segment],
        old: list[Segment],
        *,
        is_wanted: Callable[[], bool],
        then: Callable[[Exception | None], None],
    ) -> None:
        """Replace `old` by compacted segments, if `is_wanted` still returns true then; call `then` with the error, if any."""
        self.check_open()
        try:
            self._segments.replace_then(cleaned, old, is_wanted=is_wanted, then=then)
        except OSError as error:
            self.fault(error)

    def maybe_increment_log_start_offset(self, offset: int, reason: str = "records deleted") -> bool:
        """Move the log start for DeleteRecords or retention: no reader gets records below `offset`. Stops at the high
        watermark."""
        return self._retention.maybe_increment_log_start_offset(offset, reason)

    def delete_old_segments(self, now_ms: int) -> int:
        """Run a retention pass; return the number of deleted segments."""
        return self._retention.delete_old_segments(now_ms)

    def truncate_to(self, offset: int) -> bool:
        """Drop every record at or above `offset`, and block until done: for tools, tests and threads that own the log."""
        return self._truncator.truncate_to(offset)

    def truncate_then(
        self, offset: int, *, is_wanted: Callable[[], bool], then: Callable[[Exception | None], None]
    ) -> None:
        """Drop every record at or above `offset`, if `is_wanted` still returns true then; call `then` with the error, if
        any."""
        self._truncator.truncate_then(offset, is_wanted=is_wanted, then=then)

    def restart_then(
        self,
        offset: int,
        *,
        epochs: Sequence[EpochEntry] = (),
        is_wanted: Callable[[], bool],
        then: Callable[[Exception | None], None],
    ) -> None:
        """Drop everything but `epochs`, if `is_wanted`; the next record gets `offset`. Call `then` when a crash cannot undo
        that."""
        self._truncator.restart_then(offset, epochs=epochs, is_wanted=is_wanted, then=then)

    def start_from_tier_then(
        self, start: TierStart, *, is_wanted: Callable[[], bool], then: Callable[[Exception | None], None]
    ) -> None:
        """Drop everything, if `is_wanted`, and begin where the tier ends, with the producers and epochs of `start`."""
        self._truncator.start_from_tier_then(start, is_wanted=is_wanted, then=then)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Like `restart_then`, but at once and without a checkpoint: for tools, tests and threads that own the log."""
        self._truncator.restart_at(offset, log_start_offset=offset)

    def expire_producers(self, now_ms: int) -> int:
        """Forget producers that have been silent for `producer.id.expiration.ms`."""
        return self.producers.remove_expired(now_ms)

    def write_epochs(self) -> None:
        """Write new leader epochs to their file, for other readers of the file. Recovery does not need it."""
        if self.is_closed or not self.epochs.dirty:
            return
        try:
            self.epochs.flush()
        except OSError as error:
            self.fault(error)

    # -- the end

    def begin_close(self) -> FlushJob | None:
        """Begin a clean shutdown: take a snapshot at the log end and complete the indexes. Run the job on a thread, then call
        `finish_close`."""
        if self.is_closed:
            return None
        try:
            self.producers.update_map_end_offset(self.log_end_offset)
            if (snapshot := self.snapshots.take(self.producers, sync=False)) is not None:
                self.flusher.unsynced.add(snapshot)
            self.epochs.flush()
            self.segments.active.complete()
        except OSError as error:
            self.fault(error)
        return self.flusher.begin(force=True)

    def finish_close(self, job: FlushJob | None, error: BaseException | None = None) -> None:
        """End what `begin_close` began: its files are on disk, or `error` says why not."""
        if job is not None:
            self.flusher.finish(job, error)
        self.abandon()

    def close(self) -> None:
        """Begin, sync and finish at once: for tools, tests and threads that own the log."""
        job = self.begin_close()
        try:
            if job is not None:
                job.run()
        except OSError as error:
            self.finish_close(job, error)
        else:
            self.finish_close(job)

    def abandon(self) -> None:
        """Close every file without writing: the directory has failed, or the log is about to be deleted."""
        self.is_closed = True
        for segment in self.segments:
            segment.abandon()
