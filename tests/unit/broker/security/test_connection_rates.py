"""How fast connections may come: broker, listener, address."""

from barnabas.broker.security import connection_rates
from barnabas.broker.security.connection_rates import ConnectionRates, RateLimits


def made(**limits: object) -> ConnectionRates:
    return ConnectionRates(windows=11, window_ms=1_000, limits=RateLimits(**limits))  # type: ignore[arg-type]


def test_without_limits_no_connection_waits() -> None:
    rates = made()
    assert all(rates.accepted("CLIENT", 0) == 0 and rates.came_from("10.0.0.1", "CLIENT", 0) == 0 for _ in range(1_000))


def test_broker_over_its_rate_accepts_later_but_no_later_than_a_window() -> None:
    rates = made(broker=2)
    assert [rates.accepted("CLIENT", 0) for _ in range(20)] == [0] * 20
    assert rates.accepted("CLIENT", 0) == 500  # one too many, at two a second
    assert [rates.accepted("CLIENT", 0) for _ in range(5)][-1] == 1_000


def test_listener_has_a_rate_of_its_own() -> None:
    rates = made(listeners={"CLIENT": 1, "OTHER": 1_000})
    for _ in range(10):
        assert rates.accepted("CLIENT", 0) == 0
    assert rates.accepted("CLIENT", 0) == 1_000
    assert rates.accepted("OTHER", 0) == 0


def test_brokers_are_not_kept_out_by_clients() -> None:
    rates = made(broker=1, protected="INTERNAL")
    assert [rates.accepted("CLIENT", 0) for _ in range(11)][-1] > 0
    assert rates.accepted("INTERNAL", 0) == 0


def test_address_over_its_rate_is_held_and_does_not_count() -> None:
    rates = made(broker=100)
    rates.address_changed("10.0.0.1", {"connection_creation_rate": "1"})
    for _ in range(10):
        rates.accepted("CLIENT", 0)
        assert rates.came_from("10.0.0.1", "CLIENT", 0) == 0
    for _ in range(2_000):  # neither for its own rate nor for the broker's
        assert rates.accepted("CLIENT", 0) == 0
        assert rates.came_from("10.0.0.1", "CLIENT", 0) == 1_000
    assert rates.came_from("10.0.0.2", "CLIENT", 0) == 0
    assert rates.came_from("10.0.0.1", "CLIENT", 11_000) == 0


def test_address_of_its_own_wins_over_the_default() -> None:
    rates = made()
    rates.address_changed("<default>", {"connection_creation_rate": "1"})
    rates.address_changed("10.0.0.1", {"connection_creation_rate": "1000"})
    assert rates.limit_of("10.0.0.1") == 1_000 and rates.limit_of("10.0.0.2") == 1
    rates.address_changed("10.0.0.1", {})
    assert rates.limit_of("10.0.0.1") == 1
    rates.address_changed("<default>", {"connection_creation_rate": "many"})
    assert rates.limit_of("10.0.0.1") is None


def test_addresses_are_bounded() -> None:
    rates = made()
    rates.address_changed("<default>", {"connection_creation_rate": "5"})
    for number in range(connection_rates.ADDRESSES_MAX + 5):
        rates.came_from(f"a{number}", "CLIENT", number * 20_000)
    assert len(rates._addresses) <= connection_rates.ADDRESSES_MAX
