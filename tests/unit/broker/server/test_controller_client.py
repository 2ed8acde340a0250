"""A broker's requests to the controller, while controllers come and go."""

import asyncio
from typing import Any, cast

import pytest

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.ids import BrokerEpoch, BrokerId
from barnabas.broker.server.broker_connections import BrokerConnections
from barnabas.broker.server.controller_client import ControllerClient
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache
from barnabas.client.errors import ConnectionLost
from barnabas.wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.update_metadata import UpdateMetadataRequest


class SilentLinks:
    """Broker 1 has lost power without notice. The others answer."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.left: list[int] = []

    async def request(self, broker_id: int, message: ApiMessage, response_type: Any, *, timeout_ms: int) -> Any:
        if broker_id != 1:
            return response_type()
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left.append(broker_id)


def client(links: SilentLinks, metadata: MetadataCache) -> ControllerClient:
    return ControllerClient(
        BrokerId(3),
        cast("BrokerConnections", links),
        metadata,
        config=lambda: BrokerConfig.parse({"broker.id": "3", "zookeeper.connect": "localhost:2181"}),
        broker_epoch=lambda: BrokerEpoch(1),
    )


def test_request_to_a_silent_controller_ends_when_another_one_is_elected() -> None:
    asyncio.run(_another_is_elected())


async def _another_is_elected() -> None:
    links, metadata = SilentLinks(), MetadataCache()
    metadata.update(UpdateMetadataRequest(controller_id=1))
    asked = client(links, metadata)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        altering = tasks.create_task(_altered(asked))
        await links.asked.wait()
        metadata.update(UpdateMetadataRequest(controller_id=1))
        await asyncio.sleep(0)
        assert not altering.done()
        metadata.update(UpdateMetadataRequest(controller_id=2))
        metadata.update(UpdateMetadataRequest(controller_id=2))
    assert altering.result() == "broker 1 is no longer the controller"
    assert links.left == [1]
    assert await asked.alter_partition(AlterPartitionRequest()) == AlterPartitionResponse()
    assert not metadata._listeners


async def _altered(asked: ControllerClient) -> str:
    with pytest.raises(ConnectionLost) as caught:
        await asked.alter_partition(AlterPartitionRequest())
    return str(caught.value)
