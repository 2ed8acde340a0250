"""Which records in the tier belong to a log: a leader epoch and an offset identify a record, whichever broker copied it."""

from hypothesis import given
from hypothesis import strategies as st

from barnabas.base.ids import LeaderEpoch, Offset
from barnabas.broker.features.tiered.lineage import Piece, covered_end, knows_all, piece_at, pieces
from barnabas.broker.features.tiered.metadata_cache import RemoteLogMetadataCache
from barnabas.broker.features.tiered.segment_metadata import SegmentState
from barnabas.broker.storage.epoch_cache import EpochEntry, LeaderEpochCache
from tests.unit.broker.features.tiered.segments import segment, update

END = 40


def lineages() -> st.SearchStrategy[list[tuple[int, int]]]:
    """(epoch, start) of a log from 0 to END, epochs and starts ascending."""
    cuts = st.lists(st.integers(1, END - 1), max_size=4, unique=True)
    epochs = st.lists(st.integers(0, 9), min_size=5, max_size=5, unique=True)
    return st.tuples(cuts, epochs).map(lambda both: list(zip(sorted(both[1]), [0, *sorted(both[0])], strict=False)))


def epoch_at(lineage: list[tuple[int, int]], offset: int) -> int:
    return max(epoch for epoch, start in lineage if start <= offset)


@given(
    ours=lineages(),
    others=st.lists(st.tuples(lineages(), st.integers(0, END - 1), st.integers(0, END - 1)), max_size=8),
    start=st.integers(0, END - 1),
)
def test_only_records_that_both_name_alike_are_the_logs(
    ours: list[tuple[int, int]], others: list[tuple[list[tuple[int, int]], int, int]], start: int
) -> None:
    view = RemoteLogMetadataCache()
    kept = []
    for number, (theirs, one, other) in enumerate([(ours, 5, 20), *others], start=1):
        first, last = min(one, other), max(one, other)
        epochs = {epoch_at(theirs, first): first}
        epochs |= {epoch: at for epoch, at in theirs if first < at <= last}
        made = segment(number, first, last, epochs)
        view.apply(made)
        view.apply(update(made, SegmentState.COPY_FINISHED))
        kept.append((theirs, first, last))
    log = LeaderEpochCache([EpochEntry(LeaderEpoch(epoch), Offset(at)) for epoch, at in ours])
    covered = {
        offset: epoch_at(ours, offset)
        for theirs, first, last in kept
        for offset in range(first, last + 1)
        if epoch_at(theirs, offset) == epoch_at(ours, offset)
    }
    reached = start
    for piece in pieces(view, log, start, END):
        assert piece.offset >= reached
        assert piece.end > piece.offset
        for offset in range(piece.offset, piece.end):
            of_segment = max(epoch for epoch, at in piece.segment.epochs.items() if at <= offset)
            assert of_segment == epoch_at(ours, offset), f"offset {offset} of {piece} is another leader's record"
        assert not [
            offset for offset in range(reached, piece.offset) if offset in covered and _found(view, log, offset)
        ]
        reached = piece.end
    assert not [offset for offset in range(reached, END) if _found(view, log, offset)]


def _found(view: RemoteLogMetadataCache, log: LeaderEpochCache, offset: int) -> bool:
    return piece_at(view, log, offset) is not None


def test_a_segment_has_what_is_not_there_before_its_first_record() -> None:
    """For a log that was compacted before, nothing is missing below its first record. But below the first epoch that the log
    knows, a segment may be another log's."""
    view = RemoteLogMetadataCache()
    made = segment(1, 0, 19, {LeaderEpoch(2): Offset(5)})
    view.apply(made)
    view.apply(update(made, SegmentState.COPY_FINISHED))
    log = LeaderEpochCache([EpochEntry(LeaderEpoch(2), Offset(5))])
    finished = view.get(made.id)
    assert finished is not None
    assert piece_at(view, log, 3) == Piece(finished, 3, 20)
    assert covered_end(view, log, 0, END) == 20
    assert knows_all(view, log, 0)
    forgetful = LeaderEpochCache([EpochEntry(LeaderEpoch(2), Offset(8))])
    assert piece_at(view, forgetful, 3) is None
    assert not knows_all(view, forgetful, 0)
    later = segment(2, 20, 29, {LeaderEpoch(2): Offset(20)})
    view.apply(later)
    view.apply(update(later, SegmentState.COPY_FINISHED))
    assert not knows_all(view, LeaderEpochCache([EpochEntry(LeaderEpoch(2), Offset(20))]), 0)
