"""`EmbeddedZooKeeper` in another program's event loop, and what can only be tested there: failing disks, bugs, clean-up."""

import asyncio
import struct
import threading
import time
from pathlib import Path

import pytest
import uvloop

from barnabas.base.clock import SystemClock
from barnabas.base.errors import BrokenInvariant
from barnabas.base.host.disk import Disk
from barnabas.zookeeper.config import ZooKeeperConfig
from barnabas.zookeeper.listener import Connection
from barnabas.zookeeper.server import EmbeddedZooKeeper
from barnabas.zookeeper.tree import CONTAINER_OWNER
from barnabas.zookeeper.wire import Op
from tests.manual_time import ManualClock
from tests.scenarios.zookeeper.zk_process import four_letter_word
from tests.scenarios.zookeeper.zk_raw import RawClient, create, watched


async def in_thread(function, *arguments):
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


def ask(port: int, *requests: tuple[int, bytes]) -> list[int]:
    with RawClient(port) as client:
        assert client.connect()
        return [client.call(op, body).err for op, body in requests]


async def test_starts_stops_and_starts_again_in_a_plain_event_loop(data: Path) -> None:
    for life in range(3):
        server = EmbeddedZooKeeper(data)
        await server.start()
        assert server.port > 0
        assert await in_thread(ask, server.port, (Op.CREATE, create(f"/life{life}"))) == [0]
        assert len(server.service.machine.tree.nodes) == 5 + life
        await server.stop()
        await server.stop()


async def test_two_servers_live_in_one_process(tmp_path: Path) -> None:
    servers = [EmbeddedZooKeeper(tmp_path / name) for name in "ab"]
    for server in servers:
        await server.start()
    assert await in_thread(ask, servers[0].port, (Op.CREATE, create("/only-a"))) == [0]
    assert await in_thread(ask, servers[1].port, (Op.EXISTS, watched("/only-a"))) == [-101]
    for server in servers:
        await server.stop()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_all_four_letter_words_are_answered_only_on_loopback(data: Path, host: str) -> None:
    server = EmbeddedZooKeeper(data, host)
    await server.start()
    answers = [await in_thread(four_letter_word, server.port, word) for word in (b"ruok", b"srvr", b"dump", b"cons")]
    await server.stop()
    assert answers[0] == "imok" and answers[1].startswith("Zookeeper version: ")
    refused = ["not in the whitelist" in each for each in answers[2:]]
    assert refused == [host == "0.0.0.0"] * 2, "these words show other clients"


async def test_disk_that_fails_acknowledges_nothing_and_is_reported(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = EmbeddedZooKeeper(data)
    await server.start()
    assert await in_thread(ask, server.port, (Op.CREATE, create("/before"))) == [0]

    def fail(_disk: Disk, _fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Disk, "fdatasync", fail)
    with pytest.raises(ConnectionError):
        await in_thread(ask, server.port, (Op.CREATE, create("/after")))
    assert server.failed is not None
    with pytest.raises(OSError, match="Input/output error"):
        await server.failed
    with pytest.raises(OSError):
        await in_thread(ask, server.port, (Op.EXISTS, watched("/")))
    await server.stop()


async def test_bug_stops_the_server_rather_than_serve_a_half_changed_state(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = EmbeddedZooKeeper(data)
    await server.start()

    def broken(*_arguments: object, **_options: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(server.service.machine.tree, "apply_create", broken)
    with pytest.raises(ConnectionError):
        await in_thread(ask, server.port, (Op.CREATE, create("/x")))
    assert server.failed is not None
    assert isinstance(server.failed.exception(), BrokenInvariant)
    await server.stop()
    again = EmbeddedZooKeeper(data)
    await again.start()
    assert await in_thread(ask, again.port, (Op.CREATE, create("/x"))) == [0]
    await again.stop()


@pytest.mark.parametrize(
    ("place", "request_"),
    [
        ("barnabas.zookeeper.reads.read", (Op.EXISTS, watched("/"))),
        ("barnabas.zookeeper.prepare.prepare", (Op.CREATE, create("/x"))),
    ],
    ids=["read", "write"],
)
async def test_bug_before_anything_is_changed_closes_the_connection_and_no_other(
    data: Path, monkeypatch: pytest.MonkeyPatch, place: str, request_: tuple[Op, bytes]
) -> None:
    server = EmbeddedZooKeeper(data)
    await server.start()

    def broken(*_arguments: object, **_options: object) -> None:
        raise KeyError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(place, broken)
        with pytest.raises(ConnectionError):
            await in_thread(ask, server.port, request_)
    assert server.failed is not None and not server.failed.done()
    assert await in_thread(ask, server.port, (Op.CREATE, create("/x"))) == [0]
    await server.stop()


async def test_containers_and_ttl_nodes_are_cleaned_up(data: Path) -> None:
    config = ZooKeeperConfig(container_check_interval_ms=20)

    server = EmbeddedZooKeeper(data, config=config)
    await server.start()
    ttl = struct.pack(">q", 50)
    requests = [
        (Op.CREATE_CONTAINER, create("/c", flags=4)),
        (Op.CREATE_CONTAINER, create("/never-used", flags=4)),
        (Op.CREATE, create("/c/x")),
        (Op.CREATE_TTL, create("/t", flags=5) + ttl),
        (Op.DELETE, create("/c/x")[:8] + struct.pack(">i", -1)),
    ]
    assert await in_thread(ask, server.port, *requests) == [0] * 5
    nodes = server.service.machine.tree.nodes
    async with asyncio.timeout(60):
        while "/c" in nodes or "/t" in nodes:
            await asyncio.sleep(0.01)
    assert "/never-used" in nodes
    await server.stop()
    again = EmbeddedZooKeeper(data, config=config)
    await again.start()
    assert "/c" not in again.service.machine.tree.nodes
    assert again.service.machine.tree.nodes["/never-used"].owner == CONTAINER_OWNER
    await again.stop()


def test_setting_the_wall_clock_expires_no_session(data: Path) -> None:
    class Jumping(SystemClock):
        jump_ms = 0

        def now_ms(self) -> int:
            return super().now_ms() + self.jump_ms

    async def story() -> None:
        clock = Jumping()
        server = EmbeddedZooKeeper(data, clock=clock)
        await server.start()
        with RawClient(server.port) as client:
            assert await in_thread(client.connect)
            for jump_ms in (10**9, -(10**9)):
                clock.jump_ms = jump_ms
                server.service.expire_sessions()
                assert (await in_thread(client.call, Op.EXISTS, watched("/"))).err == 0
        await server.stop()

    asyncio.run(story())


async def test_sessions_expire_by_the_injected_clock(data: Path) -> None:
    clock = ManualClock()
    server = EmbeddedZooKeeper(data, clock=clock)
    await server.start()
    with RawClient(server.port) as client:
        assert await in_thread(lambda: client.connect(timeout_ms=10_000))
        await in_thread(client.call, Op.CREATE, create("/e", flags=1))
        clock.advance_ms(9_999)
        server.service.expire_sessions()
        assert "/e" in server.service.machine.tree.nodes
        clock.advance_ms(2_001)
        server.service.expire_sessions()
        assert "/e" not in server.service.machine.tree.nodes
        assert await in_thread(client.is_closed)
    assert server.service.machine.sessions.by_id == {}
    await server.stop()


def test_server_that_was_held_up_for_longer_than_a_session_hears_its_clients_first(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        server = EmbeddedZooKeeper(data, config=ZooKeeperConfig(tick_time_ms=100))
        await server.start()
        held_up = threading.Event()
        handle = server.service.handle

        def slow(connection: Connection, payload: bytes, out: list[bytes]) -> None:
            if connection.session_id == hog.session_id != 0:
                held_up.set()
                time.sleep(2.0)
            handle(connection, payload, out)

        with RawClient(server.port) as hog, RawClient(server.port) as client:
            assert await in_thread(lambda: hog.connect(timeout_ms=10_000))
            assert await in_thread(lambda: client.connect(timeout_ms=1_000))
            monkeypatch.setattr(server.service, "handle", slow)

            def ask_meanwhile() -> int:
                hog.request(Op.EXISTS, watched("/"))
                assert held_up.wait(60)
                return client.call(Op.EXISTS, watched("/")).err

            assert await in_thread(ask_meanwhile) == 0
        await server.stop()

    # uvloop runs timers before it reads new data.
    uvloop.run(story())


async def test_server_in_which_no_session_can_expire_any_more_stops_serving(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = EmbeddedZooKeeper(data, config=ZooKeeperConfig(tick_time_ms=20))
    await server.start()

    def broken() -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(server.service, "expire_sessions", broken)
    assert server.failed is not None
    with pytest.raises(KeyError, match="a bug"):
        await asyncio.wait_for(server.failed, 60)
    await server.stop()


async def test_snapshot_in_progress_does_not_hold_up_a_stop(data: Path) -> None:
    server = EmbeddedZooKeeper(data, config=ZooKeeperConfig(snap_count=1000))
    await server.start()
    requests = [(Op.CREATE, create(f"/n{number}")) for number in range(1005)]
    assert set(await in_thread(ask, server.port, *requests)) == {0}
    await server.stop()
    assert not list((data / "version-2").glob("*.tmp"))
    again = EmbeddedZooKeeper(data)
    await again.start()
    assert len(again.service.machine.tree.nodes) == 1009
    await again.stop()
