"""Sessions: signed cookies, ends, bounds."""

import pytest

from barnabas.services.console import sessions
from barnabas.services.console.sessions import (
    IDLE_S,
    LIFETIME_S,
    SESSIONS_PER_USER_MAX,
    Session,
    Sessions,
    TooManySessions,
)


class Clock:
    now_s = 1000.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ended() -> list[str]:
    return []


@pytest.fixture
def some(clock: Clock, ended: list[str]) -> Sessions[str]:
    def note(session: Session[str]) -> None:
        ended.append(session.held)

    return Sessions(now_s=lambda: clock.now_s, ended=note)


def test_a_cookie_names_its_session(some: Sessions[str]) -> None:
    session = some.begin("alice", "client")
    assert some.of_cookie(some.cookie_of(session)) is session


@pytest.mark.parametrize("forge", [lambda c: c[:-1] + ("A" if c[-1] != "A" else "B"), lambda c: c.split(".")[0],
                                   lambda c: "x" + c, lambda c: "", lambda c: "é." + c, lambda c: c + "\ud800"])  # fmt: skip
def test_a_cookie_that_was_not_signed_names_nothing(some: Sessions[str], forge) -> None:  # type: ignore[no-untyped-def]
    cookie = some.cookie_of(some.begin("alice", "client"))
    assert some.of_cookie(forge(cookie)) is None


def test_another_process_does_not_take_the_cookie(some: Sessions[str]) -> None:
    cookie = some.cookie_of(some.begin("alice", "client"))
    other: Sessions[str] = Sessions(now_s=lambda: 0.0, ended=lambda _: None)
    assert other.of_cookie(cookie) is None


def test_an_unused_session_ends(some: Sessions[str], clock: Clock, ended: list[str]) -> None:
    cookie = some.cookie_of(some.begin("alice", "client"))
    clock.now_s += IDLE_S - 1
    assert some.of_cookie(cookie) is not None
    clock.now_s += IDLE_S - 1
    assert some.of_cookie(cookie) is not None
    clock.now_s += IDLE_S
    assert some.of_cookie(cookie) is None
    assert ended == ["client"]


def test_a_session_in_use_ends_after_its_life(some: Sessions[str], clock: Clock, ended: list[str]) -> None:
    session = some.begin("alice", "client")
    for _ in range(int(LIFETIME_S / (IDLE_S / 2))):
        assert some.is_used(session)
        clock.now_s += IDLE_S / 2
    assert not some.is_used(session)
    assert ended == ["client"]


def test_a_token_of_a_minute_makes_a_session_of_a_minute(some: Sessions[str], clock: Clock) -> None:
    session = some.begin("alice", "client", lifetime_s=60.0)
    assert some.sweep() == 60.0
    clock.now_s += 60.0
    assert some.sweep() is None
    assert not some.is_used(session)


def test_the_csrf_token_is_neither_the_cookie_nor_anothers(some: Sessions[str]) -> None:
    one, two = some.begin("alice", "a"), some.begin("alice", "b")
    assert sessions.is_csrf_token(one, one.csrf_token)
    for given in (None, "", "é", two.csrf_token, some.cookie_of(one), some.cookie_of(one).split(".")[1]):
        assert not sessions.is_csrf_token(one, given)


def test_a_user_with_many_sessions_loses_the_one_not_used_for_longest(some: Sessions[str], ended: list[str]) -> None:
    mine = [some.begin("alice", f"a{number}") for number in range(SESSIONS_PER_USER_MAX)]
    assert some.is_used(mine[0])
    some.begin("alice", "one more")
    assert ended == ["a1"]


def test_all_sessions_together_are_bounded(some: Sessions[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 3)
    for number in range(3):
        some.begin(f"user-{number}", "client")
    with pytest.raises(TooManySessions):
        some.begin("user-3", "client")


def test_repr_of_a_session_does_not_show_its_account(some: Sessions[str]) -> None:
    session = some.begin("alice", "the-secret-client")
    assert "the-secret-client" not in repr(session)
    assert session.csrf_token not in repr(session)
