"""The producer state of a log as of an offset: the newest snapshot below it, then every batch in between."""

import logging
from collections.abc import Callable
from typing import NamedTuple

from barnabas.base.errors import Malformed
from barnabas.broker.storage.log_types import Origin
from barnabas.broker.storage.producer_snapshot import CorruptSnapshot
from barnabas.broker.storage.producer_state import ProducerStateManager
from barnabas.broker.storage.record_check import read_marker
from barnabas.broker.storage.segment_batches import CorruptSegment, SegmentBatches
from barnabas.broker.storage.segments import SegmentList
from barnabas.broker.storage.snapshots import ProducerSnapshots, Snapshot

logger = logging.getLogger(__name__)

OnDamage = Callable[[Malformed], None]


class UnreadableSnapshot(Exception):
    """A snapshot that cannot be read. The owner drops it, and plans again with the previous one."""

    def __init__(self, snapshot: Snapshot, why: Exception) -> None:
        super().__init__(f"{snapshot.path}: {why}")
        self.snapshot = snapshot


class Replay(NamedTuple):
    """The files to read for the state as of `end_offset`. The log's owner creates and releases it; in between `into` may run on
    any thread."""

    snapshot: Snapshot | None
    segments: list[SegmentBatches]
    log_start_offset: int
    end_offset: int

    def into(self, producers: ProducerStateManager, *, now_ms: int, on_damage: OnDamage | None = None) -> None:
        """Fill `producers`, replacing its state. If a segment cannot be read to its end, call `on_damage` and read the rest; if
        `on_damage` is None, raise the error."""
        if self.snapshot is None:
            producers.truncate_fully(self.log_start_offset)
            producers.snap_offset = producers.map_end_offset
        else:
            try:
                entries = self.snapshot.read()
            except (CorruptSnapshot, FileNotFoundError) as error:
                raise UnreadableSnapshot(self.snapshot, error) from error
            producers.load(entries, self.snapshot.offset, now_ms)
        for segment in self.segments:
            try:
                _replay(producers, segment, self.end_offset)
            except Malformed as error:
                if on_damage is None:
                    raise
                on_damage(error)
        producers.update_map_end_offset(self.end_offset)

    def release(self) -> None:
        """Unpin the files. The owner of the log calls it once."""
        for segment in self.segments:
            segment.file.unpin()


def plan_replay(
    snapshots: ProducerSnapshots,
    segments: SegmentList,
    *,
    log_start_offset: int,
    end_offset: int,
    on_damage: OnDamage | None = None,
) -> Replay:
    """Plan a replay from the newest snapshot at or below `end_offset`, or from the log start. Opens and pins each file at once:
    there may be more files than the pool keeps open, and it would close the first for the last.

    A snapshot below the log start counts too: markers of transactions that it knows as open may lie between the two, and the
    last batches of producers that are still active. It does not count if those batches are gone from the disk.
    """
    snapshot = snapshots.newest(at_most=end_offset)
    if snapshot is not None and snapshot.offset < segments.first.base_offset:
        snapshot = None
    start = log_start_offset if snapshot is None else snapshot.offset
    replay = Replay(snapshot, [], log_start_offset, end_offset)
    try:
        for segment in segments.overlapping(start, end_offset):
            try:
                found = segment.find(max(start, segment.base_offset)) if segment.size_bytes else None
            except CorruptSegment as error:
                if on_damage is None:
                    raise
                on_damage(error)
                continue
            if found is not None:
                part = segment.part_from(found.position)
                part.file.pin()
                replay.segments.append(part)
    except BaseException:
        replay.release()
        raise
    return replay


def rebuild_producers(
    producers: ProducerStateManager,
    snapshots: ProducerSnapshots,
    segments: SegmentList,
    *,
    log_start_offset: int,
    end_offset: int,
    now_ms: int,
) -> None:
    """Read the state as of `end_offset` at once: for a thread that loads the log. Damage in segments that were flushed long
    ago must not keep the broker's other logs from loading."""

    def on_damage(error: Malformed) -> None:
        logger.error(
            "[partition %s] the log is damaged, some producers are unknown and may get errors: %s",
            producers.partition,
            error,
        )

    while True:
        plan = plan_replay(
            snapshots, segments, log_start_offset=log_start_offset, end_offset=end_offset, on_damage=on_damage
        )
        try:
            plan.into(producers, now_ms=now_ms, on_damage=on_damage)
            return
        except UnreadableSnapshot as error:
            snapshots.drop(error.snapshot, str(error))
        finally:
            plan.release()


def _replay(producers: ProducerStateManager, segment: SegmentBatches, end_offset: int) -> None:
    for position, header in segment.headers():
        if header.base_offset >= end_offset:
            return
        if header.producer_id < 0:
            continue
        marker = None
        if header.is_control:
            marker = read_marker(segment.file.read(position, header.size_bytes), header)
        plan = producers.analyze(((header, marker),), Origin.REPLICATION)
        for append in plan.appends:
            producers.update(append)
        for completed in plan.completed:
            producers.complete_txn(completed)
