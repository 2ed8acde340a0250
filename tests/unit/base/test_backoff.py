"""Pauses between attempts."""

from barnabas.base.backoff import Backoff


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(0.5, 3)
    assert [backoff.failed() for _ in range(5)] == [0.5, 1, 2, 3, 3]
    assert backoff.failures == 5


def test_success_starts_again_from_the_first_pause() -> None:
    backoff = Backoff(0.5, 3)
    backoff.failed()
    backoff.failed()
    backoff.succeeded()
    assert (backoff.failures, backoff.failed()) == (0, 0.5)


def test_each_pause_is_varied_by_itself() -> None:
    factors = iter([0.8, 1.2, 1.0])
    backoff = Backoff(1, 2, lambda: next(factors))
    assert [backoff.failed() for _ in range(3)] == [0.8, 2.4, 2]


def test_number_of_failures_has_no_limit() -> None:
    backoff = Backoff(0.1, 5)
    backoff.failures = 10**9
    assert backoff.failed() == 5
