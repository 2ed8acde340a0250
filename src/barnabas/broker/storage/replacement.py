"""Putting cleaned segments in the place of old ones so that a crash at any step loses nothing and doubles nothing.

1. The cleaner has written and synced `.cleaned` files. A crash here: they are deleted at the next start.
2. They are renamed to `.swap`, from the highest offset down. A crash here leaves `.cleaned` files, the lowest last: they and
   every `.swap` at or above them are deleted, the old segments stand.
3. All are `.swap`: the replacement is decided. A crash from here on is finished at the next start: what the `.swap`
   files cover of old segments is deleted, then they get their names.
4. Old segments are renamed to `.deleted`, and removed later. The new ones are part of the log.
5. `.swap` files get their final names.

Before steps 4 and 5, and at the end, the directory is synced, on a thread: not every file system keeps the order of renames.
A power cut could else take the old segments and the decision, leave an old segment beside the one that holds its records, or
bring back the `.swap` file of one replacement beside that of the next.

Owner: the event loop (renames only); recovery of each state is `recovery.settle_leftovers`.
"""

from barnabas.base.config.log_config import LogConfig
from barnabas.base.errors import BrokenInvariant
from barnabas.base.host.disk import Disk
from barnabas.broker.storage import names
from barnabas.broker.storage.segment import Segment
from barnabas.broker.storage.segments import SegmentList


def create_cleaned(directory: str, base_offset: int, *, disk: Disk, config: LogConfig, now_ms: int) -> Segment:
    """A `.cleaned` segment to append to. Any thread or process; `finish_cleaned` when it is complete."""
    segment = _cleaned(directory, base_offset, disk=disk, config=config, created_ms=now_ms, size_bytes=0)
    for path in segment.paths():
        disk.unlink(path)
    segment.create_files()
    segment.become_active()
    return segment


def finish_cleaned(segment: Segment, disk: Disk) -> None:
    """Complete and durable, its files closed: ready to replace others."""
    segment.become_inactive()
    disk.fsync(segment.file.fd)
    for path in segment.paths()[1:]:
        disk.fsync_path(path)
    # Its names too: as long as one of them is there, recovery knows that indexes and log may be of two segments.
    disk.fsync_dir(segment.directory)
    segment.release_files()


def open_cleaned(directory: str, base_offset: int, *, disk: Disk, config: LogConfig) -> Segment:
    """A finished `.cleaned` segment that another process wrote."""
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
    """Steps 2 and 3. The active segment is never replaced."""
    if not cleaned or any(segment.transient != names.CLEANED_SUFFIX for segment in cleaned):
        raise BrokenInvariant(f"only cleaned segments can replace others, not {cleaned}")
    if any(segment is segments.active for segment in old):
        raise BrokenInvariant(f"the active segment {segments.active} cannot be replaced")
    for segment in sorted(cleaned, key=lambda segment: segment.base_offset, reverse=True):
        segment.change_transient(names.SWAP_SUFFIX)


def put_in_place(segments: SegmentList, decided: list[Segment], old: list[Segment]) -> list[Segment]:
    """Step 4. Returns the old segments for their files to be removed. One that has left the log meanwhile is passed over."""
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
    """Step 5, for those that have not left the log meanwhile."""
    for segment in decided:
        if segment in segments:
            segment.change_transient("")
