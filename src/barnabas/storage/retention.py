"""Which segments may go: by time, by size, because the log starts after them. Pure decisions; `Log` carries them out."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from barnabas.core.config.log_config import LogConfig

if TYPE_CHECKING:
    from barnabas.storage.segment import Segment
    from barnabas.storage.segments import SegmentList


class Deletable(NamedTuple):
    segments: "list[Segment]"
    #: For the log: why.
    reason: str


def deletable_segments(
    segments: "SegmentList",
    config: LogConfig,
    *,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
    now_ms: int,
) -> list[Deletable]:
    """What each rule lets go, oldest first, each rule looking at what the one before it left.

    Never a segment that reaches the high watermark: the log start offset must not pass it. Never an empty
    active segment: it would only be made anew.
    """
    remaining = list(segments)
    found: list[Deletable] = []

    def apply(reason: str, wants: "Callable[[Segment, int | None], bool]") -> None:
        taken = []
        for place, segment in enumerate(remaining):
            next_base = remaining[place + 1].base_offset if place + 1 < len(remaining) else None
            end = log_end_offset if next_base is None else next_base
            if high_watermark < end or (next_base is None and segment.size_bytes == 0) or not wants(segment, next_base):
                break
            taken.append(segment)
        if taken:
            del remaining[: len(taken)]
            found.append(Deletable(taken, reason))

    apply(
        f"log start offset {log_start_offset}",
        lambda segment, next_base: next_base is not None and next_base <= log_start_offset,
    )
    if config.is_deleted_by_retention:
        if config.retention_bytes >= 0:
            excess = [sum(segment.size_bytes for segment in remaining) - config.retention_bytes]

            def oversized(segment: "Segment", next_base: int | None) -> bool:
                if excess[0] < 0 or excess[0] - segment.size_bytes < 0:
                    return False
                excess[0] -= segment.size_bytes
                return True

            apply(f"retention.bytes={config.retention_bytes}", oversized)
        if config.retention_ms >= 0:
            apply(
                f"retention.ms={config.retention_ms}",
                lambda segment, next_base: now_ms - segment.largest_timestamp > config.retention_ms,
            )
    return found
