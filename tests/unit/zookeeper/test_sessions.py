"""Session expiry, with a clock that the test moves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.zookeeper.sessions import SessionTable, first_session_id


@pytest.mark.parametrize("tick_ms", [20, 100, 2000])
def test_session_lives_its_timeout_and_hardly_longer_whatever_the_tick_is(tick_ms: int) -> None:
    table = SessionTable(tick_ms=tick_ms)
    assert table.next_expiry_ms() is None
    table.add(1, 1000)
    table.touch(1, now_ms=10_050)
    assert table.expired(now_ms=11_050) == []
    due_ms = table.next_expiry_ms()
    assert due_ms is not None and 11_050 < due_ms <= 11_100
    assert table.expired(now_ms=due_ms - 1) == []
    assert table.expired(now_ms=due_ms) == [1]


def test_touching_keeps_a_session_alive_and_expiry_reports_it_once() -> None:
    table = SessionTable(tick_ms=100)
    table.add(1, 1000)
    table.touch(1, now_ms=0)
    for now_ms in range(0, 5000, 900):
        assert table.touch(1, now_ms=now_ms)
        assert table.expired(now_ms=now_ms) == []
    assert table.expired(now_ms=9000) == [1]
    assert table.expired(now_ms=9999) == []
    assert not table.touch(1, now_ms=9000), "a session that is closing cannot be revived"


def test_reconnecting_with_another_timeout_takes_effect_at_once() -> None:
    table = SessionTable(tick_ms=100)
    table.add(1, 10_000)
    table.touch(1, now_ms=0)
    assert table.touch(1, now_ms=0, timeout_ms=500)
    assert table.expired(now_ms=700) == [1]


def test_restart_gives_every_session_its_whole_timeout_again() -> None:
    table = SessionTable(tick_ms=100)
    table.add(1, 1000)
    table.touch(1, now_ms=0)
    table.restart_timers(now_ms=1_000_000)
    assert table.expired(now_ms=1_000_900) == []
    assert table.expired(now_ms=1_001_200) == [1]


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from(["add", "touch", "close", "remove", "tick"]), st.integers(0, 500))
    )
)
def test_every_live_session_is_in_the_bucket_that_it_names(steps: list[tuple[int, str, int]]) -> None:
    table = SessionTable(tick_ms=70)
    now_ms = 0
    for session_id, step, delta_ms in steps:
        now_ms += delta_ms
        if step == "add" and session_id not in table.by_id:
            table.add(session_id, 100 * session_id)
            table.touch(session_id, now_ms=now_ms)
        elif step == "touch":
            table.touch(session_id, now_ms=now_ms)
        elif step == "close":
            table.begin_close(session_id)
        elif step == "remove":
            table.remove(session_id)
        else:
            for gone in table.expired(now_ms=now_ms):
                assert table.by_id[gone].bucket_ms <= now_ms
        live = {sid: session.bucket_ms for sid, session in table.by_id.items() if not session.closing}
        assert live == {sid: bucket for bucket, ids in table.buckets().items() for sid in ids}


def test_session_ids_are_positive_and_grow_with_time() -> None:
    first = first_session_id(server_id=0, now_ms=1_700_000_000_000)
    later = first_session_id(server_id=0, now_ms=1_700_000_000_001)
    assert 0 < first < later
    assert later - first == 1 << 16
