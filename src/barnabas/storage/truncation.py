"""Cutting a log, in three steps so that the event loop never waits for the disk.

`Log.begin_truncation` on the loop says what must be read and pins it; `Truncation.run` reads, on any thread: the producers
as of the new end, and the largest timestamp below it; `Log.finish_truncation` on the loop cuts, in one step. Until then the
log is what it was, so that whoever asked for the cut can look again whether it is still wanted.
"""

from barnabas.storage.producer_replay import Replay
from barnabas.storage.producer_state import ProducerStateManager
from barnabas.storage.segment import Segment, SegmentFile, largest_timestamp_of


class Truncation:
    """Owner: whoever began it. `run` may be called on any thread, once."""

    __slots__ = ("_now_ms", "_pinned", "_timestamps", "largest", "log_end", "offset", "producers", "replay", "segment")

    def __init__(
        self,
        offset: int,
        *,
        log_end: int,
        segment: Segment,
        producers: ProducerStateManager,
        replay: Replay,
        now_ms: int,
    ) -> None:
        self.offset = offset
        #: Where the log ended when this began.
        self.log_end = log_end
        #: Will be the active one.
        self.segment = segment
        #: As they will be, once `run` has returned.
        self.producers = producers
        self.replay = replay
        self.largest, self._timestamps = segment.unindexed_below(offset)
        self._now_ms = now_ms
        self._pinned: list[SegmentFile] = [*replay.segments, self._timestamps]
        for each in self._pinned:
            each.file.pin()

    def run(self) -> None:
        self.replay.into(self.producers, now_ms=self._now_ms)
        self.largest = largest_timestamp_of(self.largest, self._timestamps, self.offset)

    def release(self) -> None:
        """Event loop only. Twice does no harm."""
        pinned, self._pinned = self._pinned, []
        for each in pinned:
            each.file.unpin()
