"""The producer state of a log as of an offset: the newest snapshot below it, then every batch between.

Owner: the log; the loading thread while it is loaded.
"""

from barnabas.storage.log_types import Origin
from barnabas.storage.producer_state import ProducerStateManager
from barnabas.storage.record_check import read_marker
from barnabas.storage.segments import SegmentList
from barnabas.storage.snapshots import ProducerSnapshots


def rebuild_producers(
    producers: ProducerStateManager,
    snapshots: ProducerSnapshots,
    segments: SegmentList,
    *,
    log_start_offset: int,
    end_offset: int,
    now_ms: int,
) -> None:
    """The state as of `end_offset`: the newest snapshot below it, and every batch between."""
    had_none = producers.is_empty and producers.map_end_offset >= end_offset
    snapshots.remove_outside(log_start_offset, end_offset)
    if end_offset == producers.map_end_offset:
        producers.on_log_start_offset(log_start_offset, snapshots.latest)
    else:
        snapshots.load_newest(producers, log_start_offset=log_start_offset, now_ms=now_ms)
    # Truncating a log that knew no producer cannot bring one back: no need to read it.
    if end_offset > producers.map_end_offset and not had_none:
        _replay(producers, segments, max(producers.map_end_offset, log_start_offset), end_offset)
    producers.update_map_end_offset(end_offset)
    snapshots.take(producers, sync=False)


def _replay(producers: ProducerStateManager, segments: SegmentList, start_offset: int, end_offset: int) -> None:
    for segment in segments.overlapping(start_offset, end_offset):
        found = segment.find(max(start_offset, segment.base_offset)) if segment.size_bytes else None
        if found is None:
            continue
        for position, header in segment.headers(found.position):
            if header.base_offset >= end_offset:
                break
            if header.producer_id < 0:
                continue
            marker = None
            if header.is_control:
                marker = read_marker(segment.batch_bytes(position, header.size_bytes), header)
            plan = producers.analyze(((header, marker),), Origin.REPLICATION)
            for append in plan.appends:
                producers.update(append)
            for completed in plan.completed:
                producers.complete_txn(completed)
