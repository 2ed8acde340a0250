"""Runs blocking work on threads, and calls back on the event loop."""

import asyncio
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class OnThread(Protocol):
    """Runs the work on some thread; awaiting it waits for the result."""

    async def __call__(self, work: Callable[[], T]) -> T: ...


class ThreadPool(Executor):
    """Threads that start when there is work for them, up to `size`, which may change at any time (`background.threads`).

    Owner: its creator; any thread may call `submit` and `resize`. `shutdown` must be called.
    """

    def __init__(self, size: int, *, name: str) -> None:
        self._size = size
        self._name = name
        self._lock = threading.Lock()
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._numbers = itertools.count()
        #: Jobs that were submitted and have not finished. More threads than this are useless.
        self._unfinished = 0
        self._is_shut_down = False

    @property
    def thread_count(self) -> int:
        with self._lock:
            return len(self._threads)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        future: Future[T] = Future()
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError("the pool has been shut down")
            self._unfinished += 1
            self._queue.put((future, partial(fn, *args, **kwargs)))
            self._add_threads()
        return future

    def resize(self, size: int) -> None:
        """Change the number of threads. Surplus threads end when they are idle."""
        with self._lock:
            before, self._size = len(self._threads), size
            for _ in range(before - size):
                self._queue.put(None)
            self._add_threads()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Finish the submitted work, unless `cancel_futures`, and end the threads."""
        with self._lock:
            self._is_shut_down = True
            threads = list(self._threads)
            while cancel_futures and not self._queue.empty():
                if (item := self._queue.get()) is not None:
                    item[0].cancel()
            for _ in threads:
                self._queue.put(None)
        if wait:
            for thread in threads:
                thread.join()

    def _add_threads(self) -> None:
        while len(self._threads) < min(self._size, self._unfinished):
            thread = threading.Thread(target=self._run, name=f"{self._name}_{next(self._numbers)}")
            try:
                thread.start()
            except RuntimeError:
                # The system starts no more threads: the existing ones do the work. Do not count this one, or it would be
                # missing forever.
                if not self._threads:
                    raise
                return
            self._threads.add(thread)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            _work(*item)
            # While the thread waits, it must not keep the objects of its last job alive.
            del item
            with self._lock:
                self._unfinished -= 1
        with self._lock:
            self._threads.discard(threading.current_thread())
            if not self._is_shut_down:
                self._add_threads()


def _work(future: "Future[Any]", function: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


class LoopThreads:
    """Runs work on a pool, and its callback on the event loop. Satisfies `storage`'s `Threads`."""

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
        """Wait until all work has finished: the last step of a clean stop."""
        while self._pending:
            await asyncio.wait(list(self._pending))
