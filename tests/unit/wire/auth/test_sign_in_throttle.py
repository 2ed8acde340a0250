"""Guessing passwords gets slower, and stays cheap for the console."""

from barnabas.wire.auth.login_pace import (
    ADDRESS_WAIT_MAX_S,
    FIRST_WAIT_S,
    FORGET_S,
    FREE_SIGN_INS,
    REMEMBERED_MAX,
    USER_WAIT_MAX_S,
    SignInThrottle,
)

HOME = "192.0.2.7"


def fail(throttle: SignInThrottle, times: int, *, address: str = HOME, user: str = "alice", now_s: float = 0.0) -> None:
    for _ in range(times):
        throttle.tried(address, user, now_s)


def test_mistyping_a_few_times_costs_nothing() -> None:
    throttle = SignInThrottle()
    fail(throttle, FREE_SIGN_INS - 1)
    assert throttle.wait_s(HOME, "alice", 0.0) == 0


def test_waits_of_an_address_double_up_to_a_bound() -> None:
    throttle = SignInThrottle()
    fail(throttle, FREE_SIGN_INS)
    waits = []
    for _ in range(15):
        waits.append(throttle.wait_s(HOME, "bob", 0.0))
        fail(throttle, 1, user="somebody")
    assert waits[:4] == [FIRST_WAIT_S * factor for factor in (1, 2, 4, 8)]
    assert waits[-1] == ADDRESS_WAIT_MAX_S
    assert throttle.wait_s(HOME, "bob", ADDRESS_WAIT_MAX_S) == 0


def test_a_user_that_strangers_guess_at_waits_for_seconds_only() -> None:
    throttle = SignInThrottle()
    for number in range(40):
        fail(throttle, 1, address=f"198.51.100.{number}")
    assert throttle.wait_s(HOME, "alice", 0.0) == USER_WAIT_MAX_S
    assert throttle.wait_s(HOME, "bob", 0.0) == 0


def test_an_account_of_ones_own_buys_no_guesses() -> None:
    throttle = SignInThrottle()
    fail(throttle, FREE_SIGN_INS + 3, user="victim")
    throttle.tried(HOME, "mallory", 0.0)
    throttle.succeeded(HOME, "mallory")
    assert throttle.wait_s(HOME, "mallory", 0.0) == FIRST_WAIT_S * 8


def test_signing_in_clears_the_users_own_failures() -> None:
    throttle = SignInThrottle()
    fail(throttle, FREE_SIGN_INS)
    throttle.tried("192.0.2.8", "alice", 10.0)
    throttle.succeeded("192.0.2.8", "alice")
    assert throttle.wait_s("192.0.2.8", "alice", 10.0) == 0


def test_a_try_without_an_answer_does_not_count() -> None:
    throttle = SignInThrottle()
    for _ in range(20):
        throttle.tried(HOME, "alice", 0.0)
        throttle.forgotten(HOME, "alice")
    assert throttle.wait_s(HOME, "alice", 0.0) == 0


def test_all_is_forgotten_after_a_while() -> None:
    throttle = SignInThrottle()
    fail(throttle, 20)
    fail(throttle, 1, now_s=FORGET_S + 1)
    assert throttle.wait_s(HOME, "alice", FORGET_S + 1) == 0


def test_one_network_of_ipv6_is_one_address() -> None:
    throttle = SignInThrottle()
    for number in range(FREE_SIGN_INS):
        fail(throttle, 1, address=f"2001:db8::{number:x}", user=f"user-{number}")
    assert throttle.wait_s("2001:db8::ffff", "bob", 0.0) == FIRST_WAIT_S
    assert throttle.wait_s("2001:db8:0:1::1", "bob", 0.0) == 0


def test_the_table_is_bounded() -> None:
    throttle = SignInThrottle()
    for number in range(REMEMBERED_MAX + 10):
        throttle.tried(f"host-{number}", f"user-{number}", float(number))
    assert len(throttle._users) == len(throttle._addresses) == REMEMBERED_MAX
