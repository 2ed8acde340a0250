"""Somebody with a ZooKeeper client of their own, who writes where brokers read."""

import asyncio
from typing import Any

from kazoo.protocol import serialization as requests
from kazoo.security import OPEN_ACL_UNSAFE

from tests.simulation.load import Client
from tests.simulation.zookeeper import SimKazooClient


class _Ignored:
    """Whether it was written does not matter."""

    def set(self, value: Any = None) -> None:
        """It was."""

    def set_exception(self, error: BaseException) -> None:
        """It was not."""


class Stranger(Client):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._client: SimKazooClient | None = None

    async def main(self) -> None:
        self._client = SimKazooClient(hosts="zk:2181", timeout=6.0)
        self._client.start_async()
        await asyncio.Event().wait()

    def write(self, path: str, data: bytes) -> None:
        if self._client is None or self.loop is None:
            return
        self.note(f"writes {data!r} to {path}")
        flags = 2 if path.endswith("_") else 0
        self.loop.call_soon(self._client._call, requests.Create(path, data, OPEN_ACL_UNSAFE, flags), _Ignored())
