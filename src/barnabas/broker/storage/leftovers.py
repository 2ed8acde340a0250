"""Finishes or undoes what a crash interrupted in a partition's directory (deletion, compaction, swap), before segments load.

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
    """Finish or undo what the crash interrupted. A crash may interrupt this function too; then it is called again.

    Returns the base offsets of segments that were being replaced or deleted. If the file system does not keep the order of
    renames, a power cut may leave the log of one segment with the indexes of another, or a log without indexes: the indexes
    have to be rebuilt. The files that show this stay until `forget_leftovers`, since the power may fail again before the new
    indexes are durable.
    """
    files = [(name, names.parse_segment_file(name)) for name in disk.listdir(directory)]
    came_back = _came_back([parsed for _, parsed in files if parsed is not None])
    cleaned: list[SegmentFile] = []
    swaps: list[SegmentFile] = []
    if any(name.endswith(names.TXN_INDEX_SUFFIX + names.DELETED_SUFFIX) for name, _ in files):
        # The process that renamed them was killed. If the power fails now, a log could come back without its index of aborted
        # transactions, and its aborted records would count as committed.
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
    # `.swap` before `.cleaned`: if the lowest `.cleaned` went first, a second crash would make the rest look decided.
    undecided = [swap for swap in swaps if undone is not None and swap.base_offset >= undone]
    for file in undecided:
        _unlink(disk, directory, _name(file), "it belongs to a swap that was not decided")
        swaps.remove(file)
    if undecided:
        disk.fsync_dir(directory)
    decided = {file.base_offset for file in swaps if file.kind == names.LOG_SUFFIX}
    if decided:
        _finish_swap(directory, disk, [file for file in swaps if file.base_offset in decided])
    return replaced


def _came_back(files: list[SegmentFile]) -> set[int]:
    """Return the base offsets of deleted segments whose log a power cut has brought back without all its indexes."""
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
    """Delete the files that marked indexes as doubtful: the rebuilt indexes are on disk now."""
    disk.fsync_dir(directory)
    for name in disk.listdir(directory):
        parsed = names.parse_segment_file(name)
        if parsed is not None and parsed.transient:
            _unlink(disk, directory, name, "a compaction or a deletion that did not finish")


def _finish_swap(directory: str, disk: Disk, swaps: list[SegmentFile]) -> None:
    # The directory is synced between the steps, as in `replacement`: the broker may have died before it was synced, and the
    # power may fail before this function ends.
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
    # Logs get their final names last: a remaining `.swap` log shows that old segments may still exist.
    for file in sorted(swaps, key=lambda swap: (swap.kind == names.LOG_SUFFIX, swap.base_offset)):
        target = _name(file._replace(transient=""))
        logger.info("[log directory] completing an interrupted swap: %s/%s becomes %s", directory, _name(file), target)
        disk.rename(f"{directory}/{_name(file)}", f"{directory}/{target}")


def _next_offset(directory: str, disk: Disk, file: SegmentFile) -> int:
    """Return the offset after the last batch, from headers alone: the indexes do not have their names yet."""
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
