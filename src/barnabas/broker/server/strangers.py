"""Unauthenticated peers, by listener: how many there may be, and which one is closed to make room.

Each costs memory, some 60 KiB in a TLS handshake, and the number of descriptors is too high a bound for that. If a listener is
full of them, the one that has taken longest is closed, if it has had enough time; otherwise newcomers wait in the backlog. So
no peer keeps others out for longer than that, and clients that all return at once do not push each other out.

Owner: the event loop. Pure: time is given.
"""

from collections.abc import Callable
from typing import Final

#: Limit for one listener.
STRANGERS_MAX: Final = 2_000
#: How long a peer may take while others wait for its place.
PATIENCE_S: Final = 5.0
#: How long newcomers wait before they try again: a peer that authenticates does not report it here.
AGAIN_S: Final = 0.1


class Stranger:
    """A peer until its handshake and its login are done."""

    __slots__ = ("is_known", "leave", "since_s")

    def __init__(self, since_s: float, leave: Callable[[], object]) -> None:
        self.since_s = since_s
        #: Closes the connection.
        self.leave: Callable[[], object] = leave
        self.is_known: Callable[[], bool] = bool


class Strangers:
    def __init__(self) -> None:
        #: In order of arrival.
        self._of: dict[str, dict[Stranger, None]] = {}

    def came(self, listener: str, stranger: Stranger) -> None:
        self._of.setdefault(listener, {})[stranger] = None

    def left(self, listener: str, stranger: Stranger) -> None:
        self._of.get(listener, {}).pop(stranger, None)
        # It and its connection reference each other: break the cycle, so that no garbage collection is needed.
        stranger.leave = stranger.is_known = bool

    def wait_s(self, listener: str, now_s: float) -> float:
        """Return how long a newcomer has to wait: 0 if there is room, or room was made."""
        here = self._of.get(listener)
        if here is None or len(here) < STRANGERS_MAX:
            return 0.0
        self._of[listener] = here = {peer: None for peer in here if not peer.is_known()}
        if len(here) < STRANGERS_MAX:
            return 0.0
        oldest = next(iter(here))
        if now_s - oldest.since_s < PATIENCE_S:
            return AGAIN_S
        del here[oldest]
        oldest.leave()
        return 0.0
