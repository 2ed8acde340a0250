"""What the parts of a log share: its segments, producers and epochs, and its offsets.

Owner: the event loop. An `OSError` becomes a `LogDirFault`: the environment gets it first, then the caller.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

from barnabas.base.config.log_config import LogConfig
from barnabas.base.errors import BrokenInvariant, ErrorCode, LogDirFault, Malformed, Refused
from barnabas.base.host import descriptors
from barnabas.base.ids import Offset, TopicPartition
from barnabas.broker.storage.environment import LogEnvironment
from barnabas.broker.storage.epoch_cache import KeptEpochs, LeaderEpochCache
from barnabas.broker.storage.producer_state import ProducerStateManager
from barnabas.broker.storage.segments import SegmentList
from barnabas.broker.storage.snapshots import ProducerSnapshots

logger = logging.getLogger(__name__)

#: Descriptors for the log, the maps of its indexes, and a file that is being written.
DESCRIPTORS_OF_A_CUT: Final = 6


class LogState:
    """Invariants: log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset; producers and epochs reflect
    every batch of the segments. In a tiered log, log_start_offset <= local_log_start_offset <= high_watermark, the epochs go
    back to the log start, and the records between the two starts are in the tier. In other logs the two starts are equal.

    Each field has one writer: the appender and the truncator move the log end, retention and the truncator the log start,
    `LogSegments` changes the list of segments, and only this class sets the high watermark.
    """

    __slots__ = (
        "config",
        "cuts",
        "directory",
        "env",
        "epochs",
        "high_watermark",
        "highest_copied_offset",
        "is_closed",
        "keeping_epochs",
        "kept_epochs",
        "local_log_start_offset",
        "log_dir",
        "log_end_offset",
        "log_start_offset",
        "lowest_cut",
        "partition",
        "producers",
        "segments",
        "snapshots",
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
        producers: ProducerStateManager,
        snapshots: ProducerSnapshots,
        epochs: LeaderEpochCache,
    ) -> None:
        self.directory = directory
        #: The log directory that contains `directory`.
        self.log_dir = directory.rpartition("/")[0]
        self.partition = partition
        #: Replaced as a whole, never changed.
        self.config = config
        self.env = env
        self.segments = segments
        self.producers = producers
        self.snapshots = snapshots
        self.epochs = epochs
        self.log_start_offset = Offset(log_start_offset)
        #: The first offset that the local segments may hold: reads begin here, whatever is in the tier.
        self.local_log_start_offset = Offset(log_start_offset)
        self.settle_local_start()
        #: The tier has all records from the log start up to this offset; -1 if it is not known to have any.
        self.highest_copied_offset = -1
        #: The content of the file that `log_tier.keep_epochs` writes; None: unknown, or a write is in progress.
        self.kept_epochs: KeptEpochs | None = None
        #: Callbacks for the write in progress; None if there is no write.
        self.keeping_epochs: list[Callable[[], None]] | None = None
        #: Offset of the next record.
        self.log_end_offset = Offset(log_end_offset)
        #: Every in-sync replica has the records below. Begins at the local start, until the checkpoint or the leader reports
        #: more: only replicated records leave the disk.
        self.high_watermark = self.local_log_start_offset
        #: How often the log end has moved back. The log may end at the same offset again, with other records.
        self.cuts = 0
        #: The lowest log end after a truncation since the last `take_cut`; None: the log was not truncated since.
        self.lowest_cut: int | None = None
        self.is_closed = False

    # -- the tier

    @property
    def is_tiered(self) -> bool:
        """Whether the log may begin in the tier."""
        return self.env.is_tiered(self.config, self.partition.topic)

    def settle_local_start(self) -> None:
        """Update the local start after the log start or the first segment has changed."""
        self.local_log_start_offset = Offset(max(self.log_start_offset, self.segments.first.base_offset))

    # -- high watermark

    @property
    def last_stable_offset(self) -> Offset:
        """Return the offset below which every transaction is decided, and its decision replicated. At most the high
        watermark."""
        producers = self.producers
        if not producers.ongoing and not producers.unreplicated:
            return self.high_watermark
        unstable = producers.first_unstable_offset
        if unstable is None or unstable >= self.high_watermark:
            return self.high_watermark
        return Offset(max(unstable, self.log_start_offset))

    def maybe_increment_high_watermark(self, offset: int) -> bool:
        """Move a leader's high watermark up, never back and never past the log end; return whether it moved."""
        if offset > self.log_end_offset:
            raise BrokenInvariant(
                f"{self.partition}: high watermark {offset} is past the log end {self.log_end_offset}"
            )
        if offset <= self.high_watermark:
            return False
        self.high_watermark = Offset(offset)
        if self.producers.unreplicated:
            self.producers.on_high_watermark(offset)
        return True

    def update_high_watermark(self, offset: int) -> bool:
        """Set the high watermark of a follower, or from the checkpoint, bounded by the log; return whether it changed."""
        bounded = min(max(offset, self.local_log_start_offset), self.log_end_offset)
        if bounded == self.high_watermark:
            return False
        if bounded < self.high_watermark:
            logger.warning(
                "[partition %s] the high watermark goes back from %d to %d: the leader, or the checkpoint, knows less",
                self.partition,
                self.high_watermark,
                bounded,
            )
        self.set_high_watermark(bounded)
        return True

    def set_high_watermark(self, offset: int) -> None:
        self.high_watermark = Offset(offset)
        self.producers.on_high_watermark(offset)

    # -- failures

    def check_open(self) -> None:
        if self.is_closed:
            raise self.storage_error()

    def fault(self, error: OSError) -> NoReturn:
        raise self.report(error) from error

    def fault_half_way(self, error: OSError) -> NoReturn:
        """Fail after a change that was carried out in part: the log must close, even if only a descriptor was missing."""
        self.fault(descriptors.half_way(error, f"the log of {self.partition}"))

    def check_descriptors(self) -> None:
        """Check that enough descriptors are free for a change that must not stop half-way. If not, raise the fault: nothing has
        changed, and the caller can try again. A half-way stop would take the whole directory offline."""
        disk, path = self.env.disk, self.segments.active.log_path
        taken: list[int] = []
        try:
            for _ in range(DESCRIPTORS_OF_A_CUT):
                taken.append(disk.open(path, read_only=True))
        except OSError as error:
            self.fault(error)
        finally:
            for fd in taken:
                disk.close(fd)

    def report(self, error: OSError) -> LogDirFault:
        """Report the failure of the log directory to the environment; return the exception for the caller."""
        fault = LogDirFault(self.log_dir, error)
        self.env.on_fault(fault)
        return fault

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn failures of reads off the hot path into `LogDirFault` and `Refused`."""
        try:
            yield
        except OSError as error:
            self.fault(error)
        except Malformed as error:
            raise self.corrupt(error) from None

    def storage_error(self) -> Refused:
        return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"the log of {self.partition} is closed")

    def corrupt(self, error: Malformed) -> Refused:
        logger.error(
            "[partition %s] the log holds corrupt data; restore the replica from its leader: %s", self.partition, error
        )
        return Refused(ErrorCode.CORRUPT_MESSAGE, str(error))
