"""Connections to other brokers, while those come and go."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from barnabas.base.ids import BrokerId
from barnabas.broker.server.broker_connections import BrokerConnections
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache
from barnabas.broker.zookeeper_client.znodes import Endpoint
from barnabas.client.connection import Connection, open_connection
from barnabas.client.errors import ConnectionLost
from barnabas.wire.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataRequest,
)
from barnabas.wire.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse

LISTENER = "PLAINTEXT"


class Silent:
    """Brokers that accept connections and requests and never answer. Broker 1's host has no power and accepts nothing."""

    def __init__(self) -> None:
        self.metadata = MetadataCache()
        self.connections = BrokerConnections(
            BrokerId(9), endpoint_of=lambda broker: self.metadata.endpoint(broker, LISTENER), open_connection=self._open
        )
        self.metadata.subscribe(lambda change: self.connections.brokers_changed() if change.brokers_changed else None)
        self.opening = asyncio.Event()
        self.asked = asyncio.Event()

    async def start(self) -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(4)
            self.asked.set()
            await reader.read()
            writer.close()

        self.server = await asyncio.start_server(silent, "127.0.0.1", 0)
        self._port = self.server.sockets[0].getsockname()[1]
        self.alive(1, 2)

    async def _open(self, endpoint: Endpoint, client_id: str) -> Connection:
        if endpoint.host == "away":
            self.opening.set()
            await asyncio.Event().wait()
        return await open_connection(endpoint.host, endpoint.port, client_id=client_id, negotiate=False)

    def alive(self, *brokers: int) -> None:
        def broker(number: int) -> UpdateMetadataBroker:
            host = "away" if number == 1 else "127.0.0.1"
            endpoint = UpdateMetadataEndpoint(port=self._port, host=host, listener=LISTENER, security_protocol=0)
            return UpdateMetadataBroker(id=number, endpoints=[endpoint])

        self.metadata.update(UpdateMetadataRequest(controller_id=9, live_brokers=[broker(each) for each in brokers]))


async def _lost(request: Awaitable[object]) -> str:
    with pytest.raises(ConnectionLost) as caught:
        await request
    return str(caught.value)


async def _ends(brokers: Silent, *, for_another: Callable[[], None], for_this: Callable[[], None]) -> None:
    """A request that broker 2 has taken ends when it should, and not for the sake of another broker."""
    await brokers.start()
    connection = await brokers.connections.lane("transaction-markers").to(BrokerId(2))
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        asked = connection.request(WriteTxnMarkersRequest(), WriteTxnMarkersResponse, version=1, timeout_ms=600_000)
        waiting = tasks.create_task(_lost(asked))
        await brokers.asked.wait()
        for_another()
        await asyncio.sleep(0)
        assert not waiting.done()
        for_this()
    assert connection.closed
    brokers.connections.close()
    brokers.server.close()


async def test_request_to_a_broker_that_is_gone_ends() -> None:
    brokers = Silent()
    await _ends(brokers, for_another=lambda: brokers.alive(2), for_this=lambda: brokers.alive())


async def test_request_to_the_former_life_of_a_broker_ends_when_it_has_returned() -> None:
    """Its host lost power and came back at once: the controller never reported it as gone."""

    brokers = Silent()
    returned = brokers.connections.brokers_returned
    await _ends(brokers, for_another=lambda: returned({1}), for_this=lambda: returned({2}))


async def test_connection_that_is_being_opened_to_a_broker_that_is_gone_ends() -> None:
    """And those who wait behind it need not try for themselves."""

    brokers = Silent()
    await brokers.start()
    lane = brokers.connections.lane("transaction-verification")
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        first = tasks.create_task(_lost(lane.to(BrokerId(1))))
        await brokers.opening.wait()
        second = tasks.create_task(_lost(lane.to(BrokerId(1))))
        await asyncio.sleep(0)
        brokers.alive(2)
        brokers.alive()  # before the first of them has heard of it
    assert first.result() == "broker 1 is no longer known to be alive"
    assert second.result() == "broker 1 is not known to be alive"
    assert not lane._opening
    brokers.connections.close()
    brokers.server.close()
