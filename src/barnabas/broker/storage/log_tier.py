"""How a log and the tier work together: which segments may be copied, and how a replica begins where the tier ends."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from barnabas.base.host.disk import Disk
from barnabas.base.ids import Offset
from barnabas.broker.storage import names
from barnabas.broker.storage.checkpoints import read_epochs, write_epochs
from barnabas.broker.storage.epoch_cache import EpochEntry, KeptEpochs
from barnabas.broker.storage.log_state import LogState
from barnabas.broker.storage.producer_entry import ProducerEntry
from barnabas.broker.storage.segment import Segment


class CopyCandidate(NamedTuple):
    """A rolled segment that no longer changes, and everything that its copy needs.

    The files exist as long as the segment is in the log, and for `file.delete.delay.ms` under another name. If a file is
    missing, the segment was deleted.
    """

    base_offset: int
    #: Inclusive: the next segment begins after it.
    end_offset: int
    size_bytes: int
    #: The timestamp that retention uses.
    max_timestamp: int
    log_path: str
    offset_index_path: str
    time_index_path: str
    #: None: the segment contains no aborted transaction.
    txn_index_path: str | None
    #: The producers as of the end of the segment; None if there is no such snapshot.
    snapshot_path: str | None
    #: Leader epochs of its own records, the first as if it began with the segment.
    epochs: list[EpochEntry]
    #: Leader epochs from the log start to the end of the segment.
    epochs_until_end: list[EpochEntry]


class TierStart(NamedTuple):
    """Where a replica begins if its leader has the earlier records only in the tier, and the state that precedes it."""

    #: Offset of the next record.
    offset: int
    #: Start of the leader's log, in the tier.
    log_start_offset: int
    #: Leader epochs from the log start to `offset`.
    epochs: Sequence[EpochEntry]
    #: Producers as of `offset`.
    producers: Sequence[ProducerEntry]


def keep_epochs(state: LogState, kept: KeptEpochs, then: Callable[[BaseException | None], None]) -> None:
    """Write the leader epochs of records that will be only in the tier to disk, then call `then` with the error, if any.

    They have a file of their own: the log writes its epoch file without a sync, and a power cut may leave nothing of it. For
    records that are still local, the file does not count: the records carry their epochs themselves.
    """
    if state.keeping_epochs is not None:
        # One write at a time: two threads would rename each other's temporary file.
        state.keeping_epochs.append(lambda: keep_epochs(state, kept, then))
        return
    if state.kept_epochs == kept:
        then(None)
        return
    path, disk = f"{state.directory}/{names.TIERED_EPOCHS}", state.env.disk
    state.kept_epochs = None
    waiting = state.keeping_epochs = []

    def done(error: BaseException | None) -> None:
        if error is None:
            state.kept_epochs = kept
        state.keeping_epochs = None
        then(error)
        for each in waiting:
            each()

    state.env.threads.run(lambda: write_epochs(path, _lines(kept), sync=True, disk=disk), done)


def _lines(kept: KeptEpochs) -> list[EpochEntry]:
    """Repeat the last epoch with the end offset: readers that do not know this convention still read the same epochs."""
    return [*kept.epochs, *(EpochEntry(last.epoch, Offset(kept.end_offset)) for last in kept.epochs[-1:])]


def read_kept_epochs(directory: str, disk: Disk) -> KeptEpochs:
    """Read the file that `keep_epochs` wrote. Raises `OSError` and `CheckpointError`."""
    entries = read_epochs(f"{directory}/{names.TIERED_EPOCHS}", disk=disk)
    if len(entries) > 1 and entries[-2].epoch == entries[-1].epoch:
        return KeptEpochs(entries[:-1], entries[-1].start_offset)
    return KeptEpochs(entries, 0)


def with_kept_epochs(kept: Sequence[EpochEntry], known: Sequence[EpochEntry], first_local: int) -> list[EpochEntry]:
    """Combine epochs: from `kept` below the first local record, from the log's own file after it."""
    lower = [entry for entry in kept if entry.start_offset < first_local]
    if not lower:
        return list(known)
    return [*lower, *(entry for entry in known if entry.start_offset >= first_local and entry.epoch > lower[-1].epoch)]


def copy_candidates(state: LogState, from_offset: int) -> Iterator[CopyCandidate]:
    """Yield rolled segments from the one that holds `from_offset` on, wholly below the last stable offset. Raises `OSError`,
    and `IndexUnderRepair`: then a later call finds the segment."""
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
