"""ZooKeeper servers that are behind keep ZooKeeper's promises, and no more than those."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from kazoo.protocol import serialization as requests

from barnabas.broker.zookeeper_client.kazoo_client import KazooConnection
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.session_config import SessionConfig
from barnabas.testing.simulation.network import Network
from barnabas.testing.simulation.process import Process
from barnabas.testing.simulation.world import World
from barnabas.testing.simulation.zookeeper import SimKazooClient
from tests.simulation.ensemble import SYNC_LIMIT_S, FollowerProcess, LeaderProcess
from tests.simulation.simulate import in_child

PATH = "/number"

Life = Callable[[ZooKeeperSession], Awaitable[None]]


class Ensemble:
    """Three servers, none of which is behind until a test says so."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.network = Network(self.world)
        self.leader = LeaderProcess(self.world, self.network)
        self.followers = [FollowerProcess(self.world, self.network, name, "zk") for name in ("zk2", "zk3")]
        self._clients: list[_Client] = []
        for follower in self.followers:
            follower.settle()
        for server in (self.leader, *self.followers):
            server.start()
        self.world.run_until(self.world.now_s + 0.2)

    def connect(self, hosts: str, life: Life) -> None:
        """Start a client that runs `life`."""
        client = _Client(self, f"client{len(self._clients)}", hosts, life)
        self._clients.append(client)
        client.start()

    def run(self, limit_s: float = 60.0) -> None:
        """Run until all clients have ended."""
        until_s = self.world.now_s + limit_s
        while any(client.is_up for client in self._clients):
            assert self.world.now_s < until_s, "a client does not end"
            self.world.run_until(self.world.now_s + 0.1)


class _Client(Process):
    def __init__(self, ensemble: Ensemble, name: str, hosts: str, life: Life) -> None:
        super().__init__(ensemble.world, ensemble.network, name)
        self._hosts = hosts
        self._do = life
        self.on_end = self._check

    async def main(self) -> None:
        config = SessionConfig(hosts=self._hosts, session_timeout_ms=6_000, connection_timeout_ms=60_000)
        session = ZooKeeperSession(config, partial(KazooConnection, make_client=SimKazooClient))
        await session.start()
        await self._do(session)
        await session.stop()

    def _check(self, process: Process, error: BaseException | None) -> None:
        if error is not None:
            self.world.failure = error
            self.world.violate("ZooKeeper keeps its promises to a client", repr(error))


def passes(work: Callable[[], object]) -> None:
    """Run in a process of its own, because a world leaves much behind."""

    def done() -> dict[str, Any]:
        work()
        return {"broken": None}

    report = in_child(done)
    assert report["broken"] is None, report["trace"]


async def number_at(session: ZooKeeperSession, watch: Callable[[str], None] | None = None) -> int:
    data, _ = await session.get(PATH, watch)
    return int(data or b"")


async def write_while_one_is_behind(ensemble: Ensemble, session: ZooKeeperSession) -> None:
    await session.create(PATH, b"1")
    await asyncio.sleep(0.8)
    ensemble.followers[0].lag_s = 0.5
    await session.set(PATH, b"2")


def test_lagging_server_answers_with_old_data_until_its_client_syncs() -> None:
    def work() -> None:
        ensemble = Ensemble()
        seen: list[int] = []

        async def read(session: ZooKeeperSession) -> None:
            await asyncio.sleep(1.0)
            seen.append(await number_at(session))
            await session.catch_up(PATH)
            seen.append(await number_at(session))

        ensemble.connect("zk2:2181", read)
        ensemble.connect("zk:2181", partial(write_while_one_is_behind, ensemble))
        ensemble.run()
        assert seen == [1, 2]

    passes(work)


def test_client_of_a_lagging_server_sees_its_own_writes() -> None:
    def work() -> None:
        ensemble = Ensemble()
        ensemble.followers[0].lag_s = 0.5

        async def write(session: ZooKeeperSession) -> None:
            began_s = ensemble.world.now_s
            await session.create(PATH, b"1")
            assert ensemble.world.now_s - began_s >= 0.5, "a write is answered when this server has it"
            assert await number_at(session) == 1

        ensemble.connect("zk2:2181", write)
        ensemble.run()

    passes(work)


def test_sync_waits_until_a_server_has_its_leaders_state() -> None:
    def work() -> None:
        ensemble = Ensemble()
        seen: list[int] = []

        class Synced:
            def __init__(self) -> None:
                self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def set(self, value: Any = None) -> None:
                self.done.set_result(None)

            def set_exception(self, error: BaseException) -> None:
                self.done.set_exception(error)

        async def read(session: ZooKeeperSession) -> None:
            await asyncio.sleep(1.0)
            seen.append(await number_at(session))
            answer = Synced()
            assert session._connection is not None
            session._connection._client._call(requests.Sync(PATH), answer)
            await answer.done
            seen.append(await number_at(session))

        ensemble.connect("zk2:2181", read)
        ensemble.connect("zk:2181", partial(write_while_one_is_behind, ensemble))
        ensemble.run()
        assert seen == [1, 2]

    passes(work)


@pytest.mark.parametrize("seed", range(3))
def test_view_of_a_client_never_goes_back_and_a_watch_fires_before_the_change_is_seen(seed: int) -> None:
    """The client's server dies, is cut off, or loses it, and the client moves to another one, in the same session."""

    def work() -> None:
        ensemble = Ensemble(seed)
        world = ensemble.world
        servers: set[str] = set()
        is_over = False

        async def begin(session: ZooKeeperSession) -> None:
            await session.create(PATH, b"0")

        async def count(session: ZooKeeperSession) -> None:
            nonlocal is_over
            for number in range(1, 400):
                await session.set(PATH, str(number).encode())
                await asyncio.sleep(world.between(0.0, 0.05))
            is_over = True

        async def look(session: ZooKeeperSession) -> None:
            last, events_seen = 0, ["nothing was read before"]
            mine = await session.create(f"/mine-{world.number()}", ephemeral=True)
            first_id = session.session_id
            while not is_over:
                events: list[str] = []
                number = await number_at(session, events.append)
                assert number >= last, f"{number} after {last}"
                assert number == last or events_seen, f"{number} after {last}, and no watch fired"
                last, events_seen = number, events
                if world.chance(0.05):
                    await session.set(mine, str(number).encode())
                    assert await session.exists(mine) is not None
                servers.update(each.name for each in ensemble.followers if each.visits)
                await asyncio.sleep(world.between(0.0, 0.03))
            assert session.session_id == first_id

        def trouble() -> None:
            if is_over:
                return
            follower = world.random.choice(ensemble.followers)
            follower.lag_s = world.random.choice([0.0, 0.05, 0.3, 1.0])
            kind = world.random.choice(["lag", "kill", "lose", "leave", "cut"])
            if kind == "kill" and follower.is_up:
                follower.kill()
                world.after(0.3, lambda: None if follower.is_up else follower.start())
            elif kind == "lose":
                for visit in list(follower.visits):
                    visit.end()
            elif kind == "leave":
                assert ensemble.leader.server is not None
                for connection in list(ensemble.leader.server.service.connections):
                    connection.abort()
            elif kind == "cut":
                ensemble.network.cut("zk", follower.name)
                world.after(world.between(0.1, 3.0), lambda: ensemble.network.mend("zk", follower.name))
            world.after(world.between(0.1, 0.8), trouble)

        ensemble.connect("zk:2181", begin)
        ensemble.run()
        ensemble.connect("zk:2181", count)
        for _ in range(3):
            ensemble.connect("zk:2181,zk2:2181,zk3:2181", look)
        world.after(1.0, trouble)
        ensemble.run(120.0)
        assert servers == {"zk2", "zk3"}

    passes(work)


def test_server_without_its_leader_answers_for_a_while_and_then_disconnects_its_clients() -> None:
    def work() -> None:
        ensemble = Ensemble()
        follower = ensemble.followers[0]
        seen: list[int] = []

        async def stay(session: ZooKeeperSession) -> None:
            await session.create(PATH, b"1")
            ensemble.network.cut("zk", "zk2")
            await asyncio.sleep(SYNC_LIMIT_S / 2)
            seen.append(await number_at(session))
            assert follower.visits
            await asyncio.sleep(SYNC_LIMIT_S)
            assert not follower.visits
            ensemble.network.mend("zk", "zk2")
            seen.append(await number_at(session))

        ensemble.connect("zk2:2181", stay)
        ensemble.run()
        assert seen == [1, 1]

    passes(work)
