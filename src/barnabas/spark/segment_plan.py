"""Finds from the files of a log directory what can be read: partitions, offsets, and slices of segments for tasks.

Reads below the checkpointed high watermark only: a new leader may still truncate records above it. Asks no broker and
locks nothing: a broker may be running on the directory. Its newest segment grows, and older ones may go.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from barnabas.base.errors import ConfigError, Malformed
from barnabas.base.ids import TopicPartition
from barnabas.broker.storage import names, producer_snapshot
from barnabas.broker.storage.checkpoints import read_offsets, read_partition_metadata
from barnabas.broker.storage.txn_index import AbortedTxn, TransactionIndex
from barnabas.spark.tier_slices import Place, index_places
from barnabas.wire.record_batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, check_length, read_header

#: How long a cleaner may take to rename what it has cleaned.
_SWAP_S: Final = 5.0
_PAUSE_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Segment:
    base_offset: int
    path: str
    size_bytes: int
    inode: int
    #: Where the next segment begins; None for the newest segment, which may still grow.
    next_base_offset: int | None


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """One partition's folder. log_start <= until; until is the high watermark, or the last stable offset."""

    partition: TopicPartition
    directory: str
    #: None if no broker has written the id to the folder.
    topic_id: bytes | None
    log_start: int
    high_watermark: int
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """One task's work: whole batches from `start` to `end` of a file, and the offsets to read from them.

    The offsets alone identify the records, too: no two slices share an offset. If files change between plan and read, the
    reader looks for them again by offset.
    """

    partition: TopicPartition
    topic_id: bytes | None
    path: str
    from_offset: int
    until_offset: int
    start: int
    end: int
    #: No other process appends to it, so it can be mapped: bytes that vanish under a map end the process.
    sealed: bool
    aborted: tuple[AbortedTxn, ...] = field(default=())
    #: Identifies the file that was planned: a cleaner may put another file in its place, or a new topic may have the name.
    inode: int = 0
    head: bytes = b""

    def is_in(self, fd: int) -> bool:
        found = os.fstat(fd)
        return (
            found.st_ino == self.inode
            and found.st_size >= (self.end if self.sealed else 0)
            and os.pread(fd, HEADER_SIZE, self.start) == self.head
        )


def find_logs(paths: Sequence[str], *, beyond_high_watermark: bool) -> dict[TopicPartition, PartitionLog]:
    """Every partition below `paths`, each a log directory or one partition's folder.

    A partition that several of them hold (log directories of several brokers) is read where its high watermark is highest.
    """
    found: dict[TopicPartition, PartitionLog] = {}
    for path in paths:
        for log in _logs_of(path, beyond_high_watermark=beyond_high_watermark):
            other = found.get(log.partition)
            if other is None or other.high_watermark < log.high_watermark:
                found[log.partition] = log
    if not found:
        uncommitted = [folder.name for path in paths for folder in Path(path).iterdir() if _partition_of(folder)]
        if uncommitted:
            raise ConfigError(
                f"{', '.join(sorted(uncommitted)[:3])} in {', '.join(paths)} have no high watermark in "
                f"{names.REPLICATION_OFFSET_CHECKPOINT}: a broker writes it every few seconds, and when it stops. Wait for it, "
                "or set beyondHighWatermark=true to read all that is on disk"
            )
        raise ConfigError(f"no partition's folder (topic-partition) in {', '.join(paths)}")
    return dict(sorted(found.items()))


def _logs_of(path: str, *, beyond_high_watermark: bool) -> Iterator[PartitionLog]:
    root = Path(path).resolve()
    if not root.is_dir():
        raise ConfigError(f"{path} is not a directory")
    # A log directory may be named like a partition's folder (`broker-0`); only the latter has segments.
    own = _partition_of(root) if _segments(root) else None
    log_dir, folders = (root.parent, [root]) if own is not None else (root, sorted(root.iterdir()))
    watermarks = _checkpoint(log_dir / names.REPLICATION_OFFSET_CHECKPOINT)
    starts = _checkpoint(log_dir / names.LOG_START_OFFSET_CHECKPOINT)
    for folder in folders:
        partition = _partition_of(folder)
        if partition is None:
            continue
        segments = _segments(folder)
        watermark = watermarks.get(partition)
        if beyond_high_watermark:
            watermark = 1 << 62
        elif watermark is None:
            if own is None:
                continue  # a broker has created the folder and knows no high watermark yet: nothing in it is committed
            raise ConfigError(
                f"there is no high watermark for {partition} in {log_dir / names.REPLICATION_OFFSET_CHECKPOINT}; "
                "set beyondHighWatermark=true to read all that is on disk"
            )
        first = segments[0].base_offset if segments else 0
        start = max(first, starts.get(partition, 0))
        yield PartitionLog(partition, str(folder), _topic_id(folder), start, watermark, segments)


def _partition_of(folder: Path) -> TopicPartition | None:
    """Return the partition of a folder; None if it is no partition's folder, or the replica is being deleted or moved here."""
    if not folder.is_dir():
        return None
    with suppress(Malformed):
        parsed = names.parse_partition_dir(folder.name)
        return parsed.partition if not parsed.suffix else None
    return None


def _checkpoint(path: Path) -> dict[TopicPartition, int]:
    return dict(read_offsets(str(path))) if path.exists() else {}


def _topic_id(folder: Path) -> bytes | None:
    try:
        return read_partition_metadata(str(folder / names.PARTITION_METADATA)).topic_id
    except FileNotFoundError:
        return None


def _segments(folder: Path) -> tuple[Segment, ...]:
    """List the segments between two steps of a cleaner: in the middle of a step a segment has no file of its name."""
    deadline_s = time.monotonic() + _SWAP_S
    before: list[tuple[int, str, int, int]] | None = None
    while True:
        files, is_swapping = _list_segments(folder)
        same = before is not None and [file[3] for file in files] == [file[3] for file in before]
        if same and not is_swapping:
            break
        if time.monotonic() > deadline_s:
            raise ConfigError(
                f"{folder} holds segments that are half swapped in ({names.SWAP_SUFFIX}): a broker died while it cleaned them. "
                "Start it: it finishes that first"
            )
        before = files
        time.sleep(_PAUSE_S if is_swapping else 0)
    following: list[int | None] = [*(base for base, *_ in files[1:]), None]
    return tuple(Segment(*file, after) for file, after in zip(files, following, strict=False))


def _list_segments(folder: Path) -> tuple[list[tuple[int, str, int, int]], bool]:
    """Return (base offset, path, size, inode) of each segment, in order, and whether a cleaner is just replacing some."""
    files, is_swapping = [], False
    for entry in os.scandir(folder):
        parsed = names.parse_segment_file(entry.name)
        if parsed is None or parsed.kind != names.LOG_SUFFIX:
            continue
        is_swapping |= parsed.transient == names.SWAP_SUFFIX
        if not parsed.transient:
            with suppress(FileNotFoundError):
                found = entry.stat()
                files.append((int(parsed.base_offset), entry.path, found.st_size, found.st_ino))
    return sorted(files), is_swapping


# -- slices -------------------------------------------------------------------------------------------------------------


class Replaced(Exception):
    """A file is not the one that was listed: the caller plans again."""


def slices(log: PartitionLog, *, start: int, until: int, max_bytes: int, read_committed: bool) -> list[SegmentSlice]:
    """Make tasks for the records in [start, until): one per segment, more if a segment is larger than `max_bytes`."""
    aborted = _aborted(log) if read_committed else []
    found = []
    for segment in log.segments:
        last = until if segment.next_base_offset is None else min(until, segment.next_base_offset)
        first = max(start, segment.base_offset)
        if first >= last or not segment.size_bytes:
            continue
        for piece in _pieces(segment, first, last, max_bytes):
            found.append(
                SegmentSlice(
                    log.partition,
                    log.topic_id,
                    segment.path,
                    piece.first,
                    piece.last,
                    piece.begin,
                    piece.end,
                    segment.next_base_offset is not None,
                    tuple(txn for txn in aborted if txn.last_offset >= piece.first and txn.first_offset < piece.last),
                    segment.inode,
                    piece.head,
                )
            )
    return found


class _Piece(NamedTuple):
    """Part of a file, and the offsets that only this part holds."""

    begin: int
    end: int
    first: int
    last: int
    head: bytes


def _pieces(segment: Segment, first: int, last: int, max_bytes: int) -> list[_Piece]:
    """Cut the file at batches that the index names; leave out parts that certainly lie outside the offsets."""
    try:
        fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Replaced(segment.path) from None
    try:
        if os.fstat(fd).st_ino != segment.inode:
            raise Replaced(segment.path)
        # An index of another version of the file may name places where no batch begins.
        entries = [entry for entry in _index_entries(segment) if _is_batch(fd, segment, *entry)]
        begin, end = 0, segment.size_bytes
        for offset, position in entries:
            # The batch at `position` ends with `offset` or before: if that is below the range, the batch has no record of it.
            if offset < first:
                begin = position
            if offset >= last:
                # The batch itself may begin inside the range; every batch after the next entry begins after it.
                following = [at for _, at in entries if at > position]
                end = min(following, default=segment.size_bytes)
                break
        cuts = [begin]
        for _, position in entries:
            if begin < position < end and position - cuts[-1] >= max_bytes:
                cuts.append(position)
        heads = [os.pread(fd, HEADER_SIZE, cut) for cut in cuts]
        bases = (int(read_header(head, 0).base_offset) for head in heads[1:])
        firsts = [first, *(min(last, max(first, base)) for base in bases)]
        return [
            _Piece(*each)
            for each in zip(cuts, [*cuts[1:], end], firsts, [*firsts[1:], last], heads, strict=True)
            if each[2] < each[3]
        ]
    finally:
        os.close(fd)


def _is_batch(fd: int, segment: Segment, offset: int, position: int) -> bool:
    head = os.pread(fd, HEADER_SIZE, position)
    if len(head) < HEADER_SIZE:
        return False
    try:
        header = read_header(head, 0)
    except Malformed:
        return False
    return (
        segment.base_offset <= header.base_offset <= offset
        and position + LOG_OVERHEAD + header.batch_length <= segment.size_bytes
    )


def _index_entries(segment: Segment) -> Iterator[Place]:
    """Yield some batches: their last offsets, and where they begin. Yield nothing without an index."""
    path = segment.path.removesuffix(names.LOG_SUFFIX) + names.INDEX_SUFFIX
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return
    yield from index_places(data, segment.base_offset, segment.size_bytes)


# -- transactions -------------------------------------------------------------------------------------------------------


def _aborted(log: PartitionLog) -> list[AbortedTxn]:
    return [
        txn
        for segment in log.segments
        for txn in TransactionIndex(
            segment.path.removesuffix(names.LOG_SUFFIX) + names.TXN_INDEX_SUFFIX, segment.base_offset
        ).entries()
    ]


def last_stable_offset(log: PartitionLog) -> int:
    """Return the first offset of the oldest transaction that is open at the high watermark, or the high watermark itself."""
    open_since, scan_from = _open_at_snapshot(log)
    for segment in log.segments:
        if segment.next_base_offset is not None and segment.next_base_offset <= scan_from:
            continue
        for header in _headers(segment):
            if header.base_offset >= log.high_watermark:
                break
            if header.base_offset < scan_from or not header.is_transactional:
                continue
            if header.is_control:
                open_since.pop(header.producer_id, None)
            else:
                open_since.setdefault(header.producer_id, int(header.base_offset))
    return min([log.high_watermark, *open_since.values()])


def _open_at_snapshot(log: PartitionLog) -> tuple[dict[int, int], int]:
    """Return the open transactions of the newest usable producer snapshot, and the offset to read on from."""
    offsets = []
    for entry in os.scandir(log.directory):
        parsed = names.parse_segment_file(entry.name)
        if parsed is not None and parsed.kind == names.SNAPSHOT_SUFFIX and not parsed.transient:
            offsets.append(int(parsed.base_offset))
    for offset in sorted(offsets, reverse=True):
        if offset > log.high_watermark:
            continue
        try:
            entries = producer_snapshot.read(os.path.join(log.directory, names.snapshot_file(offset)))
        except (producer_snapshot.CorruptSnapshot, FileNotFoundError):
            continue
        opened = {e.producer_id: int(e.txn_first_offset) for e in entries if e.txn_first_offset is not None}
        return opened, offset
    return {}, log.log_start


def _headers(segment: Segment) -> Iterator[BatchHeader]:
    """Yield the headers one after the other, without the records between them: a segment may have a gigabyte."""
    with open(segment.path, "rb") as file:
        position, size = 0, os.fstat(file.fileno()).st_size
        while position < size:
            try:
                header = read_header(file.read(HEADER_SIZE), 0)
                position = check_length(header, position, size)
            except Malformed:
                if segment.next_base_offset is None:
                    return  # a broker is just appending to it
                raise
            yield header
            file.seek(position)
