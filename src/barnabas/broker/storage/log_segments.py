"""Adds a new segment at the end of a log, and removes or replaces segments.

Owner: the event loop. Files are deleted on threads, which touch nothing but their paths.
"""

import logging
from collections.abc import Callable

from barnabas.base.errors import BrokenInvariant, LogDirFault
from barnabas.base.host import descriptors
from barnabas.broker.storage import names, replacement
from barnabas.broker.storage.log_flush import LogFlusher
from barnabas.broker.storage.log_read import LogReader
from barnabas.broker.storage.log_state import LogState
from barnabas.broker.storage.segment import Segment

logger = logging.getLogger(__name__)


class LogSegments:
    """The only writer of the log's `SegmentList`. Every method may raise `OSError`; the caller reports it.

    Promises: new files are listed for the next flush, files leave only after `file.delete.delay.ms`, and the reader
    drops positions in segments that are gone.
    """

    __slots__ = ("_flusher", "_reader", "_state", "_undecided")

    def __init__(self, state: LogState, *, flusher: LogFlusher, reader: LogReader) -> None:
        self._state = state
        self._flusher = flusher
        self._reader = reader
        #: Compacted segments that wait to replace others, by the `id` of their list.
        self._undecided: dict[int, list[Segment]] = {}

    def roll(self, next_offset: int, now_ms: int) -> Segment:
        """Start a new segment at `next_offset` or the log end; a background flush syncs the previous one."""
        state = self._state
        new_base = max(next_offset, state.log_end_offset)
        active = state.segments.active
        if new_base < active.base_offset or (new_base == active.base_offset and active.size_bytes):
            raise BrokenInvariant(f"{state.partition}: cannot roll to {new_base}, {active} is there")
        if new_base == active.base_offset:
            # The active segment is empty, and its index is too small for one entry: a roll would change nothing.
            return active
        # Recovery reads leader epochs from whole segments, but may begin after this one.
        state.epochs.flush()
        # A snapshot at the start of each segment: recovery of the segment can begin there, and so can a replica whose earlier
        # records are only in the tier. If the snapshot fails, there is no new segment.
        state.producers.update_map_end_offset(new_base)
        if (snapshot := state.snapshots.take(state.producers, sync=False)) is not None:
            self._flusher.unsynced.add(snapshot)
        # Create the files first: if that fails, the log keeps its active segment.
        segment = self._create(new_base, now_ms)
        try:
            active.become_inactive()
        except OSError:
            # Delete the new files. Otherwise the next start would find them and end the log before them, whatever is appended
            # to the active segment until then.
            self._discard([segment])
            raise
        state.segments.add(segment)
        logger.info("[partition %s] rolled to a new segment at offset %d", state.partition, new_base)
        self._flusher.flush_in_background(new_base)
        return segment

    def _create(self, base_offset: int, now_ms: int) -> Segment:
        """Create an active segment without adding it to the list."""
        state = self._state
        config, env = state.config, state.env
        segment = Segment(
            state.directory,
            base_offset,
            disk=env.disk,
            created_ms=now_ms,
            index_interval_bytes=config.index_interval_bytes,
            max_index_bytes=config.segment_index_bytes,
            pool=env.pool,
        )
        if config.segment_jitter_ms:
            segment.roll_jitter_ms = env.random.randrange(min(config.segment_jitter_ms, max(config.segment_ms, 1)))
        for path in segment.paths():
            # A truncation whose deletion is still pending, or a crash, may have left files of these names.
            env.disk.unlink(path)
        try:
            segment.create_files(preallocate_bytes=config.segment_bytes if config.preallocate else 0)
        except OSError:
            self._discard([segment])
            raise
        self._flusher.unsynced.add(segment.log_path)
        segment.become_active()
        return segment

    def restart_at(self, base_offset: int, between: Callable[[], None] | None = None) -> None:
        """Drop every segment, the last first so that a crash leaves no hole, and start a new one. `between` is called while
        there is no segment."""
        self.remove(list(self._state.segments)[::-1], f"restart at {base_offset}")
        if between is not None:
            between()
        self._state.segments.add(self._create(base_offset, self._state.env.clock.now_ms()))
        self._state.settle_local_start()

    def replace_then(
        self,
        cleaned: list[Segment],
        old: list[Segment],
        *,
        is_wanted: Callable[[], bool],
        then: Callable[[Exception | None], None],
    ) -> None:
        """Swap compacted segments in, then call `then` with the error, if any (see `replacement`).

        The directory is synced between the steps. The old segments are removed only if `is_wanted` still returns true then.
        """
        state = self._state
        directory = state.directory

        def sync_then(step: Callable[[], None]) -> None:
            def synced(error: BaseException | None) -> None:
                if state.is_closed or state.directory != directory:
                    then(None)  # the rest is settled, or deleted, together with the log
                    return
                if isinstance(error, OSError) and descriptors.are_exhausted(error):
                    # The disk works. A half-done replacement would wait for the next start under names that the cleaner does
                    # not look for, or block its next work: try again.
                    state.report(error)
                    state.env.timers.call_later(descriptors.WAIT_S, lambda: sync_then(step))
                    return
                try:
                    if error is not None:
                        raise error
                    step()
                except OSError as failure:
                    then(state.report(failure))

            state.env.threads.run(lambda: state.env.disk.fsync_dir(directory), synced)

        def put_in_place() -> None:
            if self._undecided.pop(id(cleaned), None) is None:
                then(None)
                return
            if not is_wanted():
                self._discard(cleaned)
                then(None)
                return
            kept = {segment.base_offset for segment in cleaned}
            leaving = replacement.put_in_place(state.segments, cleaned, old)
            self._reader.forget_positions()
            snapshots = [segment.base_offset for segment in leaving if segment.base_offset not in kept]
            self._delete_later(leaving, snapshots, "replaced by cleaned segments")
            state.env.on_recovery_point(state.log_dir)
            sync_then(name_finally)

        def name_finally() -> None:
            replacement.name_finally(state.segments, cleaned)
            # The next replacement may be decided only after this: recovery counts everything between two `.swap` files as old.
            sync_then(lambda: then(None))

        replacement.decide(state.segments, cleaned, old)
        self._undecided[id(cleaned)] = cleaned
        sync_then(put_in_place)

    def undecide(self) -> None:
        """Drop undecided replacements: the log is truncated, and compacted copies of its former records must not replace
        anything, not even after a crash."""
        while self._undecided:
            self._discard(self._undecided.popitem()[1])

    def _discard(self, unwanted: list[Segment]) -> None:
        for segment in unwanted:
            segment.abandon()
            segment.delete_files()
            self._flusher.unsynced.add(segment.log_path)  # sync the deletion: a power cut must not bring the file back

    def remove(self, leaving: list[Segment], reason: str) -> None:
        """Remove segments from the log and rename them to `.deleted` now; delete the files after `file.delete.delay.ms`."""
        for segment in leaving:
            self._state.segments.remove(segment)
            segment.change_transient(names.DELETED_SUFFIX)
            segment.abandon()
        if len(self._state.segments):
            self._state.settle_local_start()
        self._reader.forget_positions()
        self._delete_later(leaving, [segment.base_offset for segment in leaving], reason)

    def _delete_later(self, leaving: list[Segment], snapshots: list[int], reason: str) -> None:
        if not leaving:
            return
        state = self._state
        env, partition, log_dir = state.env, state.partition, state.log_dir
        logger.info("[partition %s] deleting segments %s: %s", partition, [s.base_offset for s in leaving], reason)
        paths = [path for segment in leaving for path in segment.paths()]
        paths += [path for offset in snapshots if (path := state.snapshots.mark_deleted(offset))]

        def delete() -> None:
            # The directory may have been renamed: a future log has replaced the current one.
            directory = state.directory
            env.threads.run(lambda: unlink_in(directory), done)

        def unlink_in(directory: str) -> None:
            here = [f"{directory}/{path.rpartition('/')[2]}" for path in paths]
            if any(names.TXN_INDEX_SUFFIX in path and env.disk.exists(path) for path in here):
                # A power cut may undo the rename of a log. Its index of aborted transactions must then still be found, if only
                # under its `.deleted` name: without an index, no transaction counts as aborted.
                env.disk.fsync_dir(directory)
            for path in here:
                env.disk.unlink(path)

        def done(error: BaseException | None) -> None:
            if isinstance(error, OSError) and descriptors.are_exhausted(error):
                env.timers.call_later(descriptors.WAIT_S, delete)  # the disk works, and no other code deletes the files
            elif isinstance(error, OSError):
                logger.error("[partition %s] the deletion of segments failed: %s", partition, error)
                env.on_fault(LogDirFault(log_dir, error))
            elif error is not None:
                raise error

        env.timers.call_later(state.config.file_delete_delay_ms / 1000, delete)
