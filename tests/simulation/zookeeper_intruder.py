"""A client with a ZooKeeper connection of its own: it writes where brokers read, and checks ZooKeeper's promises."""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any

from kazoo import exceptions as failures
from kazoo.protocol import serialization as requests
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.kazoo_client import KazooConnection
from barnabas.broker.zookeeper_client.operations import SetData
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.session_config import SessionConfig
from barnabas.broker.zookeeper_client.zk_errors import BadVersion, NodeExists, NoNode, NotEmpty, ZkError
from barnabas.broker.zookeeper_client.znodes import encode_config_change
from barnabas.testing.simulation.zookeeper import SimKazooClient
from tests.simulation.load import Client

#: Seconds between two looks.
PACE_S = (0.3, 1.5)
_ROOT = "/stranger"


class _Ignored:
    """The callback of a write whose result does not matter."""

    def set(self, value: Any = None) -> None:
        """It was."""

    def set_exception(self, error: BaseException) -> None:
        """Ignore the error."""


class _Spoiling:
    """The callback of an overwriting write: if it fails, there is nothing to restore."""

    def __init__(self, forget: Callable[[], object]) -> None:
        self._forget = forget

    def set(self, value: Any = None) -> None:
        """Do nothing: the write succeeded."""

    def set_exception(self, error: BaseException) -> None:
        if isinstance(error, failures.NoNodeError | failures.BadVersionError):
            self._forget()


def _in_the_next_epoch(path: str, data: bytes) -> bytes:
    """Return the state in the next controller epoch, since replicas ignore older states. Other data stays as it is."""
    if not path.endswith("/state"):
        return data
    state = json.loads(data)
    return json.dumps({**state, "leader_epoch": state["leader_epoch"] + 1}).encode()


class Intruder(Client):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._client: SimKazooClient | None = None
        self._count = 0
        #: Writes to come: (topic, path, function from the present data to the new data).
        self._wishes: list[tuple[str, str, Callable[[bytes], bytes]]] = []
        #: Path -> (topic, the data written there, the data before, until when it stays).
        self._spoilt: dict[str, tuple[str, bytes, bytes, float]] = {}
        self._unwanted: list[str] = []

    async def main(self) -> None:
        hosts = self.cluster.zookeeper_connect
        self._client = SimKazooClient(hosts=hosts, timeout=6.0)
        self._client.start_async()
        while not self.ending or self._spoilt:
            config = SessionConfig(hosts=hosts, session_timeout_ms=6_000, connection_timeout_ms=60_000)
            session = ZooKeeperSession(config, partial(KazooConnection, make_client=SimKazooClient))
            try:
                await session.start()
                await self._probe(session)
            except ZkError as error:
                self.note(f"starts again: {error}")
                await self.pause(*PACE_S)
            finally:
                await session.stop()
        self._client.stop()

    async def _probe(self, session: ZooKeeperSession) -> None:
        try:
            await session.create(_ROOT, b"0")
        except NodeExists:
            self.note("continues with the existing znodes")
        if self.cluster.scenario.has_locked_znodes:
            self._lock()
        while not self.ending:
            await self._write_in_order(session)
            await self._write_on_condition(session)
            await self.pause(*PACE_S)
            await self._meddle(session)
        await self._put_right(session)

    async def _meddle(self, session: ZooKeeperSession) -> None:
        while self._unwanted:
            await self._delete(session, self._unwanted.pop())
        while self._wishes:
            topic, path, make = self._wishes.pop()
            if path in self._spoilt:
                continue
            try:
                before, stat = await session.get(path)
                after = make(before or b"")
                self.note(f"writes {after!r} over {path}")
                self._spoilt[path] = (topic, after, before or b"", self.world.now_s + self.chance.uniform(0.5, 3.0))
                await session.set(path, after, stat.version)
            except (NoNode, BadVersion):
                self._spoilt.pop(path, None)
        await self._put_right(session)

    async def _put_right(self, session: ZooKeeperSession) -> None:
        """Restore the data, and have a controller elected that reads it, as operators do."""
        for path, (topic, spoilt, before, until_s) in list(self._spoilt.items()):
            if self.world.now_s < until_s and not self.ending:
                continue
            try:
                found, stat = await session.get(path)
                if found == spoilt:
                    self.note(f"puts {path} right")
                    await session.set(path, _in_the_next_epoch(path, before), stat.version)
                await session.create(
                    paths.config_change(),
                    encode_config_change(f"{paths.TOPICS}/{topic}"),
                    sequence=True,
                    make_path=True,
                )
                await session.delete(paths.CONTROLLER)
            except (NoNode, BadVersion) as error:
                self.note(f"finds other data at {path}: {error}")
            del self._spoilt[path]

    async def _delete(self, session: ZooKeeperSession, path: str) -> None:
        """Delete a znode with its children."""
        self.note(f"deletes {path}")
        try:
            for name in await session.children(path):
                await session.delete(f"{path}/{name}")
            await session.delete(path)
        except (NoNode, NotEmpty) as error:
            self.note(f"cannot delete {path}: {error}")

    def spoil(self, topic: str, path: str, make: Callable[[bytes], bytes]) -> None:
        """Overwrite the data of a znode with `make` of it soon, for a while."""
        self._wishes.append((topic, path, make))

    def spoil_now(self, topic: str, path: str, data: bytes, *, for_s: float) -> None:
        """Overwrite the data of a znode at once, unless another client changes it at this moment."""
        before, version = self.cluster.data_and_version_at(path)
        if before is None or path in self._spoilt:
            return
        self.note(f"writes {data!r} over {path}, now")
        self._spoilt[path] = (topic, data, before, self.world.now_s + for_s)
        self._send(requests.SetData(path, data, version), _Spoiling(lambda: self._spoilt.pop(path, None)))

    def put(self, path: str, data: bytes) -> None:
        self.note(f"sets {path} to {data!r}")
        self._send(requests.SetData(path, data, -1))

    def remove(self, path: str) -> None:
        self.note(f"removes {path}")
        self._send(requests.Delete(path, -1))

    def delete(self, path: str) -> None:
        self._unwanted.append(path)

    async def _write_in_order(self, session: ZooKeeperSession) -> None:
        """Send several writes at once: the ones that a lost connection interrupted are repeated in their order."""
        self._count += 1
        if self.chance.random() < 0.3:
            self.world.after(self.chance.uniform(0.0, 0.003), self._lose_connections)
        values = [f"{self._count}-{number}".encode() for number in range(3)]
        await asyncio.gather(*(session.begin_batch([SetData(_ROOT, value)]) for value in values))
        found, _ = await session.get(_ROOT)
        if found != values[-1]:
            self.world.violate("writes of one client keep their order", f"{values} left {found!r}")

    def _lose_connections(self) -> None:
        for line in sorted(self.host.connections, key=hash):
            line.reset_later()
            line.other.reset_later()

    async def _write_on_condition(self, session: ZooKeeperSession) -> None:
        _, stat = await session.get(_ROOT)
        try:
            await session.set(_ROOT, b"of the past", stat.version - 1)
        except BadVersion:
            return
        self.world.violate("a write with an old version is refused", f"{stat.version - 1} at {stat.version}")

    def _lock(self) -> None:
        """Create znodes that only clients with a password may change, with a different user for each."""
        for number in range(5):
            acl = make_digest_acl(f"somebody-{number}", f"password-{number}", all=True)
            self._send(requests.Create(f"{_ROOT}/locked-{number}", b"", [acl], 0))

    def write(self, path: str, data: bytes) -> None:
        self.note(f"writes {data!r} to {path}")
        self._create(path, data, is_sequence=path.endswith("_"))

    def store(self, sizes_bytes: list[int]) -> None:
        """Write much at once, so that one flush of ZooKeeper's log has several records on several pages."""
        self.note(f"stores {sizes_bytes} bytes")
        for number, size_bytes in enumerate(sizes_bytes):
            self._create(f"{_ROOT}/{number}-", bytes([65 + number]) * size_bytes, is_sequence=True)

    def _create(self, path: str, data: bytes, *, is_sequence: bool) -> None:
        self._send(requests.Create(path, data, OPEN_ACL_UNSAFE, 2 if is_sequence else 0))

    def _send(self, request: Any, answer: Any = None) -> None:
        if self._client is not None and self.loop is not None:
            self.loop.call_soon(self._client._call, request, answer or _Ignored())
