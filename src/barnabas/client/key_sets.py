"""The key sets that verify signed tokens: loaded from a URL, refreshed, and kept if a refresh fails.

Owner: the event loop; a thread loads the documents.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final

from barnabas.base.backoff import Backoff
from barnabas.base.errors import ConfigError
from barnabas.client.web import WebFailed, check_url, load, scheme_of
from barnabas.wire.auth.jwt import InvalidToken, Jwt, KeySet, UnknownKey
from barnabas.wire.auth.registry import KeySetSettings

log = logging.getLogger(__name__)

#: A token with an unknown key triggers a refresh, but not more often than this, because strangers can send such tokens.
EXPEDITE_MIN_S: Final = 10.0


class KeySetSource:
    def __init__(self, settings: KeySetSettings, *, now_s: Callable[[], float]) -> None:
        """:raises ConfigError: if the URL or the file cannot be used. A web server may come up later."""
        check_url(settings.setting, settings.url)
        self._settings = settings
        self._now_s = now_s
        self._keys: KeySet | None = None
        self._wanted = asyncio.Event()
        self._expedited_s = -EXPEDITE_MIN_S
        if scheme_of(settings.url) == "file":
            try:
                self._keys = KeySet(load(settings.url))
            except (WebFailed, ConfigError) as error:
                raise ConfigError(f"{settings.setting}: {error}") from error

    def verify(self, token: Jwt) -> None:
        """:raises InvalidToken: unless a key of the set signed it."""
        if self._keys is None:
            raise InvalidToken("the key set has not been loaded yet")
        try:
            self._keys.verify(token)
        except UnknownKey:
            self._expedite()
            raise

    def _expedite(self) -> None:
        now_s = self._now_s()
        if now_s - self._expedited_s >= EXPEDITE_MIN_S:
            self._expedited_s = now_s
            self._wanted.set()

    async def run(self) -> None:
        """Load the key set, and again after each `…refresh.ms`, or earlier when a token needs it. Runs until cancelled."""
        backoff = Backoff(self._settings.backoff_ms / 1000, self._settings.backoff_max_ms / 1000)
        if self._keys is not None:
            await self._wait(self._settings.refresh_ms)
        while True:
            try:
                self._keys = await asyncio.to_thread(lambda: KeySet(load(self._settings.url)))
            except (WebFailed, ConfigError) as error:
                kept = (
                    "tokens are refused until it is loaded" if self._keys is None else "the previous one stays in use"
                )
                log.error("[%s] cannot load the key set, %s; check the URL: %s", self._settings.setting, kept, error)
                await asyncio.sleep(backoff.failed())
            else:
                log.info("[%s] loaded a key set with %d keys", self._settings.setting, len(self._keys))
                backoff.succeeded()
                await self._wait(self._settings.refresh_ms)

    async def _wait(self, delay_ms: int) -> None:
        self._wanted.clear()
        try:
            async with asyncio.timeout(delay_ms / 1000):
                await self._wanted.wait()
        except TimeoutError:
            return


class KeySets:
    """One source per URL, however many listeners use it."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._sources: dict[KeySetSettings, KeySetSource] = {}

    def of(self, settings: KeySetSettings) -> KeySetSource:
        source = self._sources.get(settings)
        if source is None:
            source = self._sources[settings] = KeySetSource(settings, now_s=self._now_s)
        return source

    def __iter__(self) -> Iterator[KeySetSource]:
        return iter(self._sources.values())
