"""An address with many failed logins is evaluated more and more slowly; other addresses are not."""

from barnabas.wire.auth.login_pace import FREE_FAILURES, REMEMBERED_MAX, STEP_MS, WAITING_MAX, LoginPace


def failing(times: int = FREE_FAILURES) -> LoginPace:
    pace = LoginPace()
    for _ in range(times):
        pace.failed("eve", 0)
    return pace


def test_a_few_failures_are_forgiven() -> None:
    assert failing(FREE_FAILURES - 1).wait_ms("eve", 0) == 0


def test_attempts_after_too_many_failures_wait_for_each_other() -> None:
    pace = failing()
    assert [pace.wait_ms("eve", 0) for _ in range(3)] == [STEP_MS, 2 * STEP_MS, 3 * STEP_MS]
    pace.waited("eve")
    assert pace.wait_ms("eve", 0) == 3 * STEP_MS
    assert pace.wait_ms("alice", 0) == 0


def test_too_many_that_wait_are_refused() -> None:
    pace = failing()
    assert None not in [pace.wait_ms("eve", 0) for _ in range(WAITING_MAX)]
    assert pace.wait_ms("eve", 0) is None


def test_failures_are_forgotten() -> None:
    pace = failing()
    assert pace.wait_ms("eve", 60_000) == 0


def test_memory_of_addresses_is_bounded() -> None:
    pace = LoginPace()
    for number in range(REMEMBERED_MAX + 10):
        pace.failed(f"h{number}", 0)
    assert len(pace._addresses) == REMEMBERED_MAX


def test_one_network_of_ipv6_is_one_address() -> None:
    pace = LoginPace()
    for number in range(FREE_FAILURES):
        pace.failed(f"2001:db8::{number:x}", 0)
    assert pace.wait_ms("2001:db8::ffff", 0) == STEP_MS
    assert pace.wait_ms("2001:db8:0:1::1", 0) == 0
