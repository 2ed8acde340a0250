"""What a log is: its segments, producers and epochs, and the offsets that say how far each thing goes.

Owner: the event loop. `log_upkeep` and `log` add what can be done with it. An `OSError` becomes a `LogDirFault`: the
environment hears of it first, then the caller.
"""

import logging
from collections.abc import Sequence
from typing import NoReturn

from barnabas.core.config.log_config import LogConfig
from barnabas.core.errors import BrokenInvariant, ErrorCode, LogDirFault, Malformed, Refused
from barnabas.core.ids import LeaderEpoch, Offset, TopicId, TopicPartition, format_uuid
from barnabas.runtime.disk import Disk
from barnabas.storage import names
from barnabas.storage.checkpoints import write_epochs, write_partition_metadata
from barnabas.storage.environment import LogEnvironment
from barnabas.storage.epoch_cache import EpochEntry, LeaderEpochCache
from barnabas.storage.log_flush import LogFlusher, UnsyncedFiles
from barnabas.storage.log_read import Bound, locate
from barnabas.storage.log_types import OffsetMetadata
from barnabas.storage.producer_state import ProducerStateManager
from barnabas.storage.segment import Segment
from barnabas.storage.segments import SegmentList
from barnabas.storage.snapshots import ProducerSnapshots

logger = logging.getLogger(__name__)


class EpochFile:
    """Where the leader epochs of a log are kept.

    Written when the log is flushed, rolled or cut, without fsync: the loop must not wait. The flush syncs the file before
    the recovery point moves past the records whose epochs it holds; recovery reads those of later records from the log.
    """

    __slots__ = ("_disk", "directory", "unsynced")

    def __init__(self, directory: str, disk: Disk) -> None:
        self._disk = disk
        self.directory = directory
        #: The log's own list, in which this file appears once it was written.
        self.unsynced = UnsyncedFiles()

    @property
    def path(self) -> str:
        return f"{self.directory}/{names.LEADER_EPOCH_CHECKPOINT}"

    def write(self, entries: Sequence[EpochEntry]) -> None:
        write_epochs(self.path, entries, sync=False, disk=self._disk)
        self.unsynced.add(self.path)


class LogState:
    """Opened by `recovery.open_log`, which finds out all that is passed here.

    Invariants: log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset; recovery_point <=
    log_end_offset; nothing below recovery_point is lost by a crash; producers and epochs reflect every batch.
    """

    __slots__ = (
        "_bound",
        "_closed",
        "_end",
        "_env",
        "_epoch_file",
        "_high_watermark",
        "_log_start",
        "_snapshots",
        "config",
        "directory",
        "epochs",
        "flusher",
        "log_dir",
        "partition",
        "producers",
        "segments",
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
        self.directory = directory
        #: The log directory that holds this partition's.
        self.log_dir = directory.rpartition("/")[0]
        self.partition = partition
        #: Swapped whole by `update_config`.
        self.config = config
        self.segments = segments
        self.producers = producers
        self.epochs = epochs
        self.topic_id = topic_id
        self._env = env
        self._snapshots = snapshots
        self._epoch_file = epoch_file
        self._log_start = log_start_offset
        self._end = log_end_offset
        #: Known to be on every in-sync replica. Starts at the log start; the checkpoint or the leader says more.
        self._high_watermark = log_start_offset
        self.flusher = LogFlusher(
            self,
            env,
            recovery_point=max(min(recovery_point, log_end_offset), log_start_offset),
            unsynced=epoch_file.unsynced,
        )
        #: The last bound that a read asked for: usually the high watermark, for many reads in a row.
        self._bound = Bound(-1, 0, 0)
        self._closed = False

    def __repr__(self) -> str:
        return (
            f"Log({self.partition}, start={self._log_start}, high_watermark={self._high_watermark}, end={self._end}, "
            f"segments={len(self.segments)})"
        )

    # -- where it is, how far it goes

    @property
    def name(self) -> str:
        return self.directory.rpartition("/")[2]

    @property
    def is_future(self) -> bool:
        return self.directory.endswith(names.FUTURE_DIR_SUFFIX)

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def log_start_offset(self) -> Offset:
        return Offset(self._log_start)

    @property
    def log_end_offset(self) -> Offset:
        """Of the next record."""
        return Offset(self._end)

    @property
    def high_watermark(self) -> Offset:
        return Offset(self._high_watermark)

    @property
    def last_stable_offset(self) -> Offset:
        """Below it every transaction is decided, and its decision replicated. Never above the high watermark."""
        unstable = self.producers.first_unstable_offset
        if unstable is None or unstable >= self._high_watermark:
            return Offset(self._high_watermark)
        return Offset(max(unstable, self._log_start))

    @property
    def recovery_point(self) -> Offset:
        """Everything below is on disk."""
        return Offset(self.flusher.recovery_point)

    @property
    def size_bytes(self) -> int:
        return self.segments.size_bytes

    @property
    def active_segment(self) -> Segment:
        return self.segments.active

    @property
    def latest_epoch(self) -> LeaderEpoch | None:
        return self.epochs.latest_epoch

    @property
    def unflushed_messages(self) -> int:
        return self._end - self.flusher.recovery_point

    @property
    def last_flush_ms(self) -> int:
        return self.flusher.last_flush_ms

    @property
    def end_metadata(self) -> OffsetMetadata:
        active = self.segments.active
        return OffsetMetadata(Offset(self._end), Offset(active.base_offset), active.size_bytes)

    def _locate(self, offset: int) -> Bound:
        if offset >= self._end:
            active = self.segments.active
            return Bound(self._end, active.base_offset, active.size_bytes)
        bound = self._bound
        if bound.offset != offset:
            bound = self._bound = locate(self.segments, offset)
        return bound

    def update_config(self, config: LogConfig) -> None:
        """Takes effect with the next append, roll, read or retention pass."""
        self.config = config
        for segment in self.segments:
            segment.index_interval_bytes = config.index_interval_bytes
            segment.max_index_bytes = config.segment_index_bytes

    def assign_topic_id(self, topic_id: TopicId) -> None:
        """The topic's id, known from now on, and kept in `partition.metadata`."""
        if self.topic_id == topic_id:
            return
        if self.topic_id is not None:
            raise Refused(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"the log of {self.partition} has topic id {format_uuid(self.topic_id)}, not {format_uuid(topic_id)}",
            )
        path = f"{self.directory}/{names.PARTITION_METADATA}"
        try:
            write_partition_metadata(path, topic_id, sync=False, disk=self._env.disk)
        except OSError as error:
            self.fault(error)
        self.flusher.unsynced.add(path)
        self.topic_id = topic_id

    # -- high watermark

    def maybe_increment_high_watermark(self, offset: int) -> bool:
        """By the leader, as its followers catch up; True where it moved. Never back, never past the log end."""
        if offset > self._end:
            raise BrokenInvariant(f"{self.partition}: high watermark {offset} is past the log end {self._end}")
        if offset <= self._high_watermark:
            return False
        self._set_high_watermark(offset)
        return True

    def update_high_watermark(self, offset: int) -> bool:
        """By a follower, as its leader says, or from the checkpoint; kept within the log. True where it changed."""
        bounded = min(max(offset, self._log_start), self._end)
        if bounded == self._high_watermark:
            return False
        if bounded < self._high_watermark:
            logger.warning(
                "high watermark of %s goes back from %d to %d", self.partition, self._high_watermark, bounded
            )
        self._set_high_watermark(bounded)
        return True

    def _set_high_watermark(self, offset: int) -> None:
        self._high_watermark = offset
        self.producers.on_high_watermark(offset)

    # -- failures

    def fault(self, error: OSError) -> NoReturn:
        raise self._told(error) from error

    def _told(self, error: OSError) -> LogDirFault:
        """The fault that it is; the environment has heard of it."""
        fault = LogDirFault(self.log_dir, error)
        self._env.on_fault(fault)
        return fault

    def storage_error(self) -> Refused:
        return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"the log of {self.partition} is closed")

    def _corrupt(self, error: Malformed) -> Refused:
        logger.error("corrupt data in %s: %s", self.partition, error)
        return Refused(ErrorCode.CORRUPT_MESSAGE, str(error))

    def _out_of_range(self, offset: int) -> Refused:
        return Refused(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"Received request for offset {offset} for partition {self.partition}, but we only have log segments in the "
            f"range {self._log_start} to {self._end}.",
        )
