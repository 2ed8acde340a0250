"""Putting cleaned segments in the place of old ones so that a crash at any step loses nothing and doubles nothing.

1. The cleaner has written and synced `.cleaned` files. A crash here: they are deleted at the next start.
2. They are renamed to `.swap`, from the highest offset down. A crash here leaves `.cleaned` files, the lowest last: they and
   every `.swap` at or above them are deleted, the old segments stand.
3. All are `.swap`: the replacement is decided. A crash from here on is finished at the next start: what the `.swap`
   files cover of old segments is deleted, then they get their names.
4. Old segments are renamed to `.deleted`, and removed later.
5. `.swap` files get their final names.

Owner: the event loop (renames only); recovery of each state is `recovery.settle_leftovers`.
"""

from barnabas.core.errors import BrokenInvariant
from barnabas.storage import names
from barnabas.storage.segment import Segment
from barnabas.storage.segments import SegmentList


def replace_segments(segments: SegmentList, cleaned: list[Segment], old: list[Segment]) -> list[Segment]:
    """Swap `cleaned` for `old`; returns the old ones, renamed to `.deleted`, for their files to be removed.

    An old segment that has left the log meanwhile is passed over. The active segment is never replaced.
    """
    new = sorted(cleaned, key=lambda segment: segment.base_offset)
    leaving = sorted((segment for segment in old if segment in segments), key=lambda segment: segment.base_offset)
    if not new or any(segment.transient != names.CLEANED_SUFFIX for segment in new):
        raise BrokenInvariant(f"only cleaned segments can replace others, not {new}")
    if any(segment is segments.active for segment in leaving):
        raise BrokenInvariant(f"the active segment {segments.active} cannot be replaced")
    for segment in reversed(new):
        segment.change_transient(names.SWAP_SUFFIX)
    for segment in leaving:
        segments.remove(segment)
    for segment in new:
        segments.add(segment)
    for segment in leaving:
        segment.change_transient(names.DELETED_SUFFIX)
        segment.abandon()
    for segment in new:
        segment.change_transient("")
    return leaving
