"""The purgatory: operations complete once, by their condition or by their time."""

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.runtime.purgatory import DelayedOperation, Purgatory
from barnabas.broker.runtime.timers import SLOT_MS, Timer
from tests.manual_time import ManualClock, ManualTimers


class Waiting(DelayedOperation):
    def __init__(self) -> None:
        super().__init__()
        self.ready = False
        self.ends: list[bool] = []
        #: Called during each check.
        self.looks: Callable[[], None] = lambda: None

    def is_satisfied(self) -> bool:
        self.looks()
        return self.ready

    def on_complete(self, *, expired: bool) -> None:
        self.ends.append(expired)


def make() -> tuple[Purgatory, ManualTimers]:
    timers = ManualTimers(ManualClock())
    return Purgatory("Test", timers), timers


def test_operation_whose_condition_holds_completes_at_once() -> None:
    purgatory, _ = make()
    operation = Waiting()
    operation.ready = True
    assert purgatory.try_complete_else_watch(operation, ["a"], timeout_ms=1000)
    assert operation.ends == [False]
    assert len(purgatory) == 0
    assert purgatory.watched_keys == 0


def test_check_of_a_key_completes_what_it_satisfies_and_nothing_else() -> None:
    purgatory, _ = make()
    here, there = Waiting(), Waiting()
    purgatory.try_complete_else_watch(here, ["a", "b"], timeout_ms=1000)
    purgatory.try_complete_else_watch(there, ["b"], timeout_ms=1000)
    here.ready = True
    assert purgatory.check("b") == 1
    assert (here.ends, there.ends) == ([False], [])
    assert purgatory.check("a") == 0
    assert len(purgatory) == 1


def test_time_that_runs_out_completes_as_expired() -> None:
    purgatory, timers = make()
    operation = Waiting()
    purgatory.try_complete_else_watch(operation, ["a"], timeout_ms=1000)
    timers.advance_ms(999)
    assert operation.ends == []
    timers.advance_ms(1 + SLOT_MS)
    assert operation.ends == [True]
    operation.ready = True
    assert purgatory.check("a") == 0


def test_cancelled_operation_gets_no_callback() -> None:
    purgatory, timers = make()
    operation = Waiting()
    purgatory.try_complete_else_watch(operation, ["a"], timeout_ms=1000)
    purgatory.cancel(operation)
    timers.advance_ms(5000)
    assert operation.ends == []
    assert len(purgatory) == 0
    assert purgatory.watched_keys == 0


@given(st.lists(st.tuples(st.sampled_from("cxtk"), st.integers(0, 9), st.sampled_from("abc")), max_size=60))
def test_every_operation_completes_exactly_once_or_waits(steps: list[tuple[str, int, str]]) -> None:
    purgatory, timers = make()
    operations: dict[int, Waiting] = {}
    cancelled: set[int] = set()

    def end_all(key: str) -> None:
        for each in operations.values():
            each.looks, each.ready = (lambda: None), True
        purgatory.check(key)

    for step, number, key in steps:
        if number not in operations:
            operations[number] = Waiting()
            purgatory.try_complete_else_watch(operations[number], [key, "all"], timeout_ms=100 * (number + 1))
        elif step == "c":
            operations[number].ready = True
            purgatory.check(key)
        elif step == "x":
            if not operations[number].completed:
                cancelled.add(number)
            purgatory.cancel(operations[number])
        elif step == "t":
            timers.advance_ms(50)
        else:
            # The first check finds that the condition failed for all of them, and wakes all.
            operations[number].looks = partial(end_all, key)
            purgatory.check(key)
    waiting = [o for o in operations.values() if not o.completed]
    assert len(purgatory) == len(waiting)
    for number, operation in operations.items():
        assert len(operation.ends) == (1 if operation.completed and number not in cancelled else 0)
    timers.advance_ms(10_000)
    assert len(purgatory) == 0
    assert purgatory.watched_keys == 0


def test_many_waits_share_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    purgatory, timers = make()
    begun: list[float] = []
    call_later = timers.call_later

    def counted(delay_s: float, callback: Callable[[], None]) -> Timer:
        begun.append(delay_s)
        return call_later(delay_s, callback)

    monkeypatch.setattr(timers, "call_later", counted)
    for _ in range(1_000):
        operation = Waiting()
        purgatory.watch(operation, ["a"], timeout_ms=500)
        timers.advance_ms(1)
        operation.ready = True
        purgatory.check("a")
    assert len(purgatory) == 0
    assert len(begun) < 10


def test_each_wait_ends_within_a_slot_of_its_time() -> None:
    purgatory, timers = make()
    waiting = {timeout_ms: Waiting() for timeout_ms in (700, 3, 41, 40, 0, 299)}
    for timeout_ms, operation in waiting.items():
        purgatory.watch(operation, ["a"], timeout_ms=timeout_ms)
        assert operation.expires_s is not None
        assert timeout_ms / 1000 < operation.expires_s <= (timeout_ms + SLOT_MS) / 1000
    for now_ms in range(1, 800):
        timers.advance_ms(1)
        for timeout_ms, operation in waiting.items():
            if now_ms < timeout_ms:
                assert operation.ends == []
            elif now_ms > timeout_ms + SLOT_MS:
                assert operation.ends == [True]
    assert purgatory.watched_keys == 0
