"""All file and directory names inside a log directory. No other module contains these literals."""

import os
import re
from typing import Final, NamedTuple
from uuid import uuid4

from barnabas.base.errors import Malformed
from barnabas.base.ids import Offset, TopicPartition

# Per segment: twenty digits of base offset and a suffix.
LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"
INDEX_SUFFIXES: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

# Files of segments that are being deleted, compacted or swapped.
DELETED_SUFFIX: Final = ".deleted"
CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"

# Per partition.
LEADER_EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"
#: For a log that begins in the tier: leader epochs of records that are only there, which no local record shows.
TIERED_EPOCHS: Final = "tiered-leader-epochs"
PARTITION_METADATA: Final = "partition.metadata"

# Per log directory.
META_PROPERTIES: Final = "meta.properties"
#: In the first log directory: cached parts of segments in remote storage. The name is Kafka's.
REMOTE_CACHE_DIR: Final = "remote-log-index-cache"
RECOVERY_POINT_CHECKPOINT: Final = "recovery-point-offset-checkpoint"
REPLICATION_OFFSET_CHECKPOINT: Final = "replication-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT: Final = "log-start-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT: Final = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
LOCK: Final = ".lock"

# Directories of partitions that are being deleted, moved here, or are stray.
DELETE_DIR_SUFFIX: Final = "-delete"
FUTURE_DIR_SUFFIX: Final = "-future"
STRAY_DIR_SUFFIX: Final = "-stray"

#: Longest file name on common file systems.
NAME_LENGTH_MAX: Final = 255
_SUFFIXED_DIR = re.compile(r"(\S+)-(\S+)\.(\S+)(-delete|-future|-stray)")
_SEGMENT_FILE = re.compile(
    r"([0-9]{1,20})(\.(?:log|index|timeindex|txnindex|snapshot))((?:\.deleted|\.cleaned|\.swap)*)"
)
_PARTITION = re.compile(r"[0-9]{1,10}")


class PartitionDir(NamedTuple):
    """The parts of the name of a partition's directory."""

    partition: TopicPartition
    #: "", or one of the `…_DIR_SUFFIX` constants.
    suffix: str

    @property
    def is_delete(self) -> bool:
        return self.suffix == DELETE_DIR_SUFFIX

    @property
    def is_future(self) -> bool:
        return self.suffix == FUTURE_DIR_SUFFIX

    @property
    def is_stray(self) -> bool:
        return self.suffix == STRAY_DIR_SUFFIX


class SegmentFile(NamedTuple):
    """The parts of the name of a segment's file: `00000000000000000042.log.swap` is (42, ".log", ".swap")."""

    base_offset: Offset
    kind: str
    transient: str


def offset_prefix(offset: int) -> str:
    """Return twenty digits, so that names sort like offsets."""
    return f"{offset:020d}"


def log_file(base_offset: int, transient: str = "") -> str:
    return f"{base_offset:020d}{LOG_SUFFIX}{transient}"


def index_file(base_offset: int, transient: str = "") -> str:
    return f"{base_offset:020d}{INDEX_SUFFIX}{transient}"


def time_index_file(base_offset: int, transient: str = "") -> str:
    return f"{base_offset:020d}{TIME_INDEX_SUFFIX}{transient}"


def txn_index_file(base_offset: int, transient: str = "") -> str:
    return f"{base_offset:020d}{TXN_INDEX_SUFFIX}{transient}"


def snapshot_file(offset: int, transient: str = "") -> str:
    return f"{offset:020d}{SNAPSHOT_SUFFIX}{transient}"


def parse_segment_file(name: str) -> SegmentFile | None:
    """Parse a file name; None for a name that belongs to no segment."""
    match = _SEGMENT_FILE.fullmatch(name)
    if match is None:
        return None
    return SegmentFile(Offset(int(match[1])), match[2], match[3])


def offset_of_file(path: str) -> Offset:
    """Return the offset in the name of a segment's file."""
    parsed = parse_segment_file(os.path.basename(path))  # noqa: PTH119
    if parsed is None:
        raise Malformed(f"{path} is not the file of a segment: such names start with an offset, like {log_file(42)}")
    return parsed.base_offset


def partition_dir(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def delete_dir(partition: TopicPartition, unique: str | None = None) -> str:
    """Return a directory name for a partition to delete. Shortens the topic if the name would become too long."""
    return _cut_dir(partition, unique, DELETE_DIR_SUFFIX)


def stray_dir(partition: TopicPartition, unique: str | None = None) -> str:
    """Return a directory name for a log to keep but not to use. Shortens the topic as `delete_dir` does."""
    return _cut_dir(partition, unique, STRAY_DIR_SUFFIX)


def _cut_dir(partition: TopicPartition, unique: str | None, suffix: str) -> str:
    tail = f"-{partition.partition}.{unique or uuid4().hex}{suffix}"
    return partition.topic[: NAME_LENGTH_MAX - len(tail)] + tail


def future_dir(partition: TopicPartition, unique: str | None = None) -> str:
    """Return a directory name for the copy that grows in another log directory. Never shortened, because the topic is read back
    from it: the name may be longer than `NAME_LENGTH_MAX`."""
    return f"{partition.topic}-{partition.partition}.{unique or uuid4().hex}{FUTURE_DIR_SUFFIX}"


def parse_partition_dir(name: str) -> PartitionDir:
    """Return the partition that a directory's name stands for; `Malformed` if it is not a partition's."""
    suffix = next((s for s in (DELETE_DIR_SUFFIX, FUTURE_DIR_SUFFIX, STRAY_DIR_SUFFIX) if name.endswith(s)), "")
    stem = name
    if suffix:
        if _SUFFIXED_DIR.fullmatch(name) is None:
            raise _not_a_partition(name)
        stem = name[: name.rindex(".")]
    topic, dash, number = stem.rpartition("-")
    if not dash or not topic or _PARTITION.fullmatch(number) is None or int(number) > 0x7FFFFFFF:
        raise _not_a_partition(name)
    return PartitionDir(TopicPartition(topic, int(number)), suffix)


def _not_a_partition(name: str) -> Malformed:
    return Malformed(
        f"directory '{name}' is not in the form of topic-partition or topic-partition.uniqueId-delete: "
        "a log directory should only contain Kafka topic data"
    )
