"""An object store in memory with failures that a test chooses: slow, unreachable, losing answers, wrong lengths."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from barnabas.broker.features.tiered.store import FilePart, ObjectMissing, StoreFault


def _read(path: str, size_bytes: int) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(size_bytes)


async def _at_once() -> None:
    await asyncio.sleep(0)


@dataclass
class MemoryStore:
    """A `Store`. Its fields may be changed at any time."""

    objects: dict[str, bytes] = field(default_factory=dict)
    #: Awaited at the beginning of each request: an event or a time.
    delay: Callable[[], Awaitable[None]] = _at_once
    #: Whether every request fails.
    is_away: bool = False
    #: Called before each request with its kind ("put", "get", "delete", "list") and key. Returns an error to raise.
    fails: Callable[[str, str], Exception | None] = lambda kind, key: None
    #: The same after the request was carried out, as if its answer were lost.
    loses: Callable[[str, str], Exception | None] = lambda kind, key: None
    #: Number of bytes by which answers to `get_range` are too short.
    short_by: int = 0
    #: Reads a file; a simulation has its own disk.
    read: Callable[[str, int], bytes] = _read
    #: Kind and key of every request.
    requests: list[tuple[str, str]] = field(default_factory=list)

    async def put(self, key: str, data: bytes | FilePart) -> None:
        await self._begin("put", key)
        content = data if isinstance(data, bytes) else self.read(data.path, data.size_bytes)
        if isinstance(data, FilePart) and len(content) != data.size_bytes:
            raise StoreFault(f"{key}: {len(content)} bytes instead of {data.size_bytes}")
        self.objects[key] = content
        self._end("put", key)

    async def get_range(self, key: str, start: int, end: int) -> memoryview:
        await self._begin("get", key)
        if key not in self.objects:
            raise ObjectMissing(key)
        data = self.objects[key][start:end]
        data = data[: max(0, len(data) - self.short_by)]
        if len(data) != end - start:
            raise StoreFault(f"{key}: {len(data)} bytes from {start} on, where {end - start} were asked for")
        self._end("get", key)
        return memoryview(data)

    async def get(self, key: str, *, bytes_max: int) -> bytes:
        if len(self.objects.get(key, b"")) > bytes_max:
            raise StoreFault(f"{key} has {len(self.objects[key])} bytes, more than {bytes_max}")
        return bytes(await self.get_range(key, 0, len(self.objects.get(key, b""))))

    async def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            await self._begin("delete", key)
            self.objects.pop(key, None)
            self._end("delete", key)

    async def list(self, prefix: str) -> list[tuple[str, int]]:
        await self._begin("list", prefix)
        self._end("list", prefix)
        return sorted((key, len(data)) for key, data in self.objects.items() if key.startswith(prefix))

    async def _begin(self, kind: str, key: str) -> None:
        self.requests.append((kind, key))
        await self.delay()
        if self.is_away:
            raise StoreFault("the store is away")
        if (error := self.fails(kind, key)) is not None:
            raise error

    def _end(self, kind: str, key: str) -> None:
        if (error := self.loses(kind, key)) is not None:
            raise error
