"""What is left to do at the end of a turn of the event loop: many small things share one place in the loop's queue."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

#: What was put off, and what that put off in turn: a write, and the answer to it.
ROUNDS: Final = 2


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
