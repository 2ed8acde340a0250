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

#: The log, the maps of its indexes, and a file that is written.
DESCRIPTORS_OF_A_CUT: Final = 6


class LogState:
    """Invariants: log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset; producers and epochs reflect
    every batch of the segments. Of a tiered log, log_start_offset <= local_log_start_offset <= high_watermark, the epochs go
    back to the log start, and what lies between the two starts is in the tier. Of any other log they are one.

    Each field has one writer: the appender and the truncator move the log end, retention and the truncator the log start,
    `LogSegments` changes which segments there are, and only this class sets the high watermark.
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
        #: The log directory that holds this partition's.
        self.log_dir = directory.rpartition("/")[0]
        self.partition = partition
        #: Replaced as a whole.
        self.config = config
        self.env = env
        self.segments = segments
        self.producers = producers
        self.snapshots = snapshots
        self.epochs = epochs
        self.log_start_offset = Offset(log_start_offset)
        #: The first offset that the segments here may hold: reads begin here, whatever is in the tier.
        self.local_log_start_offset = Offset(log_start_offset)
        self.settle_local_start()
        #: Everything up to it, from the log start on, is in the tier; -1 where nothing is known to be.
        self.highest_copied_offset = -1
        #: What `log_tier.keep_epochs` has written; None: not known, or being written.
        self.kept_epochs: KeptEpochs | None = None
        #: Called when what is being written is; None: nothing is.
        self.keeping_epochs: list[Callable[[], None]] | None = None
        #: Offset of the next record.
        self.log_end_offset = Offset(log_end_offset)
        #: Every in-sync replica has the records below. Starts at the local start, until the checkpoint or the leader says
        #: more: only what is replicated leaves the disk.
        self.high_watermark = self.local_log_start_offset
        #: How often its end has moved back: it may end again where it did, with other records.
        self.cuts = 0
        #: The lowest end that it was given by a cut since somebody asked; None: it was not cut.
        self.lowest_cut: int | None = None
        self.is_closed = False

    # -- the tier

    @property
    def is_tiered(self) -> bool:
        """Whether the log may begin in the tier."""
        return self.env.is_tiered(self.config, self.partition.topic)

    def settle_local_start(self) -> None:
        """The log start has moved, or the first segment is another one."""
        self.local_log_start_offset = Offset(max(self.log_start_offset, self.segments.first.base_offset))

    # -- high watermark

    @property
    def last_stable_offset(self) -> Offset:
        """Below it every transaction is decided, and its decision replicated. Never above the high watermark."""
        unstable = self.producers.first_unstable_offset
        if unstable is None or unstable >= self.high_watermark:
            return self.high_watermark
        return Offset(max(unstable, self.log_start_offset))

    def maybe_increment_high_watermark(self, offset: int) -> bool:
        """For a leader: never back, never past the log end. True if it moved."""
        if offset > self.log_end_offset:
            raise BrokenInvariant(
                f"{self.partition}: high watermark {offset} is past the log end {self.log_end_offset}"
            )
        if offset <= self.high_watermark:
            return False
        self.set_high_watermark(offset)
        return True

    def update_high_watermark(self, offset: int) -> bool:
        """For a follower, or from the checkpoint: kept within the log. True if it changed."""
        bounded = min(max(offset, self.local_log_start_offset), self.log_end_offset)
        if bounded == self.high_watermark:
            return False
        if bounded < self.high_watermark:
            logger.warning("high watermark of %s goes back from %d to %d", self.partition, self.high_watermark, bounded)
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
        """Of a change that was carried out in part: the log must close, also where only a descriptor was missing."""
        self.fault(descriptors.half_way(error, f"the log of {self.partition}"))

    def check_descriptors(self) -> None:
        """Before a change that cannot be left half-way: see that there are descriptors for it. If not, raise the fault: nothing
        has changed, and it can be tried again. Half-way it would take all logs of the directory with it."""
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
        """Report the failure of the log directory to the environment. Returns the exception for the caller."""
        fault = LogDirFault(self.log_dir, error)
        self.env.on_fault(fault)
        return fault

    @contextmanager
    def reading(self) -> Iterator[None]:
        """For reads off the hot path: turn what fails below into `LogDirFault` and `Refused`."""
        try:
            yield
        except OSError as error:
            self.fault(error)
        except Malformed as error:
            raise self.corrupt(error) from None

    def storage_error(self) -> Refused:
        return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"the log of {self.partition} is closed")

    def corrupt(self, error: Malformed) -> Refused:
        logger.error("corrupt data in %s: %s", self.partition, error)
        return Refused(ErrorCode.CORRUPT_MESSAGE, str(error))
