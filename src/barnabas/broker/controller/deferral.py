"""Delays less urgent work until brokers have carried out the requests that clients wait for.

A fail-over produces two batches of about the same size: the new leaders, and the ISRs without the failed broker. Clients wait
for the first one, so the second must not compete with it for the brokers' event loops.

Owner: the event loop of the controller's broker.
"""

import asyncio
from collections.abc import Callable

#: Longest delay: a broker that hangs must not hold up the controller's work for the other brokers.
PATIENCE_S = 0.5


class Deferral:
    """Holds the delayed step. There is at most one, as the controller works on one event at a time."""

    def __init__(self, is_quiet: Callable[[], bool]) -> None:
        """`is_quiet` returns whether all brokers have answered."""
        self._is_quiet = is_quiet
        self._is_hurried = False
        self._waiting: tuple[Callable[[], None], asyncio.TimerHandle] | None = None

    def await_quiet(self, then: Callable[[], None]) -> None:
        assert self._waiting is None, "a step is delayed already"
        if self._is_hurried or self._is_quiet():
            then()
        else:
            self._waiting = (then, asyncio.get_running_loop().call_later(PATIENCE_S, self.hurry))

    def look(self) -> None:
        """A broker has answered: go on if all have."""
        if self._waiting is not None and self._is_quiet():
            self._go_on()

    def hurry(self) -> None:
        """Delay nothing until `rest` is called."""
        self._is_hurried = True
        self._go_on()

    def rest(self) -> None:
        """Delay steps again: the machine has no more work."""
        self._is_hurried = False

    def _go_on(self) -> None:
        if self._waiting is not None:
            then = self._waiting[0]
            self.drop()
            then()

    def drop(self) -> None:
        """Forget the delayed step."""
        if self._waiting is not None:
            self._waiting[1].cancel()
            self._waiting = None
