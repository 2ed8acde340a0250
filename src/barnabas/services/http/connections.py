"""Which connections are open, by address, and which one has to go when there are too many. Pure.

A connection is served, or it waits for its client: for the head of a first request, for a body, for the next request. When
there are too many, one that waits makes room for the new one, so that idle connections never lock others out. A new connection
is refused only when all others are being served.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum, auto
from itertools import count
from typing import Final

from barnabas.base.hosts import network_of


class State(IntEnum):
    """Those with a lower value go first."""

    #: No request has come yet.
    NEW = auto()
    #: A request has come; its body has not.
    ARRIVING = auto()
    #: It has been answered, and may ask again.
    RESTING = auto()
    SERVED = auto()


def _nothing() -> None:
    """A connection that has no transport yet."""


@dataclass(slots=True, eq=False)
class Place:
    """One connection's entry in the table."""

    network: str
    #: Ends the connection at once.
    close: Callable[[], None] = field(default=_nothing)
    state: State = State.NEW
    #: When it came into its state, as a number that grows.
    since: int = 0


class Connections:
    """Owner: the event loop."""

    def __init__(self, most: int) -> None:
        self.most: Final = most
        #: One address may not take everything.
        self.most_by_address: Final = max(most // 2, 1)
        self._places: dict[Place, None] = {}
        self._by_network: Counter[str] = Counter()
        self._ticks = count(1)
        #: Connections that were closed to make room, and those that were refused.
        self.displaced = 0
        self.refused = 0

    def __len__(self) -> int:
        return len(self._places)

    def open(self, host: str) -> Place | None:
        """A place for a new connection; None where it has to be refused."""
        network = network_of(host)
        if self._by_network[network] >= self.most_by_address:
            has_room = self._displace(network)
        else:
            has_room = len(self._places) < self.most or self._displace(self._largest())
        if not has_room:
            self.refused += 1
            return None
        place = Place(network, since=next(self._ticks))
        self._places[place] = None
        self._by_network[network] += 1
        return place

    def enter(self, place: Place, state: State) -> None:
        if place.state is not state:
            place.state, place.since = state, next(self._ticks)

    def leave(self, place: Place) -> None:
        """The connection is over. May be called twice."""
        if place in self._places:
            del self._places[place]
            self._by_network[place.network] -= 1
            if not self._by_network[place.network]:
                del self._by_network[place.network]

    def _largest(self) -> str | None:
        """The network with the most connections that wait."""
        waiting = Counter(place.network for place in self._places if place.state is not State.SERVED)
        return waiting.most_common(1)[0][0] if waiting else None

    def _displace(self, network: str | None) -> bool:
        candidates = (each for each in self._places if each.network == network and each.state is not State.SERVED)
        gone = min(candidates, key=lambda each: (each.state, each.since), default=None)
        if gone is None:
            return False
        self.leave(gone)
        self.displaced += 1
        gone.close()
        return True
