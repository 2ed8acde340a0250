"""What a crash left half done in a partition's directory: deletions, compactions, swaps. Settled before segments load.

Any thread. The states and their meaning are those of `replacement`.
"""

import logging

from barnabas.base.host.disk import TMP_SUFFIX, Disk
from barnabas.broker.storage import names
from barnabas.broker.storage.names import SegmentFile
from barnabas.broker.storage.segment_batches import SHORT_HEADER
from barnabas.wire.record_batch import LOG_OVERHEAD, MAGIC_V2, MIN_BATCH_LENGTH

logger = logging.getLogger(__name__)


def settle_leftovers(directory: str, disk: Disk) -> set[int]:
    """Finish or undo what was going on. May itself be interrupted and called again.

    Returns the base offsets of segments that were being replaced or deleted. Where the file system does not keep the order of
    renames, a power cut may leave the log of one and the indexes of the other, or a log without its indexes: they have to be
    built again. The files that say so stay until `forget_leftovers`: the power may go before the new indexes are durable.
    """
    files = [(name, names.parse_segment_file(name)) for name in disk.listdir(directory)]
    came_back = _came_back([parsed for _, parsed in files if parsed is not None])
    cleaned: list[SegmentFile] = []
    swaps: list[SegmentFile] = []
    if any(name.endswith(names.TXN_INDEX_SUFFIX + names.DELETED_SUFFIX) for name, _ in files):
        # The process that renamed them was killed. Without the file nothing was aborted, should its log come back.
        disk.fsync_dir(directory)
    for name, parsed in files:
        if name.endswith((names.DELETED_SUFFIX, TMP_SUFFIX)):
            if parsed is None or parsed.base_offset not in came_back:
                _unlink(disk, directory, name, "left by a deletion or a write that did not finish")
            continue
        if parsed is None:
            continue
        if parsed.transient == names.CLEANED_SUFFIX:
            cleaned.append(parsed)
        elif parsed.transient == names.SWAP_SUFFIX:
            swaps.append(parsed)
    replaced: set[int] = {*came_back, *(file.base_offset for file in (*cleaned, *swaps))}
    undone = min((file.base_offset for file in cleaned), default=None)
    # `.swap` before `.cleaned`: were the lowest `.cleaned` gone first, a second crash would take the rest for decided.
    undecided = [swap for swap in swaps if undone is not None and swap.base_offset >= undone]
    for file in undecided:
        _unlink(disk, directory, _name(file), "a swap that was not decided")
        swaps.remove(file)
    if undecided:
        disk.fsync_dir(directory)
    decided = {file.base_offset for file in swaps if file.kind == names.LOG_SUFFIX}
    if decided:
        _finish_swap(directory, disk, [file for file in swaps if file.base_offset in decided])
    return replaced


def _came_back(files: list[SegmentFile]) -> set[int]:
    """Segments that were deleted, and whose log a power cut has brought back, but not all else."""
    deleted = {(file.base_offset, file.kind) for file in files if file.transient == names.DELETED_SUFFIX}
    return {
        file.base_offset
        for file in files
        if file.kind == names.LOG_SUFFIX
        and not file.transient
        and (file.base_offset, names.LOG_SUFFIX) not in deleted
        and any((file.base_offset, kind) in deleted for kind in names.INDEX_SUFFIXES)
    }


def forget_leftovers(directory: str, disk: Disk) -> None:
    """The indexes that were built again are on disk: nothing has to say any longer that they were in doubt."""
    disk.fsync_dir(directory)
    for name in disk.listdir(directory):
        parsed = names.parse_segment_file(name)
        if parsed is not None and parsed.transient:
            _unlink(disk, directory, name, "a compaction or a deletion that did not finish")


def _finish_swap(directory: str, disk: Disk, swaps: list[SegmentFile]) -> None:
    # The directory is synced between the steps, as in `replacement`: the broker may have died before it was, and the power
    # may go before this has ended.
    disk.fsync_dir(directory)
    logs = [file for file in swaps if file.kind == names.LOG_SUFFIX]
    start = min(file.base_offset for file in logs)
    end = max(_next_offset(directory, disk, file) for file in logs)
    replaced = {file.base_offset for file in logs}
    for name in disk.listdir(directory):
        parsed = names.parse_segment_file(name)
        if parsed is None or parsed.transient or parsed.kind == names.SNAPSHOT_SUFFIX:
            continue
        if start <= parsed.base_offset < end or parsed.base_offset in replaced:
            _unlink(disk, directory, name, "replaced by a compacted segment")
    disk.fsync_dir(directory)
    # Logs get their final names last: one that still waits says that the old segments may be there too.
    for file in sorted(swaps, key=lambda swap: (swap.kind == names.LOG_SUFFIX, swap.base_offset)):
        target = _name(file._replace(transient=""))
        logger.info("completing an interrupted swap: %s/%s becomes %s", directory, _name(file), target)
        disk.rename(f"{directory}/{_name(file)}", f"{directory}/{target}")


def _next_offset(directory: str, disk: Disk, file: SegmentFile) -> int:
    """The offset after the last batch, by headers alone: its indexes have not got their names yet."""
    path = f"{directory}/{_name(file)}"
    end = disk.size(path)
    next_offset, position = int(file.base_offset), 0
    fd = disk.open(path)
    try:
        while position + SHORT_HEADER.size <= end:
            header = disk.pread(fd, SHORT_HEADER.size, position)
            base, length, _, magic, _, _, last_delta = SHORT_HEADER.unpack(header)
            if magic != MAGIC_V2 or length < MIN_BATCH_LENGTH:
                break
            next_offset = base + last_delta + 1
            position += LOG_OVERHEAD + length
    finally:
        disk.close(fd)
    return next_offset


def _name(file: SegmentFile) -> str:
    return f"{names.offset_prefix(file.base_offset)}{file.kind}{file.transient}"


def _unlink(disk: Disk, directory: str, name: str, why: str) -> None:
    logger.info("deleting %s/%s: %s", directory, name, why)
    disk.unlink(f"{directory}/{name}")
