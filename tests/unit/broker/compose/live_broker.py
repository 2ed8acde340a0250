"""A whole broker in the test's own process and event loop, with an embedded ZooKeeper beside it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from barnabas.base.words import AlterOperation, ConfigResourceType
from barnabas.broker.compose import Broker
from barnabas.broker.server.platform import Platform
from barnabas.client.connection import open_connection
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tests.unit.broker.zookeeper_client.zookeeper_fixture import Ensemble

LISTENER = "PLAINTEXT"
R = TypeVar("R", bound=ApiMessage)


@asynccontextmanager
async def live_broker(
    ensemble: Ensemble,
    log_dir: Path,
    settings: Mapping[str, str] | None = None,
    *,
    ready: bool = True,
    platform: Platform | None = None,
) -> AsyncIterator[Broker]:
    """A broker that serves; with `ready=False` one that has taken its port, and goes on starting."""
    properties = {
        "zookeeper.connect": ensemble.server.connect_string,
        "broker.id": "1",
        "listeners": f"{LISTENER}://127.0.0.1:0",
        "log.dirs": str(log_dir),
        "controlled.shutdown.enable": "false",
        "barnabas.metrics.port": "-1",
        **(settings or {}),
    }
    broker = Broker(properties, platform=platform)
    serves = asyncio.Event()
    life = asyncio.create_task(broker.run(lambda broker: serves.set()))
    try:
        while LISTENER not in broker.ports and not life.done():
            await asyncio.sleep(0)
        if ready:
            waiting = asyncio.create_task(serves.wait())
            await asyncio.wait({life, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        yield broker
    finally:
        broker.stop()
        await life


async def ask(broker: Broker, message: ApiMessage, response_type: type[R], *, version: int) -> R:
    """One request on a connection of its own."""
    connection = await open_connection("127.0.0.1", broker.ports[LISTENER], client_id="test", negotiate=False)
    try:
        return await connection.request(message, response_type, version=version)
    finally:
        connection.close()


async def alter(broker: Broker, settings: Mapping[str, str | None], name: str = "1") -> tuple[int, str | None]:
    """Changes the dynamic settings of the broker, or with `name=""` the cluster's defaults; None deletes a setting."""
    entries = [
        AlterableConfig(
            name=setting, config_operation=AlterOperation.DELETE if value is None else AlterOperation.SET, value=value
        )
        for setting, value in settings.items()
    ]
    resource = AlterConfigsResource(resource_type=ConfigResourceType.BROKER, resource_name=name, configs=entries)
    request = IncrementalAlterConfigsRequest(resources=[resource])
    [answer] = (await ask(broker, request, IncrementalAlterConfigsResponse, version=1)).responses
    return answer.error_code, answer.error_message
