"""What a log and the tier tell each other: which segments may be copied, and how a replica begins where the tier ends."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from barnabas.storage.epoch_cache import EpochEntry
from barnabas.storage.log_state import LogState
from barnabas.storage.producer_entry import ProducerEntry
from barnabas.storage.segment import Segment


class CopyCandidate(NamedTuple):
    """A rolled segment that cannot change any more, and everything that its copy needs.

    The files are there as long as the segment is in the log, and for `file.delete.delay.ms` under another name: one that is
    missing says that the segment has gone meanwhile.
    """

    base_offset: int
    #: Inclusive: the next segment begins after it.
    end_offset: int
    size_bytes: int
    #: As retention sees it.
    max_timestamp: int
    log_path: str
    offset_index_path: str
    time_index_path: str
    #: None: no transaction was aborted in it.
    txn_index_path: str | None
    #: The producers as of the end of the segment; None where none were known then.
    snapshot_path: str | None
    #: Of its own records, the first as if it began with the segment.
    epochs: list[EpochEntry]
    #: All from the log start to the end of the segment.
    epochs_until_end: list[EpochEntry]


class TierStart(NamedTuple):
    """Where a replica begins whose leader has the rest in the tier only, and what it must know of what came before."""

    #: Of the next record.
    offset: int
    #: Where the leader's log begins, in the tier.
    log_start_offset: int
    #: From the log start to `offset`.
    epochs: Sequence[EpochEntry]
    #: As of `offset`.
    producers: Sequence[ProducerEntry]


def copy_candidates(state: LogState, from_offset: int) -> Iterator[CopyCandidate]:
    """From the segment that holds `from_offset` on: rolled, and wholly below the last stable offset. Raises `OSError`, and
    `IndexUnderRepair`: then the next look finds it."""
    segments = state.segments
    first = max(segments.floor(from_offset), 0)
    rolled = [segments.at(place) for place in range(first, len(segments))]
    for segment, after in pairwise(rolled):
        if after.base_offset > state.last_stable_offset:
            return
        if segment.size_bytes and after.base_offset > from_offset and segment in segments:
            yield _candidate(state, segment, after.base_offset)


def _candidate(state: LogState, segment: Segment, end: int) -> CopyCandidate:
    segment.check_indexes()
    log_path, offset_index_path, time_index_path, txn_index_path = segment.paths()
    return CopyCandidate(
        segment.base_offset,
        end - 1,
        segment.size_bytes,
        segment.largest_timestamp,
        log_path,
        offset_index_path,
        time_index_path,
        txn_index_path if segment.txn_index.exists else None,
        state.snapshots.path(end) if end in state.snapshots.offsets else None,
        state.epochs.between(segment.base_offset, end),
        state.epochs.below(end),
    )
