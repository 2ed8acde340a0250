"""What may be removed from the tier, and which part of it belongs to a log."""

from dataclasses import replace

from barnabas.base.config.log_config import LogConfig
from barnabas.base.ids import LeaderEpoch, Offset
from barnabas.broker.features.tiered import lineage
from barnabas.broker.features.tiered.expiry import LogFacts, Plan, plan
from barnabas.broker.features.tiered.metadata_cache import RemoteLogMetadataCache
from barnabas.broker.features.tiered.segment_metadata import Mark, RemoteSegment, RemoteSegmentId, SegmentState
from barnabas.broker.storage.epoch_cache import EpochEntry, LeaderEpochCache
from tests.unit.broker.features.tiered.segments import segment, update

#: Nothing expires.
FOREVER = LogConfig(retention_ms=-1, retention_bytes=-1)


def epochs(entries: dict[int, int]) -> LeaderEpochCache:
    return LeaderEpochCache(EpochEntry(LeaderEpoch(epoch), Offset(start)) for epoch, start in entries.items())


def tier(*segments: RemoteSegment) -> RemoteLogMetadataCache:
    """A tier of finished copies."""
    cache = RemoteLogMetadataCache()
    for each in segments:
        assert cache.apply(each)
        assert cache.apply(replace(update(each, SegmentState.COPY_FINISHED), custom=each.custom))
    return cache


def facts(entries: dict[int, int], **changed: int) -> LogFacts:
    values = {
        "leader_epoch": 9,
        "log_start": 0,
        "local_start": 300,
        "log_end": 400,
        "only_local_bytes": 1000,
        **changed,
    }
    return LogFacts(epochs=epochs(entries), **values)


def three() -> RemoteLogMetadataCache:
    """Offsets 0-99, 100-199, 200-299, 1000 bytes each, with the timestamps 1099, 1199 and 1299."""
    return tier(segment(1, 0, 99), segment(2, 100, 199), segment(3, 200, 299))


def removed(made: Plan) -> list[int]:
    return [int.from_bytes(each.segment.id.uuid, "big") for each in made.removals]


def expire(
    cache: RemoteLogMetadataCache, of: LogFacts, config: LogConfig = FOREVER, now_ms: int = 10_000, **more: bool
) -> Plan:
    return plan(cache, of, config, being_copied=(), now_ms=now_ms, **more)


def test_segments_within_retention_stay() -> None:
    assert expire(three(), facts({0: 0})) == Plan()


def test_the_oldest_go_by_time_and_the_log_start_with_them() -> None:
    config = replace(FOREVER, retention_ms=100)
    made = expire(three(), facts({0: 0}), config, now_ms=1299)
    assert (removed(made), made.log_start) == ([1, 2], 200)
    assert expire(three(), facts({0: 0}), config, now_ms=1198) == Plan(idle_until_ms=1199)


def test_a_segment_that_is_young_keeps_those_after_it_however_old_they_say_they_are() -> None:
    cache = tier(segment(1, 0, 99, max_timestamp=9_000), segment(2, 100, 199), segment(3, 200, 299))
    assert expire(cache, facts({0: 0}), replace(FOREVER, retention_ms=1_000), now_ms=9_500) == Plan(
        idle_until_ms=10_000
    )


def test_the_oldest_go_by_size_of_the_whole_log() -> None:
    # 3000 bytes in the tier and 1000 that are only local.
    for allowed, gone in ((4000, []), (3001, []), (3000, [1]), (1999, [1, 2]), (0, [1, 2, 3])):
        assert removed(expire(three(), facts({0: 0}), replace(FOREVER, retention_bytes=allowed))) == gone


class Unsearched(list[RemoteSegmentId]):
    """Thousands of segments: no code may search all of them for one."""

    def __contains__(self, wanted: object) -> bool:
        raise AssertionError("a search from one end to the other")

    index = __contains__  # type: ignore[assignment]


class CountedEpochs(LeaderEpochCache):
    listings = 0

    @property
    def entries(self) -> list[EpochEntry]:
        self.listings += 1
        return super().entries


def test_a_look_at_thousands_of_segments_does_not_search_all_of_them_for_each() -> None:
    """With a year of segments of one partition it blocked the loop for seconds, at every check."""
    segments = [segment(number, 10 * number, 10 * number + 9) for number in range(50)]
    cache = tier(*segments)
    for of_epoch in cache._epochs.values():
        of_epoch.ids = Unsearched(of_epoch.ids)
    known = CountedEpochs(epochs({0: 0, 3: 500}).entries)
    of = LogFacts(leader_epoch=9, log_start=0, local_start=500, log_end=600, epochs=known, only_local_bytes=0)
    assert removed(expire(cache, of, replace(FOREVER, retention_bytes=4_000))) == list(range(10))
    assert known.listings <= 2
    assert cache.apply(update(segments[7], SegmentState.DELETE_STARTED))
    assert cache.segment_for(0, 75) is None and cache.segment_for(0, 80) == replace(
        segments[8], state=SegmentState.COPY_FINISHED, event_ms=6000
    )


def test_a_look_tells_how_much_the_log_may_grow_before_the_next() -> None:
    assert expire(three(), facts({0: 0}), replace(FOREVER, retention_bytes=3600)) == Plan(idle_bytes=600)


def test_a_copy_within_another_does_not_count_for_size_twice() -> None:
    cache = tier(segment(1, 0, 99), segment(2, 100, 199), segment(3, 200, 299), segment(4, 201, 298))
    assert removed(expire(cache, facts({0: 0}), replace(FOREVER, retention_bytes=3900))) == []


def test_segments_below_the_log_start_are_removed() -> None:
    made = expire(three(), facts({0: 150}, log_start=150))
    assert (removed(made), made.log_start) == ([1], None)


def test_a_deletion_that_was_not_finished_is_finished() -> None:
    cache = three()
    cache.apply(update(segment(1, 0, 99), SegmentState.DELETE_STARTED))
    assert removed(expire(cache, facts({0: 0}))) == [1]


def test_abandoned_copies_of_former_leaders_are_removed_unless_they_are_being_copied() -> None:
    cache = three()
    left = segment(4, 300, 349, custom=Mark(leader_epoch=8).encode())
    cache.apply(left)
    made = expire(cache, facts({0: 0}))
    assert removed(made) == [4]
    assert made.removals[0].if_unfinished
    assert plan(cache, facts({0: 0}), FOREVER, being_copied={left.id}, now_ms=0) == Plan()


def test_an_unfinished_copy_stays_where_it_may_be_all_that_is_left() -> None:
    """The metadata lost the event that it was finished, after the records were deleted here."""
    cache = tier(segment(1, 0, 99), segment(3, 200, 299))
    left = segment(4, 100, 199, custom=Mark(leader_epoch=8).encode())
    cache.apply(left)
    assert expire(cache, facts({0: 0})) == Plan()
    assert removed(expire(cache, facts({0: 0}, local_start=100))) == [4], "its records are here"
    assert 4 in removed(expire(cache, facts({0: 0, 8: 100}))), "its records are not the log's"
    assert removed(expire(cache, facts({0: 0}, log_start=200))) == [1, 4], "its records are deleted"
    cache.apply(segment(5, 50, 220))
    cache.apply(update(segment(5, 50, 220), SegmentState.COPY_FINISHED))
    assert removed(expire(cache, facts({0: 0}))) == [4], "another copy has them"


def test_a_leader_that_was_deposed_removes_nothing() -> None:
    cache = three()
    cache.apply(segment(4, 300, 349, custom=Mark(leader_epoch=10).encode()))
    assert expire(cache, facts({0: 0}), replace(FOREVER, retention_ms=0)) == Plan(is_deposed=True)
    newer = tier(segment(1, 0, 99), segment(2, 100, 199, {10: 100}))
    assert expire(newer, facts({0: 0}), replace(FOREVER, retention_ms=0)) == Plan(is_deposed=True)


def test_an_unfinished_copy_of_another_implementation_waits_for_the_log_start() -> None:
    cache = three()
    cache.apply(segment(4, 300, 349))
    assert expire(cache, facts({0: 0})) == Plan()
    assert removed(expire(cache, facts({0: 350}, log_start=350, local_start=350))) == [1, 2, 3, 4]


def test_segments_discarded_by_an_unclean_election_are_removed() -> None:
    cache = tier(segment(1, 0, 99), segment(2, 100, 199, {0: 100, 1: 150}), segment(3, 200, 299, {1: 200}))
    # The new leader's log has epoch 0 up to 120, and then its own.
    made = expire(cache, facts({0: 0, 5: 120}))
    assert removed(made) == [3]
    assert made.log_start is None


def test_a_tier_without_anything_of_the_log_is_kept_until_retention() -> None:
    cache = three()
    of = facts({7: 0}, local_start=0, log_end=10)
    assert expire(cache, of) == Plan()
    made = expire(cache, of, replace(FOREVER, retention_ms=100), now_ms=1200)
    assert (removed(made), made.log_start) == ([1], None)


def test_a_topic_that_left_the_tier_leaves_nothing_there() -> None:
    cache = three()
    cache.apply(segment(4, 300, 349, custom=Mark(leader_epoch=8).encode()))
    made = expire(cache, facts({0: 0}), is_tiered=False)
    assert removed(made) == [1, 2, 3, 4]
    assert not any(each.if_unfinished for each in made.removals)


# -- lineage -----------------------------------------------------------------------------------------------------------


def test_coverage_ends_where_the_tier_does_or_has_a_hole() -> None:
    assert lineage.covered_end(three(), epochs({0: 0}), 150, 400) == 300
    assert lineage.covered_end(three(), epochs({0: 0}), 150, 250) == 250
    holed = tier(segment(1, 0, 99), segment(3, 200, 299))
    assert lineage.covered_end(holed, epochs({0: 0}), 0, 400) == 100
    assert lineage.covered_end(RemoteLogMetadataCache(), epochs({0: 0}), 0, 400) == 0
    assert lineage.covered_end(three(), epochs({}), 0, 400) == 0


def test_coverage_counts_only_records_of_the_same_epochs() -> None:
    cache = tier(segment(1, 0, 99), segment(2, 100, 199, {0: 100, 1: 150}))
    assert lineage.covered_end(cache, epochs({0: 0, 1: 150}), 0, 400) == 200
    # After an unclean election epoch 0 ends at 120 here.
    assert lineage.covered_end(cache, epochs({0: 0, 5: 120}), 0, 400) == 120


def test_the_first_offset_that_can_be_read() -> None:
    assert lineage.first_available(three(), epochs({0: 0}), 0, 300) == 0
    assert lineage.first_available(three(), epochs({0: 0}), 42, 300) == 42
    cache = tier(segment(2, 100, 199), segment(3, 200, 299))
    assert lineage.first_available(cache, epochs({0: 0}), 42, 300) == 100
    assert lineage.first_available(RemoteLogMetadataCache(), epochs({0: 0}), 42, 300) == 300
    strange = tier(segment(1, 0, 99, {3: 0}), segment(2, 100, 199))
    assert lineage.first_available(strange, epochs({0: 0}), 0, 300) == 100
