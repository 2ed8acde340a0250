"""The bridge between kazoo's thread and the loop, against the embedded ZooKeeper."""

import asyncio
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kazoo.protocol.connection import ConnectionDropped

from barnabas.base.errors import ConfigError, ErrorCode
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.kazoo_client import Answer, _InlineHandler, _Wire
from barnabas.broker.zookeeper_client.operations import (
    Check,
    Create,
    Delete,
    Exists,
    Get,
    GetChildren,
    Guard,
    Interrupted,
    Operation,
    Result,
    SetData,
    Stat,
    ZkCode,
)
from barnabas.broker.zookeeper_client.session import SessionConfig, SessionState, ZooKeeperSession
from barnabas.broker.zookeeper_client.zk_errors import (
    BadVersion,
    ConnectionLost,
    NodeExists,
    NoNode,
    NotAuthorized,
    NotEmpty,
    SessionExpired,
    TooLarge,
)
from tests.support.waiting import eventually
from tests.unit.broker.zookeeper_client.zookeeper_fixture import (
    Ensemble,
    session,
    states_of,
    zookeeper,
    zookeeper_on_thread,
)


async def test_znodes_are_made_read_changed_and_deleted(zk: ZooKeeperSession) -> None:
    assert await zk.create("/a/b/c", b"1", make_path=True) == "/a/b/c"
    assert await zk.create("/a/empty") == "/a/empty"
    data, stat = await zk.get("/a/b/c")
    assert (data, stat.version, stat.ephemeral_owner) == (b"1", 0, 0)
    assert (await zk.get("/a/empty"))[0] is None
    assert (await zk.set("/a/b/c", b"2", 0)).version == 1
    assert await zk.children("/a") == ("b", "empty")
    assert await zk.exists("/nothing") is None
    await zk.delete("/a/b/c", 1)
    assert await zk.exists("/a/b/c") is None


async def test_refusals_have_types(zk: ZooKeeperSession) -> None:
    await zk.create("/a/b", make_path=True)
    with pytest.raises(NodeExists, match="/a/b"):
        await zk.create("/a/b")
    with pytest.raises(NoNode):
        await zk.get("/nothing")
    with pytest.raises(NoNode):
        await zk.children("/nothing")
    with pytest.raises(BadVersion):
        await zk.set("/a/b", b"", 7)
    with pytest.raises(NotEmpty):
        await zk.delete("/a")
    with pytest.raises(BadVersion):
        await zk.transaction([Create("/c"), Check("/a", 5)])
    assert await zk.exists("/c") is None


async def test_sequential_and_ephemeral_znodes_are_numbered_and_owned(ensemble: Ensemble) -> None:
    async with session(ensemble) as zk:
        assert await zk.create("/n_", b"", sequence=True) == "/n_0000000000"
        assert await zk.create("/n_", b"", sequence=True) == "/n_0000000001"
        await zk.create("/mine", b"", ephemeral=True)
        stat = await zk.exists("/mine")
        assert stat is not None and stat.ephemeral_owner == zk.session_id
    async with session(ensemble) as other:
        assert await other.exists("/mine") is None
        assert await other.exists("/n_0000000001") is not None


async def test_chroot_is_made_and_hidden(ensemble: Ensemble) -> None:
    async with session(ensemble, "/clusters/one") as zk:
        assert await zk.create("/x_", b"", sequence=True) == "/x_0000000000"
        heard: list[str] = []
        await zk.get("/x_0000000000", heard.append)
        await zk.set("/x_0000000000", b"1")
        await zk.exists("/")
        assert heard == ["/x_0000000000"]
    async with session(ensemble, "/clusters/one") as again, session(ensemble) as root:
        assert await again.children("/") == ("x_0000000000",)
        assert await root.children("/clusters/one") == ("x_0000000000",)


async def test_watch_fires_once_and_before_the_answer_of_a_later_read(zk: ZooKeeperSession) -> None:
    heard: list[str] = []
    await zk.create("/a")
    await zk.children("/a", heard.append)
    # The same watch again counts once.
    await zk.children("/a", heard.append)
    assert await zk.exists("/b", heard.append) is None
    await zk.create("/a/1")
    await zk.create("/a/2")
    await zk.create("/b")
    await zk.get("/b")
    assert heard == ["/a", "/b"]


async def test_batch_answers_each_operation_in_its_place(zk: ZooKeeperSession) -> None:
    answer = await zk.batch(
        [
            Create("/t", b"1"),
            Create("/t"),
            Get("/t"),
            SetData("/t", b"2", 9),
            Exists("/nothing"),
            GetChildren("/"),
            Delete("/t"),
        ]
    )
    assert [each.code for each in answer.results] == [
        ZkCode.OK,
        ZkCode.NODE_EXISTS,
        ZkCode.OK,
        ZkCode.BAD_VERSION,
        ZkCode.NO_NODE,
        ZkCode.OK,
        ZkCode.OK,
    ]
    assert answer.results[2].data == b"1"
    assert "t" in answer.results[5].children
    assert (await zk.batch([])).results == ()


@pytest.mark.parametrize("chroot", ["", "/kafka"])
@pytest.mark.parametrize("is_old_server", [False, True])
async def test_many_reads_travel_together_and_each_has_its_own_answer(
    chroot: str, is_old_server: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from barnabas.broker.zookeeper_client import kazoo_client

    async with zookeeper() as ensemble, session(ensemble, chroot) as zk:
        await zk.batch([Create(f"/n{number}", b"%d" % number) for number in range(0, 500, 2)])
        sent: list[object] = []
        submit = zk._connection.submit  # type: ignore[union-attr]

        def note(operation: object, done: object) -> None:
            sent.append(operation)
            submit(operation, done)  # type: ignore[arg-type]

        monkeypatch.setattr(zk._connection, "submit", note)
        if is_old_server:
            monkeypatch.setattr(kazoo_client, "_read_together", lambda results: Result(ZkCode.UNIMPLEMENTED))
        fired: list[str] = []
        wanted = [Get(f"/n{number}", fired.append if number == 250 else None) for number in range(500)]
        for attempt in range(2):
            sent.clear()
            results = (await zk.batch(wanted)).results
            for number, result in enumerate(results):
                if number % 2:
                    assert result.code is ZkCode.NO_NODE
                else:
                    assert (result.data, result.stat and result.stat.version) == (b"%d" % number, 0)
            if is_old_server:
                assert len(sent) == (500 if attempt else 506), "it is asked for once only"
            else:
                assert len(sent) == 7, "500 in hundreds, but for the one with a watch"
        await zk.set("/n250", b"new")
        assert fired == ["/n250"]


async def test_guarded_writes_go_through_while_the_guard_holds_and_each_has_its_own_answer(
    zk: ZooKeeperSession,
) -> None:
    await zk.create("/controller_epoch", b"1")
    await zk.create("/p/7", make_path=True)
    creations = [Create(path) for number in range(300) for path in (f"/p/{number}", f"/p/{number}/state")]
    answer = await zk.batch(creations, Guard(0))
    assert not answer.moved
    refused = [op for op, each in zip(creations, answer.results, strict=True) if not each.ok]
    # One that existed took its transaction along; the others were made all the same, parents first.
    assert refused == [Create("/p/7")]
    assert len(await zk.children("/p")) == 300
    assert await zk.children("/p/299") == ("state",)


@pytest.mark.parametrize("partitions", [49, 50, 51, 100, 150])
async def test_write_that_is_alone_in_its_transaction_waits_for_those_that_it_builds_on(
    zk: ZooKeeperSession, partitions: int
) -> None:
    """Transactions have a hundred writes: of 50 partitions and their topic's node the last state is one alone. A refused
    write before it has all the others done one by one, and it must not be refused for want of its parent meanwhile."""

    await zk.create("/controller_epoch", b"1")
    await zk.create("/t/partitions", make_path=True)  # by the controller before this one
    nodes = [f"/t/partitions/{number}" for number in range(partitions)]
    creations = [Create("/t/partitions"), *(Create(p) for node in nodes for p in (node, f"{node}/state"))]
    answer = await zk.batch(creations, Guard(0))
    assert [each.ok for each in answer.results] == [False, *([True] * 2 * partitions)]


async def test_guard_that_fails_stops_the_whole_batch(zk: ZooKeeperSession) -> None:
    await zk.create("/controller_epoch", b"1")
    await zk.set("/controller_epoch", b"2")
    answer = await zk.batch([Create(f"/x{number}") for number in range(250)], Guard(0))
    assert answer.moved
    assert [each for each in await zk.children("/") if each.startswith("x")] == []
    assert not (await zk.batch([Create("/x")], Guard(1))).moved
    with pytest.raises(TypeError, match="only a write can be guarded"):
        await zk.batch([Get("/x")], Guard(1))


async def test_operations_outlive_a_lost_connection_in_order(ensemble: Ensemble, zk: ZooKeeperSession) -> None:
    states = states_of(zk)
    await zk.create("/seq")
    ensemble.drop_connections()
    names = await asyncio.gather(*(zk.create(f"/seq/{number}") for number in range(500)))
    assert names == [f"/seq/{number}" for number in range(500)]
    assert states[:2] == [SessionState.SUSPENDED, SessionState.CONNECTED]


class TellsLate:
    """A connection that fails its requests before it says that it is lost, as kazoo's does."""

    def __init__(self, config: SessionConfig, **callbacks: Callable[..., None]) -> None:
        self.chroot = ""
        self.callbacks = callbacks
        self.submitted: list[tuple[Operation, Callable[[Answer], None]]] = []

    def start(self) -> None:
        self.callbacks["on_connected"](1)

    def submit(self, operation: Operation, done: Callable[[Answer], None]) -> None:
        self.submitted.append((operation, done))

    def stop(self) -> None:
        """There is nothing to stop."""


@pytest.mark.parametrize("why", [Interrupted.CONNECTION_LOST, Interrupted.SESSION_MOVED])
async def test_request_that_lost_its_connection_waits_for_the_next_one(why: Interrupted) -> None:
    """Sent at once, it would be failed at once, until kazoo's thread has no time to say that the connection is lost."""

    made: list[TellsLate] = []

    def connect(config: SessionConfig, **callbacks: Callable[..., None]) -> TellsLate:
        made.append(TellsLate(config, **callbacks))
        return made[0]

    zk = ZooKeeperSession(SessionConfig("nowhere:1", session_timeout_ms=6_000), cast(Any, connect))
    starting = asyncio.ensure_future(zk.start())
    while not made or not made[0].submitted:
        await asyncio.sleep(0)
    connection = made[0]
    connection.submitted.pop()[1](Result(ZkCode.OK, stat=Stat(0, 0)))
    await starting
    asked = asyncio.ensure_future(zk.exists("/brokers"))
    while not connection.submitted:
        await asyncio.sleep(0)
    operation, done = connection.submitted.pop()
    done(why)
    for _ in range(5):
        await asyncio.sleep(0)
    assert bool(connection.submitted) is (why is Interrupted.SESSION_MOVED)
    connection.callbacks["on_suspended"]()
    connection.callbacks["on_connected"](1)
    while not connection.submitted:
        await asyncio.sleep(0)
    again, done = connection.submitted.pop()
    assert again == operation
    done(Result(ZkCode.NO_NODE))
    assert await asked is None
    await zk.stop()


def test_loop_does_not_wait_for_kazoo_to_hear_that_there_are_requests() -> None:
    read, bell = _InlineHandler(None).create_socket_pair()
    with read, bell:
        for _ in range(1000):
            assert bell.send(b"\0") == 1
        for _ in range(1000):
            assert select.select([read], [], [], 0)[0], "it wakes kazoo's thread once for each"
            assert read.recv(1) == b"\0"
        assert not select.select([read], [], [], 0)[0]


async def test_request_that_is_larger_than_zookeeper_takes_is_refused_and_others_go_on(zk: ZooKeeperSession) -> None:
    """A server closes the connection each time it gets such a request."""

    await zk.create(paths.CONTROLLER_EPOCH, b"1")
    large = Create("/large", b"x" * 1_200_000)
    guarded = zk.batch([Create("/a"), large, Create("/b")], Guard(0))
    alone = zk.batch([large])
    for answer, expected in zip(
        await asyncio.gather(guarded, alone),
        ([ZkCode.OK, ZkCode.TOO_LARGE, ZkCode.OK], [ZkCode.TOO_LARGE]),
        strict=True,
    ):
        # Operations that were done before the connection was lost answer NODE_EXISTS.
        codes = [ZkCode.OK if each.code is ZkCode.NODE_EXISTS else each.code for each in answer.results]
        assert codes == expected
    assert await zk.children("/") == ("a", "b", "controller_epoch", "zookeeper")
    # From now on a request of this size is not even sent.
    lost = zk.disconnects.value
    with pytest.raises(TooLarge, match="/larger would have 1,300,000 bytes"):
        await zk.create("/larger", b"x" * 1_300_000)
    assert zk.disconnects.value == lost > 0


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (paths.config_entity(paths.TOPICS, "t"), ErrorCode.INVALID_CONFIG),
        (paths.config_entity(paths.BROKERS_ENTITY, "1"), ErrorCode.INVALID_CONFIG),
        (paths.config_entity(paths.USERS, "alice"), ErrorCode.INVALID_REQUEST),
        (f"{paths.ACL_LITERAL}/Topic/t", ErrorCode.INVALID_REQUEST),
        (f"{paths.ACL_PREFIXED}/Topic/t", ErrorCode.INVALID_REQUEST),
        (paths.delegation_token("t"), ErrorCode.INVALID_REQUEST),
        (paths.link("l"), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_data_that_clients_choose_costs_no_connection_however_large_it_is(
    zk: ZooKeeperSession, path: str, code: ErrorCode
) -> None:
    await zk.create(paths.CONTROLLER_EPOCH, b"1")
    for write in (zk.create(path, b"x" * 1_000_000), zk.set(path, b"x" * 1_000_000)):
        with pytest.raises(TooLarge, match="would have 1,000,000 bytes") as refused:
            await write
        assert refused.value.code is code
    answer = await zk.batch([Create("/a"), Create(path, b"x" * 1_000_000), Create("/b")], Guard(0))
    assert [each.code for each in answer.results] == [ZkCode.OK, ZkCode.TOO_LARGE, ZkCode.OK]
    assert zk.disconnects.value == 0


async def test_writes_that_travel_together_are_no_larger_than_zookeeper_takes(zk: ZooKeeperSession) -> None:
    await zk.create(paths.CONTROLLER_EPOCH, b"1")
    writes = [Create(f"/{number}", b"x" * 100_000) for number in range(2)]
    answer = await zk.batch([*writes, Create("/large", b"x" * 1_000_000)], Guard(0))
    assert [each.code for each in answer.results] == [ZkCode.OK] * 3
    assert zk.disconnects.value == 0


async def test_session_outlives_its_time_when_the_loop_turns_and_ends_when_it_hangs() -> None:
    with zookeeper_on_thread() as address:
        zk = ZooKeeperSession(SessionConfig(hosts=address, session_timeout_ms=3_000))
        await zk.start()
        seen = states_of(zk)
        try:
            await zk.create("/mine", ephemeral=True)
            first = zk.session_id
            await asyncio.sleep(5)  # pings alone keep it: nothing is asked for
            assert zk.session_id == first and seen == []
            time.sleep(6)  # noqa: ASYNC251  # kazoo's thread goes on; the loop does not turn
            await eventually(lambda: SessionState.RENEWED in seen)
            assert seen.index(SessionState.EXPIRED) < seen.index(SessionState.RENEWED)
            # The session that kazoo made meanwhile may have expired as well.
            assert await zk.outlive(lambda: zk.exists("/mine")) is None
            assert zk.session_id != first
        finally:
            await zk.stop()


async def test_loop_that_hangs_a_little_keeps_its_session() -> None:
    with zookeeper_on_thread() as address:
        zk = ZooKeeperSession(SessionConfig(hosts=address, session_timeout_ms=4_000))
        await zk.start()
        try:
            first = zk.session_id
            for _ in range(3):
                time.sleep(1.8)  # noqa: ASYNC251
                await asyncio.sleep(0.3)
            assert zk.session_id == first and await zk.exists("/") is not None
        finally:
            await zk.stop()


def test_server_that_announces_a_huge_packet_loses_its_connection_before_memory_is_taken() -> None:
    wire = _Wire(cast(Any, SimpleNamespace(handler=_InlineHandler(None))), None)
    for length in (2**31 - 1, 128 * 1024 * 1024 + 1, -1):
        with pytest.raises(ConnectionDropped, match=str(length)):
            wire._read(length, 1.0)


async def test_watch_on_a_connection_that_broke_asks_to_look_again(ensemble: Ensemble, zk: ZooKeeperSession) -> None:
    states = states_of(zk)
    fired = asyncio.Event()
    await zk.create("/a")
    await zk.get("/a", lambda _: fired.set())
    ensemble.drop_connections()
    await fired.wait()
    await eventually(lambda: SessionState.CONNECTED in states)


async def test_expired_session_fails_its_requests_and_is_renewed_without_its_ephemerals(
    ensemble: Ensemble, zk: ZooKeeperSession
) -> None:
    states = states_of(zk)
    await zk.create("/mine", b"", ephemeral=True)
    first = zk.session_id
    ensemble.expire_sessions()
    await eventually(lambda: SessionState.EXPIRED in states)
    with pytest.raises(SessionExpired):
        await zk.get("/mine")
    await eventually(lambda: SessionState.RENEWED in states)
    assert zk.session_id != first
    assert await zk.exists("/mine") is None


async def test_stop_fails_requests_in_flight_and_later_ones(ensemble: Ensemble, zk: ZooKeeperSession) -> None:
    await ensemble.server.stop()
    waiting = asyncio.ensure_future(zk.get("/"))
    await asyncio.sleep(0)
    await zk.stop()
    with pytest.raises(SessionExpired):
        await waiting
    with pytest.raises(SessionExpired):
        await zk.get("/")


async def test_unreachable_server_is_an_error_that_names_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        zk = ZooKeeperSession(SessionConfig(hosts=f"127.0.0.1:{port}", connection_timeout_ms=200))
        with pytest.raises(ConnectionLost, match=rf"127\.0\.0\.1:{port}.*zookeeper\.connection\.timeout\.ms=200"):
            await zk.start()


async def test_second_host_serves_when_the_first_is_down(ensemble: Ensemble) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        hosts = f"127.0.0.1:{taken.getsockname()[1]},{ensemble.server.connect_string}"
        async with session(ensemble, hosts=hosts) as zk:
            assert zk.is_connected


async def test_secure_znodes_are_written_only_with_the_credentials_that_made_them(ensemble: Ensemble) -> None:
    async with session(ensemble, secure_acls=True, auth=(("digest", "kafka:secret"),)) as zk:
        await zk.create("/config/users/alice", b"secret", make_path=True)
        await zk.create("/brokers")
        assert (await zk.set("/brokers", b"x")).version == 1
    async with session(ensemble) as other:
        assert (await other.get("/brokers"))[0] == b"x"
        answer = await other.batch([SetData("/brokers", b""), Get("/config/users/alice")])
        assert [each.code for each in answer.results] == [ZkCode.NO_AUTH, ZkCode.NO_AUTH]


async def test_credentials_that_the_server_refuses_are_an_error_that_says_so(ensemble: Ensemble) -> None:
    with pytest.raises(NotAuthorized, match="refuses the credentials"):
        async with session(ensemble, auth=(("nonsense", "x"),)):
            raise AssertionError("it connected")


@pytest.mark.parametrize(
    ("connect", "expected"),
    [
        ("h:2181", ("h:2181", "")),
        ("h1:2181,h2:2181/some/path", ("h1:2181,h2:2181", "/some/path")),
        ("h:2181/", ("h:2181", "")),
        ("h:2181/kafka/", ("h:2181", "/kafka")),
    ],
)
def test_zookeeper_connect_has_hosts_and_a_path(connect: str, expected: tuple[str, str]) -> None:
    assert SessionConfig.split(connect) == expected


@pytest.mark.parametrize("connect", ["", "/path", "h:1/a//b"])
def test_invalid_zookeeper_connect_is_refused(connect: str) -> None:
    with pytest.raises(ConfigError, match=r"zookeeper\.connect"):
        SessionConfig.split(connect)


def test_kazoo_is_not_imported_before_a_session_starts() -> None:
    script = "import sys, barnabas.broker.zookeeper_client.session; sys.exit('kazoo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
