"""Open connections by address, and which one to close when there are too many. Pure.

A connection is being served, or it waits for its client: for the headers of a first request, for a body, for the next request.
When there are too many, a waiting connection is closed for the new one, so that idle connections never lock clients out. A new
connection is refused only if all others are being served.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import Final

from barnabas.base.hosts import network_of


class State(IntEnum):
    """Connections with a lower value are closed first."""

    #: No request has arrived yet.
    NEW = auto()
    #: The headers of a request have arrived, the body has not.
    ARRIVING = auto()
    #: A request was answered, and another one may follow.
    RESTING = auto()
    SERVED = auto()


def _nothing() -> None:
    """Stands in for `close` while a connection has no transport."""


@dataclass(slots=True, eq=False)
class Place:
    """The entry of one connection in the table."""

    network: str
    #: Closes the connection at once.
    close: Callable[[], None] = field(default=_nothing)
    state: State = State.NEW


class _Queues:
    """Connections by state; within a state, the longest waiting come first."""

    def __init__(self) -> None:
        self._by_state: dict[State, dict[Place, None]] = {state: {} for state in State}

    def __len__(self) -> int:
        return sum(map(len, self._by_state.values()))

    def add(self, place: Place) -> None:
        self._by_state[place.state][place] = None

    def remove(self, place: Place) -> None:
        del self._by_state[place.state][place]

    def first_to_go(self) -> Place | None:
        waiting = (places for state, places in self._by_state.items() if state is not State.SERVED and places)
        return next(map(next, map(iter, waiting)), None)


class Connections:
    """The table. Opening takes constant time, so that a flood of connections stays cheap. Owner: the event loop."""

    def __init__(self, most: int) -> None:
        self.most: Final = most
        #: A single address must not use up all places.
        self.most_by_address: Final = max(most // 2, 1)
        self._all = _Queues()
        self._by_network: dict[str, _Queues] = {}
        self._open: set[Place] = set()
        #: Connections that were closed to make room, and (below) connections that were refused.
        self.displaced = 0
        self.refused = 0

    def __len__(self) -> int:
        return len(self._open)

    def open(self, host: str) -> Place | None:
        """Return a place for a new connection; None if it must be refused."""
        network = network_of(host)
        own = self._by_network.get(network)
        has_room = own is None or len(own) < self.most_by_address or self._displace(own)
        if not has_room or (len(self._open) >= self.most and not self._displace(self._all)):
            self.refused += 1
            return None
        place = Place(network)
        self._open.add(place)
        self._all.add(place)
        self._by_network.setdefault(network, _Queues()).add(place)
        return place

    def enter(self, place: Place, state: State) -> None:
        if place.state is state or place not in self._open:
            return
        queues = (self._all, self._by_network[place.network])
        for each in queues:
            each.remove(place)
        place.state = state
        for each in queues:
            each.add(place)

    def leave(self, place: Place) -> None:
        """Remove a connection that has ended. May be called twice."""
        if place not in self._open:
            return
        self._open.remove(place)
        self._all.remove(place)
        own = self._by_network[place.network]
        own.remove(place)
        if not len(own):
            del self._by_network[place.network]

    def _displace(self, queues: _Queues) -> bool:
        gone = queues.first_to_go()
        if gone is None:
            return False
        self.leave(gone)
        self.displaced += 1
        gone.close()
        return True
