"""An embedded ZooKeeper and sessions with it, for tests that speak to a real server."""

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

from barnabas.broker.zookeeper_client.operations import Stat
from barnabas.broker.zookeeper_client.session import SessionConfig, SessionState, ZooKeeperSession
from barnabas.broker.zookeeper_client.zk_errors import BadVersion, NodeExists, NoNode
from barnabas.zookeeper.config import ZooKeeperConfig
from barnabas.zookeeper.server import EmbeddedZooKeeper
from tests.manual_time import ManualClock


def run(story: Coroutine[None, None, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):  # a guard against standing still, not a measure
            await story

    asyncio.run(bounded())


class Ensemble:
    """One server whose clock stands still, so that a session expires when the test says so."""

    def __init__(self, data_dir: str) -> None:
        self.clock = ManualClock()
        self.server = EmbeddedZooKeeper(data_dir, clock=self.clock, config=ZooKeeperConfig(force_sync=False))

    def config(self, chroot: str = "") -> SessionConfig:
        return SessionConfig(hosts=self.server.connect_string, chroot=chroot, session_timeout_ms=6_000)

    def drop_connections(self) -> None:
        for connection in list(self.server.service.connections):
            connection.abort()

    def expire_sessions(self) -> None:
        """Every session that is open now."""
        self.clock.advance_ms(60_000)
        self.server.service.expire_sessions()


@asynccontextmanager
async def zookeeper() -> AsyncIterator[Ensemble]:
    with tempfile.TemporaryDirectory() as data_dir:
        ensemble = Ensemble(data_dir)
        await ensemble.server.start()
        try:
            yield ensemble
        finally:
            await ensemble.server.stop()


@contextmanager
def zookeeper_on_thread() -> Iterator[str]:
    """The address of a server with a loop and a clock of its own, for tests that block the loop of a client."""
    started: Future[str] = Future()
    is_over = threading.Event()

    async def serve() -> None:
        with tempfile.TemporaryDirectory() as data_dir:
            server = EmbeddedZooKeeper(data_dir, config=ZooKeeperConfig(tick_time_ms=500, force_sync=False))
            await server.start()
            started.set_result(server.connect_string)
            await asyncio.to_thread(is_over.wait)
            await server.stop()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        yield started.result(30)
    finally:
        is_over.set()
        thread.join()


@asynccontextmanager
async def session(ensemble: Ensemble, chroot: str = "", **settings: object) -> AsyncIterator[ZooKeeperSession]:
    opened = ZooKeeperSession(replace(ensemble.config(chroot), **settings))  # type: ignore[arg-type]
    await opened.start()
    try:
        yield opened
    finally:
        await opened.stop()


def states_of(opened: ZooKeeperSession) -> list[SessionState]:
    """Return a list that gets the states of the session, as they change."""
    seen: list[SessionState] = []
    opened.on_state(seen.append)
    return seen


class ReadsBehind:
    """A session with a server of an ensemble that knows nothing of what others have written since, until it has caught up."""

    def __init__(self, opened: ZooKeeperSession) -> None:
        self._opened = opened
        self._then: dict[str, tuple[bytes | None, Stat]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)

    async def fall_behind(self, *known: str) -> None:
        """Of these znodes it knows what there is now; of others, that there are none."""
        self._then = {path: await self._opened.get(path) for path in known}

    async def catch_up(self, path: str) -> None:
        await self._opened.catch_up(path)
        self._then = None

    async def get(self, path: str, watch: Callable[[str], None] | None = None) -> tuple[bytes | None, Stat]:
        if self._then is None:
            return await self._opened.get(path, watch)
        found = self._then.get(path)
        if found is None:
            raise NoNode(path)
        return found


class LosesAnswers:
    """A session whose connection is lost after each of these operations: its repetition is refused."""

    def __init__(self, opened: ZooKeeperSession) -> None:
        self._opened = opened

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)

    async def create(self, path: str, *args: Any, sequence: bool = False, **kwargs: Any) -> str:
        made = await self._opened.create(path, *args, sequence=sequence, **kwargs)
        if not sequence:
            raise NodeExists(path)
        return made

    async def set(self, path: str, data: bytes | None, version: int) -> None:
        await self._opened.set(path, data, version)
        raise BadVersion(path)

    async def delete(self, path: str, *args: Any) -> None:
        await self._opened.delete(path, *args)
        raise NoNode(path)
