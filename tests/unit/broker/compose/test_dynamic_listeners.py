"""Listeners that are added, moved, removed and advertised elsewhere while the broker runs, and after it starts again."""

import asyncio
import socket
from pathlib import Path

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.broker.compose import Broker
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.znodes import BrokerRegistration
from barnabas.client.connection import Connection, open_connection
from barnabas.client.errors import ConnectionLost
from barnabas.wire.messages.metadata import MetadataRequest, MetadataResponse
from tests.support.waiting import eventually
from tests.unit.broker.compose.live_broker import LISTENER, alter, live_broker
from tests.unit.broker.zookeeper_client.zookeeper_fixture import Ensemble, session, zookeeper

HOME = "127.0.0.1"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOME, 0))
        port: int = probe.getsockname()[1]
        return port


async def registered(zookeeper_session: ZooKeeperSession) -> dict[str, int]:
    """The port of each listener in the broker's registration."""
    data, _ = await zookeeper_session.get(paths.broker_id(1))
    return {each.listener: each.port for each in BrokerRegistration.decode(1, data or b"").endpoints}


async def advertised(port: int) -> tuple[str, int] | None:
    """The address of the broker in the metadata that a client of this port gets; None before the controller has sent one."""
    connection = await open_connection(HOME, port, client_id="test", negotiate=False)
    try:
        answer = await connection.request(MetadataRequest(topics=[]), MetadataResponse, version=9)
    finally:
        connection.close()
    return next(((each.host, each.port) for each in answer.brokers), None)


async def until_advertised(port: int, address: tuple[str, int]) -> None:
    async with asyncio.timeout(20):
        while await advertised(port) != address:
            await asyncio.sleep(0.01)


async def until_refused(port: int) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                (await open_connection(HOME, port, client_id="test", negotiate=False)).close()
            except ConnectionLost:
                return
            await asyncio.sleep(0.01)


async def is_closed(connection: Connection) -> bool:
    await eventually(lambda: connection.closed)
    return True


async def test_a_listener_is_added_and_removed_while_the_broker_runs(tmp_path: Path) -> None:
    async with zookeeper() as ensemble, live_broker(ensemble, tmp_path) as broker, session(ensemble) as other:
        added = {
            "listeners": f"{LISTENER}://{HOME}:0,EXTRA://{HOME}:0",
            "listener.security.protocol.map": f"{LISTENER}:PLAINTEXT,EXTRA:PLAINTEXT",
        }
        assert await alter(broker, added) == (ErrorCode.NONE, None)
        extra = broker.ports["EXTRA"]
        await until_advertised(extra, (HOME, extra))
        assert await registered(other) == broker.ports == {LISTENER: broker.ports[LISTENER], "EXTRA": extra}
        client = await open_connection(HOME, extra, client_id="test", negotiate=False)
        assert await alter(broker, dict.fromkeys(added)) == (ErrorCode.NONE, None)
        await until_refused(extra)
        assert await is_closed(client)
        assert await registered(other) == broker.ports == {LISTENER: broker.ports[LISTENER]}


async def test_an_advertised_address_changes_at_once(tmp_path: Path) -> None:
    async with zookeeper() as ensemble, live_broker(ensemble, tmp_path) as broker, session(ensemble) as other:
        port = broker.ports[LISTENER]
        wanted = {"advertised.listeners": f"{LISTENER}://localhost:{port}"}
        assert await alter(broker, wanted) == (ErrorCode.NONE, None)
        await until_advertised(port, ("localhost", port))
        assert await registered(other) == {LISTENER: port}
        ensemble.expire_sessions()
        await eventually(lambda: broker.registrar.is_of_this_session)
        await until_advertised(port, ("localhost", port))


async def test_a_listener_moves_to_another_port_and_stays_there_after_a_restart(
    ensemble: Ensemble, tmp_path: Path
) -> None:
    port = free_port()
    async with live_broker(ensemble, tmp_path) as broker:
        former = broker.ports[LISTENER]
        assert await alter(broker, {"listeners": f"{LISTENER}://{HOME}:{port}"}) == (ErrorCode.NONE, None)
        assert broker.ports == {LISTENER: port}
        await until_advertised(port, (HOME, port))
        await until_refused(former)
    async with live_broker(ensemble, tmp_path) as broker, session(ensemble) as other:
        assert broker.ports == {LISTENER: port}
        assert await advertised(port) == (HOME, port)
        assert await registered(other) == {LISTENER: port}


@pytest.mark.parametrize("host", [HOME, ""])
async def test_the_host_of_a_listener_changes_on_the_same_port(broker: Broker, host: str) -> None:
    port = broker.ports[LISTENER]
    settings = {
        "listeners": f"{LISTENER}://{host}:{port}",
        "advertised.listeners": f"{LISTENER}://{HOME}:{port}",
    }
    assert await alter(broker, settings) == (ErrorCode.NONE, None)
    await until_advertised(port, (HOME, port))


async def test_listeners_that_cannot_work_are_refused_and_change_nothing(tmp_path: Path) -> None:
    protocols = {"listener.security.protocol.map": f"{LISTENER}:PLAINTEXT,EXTRA:SSL,LOGIN:SASL_PLAINTEXT"}
    with socket.socket() as taken:
        taken.bind((HOME, 0))
        taken.listen()
        port = taken.getsockname()[1]
        refusals: list[tuple[dict[str, str], str]] = [
            ({"listeners": f"{LISTENER}://{HOME}:{port}"}, "Address already in use"),
            ({"listeners": f"{LISTENER}://{HOME}:0,EXTRA://{HOME}:0"}, "listener EXTRA"),
            ({"listeners": f"{LISTENER}://{HOME}:0,LOGIN://{HOME}:0"}, "GSSAPI"),
            ({"listeners": f"LOGIN://{HOME}:0"}, "inter.broker.listener.name must be a listener name"),
            ({"advertised.listeners": f"EXTRA://{HOME}:1"}, "inter.broker.listener.name must be a listener name"),
        ]
        async with zookeeper() as ensemble, live_broker(ensemble, tmp_path) as broker, session(ensemble) as other:
            for settings, reason in refusals:
                code, message = await alter(broker, protocols | settings)
                assert (code, reason in (message or "")) == (ErrorCode.INVALID_REQUEST, True), (settings, message)
            assert await registered(other) == broker.ports
            assert broker.dynamic.own == {}
