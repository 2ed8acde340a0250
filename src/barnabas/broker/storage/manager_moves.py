"""The end of a move between log directories, and what a crash in the middle of one left.

A copy takes the place of its log in one step of the event loop. The log that it replaces stays on disk until a power cut can
take nothing of the copy: neither its records nor its name. Until then a crash leaves both, and `put_one_aside` decides at the
next start.
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

#: The pause before a copy is synced again that could not be, though its disk is well.
RETRY_S: Final = 5.0


class DuplicateLog(BarnabasError):
    """One partition in two directories, and only the operator knows which to delete."""


class _Old(NamedTuple):
    directory: str
    #: Called when it is gone, or given up.
    waiters: list[Callable[[], None]]


class OldLogs:
    """Logs whose copies have taken their place, and are not yet safe. Owner: the event loop."""

    def __init__(
        self,
        env: LogEnvironment,
        *,
        is_online: Callable[[str], bool],
        delete: Callable[[Log], None],
        keep_aside: Callable[[Log], None],
    ) -> None:
        """`delete` and `keep_aside` rename the directory of a log. They may raise `LogDirFault`, which they have reported."""
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
        """Call `then` on the event loop when the old log of the partition has gone; now where there is none."""
        old = self._old.get(partition)
        if old is None:
            then()
        else:
            old.waiters.append(then)

    def retire(self, old: Log, copy: Log) -> None:
        """Close `old`, and delete it once `copy`, which has got its name, is on disk."""
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
            # The broker is out of descriptors, say: the disk is well.
            self._env.timers.call_later(RETRY_S, lambda: self._make_safe(old, copy))
            return
        waiters = self._old.pop(old.partition).waiters
        try:
            if not self._is_online(old.log_dir):
                logger.error("%s stays where it is: %s is offline", old.directory, old.log_dir)
            elif is_safe or self._is_online(copy.log_dir):
                self._delete(old)  # also if the copy was deleted meanwhile: then nobody wants either
            else:
                # Not to be led from: the copy may have got records since. But it may be all that is left.
                self._keep_aside(old)
        except LogDirFault as fault:
            logger.error("%s stays where it is: %s", old.directory, fault)
        for then in waiters:
            then()


def put_one_aside(one: Log, other: Log, disk: Disk) -> tuple[Log, str | None]:
    """Of two logs of one partition in two directories, the one that was put aside, and its path where it is to be deleted.

    A copy that was given up is deleted. Of a log that was replaced nobody but the operator can be sure. Blocks.
    """
    if None not in (one.topic_id, other.topic_id) and one.topic_id != other.topic_id:
        raise DuplicateLog(
            f"{one.partition} is in both {one.directory} and {other.directory}, with different topic ids: delete the one that "
            "is not the topic's"
        )
    leaving = min(one, other, key=_reach)
    staying = other if leaving is one else one
    leaving.abandon()
    name = names.delete_dir(leaving.partition) if leaving.is_future else names.stray_dir(leaving.partition)
    target = f"{leaving.log_dir}/{name}"
    logger.error(
        "%s is in two directories: a move was cut short; %s becomes %s", leaving.partition, leaving.directory, name
    )
    try:
        # The page cache alone may hold it, of the process that was killed: what the other one has on disk must not be missed.
        _make_durable(staying, disk)
        disk.rename(leaving.directory, target)
    except OSError as error:
        raise DuplicateLog(
            f"{leaving.directory} cannot be put aside for {staying.directory}: {error}; delete one of them or mend its disk"
        ) from error
    return leaving, target if leaving.is_future else None


def _make_durable(log: Log, disk: Disk) -> None:
    job = log.flusher.begin(force=True)
    if job is not None:
        job.run()
        log.flusher.finish(job)
    disk.fsync_dir(log.log_dir)


def _reach(log: Log) -> tuple[int, int, int]:
    """The log that goes further, in the later leader epoch, has all that was acknowledged, as in an election: what the other
    has besides was never committed. A copy that has just taken the place of its log has less than that only if the power went
    before it was on disk, and then nothing was promised that was written to it since."""
    return -1 if log.latest_epoch is None else log.latest_epoch, log.log_end_offset, log.log_start_offset
