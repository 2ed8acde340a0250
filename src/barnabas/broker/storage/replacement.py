"""Replaces old segments by cleaned ones so that a crash at any step loses nothing and duplicates nothing.

1. The cleaner has written and synced `.cleaned` files. After a crash here, the next start deletes them.
2. They are renamed to `.swap`, from the highest offset down. A crash here leaves `.cleaned` files, the lowest last: the next
   start deletes them and every `.swap` at or above them, and keeps the old segments.
3. All are `.swap`: the replacement is decided. After a crash from here on, the next start finishes it: it deletes the old
   segments that the `.swap` files cover, then gives the `.swap` files their names.
4. Old segments are renamed to `.deleted`, and removed later. The new ones are part of the log.
5. `.swap` files get their final names.

Before steps 4 and 5, and at the end, a thread syncs the directory: not every file system keeps the order of renames. Without
the sync a power cut could lose both the old segments and the decision, leave an old segment beside the one that holds its
records, or bring back the `.swap` file of one replacement beside that of the next.

Owner: the event loop (renames only); `leftovers.settle_leftovers` recovers each state.
"""

from barnabas.base.config.log_config import LogConfig
from barnabas.base.errors import BrokenInvariant
from barnabas.base.host.disk import Disk
from barnabas.broker.storage import names
from barnabas.broker.storage.segment import Segment
from barnabas.broker.storage.segments import SegmentList


def create_cleaned(directory: str, base_offset: int, *, disk: Disk, config: LogConfig, now_ms: int) -> Segment:
    """Create a `.cleaned` segment to append to. Any thread or process; call `finish_cleaned` when it is complete."""
    segment = _cleaned(directory, base_offset, disk=disk, config=config, created_ms=now_ms, size_bytes=0)
    for path in segment.paths():
        disk.unlink(path)
    segment.create_files()
    segment.become_active()
    return segment


def finish_cleaned(segment: Segment, disk: Disk) -> None:
    """Complete and sync the segment and close its files: it can replace others now."""
    segment.become_inactive()
    disk.fsync(segment.file.fd)
    for path in segment.paths()[1:]:
        disk.fsync_path(path)
    # Its names too: as long as one of them exists, recovery knows that indexes and log may belong to two segments.
    disk.fsync_dir(segment.directory)
    segment.release_files()


def open_cleaned(directory: str, base_offset: int, *, disk: Disk, config: LogConfig) -> Segment:
    """Open a finished `.cleaned` segment that another process wrote."""
    path = f"{directory}/{names.log_file(base_offset, names.CLEANED_SUFFIX)}"
    return _cleaned(
        directory,
        base_offset,
        disk=disk,
        config=config,
        created_ms=disk.modified_ms(path),
        size_bytes=disk.size(path),
    )


def _cleaned(
    directory: str, base_offset: int, *, disk: Disk, config: LogConfig, created_ms: int, size_bytes: int
) -> Segment:
    return Segment(
        directory,
        base_offset,
        disk=disk,
        created_ms=created_ms,
        size_bytes=size_bytes,
        index_interval_bytes=config.index_interval_bytes,
        max_index_bytes=config.segment_index_bytes,
        transient=names.CLEANED_SUFFIX,
    )


def decide(segments: SegmentList, cleaned: list[Segment], old: list[Segment]) -> None:
    """Carry out steps 2 and 3. The active segment is never replaced."""
    if not cleaned or any(segment.transient != names.CLEANED_SUFFIX for segment in cleaned):
        raise BrokenInvariant(f"only cleaned segments can replace others, not {cleaned}")
    if any(segment is segments.active for segment in old):
        raise BrokenInvariant(f"the active segment {segments.active} cannot be replaced")
    for segment in sorted(cleaned, key=lambda segment: segment.base_offset, reverse=True):
        segment.change_transient(names.SWAP_SUFFIX)


def put_in_place(segments: SegmentList, decided: list[Segment], old: list[Segment]) -> list[Segment]:
    """Carry out step 4; return the old segments for deletion. Skips segments that have left the log meanwhile."""
    leaving = sorted((segment for segment in old if segment in segments), key=lambda segment: segment.base_offset)
    for segment in leaving:
        segments.remove(segment)
    pool = segments.active.pool
    for segment in decided:
        segment.pool = pool
        segments.add(segment)
    for segment in leaving:
        segment.change_transient(names.DELETED_SUFFIX)
        segment.abandon()
    return leaving


def name_finally(segments: SegmentList, decided: list[Segment]) -> None:
    """Carry out step 5 for the segments that are still in the log."""
    for segment in decided:
        if segment in segments:
            segment.change_transient("")
