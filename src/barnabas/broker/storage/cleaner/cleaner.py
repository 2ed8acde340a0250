"""The log cleaner: picks the dirtiest compacted log, lets a worker clean it, and swaps the cleaned segments in.

Owner: the event loop. It reads no records: a survey reads sizes and timestamps of segments, a few logs at a time, a worker does
the work, and a swap is a few renames. When a report comes, the job checks its log again: if the log was truncated, deleted,
closed or moved meanwhile, it keeps its segments, and the worker's files are removed.

Compacted logs have their retention here too, between cleanings, so that no segment is deleted under a worker.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final

from barnabas.base.errors import LogDirFault, Malformed
from barnabas.base.host import descriptors
from barnabas.base.ids import TopicPartition
from barnabas.broker.runtime.timers import Timer
from barnabas.broker.storage import names
from barnabas.broker.storage.cleaner.checkpoint import CleanerCheckpoints
from barnabas.broker.storage.cleaner.job import CleanStats, Died, Failed, Finished, GroupCleaned, Report
from barnabas.broker.storage.cleaner.planning import Candidate, DirtyRange, clean_job, dirty_range, filthiest
from barnabas.broker.storage.cleaner.process import Worker
from barnabas.broker.storage.cleaner.settings import CleanerMetrics, CleanerSettings
from barnabas.broker.storage.environment import LogEnvironment
from barnabas.broker.storage.index_under_repair import IndexUnderRepair
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.manager import LogManager
from barnabas.broker.storage.replacement import open_cleaned
from barnabas.broker.storage.segment import Segment

logger = logging.getLogger(__name__)

#: Logs that a survey handles before the loop runs other work.
_SLICE: Final = 32
#: After so many dead workers a log is not cleaned any more: it would kill the next worker too.
_DEATHS_MAX: Final = 3


class _Running:
    """A job that is running."""

    __slots__ = ("aborted", "directory", "last", "log", "segments", "swaps", "worker")

    def __init__(self, log: Log, segments: dict[int, Segment], worker: Worker) -> None:
        self.log = log
        self.segments = segments
        self.worker = worker
        #: The log's directory when the job began: after a rename or a replacement the job is void.
        self.directory = log.directory
        #: Whether the job's reports are ignored.
        self.aborted = False
        #: Number of groups that are being swapped in, and the worker's last report, which waits for them.
        self.swaps = 0
        self.last: Report | None = None


class Cleaner:
    """`start` on the loop once the logs are loaded; `await stop()` before the manager shuts down."""

    def __init__(
        self,
        manager: LogManager,
        env: LogEnvironment,
        settings: CleanerSettings,
        new_worker: Callable[[], Worker],
    ) -> None:
        self._manager = manager
        self._env = env
        self.settings = settings
        self._new_worker = new_worker
        self.checkpoints = CleanerCheckpoints(manager, env)
        self._idle_workers: list[Worker] = []
        self._running: dict[TopicPartition, _Running] = {}
        self._uncleanable: dict[TopicPartition, Log] = {}
        self._deaths: dict[TopicPartition, int] = {}
        self._timer: Timer | None = None
        self._surveying = False
        self._again = False
        self._started = False
        self._stopped = False
        self._drained: asyncio.Future[None] | None = None
        self._last_stats: dict[int, CleanStats] = {}
        self._max_dirty_ratio = 0.0
        self._max_overdue_ms = 0
        self._last_run_ms = env.clock.now_ms()
        self._dead_workers = 0

    # -- beginning and end

    def start(self) -> None:
        """Begin to survey the logs, if `log.cleaner.enable`."""
        if not self.settings.enable:
            logger.info("[log cleaner] disabled")
            return
        self.checkpoints.load()
        self._env.on_cut = self._on_cut
        self._manager.on_removed = self._on_removed
        self._manager.is_being_cleaned = self.is_cleaning
        self._started = True
        self._schedule(self.settings.backoff_ms)

    async def stop(self) -> None:
        """End every job and worker: remove unfinished files, and wait until decided swaps are on disk."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        workers = [running.worker for running in self._running.values()] + self._idle_workers
        for running in self._running.values():
            running.aborted = True
        for worker in workers:
            await worker.close()
        self._idle_workers.clear()
        if self._running:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained
        await self.checkpoints.written()

    def update_settings(self, settings: CleanerSettings) -> None:
        """Use these settings for new jobs. `enable` needs a restart, as in Kafka."""
        self.settings = settings

    def abort(self, partition: TopicPartition) -> None:
        """End the cleaning of this partition's log, if any; the log stays as dirty as it was."""
        running = self._running.get(partition)
        if running is not None and not running.aborted:
            running.aborted = True
            logger.info("[log cleaner] the cleaning of %s is aborted", partition)
            running.worker.kill()

    def is_cleaning(self, partition: TopicPartition) -> bool:
        return partition in self._running

    def is_uncleanable(self, partition: TopicPartition) -> bool:
        return self._uncleanable.get(partition) is not None

    # -- changes of logs

    def _on_cut(self, partition: TopicPartition, directory: str, offset: int) -> None:
        log = self._manager.get(partition)
        if log is None or log.directory != directory:
            return
        self.abort(partition)
        self.checkpoints.truncate(log, offset)

    def _on_removed(self, partition: TopicPartition) -> None:
        self.abort(partition)
        self.checkpoints.drop(partition)
        self._uncleanable.pop(partition, None)
        self._deaths.pop(partition, None)

    # -- the survey

    def _schedule(self, delay_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if self._stopped else self._env.timers.call_later(delay_ms / 1000, self.survey)

    def survey(self) -> None:
        """Check all compacted logs now, and give the dirtiest ones to free workers."""
        if self._stopped or not self._started:
            return
        if self._surveying:
            self._again = True
            return
        self._surveying = True
        self._continue(self._look())

    def _continue(self, slices: Iterator[None]) -> None:
        if self._stopped:
            return
        try:
            next(slices)
        except StopIteration:
            self._surveyed()
        except BaseException:
            self._surveyed()  # a bug in one survey must not end all cleaning
            raise
        else:
            self._timer = self._env.timers.call_later(0, lambda: self._continue(slices))

    def _surveyed(self) -> None:
        self._surveying = False
        again, self._again = self._again, False
        self._schedule(0 if again else self.settings.backoff_ms)

    def _look(self) -> Iterator[None]:
        now_ms = self._last_run_ms = self._env.clock.now_ms()
        candidates: list[Candidate] = []
        for count, log in enumerate([log for log in self._manager if log.config.is_compacted], start=1):
            candidate = self._look_at(log, now_ms)
            if candidate is not None:
                candidates.append(candidate)
            if count % _SLICE == 0:
                yield
        self._max_dirty_ratio = max((candidate.dirty.ratio for candidate in candidates), default=0.0)
        self._max_overdue_ms = max((candidate.dirty.overdue_ms for candidate in candidates), default=0)
        while len(self._running) < self.settings.threads:
            best = filthiest(candidates)
            if best is None:
                return
            candidates.remove(best)
            self._clean(best.partition, now_ms)

    def _look_at(self, log: Log, now_ms: int) -> Candidate | None:
        """Run the log's retention, then measure how dirty it is. None if it must not be cleaned now."""
        partition = log.partition
        if log.is_closed or partition in self._running or self._is_left_alone(log):
            return None
        dirty = self._dirty_range(log, now_ms, retain=True)
        if dirty is None:
            return None
        if dirty.checkpoint_reset:
            self.checkpoints.set(log, dirty.first_dirty_offset)
        return Candidate(partition, dirty, log.config.min_cleanable_dirty_ratio)

    def _dirty_range(self, log: Log, now_ms: int, *, retain: bool = False) -> DirtyRange | None:
        """Return the dirty range; None if the log must not be cleaned. With `retain`, run its retention first."""
        try:
            if retain:
                log.delete_old_segments(now_ms)
            self.checkpoints.follow(log)
            if self._manager.get_future(log.partition) is not None:
                return None  # a copy must not lack records below the cleaner's checkpoint
            if log.recovery_point < log.segments.active.base_offset:
                log.flusher.flush_in_background(log.segments.active.base_offset)
            return dirty_range(log, self.checkpoints.get(log.partition), now_ms)
        except LogDirFault as fault:
            logger.error("[log cleaner] %s is not cleaned: %s", log.partition, fault)
        except OSError as error:
            self._manager.handle_fault(LogDirFault(log.log_dir, error))
        except Malformed as error:
            self._mark_uncleanable(log, str(error))
        except IndexUnderRepair as error:
            logger.info("[log cleaner] %s is not cleaned yet: %s", log.partition, error)
        return None

    def _is_left_alone(self, log: Log) -> bool:
        if self._uncleanable.get(log.partition) not in (None, log):
            # Another log of that name: the log was moved to another directory, or created again.
            del self._uncleanable[log.partition]
        return log.partition in self._uncleanable

    def _mark_uncleanable(self, log: Log, why: str) -> None:
        logger.warning("[log cleaner] %s cannot be cleaned and is skipped until the next start: %s", log.partition, why)
        self._uncleanable[log.partition] = log

    # -- one job

    def _clean(self, partition: TopicPartition, now_ms: int) -> None:
        log = self._manager.get(partition)
        if log is None or log.is_closed:
            return
        # The log may have changed since the survey.
        dirty = self._dirty_range(log, now_ms)
        if dirty is None or dirty.dirty_bytes == 0:
            return
        job = clean_job(log, dirty, self.settings, now_ms)
        segments = {segment.base_offset: segment for segment in log.segments}
        worker = self._idle_workers.pop() if self._idle_workers else self._new_worker()
        running = _Running(log, segments, worker)
        self._running[partition] = running
        logger.info(
            "[log cleaner] cleaning %s: [%d, %d) is dirty, %d bytes of %d",
            partition,
            dirty.first_dirty_offset,
            dirty.end_offset,
            dirty.dirty_bytes,
            dirty.dirty_bytes + dirty.clean_bytes,
        )
        worker.submit(job, lambda report: self._on_report(running, report))

    def _on_report(self, running: _Running, report: Report) -> None:
        if isinstance(report, GroupCleaned):
            if not running.aborted:
                self._swap(running, report)
            return
        if running.swaps:
            running.last = report
            return
        partition = running.log.partition
        if isinstance(report, Died):
            self._on_death(running, report)
            return
        after_ms = 0
        if isinstance(report, Finished):
            if not running.aborted:
                self._finish(running, report)
        elif isinstance(report, Failed) and not running.aborted and self._holds(running):
            if report.errno:
                error = OSError(report.errno, report.message)
                self._manager.handle_fault(LogDirFault(running.log.log_dir, error))
                if descriptors.are_exhausted(error):
                    # The log is as dirty as before: without a pause this would loop.
                    after_ms = self.settings.backoff_ms
            else:
                self._mark_uncleanable(running.log, report.message)
        if running.aborted:
            # The job ended before it could be killed: remove its files all the same.
            self._remove_cleaned(running)
            return
        self._end(partition, running, after_ms=after_ms)

    def _holds(self, running: _Running) -> bool:
        """Whether the log is still the one for which the job began."""
        log = running.log
        return (
            self._manager.get(log.partition) is log
            and not log.is_closed
            and log.directory == running.directory
            and self._manager.get_future(log.partition) is None
        )

    def _swap(self, running: _Running, report: GroupCleaned) -> None:
        log = running.log
        old = [running.segments[base] for base in report.replaced]
        if not self._holds(running) or any(segment not in log.segments or segment.is_active for segment in old):
            self.abort(log.partition)
            return

        def is_wanted() -> bool:
            return not running.aborted and self._holds(running) and all(segment in log.segments for segment in old)

        def swapped(error: Exception | None) -> None:
            running.swaps -= 1
            if error is not None:
                logger.error(
                    "[log cleaner] cleaned segments of %s are not used, trying again: %s", log.partition, error
                )
                self.abort(log.partition)
            if not running.swaps and running.last is not None:
                self._on_report(running, running.last)

        running.swaps += 1
        try:
            cleaned = open_cleaned(log.directory, report.base_offset, disk=self._env.disk, config=log.config)
            log.replace_segments_then([cleaned], old, is_wanted=is_wanted, then=swapped)
        except LogDirFault as fault:
            swapped(fault)
        except OSError as error:
            failure = LogDirFault(log.log_dir, error)
            self._manager.handle_fault(failure)
            swapped(failure)

    def _finish(self, running: _Running, report: Finished) -> None:
        log, stats = running.log, report.stats
        if not self._holds(running):
            return
        self.checkpoints.set(log, report.next_dirty_offset, swapped=True)
        self._deaths.pop(log.partition, None)
        self._dead_workers = 0
        self._last_stats[id(running.worker)] = stats
        logger.info(
            "[log cleaner] cleaned %s up to %d in %.1f s (%.1f s for keys): %d records, %d bytes became %d records, %d bytes; "
            "the map of keys was %.1f%% full%s",
            log.partition,
            report.next_dirty_offset,
            stats.total_s,
            stats.map_s,
            stats.records_read,
            stats.bytes_read,
            stats.records_written,
            stats.bytes_written,
            100 * stats.buffer_utilization,
            f"; {stats.invalid_records} records without a key are gone" if stats.invalid_records else "",
        )

    def _on_death(self, running: _Running, report: Died) -> None:
        partition = running.log.partition
        if not running.aborted:
            self._dead_workers += 1
            deaths = self._deaths[partition] = self._deaths.get(partition, 0) + report.was_running
            logger.error("[log cleaner] the cleaning of %s has failed, trying again: %s", partition, report.message)
            if deaths >= _DEATHS_MAX:
                self._mark_uncleanable(running.log, f"{deaths} workers died while cleaning it")
        self._remove_cleaned(running)

    def _remove_cleaned(self, running: _Running) -> None:
        """Remove a job's files. The partition counts as being cleaned until they are gone."""
        log, disk = running.log, self._env.disk
        directory = log.directory

        def work() -> None:
            try:
                files = disk.listdir(directory)
            except FileNotFoundError:
                return  # deleted together with its directory
            for name in files:
                if name.endswith(names.CLEANED_SUFFIX):
                    disk.unlink(f"{directory}/{name}")

        def done(error: BaseException | None) -> None:
            if isinstance(error, OSError):
                self._manager.handle_fault(LogDirFault(directory.rpartition("/")[0], error))
            elif error is not None:
                raise error
            self._end(log.partition, running, after_ms=self.settings.backoff_ms)

        self._env.threads.run(work, done)

    def _end(self, partition: TopicPartition, running: _Running, *, after_ms: int = 0) -> None:
        del self._running[partition]
        if self._stopped:
            if not self._running and self._drained is not None:
                self._drained.set_result(None)
            return
        if len(self._idle_workers) + len(self._running) < self.settings.threads:
            self._idle_workers.append(running.worker)
        if after_ms == 0:
            # There may be another dirty log. Like Kafka, wait only if there is none.
            if self._surveying:
                self._again = True
            else:
                self._schedule(0)

    # -- numbers

    def _dirty_bytes(self, log: Log, now_ms: int) -> int:
        """Return the dirty bytes of an uncleanable log; all its bytes if they cannot be determined."""
        try:
            return dirty_range(log, self.checkpoints.get(log.partition), now_ms).dirty_bytes
        except (Malformed, IndexUnderRepair, OSError):
            return log.size_bytes

    @property
    def metrics(self) -> CleanerMetrics:
        """The present values, computed on each call."""
        stats = list(self._last_stats.values())
        read, written = sum(s.bytes_read for s in stats), sum(s.bytes_written for s in stats)
        counts: dict[str, int] = {log_dir.path: 0 for log_dir in self._manager.live_dirs}
        sizes = dict(counts)
        now_ms = self._env.clock.now_ms()
        for partition, log in self._uncleanable.items():
            if self._manager.get(partition) is log:
                counts[log.log_dir] = counts.get(log.log_dir, 0) + 1
                sizes[log.log_dir] = sizes.get(log.log_dir, 0) + self._dirty_bytes(log, now_ms)
        return CleanerMetrics(
            cleaner_recopy_percent=100 * written // max(read, 1),
            max_clean_time_secs=max((s.total_s for s in stats), default=0.0),
            max_buffer_utilization_percent=int(100 * max((s.buffer_utilization for s in stats), default=0.0)),
            max_dirty_percent=int(100 * self._max_dirty_ratio),
            max_compaction_delay_secs=self._max_overdue_ms / 1000,
            time_since_last_run_ms=now_ms - self._last_run_ms,
            dead_worker_count=self._dead_workers,
            uncleanable_partitions_count=counts,
            uncleanable_bytes=sizes,
        )
