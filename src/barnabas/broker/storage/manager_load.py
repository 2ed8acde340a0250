"""Loading every log of every directory, many at once, with a line in the log for each.

Blocks: run it on a thread before the event loop serves clients. Until it returns, the logs belong to its threads.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from threading import Lock

from barnabas.base.config.log_config import LogConfig
from barnabas.base.errors import ConfigError, Malformed
from barnabas.base.host.disk import Disk
from barnabas.base.ids import Offset, TopicId, TopicPartition
from barnabas.base.topics import CLUSTER_METADATA_TOPIC
from barnabas.broker.storage import names
from barnabas.broker.storage.checkpoints import CheckpointError, read_partition_metadata
from barnabas.broker.storage.environment import LogEnvironment
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.log_dir import LogDir
from barnabas.broker.storage.manager_upkeep import checkpoint_offsets
from barnabas.broker.storage.recovery import open_log

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class LoadedDir:
    """The result of loading one directory."""

    log_dir: LogDir
    logs: list[Log] = field(default_factory=list)
    #: Paths of partitions whose deletion had begun.
    doomed: list[str] = field(default_factory=list)
    high_watermarks: dict[TopicPartition, Offset] = field(default_factory=dict)
    #: The I/O error that takes the directory offline.
    failure: OSError | None = None


def load_dirs(
    log_dirs: list[LogDir],
    *,
    env: LogEnvironment,
    config_of: Callable[[str], LogConfig],
    threads_per_dir: int,
) -> list[LoadedDir]:
    """Load every live directory at once, `num.recovery.threads.per.data.dir` logs of each at once.

    An `OSError` is returned with its directory. Any other error (an unsupported message format) is raised.
    """
    loaders = [_DirLoader(log_dir, env, config_of) for log_dir in log_dirs]
    pools = [env.make_pool(threads_per_dir, "log-recovery") for _ in loaders]
    try:
        started = [loader.start(pool) for loader, pool in zip(loaders, pools, strict=True)]
        return [finish() for finish in started]
    finally:
        for pool in pools:
            pool.shutdown(cancel_futures=True)


class _DirLoader:
    def __init__(self, log_dir: LogDir, env: LogEnvironment, config_of: Callable[[str], LogConfig]) -> None:
        self._dir = log_dir
        self._env = env
        self._config_of = config_of
        self._found = LoadedDir(log_dir)
        #: None: the checkpoint is missing, no log's recovery point is known.
        self._recovery_points: dict[TopicPartition, Offset] | None = None
        self._start_offsets: dict[TopicPartition, Offset] = {}
        self._lock = Lock()
        self._done = 0
        self._total = 0

    def start(self, pool: Executor) -> Callable[[], LoadedDir]:
        """Begin to load; return a function that waits for the end."""
        try:
            paths = self._prepare()
        except OSError as error:
            failed = self._failed(error)
            return lambda: failed
        futures = [pool.submit(self._load, name) for name in paths]

        def finish() -> LoadedDir:
            for future in futures:
                try:
                    log = future.result()
                except OSError as error:
                    return self._failed(error)
                self._found.logs.append(log)
            try:
                self._save_checkpoints()
            except OSError as error:
                return self._failed(error)
            self._dir.is_loaded = True
            return self._found

        return finish

    def _save_checkpoints(self) -> None:
        """Write the checkpoints before any log grows. Records that were read back are in doubt again until they are flushed,
        and a log that the file does not name counts as new and untrusted. Log starts come first: if a power cut brings back a
        segment that the previous process deleted, the segment is below a recovery point, and recovery would not check it.

        If the file named a log that no longer exists, its offsets would be applied to the next log of that name.
        """
        logs, in_doubt = self._found.logs, not self._dir.had_clean_shutdown or self._recovery_points is None
        here = {log.partition for log in logs}
        for name, known in (
            (names.LOG_START_OFFSET_CHECKPOINT, self._start_offsets),
            (names.RECOVERY_POINT_CHECKPOINT, self._recovery_points or {}),
            (names.REPLICATION_OFFSET_CHECKPOINT, self._found.high_watermarks),
        ):
            offsets = checkpoint_offsets(name, logs)
            is_wanted = not known.keys() <= here
            if in_doubt and name == names.LOG_START_OFFSET_CHECKPOINT:
                is_wanted = offsets != known
            if is_wanted or (in_doubt and name == names.RECOVERY_POINT_CHECKPOINT):
                self._dir.write_checkpoint(name, offsets)

    def _failed(self, error: OSError) -> LoadedDir:
        logger.error("[log directory %s] loading failed, check the disk: %s", self._dir.path, error)
        self._found.failure = error
        return self._found

    def _prepare(self) -> list[str]:
        log_dir = self._dir
        log_dir.take_clean_shutdown_marker()
        self._recovery_points = log_dir.find_checkpoint(names.RECOVERY_POINT_CHECKPOINT)
        self._start_offsets = log_dir.read_checkpoint(names.LOG_START_OFFSET_CHECKPOINT)
        self._found.high_watermarks = log_dir.read_checkpoint(names.REPLICATION_OFFSET_CHECKPOINT)
        to_load: list[str] = []
        for name in log_dir.partition_dirs():
            try:
                parsed = names.parse_partition_dir(name)
            except Malformed as error:
                logger.warning("[log directory %s] ignoring %s, move it elsewhere: %s", log_dir.path, name, error)
                continue
            if parsed.is_delete:
                self._found.doomed.append(log_dir.file(name))
            elif parsed.is_stray:
                logger.warning(
                    "[log directory %s] keeping the stray partition %s: delete it when you are sure", log_dir.path, name
                )
            elif parsed.partition.topic != CLUSTER_METADATA_TOPIC:
                to_load.append(name)
        self._total = len(to_load)
        logger.info(
            "[log directory %s] loading %d logs, %s",
            log_dir.path,
            self._total,
            "it was shut down cleanly" if log_dir.had_clean_shutdown else "recovering them: no clean shutdown",
        )
        return to_load

    def _recovery_point_of(self, parsed: names.PartitionDir) -> int | None:
        if self._recovery_points is None:
            return None
        # The checkpoint may belong to the log that was replaced: a copy is trusted once it has the partition's name.
        return 0 if parsed.is_future else self._recovery_points.get(parsed.partition, 0)

    def _load(self, name: str) -> Log:
        began_s = self._env.clock.monotonic_s()
        parsed = names.parse_partition_dir(name)
        partition = parsed.partition
        directory = self._dir.file(name)
        read = [0, 0]

        def progress(size_bytes: int, cut_bytes: int) -> None:
            read[0] += size_bytes
            read[1] += cut_bytes

        config = self._config_of(partition.topic)
        if config.remote_storage_enable and not self._env.is_tiering:
            # As in Kafka: without the tier the log would begin with its first local segment, and lose the records before it.
            raise ConfigError(
                f"{partition.topic} has remote.storage.enable=true: delete all such topics, or switch it off for them, before "
                "remote.log.storage.system.enable is set to false"
            )
        log = open_log(
            directory,
            config=config,
            env=self._env,
            partition=partition,
            log_start_offset=self._start_offsets.get(partition),
            recovery_point=self._recovery_point_of(parsed),
            clean=self._dir.had_clean_shutdown,
            topic_id=_topic_id(directory, self._env.disk),
            progress=progress,
        )
        log.update_high_watermark(self._found.high_watermarks.get(partition, 0))
        with self._lock:
            self._done += 1
            done = self._done
        logger.info(
            "[log manager] loaded %s: %d segments, offsets [%d, %d), %d bytes re-read, %d cut, in %d ms (%d of %d in %s)",
            name,
            len(log.segments),
            log.log_start_offset,
            log.log_end_offset,
            *read,
            round((self._env.clock.monotonic_s() - began_s) * 1000),
            done,
            self._total,
            self._dir.path,
        )
        return log


def _topic_id(directory: str, disk: Disk) -> TopicId | None:
    """Return the topic id; None if it is unknown or unreadable: then the controller's next request assigns it."""
    try:
        return read_partition_metadata(f"{directory}/{names.PARTITION_METADATA}", disk=disk).topic_id
    except FileNotFoundError:
        return None
    except CheckpointError as error:
        logger.warning(
            "[log directory %s] ignoring an unreadable topic id, the controller sends it again: %s", directory, error
        )
        return None
