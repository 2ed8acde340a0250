"""A store that takes longer for every request, as over a network."""

import asyncio
from collections.abc import Iterable

from barnabas.broker.features.tiered.store import FilePart, Store

DELAY_S = 0.02


class Slow:
    """A store that takes longer for every request."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def put(self, key: str, data: bytes | FilePart) -> None:
        await asyncio.sleep(DELAY_S)
        await self._store.put(key, data)

    async def get_range(self, key: str, start: int, end: int) -> memoryview:
        await asyncio.sleep(DELAY_S)
        return await self._store.get_range(key, start, end)

    async def get(self, key: str) -> bytes:
        await asyncio.sleep(DELAY_S)
        return await self._store.get(key)

    async def delete(self, keys: Iterable[str]) -> None:
        await asyncio.sleep(DELAY_S)
        await self._store.delete(keys)

    async def list(self, prefix: str) -> list[tuple[str, int]]:
        await asyncio.sleep(DELAY_S)
        return await self._store.list(prefix)
