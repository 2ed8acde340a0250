"""What all logs of a broker share, injected: disk, clock, timers, threads, and the reactions to a failed directory.

The log itself imports no asyncio and starts no thread. A broker gives it the event loop's timers and a thread pool;
a test gives it a manual clock and threads that run on demand.
"""

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from barnabas.base.clock import Clock, SystemClock
from barnabas.base.config.log_config import LogConfig
from barnabas.base.errors import LogDirFault
from barnabas.base.host.disk import Disk
from barnabas.base.ids import TopicPartition
from barnabas.base.topics import REMOTE_LOG_METADATA_TOPIC, is_internal
from barnabas.broker.runtime.timers import Timer, Timers
from barnabas.broker.storage.file_handle import SegmentPool

Work = Callable[[], None]
#: Called on the event loop once the work has ended, with the exception that it raised, or None.
Done = Callable[[BaseException | None], None]


class Threads(Protocol):
    def run(self, work: Work, done: Done) -> None:
        """Run `work` on some thread; then `done` on the event loop."""
        ...


class InlineThreads:
    """Runs the work in the caller's thread: for tools and tests that have no event loop."""

    def run(self, work: Work, done: Done) -> None:
        try:
            work()
        except Exception as error:
            done(error)
        else:
            done(None)


class NoTimer:
    def cancel(self) -> None:
        """There is nothing to stop."""


class ImmediateTimers:
    """Fires at once, whatever the delay: for tools that delete a segment and want it gone."""

    def time(self) -> float:
        return 0.0

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        callback()
        return NoTimer()


def _raise_fault(fault: LogDirFault) -> None:
    """Do nothing: without a manager the fault only reaches the caller, as an exception."""


def thread_pool(threads: int, name: str) -> Executor:
    return ThreadPoolExecutor(threads, thread_name_prefix=name)


def _ignore(log_dir: str) -> None:
    """A log without a manager has no checkpoint file."""


def _saved(log_dir: str, done: Done) -> None:
    """A log without a manager has no checkpoint file to wait for."""
    done(None)


def _ignore_cut(partition: TopicPartition, directory: str, offset: int) -> None:
    """Without a cleaner there is nothing to cut back."""


def _ignore_log_start(partition: TopicPartition) -> None:
    """Without replicas no part of the broker needs the log start."""


@dataclass(slots=True, kw_only=True)
class LogEnvironment:
    """Owner: the owner of the logs. One for all logs of a broker."""

    disk: Disk = field(default_factory=Disk)
    clock: Clock = field(default_factory=SystemClock)
    timers: Timers = field(default_factory=ImmediateTimers)
    threads: Threads = field(default_factory=InlineThreads)
    pool: SegmentPool = field(default_factory=SegmentPool)
    #: Creates a pool of (number of threads, their name) that loads and closes many logs at once.
    make_pool: Callable[[int, str], Executor] = thread_pool
    #: Spreads `segment.jitter.ms`, so that the segments of a topic do not all roll at once.
    random: Random = field(default_factory=Random)
    #: Called with every I/O error, on the event loop, before the caller gets it as an exception.
    on_fault: Callable[[LogDirFault], None] = _raise_fault
    #: `producer.id.expiration.ms`
    producer_id_expiration_ms: int = 86_400_000
    #: `barnabas.record.framing.check`
    check_framing: bool = False
    #: `transaction.partition.verification.enable`
    transaction_verification: bool = False
    #: Called on the event loop after compaction: the log's recovery point must reach the checkpoint file soon. Otherwise
    #: recovery would take the holes that compaction made for damage.
    on_recovery_point: Callable[[str], None] = _ignore
    #: Called on the event loop before a truncated log grows again: writes the recovery points and log starts of a directory's
    #: logs to disk, then calls back. Otherwise recovery would trust records that were written over, or drop records below
    #: the former log start.
    save_bounds: Callable[[str, Done], None] = _saved
    #: Called on the event loop after a log was truncated, before it grows again: (partition, its directory, new log end).
    on_cut: Callable[[TopicPartition, str, int], None] = _ignore_cut
    #: Called on the event loop when a log's start has moved.
    on_log_start: Callable[[TopicPartition], None] = _ignore_log_start
    #: `remote.log.storage.system.enable`
    is_tiering: bool = False

    def is_tiered(self, config: LogConfig, topic: str) -> bool:
        """Whether the log may start in the tier: both the broker and the topic enable it, and the topic can be tiered."""
        return (
            config.remote_storage_enable
            and self.is_tiering
            and not config.is_compacted
            and not is_internal(topic)
            and topic != REMOTE_LOG_METADATA_TOPIC
        )
