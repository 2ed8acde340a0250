"""How many peers a listener may have that have not said who they are."""

import pytest

from barnabas.broker.server import strangers
from barnabas.broker.server.strangers import AGAIN_S, PATIENCE_S, Stranger, Strangers


@pytest.fixture(autouse=True)
def room_for_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "STRANGERS_MAX", 2)


def come(all_of_them: Strangers, name: str, since_s: float, gone: list[str], listener: str = "SSL") -> Stranger:
    stranger = Stranger(since_s, lambda: gone.append(name))
    all_of_them.came(listener, stranger)
    return stranger


def test_oldest_goes_once_it_has_had_its_time() -> None:
    gone: list[str] = []
    here = Strangers()
    for number in range(2):
        assert here.wait_s("SSL", number) == 0
        come(here, f"peer {number}", number, gone)
    assert here.wait_s("SSL", PATIENCE_S - 0.1) == AGAIN_S and gone == []
    assert here.wait_s("SSL", PATIENCE_S) == 0 and gone == ["peer 0"]


def test_authenticated_and_closed_peers_take_no_place() -> None:
    gone: list[str] = []
    here = Strangers()
    known, left = come(here, "known", 0, gone), come(here, "left", 0, gone)
    assert here.wait_s("SSL", 1) == AGAIN_S
    known.is_known = lambda: True
    assert here.wait_s("SSL", 1) == 0
    here.left("SSL", left)
    here.left("SSL", left)
    for number in range(2):
        assert here.wait_s("SSL", 1) == 0
        come(here, f"peer {number}", 1, gone)
    assert here.wait_s("SSL", 1) == AGAIN_S and gone == []


def test_strangers_of_one_listener_do_not_count_on_another() -> None:
    gone: list[str] = []
    here = Strangers()
    for number in range(2):
        come(here, f"peer {number}", 0, gone)
    assert here.wait_s("SSL", 1) == AGAIN_S
    assert here.wait_s("BROKERS", 1) == 0
