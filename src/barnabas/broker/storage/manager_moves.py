"""The end of a move between log directories, and the repair after a crash during a move.

A copy replaces its log in one step of the event loop. The old log stays on disk until a power cut can no longer take any
record of the copy, nor its name. Until then a crash leaves both, and `put_one_aside` decides at the next start.
"""

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from barnabas.base.errors import BarnabasError, LogDirFault
from barnabas.base.host.disk import Disk
from barnabas.base.ids import TopicPartition
from barnabas.broker.storage import names
from barnabas.broker.storage.environment import LogEnvironment
from barnabas.broker.storage.log import Log

logger = logging.getLogger(__name__)

#: The pause before a copy is synced again, if the sync failed although the disk works.
RETRY_S: Final = 5.0


class DuplicateLog(BarnabasError):
    """A partition has a log in two directories, and only the operator knows which one to delete."""


class _Old(NamedTuple):
    directory: str
    #: Called when the old log is deleted, or stays for good.
    waiters: list[Callable[[], None]]


class OldLogs:
    """Logs that were replaced by copies which are not durable yet. Owner: the event loop."""

    def __init__(
        self,
        env: LogEnvironment,
        *,
        is_online: Callable[[str], bool],
        delete: Callable[[Log], None],
        keep_aside: Callable[[Log], None],
    ) -> None:
        """`delete` and `keep_aside` rename the directory of a log. They may raise `LogDirFault`, after reporting it."""
        self._env = env
        self._is_online = is_online
        self._delete = delete
        self._keep_aside = keep_aside
        self._old: dict[TopicPartition, _Old] = {}

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._old

    def is_at(self, directory: str) -> bool:
        return any(old.directory == directory for old in self._old.values())

    def when_gone(self, partition: TopicPartition, then: Callable[[], None]) -> None:
        """Call `then` on the event loop when the partition's old log is gone; at once if there is none."""
        old = self._old.get(partition)
        if old is None:
            then()
        else:
            old.waiters.append(then)

    def retire(self, old: Log, copy: Log) -> None:
        """Close `old`, and delete it once `copy`, which has its final name, is on disk."""
        old.abandon()
        self._old[old.partition] = _Old(old.directory, [])
        self._make_safe(old, copy)

    def _make_safe(self, old: Log, copy: Log) -> None:
        log_dir, disk = copy.log_dir, self._env.disk

        def flushed(error: BaseException | None) -> None:
            if error is not None:
                self._end(old, copy, is_safe=False)
            else:
                self._env.threads.run(lambda: disk.fsync_dir(log_dir), named)

        def named(error: BaseException | None) -> None:
            if isinstance(error, OSError):
                self._env.on_fault(LogDirFault(log_dir, error))
            elif error is not None:
                raise error
            self._end(old, copy, is_safe=error is None)

        copy.flusher.flush_then(copy.log_end_offset, flushed)

    def _end(self, old: Log, copy: Log, *, is_safe: bool) -> None:
        if not is_safe and not copy.is_closed:
            # The disk works; the broker is out of descriptors, for example.
            self._env.timers.call_later(RETRY_S, lambda: self._make_safe(old, copy))
            return
        waiters = self._old.pop(old.partition).waiters
        try:
            if not self._is_online(old.log_dir):
                logger.error(
                    "[partition %s] its old log stays at %s: %s is offline", old.partition, old.directory, old.log_dir
                )
            elif is_safe or self._is_online(copy.log_dir):
                self._delete(old)  # also if the copy was deleted meanwhile: then neither is needed
            else:
                # It must not become the leader's log: the copy may have got records since. But it may be the only log left.
                self._keep_aside(old)
        except LogDirFault as fault:
            logger.error("[partition %s] its old log stays at %s: %s", old.partition, old.directory, fault)
        for then in waiters:
            then()


def put_one_aside(one: Log, other: Log, disk: Disk) -> tuple[Log, str | None]:
    """Of two logs of one partition, put one aside; return it, and its path if it is to be deleted.

    A copy whose move did not finish is deleted. A replaced log is kept, because only the operator can decide. Blocks.
    """
    if None not in (one.topic_id, other.topic_id) and one.topic_id != other.topic_id:
        raise DuplicateLog(
            f"{one.partition} is in both {one.directory} and {other.directory}, with different topic ids: delete the one whose "
            "topic id is not the topic's"
        )
    leaving = min(one, other, key=_reach)
    staying = other if leaving is one else one
    leaving.abandon()
    name = names.delete_dir(leaving.partition) if leaving.is_future else names.stray_dir(leaving.partition)
    target = f"{leaving.log_dir}/{name}"
    logger.error(
        "[partition %s] it is in two directories because a move was interrupted; renaming %s to %s",
        leaving.partition,
        leaving.directory,
        name,
    )
    try:
        # The staying log may be only in the page cache, from the killed process: make it durable before the other one goes.
        _make_durable(staying, disk)
        disk.rename(leaving.directory, target)
    except OSError as error:
        raise DuplicateLog(
            f"{leaving.directory} cannot be put aside for {staying.directory}: {error}; delete one of them or repair its disk"
        ) from error
    return leaving, target if leaving.is_future else None


def _make_durable(log: Log, disk: Disk) -> None:
    job = log.flusher.begin(force=True)
    if job is not None:
        job.run()
        log.flusher.finish(job)
    disk.fsync_dir(log.log_dir)


def _reach(log: Log) -> tuple[int, int, int]:
    """Rank logs as an election does: the log with the later leader epoch, and the higher end, has every acknowledged record,
    and further records of the other log were never committed. A copy that has just replaced its log ranks lower only if the
    power failed before the copy was on disk, and then no write to it was acknowledged."""
    return -1 if log.latest_epoch is None else log.latest_epoch, log.log_end_offset, log.log_start_offset
