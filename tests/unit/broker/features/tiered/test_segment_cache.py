"""The cache of a partition's segments in the tier, as events change it."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.features.tiered.metadata_cache import RemoteLogMetadataCache
from barnabas.broker.features.tiered.segment_metadata import Mark, RemoteSegment, SegmentState
from tests.unit.broker.features.tiered.segments import segment, update


def finished(cache: RemoteLogMetadataCache, *segments: RemoteSegment) -> None:
    for each in segments:
        assert cache.apply(each)
        assert cache.apply(update(each, SegmentState.COPY_FINISHED))


def found(cache: RemoteLogMetadataCache, epoch: int, offset: int) -> int | None:
    answer = cache.segment_for(epoch, offset)
    return None if answer is None else int.from_bytes(answer.id.uuid, "big")


def test_a_segment_is_found_once_its_copy_is_finished() -> None:
    cache = RemoteLogMetadataCache()
    one = segment(1, 0, 99)
    assert cache.apply(one)
    assert found(cache, 0, 50) is None
    assert cache.apply(update(one, SegmentState.COPY_FINISHED))
    assert [found(cache, 0, offset) for offset in (0, 99, 100)] == [1, 1, None]
    assert cache.size_bytes == one.size_bytes


def test_a_segment_is_found_by_the_epoch_that_wrote_the_record() -> None:
    cache = RemoteLogMetadataCache()
    finished(cache, segment(1, 0, 99, {0: 0, 2: 40}))
    assert [found(cache, 0, offset) for offset in (0, 39, 40)] == [1, 1, None]
    assert [found(cache, 2, offset) for offset in (39, 40, 99)] == [None, 1, 1]
    assert found(cache, 1, 40) is None


def test_deletion_takes_a_segment_from_reads_before_its_objects_go() -> None:
    cache = RemoteLogMetadataCache()
    one = segment(1, 0, 99)
    finished(cache, one)
    assert cache.apply(update(one, SegmentState.DELETE_STARTED))
    assert found(cache, 0, 50) is None
    assert [each.state for each in cache.all()] == [SegmentState.DELETE_STARTED]
    assert cache.apply(update(one, SegmentState.DELETE_FINISHED))
    assert cache.all() == []
    assert cache.size_bytes == 0


def test_events_that_do_not_follow_on_what_is_known_are_dropped() -> None:
    cache = RemoteLogMetadataCache()
    one = segment(1, 0, 99)
    assert not cache.apply(update(one, SegmentState.COPY_FINISHED))
    assert cache.apply(one)
    assert not cache.apply(update(one, SegmentState.DELETE_FINISHED))
    assert cache.apply(update(one, SegmentState.DELETE_STARTED))
    # A replaced leader finishes its copy too late: its successor is already deleting the abandoned copy.
    assert not cache.apply(update(one, SegmentState.COPY_FINISHED))
    assert found(cache, 0, 50) is None


def test_the_removal_of_an_orphan_spares_what_was_finished_meanwhile() -> None:
    cache = RemoteLogMetadataCache()
    one, two = segment(1, 0, 99), segment(2, 100, 199)
    removal = Mark(leader_epoch=6, if_unfinished=True).encode()
    finished(cache, one)
    assert cache.apply(two)
    assert not cache.apply(replace(update(one, SegmentState.DELETE_STARTED), custom=removal))
    assert cache.apply(replace(update(two, SegmentState.DELETE_STARTED), custom=removal))
    assert [found(cache, 0, offset) for offset in (50, 150)] == [1, None]
    # The deposed leader writes its second copy late.
    assert not cache.apply(update(two, SegmentState.COPY_FINISHED))


def test_marks_come_back_and_those_of_others_are_not_taken_for_ours() -> None:
    assert Mark.of(Mark(7, if_unfinished=True).encode()) == Mark(7, if_unfinished=True)
    assert Mark.of(None) is None
    assert Mark.of(b"some plugin's") is None


def test_events_that_come_twice_change_nothing() -> None:
    cache = RemoteLogMetadataCache()
    one = segment(1, 0, 99)
    finished(cache, one)
    assert cache.apply(update(one, SegmentState.COPY_FINISHED))
    assert cache.size_bytes == one.size_bytes
    assert found(cache, 0, 7) == 1


def test_a_longer_copy_of_a_new_leader_replaces_the_shorter_one() -> None:
    cache = RemoteLogMetadataCache()
    finished(cache, segment(1, 0, 100), segment(2, 0, 200))
    assert [found(cache, 0, offset) for offset in (50, 150)] == [2, 2]


def test_a_late_shorter_copy_does_not_hide_a_longer_one() -> None:
    cache = RemoteLogMetadataCache()
    finished(cache, segment(2, 0, 200), segment(1, 0, 100))
    assert [found(cache, 0, offset) for offset in (50, 150)] == [2, 2]
    # It is used again if the longer one is removed.
    assert cache.apply(update(segment(2, 0, 200), SegmentState.DELETE_STARTED))
    assert [found(cache, 0, offset) for offset in (50, 150)] == [1, None]


_EVENTS = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 20), st.integers(0, 10), st.sampled_from(SegmentState)), max_size=40
)


@given(_EVENTS)
def test_an_offset_is_found_if_and_only_if_a_finished_segment_has_it(
    events: list[tuple[int, int, int, SegmentState]],
) -> None:
    cache = RemoteLogMetadataCache()
    model: dict[int, RemoteSegment] = {}
    for number, start, length, state in events:
        if state is SegmentState.COPY_STARTED and number not in model:
            model[number] = segment(number, start, start + length)
            assert cache.apply(model[number])
        elif number in model and cache.apply(update(model[number], state)):
            if state is SegmentState.DELETE_FINISHED:
                del model[number]
            else:
                model[number] = model[number].updated(update(model[number], state))
    for offset in range(35):
        holders = {n for n, s in model.items() if s.is_finished and s.start_offset <= offset <= s.end_offset}
        answer = found(cache, 0, offset)
        assert (answer in holders) if holders else answer is None
        if answer is not None:
            # Of the segments that start before, it reaches furthest: readers can stay in it for as long as possible.
            assert model[answer].end_offset == max(model[n].end_offset for n in holders)
    assert cache.size_bytes == sum(each.size_bytes for each in model.values() if each.is_finished)
