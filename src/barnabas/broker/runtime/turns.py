"""Turns of the event loop: what is left to do at the end of one, and work that is too much for one.

Many small things that are put off share one place in the loop's queue.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final, TypeVar

#: What was put off, and what that put off in turn: a write, and the answer to it.
ROUNDS: Final = 2
#: Elements that are handled before others have their turn: some 10 ms of the dearest.
SLICE_ELEMENTS: Final = 500

T = TypeVar("T")


async def in_turns(items: Iterable[T], size: int = SLICE_ELEMENTS) -> AsyncIterator[T]:
    """One item after the other. Others get their turn after each `size` of them."""
    for number, item in enumerate(items, 1):
        yield item
        if number % size == 0:
            await asyncio.sleep(0)


class TurnEnd:
    """Calls what was put off, in order, when the loop has done what it does now. Owner: the event loop.

    What comes of the calls is called in the same turn, and what comes of that in the next: others have their turn, too.
    One that fails is reported as any callback of the loop is, and the rest still runs.
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
