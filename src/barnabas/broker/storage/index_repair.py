"""Rebuilds damaged indexes of a segment on a thread: the event loop must not read a whole segment.

Until they are built, readers that need them get `IndexUnderRepair`. The thread writes temporary files; the next start deletes
those that a crash leaves. When the thread is done, the loop renames them.
"""

import logging

from barnabas.base.errors import LogDirFault
from barnabas.base.host.disk import TMP_SUFFIX
from barnabas.broker.storage.environment import LogEnvironment
from barnabas.broker.storage.index_build import IndexBuilder, build_aside
from barnabas.broker.storage.segment import Segment

logger = logging.getLogger(__name__)


class IndexRepairs:
    """Owner: the event loop."""

    def __init__(self, env: LogEnvironment) -> None:
        self._env = env

    def begin(self, segment: Segment, why: str) -> None:
        """Start a repair (for `SegmentPool.repair`). `segment` is inactive, so its log no longer changes."""
        logger.warning("[segment %s] rebuilding its indexes on a thread, nothing to do: %s", segment.log_path, why)
        repair = _Repair(segment, self._env)
        self._env.threads.run(repair.run, repair.done)


class _Repair:
    def __init__(self, segment: Segment, env: LogEnvironment) -> None:
        self._segment = segment
        self._env = env
        self._batches = segment.part_from(0)
        self._batches.file.pin()
        self._directory = segment.directory
        self._indexes = segment.new_indexes(TMP_SUFFIX)
        self._interval_bytes = segment.index_interval_bytes
        self._builder: IndexBuilder | None = None

    def run(self) -> None:
        """Any thread. Touches only what cannot change: the log below its end, and files that no other part knows."""
        self._builder = build_aside(self._indexes, self._batches, self._interval_bytes, self._env.disk)

    def done(self, error: BaseException | None) -> None:
        self._batches.file.unpin()
        self._segment.is_under_repair = False
        self._install(error)
        waiters, self._segment.repair_waiters = self._segment.repair_waiters, []
        for waiter in waiters:
            waiter()

    def _install(self, error: BaseException | None) -> None:
        segment = self._segment
        # Deleted, replaced or moved since: the new indexes are not needed, and an error says nothing about the disk.
        is_gone = bool(segment.transient) or segment.directory != self._directory
        if is_gone:
            for index in self._indexes:
                self._env.disk.unlink(index.path)
            return
        try:
            if error is not None:
                raise error
            assert self._builder is not None
            segment.take_repaired(self._indexes, self._builder)
        except OSError as failed:
            self._env.on_fault(LogDirFault(self._directory.rpartition("/")[0], failed))
