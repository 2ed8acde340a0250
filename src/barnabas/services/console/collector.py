"""Live answers: each is requested once per interval while it is watched, and sent to all its watchers.

Owner: the event loop. A slow watcher gets the newest answer when it is ready; answers do not pile up.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from barnabas.services.console.errors import Refusal
from barnabas.services.console.services import Tasks
from barnabas.services.console.web import encode, error_document, refusal_for

#: Interval of empty comments: proxies close silent connections, and a failed write shows that the watcher has gone.
SILENCE_S: Final = 15.0
WATCHED_MAX: Final = 500

Ask = Callable[[], Awaitable[Any]]


@dataclass(slots=True, eq=False)
class Watcher:
    """One browser tab."""

    _news: dict[str, bytes] = field(default_factory=dict)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, key: str, data: bytes) -> None:
        self._news[key] = data
        self._woken.set()

    async def events(self, is_present: Callable[[], bool]) -> AsyncIterator[bytes]:
        """Yield an event stream (event: the key, data: JSON) until the user's session ends."""
        yield b": hello\n\n"
        while is_present():
            try:
                async with asyncio.timeout(SILENCE_S):
                    await self._woken.wait()
            except TimeoutError:
                yield b": still here\n\n"
                continue
            self._woken.clear()
            news, self._news = self._news, {}
            for key, data in news.items():
                yield b"event: " + key.encode() + b"\ndata: " + data + b"\n\n"


@dataclass(slots=True)
class _Feed:
    key: str
    ask: Ask
    every_s: float
    watchers: set[Watcher] = field(default_factory=set)
    latest: bytes = b""
    outdated: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None


class Collector:
    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._feeds: dict[str, _Feed] = {}

    def check_room(self, keys: Iterable[str]) -> None:
        """:raises Refusal: if these things are too many besides those that are watched already."""
        if len(self._feeds.keys() | set(keys)) > WATCHED_MAX:
            raise Refusal(429, "TOO_MANY", f"{WATCHED_MAX} different things are watched already", retry_s=5)

    def watch(self, watcher: Watcher, key: str, ask: Ask, every_s: float) -> None:
        feed = self._feeds.get(key)
        if feed is None:
            self.check_room((key,))
            feed = self._feeds[key] = _Feed(key, ask, every_s)
            feed.task = self._tasks.start(self._collect(feed), f"watch {key}")
        feed.watchers.add(watcher)
        if feed.latest:
            watcher.tell(key, feed.latest)

    def leave(self, watcher: Watcher, keys: Iterable[str]) -> None:
        for key in keys:
            feed = self._feeds.get(key)
            if feed is not None:
                feed.watchers.discard(watcher)
                if not feed.watchers:
                    self._end(feed)

    def ask_again(self) -> None:
        """Refresh all feeds at once after a change."""
        for feed in self._feeds.values():
            feed.outdated.set()

    def stop(self) -> None:
        for feed in list(self._feeds.values()):
            self._end(feed)

    def _end(self, feed: _Feed) -> None:
        self._feeds.pop(feed.key, None)
        if feed.task is not None:
            feed.task.cancel()

    async def _collect(self, feed: _Feed) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                document = await feed.ask()
            except Exception as error:
                document = error_document(refusal_for(error, f"watch {feed.key}"))
            data = encode(document)
            if data != feed.latest:
                feed.latest = data
                for watcher in feed.watchers:
                    watcher.tell(feed.key, data)
            # All feeds have the same ticks, so that they can share answers.
            pause_s = feed.every_s - loop.time() % feed.every_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await feed.outdated.wait()
            feed.outdated.clear()
