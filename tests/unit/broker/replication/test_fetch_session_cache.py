"""Fetch sessions on the broker's side (KIP-227)."""

import itertools

import pytest

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.replication import fetch_session_cache
from barnabas.broker.replication.fetch_session_cache import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    CachedPartition,
    FetchContext,
    FetchKey,
    FetchSessionCache,
)


def cache(slots: int = 10) -> FetchSessionCache:
    ids = itertools.count(1)
    return FetchSessionCache(slots_max=slots, eviction_ms=1000, random_id=lambda: next(ids))


def partition(number: int, offset: int = 0, topic: str = "t") -> CachedPartition:
    return CachedPartition(FetchKey(topic, number), offset, 1000, -1, -1, -1)


def begin(
    sessions: FetchSessionCache,
    session_id: int,
    epoch: int,
    wanted: list[CachedPartition] | None = None,
    forgotten: list[FetchKey] | None = None,
    *,
    is_follower: bool = False,
    uses_topic_ids: bool = False,
    now_s: float = 0.0,
) -> FetchContext:
    return sessions.begin(
        session_id,
        epoch,
        wanted=wanted or [],
        forgotten=forgotten or [],
        replica=(1, 1) if is_follower else None,
        uses_topic_ids=uses_topic_ids,
        now_s=now_s,
        now_ms=int(now_s * 1000),
    )


def keys(context: FetchContext) -> list[int]:
    return [each.key.partition for each in context.partitions]


def test_whole_request_opens_a_session_and_later_ones_carry_only_changes() -> None:
    sessions = cache()
    opened = begin(sessions, 0, INITIAL_EPOCH, [partition(0), partition(1)])
    assert opened.session is not None and not opened.incremental
    again = begin(sessions, opened.session.id, 1)
    assert again.incremental and keys(again) == [0, 1]
    changed = begin(sessions, opened.session.id, 2, [partition(2), partition(0, offset=9)], [FetchKey("t", 1)])
    assert keys(changed) == [0, 2]
    assert next(iter(changed.partitions)).fetch_offset == 9


def test_request_without_session_opens_none() -> None:
    sessions = cache()
    context = begin(sessions, 0, FINAL_EPOCH, [partition(0)])
    assert context.session is None and not context.incremental
    assert len(sessions) == 0


def test_final_epoch_closes_the_session() -> None:
    sessions = cache()
    opened = begin(sessions, 0, INITIAL_EPOCH, [partition(0)])
    assert opened.session is not None
    begin(sessions, opened.session.id, FINAL_EPOCH, [partition(0)])
    with pytest.raises(Refused) as refused:
        begin(sessions, opened.session.id, 1)
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_wrong_epoch_is_refused() -> None:
    sessions = cache()
    opened = begin(sessions, 0, INITIAL_EPOCH, [partition(0)])
    assert opened.session is not None
    with pytest.raises(Refused) as refused:
        begin(sessions, opened.session.id, 5)
    assert refused.value.code is ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_session_uses_either_names_or_ids() -> None:
    sessions = cache()
    opened = begin(sessions, 0, INITIAL_EPOCH, [partition(0)])
    assert opened.session is not None
    with pytest.raises(Refused) as refused:
        begin(sessions, opened.session.id, 1, uses_topic_ids=True)
    assert refused.value.code is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_session_without_partitions_ends() -> None:
    sessions = cache()
    opened = begin(sessions, 0, INITIAL_EPOCH, [partition(0)])
    assert opened.session is not None
    ended = begin(sessions, opened.session.id, 1, forgotten=[FetchKey("t", 0)])
    assert ended.session is None and keys(ended) == []
    assert len(sessions) == 0


def test_response_mentions_a_partition_with_news_or_after_an_error() -> None:
    cached = partition(0)

    def tell(high_watermark: int = 5, error: int = 0, has_more: bool = False) -> bool:
        return cached.must_tell(error=error, high_watermark=high_watermark, log_start=0, has_more=has_more)

    assert tell()
    assert not tell()
    assert tell(has_more=True)
    assert tell(high_watermark=6)
    assert tell(high_watermark=6, error=6)
    assert tell(high_watermark=6)
    assert not tell(high_watermark=6)


def test_partitions_that_were_served_go_to_the_back() -> None:
    sessions = cache()
    opened = begin(sessions, 0, INITIAL_EPOCH, [partition(0), partition(1), partition(2)])
    assert opened.session is not None
    opened.session.to_the_back([FetchKey("t", 0)])
    assert keys(begin(sessions, opened.session.id, 1)) == [1, 2, 0]


def test_full_cache_opens_no_session_until_one_is_stale() -> None:
    sessions = cache(slots=1)
    first = begin(sessions, 0, INITIAL_EPOCH, [partition(0)])
    assert first.session is not None
    assert begin(sessions, 0, INITIAL_EPOCH, [partition(1)]).session is None
    late = begin(sessions, 0, INITIAL_EPOCH, [partition(1)], now_s=2.0)
    assert late.session is not None and len(sessions) == 1


def test_followers_session_evicts_a_consumers_but_not_the_other_way() -> None:
    sessions = cache(slots=1)
    begin(sessions, 0, INITIAL_EPOCH, [partition(0)])
    follower = begin(sessions, 0, INITIAL_EPOCH, [partition(0)], is_follower=True)
    assert follower.session is not None
    assert begin(sessions, 0, INITIAL_EPOCH, [partition(n) for n in range(9)], now_s=0.5).session is None


def test_epoch_wraps_to_one() -> None:
    sessions = cache()
    opened = begin(sessions, 0, INITIAL_EPOCH, [partition(0)])
    assert opened.session is not None
    opened.session.epoch = 2**31 - 1
    begin(sessions, opened.session.id, 2**31 - 1)
    assert opened.session.epoch == 1


def test_partitions_in_clients_sessions_are_bounded_and_in_followers_sessions_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch_session_cache, "CLIENTS_PARTITIONS_MAX", 5)
    sessions = cache()
    follower = begin(sessions, 0, INITIAL_EPOCH, [partition(n) for n in range(20)], is_follower=True)
    assert follower.session is not None
    first = begin(sessions, 0, INITIAL_EPOCH, [partition(n) for n in range(3)])
    assert first.session is not None
    assert begin(sessions, 0, INITIAL_EPOCH, [partition(n) for n in range(3)]).session is None
    with pytest.raises(Refused) as refused:  # it grows instead, and has to begin again
        begin(sessions, first.session.id, 1, [partition(n) for n in range(10, 13)])
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    again = begin(sessions, 0, INITIAL_EPOCH, [partition(n) for n in range(5)])
    assert again.session is not None  # dropped partitions do not count
    fewer = begin(sessions, again.session.id, 1, [], [FetchKey("t", n) for n in range(4)])
    assert fewer.session is not None
    assert begin(sessions, 0, INITIAL_EPOCH, [partition(n) for n in range(4)]).session is not None
