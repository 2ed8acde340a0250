"""Puts off work that is not urgent until brokers have carried out what clients wait for.

After a fail-over the leaders' news and the ISRs without the broker that went are about as many partitions each. The second
must not compete with the first for the brokers' loops: the first is what clients wait for.

Owner: the event loop of the controller's broker.
"""

import asyncio
from collections.abc import Callable

#: Whether or not they have answered: one that hangs must not hold up what the controller does for the others.
PATIENCE_S = 0.5


class Deferral:
    """What is put off. At most one thing waits, as the controller does one thing at a time."""

    def __init__(self, is_quiet: Callable[[], bool]) -> None:
        """`is_quiet`: all brokers have answered."""
        self._is_quiet = is_quiet
        self._is_hurried = False
        self._waiting: tuple[Callable[[], None], asyncio.TimerHandle] | None = None

    def await_quiet(self, then: Callable[[], None]) -> None:
        assert self._waiting is None, "one thing at a time"
        if self._is_hurried or self._is_quiet():
            then()
        else:
            self._waiting = (then, asyncio.get_running_loop().call_later(PATIENCE_S, self.hurry))

    def look(self) -> None:
        """A broker has answered."""
        if self._waiting is not None and self._is_quiet():
            self._go_on()

    def hurry(self) -> None:
        """Nothing waits any longer, until there is time again."""
        self._is_hurried = True
        self._go_on()

    def rest(self) -> None:
        """There is time."""
        self._is_hurried = False

    def _go_on(self) -> None:
        if self._waiting is not None:
            then = self._waiting[0]
            self.drop()
            then()

    def drop(self) -> None:
        """Drop the work."""
        if self._waiting is not None:
            self._waiting[1].cancel()
            self._waiting = None
