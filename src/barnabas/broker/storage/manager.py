"""All logs of a broker in its log directories: load, create, move, delete, checkpoint and close them.

Which thread calls which method:

- `open_dirs` and `load` block: call them on a thread (or before there is a loop), and let no other code use the manager;
- `start` and everything after it belong to the event loop; work that waits for the disk goes through `env.threads`;
- `stop` ends the timers, on the loop; then `shutdown` blocks, on a thread, once no request is served any more.

A directory that fails goes offline with its logs and is reported once, to `on_dir_failed`; the other directories go on.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from barnabas.base.config.log_config import LogConfig
from barnabas.base.errors import BarnabasError, BrokenInvariant, ConfigError, ErrorCode, LogDirFault, Refused
from barnabas.base.host import descriptors
from barnabas.base.ids import TopicId, TopicPartition
from barnabas.base.topics import check_topic_name
from barnabas.broker.storage import meta_properties, names
from barnabas.broker.storage.environment import Done, LogEnvironment
from barnabas.broker.storage.index_repair import IndexRepairs
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.log_dir import LogDir
from barnabas.broker.storage.manager_load import load_dirs
from barnabas.broker.storage.manager_moves import OldLogs, put_one_aside
from barnabas.broker.storage.manager_settings import ManagerSettings
from barnabas.broker.storage.manager_upkeep import (
    CHECKPOINTS,
    Checkpointer,
    Periodic,
    checkpoint_offsets,
    epochs_pass,
    expiration_pass,
    flush_pass,
    retention_pass,
)
from barnabas.broker.storage.recovery import open_log

logger = logging.getLogger(__name__)

#: At shutdown many logs sync at once: the file system's journal commits them together, so that thousands take seconds.
_SYNC_THREADS: Final = 16

#: (directory, partitions that went offline with it)
DirFailed = Callable[[str, list[TopicPartition]], None]


def _ignore(partition: TopicPartition) -> None:
    """Default until a cleaner sets its own callback."""


class NoLogDirLeft(BarnabasError):
    """Every log directory has failed: a broker without one cannot go on."""


class LogManager:
    """`config_of` returns a topic's settings; threads call it while `load` runs."""

    def __init__(
        self,
        log_dirs: Sequence[str],
        *,
        env: LogEnvironment,
        settings: ManagerSettings,
        config_of: Callable[[str], LogConfig],
        on_dir_failed: DirFailed,
    ) -> None:
        self._dirs = [LogDir(path, disk=env.disk) for path in log_dirs]
        if len({log_dir.path for log_dir in self._dirs}) != len(self._dirs):
            raise ConfigError(f"log.dirs names a directory twice: {', '.join(log_dirs)}")
        self._env = env
        self.settings = settings
        self._config_of = config_of
        self._on_dir_failed = on_dir_failed
        #: Called when a partition has no log here any more: deleted, stray, or in a failed directory. For the cleaner.
        self.on_removed: Callable[[TopicPartition], None] = _ignore
        #: Whether a worker of the cleaner reads the partition's log: its segments must not be deleted meanwhile.
        self.is_being_cleaned: Callable[[TopicPartition], bool] = lambda partition: False
        #: Called when the start of a partition's log has moved. For the leader, which reports it to its followers.
        self.on_log_start: Callable[[TopicPartition], None] = _ignore
        self._logs: dict[TopicPartition, Log] = {}
        self._future: dict[TopicPartition, Log] = {}
        #: Number of logs in each directory, including future logs.
        self._counts = dict.fromkeys((log_dir.path for log_dir in self._dirs), 0)
        #: The directory that AlterReplicaLogDirs chose for a partition that does not exist yet.
        self._preferred: dict[TopicPartition, str] = {}
        self._doomed: list[str] = []
        #: Directories of deleted logs; their checkpoints may still name these logs.
        self._to_forget_in: set[str] = set()
        self._old = OldLogs(
            env,
            is_online=lambda path: any(log_dir.path == path for log_dir in self.live_dirs),
            delete=self._delete,
            keep_aside=lambda log: self._rename(log, names.stray_dir(log.partition)),
        )
        env.on_fault = self.handle_fault
        env.pool.repair = IndexRepairs(env).begin
        env.on_recovery_point = self._on_recovery_point
        env.save_bounds = self._save_bounds
        env.on_log_start = lambda partition: self.on_log_start(partition)
        self.checkpoints = Checkpointer(env, self.logs_in, self.handle_fault)
        self._tasks: list[Periodic] = []

    # -- before the loop

    def open_dirs(self, *, broker_id: int, cluster_id: str | None) -> None:
        """Lock every directory and check its owner. One that cannot be used goes offline; `NoLogDirLeft` if all do.

        The operator must solve `LogDirLocked` and `InconsistentMetaProperties`: no directory stays locked after them.
        """
        try:
            for log_dir in self._dirs:
                try:
                    log_dir.open()
                except OSError as error:
                    self._set_offline(log_dir, error)
            found = {log_dir.path: log_dir.meta for log_dir in self.live_dirs}
            expected = meta_properties.check(found, broker_id=broker_id, cluster_id=cluster_id)
            for log_dir in self.live_dirs:
                try:
                    log_dir.write_meta(expected[log_dir.path], now_ms=self._env.clock.now_ms())
                except OSError as error:
                    self._set_offline(log_dir, error)
            self._check_alive()
        except BarnabasError:
            self._unlock()
            raise

    def load(self) -> None:
        """Load every log. Blocks; see `manager_load`."""
        began_s = self._env.clock.monotonic_s()
        loaded = load_dirs(
            self.live_dirs,
            env=self._env,
            config_of=self._config_of,
            threads_per_dir=self.settings.recovery_threads_per_data_dir,
        )
        for found in loaded:
            if found.failure is not None:
                for log in found.logs:
                    log.abandon()
                self._set_offline(found.log_dir, found.failure)
                continue
            self._doomed += found.doomed
            for log in found.logs:
                self._adopt_found(log)
        self._check_alive()
        took_ms = round((self._env.clock.monotonic_s() - began_s) * 1000)
        logger.info("[log manager] loaded %d logs in %d ms", len(self._logs) + len(self._future), took_ms)

    def _adopt(self, log: Log) -> None:
        (self._future if log.is_future else self._logs)[log.partition] = log
        self._counts[log.log_dir] += 1

    def _adopt_found(self, log: Log) -> None:
        """Like `_adopt`; but a crash during a move may have left a second log of the partition."""
        logs = self._future if log.is_future else self._logs
        other = logs.get(log.partition)
        if other is not None:
            leaving, doomed = put_one_aside(other, log, self._env.disk)
            if doomed is not None:
                self._doomed.append(doomed)
            if leaving is log:
                return
            self._release(logs, log.partition)
        self._adopt(log)

    def _release(self, logs: dict[TopicPartition, Log], partition: TopicPartition) -> Log | None:
        log = logs.pop(partition, None)
        if log is not None:
            self._counts[log.log_dir] -= 1
        return log

    def _check_alive(self) -> None:
        if not self.live_dirs:
            raise NoLogDirLeft(
                f"no log directory can be used ({', '.join(d.path for d in self._dirs)}): check the disks and their permissions"
            )

    # -- for the event loop

    def start(self) -> None:
        """Begin the periodic tasks."""
        settings, now_ms = self.settings, self._env.clock.now_ms
        for path in self._doomed:
            self._remove_tree_later(path)
        self._doomed.clear()
        self._every(settings.retention_check_interval_ms, self._retention_pass)
        self._every(settings.flush_scheduler_interval_ms, lambda: flush_pass(self.all_logs(), now_ms=now_ms()))
        every_ms = settings.producer_id_expiration_check_interval_ms
        self._every(every_ms, lambda: expiration_pass(self.all_logs(), now_ms=now_ms()))
        self._every(settings.high_watermark_checkpoint_interval_ms, lambda: epochs_pass(self.all_logs()))
        for period_ms, name in (
            (settings.flush_offset_checkpoint_interval_ms, names.RECOVERY_POINT_CHECKPOINT),
            (settings.flush_start_offset_checkpoint_interval_ms, names.LOG_START_OFFSET_CHECKPOINT),
            (settings.high_watermark_checkpoint_interval_ms, names.REPLICATION_OFFSET_CHECKPOINT),
        ):
            self._every(period_ms, partial(self.checkpoint, name))

    def _every(self, period_ms: int, step: Callable[[], Iterator[None] | None]) -> None:
        task = Periodic(self._env, period_ms, step)
        task.start(min(self.settings.initial_task_delay_ms, period_ms))
        self._tasks.append(task)

    def stop(self) -> None:
        """End the periodic tasks; `shutdown` may follow."""
        for task in self._tasks:
            task.stop()
        self._tasks.clear()

    # -- look-ups

    @property
    def live_dirs(self) -> list[LogDir]:
        return [log_dir for log_dir in self._dirs if log_dir.is_online]

    @property
    def dirs(self) -> list[LogDir]:
        """Every directory of `log.dirs`, including failed ones."""
        return list(self._dirs)

    def has_offline_dirs(self) -> bool:
        return any(not log_dir.is_online for log_dir in self._dirs)

    @property
    def previous_broker_epoch(self) -> int:
        """The epoch in the clean-shutdown markers; -1 unless every directory has one and they agree."""
        epochs = {log_dir.previous_broker_epoch for log_dir in self._dirs}
        return epochs.pop() if len(epochs) == 1 else -1

    def __len__(self) -> int:
        return len(self._logs)

    def __iter__(self) -> Iterator[Log]:
        """Iterate over the current logs, without the future ones."""
        return iter(list(self._logs.values()))

    def get(self, partition: TopicPartition) -> Log | None:
        return self._logs.get(partition)

    def get_future(self, partition: TopicPartition) -> Log | None:
        return self._future.get(partition)

    def all_logs(self) -> list[Log]:
        return [*self._logs.values(), *self._future.values()]

    def logs_in(self, log_dir: LogDir) -> list[Log]:
        return [log for log in self.all_logs() if log.log_dir == log_dir.path]

    def logs_of(self, topic: str) -> list[Log]:
        return [log for log in self.all_logs() if log.partition.topic == topic]

    def topic_settings_changed(self, topic: str, config: LogConfig) -> None:
        """Apply changed settings. `topic` is empty if every topic's settings may have changed."""
        for log in self.logs_of(topic) if topic else self.all_logs():
            if log.is_closed:
                continue  # its directory has just failed
            try:
                log.update_config(config if topic else self._config_of(log.partition.topic))
            except LogDirFault as fault:
                # The log has reported it. The other logs and the other listeners need the settings all the same.
                logger.error("[partition %s] its log failed before the new settings applied: %s", log.partition, fault)

    def check_framing(self, wanted: bool) -> None:
        """`barnabas.record.framing.check`"""
        self._env.check_framing = wanted

    def change_producer_settings(self, *, expiration_ms: int, transaction_verification: bool) -> None:
        """Set `producer.id.expiration.ms` and `transaction.partition.verification.enable` for every log, present and future."""
        self._env.producer_id_expiration_ms = expiration_ms
        self._env.transaction_verification = transaction_verification
        for log in self.all_logs():
            log.producers.producer_id_expiration_ms = expiration_ms
            log.producers.transaction_verification = transaction_verification

    # -- creating, moving, deleting

    def get_or_create(self, partition: TopicPartition, *, topic_id: TopicId | None, is_new: bool = False) -> Log:
        """Return the log; create it in the directory with the fewest logs if it does not exist.

        Unless `is_new`, a log that is missing while a directory is offline may be in that directory: `Refused` with
        `KAFKA_STORAGE_ERROR`. `INCONSISTENT_TOPIC_ID` if the log belongs to another topic of that name.
        """
        log = self._logs.get(partition)
        if log is None:
            if not is_new and self.has_offline_dirs():
                raise Refused(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"cannot create the log of {partition}: it may be in an offline directory",
                )
            log = self._create(partition, names.partition_dir(partition), self._candidates(partition))
            self._adopt(log)
            self._preferred.pop(partition, None)
        if topic_id is not None:
            log.assign_topic_id(topic_id)
        return log

    def _candidates(self, partition: TopicPartition) -> list[LogDir]:
        """Return the live directories that can take the partition, the best first."""
        preferred = self._preferred.get(partition)
        free = [
            log_dir for log_dir in self.live_dirs if not self._old.is_at(log_dir.file(names.partition_dir(partition)))
        ]
        return sorted(free, key=lambda log_dir: (log_dir.path != preferred, self._counts[log_dir.path]))

    def _create(self, partition: TopicPartition, name: str, candidates: list[LogDir]) -> Log:
        # An impossible file name would fail in every directory, and look like failing disks.
        check_topic_name(partition.topic)
        config = self._config_of(partition.topic)
        for log_dir in candidates:
            try:
                log = open_log(log_dir.file(name), config=config, env=self._env, partition=partition)
            except OSError as error:
                self.handle_fault(LogDirFault(log_dir.path, error))
                continue
            # Sometimes thousands at once: the caller logs them in one line.
            logger.debug("created the log of %s in %s", partition, log.directory)
            return log
        raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"no log directory can take {partition}")

    def delete(self, partition: TopicPartition) -> None:
        """Delete the log and its future log, if any: rename them now, remove the files after the delay.

        A log that is missing while a directory is offline may be in that directory: `Refused` with `KAFKA_STORAGE_ERROR`.
        Otherwise it would come back with the directory.
        """
        is_missing = partition not in self._logs
        leaving = [log for logs in (self._logs, self._future) if (log := self._release(logs, partition)) is not None]
        self.on_removed(partition)
        fault: LogDirFault | None = None
        self._to_forget_in.update(log.log_dir for log in leaving)
        for log in leaving:
            try:
                self._delete(log)
            except LogDirFault as failed:
                fault = failed  # the other log is in another directory, and has to be deleted all the same
        if fault is not None:
            raise fault
        if is_missing and self.has_offline_dirs():
            raise Refused(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"cannot delete the log of {partition}: it may be in an offline directory",
            )

    def when_forgotten(self, then: Callable[[], None]) -> None:
        """Call `then` when no checkpoint on disk names a log that `delete` removed. Only then may a topic get the same name
        again: otherwise a start would apply the old log's start offset to the new log, and drop all records below it."""
        directories, self._to_forget_in = self._to_forget_in, set()
        self.checkpoints.when_written(
            [log_dir for log_dir in self._dirs if log_dir.path in directories], CHECKPOINTS, then
        )

    def delete_future(self, partition: TopicPartition) -> None:
        """Abandon a move between directories."""
        log = self._release(self._future, partition)
        if log is not None:
            self._delete(log)

    def _delete(self, log: Log) -> None:
        log_dir = self._dir_of(log)
        log.abandon()
        self._rename(log, names.delete_dir(log.partition))
        logger.info("[partition %s] deleting its log, renamed to %s", log.partition, log.directory)
        self._remove_tree_later(log.directory)
        self._checkpoint_dir(log_dir)

    def _rename(self, log: Log, name: str) -> None:
        target = f"{log.log_dir}/{name}"
        try:
            self._env.disk.rename(log.directory, target)
        except OSError as error:
            fault = LogDirFault(log.log_dir, error)
            self.handle_fault(fault)
            raise fault from error
        log.moved_to(target)

    def _remove_tree_later(self, path: str) -> None:
        log_dir = path.rpartition("/")[0]

        def done(error: BaseException | None) -> None:
            if error is None:
                logger.info("[log manager] deleted %s", path)
            elif isinstance(error, FileNotFoundError):
                logger.info("[log manager] %s was already deleted", path)
            elif isinstance(error, OSError) and descriptors.are_exhausted(error):
                self._env.timers.call_later(descriptors.WAIT_S, work)
            elif isinstance(error, OSError):
                self.handle_fault(LogDirFault(log_dir, error))
            else:
                raise error

        def work() -> None:
            self._env.threads.run(lambda: self._env.disk.rmtree(path), done)

        self._env.timers.call_later(self.settings.segment_delete_delay_ms / 1000, work)

    # -- moves between directories (AlterReplicaLogDirs)

    def prefer_dir(self, partition: TopicPartition, path: str) -> None:
        """Set the directory in which the partition's log, or its future log, is created. `LOG_DIR_NOT_FOUND` for an unknown
        directory, `KAFKA_STORAGE_ERROR` for one that has failed."""
        log_dir = next((d for d in self._dirs if d.path == path), None)
        if log_dir is None:
            raise Refused(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not a log directory of this broker")
        if not log_dir.is_online:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{path} is offline")
        self._preferred[partition] = path

    def get_or_create_future(self, partition: TopicPartition) -> Log:
        """Return the copy that grows in the preferred directory until it can replace the log; create it if needed."""
        future = self._future.get(partition)
        if future is not None:
            return future
        current = self._logs.get(partition)
        preferred = self._preferred.get(partition)
        if current is None or preferred is None or preferred == current.log_dir:
            raise BrokenInvariant(f"{partition} has no log to move, or no other directory to move to")
        log_dir = next((d for d in self.live_dirs if d.path == preferred), None)
        if log_dir is None:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{preferred} is offline")
        name = names.future_dir(partition)
        if len(name) > names.NAME_LENGTH_MAX:
            raise Refused(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"{partition} cannot be moved: the name of its copy would be longer than {names.NAME_LENGTH_MAX} characters",
            )
        future = self._create(partition, name, [log_dir])
        try:
            self._share_topic_id(current, future)
        except LogDirFault as fault:
            if not descriptors.are_exhausted(fault.cause):
                raise
            # The directory exists, and the next start would load it as a copy: so keep it. It gets its topic id before its
            # final name.
            logger.warning(
                "[partition %s] its copy gets the topic id later, when a descriptor is free; raise the limit of open files: %s",
                partition,
                fault,
            )
        self._adopt(future)
        del self._preferred[partition]
        return future

    def _share_topic_id(self, current: Log, future: Log) -> None:
        if current.topic_id is not None and future.topic_id is None:
            future.assign_topic_id(current.topic_id)

    def swap_future(self, partition: TopicPartition) -> Log:
        """Make the future log, which has caught up, the partition's log, and return it.

        The old log is deleted when the new one is on disk. Call only after the old log of the previous move is gone
        (`when_old_is_gone`), and after the future log is ready (`make_ready`).
        """
        current, future = self._logs.get(partition), self._future.get(partition)
        if current is None or future is None:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition} has no future log, or it is offline")
        if partition in self._old:
            raise BrokenInvariant(f"{partition} moves again before the old log of its previous move is gone")
        source_dir, target_dir = self._dir_of(current), self._dir_of(future)
        future.update_high_watermark(current.high_watermark)
        future.highest_copied_offset = current.highest_copied_offset
        # Records that DeleteRecords or retention has removed must not come back. If its disk fails here, it is still a future
        # log.
        future.maybe_increment_log_start_offset(current.log_start_offset, "the log that it replaces starts there")
        self._share_topic_id(current, future)
        self._rename(future, names.partition_dir(partition))
        self._release(self._future, partition)
        self._release(self._logs, partition)
        self._adopt(future)
        logger.info("[partition %s] its log has moved from %s to %s", partition, source_dir.path, target_dir.path)
        self._checkpoint_dir(target_dir)
        self._old.retire(current, future)
        return future

    def when_old_is_gone(self, partition: TopicPartition, then: Callable[[], None]) -> None:
        """Call `then` when the log that a move has replaced is gone; at once if there is none."""
        self._old.when_gone(partition, then)

    def make_ready(self, future: Log, then: Done) -> None:
        """Call `then` when this copy may take the partition's name. After a power cut the copy may be loaded as the whole log,
        so its first segment must be durable. And the checkpoints of its directory must not hold offsets of another log that had
        this name there before."""

        def named(error: BaseException | None) -> None:
            if error is not None:
                then(error)  # its directory has failed, or the copy was abandoned: the move ends
            else:
                self._save_bounds(future.log_dir, then)

        directory, disk = future.directory, self._env.disk
        self._env.threads.run(lambda: disk.fsync_dir(directory), named)

    # -- failure

    def handle_fault(self, fault: LogDirFault) -> None:
        """Take a directory offline with its logs after an I/O error. Reports once; later faults of the same directory are
        echoes."""
        log_dir = next((d for d in self.live_dirs if d.path == fault.log_dir), None)
        if log_dir is None:
            return
        if descriptors.are_exhausted(fault.cause):
            logger.error(
                "[log directory %s] a file could not be opened, the directory stays online: %s; raise the limit of open files",
                fault.log_dir,
                fault.cause.strerror,
            )
            return
        gone = self.logs_in(log_dir)
        self._set_offline(log_dir, fault.cause)
        partitions = []
        for log in gone:
            logs = self._future if log.is_future else self._logs
            self._release(logs, log.partition)
            log.abandon()
            if not log.is_future:  # if only the future log is lost, the partition goes on as it is
                partitions.append(log.partition)
                self.on_removed(log.partition)
        logger.error("[log directory %s] %d logs are offline with it", log_dir.path, len(gone))
        self._on_dir_failed(log_dir.path, partitions)

    def fail_dir(self, path: str, error: OSError) -> None:
        """Fail a directory as if its disk had failed: for fault injection and for an operator's command."""
        self.handle_fault(LogDirFault(path, error))

    def _set_offline(self, log_dir: LogDir, error: OSError) -> None:
        logger.error("[log directory %s] goes offline: %s; check the disk, restart the broker", log_dir.path, error)
        log_dir.is_online = False
        log_dir.unlock()

    def _dir_of(self, log: Log) -> LogDir:
        return next(log_dir for log_dir in self._dirs if log_dir.path == log.log_dir)

    # -- upkeep

    def checkpoint(self, name: str) -> None:
        """Write one of `CHECKPOINTS` in every live directory, on a thread."""
        for log_dir in self.live_dirs:
            self.checkpoints.request(log_dir, name)

    def _checkpoint_dir(self, log_dir: LogDir) -> None:
        for name in CHECKPOINTS:
            self.checkpoints.request(log_dir, name)

    def _save_bounds(self, path: str, done: Done) -> None:
        log_dir = next(log_dir for log_dir in self._dirs if log_dir.path == path)
        self.checkpoints.write(log_dir, (names.RECOVERY_POINT_CHECKPOINT, names.LOG_START_OFFSET_CHECKPOINT), done)

    def _on_recovery_point(self, path: str) -> None:
        for log_dir in self.live_dirs:
            if log_dir.path == path:
                self.checkpoints.request(log_dir, names.RECOVERY_POINT_CHECKPOINT)

    def _retention_pass(self) -> Iterator[None]:
        now_ms = self._env.clock.now_ms()
        return retention_pass(self.all_logs(), now_ms=now_ms, is_being_cleaned=self.is_being_cleaned)

    # -- the end

    def shutdown(self, broker_epoch: int = -1) -> None:
        """Flush and close every log, write the checkpoints, mark the directories clean, unlock them. Blocks."""
        self.stop()
        try:
            for log_dir in self.live_dirs:
                self._shut_down(log_dir, broker_epoch)
        finally:
            self._unlock()

    def abandon(self) -> None:
        """Close every file without a write and unlock the directories, as the end of a killed process does."""
        self.stop()
        for log in self.all_logs():
            log.abandon()
        self._unlock()

    def _shut_down(self, log_dir: LogDir, broker_epoch: int) -> None:
        logs = self.logs_in(log_dir)
        try:
            jobs = [(log, log.begin_close()) for log in logs]
            with self._env.make_pool(_SYNC_THREADS, "log-closing") as pool:
                synced = [None if job is None else pool.submit(job.run) for _, job in jobs]
            for (log, job), future in zip(jobs, synced, strict=True):
                log.finish_close(job, None if future is None else future.exception())
            for name in CHECKPOINTS:
                log_dir.write_checkpoint(name, checkpoint_offsets(name, logs))
            if log_dir.is_loaded:
                log_dir.mark_clean_shutdown(broker_epoch)
        except LogDirFault as fault:
            # The next start recovers this directory; the others are still closed cleanly.
            logger.error(
                "[log directory %s] not shut down cleanly, the next start recovers it: %s", log_dir.path, fault
            )
        except OSError as error:
            self.handle_fault(LogDirFault(log_dir.path, error))

    def _unlock(self) -> None:
        for log_dir in self._dirs:
            log_dir.unlock()
