"""The small text files beside the logs: offset and epoch checkpoints, partition.metadata, the clean-shutdown marker.

Written atomically (`Disk.replace_file`). Read strictly: content that Kafka would not write raises `CheckpointError`, which
names the path and the line. I/O errors stay `OSError`: the caller knows which log directory they take offline.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from barnabas.base.errors import Malformed
from barnabas.base.host.disk import REAL_DISK, Disk
from barnabas.base.ids import ZERO_TOPIC_ID, LeaderEpoch, Offset, TopicId, TopicPartition, format_uuid, parse_uuid
from barnabas.broker.storage.epoch_cache import EpochEntry

CHECKPOINT_VERSION: Final = 0
PARTITION_METADATA_VERSION: Final = 0
CLEAN_SHUTDOWN_VERSION: Final = 0
#: The marker's epoch if the broker knew none (ZooKeeper mode), or if the epoch cannot be read.
NO_BROKER_EPOCH: Final = -1

_LINE_END = re.compile(r"\r\n|\n|\r")
_INTEGER = re.compile(r"[+-]?\d{1,19}")
_INT64_MAX = (1 << 63) - 1
_INT32_MAX = (1 << 31) - 1

T = TypeVar("T")


class CheckpointError(Malformed):
    """A checkpoint file with invalid content. `line` counts from 1; 0 means the file as a whole."""

    def __init__(self, path: str, line: int, why: str) -> None:
        super().__init__(f"{path}, line {line}: {why}" if line else f"{path}: {why}")
        self.path = path
        self.line = line
        self.why = why


class PartitionMetadata(NamedTuple):
    version: int
    topic_id: TopicId


def read_lines(path: str, disk: Disk) -> list[str]:
    """Return the lines of a text file, split as Java's readers do; the last line end starts no further line."""
    return split_lines(path, disk.read_file(path))


def split_lines(path: str, data: bytes) -> list[str]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(path, data.count(b"\n", 0, error.start) + 1, "not UTF-8 text") from None
    lines = _LINE_END.split(text)
    return lines if lines[-1] else lines[:-1]


def parse_integer(path: str, line: int, text: str, limit: int = _INT64_MAX) -> int:
    if _INTEGER.fullmatch(text) is None or not text.isascii() or not -limit - 1 <= int(text) <= limit:
        raise CheckpointError(path, line, f"{text[:40]!r} is not a number")
    return int(text)


def _encode(version: int, lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in (str(version), str(len(lines)), *lines)).encode()


def _read(path: str, entry: Callable[[int, list[str]], T], disk: Disk) -> list[T]:
    return _parse(path, read_lines(path, disk), entry)


def _parse(path: str, lines: list[str], entry: Callable[[int, list[str]], T]) -> list[T]:
    """Return the entries of a checkpoint file. An empty file, or one with only the version, has no entries, as in Kafka."""
    if not lines:
        return []
    version = parse_integer(path, 1, lines[0])
    if version != CHECKPOINT_VERSION:
        raise CheckpointError(path, 1, f"version {version} is not known, expected {CHECKPOINT_VERSION}")
    if len(lines) == 1:
        return []
    expected = parse_integer(path, 2, lines[1])
    entries = [entry(number, line.split()) for number, line in enumerate(lines[2:], start=3)]
    if len(entries) != expected:
        raise CheckpointError(path, 2, f"{expected} entries expected, {len(entries)} found")
    return entries


def write_offsets(
    path: str, offsets: Mapping[TopicPartition, int], *, sync: bool = True, disk: Disk = REAL_DISK
) -> None:
    """Write an offset checkpoint (recovery point, replication, log start, cleaner): lines `topic partition offset`."""
    lines = [f"{partition.topic} {partition.partition} {offset}" for partition, offset in offsets.items()]
    disk.replace_file(path, _encode(CHECKPOINT_VERSION, lines), sync=sync)


def read_offsets(path: str, *, disk: Disk = REAL_DISK) -> dict[TopicPartition, Offset]:
    def entry(number: int, fields: list[str]) -> tuple[TopicPartition, Offset]:
        if len(fields) != 3:
            raise CheckpointError(path, number, "not of the form 'topic partition offset'")
        partition = TopicPartition(fields[0], parse_integer(path, number, fields[1], _INT32_MAX))
        return partition, Offset(parse_integer(path, number, fields[2]))

    return dict(_read(path, entry, disk))


def write_epochs(path: str, entries: Iterable[EpochEntry], *, sync: bool = True, disk: Disk = REAL_DISK) -> None:
    disk.replace_file(path, encode_epochs(entries), sync=sync)


def encode_epochs(entries: Iterable[EpochEntry]) -> bytes:
    """Return the content of leader-epoch-checkpoint: lines `epoch startOffset`."""
    return _encode(CHECKPOINT_VERSION, [f"{entry.epoch} {entry.start_offset}" for entry in entries])


def read_epochs(path: str, *, disk: Disk = REAL_DISK) -> list[EpochEntry]:
    return parse_epochs(path, disk.read_file(path))


def parse_epochs(path: str, data: bytes) -> list[EpochEntry]:
    """Parse leader-epoch-checkpoint. `path` appears in error messages only."""

    def entry(number: int, fields: list[str]) -> EpochEntry:
        if len(fields) != 2:
            raise CheckpointError(path, number, "not of the form 'epoch startOffset'")
        epoch = parse_integer(path, number, fields[0], _INT32_MAX)
        start = parse_integer(path, number, fields[1])
        if epoch < 0 or start < 0:
            raise CheckpointError(path, number, "an epoch and its start offset are not negative")
        return EpochEntry(LeaderEpoch(epoch), Offset(start))

    return _parse(path, split_lines(path, data), entry)


def write_partition_metadata(path: str, topic_id: bytes, *, sync: bool = True, disk: Disk = REAL_DISK) -> None:
    text = f"version: {PARTITION_METADATA_VERSION}\ntopic_id: {format_uuid(topic_id)}"
    disk.replace_file(path, text.encode(), sync=sync)


def read_partition_metadata(path: str, *, disk: Disk = REAL_DISK) -> PartitionMetadata:
    lines = read_lines(path, disk)
    if len(lines) < 2:
        raise CheckpointError(path, len(lines), "a version and a topic_id are expected, a line each")
    version = parse_integer(path, 1, _field(path, 1, lines[0]), _INT32_MAX)
    if version < PARTITION_METADATA_VERSION:
        raise CheckpointError(path, 1, f"version {version} is not known")
    text = _field(path, 2, lines[1])
    try:
        topic_id = TopicId(parse_uuid(text))
    except ValueError:
        raise CheckpointError(path, 2, f"{text[:40]!r} is not a topic id") from None
    if topic_id == ZERO_TOPIC_ID:
        raise CheckpointError(path, 2, "the topic id is zero")
    return PartitionMetadata(version, topic_id)


def _field(path: str, number: int, line: str) -> str:
    name, colon, value = line.partition(":")
    if not colon or not value.strip() or not name:
        raise CheckpointError(path, number, "not of the form 'name: value'")
    return value.strip()


def write_clean_shutdown(path: str, broker_epoch: int = NO_BROKER_EPOCH, *, disk: Disk = REAL_DISK) -> None:
    content = {"version": CLEAN_SHUTDOWN_VERSION, "brokerEpoch": broker_epoch}
    disk.replace_file(path, json.dumps(content, separators=(",", ":")).encode())


def read_clean_shutdown(path: str, *, disk: Disk = REAL_DISK) -> int | None:
    """Return the broker epoch of the marker; None if there is no marker.

    A marker that cannot be read (older Kafka wrote an empty one) still marks a clean shutdown, with `NO_BROKER_EPOCH`: as in
    Kafka, only its existence matters.
    """
    try:
        content = json.loads(disk.read_file(path))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        return NO_BROKER_EPOCH
    epoch = content.get("brokerEpoch") if isinstance(content, dict) else None
    return epoch if isinstance(epoch, int) and not isinstance(epoch, bool) else NO_BROKER_EPOCH
