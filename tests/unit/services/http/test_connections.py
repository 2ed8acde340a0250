"""Which connection is closed when there are too many: never one that is being served, and an idle one before any other."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.services.http.connections import Connections, Place, State


def opened(connections: Connections, host: str, closed: list[str] | None = None, name: str = "") -> Place:
    place = connections.open(host)
    assert place is not None
    place.close = lambda: (closed if closed is not None else []).append(name or host)
    return place


def test_idle_connections_of_one_address_make_room_for_another_address() -> None:
    connections = Connections(10)
    for _ in range(40):
        opened(connections, "192.0.2.1")
    assert len(connections) == connections.most_by_address == 5
    for number in range(5):
        opened(connections, f"198.51.100.{number}")
    assert len(connections) == 10
    opened(connections, "203.0.113.1")
    assert (len(connections), connections.refused) == (10, 0)


def test_the_oldest_idle_connection_of_all_makes_room() -> None:
    connections, closed = Connections(4), list[str]()
    first = opened(connections, "a", closed)
    for host in ("b", "b", "c"):
        opened(connections, host, closed)
    connections.enter(first, State.SERVED)
    opened(connections, "d", closed)
    assert closed == ["b"]


def test_a_flood_of_connections_costs_the_same_at_the_limit() -> None:
    def took_s(most: int) -> float:
        connections = Connections(most)
        for number in range(most):
            connections.open(f"10.0.{number % 250}.{number // 250}")
        began_s = time.process_time()
        for _ in range(3_000):
            assert connections.open("192.0.2.1") is not None
        return time.process_time() - began_s

    assert took_s(10_000) < 10 * took_s(100) + 0.1


def test_connections_go_in_their_order() -> None:
    connections, closed = Connections(8), list[str]()
    for state in (State.SERVED, State.RESTING, State.ARRIVING, State.NEW):
        connections.enter(opened(connections, "a", closed, state.name), state)
    for _ in range(3):
        connections.enter(opened(connections, "a", closed, "later"), State.SERVED)
    assert closed == ["NEW", "ARRIVING", "RESTING"]
    assert connections.open("a") is None and connections.refused == 1
    opened(connections, "b")


def test_the_oldest_of_a_state_goes_first() -> None:
    connections, closed = Connections(4), list[str]()
    first, second = (opened(connections, "a", closed, name) for name in ("first", "second"))
    connections.enter(second, State.RESTING)
    connections.enter(first, State.RESTING)
    opened(connections, "a", closed, "third")
    assert closed == ["second"]


def test_a_connection_that_is_over_leaves_its_place() -> None:
    connections = Connections(2)
    for _ in range(5):
        place = opened(connections, "a")
        connections.enter(place, State.SERVED)
        connections.leave(place)
        connections.leave(place)
    assert len(connections) == 0 and not connections._by_network


def test_one_network_of_ipv6_is_one_address() -> None:
    connections = Connections(4)
    for number in range(8):
        opened(connections, f"2001:db8::{number:x}")
    assert len(connections) == 2
    opened(connections, "2001:db8:0:1::1")
    assert len(connections) == 3


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["open", "leave", *State])), max_size=200))
def test_bounds_hold_and_nothing_that_is_served_is_closed(steps: list[tuple[str, object]]) -> None:
    connections = Connections(6)
    places: dict[Place, str] = {}

    def close(place: Place) -> None:
        assert place.state is not State.SERVED
        del places[place]

    for host, step in steps:
        mine = [place for place, owner in places.items() if owner == host]
        if step == "open":
            new = connections.open(host)
            if new is not None:
                new.close = lambda new=new: close(new)  # type: ignore[misc]
                places[new] = host
            else:
                assert all(place.state is State.SERVED for place in mine) or len(places) >= connections.most
        elif mine and step == "leave":
            connections.leave(mine[0])
            del places[mine[0]]
        elif mine and isinstance(step, State):
            connections.enter(mine[0], step)
        assert len(connections) == len(places) <= connections.most
        assert all(list(places.values()).count(each) <= connections.most_by_address for each in "abcd")


def test_every_state_has_an_order() -> None:
    assert list(State) == [State.NEW, State.ARRIVING, State.RESTING, State.SERVED]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_single_address_gets_a_place(most: int) -> None:
    assert Connections(most).open("a") is not None
