"""Blocking work off the loop, and its end back on it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial


class LoopThreads:
    """Runs work on a pool; what is to be done with its end runs on the event loop. Satisfies `storage`'s `Threads`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: Executor) -> None:
        self._loop = loop
        self._pool = pool
        self._pending: set[asyncio.Future[None]] = set()

    def run(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        future = self._loop.run_in_executor(self._pool, work)
        self._pending.add(future)
        future.add_done_callback(partial(self._finished, done))

    def _finished(self, done: Callable[[BaseException | None], None], future: "asyncio.Future[None]") -> None:
        self._pending.discard(future)
        done(asyncio.CancelledError() if future.cancelled() else future.exception())

    async def drain(self) -> None:
        """Wait until everything that was asked for has ended: the last step of a clean stop."""
        while self._pending:
            await asyncio.wait(list(self._pending))
