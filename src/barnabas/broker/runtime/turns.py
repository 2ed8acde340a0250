"""Turns of the event loop: deferring small work to the end of a turn, and splitting long work over several turns.

All deferred calls share one entry in the loop's queue.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final, TypeVar

#: Rounds in one turn: deferred calls, and the calls that these defer, for example a write and its answer.
ROUNDS: Final = 2
#: Elements that are handled in one turn: some 10 ms for the most expensive ones.
SLICE_ELEMENTS: Final = 500

T = TypeVar("T")


async def in_turns(items: Iterable[T], size: int = SLICE_ELEMENTS) -> AsyncIterator[T]:
    """Yield the items, and let other tasks run after each `size` of them."""
    for number, item in enumerate(items, 1):
        yield item
        if number % size == 0:
            await asyncio.sleep(0)


class TurnEnd:
    """Calls deferred functions in order at the end of the loop's current turn. Owner: the event loop.

    Calls that these functions defer run in the same turn; what those defer runs in the next turn, so that other tasks get
    theirs. An exception is reported as the loop reports those of callbacks, and the other functions still run.
    """

    __slots__ = ("_calls", "_is_scheduled")

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    def put_off(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        calls = self._calls
        try:
            for _ in range(ROUNDS):
                for _ in range(len(calls)):
                    calls.popleft()()
        finally:
            self._is_scheduled = bool(calls)
            if calls:
                asyncio.get_running_loop().call_soon(self._run)
