"""Peers that have not said who they are, by listener: how many there may be, and who goes to make room.

Each costs memory, one in a TLS handshake some 60 KiB, and descriptors are too many to bound that. Where a listener is full of
them, the one that has taken longest goes, if it has had time enough; else the newcomers wait in the backlog. So nobody keeps
others out for longer than that, and clients that all come back at once do not push each other out.

Owner: the event loop. Pure: time is given.
"""

from collections.abc import Callable
from typing import Final

#: Of one listener.
STRANGERS_MAX: Final = 2_000
#: How long a peer may take while others wait for its place.
PATIENCE_S: Final = 5.0
#: Newcomers wait for so long before they ask again: peers that become known do not say so.
AGAIN_S: Final = 0.1


class Stranger:
    """Until its handshake and its login are done."""

    __slots__ = ("is_known", "leave", "since_s")

    def __init__(self, since_s: float, leave: Callable[[], object]) -> None:
        self.since_s = since_s
        #: Ends it.
        self.leave: Callable[[], object] = leave
        self.is_known: Callable[[], bool] = bool


class Strangers:
    def __init__(self) -> None:
        #: In the order in which they came.
        self._of: dict[str, dict[Stranger, None]] = {}

    def came(self, listener: str, stranger: Stranger) -> None:
        self._of.setdefault(listener, {})[stranger] = None

    def left(self, listener: str, stranger: Stranger) -> None:
        self._of.get(listener, {}).pop(stranger, None)
        # It and its connection know each other: nobody should have to look for such garbage.
        stranger.leave = stranger.is_known = bool

    def wait_s(self, listener: str, now_s: float) -> float:
        """How long a newcomer has to wait: 0 if there is room, or was made."""
        here = self._of.get(listener)
        if here is None or len(here) < STRANGERS_MAX:
            return 0.0
        self._of[listener] = here = {each: None for each in here if not each.is_known()}
        if len(here) < STRANGERS_MAX:
            return 0.0
        oldest = next(iter(here))
        if now_s - oldest.since_s < PATIENCE_S:
            return AGAIN_S
        del here[oldest]
        oldest.leave()
        return 0.0
